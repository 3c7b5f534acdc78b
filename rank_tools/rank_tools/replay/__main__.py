"""``rank-replay -- torchrun ...``: run a job unchanged, and write what its ranks did as one page."""

import argparse
import signal
import sys
import time
from importlib import metadata
from pathlib import Path

from ..doctor.job import Job, JobError
from .events import read, say_who_waits
from .page import page
from .still import still

EVENTS = 20_000
BAD_INPUT = 2
ENDED = 3
INTERRUPTED = 130
TITLE = "rank-replay"
FOLDER = "RANK_REPLAY_FOLDER"  # as recorder.py reads them
LIMIT = "RANK_REPLAY_LIMIT"
ONLY = "RANK_REPLAY_ONLY"

EPILOG = """\
examples:
  rank-replay -- torchrun --standalone --nproc-per-node=2 train.py
  rank-replay --out ring.html --timeout 60 -- torchrun --standalone --nproc-per-node=4 labs/lab_05_ring.py

keys in the page: right and left step, c goes to the next communication, 0 to 9 to the next line of that rank

exit code:
  the command's own, if it ends by itself
  2  an option is wrong, or the command cannot be started, or the page cannot be written
  3  with --timeout or --stuck: the job was ended
"""


def installed_version() -> str:
    try:
        return metadata.version("rank-tools")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=TITLE,
        description="Run a job of several ranks, and write a page that replays it line by line.",
        usage="rank-replay [--out PAGE.html] [--force] [--timeout SECONDS] -- COMMAND ...",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {installed_version()}")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what starts the job, after --")
    parser.add_argument("--out", type=Path, default=Path("replay.html"), metavar="PAGE", help="(replay.html)")
    parser.add_argument("--still", type=Path, metavar="SVG", help="write a still picture, too")
    parser.add_argument("--force", action="store_true", help="write over a page that exists")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end the job then, and show who waits"
    )
    parser.add_argument(
        "--stuck",
        type=float,
        metavar="SECONDS",
        help="end it when after its first call no rank gets on so long",
    )
    parser.add_argument("--events", type=int, default=EVENTS, metavar="N", help=f"of each rank ({EVENTS:,})")
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)  # the answer that a check calls
    parser.add_argument("--no-seconds", action="store_true", help="two equal runs give the same file")
    given = sys.argv[1:] if arguments is None else arguments
    options, unknown = parser.parse_known_args(given)
    if unknown and "--" not in given:
        parser.error(f"put -- before the command: rank-replay -- {' '.join(given)}")
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.events < 1:
        parser.error(f"--events must be at least 1, not {options.events}")
    for name in ("timeout", "stuck"):
        seconds = getattr(options, name)
        if seconds is not None and not 0 < seconds < float("inf"):
            parser.error(f"--{name} must be a number of seconds above 0, not {seconds}")
    for path in (options.out, options.still):
        if path is None:
            continue
        if path.exists() and not options.force:
            parser.error(f"{path} exists: name another file, or write over it with --force")
        if not path.resolve().parent.is_dir():
            parser.error(f"{path} cannot be written: there is no folder {path.parent}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run a command and write its replay; return the exit code, see ``--help``."""
    options = parse(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    here = Path(__file__)
    doctor = here.parents[1] / "doctor" / "inside.py"
    files = {"sitecustomize.py": here.with_name("recorder.py"), "rank_doctor_inside.py": doctor}
    try:
        only = {} if options.only is None else {ONLY: str(options.only.resolve())}
        job = Job(options.command, files, FOLDER, {LIMIT: str(options.events), **only})
    except JobError as error:
        say(str(error))
        return BAD_INPUT
    ended = ""
    try:
        code, ended = wait(job, options.timeout, options.stuck)
        if ended:
            job.end()
    except KeyboardInterrupt:
        ended = "interrupted"
        job.end()
        code = INTERRUPTED
    try:
        return write(job, options, code, ended)
    finally:
        job.forget()


def leave(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def wait(job: Job, timeout: float | None, stuck: float | None) -> tuple[int, str]:
    """The exit code, and why the job has to be ended; nothing if it has ended by itself."""
    begin = moved_at = time.monotonic()
    written = 0
    while (code := job.exit_code()) is None:
        now = time.monotonic()
        if timeout is not None and now > begin + timeout:
            return ENDED, f"ended after {timeout:g} s"
        if stuck is not None:
            size = written_after_a_call(job.folder)
            moved_at, written = (now, size) if size != written or not size else (moved_at, written)
            if now > moved_at + stuck:
                return ENDED, f"ended after {stuck:g} s in which no rank got on"
        time.sleep(0.05 if stuck is None else 0.5)
    return code, ""


def written_after_a_call(folder: Path) -> int:
    """How many bytes the ranks have written.

    0 before their first call of a group, as to import takes long, and after the last event that is recorded.
    """
    text = b"".join(path.read_bytes() for path in folder.glob("events-*.jsonl"))
    return len(text) if b'["call"' in text and b'["limit"' not in text else 0


def write(job: Job, options: argparse.Namespace, code: int, ended: str) -> int:
    try:
        replay = read(job.folder)
    except ValueError as error:
        say(f"no page: {error}; the command ended with exit code {code}")
        return code or (0 if options.only else BAD_INPUT)  # no case of an answer fails
    if ended or code != 0:
        say_who_waits(replay)
    command = " ".join(options.command)
    state = ended or f"exit code {code}"
    try:
        options.out.write_text(page(replay, command, state, not options.no_seconds), encoding="utf-8")
        if options.still is not None:
            options.still.write_text(still(replay), encoding="utf-8")
    except OSError as error:
        say(f"{options.out} cannot be written: {error.strerror}")
        return code or BAD_INPUT
    count = sum(len(lane.events) for lane in replay.lanes)
    ranks = len({lane.rank for lane in replay.lanes})
    for note in replay.notes:
        say(note)
    say(f"{options.out}: {ranks} ranks, {count:,} events")
    return code


def say(text: str) -> None:
    sys.stdout.flush()
    print(f"{TITLE}: {text}", file=sys.stderr, flush=True)


def command() -> None:
    sys.exit(main())


if __name__ == "__main__":
    command()
