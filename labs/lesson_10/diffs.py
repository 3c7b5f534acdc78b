"""A script that a lesson builds step by step: the diffs with line numbers in it. Taught in lesson 10."""

import difflib
import re
from html import unescape
from pathlib import Path

import nbformat

from shared.runtime.errors import InputError

SHOWN = re.compile(r'^<pre class="diff">\n(.*?)^</pre>$', re.MULTILINE | re.DOTALL)  # as sync writes it
SPAN = re.compile(r"</?span[^>]*>")
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@.*")
HEADING = re.compile(r"(?:class|def) \w+")
CONTEXT = 3  # lines around each change, as ``diff -u`` and ``git diff`` show


def difference(before: str, after: str) -> str:
    """What changes between two texts, as ``git diff`` shows it, without the names of files.

    After ``@@`` stands the function or class in which the lines that follow begin. An empty line of the
    context is empty here, too; git writes a blank.
    """
    old = before.splitlines()
    lines = []
    for line in list(difflib.unified_diff(old, after.splitlines(), n=CONTEXT, lineterm=""))[2:]:
        hunk = HUNK.fullmatch(line)
        if hunk:
            line = f"{line} {_heading_above(old, int(hunk[1]))}"
        lines.append(line.rstrip() if line.isspace() or hunk else line)
    return _joined(lines)


def apply(text: str, diff: str) -> str:
    """Apply what ``difference`` returned.

    Raises ``InputError`` where ``text`` is not as the diff says, in lines that go or in those around them.
    """
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
        elif line[:1] in ("-", " ", "") and position < len(lines) and line[1:] == lines[position]:
            if not line.startswith("-"):
                result.append(lines[position])
            position += 1
        else:
            raise InputError(f"the diff does not fit line {position + 1}: {line}")
    return _joined(result + lines[position:])


def diffs_of(path: Path) -> list[str]:
    """The diffs of a notebook that have line numbers, in order; others are examples beside the script."""
    diffs = []
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "markdown":
            shown = [unescape(SPAN.sub("", block)) for block in SHOWN.findall(cell.source)]
            diffs += [diff for diff in shown if diff.startswith("@@ ")]
    return diffs


def versions(first: str, diffs: list[str]) -> list[str]:
    """The script before the first diff, and after each."""
    texts = [first]
    for diff in diffs:
        texts.append(apply(texts[-1], diff))
    return texts


def _heading_above(lines: list[str], number: int) -> str:
    """The last function or class that begins at the left edge above line ``number``, or nothing."""
    for line in reversed(lines[: max(0, number - 1)]):
        heading = HEADING.match(line)
        if heading:
            return heading[0]
    return ""


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
