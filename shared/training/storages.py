"""Bytes in the storages of all tensors that a thread works with, by kind. Taught in lesson 19."""

import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from shared.comm.record import NAMESPACES

THREADS = Path("/proc/self/task")  # where Linux tells of this process's threads
GLOO = "Name:\tpt_gloo_runloop\n"
HAS_RUN = re.compile(r"^(?:State|voluntary_ctxt_switches|nonvoluntary_ctxt_switches):.*$", re.MULTILINE)
ASLEEP = "State:\tS"
LOOK_S = 0.0005


class StorageRecorder(TorchDispatchMode):
    """Sees each operation of torch on this thread, backward and collectives included.

        with StorageRecorder(model.parameters()) as memory:
            model(x).sum().backward()
        memory.peak  # bytes

    It knows the storages of ``tensors``, and of all tensors that go into an operation or come out of one,
    until torch frees them; copies, activations and buffers of collectives are among them. gloo's own buffers,
    and what lies unused in the allocator, are not seen.

    Attributes:
        peak: the largest number of bytes alive after any operation, since the start or ``reset_peak``.
    """

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.alive = WeakIdKeyDictionary()  # {storage: its bytes when last seen}; forgets what torch frees
        self.at_most = 0  # bytes_alive() is not more: freeing is not subtracted until we add up again
        self.has_sent = False  # a collective or a message has been launched
        self.peak = 0
        self._remember(list(tensors))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As in ``CommRecord``: without this, torch would import its compiler."""
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self._remember((args, kwargs, result))
        self.has_sent = self.has_sent or operation.namespace in NAMESPACES
        # To add up hundreds of storages takes longer than an operation, so only where it may be a new peak.
        if self.at_most > self.peak and self._add_up() > self.peak:
            self.peak = max(self.peak, self.bytes_alive())
        return result

    def bytes_alive(self) -> int:
        if self.has_sent:
            wait_for_gloo()
        return self._add_up()

    def _add_up(self) -> int:
        resized = []
        total = 0
        for storage, size in self.alive.items():
            now = storage.nbytes()
            total += now
            if now != size:
                resized.append(storage)
        for storage in resized:
            self.alive[storage] = storage.nbytes()
        self.at_most = total
        return total

    def reset_peak(self) -> None:
        """From now on ``peak`` is of what follows."""
        self.peak = self.bytes_alive()

    def _remember(self, tree: Any) -> None:
        for tensor in _tensors_in(tree):
            storage = local_of(tensor).untyped_storage()
            size = storage.nbytes()
            known = self.alive.get(storage)
            if size != known:
                self.alive[storage] = size
                self.at_most += max(0, size - (known or 0))


def wait_for_gloo() -> None:
    """Return when gloo's threads sleep: one that has done its work holds the tensors until it runs again.

    On a busy machine no time is long enough for that. But the kernel counts how often a thread has run. If
    all sleep, and none has run since the look before, then none was about to let go. One that waits for
    Python's lock would have run: between two looks this thread does not hold it.
    """
    if not THREADS.is_dir():  # not Linux
        time.sleep(0.003)
        return
    before = None
    now = _gloo_threads()
    while now != before or not all(ASLEEP in thread for thread in now):
        time.sleep(LOOK_S)
        before, now = now, _gloo_threads()


def _gloo_threads() -> list[str]:
    """Of each of gloo's threads, whether it sleeps and how often it has run."""
    threads = []
    for thread in THREADS.iterdir():
        try:
            status = (thread / "status").read_text(encoding="utf-8")
        except OSError:  # it has just ended
            continue
        if status.startswith(GLOO):
            threads.append("\n".join([thread.name, *HAS_RUN.findall(status)]))
    return sorted(threads)


PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer state"
OTHER = "activations and buffers"


class PeakByKind(StorageRecorder):
    """A ``StorageRecorder`` that says of what the peak consisted.

        with PeakByKind(model, optimizer) as memory:
            train_step()
        memory.at_peak  # {"parameters": 1200, "gradients": 1200, "optimizer state": 0, ...}

    What a rank holds is what ``model`` and ``optimizer`` hold at that moment. All other storages, such as
    activations, unsharded copies and buffers of collectives, are of the last kind. A storage that is used
    twice, such as a tied weight or a bucket that gradients are views of, counts once.

    Attributes:
        at_peak: {kind: bytes} when the most bytes were alive, since the start or ``reset_peak``.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.model = model
        self.optimizer = optimizer
        self.at_peak: dict[str, int] = {}
        super().__init__(list(model.parameters()) + list(model.buffers()))
        self._remember(self._optimizer_state())
        self.reset_peak()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        before = self.peak
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        if self.peak > before:
            self.at_peak = self._by_kind()
        return result

    def reset_peak(self) -> None:
        super().reset_peak()
        self.at_peak = self.by_kind()

    def by_kind(self) -> dict[str, int]:
        """{kind: bytes} of what is alive now."""
        self.bytes_alive()
        return self._by_kind()

    def _by_kind(self) -> dict[str, int]:
        """As ``by_kind``, just after all storages have been added up."""
        parameters: list[torch.Tensor] = list(self.model.parameters())
        held: dict[str, list[torch.Tensor]] = {
            PARAMETERS: parameters,
            GRADIENTS: [p.grad for p in parameters if p.grad is not None],
            OPTIMIZER: self._optimizer_state(),
        }
        counted = set()
        sizes = dict.fromkeys([*held, OTHER], 0)
        for kind, tensors in held.items():
            for tensor in tensors:
                storage = local_of(tensor).untyped_storage()
                if storage._cdata not in counted:
                    counted.add(storage._cdata)
                    sizes[kind] += storage.nbytes()
        sizes[OTHER] = self.at_most - sum(sizes.values())
        return sizes

    def _optimizer_state(self) -> list[torch.Tensor]:
        if self.optimizer is None:
            return []
        return list(_tensors_in(list(self.optimizer.state.values())))


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a ``DTensor``; any other tensor itself."""
    module = sys.modules.get("torch.distributed.tensor")  # imported only here and there: that takes a second
    if module is not None and isinstance(tensor, module.DTensor):
        return tensor._local_tensor  # to_local() is differentiable: an operation more, seen by every mode
    return tensor


def _tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """All tensors in lists, tuples and dictionaries within each other."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for part in tree:
            yield from _tensors_in(part)
    elif isinstance(tree, dict):
        for part in tree.values():
            yield from _tensors_in(part)
