"""Planted faults of lesson 06."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(lab="06_two_gradients", old="average /= ranks", new="pass", told="not that of the whole batch"),
    Fault(
        lab="06_by_hand",
        old="            average_gradients(model)  # clip_grad_norm_ would come after this line\n",
        new="",
        told="the ranks hold different parameters",
    ),
    Fault(
        lab="06_by_hand",
        old="parameter.grad /= dist.get_world_size()",
        new="pass",
        told="weight: differs by",
        run="06_train",
    ),
    Fault(
        lab="06_by_hand",
        old="manual_seed(epoch)",
        new="manual_seed(epoch + rank)",
        told="an image is in the parts of two ranks",
        run="06_train",
    ),
    Fault(
        lab="06_uneven",
        old="* dist.get_world_size() / n_total",
        new="/ n_total",
        told="the gradients of DDP are off by",
    ),
    Fault(
        lab="06_uneven",
        old="    dist.all_reduce(to_log, op=dist.ReduceOp.AVG)\n",
        new="",
        told="is logged, one process has",
    ),
    Fault(
        lab="06_uneven",
        old="n_total = n_total.clamp(min=1)",
        new="pass",
        told="no token counts, and the loss is nan",
    ),
    Fault(
        lab="06_by_hand",
        old="model.train(was_training)",
        new="model.train()",
        told="accuracy left a model in training mode",
        run="06_train",
    ),
    Fault(
        lab="06_by_hand",
        old="    model.eval()  # dropout and batch norm work differently in training\n",
        new="",
        told="the model is still in training mode",
        run="06_train",
    ),
    Fault(
        lab="06_by_hand",
        old="    dist.all_reduce(counts)\n",
        new="",
        told="recognised by the ranks, ",
        run="06_train",
    ),
    Fault(
        lab="06_uneven",
        old='reduction="sum") / total',
        new='reduction="sum") / len(x)',
        told="the weighted mean is off by",
    ),
    Fault(lab="06_flat", old="flat /= dist.get_world_size()", new="pass", told="average_flat: differs by"),
    Fault(
        lab="06_flat",
        old="    dist.all_reduce(flat)\n",
        new="    for part in flat.chunk(4):\n        dist.all_reduce(part)\n",
        told="average_flat: 4 calls",
    ),
    Fault(
        lab="06_faults",
        old="        broadcast_parameters(model)\n",
        new="        pass\n",
        told="nothing: the checks say",
    ),
    Fault(
        lab="06_faults",
        old="cfg.per_rank * group.world_size + 1",
        new="cfg.per_rank * group.world_size",
        told="own loops: OwnLoop(",
    ),
]
