"""Markdown and notebooks cut into passages, which other pages then show again."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from shared.tools.lessons import WRITEFILE, Lesson

HEADING = re.compile(r"#{1,6} (.*)")
FENCE = re.compile(r" *(```+|~~~+)")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Passage:
    """A paragraph, list, table, piece of code or output, as Markdown; ``text`` is how it reads bare."""

    heading: str
    text: str
    markdown: str


def blocks(text: str) -> Iterator[str]:
    """The blocks of a Markdown text: what blank lines divide, but a fenced block stays whole."""
    lines: list[str] = []
    fence = ""
    for line in [*text.split("\n"), ""]:
        match = FENCE.match(line)
        if match and not fence:
            fence = match[1]
        elif match and match[1].startswith(fence):
            fence = ""
        if line.strip() or fence:
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []


def passages(lesson: Lesson) -> Iterator[Passage]:
    """All passages of a lesson, in order. Files that cells write are none."""
    heading = ""
    for cell in lesson.notebook.cells:
        if cell.cell_type == "markdown":
            for block in blocks(cell.source):
                match = HEADING.match(block)
                if match:
                    heading = match[1]
                yield Passage(heading, block, block)
        elif not WRITEFILE.match(cell.source):
            yield Passage(heading, cell.source, fenced(cell.source, "python"))
            for output in cell.outputs:
                yield from _output(heading, output)


def _output(heading: str, output: dict) -> Iterator[Passage]:
    if "text" in output:
        yield Passage(heading, output["text"], fenced(ESCAPE.sub("", output["text"]), "text"))
    data = output.get("data", {})
    if "image/png" in data:
        alt = output["metadata"]["image/png"]["alt"]
        png = data["image/png"].replace("\n", "")
        yield Passage(heading, alt, f"![{alt}](data:image/png;base64,{png})")
    elif "text/markdown" in data:
        yield Passage(heading, data["text/markdown"], data["text/markdown"])


def fenced(text: str, language: str) -> str:
    """A text as a block of code; the fence is longer than any in a docstring."""
    fence = "`" * 8
    body = text.strip("\n")
    return f"{fence}{language}\n{body}\n{fence}"
