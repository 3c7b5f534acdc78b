"""The replay shows what each rank did: an order of causes, values, hangs, deaths, bad input."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from helpers import HANGS, Done, free_port, processes_with, python, wait_until
from rank_tools.replay.__main__ import main
from rank_tools.replay.events import read, say_who_waits, slots_of, spans
from rank_tools.replay.page import page
from rank_tools.replay.still import still

BAD_INPUT = 2
ENDED = 3
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="forks ranks, and reads /proc")
START = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n"
END = "dist.barrier()\ndist.destroy_process_group()\n"


def event(kind: str, seconds: float, *data: object, thread: int = 0) -> list:
    return [kind, seconds, thread, *data]


def call(number: int, operation: str, seconds: float, peer: int | None = None) -> list:
    return event("call", seconds, number, operation, "0", [0, 1], peer, 0, 8, ["(2,) float32"], ["[1, 2]"])


def written(folder: Path, *ranks: list[list]) -> Path:
    for rank, events in enumerate(ranks):
        lines = [["hello", 0.0, 0, rank], ["rank", 0.0, 0, rank, len(ranks)], *events]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"events-{100 + rank}.jsonl").write_text(text, encoding="utf-8")
    return folder


def data_in(text: str) -> dict:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def test_a_receive_comes_after_its_send_whatever_the_clocks_say(tmp_path: Path):
    sends = [call(1, "send", 900.0, peer=1), event("wait", 901.0, 1), event("end", 902.0, 1, [])]
    receives = [call(1, "recv_", 1.0, peer=0), event("wait", 2.0, 1), event("end", 3.0, 1, ["[1, 2]"])]
    replay = read(written(tmp_path, sends, receives))
    send, receive = replay.calls
    assert receive.ended.row > send.begun.row
    assert [[call.rank for call in calls] for calls in replay.together] == [[0, 1]]


def test_a_collective_ends_after_the_last_call_of_it(tmp_path: Path):
    late = [call(number, "broadcast_", number, peer=0) for number in (1, 2, 3)]
    first = [call(4, "allreduce_", 4.0), event("wait", 5.0, 4), event("end", 6.0, 4, ["[3, 3]"])]
    early = [call(1, "broadcast_", 50.0, peer=0), call(2, "broadcast_", 51.0, peer=0)]
    early += [call(3, "broadcast_", 52.0, peer=0), *first]
    replay = read(written(tmp_path, early, [*late, *first]))
    ends = [one for one in replay.calls if one.ended is not None]
    begun = [one.begun.row for one in replay.calls if one.name == "all_reduce"]
    assert len(ends) == 2
    assert all(one.ended.row > max(begun) for one in ends)


def test_a_receive_from_any_rank_gets_its_sender(tmp_path: Path):
    receives = [call(1, "recv_any_source_", 1.0), event("end", 3.0, 1, ["[1, 2]"], 1)]
    receives += [call(2, "recv_any_source_", 4.0), event("wait", 5.0, 2)]
    replay = read(written(tmp_path, receives, [call(1, "send", 900.0, peer=0), event("end", 902.0, 1, [])]))
    assert [[one.rank for one in calls] for calls in replay.together] == [[0, 1], [0]]
    assert replay.calls[0].ended.row > replay.calls[2].begun.row
    say_who_waits(replay)
    assert "rank 0 waits in recv from any rank, number 2, for its end" in replay.notes


def test_calls_that_were_matched_wrongly_do_not_stop_the_page(tmp_path: Path):
    one = [call(1, "recv_", 1.0, peer=1), event("end", 2.0, 1, []), call(2, "send", 3.0, peer=1)]
    other = [call(1, "recv_", 1.0, peer=0), event("end", 2.0, 1, []), call(2, "send", 3.0, peer=0)]
    assert sum(len(lane.events) for lane in read(written(tmp_path, one, other)).lanes) == 6


def test_a_hang_is_told(tmp_path: Path):
    replay = read(
        written(tmp_path, [call(1, "allreduce_", 1.0), event("wait", 2.0, 1)], [call(1, "barrier", 1)])
    )
    say_who_waits(replay)
    assert "rank 0 waits in all_reduce, collective 1 of its group, but rank 1 calls barrier" in replay.notes
    assert replay.notes[0].startswith("the ranks part at collective 1 of their group: rank 0: all_reduce")


def test_a_line_that_is_cut_is_left_out(tmp_path: Path):
    folder = written(tmp_path, [call(1, "barrier", 1.0)], [call(1, "barrier", 1.0)])
    with (folder / "events-101.jsonl").open("a", encoding="utf-8") as file:
        file.write('["end", 3.0, 0, 1, ["[1')
    assert len(read(folder).calls) == 2


def test_text_of_a_script_cannot_end_the_page(tmp_path: Path):
    replay = read(written(tmp_path, [event("print", 1.0, "</script><b>")], []))
    text = page(replay, "a <b> command", "exit code 0")
    assert text.count("</script>") == 2
    assert data_in(text)["lanes"][0]["events"][0][2] == "</script><b>"
    assert "http" not in text.replace("http://www.w3.org", "")


def replayed(folder: Path, script: str, *options: str, ranks: int = 2, **variables: str) -> tuple[Done, Path]:
    """Ranks as forks, so that torch is imported once."""
    path = folder / "script.py"
    path.write_text(script, encoding="utf-8")
    out = folder / "replay.html"
    job = (sys.executable, HANGS / "fork_ranks.py", f"--port={free_port()}", f"--ranks={ranks}", path)
    done = python("-m", "rank_tools.replay", f"--out={out}", "--force", *options, "--", *job, **variables)
    return done, out


RING = (
    START
    + """
mine = torch.tensor([rank + 1.0])
other = torch.empty(1)
right, left = (rank + 1) % 2, (rank - 1) % 2
messages = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, other, left)]
for work in dist.batch_isend_irecv(messages):
    work.wait()
total = mine + other
dist.all_reduce(total)
print(f"rank {rank} has {total.item()}")
"""
    + END
)


@LINUX
@pytest.mark.slow
def test_two_runs_give_the_same_file_and_it_shows_what_changed(tmp_path: Path):
    done, out = replayed(tmp_path, RING, "--no-seconds", f"--still={tmp_path / 'still.svg'}")
    assert done.returncode == 0, done.stdout
    assert "rank 0 has 6.0" in done.stdout  # the job's own output
    first = re.sub(r"--port=\d+", "", out.read_text(encoding="utf-8"))
    assert "seconds" not in data_in(first)
    data = data_in(first)
    (reduce, _) = [one for one in data["calls"] if one["name"] == "all_reduce"]
    assert (reduce["before"], reduce["after"]) == (["[3]"], ["[6]"])
    names = {name for lane in data["lanes"] for one in lane["events"] if one[1] == "l" for name in one[6]}
    assert {"mine", "other", "total", "rank"} <= names
    values = [one[6].get("other") for one in data["lanes"][0]["events"] if one[1] == "l"]
    assert [value for value in values if value] == [
        "(1,) float32, not yet written", "(1,) float32, in flight", "[2]",
    ]  # fmt: skip
    assert [one[2] for one in data["lanes"][1]["events"] if one[1] == "p"] == ["rank 1 has 6.0"]
    assert "send to 1" in (tmp_path / "still.svg").read_text(encoding="utf-8")
    again = replayed(tmp_path, RING, "--no-seconds")[1].read_text(encoding="utf-8")
    assert re.sub(r"--port=\d+", "", again) == first


DDP = (
    START
    + """
torch.manual_seed(0)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
loss = ddp(torch.ones(3, 2)).sum()
loss.backward()
done = True
"""
    + END
)


@LINUX
@pytest.mark.slow
def test_what_ddp_calls_in_c_is_seen_and_ends_before_the_next_line(tmp_path: Path):
    done, out = replayed(tmp_path, DDP)
    assert done.returncode == 0, done.stdout
    data = data_in(out.read_text(encoding="utf-8"))
    lane = data["lanes"][0]["events"]
    (reduce,) = [n for n, one in enumerate(data["calls"]) if one["name"] == "all_reduce" and one["rank"] == 0]
    kinds = [(one[1], one[2]) for one in lane if one[1] in "ce" and one[2] == reduce]
    assert kinds == [("c", reduce), ("e", reduce)]


SKIPS = (
    START
    + """
for step in range(3):
    if rank == 1 and step == 1:
        while True:
            pass
    dist.all_reduce(torch.ones(2))
"""
    + END
)


@LINUX
@pytest.mark.slow
def test_a_hang_is_ended_and_told(tmp_path: Path):
    mark = f"RANK_REPLAY_TEST=hang-{os.getpid()}"
    variables = dict([mark.split("=")])
    done, out = replayed(tmp_path, SKIPS, "--timeout=25", "--events=500", **variables)
    assert done.returncode == ENDED, done.stdout
    notes = data_in(out.read_text(encoding="utf-8"))["notes"]
    assert "rank 0 waits in all_reduce, collective 2 of its group, for rank 1" in notes
    assert any(note.startswith("rank 1 is in no call of a group; it stands in line") for note in notes)
    parted = "the ranks part at collective 2 of their group: rank 0: all_reduce of (2,) float32, line 9; "
    assert f"{parted}rank 1: no call" in notes
    wait_until(lambda: not processes_with(mark), "no process is left")


@LINUX
@pytest.mark.slow
def test_a_job_in_which_no_rank_gets_on_is_ended(tmp_path: Path):
    waits = SKIPS.replace("while True:\n            pass", "import time\n        time.sleep(600)")
    done, out = replayed(tmp_path, waits, "--stuck=4")
    assert done.returncode == ENDED, done.stdout
    text = out.read_text(encoding="utf-8")
    assert "ended after 4 s in which no rank got on" in text
    assert "rank 0 waits in all_reduce, collective 2 of its group, for rank 1" in data_in(text)["notes"]


DIES = (
    START
    + """
import os, signal
dist.all_reduce(torch.ones(2))
before = 7
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(2))
"""
)


@LINUX
@pytest.mark.slow
def test_a_rank_that_is_killed_is_there_up_to_its_end(tmp_path: Path):
    done, out = replayed(tmp_path, DIES)
    assert done.returncode not in (0, BAD_INPUT, ENDED), done.stdout
    calls = data_in(out.read_text(encoding="utf-8"))["calls"]
    assert [one["rank"] for one in calls] == [0, 0, 1]


@LINUX
@pytest.mark.slow
def test_the_recording_ends_and_the_job_goes_on(tmp_path: Path):
    script = START + "for step in range(1000):\n    x = step\nprint(f'{rank} ends with {x}')\n" + END
    done, out = replayed(tmp_path, script, "--events=100")
    assert done.returncode == 0
    assert "1 ends with 999" in done.stdout
    assert "rank 0: the recording ends after 100 events; the job went on" in done.stdout
    assert sum(len(lane["events"]) for lane in data_in(out.read_text(encoding="utf-8"))["lanes"]) <= 200


@LINUX
@pytest.mark.slow
def test_a_script_that_fails_keeps_its_exit_code_and_its_lines(tmp_path: Path):
    script = "before = 1\nraise SystemExit(5)\n"
    done, out = replayed(tmp_path, script)
    assert done.returncode == 5, done.stdout
    assert data_in(out.read_text(encoding="utf-8"))["lanes"][0]["events"][-1][4] == 2


@LINUX
@pytest.mark.slow
def test_no_rank_no_page(tmp_path: Path):
    out = tmp_path / "replay.html"
    done = python("-m", "rank_tools.replay", f"--out={out}", "--", sys.executable, "-c", "pass")
    assert done.returncode == BAD_INPUT
    assert "no page: no rank ran a line of a script" in done.stdout
    assert not out.exists()


@LINUX
@pytest.mark.slow
def test_what_a_rank_runs_for_another_is_seen(tmp_path: Path):
    script = START + "import torch.distributed.rpc as rpc\ndef asked(x):\n    y = x + 1\n    return y\n"
    script += "rpc.init_rpc(f'worker{rank}', rank=rank, world_size=2)\n"
    script += "if rank == 0:\n    print([rpc.rpc_sync('worker1', asked, args=(i,)) for i in range(2)])\n"
    done, out = replayed(tmp_path, script + "rpc.shutdown()\n" + END)
    assert "[1, 2]" in done.stdout
    lanes = data_in(out.read_text(encoding="utf-8"))["lanes"]
    lines = [event[4] for lane in lanes if lane["rank"] == 1 and lane["thread"] for event in lane["events"]]
    assert lines == [6, 7] * 2


def test_no_page_of_processes_that_got_no_rank(tmp_path: Path):
    lines = [event("file", 1.0, 0, "train.py"), event("line", 2.0, 1, 0, 3, "<module>", {}, 0)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "events-100.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="no rank ran a line after init_process_group"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--timeout=0", "--", "x"], "--timeout must be a number of seconds above 0, not 0.0"),
        (["--events=0", "--", "x"], "--events must be at least 1, not 0"),
        (["--out=no/folder/x.html", "--", "x"], "there is no folder no/folder"),
        (["torchrun", "--standalone", "x.py"], "put -- before the command"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_bad_input(options: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == BAD_INPUT
    assert told in capsys.readouterr().err


def test_a_page_that_exists_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "replay.html"
    out.write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit):
        main([f"--out={out}", "--", "x"])
    assert "exists: name another file, or write over it with --force" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8") == "mine"


def test_a_command_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([f"--out={tmp_path / 'x.html'}", "--", "no-such-command"]) == BAD_INPUT
    assert "'no-such-command' cannot be started" in capsys.readouterr().err


def test_a_still_shows_a_call_that_nobody_answered(tmp_path: Path):
    replay = read(written(tmp_path, [call(1, "allreduce_", 1.0), event("wait", 2.0, 1)], []))
    picture = still(replay)
    assert "stroke-dasharray" in picture
    assert "all_reduce of 1 ranks without rank 1" in picture


def line(seconds: float, number: int, frame: int = 1, caller: int = 0) -> list:
    return event("line", seconds, frame, 0, number, "main", {}, caller)


def test_ranks_part_where_their_lines_do_not_agree_any_more(tmp_path: Path):
    def reduces(*lines: int) -> list[list]:
        made = [event("file", 0.0, 0, "script.py")]
        for number, place in enumerate(lines):
            made += [line(number, place), call(number, "allreduce_", number)]
            made += [event("wait", number, number), event("end", number, number, ["[1, 2]"])]
        return made[:-1]

    replay = read(written(tmp_path, reduces(3, 4, 7, 8, 7), reduces(3, 5, 7, 7)))
    say_who_waits(replay)
    (told,) = [note for note in replay.notes if "part at" in note]
    assert told.startswith("the ranks part at collective 4 of their group: rank 0: all_reduce of")  # not at 2
    assert told.endswith("line 8; rank 1: all_reduce of (2,) float32, line 7")


def test_a_line_that_launches_several_collectives_is_a_box(tmp_path: Path):
    buckets = [event("file", 0.0, 0, "script.py"), line(1, 5)]
    for number in (1, 2):
        buckets += [line(2, 20, frame=number + 1, caller=1), call(number, "allreduce_", 2)]
    buckets += [event("end", 3, number, ["[3, 4]"]) for number in (1, 2)] + [line(4, 6)]
    replay = read(written(tmp_path, buckets, buckets))
    assert [(span.rank, span.line, len(span.calls)) for span in spans(replay)] == [(0, 5, 2), (1, 5, 2)]
    assert [slots_of(replay.calls)[id(one)] for one in replay.calls] == [0, 1, 0, 1]  # in flight together
    assert "all_reduce → [3, 4]" in still(replay)


def test_only_the_case_that_fails_is_kept(tmp_path: Path):
    def case(number: int, function: str, calls_of_it: int) -> list[list]:
        begin = event("case", number, number, function, calls_of_it)
        return [begin, line(number, 10 + number), call(number, "allreduce_", number)]

    file = event("file", 0.0, 0, "exercise.py")
    fails = [file, *case(1, "swap", 1), *case(2, "exchange", 1), *case(3, "swap", 2)]
    passes = [file, *case(1, "swap", 1), *case(2, "swap", 2), *case(3, "exchange", 1)]
    written(tmp_path, fails, passes)
    with pytest.raises(ValueError, match="no verdict names a rank"):
        read(tmp_path)
    (tmp_path / "verdicts.json").write_text('{"0": "rank 0 is wrong"}', encoding="utf-8")
    replay = read(tmp_path)
    assert replay.notes == ["rank 0 is wrong"]
    assert [(one.rank, one.begun.data[0]) for one in replay.calls] == [(0, 3), (1, 2)]
