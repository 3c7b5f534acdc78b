"""Checkpoints that survive a kill, and one line for each that cannot be read. Taught in lesson 11."""

import io
import os
import pickle
from pathlib import Path

import torch

from shared.runtime.errors import InputError

FORMAT = "rank-by-rank checkpoint"
VERSION = 2


def save_atomically(content: dict, path: Path) -> None:
    """Write ``content`` to ``path`` so that ``path`` always holds a whole checkpoint, the old or the new.

    On return it is on the disk, also if the power fails. Not a collective: call it on rank 0 alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        torch.save({"format": FORMAT, "version": VERSION, **content}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_checkpoint(path: Path, map_location: str | torch.device = "cpu") -> dict:
    """Read what ``save_atomically`` wrote; the file itself is never touched.

    Raises:
        InputError: there is no such file, or it is damaged, foreign, unsafe or of another version.
        OSError: the disk or the network does not answer. That says nothing about the file.
    """
    name = path.name
    if not path.is_file():
        raise InputError(f"{name}: there is no such checkpoint")
    data = path.read_bytes()
    try:
        content = torch.load(io.BytesIO(data), map_location=map_location, weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(f"{name}: holds more than tensors and plain values, or is no checkpoint") from None
    except Exception:
        kind = "damaged or cut short" if data[:2] in (b"PK", b"") else "no checkpoint of torch"
        raise InputError(f"{name}: {kind} ({len(data):,} bytes)") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{name}: written by torch, but by another program")
    if content["version"] != VERSION:
        raise InputError(f"{name}: has version {content['version']}; this program reads version {VERSION}")
    return content
