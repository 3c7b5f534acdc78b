"""Edit the steps of lesson 10 as whole files: unpack the notebook's diffs, change the files, pack them again.

``python -m shared.tools.steps unpack FOLDER`` writes the script after each diff as a whole file. Change them
there, so that the last one is the final script, then ``pack FOLDER`` puts their differences back into the
notebook. For one more diff, add an empty ```diff block to the notebook and one more file.
"""

import argparse
from itertools import pairwise
from pathlib import Path

import nbformat

from shared.lesson_10.diffs import BLOCK, difference, diffs_of, versions
from shared.runtime.errors import InputError
from shared.tools import run_tool
from shared.tools.lessons import ROOT, cells_of

NOTEBOOK = ROOT / "notebooks" / "10_training_template.ipynb"
FIRST = ROOT / "labs" / "lab_10_one_process.py"


def unpack(folder: Path) -> None:
    """Write ``step_00.py``, the script before the first diff, ``step_01.py`` and so on into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = versions(FIRST.read_text(encoding="utf-8"), diffs_of(NOTEBOOK))
    for number, text in enumerate(texts):
        (folder / f"step_{number:02}.py").write_text(text, encoding="utf-8")


def pack(folder: Path) -> None:
    """Replace the diffs of the notebook by those between the files of ``folder``."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("step_*.py"))]
    old = diffs_of(NOTEBOOK)
    if len(texts) != len(old) + 1:
        raise InputError(f"{folder} holds {len(texts)} steps, the notebook has {len(old)} diffs")
    new = iter([difference(before, after) for before, after in pairwise(texts)])
    notebook = nbformat.read(NOTEBOOK, 4)
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
    else:
        unpack(options.folder)
    return 0


if __name__ == "__main__":
    run_tool(main)
