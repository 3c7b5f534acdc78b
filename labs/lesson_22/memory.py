"""Activations and copies of gradients, told apart in what a step holds. Taught in lesson 22."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from shared.comm.record import Call, CommRecord
from shared.runtime.errors import CourseError
from shared.training.storages import OTHER, PeakByKind, local_of

from lesson_22.rows import Job

BUFFERS = "copies of gradients"  # in which they travel
ACTIVATIONS = "activations and the rest"
DATA = {"dp", "replicate", "shard", "dp_cp", "efsdp", "cp", "ep"}  # along these, gradients are added up
MEETS_GRADIENTS = ("all_reduce", "reduce_scatter")


class Held:
    """The parameters that a rank holds between two steps, as ``PeakByKind`` looks at a model."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self.held = list(parameters)

    def parameters(self) -> list[torch.Tensor]:
        return self.held

    def buffers(self) -> list[torch.Tensor]:
        return []


@dataclass
class Note:
    """A storage that is neither parameter nor gradient nor optimizer state."""

    size: int
    carries_gradients: bool = False  # known only when it is sent


class Memory(PeakByKind):
    """A ``PeakByKind`` that tells copies of gradients from activations, and looks when a backward begins."""

    def __init__(self, held: Held, optimizer: torch.optim.Optimizer) -> None:
        self.notes = WeakIdKeyDictionary()  # {storage: Note}
        self.others_at_peak: list[Note] = []
        self.before_backward: list[list[Note]] = []
        super().__init__(held, optimizer)  # type: ignore[arg-type]  # it has what is asked of a model

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        before = self.peak
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        if self.peak > before:
            self.others_at_peak = self.others()
        return result

    def others(self) -> list[Note]:
        held = [*self.model.parameters(), *self._optimizer_state()]
        held += [p.grad for p in self.model.parameters() if p.grad is not None]
        known = {local_of(tensor).untyped_storage()._cdata for tensor in held}
        return [self.note(storage) for storage in self.alive if storage._cdata not in known]

    def note(self, storage: torch.UntypedStorage) -> Note:
        note = self.notes.setdefault(storage, Note(0))
        note.size = storage.nbytes()
        return note

    def carries_gradients(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self.note(local_of(tensor).untyped_storage()).carries_gradients = True

    def peak_by_kind(self) -> dict[str, int]:
        by_kind = dict(self.at_peak)
        rest = by_kind.pop(OTHER)
        copies = sum(note.size for note in self.others_at_peak if note.carries_gradients)
        return by_kind | {BUFFERS: copies, ACTIVATIONS: rest - copies}

    def left_for_backward(self) -> int:
        """The most bytes of activations, gathered parameters among them, at the start of a backward."""
        sums = [
            sum(note.size for note in notes if not note.carries_gradients) for notes in self.before_backward
        ]
        return max(sums)


class Watch(CommRecord):
    """A record that tells ``memory`` which tensors carry gradients: what data dimensions add up."""

    def __init__(self, memory: Memory, job: Job) -> None:
        super().__init__()
        self.memory = memory
        self.job = job

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        calls = len(self.events)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        for call in self.events[calls:]:
            if not isinstance(call, Call) or call.op not in MEETS_GRADIENTS:
                continue
            if dimension(self.job, call) in DATA:
                tensors = [leaf for leaf in tree_leaves(args) if torch.is_tensor(leaf)]
                self.memory.carries_gradients(tensors)
        return result


@contextmanager
def look_before_backward(memory: Memory) -> Iterator[None]:
    """Have ``memory`` look whenever a backward begins."""
    backward = torch.autograd.backward

    def after_a_look(*args, **kwargs) -> None:
        memory.bytes_alive()
        memory.before_backward.append(memory.others())
        backward(*args, **kwargs)

    torch.autograd.backward = after_a_look
    try:
        yield
    finally:
        torch.autograd.backward = backward


def dimension(job: Job, call: Call) -> str:
    if call.ranks not in job.dimension_of:
        raise CourseError(f"a {call.op} among ranks {call.ranks}, no group of the mesh {job.dimensions}")
    return job.dimension_of[call.ranks]
