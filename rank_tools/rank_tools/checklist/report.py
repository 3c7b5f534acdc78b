"""What is found in files, and how it is told: as text or JSON."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from .program import Program
from .rules import RULES, Rule
from .source import Source, SourceError, read

# The rules that there were until version 2, by code and by name.
GONE = """
RC101 meet RC102 quits RC103 skip RC104 error RC105 uneven RC106 objects RC107 both_send RC108 parted
RC201 sampler RC203 shuffle RC205 resumed RC206 seeds RC207 split RC209 reduce RC210 mean RC211 once
RC301 group RC302 wrap RC303 order RC305 drift RC307 no_sync RC308 early RC311 norm RC312 mode RC313
precision RC402 saved RC403 prefix RC405 race RC406 shards RC501 no_grad RC502 backend RC601 talk RC602
leave
"""
MARKS = ("istributed", "DataParallel", "RANK", "fully_shard", "GradScaler")  # no rule is about a file without


class Finding(NamedTuple):
    """One thing that is wrong, and where it is; the cell of a script is 0."""

    path: str
    cell: int
    line: int
    column: int
    code: str
    name: str
    text: str

    @property
    def place(self) -> str:
        cell = f"cell {self.cell}:" if self.cell else ""
        return f"{self.path}:{cell}{self.line}:{self.column}"


@dataclass
class Report:
    """errors: files that cannot be read; notes: what else the user should know; one line each."""

    files: int = 0
    findings: list[Finding] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(paths: list[str], rules: list[Rule] = RULES) -> Report:
    """Ask the rules to files."""
    report = Report()
    for path in paths:
        report.files += 1
        try:
            for source in read(path):
                examine(source, rules, report)
        except SourceError as error:
            report.errors.append(str(error))
    report.findings.sort()
    return report


def examine(source: Source, rules: list[Rule], report: Report) -> None:
    """Add what the rules find in one program."""
    for line, words in sorted(source.ignored.items()):
        report.notes += [
            f"{source.place(line)}: {word}: {gone(word)}" for word in sorted(words) if gone(word)
        ]
    if not any(mark in source.text for mark in MARKS):
        return
    try:
        program = Program(source)
        for rule in rules:
            for node, text in rule.find(program):
                first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
                if not source.is_ignored(first, last, rule.code, rule.name):
                    cell, line = source.at(first)
                    place = (source.path, cell, line, node.col_offset + 1)  # type: ignore[attr-defined]
                    report.findings.append(Finding(*place, rule.code, rule.name, text))
    except RecursionError:
        report.errors.append(f"{source.path}: nested too deeply to be read")
    except Exception as error:  # ours; the other files are read all the same
        report.errors.append(f"{source.path}: rank-check failed: {type(error).__name__}: {error}")


def gone(word: str) -> str:
    """What to say of a rule that there was; "" of any other word."""
    return f"the rule {word} is gone, nothing asks it any more" if word in GONE.split() else ""


def plural(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def as_text(report: Report, rules: list[Rule]) -> str:
    lines = [f"{one.place}: {one.code} {one.text} [{one.name}]" for one in report.findings]
    number = len(report.findings)
    found = plural(number, "finding") if number else "nothing found"
    return "\n".join([*lines, f"{plural(report.files, 'file')}, {plural(len(rules), 'rule')}: {found}"])


def as_json(report: Report, rules: list[Rule]) -> str:
    findings = [one._asdict() | {"cell": one.cell or None} for one in report.findings]
    return json.dumps({"files": report.files, "findings": findings, "errors": report.errors}, indent=2)


FORMATS: dict[str, Callable[[Report, list[Rule]], str]] = {"text": as_text, "json": as_json}
