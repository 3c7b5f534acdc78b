"""Answers to exercise 11; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

WRITE = """
with new.open("wb") as file:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
"""
KEEP = """
spare.unlink(missing_ok=True)  # left by a kill
os.link(latest, spare)  # a second name for the old checkpoint; `latest` stays where it is
spare.replace(previous)
"""

ANSWERS = [
    wrong(
        "The old checkpoint is copied, and its copy never flushed: a power cut may leave it empty.",
        "previous.pt is there when save returns, but was written before os.fsync",
        (KEEP, "shutil.copyfile(latest, previous)"),
        below="import shutil",
    ),
    wrong(
        "The copy is on the disk in the end, but a kill tears it, and the older checkpoint is gone by then.",
        "previous.pt holds 0 of 100,000 bytes",
        (
            KEEP,
            """
            shutil.copyfile(latest, previous)
            with previous.open("rb+") as copy:
                os.fsync(copy.fileno())
            """,
        ),
        below="import shutil",
    ),
    wrong(
        "The bytes are on the disk; the names may not be.",
        "the folder is not flushed after the last os.replace",
        ("os.fsync(folder)", ""),
    ),
    wrong(
        "os.fsync before Python has handed its buffer to the system.",
        "os.fsync has seen 0 of its 1,000 bytes",
        ("file.flush()", ""),
    ),
    wrong(
        "An atomic save that forgets the checkpoint before.",
        "previous.pt is missing; expected are 2 and 1",
        (KEEP, ""),
    ),
    wrong(
        "Makes room for the new checkpoint before putting it there.",
        "killed after os.remove: latest.pt is missing",
        (
            "new.replace(latest)",
            """
            latest.unlink()
            new.replace(latest)
            """,
        ),
    ),
    wrong(
        "The old checkpoint gets its new name first: for a moment there is no latest.",
        "killed after os.replace: latest.pt is missing",
        (KEEP, "latest.replace(previous)"),
    ),
    wrong(
        "A killed save leaves its temporary names behind, and the next one cannot take them.",
        "FileExistsError: [Errno 17] File exists",
        ('new.open("wb")', 'new.open("xb")'),
        ("spare.unlink(missing_ok=True)", ""),
    ),
    wrong(
        "Survives a kill, but not a power cut: nothing is flushed to the disk before the name counts.",
        "latest.pt gets its name before os.fsync: a power cut may leave it empty",
        (WRITE, "new.write_bytes(data)"),
    ),
    wrong(
        "Writes to the folder for temporary files, which may lie on another disk: then the move is a copy.",
        "writes outside of the folder; os.replace works within one file system",
        ('new = latest.with_name("new.tmp")', 'new = Path(tempfile.mkdtemp()) / "new.tmp"'),
        ("new.replace(latest)", "shutil.move(new, latest)"),
        below="import shutil, tempfile",
    ),
    wrong(
        "Moves a copy of the old checkpoint aside, then opens the only good one for writing.",
        "killed after open: latest.pt holds 0 of 100,000 bytes",
        ("file.write(data)", "file.write(latest.read_bytes())"),
        (KEEP, "new.replace(previous)"),
        (
            "new.replace(latest)",
            """
            with latest.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            """,
        ),
    ),
    right(
        "Copies the old checkpoint, for a file system that has no hard links.",
        (
            KEEP,
            """
            with spare.open("wb") as file:
                file.write(latest.read_bytes())
                file.flush()
                os.fsync(file.fileno())
            spare.replace(previous)
            """,
        ),
    ),
    right(
        "No spare name: previous.pt is missing for a moment.",
        (
            KEEP,
            """
            previous.unlink(missing_ok=True)
            os.link(latest, previous)
            """,
        ),
    ),
    right(
        "A temporary file by tempfile, in the same folder.",
        (
            WRITE,
            """
            with tempfile.NamedTemporaryFile(dir=latest.parent, delete=False) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new = Path(file.name)
            """,
        ),
        below="import tempfile",
    ),
    right(
        "O_SYNC: each write returns when its bytes are on the disk.",
        (
            WRITE,
            """
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_SYNC)
            os.write(descriptor, data)
            os.close(descriptor)
            """,
        ),
    ),
    right(
        "fdatasync, and previous.pt gets its name last.",
        ("os.fsync(file.fileno())", "os.fdatasync(file.fileno())"),
        (
            """
            spare.replace(previous)
            new.replace(latest)
            """,
            """
            new.replace(latest)
            spare.replace(previous)
            """,
        ),
    ),
]
