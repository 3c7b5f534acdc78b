"""Planted faults of lesson 06; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("06_by_hand", "    broadcast_parameters(model)\n", "", "the ranks hold different parameters"),
    Fault("06_by_hand", "            average_gradients(model)\n", "", "the ranks hold different parameters"),
    Fault("06_by_hand", "dist.broadcast(tensor.detach(), src=0)", "pass", "at the start", run="06_train"),
    Fault(
        "06_by_hand", "parameter.grad /= dist.get_world_size()", "pass", "weight: differs by", run="06_train"
    ),
    Fault(
        "06_by_hand",
        "manual_seed(epoch)",
        "manual_seed(epoch + rank)",
        "an image is in the parts of two ranks",
        run="06_train",
    ),
    Fault(
        "06_by_hand",
        "parameter.grad /= dist.get_world_size()",
        "pass",
        "1 : 1: the mean of means is off by",
        run="06_uneven",
    ),
    Fault(
        "06_by_hand",
        "[*model.parameters(), *model.buffers()]",
        "model.state_dict().values()",
        "differs by",
        run="06_train",
    ),
    Fault(
        "06_by_hand",
        "images - global_batch + 1",
        "max(1, images - global_batch + 1)",
        "too few images for a global batch",
        run="06_train",
    ),
    Fault("06_uneven", "world_size * n_local / n_total", "world_size", "the gradients of DDP are off by"),
    Fault("06_uneven", "cfg.length // (rank + 1)", "cfg.length // 2", "the gradients of DDP are off by"),
    Fault("06_train", "            average_gradients(ours.model)\n", "", "gradient first.weight: differs by"),
    Fault("06_train", "    model.eval()\n", "", "a part of the model is still in training mode"),
    Fault(
        "06_uneven", 'reduction="sum") / total', 'reduction="sum") / len(x)', "the weighted mean is off by"
    ),
    Fault(
        "06_uneven",
        "abs(off - 1 / len(counts))",
        "abs(off - 1 + 1 / len(counts))",
        "none on the last: the mean of means is off by",
        ranks=3,
    ),
    Fault("06_flat", "flat /= dist.get_world_size()", "pass", "average_flat: differs by"),
    Fault(
        "06_flat",
        "    dist.all_reduce(flat)\n",
        "    for part in flat.chunk(4):\n        dist.all_reduce(part)\n",
        "average_flat: 4 calls",
    ),
    Fault(
        "06_faults",
        "slice(group.rank, None, group.world_size)",
        "slice(None)",
        "nothing: 840 images per rank",
    ),
    Fault("06_faults", "        broadcast_parameters(model)\n", "        pass\n", "nothing: the checks say"),
    Fault(
        "06_faults", "cfg.per_rank * group.world_size + 1", "cfg.per_rank * group.world_size", "own loops: "
    ),
]
