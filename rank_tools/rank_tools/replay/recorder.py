"""What runs in each Python process of a job: it writes down each line of the script, and each communication.

``job`` puts a copy of this file, named sitecustomize.py, on the job's PYTHONPATH, so Python imports it before
the script. Lines come from ``sys.monitoring`` (Python 3.12) or ``sys.settrace``, calls of process groups from
torch's dispatcher, their ends from ``Work.wait``. Each event is a line of JSON in a file of this process.
"""

import atexit
import inspect
import json
import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from rank_doctor_inside import is_own, run_the_other_sitecustomize  # type: ignore[import-not-found]

FOLDER = "RANK_REPLAY_FOLDER"
LIMIT = "RANK_REPLAY_LIMIT"
ONLY = "RANK_REPLAY_ONLY"
SMALL = 12  # elements that are shown one by one
LARGEST = 4_000_000  # elements of which a norm is taken
LONGEST = 80  # characters of a value
MOST_TENSORS = 8  # of one communication
MOST_OPEN = 1000  # calls that nobody has waited for yet
MOST_NAMES = 40  # of one frame
GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
HIDDEN = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
NAMESPACES = ("c10d", "_c10d_functional")
GROUPS = ("process_group", "group_name")
SENDS = ("send", "isend")
EMPTY = ("empty", "empty_like", "new_empty", "empty_strided")
PEERS = ("root_rank", "dst", "src")
SCALARS = (bool, int, float, complex, str, type(None))


class Recorder:
    """The events of this process, in order. A line: [kind, seconds, thread, ...]; see ``events.py``."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self.only = os.environ.get(ONLY)
        self.has_rank = False
        self.sees_rpc = False
        self.begin()

    def begin_in_fork(self) -> None:
        if self.has_rank:
            self.limit = 0  # a worker of a loader, not a rank
        self.begin()

    def begin(self) -> None:
        self.lock = threading.RLock()
        path = self.folder / f"events-{os.getpid()}.jsonl"
        self.file = path.open("a", buffering=1, encoding="utf-8")  # a rank may be killed at any time
        self.count = 0
        self.cases: dict[str, int] = {}  # {function of the only file: calls of it from outside}
        self.files: dict[str, int] = {}
        self.threads: dict[int, int] = {}
        self.frames: dict[int, Seen] = {}
        self.frame_number = 0
        self.last_line: tuple = ()
        self.texts: dict[int, tuple] = {}  # {id of a tensor: (weak reference, version, text)}
        self.calls: dict[int, tuple] = {}  # {id of a Work: (number, tensors, in flight, is from any, Work)}
        self.call_number = 0
        self.inner: list[tuple] = []  # calls of DDP, for instance: it waits in C++, before the next line
        self.in_flight: dict[int, int] = {}  # {address of a storage: calls that may write to it now}
        self.unwritten: dict[int, tuple] = {}  # {id: (weak reference, version)} of what ``torch.empty`` made
        self.own = threading.local()
        number = os.environ.get("RANK", "")
        if number.isdigit() and not self.has_rank:
            self.write("hello", int(number), counts=False)

    def write(self, kind: str, *rest: object, counts: bool = True) -> None:
        if self.count >= self.limit and counts:
            return
        with self.lock:
            now = time.time()
            thread = self.threads.setdefault(threading.get_ident(), len(self.threads))
            self.file.write(json.dumps([kind, round(now, 6), thread, *rest]) + "\n")
            self.count += counts
            if self.count == self.limit and counts:
                self.file.write(json.dumps(["limit", round(now, 6), thread, self.limit]) + "\n")

    def line(self, frame, number: int) -> None:
        """The script is about to run this line; ``changes`` are what the lines before have changed."""
        self.watch_this_thread()
        if self.inner:
            inner, self.inner = self.inner, []
            for call in inner:
                self.ended(*call)
        code = frame.f_code
        if self.only not in (None, code.co_filename):
            return
        if self.only and not self.frames and begins_case(code):
            self.count = 0
            self.cases[code.co_name] = self.cases.get(code.co_name, 0) + 1
            self.write("case", sum(self.cases.values()), code.co_name, self.cases[code.co_name], counts=False)
        if self.count >= self.limit:
            return
        seen = self.frames.get(id(frame))
        if seen is None:
            self.frame_number += 1
            seen = self.frames[id(frame)] = Seen(self.frame_number, self.caller_of(frame))
        changes = seen.changes(frame, self.text_of)
        where = (seen.number, number)
        if where == self.last_line and not changes:
            return  # a comprehension in one line
        self.last_line = where
        if code.co_filename not in self.files:
            self.files[code.co_filename] = len(self.files)
            self.write("file", self.files[code.co_filename], code.co_filename, counts=False)
        self.write(
            "line", seen.number, self.files[code.co_filename], number, code.co_name, changes, seen.caller
        )

    def caller_of(self, frame: FrameType) -> int:
        """The number of the frame from which this one was called; 0 if that is not shown."""
        outer = frame.f_back
        while outer is not None and id(outer) not in self.frames:
            outer = outer.f_back
        return 0 if outer is None else self.frames[id(outer)].number

    def listens(self) -> bool:
        """Whether a call that begins now is to be noted."""
        return not self.only or bool(self.frames)

    def leave(self, frame) -> None:
        self.frames.pop(id(frame), None)

    def watch_this_thread(self) -> None:
        """Once there is a process group: see the calls that this thread makes."""
        if getattr(self.own, "mode", None) is not None:
            return
        rpc = sys.modules.get("torch.distributed.rpc.internal")
        if not self.sees_rpc and hasattr(rpc, "_run_function"):
            self.sees_rpc = True
            wrap_rpc(rpc, self)
        dist: Any = sys.modules.get("torch.distributed")
        is_initialized = getattr(dist, "is_initialized", None)
        if self.limit == 0 or is_initialized is None or not is_initialized():
            return
        if not self.has_rank:
            self.has_rank = True
            self.write("rank", dist.get_rank(), dist.get_world_size(), counts=False)
            wrap_wait(sys.modules["torch"]._C._distributed_c10d.Work, self)
        self.own.mode = mode_of(self)
        self.own.mode.__enter__()

    def leave_this_thread(self) -> None:
        mode = getattr(self.own, "mode", None)
        if mode is not None:
            self.own.mode = None
            mode.__exit__(None, None, None)

    def begin_call(self, func, given: dict) -> tuple[int, list]:
        """Note a call of a process group before it begins. Returns its number and its tensors."""
        dist = sys.modules["torch.distributed"]
        group = group_of(dist, given)
        ranks = dist.get_process_group_ranks(group)
        peer = next((given[name] for name in PEERS if name in given), None)
        if peer is not None and "group_name" not in given:
            peer = ranks[peer] if 0 <= peer < len(ranks) else None  # in the dispatcher a rank of the group
        handed_in = [] if "barrier" in func._opname else first_tensors(given)
        tensors = [] if "barrier" in func._opname else tensors_in({"first": handed_in} | given)
        self.call_number += 1
        size = sum(tensor.nbytes for tensor in handed_in)
        self.write(
            "call", self.call_number, func._opname, group.group_name, ranks, peer, given.get("tag", 0), size,
            [describe(tensor) for tensor in tensors], [self.text_of(tensor) for tensor in tensors],
        )  # fmt: skip
        return self.call_number, tensors

    def called(self, number: int, operation: str, tensors: list, out: object) -> None:
        """The call has begun. Its end is seen when the script waits for its ``Work``."""
        torch = sys.modules["torch"]
        candidates = out if isinstance(out, (tuple, list)) else [out]
        for item in candidates:
            if isinstance(item, torch.ScriptObject):
                if not is_from_python():
                    self.inner.append((number, tensors))
                    return
                work = torch._C._distributed_c10d.Work.unbox(item)
                written = [] if operation in SENDS else tensors
                self.count_flight(written, 1)
                self.calls[id(work)] = (number, tensors, written, operation == "recv_any_source_", work)
                if len(self.calls) > MOST_OPEN:
                    oldest = next(iter(self.calls))
                    self.count_flight(self.calls.pop(oldest)[2], -1)

    def count_flight(self, tensors: list, change: int) -> None:
        for tensor in tensors:
            address = address_of(tensor)
            self.in_flight[address] = self.in_flight.get(address, 0) + change
            if self.in_flight[address] <= 0:
                del self.in_flight[address]

    def ended(self, number: int, tensors: list, *source: int) -> None:
        self.texts.clear()  # a communication changes tensors without a new version
        for tensor in tensors:
            self.unwritten.pop(id(tensor), None)
        self.write("end", number, [self.text_of(tensor) for tensor in tensors], *source)

    def text_of(self, value: object) -> str | None:
        """What the page shows of a value; None for what it does not show."""
        try:
            if isinstance(value, SCALARS):
                return short(f"{value:.6g}" if isinstance(value, float) else repr(value))
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(value, torch.Tensor):
                return self.text_of_tensor(torch, value)
            if isinstance(value, (list, tuple)) and 0 < len(value) <= SMALL:
                texts = [self.text_of(item) for item in value]
                if all(text is not None for text in texts):
                    return short("[" + ", ".join(str(text) for text in texts) + "]")
        except Exception:
            return None  # a value that cannot be shown is no reason to disturb the job
        return None

    def text_of_tensor(self, torch, tensor) -> str:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return f"{type(tensor).__name__} {describe(tensor)}"
        if tensor.device.type != "cpu" or tensor.is_sparse or tensor.is_quantized:
            return describe(tensor)  # to read it would wait for the device
        if is_freed(tensor):
            return f"{describe(tensor)}, freed"
        if address_of(tensor) in self.in_flight:
            return f"{describe(tensor)}, in flight"
        version = version_of(tensor)
        empty, at_birth = self.unwritten.get(id(tensor), (nobody, None))
        if empty() is tensor and at_birth == version:
            return f"{describe(tensor)}, not yet written"
        known, seen, text = self.texts.get(id(tensor), (nobody, None, ""))
        if known() is not tensor or seen != version:
            text = numbers_of(torch, tensor)
            self.texts[id(tensor)] = (weakref.ref(tensor), version, text)
        return text

    def made_empty(self, tensor) -> None:
        """Memory that ``torch.empty`` has taken holds anything: it is not shown."""
        if len(self.unwritten) > MOST_OPEN:
            self.unwritten.clear()
        self.unwritten[id(tensor)] = (weakref.ref(tensor), version_of(tensor))

    def said(self, text: str) -> None:
        if self.has_rank or "RANK" in os.environ:
            self.write("print", text[:2000])

    def close(self) -> None:
        """At the end of the interpreter."""
        error = getattr(sys, "last_value", None)
        told = "" if error is None else short(f"{type(error).__name__}: {error}".splitlines()[0], 300)
        with suppress(OSError, ValueError):
            self.write("bye", told, counts=False)


class Seen:
    """What was last shown of a frame's variables."""

    def __init__(self, number: int, caller: int) -> None:
        self.number = number
        self.caller = caller
        self.texts: dict[str, str] = {}

    def changes(self, frame, text_of) -> dict[str, str]:
        values = dict(list(frame.f_locals.items())[-MOST_NAMES:])
        holder = values.pop("self", None)
        attributes = getattr(holder, "__dict__", {})
        values |= {f"self.{name}": value for name, value in list(attributes.items())[:MOST_NAMES]}
        changed = {}
        for name, value in values.items():
            text = None if name.startswith("__") else text_of(value)
            if text is not None and self.texts.get(name) != text:
                self.texts[name] = changed[name] = text
        return changed


def begins_case(code) -> bool:
    """Whether a call from outside the file begins anew. A method or a hook goes on with what there is."""
    name = getattr(code, "co_qualname", code.co_name)  # Python 3.11
    return "." not in name or name.endswith(".__init__")


def nobody() -> None:
    """A weak reference to nothing."""


def version_of(tensor) -> tuple:
    return (0 if tensor.is_inference() else tensor._version, tensor.data_ptr(), tuple(tensor.shape))


def is_freed(tensor) -> bool:
    """Whether its storage was made too small for it, as FSDP does: to read it would crash the process."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    end = (tensor.storage_offset() + reach) * tensor.element_size()
    return tensor.numel() > 0 and not tensor.is_meta and tensor.untyped_storage().nbytes() < end


def address_of(tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0  # a tensor without memory, such as a sparse one


def is_from_python() -> bool:
    """Whether a function of torch.distributed has made this call: then its ``Work`` comes to Python."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(6):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith(("distributed_c10d.py", "_functional_collectives.py")):
            return True
        frame = frame.f_back
    return False


def numbers_of(torch, tensor) -> str:
    """Up to a dozen numbers; of more the shape, the dtype and the norm."""
    with torch.no_grad():
        plain = tensor.detach()
        if tensor.numel() <= SMALL and not tensor.is_meta:
            return short(rounded(plain.tolist()))
        if tensor.is_meta or tensor.numel() > LARGEST or not tensor.is_floating_point():
            return describe(tensor)
        return f"{describe(tensor)}, norm {plain.double().norm().item():.4g}"


def rounded(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(rounded(item) for item in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def describe(tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def short(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def tensors_in(given: dict) -> list:
    """Each tensor of a call's arguments, in order, without repeats."""
    torch = sys.modules["torch"]
    found: list = []
    waiting = list(given.values())
    while waiting and len(found) < MOST_TENSORS:
        item = waiting.pop(0)
        if isinstance(item, torch.Tensor):
            if all(item is not other for other in found):
                found.append(item)
        elif isinstance(item, (list, tuple)):
            waiting[:0] = item
    return found


def first_tensors(given: dict) -> list:
    """Those of the argument that is handed in, of which the bytes are told."""
    order = ("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors", "tensor")
    name = next((name for name in order if name in given), None)
    return [] if name is None else tensors_in({name: given[name]})


def group_of(dist, given: dict):
    if "process_group" in given:
        return dist.ProcessGroup.unbox(given["process_group"])
    return dist.distributed_c10d._resolve_process_group(given["group_name"])


def mode_of(recorder: Recorder):
    """A dispatch mode that sees each call of a process group which this thread makes."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else torch would import its compiler

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            tensor = sys.modules.get("torch.distributed.tensor")
            if tensor is not None and any(issubclass(kind, tensor.DTensor) for kind in types):
                return NotImplemented  # DTensor takes it apart, and the mode sees its parts
            if func.namespace not in NAMESPACES:
                out = func(*args, **kwargs)
                if func._opname in EMPTY and type(out) is sys.modules["torch"].Tensor:
                    recorder.made_empty(out)
                return out
            names = [argument.name for argument in func._schema.arguments]
            given = dict(zip(names, args, strict=False)) | kwargs
            if not any(name in given for name in GROUPS) or not recorder.listens():
                return func(*args, **kwargs)
            number, tensors = recorder.begin_call(func, given)
            out = func(*args, **kwargs)
            recorder.called(number, func._opname, tensors, out)
            return out

    return Mode()


def wrap_wait(work_class, recorder: Recorder) -> None:
    real = work_class.wait

    def wait(self, *args, **kwargs):
        number, tensors, written, is_from_any, _ = recorder.calls.pop(id(self), (None, [], [], False, None))
        if number is None:
            return real(self, *args, **kwargs)
        recorder.write("wait", number)
        result = real(self, *args, **kwargs)
        recorder.count_flight(written, -1)
        recorder.ended(number, tensors, *([self._source_rank()] if is_from_any else []))
        return result

    work_class.wait = wait


def wrap_rpc(internal, recorder: Recorder) -> None:
    """What runs for another rank runs in a thread of C++, which is new to Python each time."""
    real = internal._run_function

    def run(*args):
        sys.settrace(threading.gettrace())
        try:
            return real(*args)
        finally:
            recorder.leave_this_thread()

    internal._run_function = run


class Heard:
    """Standard output that the recorder hears, too."""

    def __init__(self, stream, recorder: Recorder) -> None:
        self.stream = stream
        self.recorder = recorder

    def write(self, text: str) -> int:
        if text.strip():
            self.recorder.said(text)
        return self.stream.write(text)

    def __getattr__(self, name: str):
        return getattr(self.stream, name)


@cache
def is_shown_file(name: str) -> bool:
    return is_own(name) and not name.startswith(OTHERS)


def is_shown(code) -> bool:
    return is_shown_file(code.co_filename) and code.co_name not in HIDDEN


OTHERS = (str(Path(sys.executable).parent), os.environ.get(FOLDER, "\0"), str(Path(sys.prefix) / "bin"))


def watch_lines(recorder: Recorder) -> None:
    if hasattr(sys, "monitoring"):
        watch_by_monitoring(recorder)
    else:
        watch_by_tracing(recorder)


def watch_by_monitoring(recorder: Recorder) -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined]  # Python 3.12
    events = monitoring.events
    tool = next(number for number in (4, 3, 1, 5, 2, 0) if monitoring.get_tool(number) is None)
    monitoring.use_tool_id(tool, "rank-replay")

    def start(code, offset):
        if is_shown(code):
            monitoring.set_local_events(tool, code, events.LINE | events.PY_RETURN)
        return monitoring.DISABLE

    def line(code, number):
        recorder.line(sys._getframe(1), number)

    def leave(code, offset, value):
        recorder.leave(sys._getframe(1))

    def unwind(code, offset, error):
        if is_shown(code):
            recorder.leave(sys._getframe(1))

    monitoring.register_callback(tool, events.PY_START, start)
    monitoring.register_callback(tool, events.LINE, line)
    monitoring.register_callback(tool, events.PY_RETURN, leave)
    monitoring.register_callback(tool, events.PY_UNWIND, unwind)
    monitoring.set_events(tool, events.PY_START | events.PY_UNWIND)


def watch_by_tracing(recorder: Recorder) -> None:
    def local(frame, event, argument):
        if event == "line":
            recorder.line(frame, frame.f_lineno)
        elif event == "return" and not frame.f_code.co_flags & GENERATORS:  # a yield is one, too
            recorder.leave(frame)
        return local

    def trace(frame, event, argument):
        return local if is_shown(frame.f_code) else None

    def check() -> None:
        if sys.gettrace() is not trace:
            recorder.write("tracer", "a debugger or coverage", counts=False)

    atexit.register(check)
    sys.settrace(trace)
    threading.settrace(trace)


def begin() -> None:
    folder = Path(os.environ[FOLDER])
    if not folder.is_dir():
        return  # the replay has gone already
    recorder = Recorder(folder, int(os.environ[LIMIT]))
    os.register_at_fork(after_in_child=recorder.begin_in_fork)
    atexit.register(recorder.close)
    sys.stdout = Heard(sys.stdout, recorder)
    watch_lines(recorder)


if __name__ == "sitecustomize":
    run_the_other_sitecustomize()
    if FOLDER in os.environ:
        begin()
