"""Lesson 00: its words exist, its difference runs, and causes are told from echoes."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from rank_tools.doctor.ending import lines_of
from rank_tools.doctor.ranks import Call, Place, Rank
from shared.runtime.children import is_running
from shared.tools import diffs
from tests.helpers import LESSON_PATHS, ROOT
from tests.launch import warm_torchrun
from tests.sleeping_lab import wait_until

LESSONS = {path.name[:2]: path for path in LESSON_PATHS}
ROW = re.compile(r"^\| (.+) \| .+ \| (.+) \| \[(\d\d)\]\(\w+\.ipynb\) \|$", re.MULTILINE)
SHORT = re.compile(r" \(\w+\)")  # what tables write, such as AR
NAME = re.compile(r"`(torch\.[\w.]+)`")


def words() -> list[tuple[str, str, str]]:
    """(our words, what stands under *in PyTorch*, number of a lesson) of each row of the glossary."""
    text = (ROOT / "notebooks" / "glossary.md").read_text(encoding="utf-8")
    return ROW.findall(text)


def exists(name: str) -> bool:
    """Whether torch has something under this dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        imported = importlib.import_module(module)
    except ImportError:
        return False
    return hasattr(imported, attribute) or importlib.util.find_spec(name) is not None


def test_the_table_of_words_names_what_torch_has():
    names = [name for _, in_torch, _ in words() for name in NAME.findall(in_torch)]
    assert len(names) >= 15
    assert [name for name in names if not exists(name)] == []


def test_a_word_that_torch_does_not_have_is_noticed():
    assert not exists("torch.distributed.all_reduced")
    assert not exists("torch.distribution.all_reduce")


def test_the_lessons_use_the_words_of_the_table():
    missing = []
    for here, _, lesson in words():
        sources = [cell.source for cell in nbformat.read(LESSONS[lesson], 4).cells]
        text = "\n".join(sources).lower()
        for word in re.split(r", | and ", SHORT.sub("", here).replace("`", "").lower()):
            if word.removesuffix("ed") not in text:
                missing.append(f"lesson {lesson} does not say {word}")
    assert missing == []


@pytest.mark.slow
@pytest.mark.parametrize(("both", "named"), [(False, 1), (True, 0)])
def test_of_several_failures_in_one_poll_the_lowest_rank_is_named(both: bool, named: int, tmp_path: Path):
    """Rank 1 fails, rank 0 later. The launcher looks after the first failure, or when both have failed."""
    may_fail = tmp_path / "may_fail"
    scripts = {0: ("-c", f"while [ ! -e '{may_fail}' ]; do sleep 0.1; done; exit 1"), 1: ("-c", "exit 1")}
    processes = start_processes(
        name="test", entrypoint="/bin/sh", args=scripts, envs={0: {}, 1: {}}, logs_specs=DefaultLogsSpecs()
    )
    try:
        if both:
            may_fail.touch()
            pids = list(processes.pids().values())
            wait_until(lambda: not any(is_running(pid) for pid in pids), "both have failed")
        result = processes.wait(period=0.01)
        rank, _ = ChildFailedError("test", result.failures).get_first_failure()
        assert rank == named
    finally:
        processes.close()


def cell_with(text: str) -> str:
    """The source of the one cell of lesson 00 in which ``text`` stands."""
    (source,) = [cell.source for cell in nbformat.read(LESSONS["00"], 4).cells if text in cell.source]
    return source


@pytest.mark.slow
def test_the_difference_turns_one_process_into_many(tmp_path: Path):
    (diff,) = diffs.FENCED.findall(diffs.fenced(cell_with("+dist.all_reduce(total)")))
    lines = diff.splitlines()
    before = "\n".join(line[1:] for line in lines if not line.startswith("+"))
    assert before == cell_with("total = numbers.sum()\nprint(")
    script = tmp_path / "script.py"
    script.write_text("\n".join(line[1:] for line in lines if not line.startswith("-")), encoding="utf-8")
    done = warm_torchrun(script, ranks=3)
    assert (done.returncode, done.stdout) == (0, "the sum is 1615503\n")
    assert sum(line.startswith("+") for line in lines) == 10


# What torch 2.15 prints where another rank has gone or is late, in the words of its own packages.
ECHOES = (
    "RuntimeError: [pair.cc:561] Connection closed by peer [127.0.0.1]:13969",
    "RuntimeError: [pair.cc:1] Timed out waiting 5000ms for recv operation to complete",
    "RuntimeError: Gloo connectFullMesh failed with [pair.h:311] Connect timeout [none]",
    "torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /default_pg/0//cpu//0/0",
    "torch.distributed.DistStoreError: Socket Timeout",
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the "
    "remote server shutdown or crash?",
    "torch.distributed.DistNetworkError: failed to send: Broken pipe",
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:1, remote process exited or there was "
    "a network error, NCCL version 2.29.7",
    "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.",
    "RuntimeError: [PG 0 Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
)
CAUSES = (
    "RuntimeError: this rank was told to fail",
    "ValueError: bad",
    "RuntimeError: DataLoader timed out after 30 seconds",
    "RuntimeError: DataLoader worker (pid 7) exited unexpectedly: Socket closed",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error",
    "torch.distributed.DistBackendError: NCCL error: invalid usage: Duplicate GPU detected",
    "RuntimeError: ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
    "RuntimeError: [7] is setting up NCCL communicator: Failed to bind to socket",
)


def rank_with(error: str) -> Rank:
    return Rank(rank=0, pid=1, world_size=2, state="failed", error=error)


@pytest.mark.parametrize("error", ECHOES)
def test_the_doctor_knows_the_echoes_of_the_table(error: str):
    assert rank_with(error).is_echo
    table = re.findall(r"`([^`]+)`", cell_with("| In the error |").partition("| In the error |")[2])
    assert [text for text in table if text in error], f"the lesson's table does not have {error}"


@pytest.mark.parametrize("error", (*ECHOES, *CAUSES, "torch.OutOfMemoryError: CUDA out of memory"))
def test_the_lesson_finds_the_last_line_of_a_traceback_of_any_rank(error: str, tmp_path: Path):
    (pattern,) = re.findall(r'grep -E "(.+)" "{LOG}"', cell_with("lab_00_echo.py > "))
    lines = ["[rank12]:     raise RuntimeError(message)", f"[rank12]: {error}", "[rank3]: Traceback (most"]
    log = tmp_path / "log"
    log.write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run(["grep", "-E", pattern, log], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [lines[1]]


@pytest.mark.parametrize("error", CAUSES)
def test_a_cause_is_no_echo(error: str):
    assert not rank_with(error).is_echo


CLOSED, TIMED_OUT = ECHOES[:2]


@pytest.mark.parametrize(
    ("error", "end", "told"),
    [
        (CLOSED, {"state": "gone", "code": -9}, "Rank 1 was the first: its process was ended by SIGKILL"),
        (CLOSED, {"state": "ended", "code": 0}, "Rank 1 was the first: it has come to the end"),
        (TIMED_OUT, {"state": "gone", "code": -15}, "Rank 1 is missing in all_reduce"),
    ],
)
def test_if_every_error_is_an_echo_the_doctor_suspects_the_rank_that_printed_none(
    error: str, end: dict, told: str
):
    """Rank 0 waits in call 2. torchrun ends a rank that is stuck, so -15 after a time-out clears nobody."""
    here = Place("train.py", 9, "main", "dist.all_reduce(x)")
    first, second = (
        Call(number, "0", "default_pg", number, False, "all_reduce", "Float[4]", number == 1, here)
        for number in (1, 2)
    )
    waits = Rank(0, 1, 2, "failed", here, calls=[first, second], error=error, died=0)
    silent = Rank(1, 2, 2, place=Place("train.py", 8, "main", "load()"), calls=[first], died=1, **end)
    said = "\n".join(lines_of({0: waits, 1: silent}, [], 2, 1))
    assert told in said
    assert ("Rank 1 is elsewhere: train.py:8" in said) == (end["code"] == -15)


@pytest.mark.slow
@pytest.mark.parametrize("tee", [(), ("--tee=3",)])
def test_the_doctor_names_the_cause_and_the_echoes(tee: tuple[str, ...], tmp_path: Path):
    launch = ["torchrun", "--standalone", "--nproc-per-node=3", f"--log-dir={tmp_path}", *tee]
    lab = str(ROOT / "labs" / "lab_00_echo.py")
    doctor = [sys.executable, "-m", "rank_tools.doctor", "--", *launch, lab]
    done = subprocess.run(doctor, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    said = done.stdout + done.stderr
    assert "Rank 1 was the first: RuntimeError: this rank was told to fail" in said
    assert "Rank 0 was the first" not in said
    assert "Rank 2 was the first" not in said
