"""What runs in each Python process of a job: a thread that says where the process is, when it is asked.

``job`` puts a copy of this file, named sitecustomize.py, on the PYTHONPATH of the job, so Python imports it
before the script. It needs the standard library alone, imports no torch by itself and wraps no function.
What it takes: a thread, two file descriptors above 200, ``threading.excepthook``, which calls the one before,
and through ``faulthandler`` the signal SIGRTMIN + 11 and the right to write the stacks at a crash.
"""

import atexit
import faulthandler
import fcntl
import importlib
import json
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

LOOK_S = 0.2
DEEPEST = 200  # frames of a stack, the innermost ones
LONGEST_TEXT = 8000
NOT_OURS = ("site-packages", "dist-packages", str(Path(os.__file__).parent))
FOLDER = "RANK_DOCTOR_FOLDER"
QUESTION = "question.json"
BRIEF, CALLS, FULL = 0, 1, 2  # how much is asked: where it is; its calls, too; the lines of the calls, too
NOTHING: dict = {"rank": None, "world_size": None, "groups": {}, "status": {}, "calls": []}
STACKS_SIGNAL = signal.SIGRTMIN + 11 if hasattr(signal, "SIGRTMIN") else None
FIRST_DESCRIPTOR = 200  # a script's own numbers stay as they are
ARGUMENTS = ("src", "dst", "group_src", "group_dst", "tag", "to", "input_split_sizes", "output_split_sizes")
MOST_NUMBERS = 200
MOST_THREADS = 5
PLACE_BYTES = 1000
TCP_INFO_BYTES = struct.Struct("=120xQQ")  # linux/tcp.h: tcpi_bytes_acked, tcpi_bytes_received


class Agent:
    """The thread. It reads questions from the folder and writes answers there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answered = 0
        self.is_fork = False
        self.is_worker = False  # a fork of a process that had a group: its locks may be held by nobody
        self.stopping = threading.Event()
        self.thread: threading.Thread | None = None
        self.spent = [0.0, 0]  # processor seconds and bytes of our own threads that have ended
        self.crash_file: int | None = None
        self.place_file: int | None = None
        self.dead_threads: list[dict] = []
        self.other_excepthook = threading.excepthook

    def note_dead_thread(self, ended) -> None:
        """The exception that ends a thread; what Python does with it is done all the same."""
        with suppress(Exception):  # its own __str__ may fail
            if ended.exc_value is not None:
                text = f"{type(ended.exc_value).__name__}: {ended.exc_value}".splitlines()[0]
                place = places(traceback.walk_tb(ended.exc_traceback))
                name = ended.thread.name if ended.thread is not None else "without a name"
                self.dead_threads.append({"name": name, "error": text[:LONGEST_TEXT], "place": place})
        self.other_excepthook(ended)

    def start(self) -> None:
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.watch, name="rank-doctor", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        if self.thread is not None:
            self.thread.join(timeout=2)

    def start_in_fork(self) -> None:
        self.is_fork = True
        self.is_worker = has_group()
        self.dead_threads = []
        self.spent = [0.0, 0]
        self.open_place_file()
        self.write_stacks_when_it_crashes()
        self.hello()
        self.start()

    def watch(self) -> None:
        while not self.stopping.wait(LOOK_S):
            self.note_place()
            try:
                question = json.loads((self.folder / QUESTION).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # nobody has asked yet
            if question["number"] > self.answered:
                self.answered = question["number"]
                self.answer(question)
        self.spent = self.own_use()

    def note_place(self) -> None:
        """Keep the line of the main thread in a file: a process that is killed has no time to say it."""
        place = next((frame for frame in frames_of_main() if is_own(frame.f_code.co_filename)), None)
        if self.place_file is not None and place is not None:
            location = [place.f_code.co_filename, place.f_lineno, place.f_code.co_name]
            os.pwrite(self.place_file, json.dumps(location).ljust(PLACE_BYTES).encode()[:PLACE_BYTES], 0)

    def open_place_file(self) -> None:
        with suppress(OSError):
            self.place_file = open_high(self.folder / f"place-{os.getpid()}.txt")

    def write_stacks_when_it_crashes(self) -> None:
        """Python does so without the interpreter's lock: at a crash, and when the doctor sends a signal."""
        if self.crash_file is None and faulthandler.is_enabled():
            return  # the script's own, by ``python -X faulthandler``
        try:
            self.crash_file = open_high(self.folder / f"stacks-{os.getpid()}.txt", os.O_APPEND)
            faulthandler.enable(file=self.crash_file)
            if STACKS_SIGNAL is not None:
                faulthandler.register(STACKS_SIGNAL, file=self.crash_file)
        except (OSError, ValueError):
            pass  # no descriptor left, or none so high

    def own_use(self) -> list:
        """[processor seconds, bytes] of our threads: they are no sign of life."""
        return [
            self.spent[0] + time.thread_time(),
            self.spent[1] + bytes_moved(f"/proc/self/task/{threading.get_native_id()}/io"),
        ]

    def hello(self) -> None:
        """Say that there is such a process."""
        self.write("hello", {**identity(), "is_fork": self.is_fork})

    def goodbye(self) -> None:
        """At the end of the interpreter: how it ends. The thread must not run while Python goes down."""
        self.stop()
        report = {**identity(), **uncaught()}
        if report["error"] and not self.is_worker:
            report.update(what_torch_knows(CALLS))
        self.write("bye", report)

    def answer(self, question: dict) -> None:
        """At once without the places of calls: for these, torch imports its compiler when first asked."""
        level = question["level"]
        report = {**identity(), **uncaught()}
        report |= {"is_fork": self.is_fork, "number": question["number"], "level": min(level, CALLS)}
        cpu_s, moved = self.own_use()
        report["cpu_s"] = time.process_time() - cpu_s
        report["moved"] = bytes_moved("/proc/self/io") - moved
        report["stacks"] = self.stacks()
        report["handles"] = handled()
        report["dead_threads"] = self.dead_threads[-MOST_THREADS:]
        report["message"] = open_message()
        report["arguments"] = arguments_of_call()
        if level >= CALLS:
            report["sockets"] = bytes_of_sockets()
            report["batches"] = batches()
            report["numbers"] = numbers()
        report.update(NOTHING if self.is_worker else what_torch_knows(min(level, CALLS)))
        self.write("answer", report)
        if level == FULL:
            report.update(NOTHING if self.is_worker else what_torch_knows(FULL))
            report["level"] = FULL
            self.write("answer", report)

    def stacks(self) -> dict[str, list]:
        """{name of thread: its stack, innermost call last}, the main thread first."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        main = threading.main_thread().ident
        frames = sys._current_frames()
        stacks: dict[str, list] = {}
        for ident in sorted(frames, key=lambda ident: ident != main):
            if ident != threading.get_ident():
                name = names.get(ident, f"thread {ident}")
                name = f"{name} ({ident})" if name in stacks else name
                stacks[name] = places(traceback.walk_stack(frames[ident]))[::-1]
        return stacks

    def write(self, kind: str, report: dict) -> None:
        path = self.folder / f"{kind}-{os.getpid()}.json"
        aside = path.with_suffix(".part")
        try:
            aside.write_text(json.dumps(report), encoding="utf-8")
            aside.replace(path)
        except OSError:
            pass  # the doctor has gone, and its folder with it


def open_high(path: Path, flags: int = 0) -> int:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | flags)
    try:
        return fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
    finally:
        os.close(opened)


def identity() -> dict:
    """Who this process is, by its own variables; ``torch`` may know better."""
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "time": time.time(),
        "variables": {
            name: os.environ[name]
            for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK")
            if name in os.environ
        },
    }


def uncaught() -> dict:
    """The exception that nobody has caught, which Python keeps: the process may live on in other threads."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return {"error": "", "text": "", "place": []}
    text = f"{type(error).__name__}: {error}"
    place = places(traceback.walk_tb(error.__traceback__))
    return {"error": text.splitlines()[0], "text": text[-LONGEST_TEXT:], "place": place}


def handled() -> dict:
    """The exception that the main thread is in an ``except``, ``finally`` or ``with`` of the reader's for."""
    found = sys._current_exceptions().get(threading.main_thread().ident or 0)
    error = found[1] if isinstance(found, tuple) else found  # Python 3.11 has (type, error, traceback)
    trace = getattr(error, "__traceback__", None)  # its first frame is the one that handles it
    if trace is None or not is_own(trace.tb_frame.f_code.co_filename):
        return {}
    with suppress(Exception):  # its own __str__ may fail
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return {"error": text[:LONGEST_TEXT], "place": places(traceback.walk_tb(trace))}
    return {}


def places(walk) -> list:
    """[[file, line, function, "", whether it is of the reader's own code], ...]; the doctor adds the text."""
    stack = []
    for frame, line in list(walk)[:DEEPEST]:
        code = frame.f_code
        stack.append([code.co_filename, line or 0, code.co_name, "", is_own(code.co_filename)])
    return stack


def is_own(filename: str) -> bool:
    return not filename.startswith("<") and not any(part in filename for part in NOT_OURS)


def has_group() -> bool:
    dist = sys.modules.get("torch.distributed")
    is_initialized = getattr(dist, "is_initialized", None)  # None while it is being imported
    return is_initialized is not None and is_initialized()


def what_torch_knows(level: int) -> dict:
    """Rank, groups and calls of this process, as far as it has a process group."""
    try:
        if not has_group():
            return {**NOTHING, **arguments_of_init()}
        dist = sys.modules["torch.distributed"]
        who = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
        trace = newest_trace(sys.modules["torch"], level)
        return {
            **who,
            "groups": members_of_groups(dist),
            "status": status_of(dist, trace.get("pg_status", {})),
            "calls": [call_of(entry) for entry in trace.get("entries", [])],
        }
    except Exception as error:  # a torch that is half imported, or another version's recorder
        return {**NOTHING, "problem": f"{type(error).__name__}: {error}"}


def members_of_groups(dist) -> dict[str, list[int]]:
    """{name of a group that this process is in: its ranks}."""
    world = dist.distributed_c10d._world
    return {name: sorted(world.pg_group_ranks.get(group, {})) for group, name in list(world.pg_names.items())}


def status_of(dist, recorded: dict) -> dict[str, list[int]]:
    """{group: [calls begun, calls done, its own count, which has sends and receives, too]}."""
    counts = {
        name: [status.get("last_enqueued_collective", -1), status.get("last_completed_collective", -1), 0]
        for name, status in recorded.items()
    }
    for group, name in list(dist.distributed_c10d._world.pg_names.items()):
        with suppress(RuntimeError, AttributeError):  # not all backends count
            counts.setdefault(name, [-1, -1, 0])[2] = group._get_sequence_number_for_group()
    return counts


NCCL2 = {"backend": "nccl2"}
RECORDERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("_dump_fr_trace", {}),
    ("_dump_fr_trace", NCCL2),
    ("_dump_nccl_trace", {}),
)


def newest_trace(torch, level: int) -> dict:
    """The flight recorder's trace: nccl's if it holds anything, else that of the other backends.

    In torch 2.15 each backend has a recorder of its own, and nccl is ``nccl2`` (its FlightRecorderHook.hpp).
    """
    c10d = torch._C._distributed_c10d
    wanted = {"includeCollectives": level >= CALLS, "includeStackTraces": level == FULL}
    newest: dict = {}
    for dump, backend in RECORDERS:
        if hasattr(c10d, dump):
            try:
                trace = pickle.loads(getattr(c10d, dump)(**wanted, **backend))
            except TypeError:  # before torch 2.15
                continue
            if trace.get("entries") or trace.get("pg_status") or not newest:
                newest = trace
    return newest


def call_of(entry: dict) -> dict:
    """What we need of an entry of the flight recorder."""
    frames = entry.get("frames") or []
    own = [[f["filename"], f["line"], f["name"]] for f in frames if is_own(f["filename"])]
    return {
        "id": entry["record_id"],
        "group": entry["process_group"][0],
        "group_name": entry["process_group"][1],
        "number": entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"],
        "is_p2p": entry["is_p2p"],
        "kind": entry["profiling_name"],
        "inputs": entry["input_sizes"],
        "outputs": entry["output_sizes"],
        "input_types": entry.get("input_dtypes", []),
        "output_types": entry.get("output_dtypes", []),
        "done": bool(entry["retired"]) or entry["state"] == "completed",
        "place": own[0] if own else None,
    }


def frames_of_main() -> list:
    """Those of the main thread, innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def is_c10d(frame) -> bool:
    return frame.f_code.co_filename.endswith("distributed_c10d.py")


def open_message() -> list | None:
    """[send or recv, the other rank] if the main thread is in one; gloo does not record these."""
    for frame in frames_of_main():
        kind = frame.f_code.co_name
        if kind in ("send", "recv") and is_c10d(frame):
            side = "dst" if kind == "send" else "src"
            return [kind, global_rank(frame.f_locals.get(side), frame.f_locals.get(f"group_{side}"), frame)]
    return None


def global_rank(rank: object, group_rank: object, frame) -> int | None:
    if isinstance(rank, int):
        return rank
    if not isinstance(group_rank, int):
        return None
    group = frame.f_locals.get("group")
    try:
        return (
            group_rank
            if group is None
            else sys.modules["torch.distributed"].get_global_rank(group, group_rank)
        )
    except (KeyError, ValueError, RuntimeError):
        return None


def arguments_of_call() -> dict:
    """What the recorder does not keep of the function of torch.distributed that the main thread is in."""
    for frame in frames_of_main():
        if is_c10d(frame) and not frame.f_code.co_name.startswith("_") and frame.f_code.co_name != "wrapper":
            values = {name: frame.f_locals.get(name) for name in ARGUMENTS}
            kept = {name: value for name, value in values.items() if isinstance(value, int | str | list)}
            return {"function": frame.f_code.co_name, **json.loads(json.dumps(kept, default=str))}
    return {}


def batches() -> list:
    """[[isend or irecv, the other rank], ...]: the P2POps that are at hand in the main thread's frames."""
    messages = []
    for frame in frames_of_main():
        for value in list(frame.f_locals.values()):
            for item in value if isinstance(value, list | tuple) else [value]:
                if type(item).__name__ == "P2POp":
                    message = [getattr(item.op, "__name__", "?"), item.peer]
                    if message not in messages:
                        messages.append(message)
        if messages:
            return messages
    return messages


def numbers() -> list:
    """[[file, line, function, {name: number}], ...] of the reader's own frames, innermost first."""
    scopes = []
    for frame in frames_of_main():
        if is_own(frame.f_code.co_filename):
            values = {**frame.f_globals, **frame.f_locals}
            holder = frame.f_locals.get("self")
            values |= {f"self.{name}": value for name, value in getattr(holder, "__dict__", {}).items()}
            few = {name: value for name, value in values.items() if type(value) in (int, bool)}
            few = dict(list(few.items())[-MOST_NUMBERS:])
            scopes.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, few])
    return scopes


def bytes_moved(path: str) -> int:
    """Read and written, by files and pipes."""
    try:
        with Path(path).open(encoding="ascii") as file:
            fields = dict(line.split(":") for line in file)
    except (OSError, ValueError):
        return 0
    return sum(int(fields.get(name, 0)) for name in ("rchar", "wchar", "read_bytes"))


def bytes_of_sockets() -> int:
    """Sent and received by the TCP connections that are open now, which /proc does not count."""
    total = 0
    try:
        descriptors = list(Path("/proc/self/fd").iterdir())
    except OSError:
        return 0
    for descriptor in descriptors:
        with suppress(OSError, struct.error):  # it is no TCP, or closed meanwhile
            if str(descriptor.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(descriptor.name))) as sock:
                    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES.size)
                total += sum(TCP_INFO_BYTES.unpack(info))
    return total


def arguments_of_init() -> dict:
    """A process that is in ``init_process_group`` just now: its rank, if the call names it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "init_process_group":
            values = frame.f_locals
            known = {name: values.get(name) for name in ("rank", "world_size")}
            return {name: value for name, value in known.items() if isinstance(value, int) and value >= 0}
        frame = frame.f_back
    return {}


def run_the_other_sitecustomize() -> None:
    """A system may have a sitecustomize of its own, which ours hides."""
    here = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def begin() -> None:
    folder = Path(os.environ[FOLDER])
    if not folder.is_dir():
        return  # the doctor has gone already
    agent = Agent(folder)
    atexit.register(agent.goodbye)
    os.register_at_fork(before=agent.stop, after_in_parent=agent.start, after_in_child=agent.start_in_fork)
    threading.excepthook = agent.note_dead_thread
    agent.open_place_file()
    agent.write_stacks_when_it_crashes()
    agent.hello()
    agent.start()


if __name__ == "sitecustomize":
    run_the_other_sitecustomize()
    if FOLDER in os.environ:
        begin()
