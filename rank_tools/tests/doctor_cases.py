"""Jobs under the doctor, and what it must say of each: python tests/doctor_cases.py [CASE ...]

It prints a table with seconds. All cases need minutes; test_doctor.py runs them, too.
"""

import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from helpers import HANG_S, HANGS, ROOT, environment, free_port

AFTER_S = 4.0
QUIET_S = 2.0  # after the last line of a verdict
HEALTHY = "well"
FORK, TORCHRUN, PLAIN = "fork", "torchrun", "plain"


@dataclass(frozen=True)
class Case:
    """``says``: regular expressions that the verdict contains; ``{NAME}`` is a line of cases.py.

    ``never``: what it must not contain, such as the name of a rank that does nothing wrong.
    """

    kind: str  # hang, death or well
    says: tuple[str, ...]
    never: tuple[str, ...] = ()
    ranks: int = 2
    launcher: str = FORK
    options: tuple[str, ...] = ()
    script: str = "cases.py"


def of_hangs(*says: str) -> Case:
    return Case("hang", says, script="hangs.py")


def of_them(*says: str) -> Case:
    """A script that looks like other people's."""
    return Case("hang", says, launcher=TORCHRUN, script="")


LOOSE = ("Rank 0 is (missing|elsewhere|dead)", "Rank 0 was the first", "never come")
CASES = {
    "loader_worker": Case(
        "hang",
        (
            "Rank 1 is missing in all_reduce of Float",
            "Rank 0 waits there: {loader_worker 0}",
            "{loader_worker}",
        ),
        LOOSE,
    ),
    "debugger": Case(
        "hang",
        (
            "Rank 1 has not yet come to all_reduce",
            # From Python 3.13 on it stops in the line that calls it, before that in the next one.
            "keyboard: a debugger.*{debugger call}.* It is at ({debugger call}|{debugger})",
        ),
        LOOSE,
    ),
    "asks": Case("hang", ("Rank 1 has not yet come to all_reduce", "keyboard, in input.*{asks}"), LOOSE),
    "saves": Case(
        "hang",
        ("barrier on rank 0 and all_reduce on rank 1", "Rank 0: {saves 0}", "Rank 1: {saves 1}"),
        LOOSE,
        launcher=TORCHRUN,
    ),
    "a_member_is_elsewhere": Case(
        "hang",
        (
            "Ranks 0 and 1 wait for each other",
            r"Rank 0: all_reduce.*, call 1 of group \S+ \(ranks 0 and 1\): {a_member_is_elsewhere 0}",
            "Rank 1: barrier.*{a_member_is_elsewhere 1}",
        ),
        (*LOOSE, "Ranks? [^:]*[23][^:]* (is|are) missing"),
        ranks=4,
    ),
    "threads": Case(
        "hang", ("Rank 1 is missing in all_reduce", "{threads main}", "thread .*{threads}"), LOOSE
    ),
    "wrong_peer": Case(
        "hang",
        ("irecv from rank 2: {wrong_peer}", "which does not send to rank 1"),
        (*LOOSE, "are missing"),
        ranks=3,
    ),
    "wrong_ring": Case(
        "hang",
        ("wait for each other", "isend to rank 1 and irecv from rank 1: {wrong_ring}", "does not send to"),
        LOOSE,
        ranks=3,
    ),
    "c_holds_the_interpreter": Case(
        "hang",
        (
            "Rank 1 (is missing in|has not yet come to) all_reduce",
            "a function in C.*{c_holds_the_interpreter}",
        ),
        LOOSE,
    ),
    "c_from_the_start": Case(
        "hang",
        ("Rank 1 (is missing in|has not yet come to) all_reduce", "a function in C.*{c_from_the_start}"),
        LOOSE,
    ),
    "waits_for_a_program": Case(
        "hang", ("Rank 1 is missing in all_reduce", "{waits_for_a_program}", "process: sleep 600"), LOOSE
    ),
    "fails_and_stays": Case(
        "hang", ("Rank 1 is missing", "failed: ValueError: no such file.*{fails_and_stays}.*not end"), LOOSE
    ),
    "uneven": Case("hang", ("barrier on rank 0 and all_reduce on rank 1", "{uneven 0}", "{uneven 1}"), LOOSE),
    "two_roots": Case("hang", ("in broadcast.*does not end", "{two_roots}.*src = 1", "the same root"), LOOSE),
    "rendezvous": Case(
        "hang", ("No rank has come", "rendezvous: fewer machines"), LOOSE, 2, TORCHRUN, ("--nnodes=2",)
    ),
    "waits_in_finally": Case(
        "hang",
        (
            "all_reduce on rank 0 and barrier on rank 1",
            "Rank 1: {waits_in_finally}",
            "Rank 1 handles an exception: ValueError: no such file, raised at {waits_in_finally raised}",
        ),
        (*LOOSE, "Rank 0 handles"),
    ),
    "other_order": Case(
        "hang",
        (r"Rank 2 waits in (new_group|barrier|all_reduce.* group 1 \(ranks 1 and 2\)).*: cases\.py",),
        (*LOOSE, r"Rank 2[^\n]*\(ranks 0 and 1\)"),
        ranks=3,
    ),
    "killed": Case(
        "death",
        (r"Rank 1 was the first: .*SIGKILL.*Last seen \d+\.\d s before: {killed}",),
        LOOSE,
        launcher=TORCHRUN,
    ),
    "leaves": Case(
        "death", ("Rank 1 was the first: .*(without a word|code 0).*{leaves}",), LOOSE, launcher=TORCHRUN
    ),
    "sizes": Case(
        "death", ("was the first: .*SIGABRT.*{sizes}", "all_reduce"), ("A hint",), launcher=TORCHRUN
    ),
    "leaves_one_out": Case(
        "death",
        (
            "was the first: .*SIGABRT",
            "A hint: two lines have met, .*({leaves_one_out 0}.*{leaves_one_out 1}|"
            "{leaves_one_out 1}.*{leaves_one_out 0}).*has left out a call",
        ),
        launcher=TORCHRUN,
    ),
    "types": Case(
        "death",
        ("was the first: .*SIGABRT.*or the dtypes.*{types}",),
        launcher=TORCHRUN,
    ),
    "fails": Case("death", ("Rank 1 was the first: ValueError: no such file.*{fails}",), LOOSE, 2, TORCHRUN),
    "runs_out_of_time": Case(
        "death",
        ("Rank 1 is missing in all_reduce", "Rank 0 waits there: {runs_out_of_time 0}", "{runs_out_of_time}"),
        LOOSE,
        launcher=TORCHRUN,
    ),
    "spawns": Case(
        "death", ("1 was the first: .*ValueError: no such file.*{spawns}",), LOOSE, launcher=PLAIN
    ),
    "downloads": Case(HEALTHY, ("Rank 0 reads or writes, so it may come",), ("dead", "elsewhere", "missing")),
    "loads_slowly": Case(HEALTHY, ("Rank 1 .*computes, so it may come",), ("dead", "elsewhere", "missing")),
    "prepares": Case(HEALTHY, ("Rank 0 .*computes, so it may come",), ("dead", "elsewhere", "missing")),
    # Hangs that need no more than the names of the calls.
    "kinds": of_hangs(
        "all_reduce on rank 0 and broadcast on rank 1", r"dist\.all_reduce", r"dist\.broadcast"
    ),
    "shapes": of_hangs(r"Float\[2\] on rank 0 and Float\[3\] on rank 1", "Rank 0: hangs", "Rank 1: hangs"),
    "died": of_hangs("Rank 0 waits in init_process_group", "Rank 1 is dead"),
    "failed": of_hangs("Rank 0 waits in init_process_group", "Rank 1 has failed: ValueError: no such data"),
    "groups": of_hangs("wait for each other", "Rank 0: all_reduce.*group 1", "Rank 1: all_reduce.*group 2"),
    "members_only": of_hangs("Rank 0 waits in new_group", r"dist\.new_group", "Rank 1 is elsewhere.*sleep"),
    "both_send": of_hangs("both in send, and neither receives", "send to rank 1", "send to rank 0"),
    "no_sender": of_hangs("Rank 0 waits in recv from rank 1", r"dist\.recv", "Rank 1 is elsewhere.*Queue"),
    "stopped": of_hangs("Rank 1 is missing in all_reduce", "Rank 1 is stopped by a signal"),
    "silent": of_hangs("Rank 1 is missing in all_reduce", "Rank 1 does not answer.*sleep"),
    "key": of_hangs("Rank 0 is missing in barrier", r"dist\.barrier", r"Rank 0 waits in store\.get"),
    "outside": of_hangs("No rank waits", "Ranks 0 and 1: hangs.py", "the same calls so far"),
    "swapped": of_hangs(
        "No rank waits", r"A hint: call 1 of the default group.*in reduce_a.* on rank 0", "they are swapped"
    ),
    "left_out": of_hangs(
        "Rank 1 is missing in all_reduce", r"A hint: call 3 .* on rank 0 and", "rank 1 has left out the first"
    ),
    "thread_died": of_hangs(
        "Rank 1 has lost its thread prefetch: ValueError: a bad record, at hangs.py", "Rank 1 is missing"
    ),
    "one_starts": replace(
        of_hangs("Rank 0 waits in init_process_group", "Rank 1 has never come: not seen"),
        options=("--only=0",),
    ),
    "their_trainer.py": of_them("Rank 1 is missing in all_gather", "in log_metrics", "elsewhere.*ready.wait"),
    "all_in_c_from_the_start": Case(HEALTHY, ("^$",), ("no call was made",)),
    "is_well": Case(HEALTHY, ("^$",), ("dead", "elsewhere", "missing")),
}


@dataclass(frozen=True)
class Outcome:
    said: str  # what the doctor has printed
    code: int
    seconds: float
    complaints: list[str]


def marked_lines() -> dict[str, str]:
    """{what stands behind ``# here``: the place as the doctor prints it}."""
    places = {}
    for number, line in enumerate((HANGS / "cases.py").read_text(encoding="utf-8").splitlines(), 1):
        if "# here " in line:
            places[line.rpartition("# here ")[2]] = rf"cases\.py:{number}\b"
    return places


def command_of(name: str, case: Case, after: float) -> list[str]:
    doctor = [sys.executable, "-m", "rank_tools.doctor", f"--after={after}", "--"]
    script = [str(HANGS / case.script), name] if case.script else [str(HANGS / name)]
    if case.launcher == PLAIN:
        return [*doctor, sys.executable, *script]
    if case.launcher == FORK:
        return [
            *doctor,
            sys.executable,
            str(HANGS / "fork_ranks.py"),
            f"--port={free_port()}",
            f"--ranks={case.ranks}",
            *case.options,
            *script,
        ]
    where = "--rdzv-backend=c10d" if case.options else "--standalone"
    return [*doctor, "torchrun", where, f"--nproc-per-node={case.ranks}", *case.options, *script]


def run_case(name: str, after: float = AFTER_S, **variables: str) -> Outcome:
    """Run it until the doctor has told, or until the job ends; a job that is well must end by itself."""
    case = CASES[name]
    begin = time.monotonic()
    arguments = command_of(name, case, after)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            arguments,
            cwd=ROOT,
            env=environment(HANGS_TOLD=f"{folder}/told", **variables),
            **pipes,
            text=True,
        ) as process,
    ):
        bound = threading.Timer(HANG_S, process.terminate)  # killed, it would leave its job behind
        bound.start()
        try:
            early = "" if "No rank has come" in case.says else "No rank has come so far"
            verdict = read_verdict(process, case.kind == "hang", Path(folder, "told"), early)
            seconds = time.monotonic() - begin
        finally:
            bound.cancel()
            process.terminate()  # a hang: the doctor ends the job
    return Outcome(verdict, process.returncode, seconds, complaints_of(case, verdict, process.returncode))


def read_verdict(process: subprocess.Popen, until_told: bool, told: Path, early: str) -> str:
    """The doctor's lines: a header, and what is indented below it, which it prints at once.

    The first of them makes the file ``told``: a job that is well may end then. A hang's verdict that has
    ``early`` in it is true and not the last: on a busy machine ranks take long to import torch.
    """
    printed: queue.Queue[str] = queue.Queue()

    def read() -> None:
        with suppress(ValueError):  # closed: the verdict is there
            for line in process.stderr:
                printed.put(line)
        printed.put("")

    threading.Thread(target=read, daemon=True).start()
    lines: list[str] = []
    inside = False
    while True:
        try:
            line = printed.get(timeout=QUIET_S if until_told and lines else HANG_S)
        except queue.Empty:
            break
        inside = line.startswith("rank-doctor:") or (inside and line.startswith("  "))
        if inside:
            lines.append(line)
            told.touch()
        if until_told and early and (early in line or line.endswith("it moves again\n")):
            lines, inside = [], False
        if not line or (until_told and lines and not inside):
            break
    return "".join(lines)


def complaints_of(case: Case, said: str, code: int) -> list[str]:
    lines = marked_lines()
    complaints = []
    for pattern in case.says:
        filled = re.sub(r"\{([a-z_]+( \w+)?)\}", lambda match: lines[match[1]], pattern)
        if not re.search(filled, said):
            complaints.append(f"it does not say {filled!r}")
    complaints += [f"it says {pattern!r}" for pattern in case.never if re.search(pattern, said)]
    if case.kind == HEALTHY and code != 0:
        complaints.append(f"the job is well and has ended with exit code {code}")
    if case.kind == "death" and code in (0, 3):
        complaints.append(f"exit code {code}")
    return complaints


def main(names: list[str]) -> int:
    bad = 0
    print(f"{'case':24} {'kind':6} {'seconds':>7}  verdict")
    for name in names or CASES:
        outcome = run_case(name)
        right = "right" if not outcome.complaints else "WRONG"
        bad += bool(outcome.complaints)
        print(f"{name:24} {CASES[name].kind:6} {outcome.seconds:7.1f}  {right}", flush=True)
        for complaint in outcome.complaints:
            print(f"    {complaint}")
        if outcome.complaints or len(names) > 0:
            print(outcome.said)
    print(f"{len(names or CASES) - bad} of {len(names or CASES)} right")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
