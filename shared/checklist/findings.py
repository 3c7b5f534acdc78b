"""All rules, and what they find in files."""

import ast
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from . import rules_data, rules_hangs, rules_model, rules_saving, rules_style
from .machine import Machine
from .rule import SEVERITIES, Found, Rule
from .sources import Project, ScriptError, Source, read

RULES: tuple[Rule, ...] = (
    *rules_hangs.RULES,
    *rules_data.RULES,
    *rules_model.RULES,
    *rules_saving.RULES,
    *rules_style.RULES,
)
DEEPEST = 20_000  # calls in calls; Python's own limit is too low for long expressions


class Finding(NamedTuple):
    """One thing that is wrong, where it is, and the other lines with the same."""

    path: str
    line: int
    column: int
    cell: int  # of a notebook; 0 in a script
    rule: Rule
    text: str

    @property
    def place(self) -> str:
        cell = f"cell {self.cell}:" if self.cell else ""
        return f"{self.path}:{cell}{self.line}:{self.column}"


class Report(NamedTuple):
    """What is found in some files; unasked: {why: how many questions}; errors: files that cannot be read."""

    findings: list[Finding]
    unasked: Counter
    errors: list[str]


def check(paths: list[Path], rules: tuple[Rule, ...] = RULES, folders: list[Path] | None = None) -> Report:
    """Ask the questions to files; what they import of each other is read once."""
    project = Project(folders)
    report = Report([], Counter(), [])
    seen: set[tuple] = set()
    for path in paths:
        try:
            sources = project.add(path)
        except ScriptError as error:
            report.errors.append(str(error))
            continue
        for source in sources:
            examine(project, source, rules, report, seen)
    worst = list(SEVERITIES)

    def place(finding: Finding) -> tuple:
        severity = worst.index(finding.rule.severity)
        return finding.path, finding.cell, finding.line, -severity, finding.rule.code

    report.findings.sort(key=place)
    return report


def examine(
    project: Project, source: Source, rules: tuple[Rule, ...], report: Report, seen: set[tuple]
) -> None:
    """What the rules find in one program."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, DEEPEST))
    try:
        machine = Machine(project, source)
        machine.run()
        for rule in rules:
            for answer in rule.find(machine):
                if not isinstance(answer, Found):
                    report.unasked[answer.why] += 1
                    continue
                entry = finding(answer, rule)
                if entry is not None and entry[:5] not in seen:
                    seen.add(entry[:5])
                    report.findings.append(entry)
    except (RecursionError, MemoryError):
        report.errors.append(f"{source.path}: nested too deeply to be read")
    except Exception as error:  # ours; the other files are read all the same
        report.errors.append(f"{source.place(1)}: rank-check failed: {type(error).__name__}: {error}")
    finally:
        sys.setrecursionlimit(limit)


def finding(found: Found, rule: Rule) -> Finding | None:
    """None where a comment asks for silence."""
    first = getattr(found.node, "lineno", 1)
    last = getattr(found.node, "end_lineno", first) or first
    if isinstance(found.node, ast.For | ast.While | ast.If | ast.ExceptHandler | ast.FunctionDef | ast.With):
        last = first
    if found.source.is_ignored(first, last, rule.code, rule.name):
        return None
    path, cell, line = found.source.at(first)
    return Finding(path, line, getattr(found.node, "col_offset", 0) + 1, cell, rule, found.text)


def findings(text: str) -> list[tuple[int, str, str]]:
    """(line, rule, what is wrong there) in a script's text; no other file is read."""
    report = Report([], Counter(), [])
    examine(Project(), Source(text, None), RULES, report, set())
    return sorted((entry.line, entry.rule.name, entry.text) for entry in report.findings)


__all__ = ["RULES", "Finding", "Report", "check", "findings", "read"]
