"""A Python file as a module, by its path: labs and answers are files to run, not a package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_file(path: Path, name: str | None = None) -> ModuleType:
    """Import the file ``path`` under ``name``, by default its stem, and return the module.

    The module stands in ``sys.modules`` while and after it runs, where dataclasses and pickle look for it.
    A file that is loaded again is run again. While it runs it can import its neighbours, as a script can.

    Raises:
        FileNotFoundError: there is no such file.
        ImportError: it is no Python file. Whatever the file itself raises comes through.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path.name}")
    name = name or path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    finally:
        sys.path.remove(folder)
    return module
