"""Exercises as a reader leaves them: answered in the notebook and in its file."""

import json
import re
from pathlib import Path

SOLVED = {0: slice(0), 5: slice(None, None, 6), 29: slice(None)}  # of the exercises in order
WRONG = ("rank, items", "rank + 1, items + 1")  # in the answer to exercise 00
MARKS = re.compile(r"^ *# solution: \w+\n", re.MULTILINE)  # no reader has them
NOTE = "#a note of my own,  keep it\n"


def solve(checkout: Path, count: int, wrong: bool) -> dict[Path, str]:
    """Answer exercises as a reader does, in the notebook and its file. Returns what each of them then has."""
    written = {}
    for folder in sorted((checkout / "labs/exercises").glob("[0-9]*"))[SOLVED[count]]:
        answer = MARKS.sub("", (folder / "solution.py").read_text()) + NOTE
        if wrong and folder.name.startswith("00_"):
            answer = answer.replace(*WRONG)
        (notebook,) = checkout.glob(f"notebooks/{folder.name[:2]}_*.ipynb")
        content = json.loads(notebook.read_text())
        magic = f"%%writefile ../labs/exercises/{folder.name}/exercise.py\n"
        (cell,) = (cell for cell in content["cells"] if cell["source"][:1] == [magic])
        cell["source"] = (magic + answer.rstrip("\n")).splitlines(keepends=True)
        written[folder / "exercise.py"] = answer
        written[notebook] = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    for path, text in written.items():
        path.write_text(text)
    return written
