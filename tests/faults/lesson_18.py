"""Planted faults of lesson 18; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("18_by_hand", "self.mine.grad /= self.n", "pass", "differs by"),
    Fault("18_by_hand", "        ring_all_gather(self.flat, self.n)\n", "", "differs by"),
    Fault(
        "18_by_hand",
        "if stage == 1:\n            ring_all_gather",
        "if True:\n            ring_all_gather",
        "AssertionError",
    ),
    Fault("18_by_hand", "p.grad = part.view_as(p)", "pass", "all gradients: differs by"),
    Fault("18_by_hand", "build([self.mine])", "build(self.params)", "the state covers this rank's chunk"),
    Fault("18_memory", "int(way[-1])", "1", "ZeRO-2, 2 ranks: gradients"),
    Fault(
        "18_memory",
        "net.parameters(), torch.optim.Adam, int",
        "list(net.parameters())[:2], torch.optim.Adam, int",
        "ZeRO-1, 1 ranks: state",
    ),
    Fault("18_equal", "/ ranks).backward()", ").backward()", "differs by"),
]

STILL_WITHOUT = [
    "18_faults",
]
