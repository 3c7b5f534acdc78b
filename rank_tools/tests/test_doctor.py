"""The doctor names what holds a job up: on hangs of ours, in scripts of others, and on what it cannot see."""

import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from doctor_cases import CASES, run_case
from helpers import (
    HANG_S,
    HANGS,
    HERE,
    ROOT,
    Done,
    environment,
    free_port,
    processes_with,
    python,
    wait_until,
)
from rank_tools.doctor import outside, processes
from rank_tools.doctor.__main__ import main
from rank_tools.doctor.answer import Answer
from rank_tools.doctor.ending import lines_of
from rank_tools.doctor.inside import CALLS, newest_trace
from rank_tools.doctor.processes import descendants, variables_of
from rank_tools.doctor.ranks import Call, Place, Rank, ranks_of
from rank_tools.doctor.source import messages_in
from rank_tools.doctor.verdict import verdict

HUNG = 3
BAD_INPUT = 2
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="forks ranks, and reads /proc")


def forked(*script: str | Path) -> list[str | Path]:
    """A script on two ranks."""
    return [sys.executable, HANGS / "fork_ranks.py", f"--port={free_port()}", *script]


def doctor(*job: str | Path, after: float = 2.0, options: tuple = (), **variables: str) -> Done:
    return python("-m", "rank_tools.doctor", f"--after={after}", *options, "--", *job, **variables)


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_case(name: str):
    """Hangs and deaths are told, and of a job that is well nobody is named; no process is left."""
    mark = f"RANK_DOCTOR_TEST={name}-{os.getpid()}"
    outcome = run_case(name, **dict([mark.split("=")]))
    assert outcome.complaints == [], outcome.said
    wait_until(lambda: not processes_with(mark), "no process is left")


@pytest.mark.slow
@LINUX
def test_a_script_that_spawns_its_ranks_and_loaders_is_told():
    mark = f"RANK_DOCTOR_TEST=spawns-{os.getpid()}"
    address = f"tcp://{HERE}:{free_port()}"
    job = (sys.executable, HANGS / "their_classifier.py", "--dist-url", address)
    done = doctor(*job, after=4.0, options=("--end",), **dict([mark.split("=")]))
    assert done.returncode == HUNG, done.stdout
    for expected in ("broadcast on rank 0 and barrier on rank 1", "in validate", r"dist\.barrier"):
        assert re.search(expected, done.stdout), done.stdout
    assert not processes_with(mark)


@pytest.mark.slow
@LINUX
def test_what_is_not_proved_goes_on_after_the_verdict(tmp_path: Path):
    """With --end, too: rank 1 sleeps between two looks at a file, so it may come, and it does."""
    come = tmp_path / "come"
    told = tmp_path / "told.txt"
    mark = f"RANK_DOCTOR_TEST=late-{os.getpid()}"
    job = forked(HANGS / "hangs.py", "late", come)
    arguments = [sys.executable, "-m", "rank_tools.doctor", "--after=2", "--end", "--", *job]
    variables = environment(**dict([mark.split("=")]))
    with (
        told.open("w", encoding="utf-8") as file,
        subprocess.Popen(arguments, cwd=ROOT, env=variables, stdout=file, stderr=file) as process,
    ):
        try:
            wait_until(
                lambda: "Rank 1 is missing in all_reduce" in told.read_text(encoding="utf-8"), "it tells"
            )
            come.touch()  # only now rank 1 comes
            assert process.wait(HANG_S) == 0
        finally:
            process.terminate()  # it ends the job, if the test has failed
    printed = told.read_text(encoding="utf-8").partition("Rank 1 is missing in all_reduce")[2]
    assert "rank 0 has got 2.0" in printed
    assert "rank 1 has got 2.0" in printed
    wait_until(lambda: not processes_with(mark), "no process is left")


@pytest.mark.slow
@LINUX
def test_with_end_a_proved_hang_is_ended():
    mark = f"RANK_DOCTOR_TEST=end-{os.getpid()}"
    done = doctor(*forked(HANGS / "hangs.py", "kinds"), options=("--end",), **dict([mark.split("=")]))
    assert done.returncode == HUNG, done.stdout
    assert "all_reduce on rank 0 and broadcast on rank 1" in done.stdout
    assert done.stdout.endswith("rank-doctor: the job was ended: no rank is left that could still arrive\n")
    assert not processes_with(mark)


@pytest.mark.slow
@LINUX
def test_a_job_that_ends_is_left_alone(tmp_path: Path):
    script = tmp_path / "ends.py"
    script.write_text(
        "import os, sys\nprint('sitecustomize' in sys.modules, [p for p in sys.path if 'doctor' in p])\n"
        "assert os.environ.get('RANK') is None\nsys.exit(7)\n",
        encoding="utf-8",
    )
    done = doctor(sys.executable, script)
    assert done.returncode == 7
    assert done.stdout.splitlines()[0] == "True []"  # the folder of the doctor is on no path of the script


@pytest.mark.slow
def test_the_rank_that_failed_first_is_named(tmp_path: Path):
    script = tmp_path / "fails.py"
    script.write_text("def load():\n    raise ValueError('no such file')\n\n\nload()\n", encoding="utf-8")
    done = doctor(sys.executable, script, RANK="3")
    assert done.returncode == 1
    assert "Rank 3 was the first: ValueError: no such file, at fails.py:2, in load" in done.stdout


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_doctor_that_is_ended_takes_the_job_along(number: int, tmp_path: Path):
    script = tmp_path / "sleeps.py"
    script.write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'here')!r}).touch()\ntime.sleep(600)\n",
        encoding="utf-8",
    )
    mark = f"RANK_DOCTOR_TEST=end-{number}-{os.getpid()}"
    arguments = [sys.executable, "-m", "rank_tools.doctor", "--", sys.executable, str(script)]
    variables = environment(**dict([mark.split("=")]))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(arguments, cwd=ROOT, env=variables, **quiet) as process:
        wait_until((tmp_path / "here").exists, "the script runs")
        process.send_signal(number)
    wait_until(lambda: not processes_with(mark), "no process is left")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "give either a command after -- or --pid"),
        (["--pid=1", "--", "true"], "give either a command after -- or --pid"),
        (["--after=0", "--", "true"], "--after must be a number of seconds above 0, not 0.0"),
        (["--after=soon", "--", "true"], "invalid float value: 'soon'"),
        (["--pid=me"], "invalid int value: 'me'"),
        (["--unknown", "--", "true"], "--unknown"),
        (
            ["torchrun", "--standalone", "a.py"],
            "put -- before the command: rank-doctor -- torchrun --standalone",
        ),
    ],
)
def test_a_wrong_option_is_told_in_one_line(
    arguments: list[str], expected: str, capfd: pytest.CaptureFixture
):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == BAD_INPUT
    assert expected in capfd.readouterr().err.splitlines()[-1]


@pytest.fixture
def own_handlers() -> Iterator[None]:
    """The doctor handles signals for as long as it lives; this process goes on."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--", "/no/such/command"], "'/no/such/command' cannot be started: No such file or directory"),
        (["--pid=999999999"], "there is no process 999999999"),
        (["--pid=OWN"], "process OWN"),  # the worker of pytest that runs this
    ],
)
def test_what_cannot_be_looked_into_is_told_in_one_line(
    arguments: list[str], expected: str, capfd: pytest.CaptureFixture, own_handlers: None
):
    own = str(os.getpid())
    assert main([argument.replace("OWN", own) for argument in arguments]) == BAD_INPUT
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("rank-doctor: ")
    assert expected.replace("OWN", own) in line


def call(number: int, kind: str = "all_reduce", shape: str = "Float[4]", done: bool = False, **more) -> Call:
    group = more.get("group", "0")
    name = "default_pg" if group == "0" else "undefined"
    place = Place("train.py", 10 + number, "step", "")
    return Call(10 * int(group) + number, group, name, number, False, kind, shape, done, place)


def rank(number: int, *calls: Call, **more) -> Rank:
    place = Place("train.py", 50, "main", "work()")
    return Rank(number, 1000 + number, 3, more.pop("state", "alive"), place, calls=list(calls), **more)


VERDICTS = {
    "one has not made a call that is over on the others": (
        [
            rank(0, call(1, done=True), call(2, done=True)),
            rank(1, call(1, done=True)),
            rank(2, call(1, done=True)),
        ],
        "outside",
        "Ranks 1 and 2 have not made all_reduce of Float[4], call 2 of the default group. "
        "It has timed out on rank 0, or needs no other rank there: train.py:12, in step",
    ),
    "one of three is missing": (
        [rank(0, call(1)), rank(1), rank(2, call(1))],
        "elsewhere",
        "Ranks 0 and 2 wait there: train.py:11, in step",
    ),
    "two of three are missing": (
        [rank(0, call(1)), rank(1), rank(2)],
        "elsewhere",
        "Ranks 1 and 2 are missing in all_reduce of Float[4], call 1 of the default group.",
    ),
    "one never came": ([rank(0, call(1)), rank(1, call(1))], "not seen", "Rank 2 has never come: not seen"),
    "one is on another machine": (
        [rank(0, call(1), on_this_machine=[0, 1]), rank(1, call(1), on_this_machine=[0, 1])],
        "not seen",
        "Ranks 0 and 1 wait in all_reduce of Float[4], call 1 of the default group.\n"
        "  Rank 0 is there: train.py:11, in step\n"
        "  Rank 2 is on other machines and not seen from here.",
    ),
    "one computes": (
        [rank(0, call(1)), rank(1, works="computes"), rank(2, call(1))],
        "computes",
        "Rank 1 computes, so it may come: train.py:50, in main: work()",
    ),
    "one is dead": ([rank(0, call(1)), rank(1, state="gone"), rank(2, call(1))], "died", "Rank 1 is dead"),
    "one has ended": (
        [rank(0, call(1)), rank(1, state="ended"), rank(2, call(1))],
        "ended",
        "Rank 1 has ended",
    ),
    "another kind, later calls too": (
        [rank(0, call(1, done=True), call(2)), rank(1, call(1, "broadcast", done=True)), rank(2, call(1))],
        "kinds",
        "number 1 of the default group is all_reduce on ranks 0 and 2 and broadcast on rank 1.",
    ),
    "another type": (
        [rank(0, call(1)), rank(1, call(1, shape="Int[4]")), rank(2, call(1))],
        "shapes",
        "has Float[4] on ranks 0 and 2 and Int[4] on rank 1.",
    ),
    "a group of two": (
        [rank(0, call(1, group="1"), groups={"1": [0, 2]}), rank(1), rank(2)],
        "elsewhere",
        "Rank 2 is missing in all_reduce of Float[4], call 1 of group 1 (ranks 0 and 2).",
    ),
    "in another group": (
        [rank(0, call(1)), rank(1, call(1)), rank(2, call(1, "broadcast", group="1"), groups={"1": [2]})],
        "waits",
        "Rank 2 waits elsewhere, in broadcast of group 1 (rank 2): train.py:11",
    ),
}


VERDICTS |= {
    "one is stopped in the call that all have made": (
        [rank(0, call(1)), rank(1, call(1), state="stopped"), rank(2, call(1))],
        "stopped",
        "Rank 1 is stopped by a signal; kill -CONT 1001 lets it go on.",
    ),
    "torch gives two groups one name": (
        [
            rank(0, call(1, group="1"), groups={"1": [0, 1]}),
            rank(1, groups={"1": [0, 1]}),
            rank(2, call(1, "broadcast", group="1"), groups={"1": [1, 2]}),
        ],
        "elsewhere",
        "Rank 2 waits in broadcast of Float[4], call 1 of group 1 (ranks 1 and 2): train.py:11",
    ),
    "one handles an exception": (
        [rank(0, call(1)), rank(1, handles="ValueError: no, raised at a.py:1"), rank(2, call(1))],
        "elsewhere",
        "Rank 1 handles an exception: ValueError: no, raised at a.py:1",
    ),
}


@pytest.mark.parametrize(("ranks", "kind", "expected"), VERDICTS.values(), ids=VERDICTS)
def test_a_verdict(ranks: list[Rank], kind: str, expected: str):
    result = verdict({process.rank: process for process in ranks}, 3)
    assert result.kind == kind
    assert expected in str(result)
    assert result.may_move == (kind == "computes")


def at(number: int, line: int, done: bool = True) -> Call:
    return replace(call(number, done=done), place=Place("train.py", line, "step", ""))


DETOURS = {
    "two calls are swapped": (
        [at(1, 5), at(2, 6)],
        [at(1, 6), at(2, 5)],
        "the other way round: they are swapped",
    ),
    "one has left a call out": (
        [at(1, 5), at(2, 6), at(3, 5), at(4, 6, done=False)],
        [at(1, 5), at(2, 5), at(3, 6)],
        "call 2 of the default group comes from two lines, train.py:6, in step on rank 0 and train.py:5, in "
        "step on rank 1: rank 1 has left out the first of them",
    ),
    "each has a branch of its own": ([at(1, 5), at(2, 5)], [at(1, 6), at(2, 6)], ""),
    "their lines are the same": ([at(1, 5), at(2, 6)], [at(1, 5), at(2, 6)], ""),
}


@pytest.mark.parametrize(("mine", "yours", "hint"), DETOURS.values(), ids=DETOURS)
def test_the_same_call_from_two_lines_is_a_hint(mine: list[Call], yours: list[Call], hint: str):
    told = str(verdict({0: rank(0, *mine), 1: rank(1, *yours)}, 2))
    assert (hint in told) if hint else ("hint" not in told)


def test_a_thread_that_has_died_is_told_first():
    lost = rank(1, dead_threads=["has lost its thread prefetch: ValueError: no, at a.py:1"])
    told = verdict({0: rank(0, call(1)), 1: lost}, 2)
    assert told.lines[0] == "Rank 1 has lost its thread prefetch: ValueError: no, at a.py:1"
    assert told.kind == "elsewhere"


def random_rank(number: int, ranks: int, draw: random.Random) -> Rank:
    """A state that a look may find."""
    calls = [
        call(at, draw.choice(["all_reduce", "barrier"]), done=draw.random() < 0.5, group=draw.choice("01"))
        for at in range(draw.randrange(3))
    ]
    peers = [None, *range(ranks)]
    messages = [(draw.choice(["send", "recv"]), draw.choice(peers))] if draw.random() < 0.4 else []
    waits_in = draw.choice(["", "", "init_process_group", "new_group", "wait"])
    state = draw.choice(["alive"] * 4 + ["gone", "ended", "stopped", "silent"])
    return rank(number, *calls, state=state, messages=messages, waits_in=waits_in)


def test_there_is_a_verdict_on_every_state():
    draw = random.Random(1)
    for _ in range(4000):
        number = draw.choice([2, 3, 4])
        seen = draw.sample(range(number), draw.randint(1, number))
        assert verdict({one: random_rank(one, number, draw) for one in seen}, number).lines


PROOFS = {
    "each waits in another call": ([rank(0, call(1)), rank(1, call(1, "barrier")), rank(2, call(1))], True),
    "a dead rank is awaited": ([rank(0, call(1)), rank(1, state="gone"), rank(2, call(1))], True),
    "one is elsewhere": ([rank(0, call(1)), rank(1), rank(2, call(1))], False),
    "one is not seen": ([rank(0, call(1)), rank(1, call(1, "barrier"))], False),
    "one of them works": (
        [rank(0, call(1)), rank(1, call(1, "barrier"), works="computes"), rank(2, call(1))],
        False,
    ),
    "all are in one call": ([rank(0, call(1)), rank(1, call(1)), rank(2, call(1))], False),
    "a stopped rank is awaited": ([rank(0, call(1)), rank(1, state="stopped"), rank(2, call(1))], False),
}


@pytest.mark.parametrize(("ranks", "is_proof"), PROOFS.values(), ids=PROOFS)
def test_what_is_proof_that_nobody_can_come(ranks: list[Rank], is_proof: bool):
    assert verdict({process.rank: process for process in ranks}, 3).is_proof == is_proof


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("Connection closed by peer", "Rank 1 was the first"),
        ("Timed out waiting", "Rank 0 ran out of patience"),
    ],
)
def test_who_was_the_first_where_ends_were_seen_in_the_other_order(error: str, expected: str):
    """torchrun asked before the doctor how rank 1 had ended, and the doctor saw both ends in one look."""
    echo = rank(0, call(1), state="failed", error=f"RuntimeError: {error}", died=0)
    gone = rank(1, state="gone", died=1)
    assert expected in lines_of({0: echo, 1: gone}, [], 2, 1)[0]


def test_whom_a_line_of_the_source_waits_for(tmp_path: Path):
    script = tmp_path / "ring.py"
    script.write_text(
        "def pass_on(x, rank, ranks):\n"
        "    if rank % 2 == 0:\n"
        "        work = dist.isend(x, (rank + 1) % ranks)\n"
        "    else:\n"
        "        work = dist.irecv(x, src=rank - 1)\n"
        "    work.wait()\n"
        "    dist.isend(x, 7)\n",
        encoding="utf-8",
    )
    messages = [
        messages_in(str(script), 6, "pass_on", {"rank": number, "ranks": 3}, number, 3) for number in range(3)
    ]
    assert messages == [[("isend", 1)], [("irecv", 0)], [("isend", 0)]]


def answer(pid: int, parent: int, number: int | None, **more) -> Answer:
    fields = {
        "time": 1.0,
        "variables": {"RANK": "0", "WORLD_SIZE": "1"},
        "rank": number,
        "ancestors": [parent],
    }
    return Answer(pid, parent, **{**fields, **more})


def test_a_worker_of_a_rank_is_not_the_rank():
    answers = [answer(20, 10, 0), answer(10, 1, 0), answer(30, 10, None)]
    assert ranks_of(answers)[0].pid == 10


def test_a_launcher_that_has_the_rank_in_its_environment_is_not_the_rank():
    assert ranks_of([answer(10, 1, None), answer(20, 10, 0)])[0].pid == 20


def test_a_rank_that_was_started_again_counts_by_its_newest_process():
    gone = answer(10, 1, 0, alive=False)
    assert ranks_of([gone, answer(20, 1, 0, time=2.0)])[0].pid == 20


C10D = "x/site-packages/torch/distributed/distributed_c10d.py"
STAND_IN = """#!/bin/sh
if grep -qz '^RANK=0$' /proc/$4/environ; then
    echo '{}'
else
    echo '{}'
fi
"""


def test_where_a_silent_rank_stands_is_neither_progress_nor_a_wait():
    """A signal tells where it stands, its last answer where it stood."""
    forming = [["a.py", 1, "<module>", "", True], [C10D, 2, "init_process_group", "", False]]
    computing = [["a.py", 5, "<module>", "", True]]

    def rank_at(stack: list, answered: bool) -> Rank:
        return ranks_of([answer(10, 1, 0, answered=answered, stacks={"MainThread": stack})])[0]

    assert rank_at(forming, answered=True).progress() != rank_at(computing, answered=True).progress()
    assert rank_at(forming, answered=False).progress() == rank_at(computing, answered=False).progress()
    assert rank_at(forming, answered=True).waits
    assert not rank_at(forming, answered=False).waits


def test_an_old_stack_makes_no_circle():
    """Rank 1 was last seen in init_process_group, which it has left; rank 0 waits for it alone."""
    forming = {"MainThread": [["a.py", 1, "<module>", "", True], [C10D, 2, "init_process_group", "", False]]}
    waits = {"id": 1, "group": "0", "group_name": "default_pg", "number": 1, "is_p2p": False, "done": False}
    waits |= {"kind": "gloo:all_reduce", "inputs": [[4]], "outputs": [[4]], "place": ["a.py", 9, "step"]}
    waits |= {"input_types": ["Float"], "output_types": ["Float"]}
    for state in ({"stopped": True}, {"answered": False}):
        old = answer(11, 1, 1, stacks=forming, stacks_age=7.0, world_size=2, **state)
        ranks = ranks_of([answer(10, 1, 0, calls=[waits], world_size=2), old])
        result = verdict(ranks, 2)
        assert result.kind in ("stopped", "silent")
        assert "Rank 1 is missing in all_reduce" in str(result)
        assert "init_process_group" not in str(result)


def test_dtypes_are_named_after_a_death():
    aborted = rank(1, state="gone", code=-6, died=0)
    error = "RuntimeError: Connection closed by peer"
    echo = rank(0, call(2, shape="BFloat16[4]"), state="failed", error=error, died=1)
    first, second = lines_of({0: echo, 1: aborted}, [], 2, 1)
    assert "as gloo does when the shapes or the dtypes of a call differ" in first
    assert "all_reduce of BFloat16[4], call 2" in second


@pytest.mark.parametrize(
    ("age", "expected"), [(0.0, "Last seen: train.py:50"), (1.23, "Last seen 1.2 s before: train.py:50")]
)
def test_how_old_what_was_last_seen_is(age: float, expected: str):
    killed = rank(1, state="gone", code=-9, died=0, place_age=age)
    assert expected in lines_of({0: rank(0), 1: killed}, [], 2, 1)[0]
    killed.place = None
    assert "Last seen" not in lines_of({0: rank(0), 1: killed}, [], 2, 1)[0]


@pytest.fixture
def two_sleepers() -> Iterator[int]:
    """The parent of two processes that have the variables of ranks 0 and 1, and sleep."""
    script = "RANK=0 WORLD_SIZE=2 sleep 600 & RANK=1 WORLD_SIZE=2 sleep 600 & wait"
    with subprocess.Popen(["sh", "-c", script], env=environment()) as process:
        children: list[int] = []

        def are_there() -> bool:
            children[:] = descendants(process.pid)
            return {variables_of(child).get("RANK") for child in children} == {"0", "1"}

        try:
            wait_until(are_there, "both sleep")
            yield process.pid
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
            process.kill()


@LINUX
@pytest.mark.slow
def test_a_job_that_runs_already_is_told_by_its_stacks(
    two_sleepers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
    own_handlers: None,
):
    """From a stand-in for py-spy, which sees rank 0 in an all_reduce and rank 1 elsewhere."""
    script = tmp_path / "train.py"
    script.write_text("dist.all_reduce(x)\nload(file)\n", encoding="utf-8")
    inner = {"name": "all_reduce", "filename": C10D, "line": 7}
    frames = [
        [inner, {"name": "step", "filename": str(script), "line": 1}],
        [{"name": "read", "filename": str(script), "line": 2}],
    ]
    seen = [json.dumps([{"thread_name": "MainThread", "frames": stack}]) for stack in frames]
    stand_in = tmp_path / "py-spy"
    stand_in.write_text(STAND_IN.format(*seen), encoding="utf-8")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert main([f"--pid={two_sleepers}", "--after=0.5"]) == 0
    assert capfd.readouterr().err.splitlines() == [
        "rank-doctor: as it is now",
        "  Rank 0 waits in all_reduce.",
        "  Rank 0 is there: train.py:1, in step: dist.all_reduce(x)",
        "  Rank 1 is elsewhere: train.py:2, in read: load(file)",
    ]


@LINUX
@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not installed")
def test_a_process_is_told_by_the_real_py_spy(
    tmp_path: Path, capfd: pytest.CaptureFixture, own_handlers: None
):
    here = tmp_path / "here"
    script = tmp_path / "train.py"
    script.write_text(
        f"import pathlib, time\n\n\ndef read():\n    pathlib.Path({str(here)!r}).touch()\n"
        "    while True:\n        time.sleep(600)\n\n\nread()\n",
        encoding="utf-8",
    )
    variables = environment(RANK="0", WORLD_SIZE="1")
    with subprocess.Popen([sys.executable, script], env=variables) as process:
        try:
            wait_until(here.exists, "the script runs")
            code = main([f"--pid={process.pid}", "--after=0.5"])
        finally:
            process.kill()
    stderr = capfd.readouterr().err
    if code == BAD_INPUT and "ermission" in stderr:
        pytest.skip("py-spy may not look into other processes here")
    assert code == 0, stderr
    assert "No stack is in a function of torch.distributed" in stderr
    assert re.search(r"Rank 0: train\.py:\d+, in read: ", stderr)
    assert "py-spy sees stacks, not calls" in stderr


PY_SPIES = {
    "may not": (
        "echo 'Permission Denied: Try running again as root' >&2; exit 1",
        "py-spy: Permission Denied",
    ),
    "talks nonsense": ("echo nonsense", "py-spy: Expecting value"),
    "hangs": ("exec sleep 60", "py-spy: no answer within"),
}


@LINUX
@pytest.mark.parametrize("what", PY_SPIES)
def test_a_py_spy_that_fails_is_told_in_one_line(
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
    own_handlers: None,
):
    script, expected = PY_SPIES[what]
    stand_in = tmp_path / "py-spy"
    stand_in.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(outside, "PY_SPY_S", 0.5)
    with subprocess.Popen(["sleep", "600"], env=environment(RANK="0", WORLD_SIZE="1")) as process:
        try:
            wait_until(lambda: variables_of(process.pid).get("RANK") == "0", "it sleeps")
            assert main([f"--pid={process.pid}", "--after=0.1"]) == BAD_INPUT
        finally:
            process.kill()
    (line,) = capfd.readouterr().err.splitlines()
    assert expected in line


@LINUX
def test_a_process_of_another_user_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, own_handlers: None
):
    monkeypatch.setattr(outside.os, "access", lambda path, mode: not str(path).endswith("environ"))
    assert main([f"--pid={os.getpid()}"]) == BAD_INPUT
    (line,) = capfd.readouterr().err.splitlines()
    assert "run rank-doctor as the user that started it" in line


@pytest.mark.parametrize("content", [None, "", "junk", "1 (a) S"])
def test_what_proc_does_not_tell_is_no_error(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A process that ends between two reads, a /proc that hides others, files that we may not read."""
    for name in ("stat", "io", "status", "environ", "cmdline"):
        path = tmp_path / "7" / name
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if content is None else path.write_text(content, encoding="utf-8")
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "stat").touch()
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert processes.parents() == {}
    assert not processes.is_stopped(7) and not processes.catches(7, signal.SIGUSR1)
    assert (processes.cpu_s_of(7), processes.moved_of(7)) == (0, 0)
    assert processes.exit_code_of(7) is None and processes.variables_of(7) == {}
    assert processes.command_of(7) == (content or "")


def test_the_stack_by_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What ``py-spy dump --json`` prints, from a stand-in for it."""
    frame = {"name": "work", "filename": str(tmp_path / "train.py"), "line": 1}
    inner = {"name": "all_reduce", "filename": "x/site-packages/torch/a.py", "line": 7}
    told = [{"thread_name": "MainThread", "frames": [inner, frame]}]
    (tmp_path / "train.py").write_text("dist.all_reduce(x)\n", encoding="utf-8")
    stand_in = tmp_path / "py-spy"
    stand_in.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n", encoding="utf-8")
    stand_in.chmod(0o755)
    stacks = outside.stacks_by_py_spy(str(stand_in), 1)
    assert stacks["MainThread"][0] == [frame["filename"], 1, "work", "dist.all_reduce(x)", True]
    assert stacks["MainThread"][1][4] is False


def fr_of_2_15(includeCollectives: bool, includeStackTraces: bool, backend: str = "gloo") -> bytes:
    return pickle.dumps({"entries": [1] if backend == "nccl2" else [], "pg_status": {}})


def fr_of_2_11(includeCollectives: bool, includeStackTraces: bool) -> bytes:
    return pickle.dumps({"entries": [], "pg_status": {}})


def nccl_of_2_11(includeCollectives: bool, includeStackTraces: bool) -> bytes:
    return pickle.dumps({"entries": [2], "pg_status": {}})


@pytest.mark.parametrize(
    ("recorders", "entries"),
    [
        ({"_dump_fr_trace": fr_of_2_15}, [1]),
        ({"_dump_fr_trace": fr_of_2_11, "_dump_nccl_trace": nccl_of_2_11}, [2]),
    ],
)
def test_the_recorder_of_nccl_is_read_in_old_and_new_torch(recorders: dict, entries: list):
    torch = SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=SimpleNamespace(**recorders)))
    assert newest_trace(torch, CALLS)["entries"] == entries
