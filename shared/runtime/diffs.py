"""A script that a lesson builds step by step: the ```diff blocks of its notebook. Taught in lesson 10."""

import difflib
import re
from pathlib import Path

import nbformat

from shared.runtime.errors import InputError

BLOCK = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


def difference(before: str, after: str) -> str:
    """What changes between two texts, in the form of ``diff --unified=0`` without the names of files."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))
    return _joined(lines[2:])


def apply(text: str, diff: str) -> str:
    """Apply what ``difference`` returned. Raises ``InputError`` where ``text`` is not as the diff says."""
    lines = text.splitlines()
    result: list[str] = []
    position = 0  # in lines
    for line in diff.splitlines():
        hunk = HUNK.fullmatch(line)
        if hunk:
            start = int(hunk[1])
            if hunk[2] != "0":  # of no lines, the number is that of the line before
                start -= 1
            result += lines[position:start]
            position = start
        elif line.startswith("+"):
            result.append(line[1:])
        elif line.startswith("-") and position < len(lines) and line[1:] == lines[position]:
            position += 1
        else:
            raise InputError(f"the diff does not fit line {position + 1}: {line}")
    return _joined(result + lines[position:])


def diffs_of(path: Path) -> list[str]:
    """The diffs of a notebook, in order."""
    diffs = []
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "markdown":
            diffs += BLOCK.findall(cell.source)
    return diffs


def versions(first: str, diffs: list[str]) -> list[str]:
    """The script before the first step, and after each."""
    texts = [first]
    for diff in diffs:
        texts.append(apply(texts[-1], diff))
    return texts


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
