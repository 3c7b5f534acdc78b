"""``rank-doctor -- torchrun ...``: say which rank holds a job up when nothing moves."""

import argparse
import signal
import sys
import time
from importlib import metadata

from .job import Job, JobError
from .outside import look_into
from .ranks import BUSY, Rank, mark_busy, ranks_of
from .verdict import Verdict, verdict

AFTER_S = 30.0
LOOKS = 5  # in this time
NOBODY_WAITS = 3  # times as long: a rank may load data, or import
SHORTEST_S = 0.5  # between two looks
BAD_INPUT = 2  # as argparse ends after a wrong option
HANGS = 3
INTERRUPTED = 130

EPILOG = """\
examples:
  rank-doctor -- torchrun --standalone --nproc-per-node=2 train.py --lr 0.1
  rank-doctor --after 60 -- python -m torch.distributed.run ...
  rank-doctor --pid 4711

exit code:
  the command's own, if it ends by itself
  2  an option is wrong, or the command or process cannot be looked into
  3  it hangs: the verdict was told, and the command and all that it started were ended

The script is run as it is. Its Python processes get one more thread, which tells where they are.
It sees the ranks of this machine. Two calls of one kind and shape that are swapped look the same.
"""


def installed_version() -> str:
    try:
        return metadata.version("rank-by-rank")
    except metadata.PackageNotFoundError:
        return "(a copied folder)"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="rank-doctor",
        description="Run a job of several ranks, and say which rank holds it up when nothing moves.",
        usage="rank-doctor [--after SECONDS] [--keep] [--stacks] (-- COMMAND ... | --pid PID)",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {installed_version()}")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="what starts the job, after --")
    parser.add_argument("--pid", type=int, help="look into this process and those below it, once")
    parser.add_argument(
        "--after",
        type=float,
        default=AFTER_S,
        metavar="SECONDS",
        help=f"how long a rank waits and no call is made or done before it is a hang ({AFTER_S:.0f}); "
        "three times as long if no rank waits in a call",
    )
    parser.add_argument("--keep", action="store_true", help="tell, and let the job go on")
    parser.add_argument("--stacks", action="store_true", help="print the whole stack of each rank, too")
    options = parser.parse_args(arguments)
    if bool(options.command) == (options.pid is not None):
        parser.error("give either a command after -- or --pid")
    if not 0 < options.after < float("inf"):
        parser.error(f"--after must be a number of seconds above 0, not {options.after}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Watch a command or look at a process; return the exit code, see ``--help``."""
    options = parse(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        if options.pid is not None:
            return look_once(options)
        job = Job(options.command)
    except JobError as error:
        say(str(error))
        return BAD_INPUT
    try:
        return watch(job, options)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        job.end()


def leave(number: int, frame: object) -> None:
    """A signal ends the doctor as Ctrl-C does: it ends the job first."""
    raise KeyboardInterrupt


def look_once(options: argparse.Namespace) -> int:
    seconds = min(options.after, 2.0)
    before = ranks_of(look_into(options.pid))
    time.sleep(seconds)
    ranks = ranks_of(look_into(options.pid))
    if not ranks:
        raise JobError(f"process {options.pid} and those below it are no ranks")
    mark_busy(ranks, before, seconds)
    tell(verdict(ranks, expected(ranks)), ranks, options, "as it is now")
    return 0


def watch(job: Job, options: argparse.Namespace) -> int:
    """Look again and again, until the job ends or hangs."""
    step = max(SHORTEST_S, options.after / LOOKS)
    told = ""
    since = Look([], time.monotonic())  # the first look since which nothing has moved
    while True:
        wait(job, step)
        code = job.exit_code()
        if code is not None:
            report_end(job, code)
            return code
        now = Look(job.ask(full=False), time.monotonic())
        if now.has_moved_since(since):
            since = now
        patience = options.after if now.waits else NOBODY_WAITS * options.after
        if now.at - since.at < patience:
            continue
        mark_busy(now.ranks, since.ranks, now.at - since.at)
        found, ranks = examine(job, now)
        if job.exit_code() is not None or progress_of(ranks) != progress_of(now.ranks):
            continue  # it has moved while we asked
        ends = found.hangs and not options.keep
        if ends:
            job.end()  # first, so that the verdict is the last thing that is printed
        if str(found) != told:
            told = str(found)
            tell(found, ranks, options, f"no call was made or done for {patience:g} s")
        if ends:
            return HANGS


class Look:
    """What the job's processes answered at one time."""

    def __init__(self, answers: list[dict], at: float) -> None:
        self.at = at
        self.ranks = ranks_of(answers)
        self.cpu_s = {said["pid"]: said.get("cpu_s", 0.0) for said in answers if said["alive"]}

    @property
    def waits(self) -> bool:
        """Whether a rank waits in a call of torch.distributed."""
        return any(rank.open_calls or rank.waits_in for rank in self.ranks.values())

    def has_moved_since(self, before: "Look") -> bool:
        """Whether a rank has come, made a call or ended one. If none waits: whether any process works."""
        if not self.ranks or progress_of(self.ranks) != progress_of(before.ranks):
            return True
        if self.waits:
            return False
        if self.cpu_s.keys() != before.cpu_s.keys():
            return True
        works = any(self.cpu_s[pid] - before.cpu_s[pid] > BUSY * (self.at - before.at) for pid in self.cpu_s)
        return works or any(rank.stack != before.ranks[number].stack for number, rank in self.ranks.items())


def wait(job: Job, seconds: float) -> None:
    """Until the job ends, but not longer than this."""
    give_up = time.monotonic() + seconds
    while job.exit_code() is None and time.monotonic() < give_up:
        time.sleep(0.05)


def progress_of(ranks: dict[int, Rank]) -> dict[int, tuple]:
    return {number: rank.progress() for number, rank in ranks.items()}


def examine(job: Job, brief: Look) -> tuple[Verdict, dict[int, Rank]]:
    """Ask for all that the ranks know, and find the words."""
    ranks = ranks_of(job.ask(full=True))
    for number, rank in ranks.items():
        rank.busy = number in brief.ranks and brief.ranks[number].busy
    return verdict(ranks, expected(ranks)), ranks


def expected(ranks: dict[int, Rank]) -> int:
    """How many ranks there should be."""
    return max([rank.world_size for rank in ranks.values()] + [max(ranks, default=-1) + 1])


def tell(found: Verdict, ranks: dict[int, Rank], options: argparse.Namespace, when: str) -> None:
    say(f"{when}\n{found}")
    problems = {rank.problem for rank in ranks.values() if rank.problem}
    for problem in sorted(problems):
        print(f"  The flight recorder could not be read: {problem}", file=sys.stderr)
    if options.stacks:
        for number, rank in ranks.items():
            print(f"  rank {number}, main thread, innermost call last:", file=sys.stderr)
            for file, line, function, text, _ in rank.stack:
                print(f"    {file}:{line}, in {function}: {text}", file=sys.stderr)


def report_end(job: Job, code: int) -> None:
    """If the job failed, say whose exception came first: the others are echoes."""
    if code == 0:
        return
    failed = [said for said in job.read("bye").values() if said["error"] and "RANK" in said["variables"]]
    if failed:
        first = min(failed, key=lambda said: said["time"])
        own = [frame for frame in first["place"] if frame[4]] or first["place"]
        place = f", at {own[-1][0].rpartition('/')[2]}:{own[-1][1]}" if own else ""
        say(f"rank {first['variables']['RANK']} failed first: {first['error']}{place}")


def say(text: str) -> None:
    sys.stdout.flush()
    print(f"rank-doctor: {text}", file=sys.stderr, flush=True)


def command() -> None:
    sys.exit(main())


if __name__ == "__main__":
    command()
