"""The environment of a lab: what a shell or a kernel sets must not change what commands print.

Notebooks, ``make run``, ``make refresh`` and the tests share it. Taught in lesson 00. Imports no torch.
"""

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase

# Names, or patterns of names, that are taken out, and why.
DROPPED = {
    "FORCE_COLOR": "set by ipykernel; Python 3.13 and later then colour tracebacks, and grep meets that",
    "CLICOLOR": "the same wish, as ls and others read it",
    "CLICOLOR_FORCE": "the same wish, as ls and others read it",
    "PY_COLORS": "the same wish, as pytest reads it",
    "GREP_*": "colours of grep; newer ones warn that GREP_COLOR and GREP_OPTIONS are obsolete",
    "LANG": "LC_ALL below takes its place",
    "LANGUAGE": "the language of messages, even with LC_ALL",
    "LC_*": "LC_ALL below takes their place",
    "POSIXLY_CORRECT": "grep and others then read no option after a file's name",
    "COLUMNS": "argparse breaks its lines there, and tqdm draws its bar so long",
    "LINES": "belongs to COLUMNS",
    "TQDM_*": "settings of tqdm's bars",
    "PYTHON*": "the interpreter's switches: no asserts, more warnings, another order of sets, no buffers",
    "TORCH_*": "what torch logs and checks, such as TORCH_LOGS and TORCH_CPP_LOG_LEVEL",
    "TORCHDYNAMO_*": "what the compiler logs",
    "TORCHELASTIC_*": "set by a torchrun further up",
    "PET_*": "options of torchrun, such as PET_NPROC_PER_NODE",
    "LOGLEVEL": "what torchrun logs",
    "GLOO_LOG_LEVEL": "what gloo logs",
    "NCCL_DEBUG*": "what nccl logs",
    "KINETO_LOG_LEVEL": "what the profiler logs",
    "OMP_DISPLAY_*": "OpenMP prints its settings",
    "KMP_SETTINGS": "the same, as LLVM's OpenMP reads it",
    "*_VERBOSE": "MKL, oneDNN and others print each call",
}
SET_BY_LAUNCHERS = {"MASTER_ADDR", "MASTER_PORT", "ROLE_NAME"} | {
    f"{whose}{what}" for whose in ("", "LOCAL_", "GROUP_", "ROLE_") for what in ("RANK", "WORLD_SIZE")
}
# Of the dropped, what says where something lies, and changes no output.
KEPT = {
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPYCACHEPREFIX",
    "TORCH_HOME",
    "TORCH_EXTENSIONS_DIR",
    "PET_LOCAL_ADDR",  # for a host whose name does not resolve
}
FIXED = {
    "LC_ALL": "C.UTF-8",  # letters beyond ASCII, English messages, and sort by code point
    "PYTHON_COLORS": "0",  # Python 3.13 and later
    "NO_COLOR": "1",  # all others that know of the wish
    "PYTHONWARNINGS": "ignore:Guards may run slower on Python",  # what torch says of Python 3.13.0
}


def lab_environment(base: Mapping[str, str]) -> dict[str, str]:
    """``base`` without what changes the output of Python, torch or the shell's tools, and with ``FIXED``."""
    kept = {name: value for name, value in base.items() if name in KEPT or not _is_dropped(name)}
    return {**kept, **FIXED}


def enter_lab_environment() -> None:
    """Make it the environment of this process and of all that it starts."""
    ours = lab_environment(os.environ)
    for name in set(os.environ) - set(ours):
        del os.environ[name]
    os.environ.update(ours)


def _is_dropped(name: str) -> bool:
    return name in SET_BY_LAUNCHERS or any(fnmatchcase(name, pattern) for pattern in DROPPED)
