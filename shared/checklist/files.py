"""The files of a script: itself, and the modules beside it that it imports. Taught in lesson 10."""

import ast
import sys
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
MOST_FILES = 40
MOST_BYTES = 1_000_000
LEVELS = 3  # folders in which an import is looked for: that of the script, and those above it

# Libraries that neither start processes nor average gradients; what others do is unknown.
HARMLESS = {
    "PIL", "albumentations", "cv2", "datasets", "einops", "evaluate", "fire", "h5py", "humanize", "hydra",
    "imageio", "librosa", "lmdb", "matplotlib", "ml_collections", "mlflow", "neptune", "nltk", "numpy",
    "omegaconf", "pandas", "psutil", "pydantic", "regex", "requests", "safetensors", "scipy", "seaborn",
    "sentencepiece", "skimage", "sklearn", "soundfile", "spacy", "tabulate", "tensorboard", "tensorboardX",
    "termcolor", "tiktoken", "tokenizers", "torch", "torchaudio", "torchdata", "torchinfo", "torchmetrics",
    "torchtext", "torchvision", "tqdm", "transformers", "typing_extensions", "wandb", "webdataset", "yaml",
}  # fmt: skip
NEVER_LOCAL = HARMLESS | {
    "accelerate", "apex", "deepspeed", "horovod", "lightning", "lightning_fabric", "pytorch_lightning", "ray",
}  # fmt: skip


class Source(NamedTuple):
    """What a name is imported from: ``from .data import load`` is ("data", 1, "load")."""

    module: str
    level: int
    name: str  # "" for a module as a whole


class Module:
    """One parsed file: its definitions by name, and what its names are imported from."""

    def __init__(self, source: str | bytes, path: Path | None = None) -> None:
        tree = ast.parse(source)
        text = source if isinstance(source, str) else source.decode("utf-8", errors="replace")
        self.tree = tree
        self.lines = text.splitlines()
        self.path = path
        self.nodes = list(ast.walk(tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.definitions: dict[str, list[Definition]] = {}
        self.imported: dict[str, Source] = {}
        self.stars: list[Source] = []
        for node in self.nodes:
            if isinstance(node, Definition) and not isinstance(self.parents[node], ast.ClassDef):
                self.definitions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Import):
                self._note_import(node)
            elif isinstance(node, ast.ImportFrom):
                self._note_import_from(node)

    def _note_import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname:
                self.imported[alias.asname] = Source(alias.name, 0, "")
            else:
                first = alias.name.partition(".")[0]
                self.imported[first] = Source(first, 0, "")

    def _note_import_from(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            source = Source(node.module or "", node.level, alias.name)
            if alias.name == "*":
                self.stars.append(source._replace(name=""))
            else:
                self.imported[alias.asname or alias.name] = source


class Files:
    """A script's own module, and those of its imports that lie beside it. They are read when asked for."""

    def __init__(self, main: Module) -> None:
        self.main = main
        self.modules = [main]
        self.complete = True  # whether all was followed; False past the bounds
        self._by_path: dict[Path, Module | None] = {}
        self._asked: dict[tuple[Module, str, int], Module | None] = {}
        self._bytes = 0
        self._folders: list[Path] = []
        if main.path is not None:
            main_path = main.path.resolve()
            self._by_path[main_path] = main
            self._folders = list(main_path.parents)[:LEVELS]

    def module(self, importer: Module, source: Source) -> Module | None:
        """The module named by ``source.module`` as seen from a file, if it is one of the script's own."""
        asked = (importer, source.module, source.level)
        if asked not in self._asked:
            self._asked[asked] = self._find(*asked)
        return self._asked[asked]

    def _find(self, importer: Module, name: str, level: int) -> Module | None:
        if self.main.path is None or importer.path is None:
            return None
        folders = self._folders
        if level:
            folders = list(importer.path.resolve().parents)[level - 1 : level]
        elif not name or name.partition(".")[0] in NEVER_LOCAL | sys.stdlib_module_names:
            return None
        for folder in folders:
            base = folder.joinpath(*name.split(".")) if name else folder
            for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
                if path in self._by_path or path.is_file():
                    return self._read(path)
        return None

    def _read(self, path: Path) -> Module | None:
        if path not in self._by_path:
            self._by_path[path] = None
            try:
                size = path.stat().st_size
                if len(self.modules) >= MOST_FILES or self._bytes + size > MOST_BYTES:
                    self.complete = False
                    return None
                self._bytes += size
                module = Module(path.read_bytes(), path)
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                return None
            self._by_path[path] = module
            self.modules.append(module)
        return self._by_path[path]

    def look_up(self, module: Module, name: str, seen: tuple = ()) -> Module | list[Definition] | None:
        """What a name of a module stands for: definitions, a module of the script, or nothing known."""
        if (module, name) in seen:
            return None
        if name in module.definitions:
            return module.definitions[name]
        if name in module.imported:
            return self._imported(module, module.imported[name], (*seen, (module, name)))
        for star in module.stars:
            other = self.module(module, star)
            found = self.look_up(other, name, (*seen, (module, name))) if other else None
            if found:
                return found
        return None

    def _imported(self, module: Module, source: Source, seen: tuple) -> Module | list[Definition] | None:
        other = self.module(module, source)
        if not source.name:
            return other
        found = self.look_up(other, source.name, seen) if other else None
        if found:
            return found
        dotted = f"{source.module}.{source.name}".lstrip(".")
        return self.module(module, Source(dotted, source.level, ""))

    def attribute(self, module: Module, name: str) -> Module | list[Definition] | None:
        """``module.name``: a definition in it, or a module below it."""
        found = self.look_up(module, name)
        if found is None and module.path is not None and module.path.name == "__init__.py":
            found = self._imported(module, Source("", 1, name), ())
        return found

    def unknown(self) -> set[str]:
        """Names of imported packages whose doings are unknown."""
        found = set()
        for module in self.modules:
            for source in [*module.imported.values(), *module.stars]:
                first = source.module.partition(".")[0]
                known = first in HARMLESS or first in sys.stdlib_module_names
                if not (known and not source.level) and self._imported(module, source, ()) is None:
                    found.add(first or source.name)
        return found
