"""``python -m shared.tools.minutes``: how many minutes each lesson takes, and of what they are made.

A lesson's reading time is the time for its prose, for the code that is open and for the runs that a reader
waits for, rounded to 5 minutes. Its section *Your turn* does not count: the exercise states its own minutes.
``make sync`` writes both numbers into the header, and into the line above each folded lab how long it runs.

How long labs run stands in ``shared/tools/seconds.json``. ``make refresh`` measures it while nothing else
keeps the machine busy, and replaces a number only when it is far off.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from shared.lesson_10.diffs import fenced
from shared.tools import run_tool
from shared.tools.folding import is_folded, is_folded_lab
from shared.tools.lessons import LAB_NAME, ROOT, WRITEFILE, Lesson, cells_of, read_lessons

WORDS_PER_MINUTE = 200
LINES_PER_MINUTE = 40
EXERCISE = re.compile(r"^\*\*Exercise \d\d\*\* · \w+ · (\d+) min\.", re.MULTILINE)
EXERCISE_SECTION = "## Your turn"
SECTION = re.compile(r"^## ", re.MULTILINE)
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DERIVED = re.compile(r"<!-- [^>]* written by `make sync` -->.*?<!-- [^>]* end -->", re.DOTALL)
LEADS_ON = re.compile(
    r"^(?:\*\*Next:\*\*|\[all lessons\]|\[(?:←|01 Topology)).*$", re.MULTILINE
)  # written by sync
NO_PROSE = re.compile(r"<[^>]*>|\]\([^)]*\)")
WORD = re.compile(r"\S*\w\S*")
COMMAND = re.compile(r"^(?:\w+ = )?!", re.MULTILINE)
ABOVE = re.compile(r"^Folded: (?P<what>[^\n]+?)(?: \(about [^()]*\))?\.\Z", re.MULTILINE)
TIMES = "shared/tools/seconds.json"
OTHER_CELLS = "cells"  # its key for all that is no lab
STEPS = (2, 3, 5, 8, 12, 20, 30, 45, 60, 90, 120, 180, 240, 300, 420, 600)  # no run is told more finely
FAR_OFF = 1.5  # a factor

Seconds = dict[str, int]


@dataclass(frozen=True)
class Effort:
    """What a lesson asks of its reader."""

    words: int
    lines: int
    run_s: int
    exercise: int

    @property
    def reading(self) -> int:
        """Minutes without the exercise, to the next 5."""
        minutes = self.words / WORDS_PER_MINUTE + self.lines / LINES_PER_MINUTE + self.run_s / 60
        return max(5, 5 * round(minutes / 5))


def read_cells(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    """(index, cell) of all cells but those of the exercise."""
    in_exercise = False
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown" and SECTION.search(cell.source):
            in_exercise = cell.source.startswith(EXERCISE_SECTION)
        if not in_exercise:
            yield index, cell


def effort_of(lesson: Lesson, seconds: Seconds) -> Effort:
    words = 0
    lines = 0
    for _, cell in read_cells(lesson.notebook):
        if cell.cell_type == "markdown":
            text = fenced(LEADS_ON.sub("", DERIVED.sub("", cell.source)))
            words += len(WORD.findall(NO_PROSE.sub(" ", FENCE.sub("", text))))
            lines += sum(lines_of(code) for code in FENCE.findall(text))
        elif not is_folded(cell.source):
            lines += lines_of(WRITEFILE.sub("", cell.source))
    stated = [EXERCISE.search(cell.source) for cell in cells_of(lesson.notebook, "markdown")]
    exercise = sum(int(match[1]) for match in stated if match)
    return Effort(words, lines, sum(seconds.values()), exercise)


def lines_of(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())


def labs_run_by(source: str) -> list[str]:
    """Names, such as ``lab_05_ring``, of the labs that a code cell starts."""
    if source.startswith("%%") or not COMMAND.search(source):
        return []
    return sorted({Path(name).stem for name in LAB_NAME.findall(source) if name.startswith("labs/lab_")})


def read_times(root: Path = ROOT) -> dict[str, Seconds]:
    """{number of a lesson: {lab, or ``OTHER_CELLS``: seconds}}."""
    path = root / TIMES
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_times(times: dict[str, Seconds], root: Path = ROOT) -> None:
    """One line for each lesson, so that two branches seldom change the same."""
    rows = [
        f"  {json.dumps(number)}: {json.dumps(times[number], sort_keys=True)}" for number in sorted(times)
    ]
    (root / TIMES).write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def measured(lesson: Lesson, cell_seconds: list[float], known: Seconds, busy: bool) -> Seconds:
    """What ``TIMES`` is to say of a lesson of which each cell has just taken ``cell_seconds``.

    While the machine was busy with other things, only labs without a number get one.
    """
    taken: dict[str, float] = {OTHER_CELLS: 0.0}
    for index, cell in read_cells(lesson.notebook):
        labs = labs_run_by(cell.source) if cell.cell_type == "code" else []
        for name in labs or [OTHER_CELLS]:
            taken[name] = taken.get(name, 0.0) + cell_seconds[index] / max(1, len(labs))
    result = {}
    for name, seconds in taken.items():
        old = known.get(name)
        near = old is not None and old / FAR_OFF <= seconds <= old * FAR_OFF
        result[name] = old if old is not None and (near or busy) else coarse(seconds)
    return result


def coarse(seconds: float) -> int:
    """The next of ``STEPS``."""
    return min(STEPS, key=lambda step: abs(step - seconds))


def told(seconds: int) -> str:
    """As it stands above a lab."""
    return f"about {seconds} s" if seconds < 90 else f"about {seconds / 60:g} min"


def tell_times(lesson: Lesson, seconds: Seconds) -> None:
    """Bring the line above each folded lab up to date; a lab that no cell starts gets no time."""
    cells = lesson.notebook.cells
    for above, cell in zip(cells, cells[1:], strict=False):
        if above.cell_type == "markdown" and cell.cell_type == "code" and is_folded_lab(cell.source):
            name = Path(cell.source.split()[1]).stem
            time = f" ({told(seconds[name])})" if name in seconds else ""
            above.source = ABOVE.sub(rf"Folded: \g<what>{time}.", above.source)


def time_problems(lesson: Lesson, seconds: Seconds) -> list[str]:
    """Whether ``TIMES`` names what the lesson runs, and nothing else."""
    code = [cell for _, cell in read_cells(lesson.notebook) if cell.cell_type == "code"]
    wanted = {OTHER_CELLS, *(name for cell in code for name in labs_run_by(cell.source))}
    missing = [f"{TIMES} does not say how long {name} runs" for name in sorted(wanted - set(seconds))]
    return missing + [f"the lesson does not run {name}" for name in sorted(set(seconds) - wanted)]


def main() -> int:
    times = read_times()
    print("lesson  words  open lines  run (s)  reading (min)  exercise (min)")
    reading = 0
    exercise = 0
    for lesson in read_lessons():
        effort = effort_of(lesson, times.get(lesson.number, {}))
        reading += effort.reading
        exercise += effort.exercise
        numbers = (
            f"{effort.words:5}  {effort.lines:10}  {effort.run_s:7}  "
            f"{effort.reading:13}  {effort.exercise:14}"
        )
        print(f"{lesson.number:6}  {numbers}")
    print(f"in all: {reading} min + {exercise} min exercise")
    return 0


if __name__ == "__main__":
    run_tool(main)
