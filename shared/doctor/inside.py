"""What runs in each Python process of a job: a thread that says where the process is, when it is asked.

``job`` puts a copy of this file, named sitecustomize.py, on the PYTHONPATH of the job, so Python imports it
before the script. It needs the standard library alone, imports no torch by itself, and changes nothing that a
script sees: no signal handler, no hook, no argument, no file descriptor.
"""

import atexit
import importlib
import json
import os
import pickle
import sys
import threading
import time
import traceback
from pathlib import Path

LOOK_S = 0.2
DEEPEST = 60  # frames of a stack
NOT_OURS = ("site-packages", "dist-packages", str(Path(os.__file__).parent))
FOLDER = "RANK_DOCTOR_FOLDER"
QUESTION = "question.json"
NOTHING: dict = {"rank": None, "world_size": None, "groups": {}, "calls": []}


class Agent:
    """The thread. It reads questions from the folder and writes answers there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answered = 0
        self.is_fork = False
        self.is_worker = False  # a fork of a process that had a group: its locks may be held by nobody
        self.stopping = threading.Event()
        self.thread: threading.Thread | None = None

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
        self.hello()
        self.start()

    def watch(self) -> None:
        while not self.stopping.wait(LOOK_S):
            try:
                question = json.loads((self.folder / QUESTION).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # nobody has asked yet
            if question["number"] > self.answered:
                self.answered = question["number"]
                self.answer(question)

    def hello(self) -> None:
        """Say that there is such a process."""
        self.write("hello", {**identity(), "is_fork": self.is_fork})

    def goodbye(self) -> None:
        """At the end of the interpreter: how it ends. The thread must not run while Python goes down."""
        self.stop()
        said = {**identity(), "error": "", "place": []}
        error = getattr(sys, "last_value", None)  # Python keeps what nobody has caught
        if error is not None:
            said["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
            said["place"] = places(traceback.extract_tb(error.__traceback__))
        self.write("bye", said)

    def answer(self, question: dict) -> None:
        """At once without the places of calls: for these, torch imports its compiler when first asked."""
        said = {**identity(), "is_fork": self.is_fork, "number": question["number"], "full": False}
        said["cpu_s"] = time.process_time()
        said["stacks"] = self.stacks()
        said["message"] = open_message()
        said.update(NOTHING if self.is_worker else what_torch_knows(with_places=False))
        self.write("answer", said)
        if question["full"]:
            said.update(NOTHING if self.is_worker else what_torch_knows(with_places=True))
            said["full"] = True
            self.write("answer", said)

    def stacks(self) -> dict[str, list]:
        """{name of thread: its stack, innermost call last}, the main thread first."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        main = threading.main_thread().ident
        frames = sys._current_frames()
        found = {}
        for ident in sorted(frames, key=lambda ident: ident != main):
            if ident != threading.get_ident():
                name = names.get(ident, f"thread {ident}")
                found[name] = places(traceback.extract_stack(frames[ident]))
        return found

    def write(self, kind: str, said: dict) -> None:
        path = self.folder / f"{kind}-{os.getpid()}.json"
        aside = path.with_suffix(".part")
        try:
            aside.write_text(json.dumps(said), encoding="utf-8")
            aside.replace(path)
        except OSError:
            pass  # the doctor has gone, and its folder with it


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


def places(stack: traceback.StackSummary) -> list:
    """[[file, line, function, text, whether it is of the reader's own code], ...]."""
    found = []
    for place in list(stack)[-DEEPEST:]:
        found.append(
            [place.filename, place.lineno or 0, place.name, place.line or "", is_own(place.filename)]
        )
    return found


def is_own(filename: str) -> bool:
    return not filename.startswith("<") and not any(part in filename for part in NOT_OURS)


def has_group() -> bool:
    dist = sys.modules.get("torch.distributed")
    is_initialized = getattr(dist, "is_initialized", None)  # None while it is being imported
    return is_initialized is not None and is_initialized()


def what_torch_knows(with_places: bool) -> dict:
    """Rank, groups and calls of this process, as far as it has a process group."""
    try:
        if not has_group():
            return {**NOTHING, **arguments_of_init()}
        dist = sys.modules["torch.distributed"]
        trace = newest_trace(sys.modules["torch"], with_places)
        return {
            "rank": dist.get_rank(),
            "world_size": dist.get_world_size(),
            "groups": {name: ranks_in(config) for name, config in trace.get("pg_config", {}).items()},
            "calls": [call_of(entry) for entry in trace.get("entries", [])],
        }
    except Exception as error:  # a torch that is half imported, or another version's recorder
        return {**NOTHING, "problem": f"{type(error).__name__}: {error}"}


def ranks_in(config: dict) -> list[int]:
    """The members of a group, which the recorder gives as a text."""
    ranks = config["ranks"]
    return json.loads(ranks) if isinstance(ranks, str) else list(ranks)


def newest_trace(torch, with_places: bool) -> dict:
    """The flight recorder's trace: nccl's if it holds anything, else that of the other backends."""
    c10d = torch._C._distributed_c10d
    found: dict = {}
    for dump in ("_dump_fr_trace", "_dump_nccl_trace"):
        if hasattr(c10d, dump):
            trace = pickle.loads(getattr(c10d, dump)(includeStackTraces=with_places))
            if trace.get("entries") or not found:
                found = trace
    return found


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


def open_message() -> list | None:
    """[send or recv, the other rank] if the main thread is in one; gloo does not record these."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        kind = frame.f_code.co_name
        if kind in ("send", "recv") and frame.f_code.co_filename.endswith("distributed_c10d.py"):
            peer = frame.f_locals.get("dst" if kind == "send" else "src")
            return [kind, peer if isinstance(peer, int) else None]
        frame = frame.f_back
    return None


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
    agent.hello()
    agent.start()


if __name__ == "sitecustomize":
    run_the_other_sitecustomize()
    if FOLDER in os.environ:
        begin()
