"""Checkpoints of `shared`: what is saved is loaded, and each unreadable file is told in one line."""

from pathlib import Path

import pytest
import torch

from shared.runtime.errors import InputError
from shared.training import checkpoint
from shared.training.checkpoint import load_checkpoint, save_atomically


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "new folder" / "run.pt"
    save_atomically({"step": 3, "weight": torch.arange(4.0)}, path)
    return path


def test_what_is_saved_is_loaded(path: Path):
    content = load_checkpoint(path)
    assert content["step"] == 3
    assert torch.equal(content["weight"], torch.arange(4.0))
    assert [entry.name for entry in path.parent.iterdir()] == ["run.pt"]


def test_a_save_that_fails_leaves_the_last_checkpoint(path: Path):
    with pytest.raises((AttributeError, TypeError)):
        save_atomically({"step": 4, "no value": lambda: None}, path)
    assert load_checkpoint(path)["step"] == 3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda path: path.unlink(), "run.pt: there is no such checkpoint"),
        (lambda path: path.write_bytes(path.read_bytes()[:500]), "run.pt: damaged or cut short (500 bytes)"),
        (lambda path: path.write_bytes(b""), "run.pt: damaged or cut short (0 bytes)"),
        (lambda path: path.write_text("step 20, loss 0.31\n"), "run.pt: no checkpoint of torch (19 bytes)"),
        (lambda path: torch.save([1], path), "run.pt: written by torch, but by another program"),
        (
            lambda path: torch.save({"format": checkpoint.FORMAT, "version": 1}, path),
            "run.pt: has version 1; this program reads version 2",
        ),
        (
            lambda path: torch.save({"path": path}, path),
            "run.pt: holds more than tensors and plain values, or is no checkpoint",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_one_line(path: Path, change, expected: str):
    change(path)
    with pytest.raises(InputError) as caught:
        load_checkpoint(path)
    assert str(caught.value) == expected
