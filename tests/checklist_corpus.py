"""How often ``rank-check`` is right on public scripts, and how many faults planted there it finds.

``tests/checklist/corpus.txt`` lists repositories with their commits, their training scripts, each finding in
these with our verdict, and faults that we planted into some of them. No line of these scripts stands there.

Run it:      python -m tests.checklist_corpus [FOLDER]

With FOLDER, which holds the repositories at these commits as OWNER+NAME, it reads the scripts anew, writes
what is found into the list, and gives each finding without a verdict a question mark.

A fault is lines of its own: "196 pass" replaces line 196, "+209 ..." stands before line 209, "|" ends a line,
" & " joins two changes, and "train.py:196 ..." names another file than the script.
"""

import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from shared.checklist.__main__ import chosen
from shared.checklist.findings import RULES, check

LIST = Path(__file__).parent / "checklist" / "corpus.txt"
SEVERITY = {rule.name: rule.severity for rule in RULES}
CHANGE = re.compile(r"(?:(\S+):)?(\+?)(\d+) (.*)")


class Finding(NamedTuple):
    place: str  # path:line in the repository
    rule: str
    verdict: str  # "true", "false", or "?"


class Fault(NamedTuple):
    rule: str
    found: bool
    change: str


class Script(NamedTuple):
    repository: str
    commit: str
    path: str
    unseen: bool  # nobody had looked at it when the rules were written
    findings: list[Finding]
    faults: list[Fault]


def read_list() -> list[Script]:
    scripts: list[Script] = []
    repository, commit, kind = "", "", ""
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("  fault "):
            rule, outcome, change = line.removeprefix("  fault ").split(" ", 2)
            scripts[-1].faults.append(Fault(rule, outcome == "found", change))
        elif line.startswith("  "):
            scripts[-1].findings.append(Finding(*line.split()))
        elif line.startswith("== "):
            repository, commit, kind = line[3:].split()
        elif line:
            scripts.append(Script(repository, commit, line, kind == "unseen", [], []))
    return scripts


def write_list(scripts: list[Script]) -> None:
    lines: list[str] = []
    before = ""
    for one in scripts:
        if one.repository != before:
            lines += ["", f"== {one.repository} {one.commit} {'unseen' if one.unseen else 'seen'}"]
        before = one.repository
        lines.append(one.path)
        lines += [f"  {' '.join(finding)}" for finding in one.findings]
        lines += [
            f"  fault {rule} {'found' if found else 'missed'} {change}" for rule, found, change in one.faults
        ]
    LIST.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")


def again(scripts: list[Script], folder: Path) -> list[Script]:
    """The list with what is found today."""
    found = []
    seen: dict[str, set] = {}
    for one in scripts:
        root = folder / one.repository.replace("/", "+")
        verdicts = {(finding.place, finding.rule): finding.verdict for finding in one.findings}
        places = findings_in(root, root / one.path)
        new = sorted(places - seen.setdefault(one.repository, set()))
        seen[one.repository] |= places
        faults = [fault._replace(found=is_found(root, one.path, fault, places)) for fault in one.faults]
        findings = [Finding(*key, verdicts.get(key, "?")) for key in new]
        found.append(one._replace(findings=findings, faults=faults))
    return found


def findings_in(root: Path, script: Path) -> set[tuple[str, str]]:
    report = check([script], chosen(None, []))
    return {
        (f"{Path(one.path).resolve().relative_to(root.resolve()).as_posix()}:{one.line}", one.rule.name)
        for one in report.findings
    }


def is_found(root: Path, script: str, fault: Fault, before: set[tuple[str, str]]) -> bool:
    """Whether its rule finds more once the fault is planted."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / root.name
        shutil.copytree(root, copy, ignore=lambda _, names: [one for one in names if one.endswith(".ipynb")])
        plant(copy, script, fault.change)
        after = findings_in(copy, copy / script)
    count = Counter(rule for _, rule in after)
    return count[fault.rule] > sum(rule == fault.rule for _, rule in before)


def plant(root: Path, script: str, change: str) -> None:
    for one in change.split(" & "):
        match = CHANGE.fullmatch(one)
        assert match is not None, one
        path = root / (match[1] or script)
        lines = path.read_text(encoding="utf-8").split("\n")
        place = int(match[3]) - 1
        indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
        lines[place : place + (not match[2])] = [indent + line for line in match[4].split("|")]
        path.write_text("\n".join(lines), encoding="utf-8")


def table(scripts: list[Script]) -> str:
    """Precision and recall by severity, as Markdown."""
    rows = ["| | findings | true | | planted | found | |", "|---|---|---|---|---|---|---|"]
    for severity in ("hangs", "wrong"):
        verdicts = [
            one.verdict for script in scripts for one in script.findings if SEVERITY[one.rule] == severity
        ]
        faults = [one.found for script in scripts for one in script.faults if SEVERITY[one.rule] == severity]
        true, found = verdicts.count("true"), sum(faults)
        rows.append(
            f"| {severity} | {len(verdicts)} | {true} | {share(true, len(verdicts))} "
            f"| {len(faults)} | {found} | {share(found, len(faults))} |"
        )
    return "\n".join(rows)


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def by_rule(scripts: list[Script]) -> str:
    lines = []
    for rule in RULES:
        verdicts = Counter(
            one.verdict for script in scripts for one in script.findings if one.rule == rule.name
        )
        faults = [one.found for script in scripts for one in script.faults if one.rule == rule.name]
        if verdicts or faults:
            lines.append(
                f"{rule.code} {rule.name:10} true {verdicts['true']:3}  false {verdicts['false']:2}  "
                f"unjudged {verdicts['?']:2}  planted {len(faults):2}  found {sum(faults):2}"
            )
    return "\n".join(lines)


def sentence(scripts: list[Script]) -> str:
    """What notebooks/tools.md says about these scripts."""
    verdicts = [one.verdict for script in scripts for one in script.findings]
    hangs = [one.verdict for script in scripts for one in script.findings if SEVERITY[one.rule] == "hangs"]
    faults = [one.found for script in scripts for one in script.faults]
    repositories = {one.repository for one in scripts}
    told = f"{hangs.count('true')} of {len(hangs)} *hangs*" if hangs else "no *hangs* among them"
    return (
        f"{verdicts.count('true')} of {len(verdicts)} findings are true on {len(scripts)} public scripts of "
        f"{len(repositories)} repositories ({told}), and of {len(faults)} faults that we planted there it "
        f"finds {sum(faults)}"
    )


def main() -> None:
    scripts = read_list()
    if sys.argv[1:]:
        scripts = again(scripts, Path(sys.argv[1]))
        write_list(scripts)
    for name, some in (
        ("looked at while writing the rules", [one for one in scripts if not one.unseen]),
        ("unseen, at first sight", [one for one in scripts if one.unseen]),
    ):
        repositories = {one.repository for one in some}
        print(f"{name}: {len(repositories)} repositories, {len(some)} scripts\n\n{table(some)}\n")
    print(by_rule(scripts))


if __name__ == "__main__":
    main()
