"""Planted faults of lesson 11; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "11_bad_files",
        'zipped = file.read(2) in (b"PK", b"")',
        'zipped = file.read(2) == b"PK"',
        "empty.pt: expected one line with 'damaged or cut short (0 bytes)'",
        ranks=0,
    ),
    Fault(
        "11_kill",
        'temporary = path.with_name(f"{path.name}.tmp")',
        "temporary = path",
        "the atomic save must leave no torn file",
        ranks=0,
    ),
    Fault(
        "11_other_size",
        '(path / ".metadata").exists()]',
        "path.is_dir()]",
        "global metadata read failed",
        before=("11_shards",),
    ),
    Fault(
        "11_rank0",
        "path.unlink(missing_ok=True)",
        "pass",
        "no file: loads, and notices nothing",
    ),
    Fault(
        "11_resume",
        "for name in set(PARTS[:3]) - {forget}:",
        "for name in set(PARTS[:2]) - {forget}:",
        "resumed without any loss: other losses at steps",
        before=("11_resume", "--be-killed"),
    ),
    Fault(
        "11_shards",
        'timed(torch.save, whole, folder / "plain.pt")',
        'timed(torch.save, {n: t.double() for n, t in whole.items()}, folder / "plain.pt")',
        "bytes of numbers",
    ),
]

STILL_WITHOUT: list[str] = []
