"""How often ``rank-check`` is right on public scripts, and how many faults planted there it finds.

``tests/checklist/corpus.txt`` lists repositories with their commits, their training scripts, each finding in
these with our verdict, and faults that we planted into some of them. No line of these scripts stands there.
The number after a commit is the round in which we first looked: 0 while we wrote the rules, 1 and so on for
scripts that they had not seen. ``first_sight.txt`` has our verdicts of each round before anything was mended.
In rounds 10 and 11 only the rules of hangs were asked; their scripts stand in ``hangs.txt``.

Run it:      python -m tests.checklist_corpus [FOLDER]

With FOLDER, which holds the repositories at these commits as OWNER+NAME, it reads the scripts anew, writes
what is found into the list, and gives each finding without a verdict a question mark. What cannot be read,
or ends in an error of ours, is printed, and the exit code is 1.

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
from shared.checklist.rule import is_sure

LIST = Path(__file__).parent / "checklist" / "corpus.txt"
HANGS = LIST.with_name("hangs.txt")
FIRST = LIST.with_name("first_sight.txt")
SEVERITY = {rule.name: rule.severity for rule in RULES}
SURE = {rule.name for rule in RULES if rule.tier == "sure"}
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
    round: int  # 0: we looked at it while we wrote the rules
    findings: list[Finding]
    faults: list[Fault]


def read_list(path: Path = LIST) -> list[Script]:
    scripts: list[Script] = []
    repository, commit, number = "", "", "0"
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("  fault "):
            rule, outcome, change = line.removeprefix("  fault ").split(" ", 2)
            scripts[-1].faults.append(Fault(rule, outcome == "found", change))
        elif line.startswith("  "):
            scripts[-1].findings.append(Finding(*line.split()))
        elif line.startswith("== "):
            repository, commit, number = line[3:].split()
        elif line:
            scripts.append(Script(repository, commit, line, int(number), [], []))
    return scripts


def read_first_sight() -> dict[int, list[Finding]]:
    """{round: what was found in it at first sight, without the places}."""
    rounds: dict[int, list[Finding]] = {}
    for line in FIRST.read_text(encoding="utf-8").splitlines():
        number, rule, true, false = line.split()
        rounds.setdefault(int(number), []).extend(
            [Finding("", rule, "true")] * int(true) + [Finding("", rule, "false")] * int(false)
        )
    return rounds


def write_list(path: Path, scripts: list[Script]) -> None:
    lines: list[str] = []
    before = ""
    for script in scripts:
        if script.repository != before:
            lines += ["", f"== {script.repository} {script.commit} {script.round}"]
        before = script.repository
        lines.append(script.path)
        lines += [f"  {' '.join(finding)}" for finding in script.findings]
        lines += [
            f"  fault {rule} {'found' if found else 'missed'} {change}"
            for rule, found, change in script.faults
        ]
    path.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")


def again(scripts: list[Script], folder: Path, errors: list[str], *severities: str) -> list[Script]:
    """The list with what is found today by these severities; errors of reading are added to those given."""
    updated = []
    seen: dict[str, set] = {}
    for listed in scripts:
        root = folder / listed.repository.replace("/", "+")
        verdicts = {(finding.place, finding.rule): finding.verdict for finding in listed.findings}
        places = findings_in(root, root / listed.path, errors)
        places = {place for place in places if SEVERITY[place[1]] in severities}
        new = sorted(places - seen.setdefault(listed.repository, set()))
        seen[listed.repository] |= places
        faults = [
            fault._replace(found=is_found(root, listed.path, fault, places, errors))
            for fault in listed.faults
        ]
        findings = [Finding(*key, verdicts.get(key, "?")) for key in new]
        updated.append(listed._replace(findings=findings, faults=faults))
    return updated


def findings_in(root: Path, script: Path, errors: list[str]) -> set[tuple[str, str]]:
    report = check([script], chosen(None, []))
    errors += report.errors
    return {
        (
            f"{Path(finding.path).resolve().relative_to(root.resolve()).as_posix()}:{finding.line}",
            finding.rule.name,
        )
        for finding in report.findings
    }


def is_found(root: Path, script: str, fault: Fault, before: set[tuple[str, str]], errors: list[str]) -> bool:
    """Whether its rule finds more once the fault is planted."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / root.name
        shutil.copytree(
            root, copy, ignore=lambda _, names: [name for name in names if name.endswith(".ipynb")]
        )
        plant(copy, script, fault.change)
        after = findings_in(copy, copy / script, errors)
    count = Counter(rule for _, rule in after)
    return count[fault.rule] > sum(rule == fault.rule for _, rule in before)


def plant(root: Path, script: str, change: str) -> None:
    for part in change.split(" & "):
        match = CHANGE.fullmatch(part)
        assert match is not None, part
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
        true, findings = of_severity([finding for script in scripts for finding in script.findings], severity)
        faults = [
            fault.found for script in scripts for fault in script.faults if SEVERITY[fault.rule] == severity
        ]
        rows.append(
            f"| {severity} | {findings} | {true} | {share(true, findings)} "
            f"| {len(faults)} | {sum(faults)} | {share(sum(faults), len(faults))} |"
        )
    return "\n".join(rows)


def of_severity(findings: list[Finding], *severities: str) -> tuple[int, int]:
    """How many findings of these severities are true, and how many there are."""
    verdicts = [finding.verdict for finding in findings if SEVERITY[finding.rule] in severities]
    return verdicts.count("true"), len(verdicts)


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def by_rule(scripts: list[Script]) -> str:
    lines = []
    for rule in RULES:
        true, judged = rule.first_sight
        verdicts = Counter(
            finding.verdict for script in scripts for finding in script.findings if finding.rule == rule.name
        )
        faults = [fault.found for script in scripts for fault in script.faults if fault.rule == rule.name]
        if judged or verdicts or faults:
            lines.append(
                f"{rule.code} {rule.name:10} {'default ' if rule.by_default else 'selected'}  {rule.tier:6}  "
                f"first sight: true {true:3}  false {judged - true:2}  "
                f"today: true {verdicts['true']:3}  false {verdicts['false']:2}  "
                f"unjudged {verdicts['?']:2}  planted {len(faults):2}  found {sum(faults):2}"
            )
    return "\n".join(lines)


def tallies(findings: list[Finding]) -> dict[str, tuple[int, int]]:
    """{rule: how many of its findings are true, and how many there are}."""
    true = Counter(finding.rule for finding in findings if finding.verdict == "true")
    return {
        name: (true[name], number) for name, number in Counter(finding.rule for finding in findings).items()
    }


def tiers(scripts: list[Script]) -> list[str]:
    """What both tiers are worth: true at first sight, and faults found. The second line is the fair one."""
    rounds = read_first_sight()
    asked = [rule.first_sight for rule in RULES if rule.by_default]
    sure = [rule.first_sight for rule in RULES if rule.tier == "sure"]
    fair = []
    for held_out, findings in rounds.items():
        others = tallies([each for number in rounds if number != held_out for each in rounds[number]])
        fair += [tally for name, tally in tallies(findings).items() if is_sure(*others.get(name, (0, 0)))]
    told = [" of ".join(str(sum(part)) for part in zip(*some, strict=True)) for some in (asked, sure, fair)]
    faults = [fault.found for script in scripts for fault in script.faults if fault.rule in SURE]
    return [
        f"by default {told[0]} findings were true at first sight, with `--sure` {told[1]}",
        f"when the sure rules of each round are chosen by the other rounds, {told[2]}",
        f"with `--sure` it finds {sum(faults)} of the planted faults",
    ]


def sentences(scripts: list[Script]) -> list[str]:
    """What notebooks/tools.md says: at first sight, and today."""
    rounds = read_first_sight()
    told = [
        of_severity(findings, "hangs", "wrong")
        for number, findings in sorted(rounds.items())
        if number in {script.round for script in scripts}
    ]
    true, whole = of_severity([finding for findings in rounds.values() for finding in findings], "hangs")
    faults = [fault.found for script in scripts for fault in script.faults]
    asked = {rule.name for rule in RULES if rule.by_default and rule.severity == "hangs"}
    hangs = [fault.found for script in scripts for fault in script.faults if fault.rule in asked]
    now, all_now = of_severity(
        [finding for script in scripts for finding in script.findings], "hangs", "wrong"
    )
    return [
        f"At first sight {', '.join(f'{right} of {number}' for right, number in told)} findings were true, "
        f"and {true} of {whole} *hangs*",
        f"{now} of {all_now} findings are true on {len(scripts)} public scripts of "
        f"{len({script.repository for script in scripts})} repositories, and of {len(faults)} faults that we "
        f"planted there it finds {sum(faults)}",
        f"of {len(hangs)} such faults that we planted it finds {sum(hangs)}",
        *tiers(scripts),
    ]


def main() -> int:
    scripts, others = read_list(), read_list(HANGS)
    errors: list[str] = []
    if sys.argv[1:]:
        scripts = again(scripts, Path(sys.argv[1]), errors, "hangs", "wrong")
        others = again(others, Path(sys.argv[1]), errors, "hangs")
        write_list(LIST, scripts)
        write_list(HANGS, others)
    for number in sorted({script.round for script in (*scripts, *others)}):
        some = [script for script in (*scripts, *others) if script.round == number]
        name = f"round {number}, today" if number else "looked at while writing the rules"
        name += ", hangs alone" if some[0] in others else ""
        print(f"{name}: {len({script.repository for script in some})} repositories, {len(some)} scripts")
        print(f"\n{table(some)}\n")
    print(*sentences(scripts), sep="\n")
    print(by_rule([*scripts, *others]))
    print(*errors, sep="\n", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
