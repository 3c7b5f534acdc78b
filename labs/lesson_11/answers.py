"""Answers to exercise 11."""

from tests.planted import Right, Wrong

WRITE = """
with new.open("wb") as file:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
"""
KEEP = """
spare.unlink(missing_ok=True)  # left by a kill
os.link(latest, spare)  # a second name for the old checkpoint; `latest` stays where it is
new.replace(latest)
spare.replace(previous)  # last, or for a moment both names would hold the old checkpoint
"""
LINK = "os.link(latest, spare)  # a second name for the old checkpoint; `latest` stays where it is"

ANSWERS = [
    Wrong(
        what="The old checkpoint is copied, and its copy never flushed: a power cut may leave it empty.",
        old=KEEP,
        new="""
        shutil.copyfile(latest, previous)
        new.replace(latest)
        """,
        told="previous.pt is there when save returns, but was written before os.fsync",
        below="import shutil",
    ),
    Wrong(
        what="The copy is on the disk in the end, but a kill tears it, and the one before is gone.",
        old=KEEP,
        new="""
        old = latest.read_bytes()
        new.replace(latest)
        with previous.open("wb") as copy:
            copy.write(old)
            copy.flush()
            os.fsync(copy.fileno())
        """,
        told="previous.pt holds 0 of 100,000 bytes",
    ),
    Wrong(
        what="The bytes are on the disk; the names may not be.",
        old="os.fsync(folder)",
        new="",
        told="the folder is not flushed after the last os.replace",
    ),
    Wrong(
        what="os.fsync before Python has handed its buffer to the system.",
        old="file.flush()",
        new="",
        told="os.fsync has seen 0 of its 1,000 bytes",
    ),
    Wrong(
        what="An atomic save that forgets the checkpoint before.",
        old=KEEP,
        new="""
        new.replace(latest)
        """,
        told="previous.pt is missing; expected are 2 and 1",
    ),
    Wrong(
        what="The old checkpoint gets its new name first: for a moment there is no latest.",
        old=KEEP,
        new="""
        latest.replace(previous)
        new.replace(latest)
        """,
        told="killed after os.replace: latest.pt is missing",
    ),
    Wrong(
        what="The checkpoint before is removed first: a kill leaves one, and it may have diverged.",
        old="""
        spare.replace(previous)  # last, or for a moment both names would hold the old checkpoint
        """,
        new="""
        previous.unlink(missing_ok=True)
        os.link(spare, previous)
        """,
        told="killed after os.remove: previous.pt is missing; it held save 2 before this save",
    ),
    Wrong(
        what="previous.pt gets its name first: for a moment both names hold the old checkpoint.",
        old=KEEP,
        new="""
        spare.unlink(missing_ok=True)
        os.link(latest, spare)
        spare.replace(previous)
        new.replace(latest)
        """,
        told="killed after os.replace: latest.pt and previous.pt both hold save 3",
    ),
    Wrong(
        what="A killed save leaves its temporary names behind, and the next one cannot take them.",
        old=('new.open("wb")', "spare.unlink(missing_ok=True)"),
        new=('new.open("xb")', ""),
        told=": FileExistsError: ",
    ),
    Wrong(
        what="Survives a kill, but not a power cut: nothing is flushed to the disk before the name counts.",
        old=WRITE,
        new="new.write_bytes(data)",
        told="latest.pt gets its name before os.fsync: a power cut may leave it empty",
    ),
    Wrong(
        what="Writes to the folder for temporary files, which may lie on another disk.",
        old=('new = latest.with_name("new.tmp")', "new.replace(latest)"),
        new=('new = Path(tempfile.mkdtemp()) / "new.tmp"', "shutil.move(new, latest)"),
        told="writes outside of the folder; os.replace works within one file system",
        below="import shutil, tempfile",
    ),
    Right(
        what="fdatasync, and the old checkpoint is copied, not linked.",
        old=("os.fsync(file.fileno())", f"\n{LINK}\n"),
        new=(
            "os.fdatasync(file.fileno())",
            """
            with spare.open("wb") as copy:
                copy.write(latest.read_bytes())
                copy.flush()
                os.fsync(copy.fileno())
            """,
        ),
    ),
]
