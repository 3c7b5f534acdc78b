"""How findings are told: as text, JSON, SARIF or comments of GitHub; and the page of all rules."""

import json
from collections import Counter
from collections.abc import Callable

from .findings import Finding, Report
from .rule import SEVERITIES, Rule

LEVELS = {"hangs": "error", "wrong": "error", "slow": "warning", "style": "note"}
DOUBTS = {"hangs": "may hang", "wrong": "may be wrong"}
CLAIMS = ("hangs", "may hang", "wrong", "may be wrong", "slow", "style")


def level(rule: Rule) -> str:
    """How loud it is told: as an error where it is sure."""
    loud = LEVELS[rule.severity]
    return "warning" if loud == "error" and rule.tier != "sure" else loud


def claim(rule: Rule) -> str:
    """What is said of a script: that it hangs only by a rule that was right nine times in ten."""
    return rule.severity if rule.tier == "sure" else DOUBTS.get(rule.severity, rule.severity)


def noted(finding: Finding) -> str:
    """How often such findings were true, unless it is sure."""
    return "" if finding.rule.tier == "sure" else f" ({finding.rule.record})"


def as_text(report: Report, rules: tuple[Rule, ...], files: int) -> str:
    lines = [
        f"{finding.place}: {finding.rule.code} {claim(finding.rule)}: "
        f"{finding.text} [{finding.rule.name}]{noted(finding)}"
        for finding in report.findings
    ]
    counts = Counter(claim(finding.rule) for finding in report.findings)
    kinds = ", ".join(f"{counts[word]} {word}" for word in CLAIMS if counts[word])
    number = len(report.findings)
    summary = f"{files} file{'s' * (files != 1)}, {len(rules)} rules: "
    summary += f"{number} finding{'s' * (number != 1)} ({kinds})" if number else "nothing found"
    lines.append(summary)
    if report.unasked:
        whys = ", ".join(f"{why} ({count})" for why, count in report.unasked.most_common())
        total = sum(report.unasked.values())
        lines.append(f"{total} question{'s' * (total != 1)} not asked: {whys}")
    return "\n".join(lines)


def as_dict(finding: Finding) -> dict:
    return {
        "path": finding.path,
        "cell": finding.cell or None,
        "line": finding.line,
        "column": finding.column,
        "code": finding.rule.code,
        "rule": finding.rule.name,
        "severity": finding.rule.severity,
        "tier": finding.rule.tier,
        "first_sight": dict(zip(("true", "judged"), finding.rule.first_sight, strict=True)),
        "message": finding.text,
    }


def as_json(report: Report, rules: tuple[Rule, ...], files: int) -> str:
    document = {
        "files": files,
        "findings": [as_dict(finding) for finding in report.findings],
        "not_asked": dict(report.unasked),
        "errors": report.errors,
    }
    return json.dumps(document, indent=2)


def as_github(report: Report, rules: tuple[Rule, ...], files: int) -> str:
    """Commands of GitHub's workflows, which mark the line in a pull request."""
    lines = []
    for finding in report.findings:
        word = level(finding.rule).replace("note", "notice")
        text = (finding.text + noted(finding)).replace("%", "%25").replace("\n", "%0A")
        where = (
            f"file={finding.path},line={finding.line},col={finding.column},"
            f"title={finding.rule.code} ({claim(finding.rule)})"
        )
        lines.append(f"::{word} {where}::{text}")
    return "\n".join(lines)


def as_sarif(report: Report, rules: tuple[Rule, ...], files: int) -> str:
    """The format that code scanners read."""
    about = [
        {
            "id": rule.code,
            "name": rule.name,
            "shortDescription": {"text": rule.question},
            "defaultConfiguration": {"level": level(rule)},
        }
        for rule in rules
    ]
    results = []
    for finding in report.findings:
        region = {"startLine": finding.line, "startColumn": finding.column}
        place = {"artifactLocation": {"uri": finding.path.replace("\\", "/")}, "region": region}
        text = f"cell {finding.cell}: " * bool(finding.cell) + finding.text + noted(finding)
        results.append(
            {
                "ruleId": finding.rule.code,
                "level": level(finding.rule),
                "message": {"text": text},
                "locations": [{"physicalLocation": place}],
            }
        )
    tool = {"driver": {"name": "rank-check", "rules": about}}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps(
        {"version": "2.1.0", "$schema": schema, "runs": [{"tool": tool, "results": results}]}, indent=2
    )


FORMATS: dict[str, Callable[[Report, tuple[Rule, ...], int], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
}


INTRO = """\
# Rules of rank-check

`rank-check train.py notebooks/` reads training scripts, notebooks and folders, and runs nothing. It goes
through a script as Python would and says what it sees there. By default it asks the rules of *hangs* and
*wrong*, but for those that were right too seldom on public scripts. `--select` and `--ignore` take codes,
names and severities, as do lists in the table `[tool.rank-check]` of a `pyproject.toml`. The comment
`# rank-check: ignore[RC101]` keeps a rule silent about its line. The exit code is 1 if something is found,
and 2 if a file cannot be read. `rank-check` is also the name of a hook for pre-commit.

The numbers say how many of a rule's findings were true on public scripts that it had not seen. A rule is
sure if nine in ten were, of three or more. Its findings say *hangs* or *wrong*; those of the others say *may
hang* or *may be wrong*. `--sure`, or `sure = true` in that table, asks the sure rules alone.
[How often it is right](tools.md#a-checklist).
"""


def page(rules: tuple[Rule, ...]) -> str:
    """All rules in Markdown: what each asks, what happens else, an example, its cure."""
    lines = [INTRO]
    for severity in reversed(SEVERITIES):
        lines += [f"## {severity.capitalize()}", "", f"{SEVERITIES[severity].capitalize()}.", ""]
        for rule in [rule for rule in rules if rule.severity == severity]:
            asked = "" if rule.by_default else " Asked when it is selected."
            record = f"{rule.record.capitalize()}{': sure' * (rule.tier == 'sure')}."
            lines += [f"### {rule.code} {rule.name}", ""]
            lines += [f"{rule.question}{asked} Lesson {rule.lesson}. {record}", ""]
            if rule.bad:
                lines += ["```python", rule.bad, "```", ""]
            if rule.good:
                lines += ["Rather:", "", "```python", rule.good, "```", ""]
    return "\n".join(lines).rstrip()
