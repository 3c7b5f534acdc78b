"""A script that a lesson builds step by step: the ```diff blocks of its notebook, applied and renewed.

``python -m shared.tools.steps unpack FOLDER`` writes each step as a whole file. Change them there, so that
the last one is the final script, then ``pack FOLDER`` puts their differences back into the notebook.
"""

import argparse
import difflib
import re
from pathlib import Path

import nbformat

from shared.runtime.errors import InputError
from shared.tools import run_tool
from shared.tools.lessons import ROOT, cells_of

NOTEBOOK = ROOT / "notebooks" / "10_training_template.ipynb"
FIRST, LAST = ROOT / "labs" / "lab_10_one_process.py", ROOT / "labs" / "lab_10_train.py"
BLOCK = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


def difference(before: str, after: str) -> str:
    """What changes between two texts, in the form of ``diff --unified=0`` without the names of files."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "".join(f"{line}\n" for line in list(lines)[2:])


def apply(text: str, diff: str) -> str:
    """Apply what ``difference`` returned. Raises ``InputError`` where ``text`` is not as the diff says."""
    lines, done, at = text.splitlines(), [], 0
    for line in diff.splitlines():
        if match := HUNK.fullmatch(line):
            start = int(match[1]) - (match[2] != "0")  # of no lines, the number is that of the line before
            done += lines[at:start]
            at = start
        elif line.startswith("+"):
            done.append(line[1:])
        elif line.startswith("-") and at < len(lines) and line[1:] == lines[at]:
            at += 1
        else:
            raise InputError(f"the diff does not fit line {at + 1}: {line}")
    return "".join(f"{line}\n" for line in [*done, *lines[at:]])


def diffs_of(path: Path = NOTEBOOK) -> list[str]:
    """The diffs of a notebook, in order."""
    cells = cells_of(nbformat.read(path, 4), "markdown")
    return [diff for cell in cells for diff in BLOCK.findall(cell.source)]


def versions(first: str, diffs: list[str]) -> list[str]:
    """The script before the first step, and after each."""
    found = [first]
    for diff in diffs:
        found.append(apply(found[-1], diff))
    return found


def pack(folder: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("step_*.py"))]
    notebook = nbformat.read(NOTEBOOK, 4)
    new = iter([difference(*pair) for pair in zip(texts, texts[1:], strict=False)])
    if len(texts) != len(diffs_of()) + 1:
        raise InputError(f"{folder} holds {len(texts)} steps, the notebook has {len(diffs_of())} diffs")
    for cell in cells_of(notebook, "markdown"):
        cell.source = BLOCK.sub(lambda _: f"```diff\n{next(new)}```", cell.source)
    NOTEBOOK.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Unpack or pack the steps of lesson 10.")
    parser.add_argument("action", choices=["unpack", "pack"])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.action == "pack":
        pack(options.folder)
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(versions(FIRST.read_text(encoding="utf-8"), diffs_of())):
        (options.folder / f"step_{number}.py").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    run_tool(main)
