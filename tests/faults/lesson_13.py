"""Planted faults of lesson 13; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "13_interval",
        'optimizer.load_state_dict(saved["optimizer"])',
        "pass",
        "every 4 steps",
        ranks=0,
    ),
    Fault(
        "13_nodes",
        '"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"',
        '"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"',
        "a node failed, waited for",
        launch="python",
        ranks=0,
    ),
    Fault(
        "13_orphans",
        "ctypes.CDLL(None).prctl(1, 9);",
        "ctypes.CDLL(None).prctl(1, 0);",
        "plain ranks were to outlive their launcher, and ours were not",
        launch="python",
        ranks=0,
    ),
    Fault(
        "13_record",
        'store.set("attempt 0 was here", "yes")',
        'store.set("somebody was here", "yes")',
        "the store was to keep what attempt 0 left there",
        launch="torchrun",
        options=("--max-restarts=1",),
    ),
    Fault(
        "13_train",
        "return batch[rank::world_size]",
        "return batch",
        "the end",
        launch="torchrun",
        options=("--max-restarts=1",),
        environment=(("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),),
    ),
    Fault(
        "13_try_except",
        "continue  # skip this batch, train on",
        "break",
        "expected wrong sums at",
    ),
]

STILL_WITHOUT: list[str] = []
