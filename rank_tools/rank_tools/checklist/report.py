"""What is found in files, and how it is told: as text or JSON."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from .program import Program
from .rules import RULES, Rule
from .source import Source, SourceError, read

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
    """errors: files that cannot be read, one line each."""

    files: int = 0
    findings: list[Finding] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


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


def plural(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def as_text(report: Report, rules: list[Rule]) -> str:
    lines = [f"{one.place}: {one.code} {one.text} [{one.name}]" for one in report.findings]
    number = len(report.findings)
    found = [plural(number, "finding")] if number else [] if report.errors else ["nothing found"]
    found += [plural(len(report.errors), "file") + " could not be read"] if report.errors else []
    return "\n".join(
        [*lines, f"{plural(report.files, 'file')}, {plural(len(rules), 'rule')}: {', '.join(found)}"]
    )


def as_json(report: Report, rules: list[Rule]) -> str:
    findings = [one._asdict() | {"cell": one.cell or None} for one in report.findings]
    return json.dumps({"files": report.files, "findings": findings, "errors": report.errors}, indent=2)


FORMATS: dict[str, Callable[[Report, list[Rule]], str]] = {"text": as_text, "json": as_json}
