"""The course as a whole: its parts, the routes through it, and Markdown tables of both."""

import os
from dataclasses import dataclass
from pathlib import Path

from shared.tools.lessons import Lesson

SCRIPT = tuple(
    f"labs/lab_{name}.py" for name in ("10_train", "10_batches", "11_checkpointing", "13_stopping")
)
PARTS = {  # {title: its first lesson}
    "Part 1 · Processes that talk": "00",
    "Part 2 · Data parallel": "06",
    "Part 3 · A training that goes on": "11",
    "Part 4 · When the model does not fit": "15",
    "Part 5 · Different jobs": "23",
    "Part 6 · For real": "25",
}


@dataclass(frozen=True)
class Route:
    """A way through the course: who takes it, its lessons in order, and {name: file} of what else helps."""

    who: str
    lessons: tuple[str, ...]
    besides: dict[str, str]


ROUTES = (
    Route("have one afternoon", ("00", "01", "04", "06", "08", "10"), {}),
    Route(
        "must train on 8 GPUs tomorrow",
        ("00", "08", "10", "11", "13"),
        {
            "script": "labs/lab_10_train.py",
            "language model": "notebooks/29_language_model.ipynb",
            "rank-check": "notebooks/tools.md",
        },
    ),
    Route(
        "train a large model on 8 GPUs next month",
        ("00", "08", "06", "10", "11", "19", "27", "26"),
        {"script": "notebooks/29_language_model.ipynb", "which strategy": "notebooks/strategies.md"},
    ),
    Route(
        "have a job that hangs or is slow",
        ("26", "25"),
        {"failures": "notebooks/failures.md", "rank-doctor": "notebooks/tools.md"},
    ),
    Route("have a model that does not fit", ("15", "16", "17", "18", "19", "20", "21", "22"), {}),
    Route("plan a cluster", ("05", "27", "28"), {"rank-plan": "notebooks/tools.md"}),
    Route(
        "are preparing for an interview",
        ("04", "05", "09", "18", "19", "22"),
        {"questions": "notebooks/questions.md", "glossary": "notebooks/glossary.md"},
    ),
    Route(
        "teach it",
        ("00",),
        {"all lessons": "notebooks/lessons.md", "ways of running them": "notebooks/using.md"},
    ),
)


def part_of(number: str) -> str:
    """The title of the part that a lesson belongs to."""
    return [title for title, first in PARTS.items() if first <= number][-1]


def hours(minutes: int) -> str:
    """``55 min``, ``2 h 10``."""
    if minutes < 60:
        return f"{minutes}\N{NO-BREAK SPACE}min"
    whole = f"{minutes // 60}\N{NO-BREAK SPACE}h"
    return f"{whole}\N{NO-BREAK SPACE}{minutes % 60:02}" if minutes % 60 else whole


class Tables:
    """Tables of the course for a page in ``folder``, which is relative to the root of the course."""

    def __init__(self, lessons: list[Lesson], folder: str) -> None:
        self.lessons = {lesson.number: lesson for lesson in lessons}
        self.folder = folder

    def all(self) -> dict[str, str]:
        """{name of its marks: table}."""
        return {"parts": self.parts(), "routes": self.routes(), "lessons": self.every_lesson()}

    def parts(self) -> str:
        """A row for each part: its lessons, and how long they take."""
        rows = ["| Part | Lessons | Reading + exercises |", "|---|---|---|"]
        for title, numbers in self._numbers_by_part().items():
            names = [self._lesson(n, f"{n} {self.lessons[n].header['title']}") for n in numbers]
            rows.append(f"| **{title}** | {' · '.join(names)} | {self._time(numbers)} |")
        return "\n".join(rows)

    def routes(self) -> str:
        """A row for each route, and one for the whole course."""
        rows = ["| You … | Lessons | Reading + exercises |", "|---|---|---|"]
        for route in ROUTES:
            numbers = [number for number in route.lessons if number in self.lessons]
            names = " → ".join(self._lesson(number, number) for number in numbers)
            besides = [self._link(name, file) for name, file in route.besides.items()]
            rows.append(f"| {route.who} | {' · '.join([names, *besides])} | {self._time(numbers)} |")
        rows.append(f"| want all of it | parts 1 to {len(PARTS)} | {self._time(list(self.lessons))} |")
        return "\n".join(rows)

    def every_lesson(self) -> str:
        """A table for each part: each lesson with its question, its minutes, its labs and its room."""
        tables = []
        for title, numbers in self._numbers_by_part().items():
            rows = [
                "| # | Lesson | Question | Minutes + exercise | Labs, and the room of its proofs |",
                "|---|---|---|---|---|",
            ]
            for number in numbers:
                lesson = self.lessons[number]
                files = [*(Path(name).name for name in lesson.labs), f"lesson_{number}/"]
                labs = "<br>".join(f"`{name}`" for name in files)
                cells = [
                    number,
                    self._lesson(number, lesson.header["title"]),
                    lesson.header["question"],
                    f"{lesson.header['minutes']} + {lesson.header['exercise']}",
                    labs,
                ]
                rows.append(f"| {' | '.join(cells)} |")
            tables.append("\n".join([f"## {title}", "", *rows]))
        return "\n\n".join(tables)

    def _numbers_by_part(self) -> dict[str, list[str]]:
        parts: dict[str, list[str]] = {}
        for number in self.lessons:
            parts.setdefault(part_of(number), []).append(number)
        return parts

    def _lesson(self, number: str, text: str) -> str:
        return self._link(text, self.lessons[number].path.as_posix())

    def _link(self, text: str, file: str) -> str:
        return f"[{text}]({os.path.relpath(file, self.folder or '.')})"

    def _time(self, numbers: list[str]) -> str:
        reading = sum(int(self.lessons[number].header["minutes"]) for number in numbers)
        exercise = sum(int(self.lessons[number].header["exercise"]) for number in numbers)
        return f"{hours(reading)} + {hours(exercise)}"


def next_line(lessons: list[Lesson], index: int) -> str:
    """What stands at the end of a lesson: where to go from here, in order and on the routes."""
    number = lessons[index].number
    by_number = {lesson.number: lesson for lesson in lessons}
    ways: dict[str, list[str]] = {}
    for route in ROUTES:
        later = route.lessons[route.lessons.index(number) + 1 :] if number in route.lessons else ()
        if later and later[0] in by_number:
            ways.setdefault(later[0], []).append(route.who)
    parts = []
    following = lessons[index + 1].number if index + 1 < len(lessons) else None
    if following:
        parts.append(f"**Next:** {_named(by_number[following])}")
    for target, who in ways.items():
        if target != following:
            parts.append(f"if you {' or '.join(who)}: {_named(by_number[target])}")
    return " · ".join([*parts, "[all lessons](lessons.md)"])


def _named(lesson: Lesson) -> str:
    return f"[{lesson.number} {lesson.header['title']}]({lesson.path.name})"
