"""Bytes in the storages of all tensors that a thread works with. Taught in lesson 19."""

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


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
        self.alive = WeakIdKeyDictionary()  # forgets a storage when torch frees it
        self.peak = 0
        self._remember(list(tensors))

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):  # noqa: ANN001
        result = operation(*args, **(kwargs or {}))
        self._remember((args, kwargs, result))
        if self.bytes_alive() > self.peak:
            time.sleep(0.003)  # gloo's thread lets go of a message a little after it was sent
            self.peak = max(self.peak, self.bytes_alive())
        return result

    def bytes_alive(self) -> int:
        return sum(storage.nbytes() for storage in self.alive)

    def reset_peak(self) -> None:
        """From now on ``peak`` is of what follows."""
        self.peak = self.bytes_alive()

    def _remember(self, tree: Any) -> None:
        for one in tree_leaves(tree):
            if isinstance(one, torch.Tensor):
                local = one.to_local() if isinstance(one, DTensor) else one
                self.alive[local.untyped_storage()] = None
