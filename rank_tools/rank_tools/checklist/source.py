"""Scripts and notebooks: their text, where a line stands, and which lines ask for silence."""

import ast
import io
import json
import os
import re
import sys
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv", ".venv"}
IGNORE = re.compile(r"#\s*rank-check:\s*ignore(?:\[([\w\s,]*)\])?")
WRITES_FILE = re.compile(r"%%(?:writefile|file)\s+(?:-a\s+)?[\"']?(\S+?\.py)[\"']?\s*$")
IS_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python")
VERSION = f"Python {sys.version_info.major}.{sys.version_info.minor}"


class SourceError(Exception):
    """A file that cannot be read; the text says why in one line."""


def parsed(text: str) -> ast.Module:
    """Without what newer Pythons warn of while they read, such as an escape in a string: it is no finding."""
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(text)


@dataclass
class Source:
    """One program: a script, the cells of a notebook, or a file that a notebook writes.

    cells: (first line, number of the cell) for each cell of a notebook, in order.
    ignored: {line: what a comment on it wants to be silent about}; an empty set stands for all rules.
    """

    path: str
    text: str
    cells: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            self.tree = parsed(self.text)
        except (SyntaxError, ValueError) as error:
            place = self.place(getattr(error, "lineno", 1) or 1)
            raise SourceError(
                f"{place}: cannot be read as {VERSION}: {getattr(error, 'msg', error)}"
            ) from None
        except (RecursionError, MemoryError):
            raise SourceError(f"{self.path}: nested too deeply to be read") from None
        self.ignored = ignored_lines(self.text) if "rank-check" in self.text else {}

    def at(self, line: int) -> tuple[int, int]:
        """(number of the cell, line in it); the cell of a script is 0."""
        for first, cell in reversed(self.cells):
            if first <= line:
                return cell, line - first + 1
        return 0, line

    def place(self, line: int) -> str:
        """``train.py:12``, or ``course.ipynb:cell 3:5``."""
        cell, inner = self.at(line)
        return f"{self.path}:cell {cell}:{inner}" if cell else f"{self.path}:{inner}"

    def is_ignored(self, first: int, last: int, code: str, name: str) -> bool:
        """Whether a comment on one of these lines asks for silence about a rule."""
        comments = [self.ignored[line] for line in range(first, last + 1) if line in self.ignored]
        return any(not words or code in words or name in words for words in comments)


def ignored_lines(text: str) -> dict[int, set[str]]:
    """{line: the words in the brackets of ``# rank-check: ignore[...]``}."""
    ignored: dict[int, set[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if match:
            words = re.split(r"[\s,]+", match[1] or "")
            ignored[token.start[0]] = {word for word in words if word}
    return ignored


def read(path: str) -> list[Source]:
    """The programs in a file; ``-`` is the standard input.

    Raises:
        SourceError: there is no such file, it is no text, or it is no Python.
    """
    if path == "-":
        return [Source("-", decoded(sys.stdin.buffer.read(), "-"))]
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or 'cannot be read'}") from None
    if path.endswith(".ipynb"):
        return read_notebook(data, path)
    return [Source(path, decoded(data, path))]


def decoded(data: bytes, path: str) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise SourceError(f"{path}: cannot be read as {VERSION}: {error}") from None


def read_notebook(data: bytes, path: str) -> list[Source]:
    """The cells of a notebook as one program, and each file that it writes with %%writefile as another."""
    try:
        cells = json.loads(data)["cells"]
        codes = {
            number: "".join(cell["source"])
            for number, cell in enumerate(cells, 1)
            if cell["cell_type"] == "code"
        }
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{path}: no notebook: {type(error).__name__}: {error}") from None
    programs: dict[str, list[tuple[int, str]]] = {"": []}
    for number, code in codes.items():
        first, _, rest = code.partition("\n")
        written = WRITES_FILE.match(first.strip())
        if written:
            programs.setdefault(written[1], []).append((number, f"\n{rest}"))
        elif not first.startswith("%%") or first.startswith(IS_PYTHON):
            programs[""].append((number, without_magic(code)))
    return [joined(parts, path) for parts in programs.values()]


def without_magic(code: str) -> str:
    """A cell's Python; what is for IPython becomes ``pass``, so that blocks stay whole."""
    lines = []
    for line in code.split("\n"):
        bare = line.lstrip()
        indent = line[: len(line) - len(bare)]
        if bare.startswith(("%", "!", "?")) or bare.endswith("?") and not bare.startswith("#"):
            line = f"{indent}pass"
        elif re.match(r"[\w, ]+=\s*[!%]", bare):
            line = f"{indent}{bare.partition('=')[0]}= None"
        lines.append(line)
    return "\n".join(lines)


def joined(parts: list[tuple[int, str]], path: str) -> Source:
    """Cells as one program, without those that are no Python: another language, or wrong on purpose."""
    lines: list[str] = []
    cells = []
    for number, code in parts:
        try:
            parsed(code)
        except (SyntaxError, ValueError):
            continue
        cells.append((len(lines) + 1, number))
        lines += code.split("\n")
    return Source(path, "\n".join(lines), cells)


def files_of(paths: list[str], left_out: set[str]) -> Iterator[str]:
    """The files that are named, and the scripts and notebooks in the folders that are."""
    for path in paths:
        if path == "-" or not Path(path).is_dir():
            yield path
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(
                name for name in folders if name not in left_out | SKIPPED and not name.startswith(".")
            )
            for name in sorted(names):
                if name.endswith((".py", ".ipynb")) and name not in left_out:
                    yield str(Path(folder, name))
