"""``rank-doctor -- torchrun ...``: say which rank holds a job up when nothing moves."""

import argparse
import signal
import sys
import time
import traceback
from importlib import metadata

from . import ending
from .answer import Answer
from .inside import BRIEF, CALLS, FULL
from .job import Job, JobError
from .life import activity, life, use_of
from .outside import look_into
from .ranks import Place, Rank, main_stack, own_place, ranks_of
from .verdict import Verdict, nobody, verdict

AFTER_S = 30.0
LOOKS = 5  # in this time
NOBODY_WAITS = 3  # times as long: a rank may load data, or import
SHORTEST_S = 0.5  # between two looks
LONGEST_S = 2.0
BAD_INPUT = 2  # as argparse ends after a wrong option
HANGS = 3
INTERRUPTED = 130

EPILOG = """\
examples:
  rank-doctor -- torchrun --standalone --nproc-per-node=2 train.py --lr 0.1
  rank-doctor --after 60 --end -- python -m torch.distributed.run ...
  rank-doctor --pid 4711

It tells what it sees and leaves the job alone. With --end it ends the job, if it is proved that it hangs:
all ranks are seen, each has ended or waits for another one, and none of them can come.

The verdict mostly comes 2 to 10 s after --after is over. At worst it takes three times --after, as long as
no rank waits in a call, and 80 s more: the doctor waits up to 5 s in each look for a process that does not
answer, and up to 60 s for the lines of the calls, for which torch imports its compiler. A rank that comes,
or that answers again, counts as a move, and the time begins anew.

exit code:
  the command's own, if it ends by itself
  2  an option is wrong, or the command or process cannot be looked into
  3  with --end: it hangs; the verdict was told, and the command and all that it started were ended

The script is run as it is. Its Python processes get one more thread, which tells where they are.
It sees the ranks of this machine. Two calls of one kind and shape that are swapped give a hint, by their
lines, if the job then hangs; a job that moves is not looked into.
"""


def installed_version() -> str:
    """That of the package. A copied folder is not it, also beside an installed one."""
    try:
        return (
            metadata.version("rank-tools") if __package__.startswith("rank_tools.") else "(a copied folder)"
        )
    except metadata.PackageNotFoundError:
        return "(not installed)"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="rank-doctor",
        description="Run a job of several ranks, and say which rank holds it up when nothing moves.",
        usage="rank-doctor [--after SECONDS] [--end] [--stacks] (-- COMMAND ... | --pid PID)",
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
        help=f"how long a rank waits and no call is made or done before it is told ({AFTER_S:.0f}); "
        "three times as long if no rank waits in a call",
    )
    parser.add_argument("--end", action="store_true", help="end the job when it is proved that it hangs")
    parser.add_argument("--stacks", action="store_true", help="print the stacks of each rank's threads, too")
    given = sys.argv[1:] if arguments is None else arguments
    options, unknown = parser.parse_known_args(given)
    if unknown and options.command and "--" not in given:
        parser.error(f"put -- before the command: rank-doctor -- {' '.join(given)}")
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
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
        job.end()  # who ends the doctor ends the job, as without it
        return INTERRUPTED
    finally:
        job.forget()


def leave(number: int, frame: object) -> None:
    """A signal ends the doctor as Ctrl-C does: it ends the job first."""
    raise KeyboardInterrupt


def look_once(options: argparse.Namespace) -> int:
    seconds = min(options.after, 2.0)
    before = Look(look_into(options.pid))
    time.sleep(seconds)
    now = Look(look_into(options.pid))
    if not now.ranks:
        raise JobError(f"process {options.pid} and those below it are no ranks")
    now.mark_life(before)
    tell(verdict(now.ranks, expected(now.ranks)), now.ranks, options, "as it is now")
    return 0


class Look:
    """What the job's processes answered at one time."""

    def __init__(self, answers: list[Answer]) -> None:
        self.at = time.monotonic()
        self.answers = answers
        self.ranks = ranks_of(answers)
        self.use = use_of(answers)

    @property
    def waits(self) -> bool:
        """Whether a rank waits in a call of torch.distributed."""
        return any(rank.waits for rank in self.ranks.values())

    def has_moved_since(self, before: "Look") -> bool:
        """Whether a rank has come, made a call or ended one. If none waits: whether any process works."""
        if progress_of(self.ranks) != progress_of(before.ranks):
            return True
        if self.waits:
            return False
        if self.use.keys() != before.use.keys():
            return True
        if any(rank.stacks != before.ranks[number].stacks for number, rank in self.ranks.items()):
            return True
        seconds = self.at - before.at
        return any(activity(self.use[pid], before.use[pid], seconds) for pid in self.use)

    def life_since(self, before: "Look") -> dict[int, str]:
        pids = {rank.pid for rank in self.ranks.values()}
        return life(self.answers, pids, self.use, before.use, self.at - before.at)

    def mark_life(self, before: "Look") -> None:
        """Say of each rank by what it, or a process below it, has shown life since ``before``."""
        signs = self.life_since(before)
        for rank in self.ranks.values():
            rank.works = signs.get(rank.pid, "")


def launchers(answers: list[Answer]) -> list[tuple[str, Place]]:
    """(functions on the stack, innermost place) of each living process, where none of them is a rank."""
    places = []
    for answer in answers:
        stack = main_stack(answer.stacks)
        place = own_place(stack)
        if answer.alive and place is not None:
            places.append((" ".join(frame[2] for frame in stack), place))
    return places


def progress_of(ranks: dict[int, Rank]) -> dict[int, tuple]:
    return {number: rank.progress() for number, rank in ranks.items()}


def expected(ranks: dict[int, Rank]) -> int:
    """How many ranks there should be."""
    return max([rank.world_size for rank in ranks.values()] + [max(ranks, default=-1) + 1])


class Watch:
    """What the doctor of a job knows while it looks again and again."""

    def __init__(self, job: Job, options: argparse.Namespace) -> None:
        self.job = job
        self.options = options
        self.since = Look([])  # the first look since which nothing has moved
        self.stalled: Look | None = None  # the second one, in which the calls were asked for
        self.told = ""
        self.told_at = 0.0  # seconds after ``since``

    def look(self) -> bool:
        """Look once. Returns whether it is proved that the job hangs."""
        now = Look(self.job.ask(BRIEF if self.stalled is None else CALLS))
        if now.has_moved_since(self.since):
            if self.told and not any(rank.is_dead for rank in now.ranks.values()):
                say("it moves again")
            self.since, self.stalled, self.told, self.told_at = now, None, "", 0.0
            return False
        if self.stalled is None:
            self.stalled = Look(self.job.ask(CALLS))
            return False
        seconds = now.at - self.since.at
        patience = self.options.after if now.waits else NOBODY_WAITS * self.options.after
        if seconds < patience or seconds < 2 * self.told_at:
            return False
        return self.examine(now, seconds if self.told else patience)

    def examine(self, now: Look, seconds: float) -> bool:
        """Ask for all that the ranks know, and tell it. Returns whether it is proof."""
        full = Look(self.job.ask(FULL))
        if self.job.exit_code() is not None or progress_of(full.ranks) != progress_of(now.ranks):
            return False  # it has moved while we asked
        assert self.stalled is not None
        now.mark_life(self.stalled)  # the full answers come late: torch imports its compiler for them
        for number, rank in full.ranks.items():
            rank.works = now.ranks[number].works
        if full.ranks:
            diagnosis = verdict(full.ranks, expected(full.ranks))
        else:
            diagnosis = nobody(launchers(full.answers))
        again = self.told == diagnosis.kind and diagnosis.may_move
        self.told_at = now.at - self.since.at
        if str(diagnosis) != self.told:
            self.told = diagnosis.kind if diagnosis.may_move else str(diagnosis)
            still = "still " if again else ""
            when = f"{still}no call was made or done for {seconds:.3g} s"
            when += "; this need not be a hang" if diagnosis.may_move else ""
            tell(diagnosis, full.ranks, self.options, when)
        return diagnosis.is_proof


def watch(job: Job, options: argparse.Namespace) -> int:
    """Look again and again, until the job ends, or hangs and is to be ended."""
    step = min(max(SHORTEST_S, options.after / LOOKS), LONGEST_S)
    seen = Watch(job, options)
    fails = False
    while True:
        wait(job, step)
        code = job.exit_code()
        if code is not None:
            if code != 0:
                tell_end(job, code)
            return code
        if fails:
            continue
        try:
            is_proved = seen.look()
        except Exception:
            fails = True  # a job must not end because its doctor is wrong
            traceback.print_exc()
            say("the doctor itself has failed, see above; the job goes on without it")
            continue
        if is_proved and options.end:
            job.end()
            say("the job was ended: no rank is left that could still arrive")
            return HANGS


def wait(job: Job, seconds: float) -> None:
    """Until the job ends, but not longer than this. Processes that end meanwhile are seen."""
    give_up = time.monotonic() + seconds
    while job.exit_code() is None and time.monotonic() < give_up:
        job.see_deaths()
        time.sleep(0.03)


def tell_end(job: Job, code: int) -> None:
    """If the job failed, say which rank was the first: the others are echoes."""
    answers = job.last_known()
    try:
        ranks = ranks_of(answers)
        lines = ending.lines_of(ranks, answers, expected(ranks), code)
    except Exception:
        traceback.print_exc()
        lines = ["the doctor itself has failed, see above"]
    say(f"the command ended with exit code {code}\n" + "\n".join(f"  {line}" for line in lines))


def tell(found: Verdict, ranks: dict[int, Rank], options: argparse.Namespace, when: str) -> None:
    say(f"{when}\n{found}")
    problems = {rank.problem for rank in ranks.values() if rank.problem}
    for problem in sorted(problems):
        print(f"  The flight recorder could not be read: {problem}", file=sys.stderr)
    if options.stacks:
        for number, rank in ranks.items():
            for name, stack in rank.stacks.items():
                print(f"  rank {number}, {name}, innermost call last:", file=sys.stderr)
                for file, line, function, text, _ in stack:
                    print(f"    {file}:{line}, in {function}: {text}", file=sys.stderr)


def say(text: str) -> None:
    sys.stdout.flush()
    print(f"rank-doctor: {text}", file=sys.stderr, flush=True)


def command() -> None:
    sys.exit(main())


if __name__ == "__main__":
    command()
