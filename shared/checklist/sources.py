"""The files of a script: itself, the modules beside it that it imports, the code cells of a notebook."""

import ast
import io
import json
import re
import sys
import tokenize
import warnings
from pathlib import Path

MOST_FILES = 400
MOST_BYTES = 8_000_000
LEVELS = 4  # folders in which an import is looked for: that of the script, and those above it
NEVER_LOCAL = {"torch", "torchvision", "numpy", "accelerate", "lightning", "transformers"}
NOT_ABOVE = NEVER_LOCAL | {
    "datasets",
    "evaluate",
    "wandb",
    "timm",
    "apex",
    "deepspeed",
    "horovod",
    "yaml",
    "tqdm",
}
IGNORE = re.compile(r"#\s*rank-check:\s*ignore(?:\[([\w\s,]*)\])?")
WRITES_FILE = re.compile(r"%%(?:writefile|file)\s+(-a\s+)?[\"']?(\S+?\.py)[\"']?\s*$")
IS_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python", "%%pypy")


class ScriptError(Exception):
    """A file that is no Python script; the text says why in one line."""


class Source:
    """One program's text: a file, or the cells of a notebook that belong together.

    cells: (first line, number of the cell) for each cell of a notebook.
    """

    def __init__(
        self, text: str, path: Path | None, name: str = "", cells: list[tuple[int, int]] | None = None
    ) -> None:
        self.path = path
        self.name = name or (path.stem if path else "script")
        self.cells = cells or []
        self.beside: dict[str, Source] = {}  # files that the same notebook writes
        self.is_package = path is not None and path.name == "__init__.py"
        self.lines = text.count("\n") + 1
        try:
            self.tree = _parsed(text)
        except SyntaxError as error:
            where = self.place(error.lineno or 1)
            raise ScriptError(f"{where}: no Python: {error.msg}") from None
        except ValueError as error:
            raise ScriptError(f"{self.place(1)}: no Python: {error}") from None
        except (RecursionError, MemoryError):
            raise ScriptError(f"{path}: nested too deeply to be read") from None
        self.ignored = _ignored(text) if "rank-check" in text else {}

    def at(self, line: int) -> tuple[str, int, int]:
        """(path, number of the cell or 0, line)."""
        for first, cell in reversed(self.cells):
            if first <= line:
                return shown(self.path), cell, line - first + 1
        return shown(self.path), 0, line

    def place(self, line: int) -> str:
        """``train.py:12``, ``course.ipynb:cell 3:5``."""
        path, cell, inner = self.at(line)
        return f"{path}:cell {cell}:{inner}" if cell else f"{path}:{inner}"

    def is_ignored(self, first: int, last: int, *names: str) -> bool:
        """Whether a comment on one of these lines asks for silence, about all or about these rules."""
        for line in range(first, last + 1):
            if line in self.ignored:
                asked = self.ignored[line]
                if not asked or not asked.isdisjoint(names):
                    return True
        return False


def shown(path: Path | None) -> str:
    """A path as seen from here."""
    if path is None:
        return "-"
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _ignored(text: str) -> dict[int, set[str]]:
    """{line: the rules that a comment on it names}; none named: all."""
    ignored = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            match = IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
            if match:
                ignored[token.start[0]] = set(re.split(r"[\s,]+", match[1] or "")) - {""}
    except (tokenize.TokenError, IndentationError):
        pass
    return ignored


def read(path: Path) -> list[Source]:
    """The programs in a file: one of a script, several of a notebook that writes files.

    Raises:
        ScriptError: there is no such file, it is no text, or it is no Python.
    """
    if str(path) == "-":
        return [Source(decode(sys.stdin.buffer.read(), None), None)]
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ScriptError(f"{path}: {error.strerror or 'cannot be read'}") from None
    if path.suffix == ".ipynb":
        return read_notebook(data, path)
    return [Source(decode(data, path), path)]


def decode(data: bytes, path: Path | None) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise ScriptError(f"{path}:1: no Python: {error}") from None


def read_notebook(data: bytes, path: Path) -> list[Source]:
    """The cells of a notebook as one program, and each file that it writes with %%writefile as another."""
    try:
        cells = json.loads(data)["cells"]
        texts = [
            (number, "".join(cell["source"]))
            for number, cell in enumerate(cells, 1)
            if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ScriptError(f"{path}: no notebook: {type(error).__name__}: {error}") from None
    programs: dict[str, list[tuple[int, str]]] = {"": []}
    for number, text in texts:
        first, _, rest = text.partition("\n")
        written = WRITES_FILE.match(first.strip())
        if written:
            name = Path(written[2]).stem
            if not written[1]:
                programs[name] = []
            programs.setdefault(name, []).append((number, "\n" + rest))
        elif not first.startswith("%%") or first.startswith(IS_PYTHON):
            programs[""].append((number, _without_magic(text)))
    sources = {name: _program(parts, path, name) for name, parts in programs.items()}
    for source in sources.values():
        source.beside = {name: other for name, other in sources.items() if name}
    return list(sources.values())


def _without_magic(text: str) -> str:
    """A cell's Python; what is for IPython becomes ``pass``, so that blocks stay whole."""
    lines = []
    for line in text.split("\n"):
        bare = line.lstrip()
        indent = line[: len(line) - len(bare)]
        if bare.startswith(("%", "!", "?")):
            line = f"{indent}pass"
        elif re.match(r"[\w, ]+=\s*[!%]", bare):
            line = f"{indent}{bare.partition('=')[0]}= None"
        elif bare.endswith("?") and not bare.startswith("#"):
            line = f"{indent}pass"
        lines.append(line)
    return "\n".join(lines)


def _parsed(text: str) -> ast.Module:
    """Without what newer Pythons warn of while they read, such as an escape in a string: it is no finding."""
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(text)


def _program(parts: list[tuple[int, str]], path: Path, name: str) -> Source:
    lines: list[str] = []
    cells = []
    for number, text in parts:
        try:
            _parsed(text)
        except (SyntaxError, ValueError):
            if name:
                raise ScriptError(f"{path}:cell {number}: no Python") from None
            continue  # a cell in another language, or one that is wrong on purpose
        cells.append((len(lines) + 1, number))
        lines += text.split("\n")
    return Source("\n".join(lines), path, name, cells)


class Project:
    """All that was read so far, and where else to look."""

    def __init__(self, folders: list[Path] | None = None) -> None:
        self.folders = [folder.resolve() for folder in folders or []]
        self._by_path: dict[Path, Source | None] = {}
        self._found: dict[tuple, Source | None] = {}
        self._bytes = 0

    def add(self, path: Path) -> list[Source]:
        sources = read(path)
        self._by_path[path.resolve()] = sources[0]
        return sources

    def module(self, importer: Source, name: str, level: int, main: Source) -> Source | None:
        """The module of that name as a file of the project sees it; None if it is of a package."""
        if not level and name in importer.beside:
            return importer.beside[name]
        asked = (importer.path, name, level, main.path)
        if asked not in self._found:
            self._found[asked] = self._find(importer, name, level, main)
        return self._found[asked]

    def _find(self, importer: Source, name: str, level: int, main: Source) -> Source | None:
        if importer.path is None or main.path is None:
            return None
        first = name.partition(".")[0]
        if level:
            folders = list(importer.path.resolve().parents)[level - 1 : level]
        elif first in NEVER_LOCAL:
            return None
        else:
            parents = list(main.path.resolve().parents)[:LEVELS]
            above = [*parents[1:], *self.folders]
            folders = parents[:1]
            if first not in NOT_ABOVE | sys.stdlib_module_names:
                folders += [
                    root for root in above if (root / f"{first}.py").is_file() or (root / first).is_dir()
                ]
                folders += [parent / "src" for parent in parents if (parent / "src" / first).is_dir()]
        for folder in folders:
            base = folder.joinpath(*name.split(".")) if name else folder
            for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
                if path in self._by_path or path.is_file():
                    return self._read(path, name or folder.name)
            if base.is_dir() and (level or any(base.glob("*.py")) or any(base.glob("*/*.py"))):
                return self._read(base / "__init__.py", name)
        return None

    def _read(self, path: Path, name: str) -> Source | None:
        path = path.resolve()
        if path not in self._by_path:
            self._by_path[path] = None
            try:
                data = path.read_bytes() if path.is_file() else b""
                self._bytes += len(data)
                if len(self._by_path) > MOST_FILES or self._bytes > MOST_BYTES:
                    return None
                self._by_path[path] = Source(decode(data, path), path, name)
            except (OSError, ScriptError):
                return None
        return self._by_path[path]
