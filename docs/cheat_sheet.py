"""The cheat sheet: what is needed daily, put together from docs.passages of the lessons."""

import re
from dataclasses import dataclass

from docs.passages import fenced, passages
from shared.tools.lessons import Lesson

TO_PAGE = re.compile(r"\]\((?![a-z]+:|#)")
TO_HEADING = re.compile(r"\]\(#")
RUN_BY_TORCHRUN = re.compile(r"^Run it: +(torchrun .+)", re.MULTILINE)
INTRODUCTION = """# Cheat sheet

The line above a passage leads to the lesson that it is taken from. The lesson says what was run to prove it,
and what could not be run here.
"""


@dataclass(frozen=True)
class Source:
    """The passage of a lesson that stands under ``heading`` and begins with ``begins``.

    ``only``: leave out lines that begin otherwise. ``columns``: names for the columns that an output has.
    """

    lesson: str
    heading: str
    begins: str
    only: str = ""
    columns: tuple[str, ...] = ()


COMMANDS = (
    Source("01", "Two nodes on one machine", "```\ntorchrun --nnodes=2"),
    Source("01", "The options of torchrun", "--nnodes ", columns=("option", "default", "meaning")),
    Source("27", "The lab", "on node-a:", only="    "),
    Source("27", "Reading the result", "| option |"),
    Source("27", "Slurm", "| Line |"),
    Source("26", "A doctor for any script", "    rank-doctor"),
    Source("10", "The checklist", "Give it the paths of your own scripts"),
    Source("10", "The checklist", "| exit code |"),
    Source("28", "A plan for Llama 3 405B", "!python -m rank_tools.planner"),
)
VARIABLES = (
    Source("01", "The thirteen variables", "RANK ", columns=("name", "first rank", "last rank", "meaning")),
    Source("26", "When to take which", "| tool |"),
    Source("26", "On real GPUs", "Nothing in this section was run here."),
    Source("26", "On real GPUs", "| variable |"),
    Source("27", "On real GPUs", "Nothing in this section was run here"),
    Source("27", "On real GPUs", "| variable |"),
)
COLLECTIVES = (
    Source("04", "Reading the result", "Eight collectives"),
    Source("04", "What it costs", "Let S be the bytes"),
    Source("04", "What it costs", "- In a broadcast"),
    Source("04", "What it costs", "bytes / S, busiest rank"),
    Source("05", "What it costs", "The **α–β model**"),
    Source("05", "What it costs", "| on each rank |"),
    Source("05", "What it costs elsewhere", "*Bus bandwidth*"),
    Source("05", "What it costs elsewhere", "| | factor |"),
)
STRATEGIES = (
    Source("22", "What to take, when", "| what you have | take |"),
    Source("22", "Reading the result", "All numbers are multiples of"),
    Source("22", "Reading the result", "| strategy |"),
    Source("22", "What it costs", "A block has 12 w² parameters"),
    Source("22", "What it costs", "part, layers, width, tokens ="),
)
SHEET = {
    "Commands": COMMANDS,
    "Environment variables": VARIABLES,
    "Collectives, and what they send": COLLECTIVES,
    "Which strategy when": STRATEGIES,
}


def cheat_sheet(lessons: list[Lesson]) -> str:
    """The page, in Markdown, for the folder above that of the lessons.

    Raises ``LookupError`` when a source is missing, with all that are.
    """
    numbered = {lesson.number: lesson for lesson in lessons}
    missing: list[str] = []
    parts = [INTRODUCTION]
    for title, sources in SHEET.items():
        parts.append(f"## {title}")
        before = None
        for source in sources:
            lesson = numbered.get(source.lesson)
            text = quoted(lesson, source) if lesson else None
            if lesson is None or text is None:
                missing.append(f"lesson {source.lesson}, {source.heading!r}: {source.begins!r}")
                continue
            if (source.lesson, source.heading) != before:
                parts.append(f"### {_link(lesson, source.heading)}")
            before = (source.lesson, source.heading)
            parts.append(text)
    if missing:
        raise LookupError("\n".join(["the cheat sheet quotes passages that are not there:", *missing]))
    parts += ["## One lab of each lesson to start from", first_labs(lessons)]
    parts += ["## Error texts", "They stand in [Failures by what you see](notebooks/failures.md)."]
    return "\n\n".join(parts) + "\n"


def quoted(lesson: Lesson, source: Source) -> str | None:
    """The passage as Markdown, or None when the lesson does not have it."""
    for passage in passages(lesson):
        if passage.heading == source.heading and passage.text.startswith(source.begins):
            if source.only:
                lines = [line for line in passage.text.splitlines() if line.startswith(source.only)]
                return fenced("\n".join(lines), "bash")
            if source.columns:
                return tabulated(passage.text, source.columns)
            if passage.text.startswith("!"):
                return fenced(passage.text.removeprefix("!"), "bash")
            return _from_above(passage.markdown, lesson.path.name)
    return None


def tabulated(text: str, names: tuple[str, ...]) -> str:
    """What a cell prints in columns, two blanks between them, as a table; other lines follow it."""
    rows = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    rest = []
    for line in text.splitlines():
        first, *others = re.split(r" {2,}", line)
        if 1 + len(others) == len(names):
            rows.append(f"| {' | '.join([f'`{first}`', *others])} |")
        else:
            rest.append(line)
    return "\n".join([*rows, "", *rest])


def first_labs(lessons: list[Lesson]) -> str:
    """A table with the first lab of each lesson that torchrun starts: its purpose and its command."""
    rows = ["| Lesson | What it shows | Command |", "|---|---|---|"]
    for lesson in lessons:
        labs = [lesson.written[name] for name in lesson.labs]
        started = [lab for lab in labs if RUN_BY_TORCHRUN.search(lab)]
        for lab in started[:1]:
            purpose = lab.partition("\n")[0].strip('"')
            command = RUN_BY_TORCHRUN.findall(lab)[0]
            rows.append(f"| {_link(lesson)} | {purpose} | `{command}` |")
    return "\n".join(rows)


def _link(lesson: Lesson, heading: str = "") -> str:
    """A link to a lesson, or to a section of it."""
    if not heading:
        return f"[{lesson.number} {lesson.header['title']}]({lesson.path.as_posix()})"
    anchor = heading.replace(" ", "-")
    return f"[{lesson.number} {lesson.header['title']}: {heading}]({lesson.path.as_posix()}#{anchor})"


def _from_above(markdown: str, page: str) -> str:
    """Links of a page in `notebooks/`, as the folder above has to write them."""
    return TO_PAGE.sub("](notebooks/", TO_HEADING.sub(f"]({page}#", markdown))
