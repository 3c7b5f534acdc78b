"""All rules, and what they find in a script. Taught in lesson 10."""

import ast
from pathlib import Path
from typing import NamedTuple

from . import rules_data, rules_model, rules_ranks, rules_saving
from .rule import SEVERITIES
from .script import Script

RULES = (*rules_ranks.RULES, *rules_model.RULES, *rules_saving.RULES, *rules_data.RULES)
IGNORE = "rank-check: ignore"  # in a comment on a line: nothing is said of it


class ScriptError(Exception):
    """A file that is no Python script; the text says why in one line."""


class Finding(NamedTuple):
    """One thing that is wrong, and all the lines of one file where it is."""

    path: Path | None
    lines: list[int]
    severity: str
    rule: str
    text: str


def examine(source: str | bytes, path: Path | None = None) -> list[Finding]:
    """What all rules find, the worst first, then by line.

    With ``path`` the modules beside that file which the script imports are read, too.

    Raises:
        SyntaxError, ValueError: the source is no Python.
        RecursionError, MemoryError: it is nested too deeply to be read.
    """
    script = Script(source, path)
    found: dict[tuple[Path | None, str, str, str], set[int]] = {}
    for rule in RULES:
        for place, text in rule.find(script):
            module = script.module_of(place)
            line = getattr(place, "lineno", 1)
            if not _is_ignored(module.lines, line):
                found.setdefault((module.path, rule.severity, rule.name, text), set()).add(line)
    findings = [Finding(path, sorted(lines), *what) for (path, *what), lines in found.items()]
    worst_first = list(reversed(SEVERITIES))
    return sorted(
        findings, key=lambda one: (worst_first.index(one.severity), str(one.path), one.lines, one.rule)
    )


def _is_ignored(lines: list[str], number: int) -> bool:
    return 0 < number <= len(lines) and IGNORE in lines[number - 1]


def findings(source: str) -> list[tuple[list[int], str, str]]:
    """(lines, rule, what is wrong there) in a script's text, the first lines first; no other file is read."""
    return sorted((one.lines, one.rule, one.text) for one in examine(source))


def read(path: Path) -> bytes:
    """The bytes of a script that can be parsed.

    Raises:
        ScriptError: there is no such file, it is no text, or it is no Python.
    """
    try:
        source = path.read_bytes()
        ast.parse(source)
    except SyntaxError as error:
        raise ScriptError(f"{path.name}:{error.lineno or 1}: no Python: {error.msg}") from None
    except OSError as error:
        raise ScriptError(f"{path.name}: {error.strerror or 'cannot be read'}") from None
    except ValueError as error:  # a null byte, or no text in the encoding that it names
        raise ScriptError(f"{path.name}:1: no Python: {error}") from None
    except (RecursionError, MemoryError):
        raise ScriptError(f"{path.name}: nested too deeply to be read") from None
    return source
