"""Check of exercise 10. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

import contextlib
import inspect
import io
import tempfile
from datetime import timedelta
from numbers import Real
from pathlib import Path
from types import ModuleType

import torch._dynamo  # the first optimizer would do it, in seconds that a collective may not have
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from shared.runtime.errors import ParityError
from shared.runtime.exercises import TIMEOUT_S, Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, parameters

STEPS = 10  # of an epoch
LEFT_OVER = 7  # images at the end of an epoch, less than a batch
TEST = 59  # divides by no number of ranks
EPOCHS = 3
BATCH = 25
SEED = 5
TOLERANCE = 1e-12  # float64


def build(seed: int, group: Group) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    return model.double().to(group.device)


class Recorded(TensorDataset):
    """Notes which images are taken, in which order."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.taken: list[int] = []

    def __getitem__(self, index: int) -> tuple:
        self.taken.append(index)
        return super().__getitem__(index)


def order_of(images: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * SEED + epoch)
    return torch.randperm(images, generator=generator).tolist()


def check_order(taken: list[int], count: int, group: Group) -> None:
    """Whether the ranks together take in each epoch what one process takes."""
    everyone: list = [None] * group.world_size
    dist.all_gather_object(everyone, taken)
    epochs = [
        [mine[i * len(mine) // EPOCHS : (i + 1) * len(mine) // EPOCHS] for i in range(EPOCHS)]
        for mine in everyone
    ]
    if any(len(mine) > 1 and mine[0] == mine[1] for mine in epochs):
        raise Wrong(
            "epoch 2 takes the images in the order of epoch 1: who tells the sampler which epoch it is?"
        )
    for epoch in range(EPOCHS):
        together = sorted(index for mine in epochs for index in mine[epoch])
        if together != sorted(order_of(count, epoch)[: STEPS * BATCH]):
            raise Wrong(f"epoch {epoch + 1}: the ranks together do not take each image of its batches once")


def reference(train_set: TensorDataset, group: Group) -> nn.Module:
    """One process on the joined batches, from rank 0's model."""
    model = build(0, group)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        order = order_of(len(train_set), epoch)
        for step in range(STEPS):
            images, labels = train_set[order[step * BATCH : (step + 1) * BATCH]]
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return model


def fit(answer: ModuleType, model: nn.Module, data: list, path: Path, group: Group) -> object:
    """Call the answer's ``fit``; raise ``Wrong`` if it returns on some ranks only."""
    meeting = dist.new_group(backend="gloo")
    dist.barrier(group=meeting)  # nobody leaves while another one connects
    with contextlib.redirect_stdout(io.StringIO()):
        accuracy = answer.fit(model, *data, EPOCHS, path)
    try:
        dist.monitored_barrier(meeting, timedelta(seconds=TIMEOUT_S))
    except RuntimeError:
        raise Wrong(
            "fit has returned here, but another rank waits in it for a collective: do all call evaluate?"
        ) from None
    return accuracy


def saved_model(path: Path, group: Group) -> nn.Module:
    """What rank 0 has saved, in a model without DDP."""
    if not path.is_file():
        raise Wrong("rank 0 has saved nothing")
    saved = torch.load(path, map_location=group.device)
    model = build(1, group)
    try:
        model.load_state_dict(saved)
    except (RuntimeError, TypeError, AttributeError):
        names = list(saved) if isinstance(saved, dict) else type(saved).__name__
        raise Wrong(f"the file does not fit the model without DDP: it holds {names}") from None
    return model


def verify(answer: ModuleType, group: Group) -> str:
    lines = [line.strip() for line in inspect.getsource(answer.fit).splitlines()]
    if any(line.startswith("raise NotImplementedError") for line in lines):
        raise NotImplementedError  # before any rank waits for another
    digits = load_images("digits")
    x = digits.train_x.flatten(1).double().to(group.device)
    y = digits.train_y.to(group.device)
    count = STEPS * BATCH + LEFT_OVER
    train_set = TensorDataset(x[:count], y[:count])
    test_set = TensorDataset(x[-TEST:], y[-TEST:])
    alone = reference(train_set, group)
    model = build(group.rank, group)
    with tempfile.TemporaryDirectory() as folder:  # each rank has its own
        path = Path(folder) / "model.pt"
        recorded = Recorded(*train_set.tensors)
        accuracy = fit(answer, model, [recorded, test_set], path, group)
        check_order(recorded.taken, count, group)
        writers: list = [None] * group.world_size
        dist.all_gather_object(writers, any(Path(folder).iterdir()))
        try:
            assert_same_on_every_rank("parameter", parameters(model))
            off = assert_all_equal("parameter", parameters(model), parameters(alone), TOLERANCE)
        except ParityError as error:
            why = "has each image the same weight, on a rank with more of them and on one with fewer?"
            raise Wrong(
                f"the order is right, but the model is not that of one process: {error}; {why}"
            ) from None
        recognised = (alone(x[-TEST:]).argmax(1) == y[-TEST:]).sum().item()
        if not isinstance(accuracy, Real):
            raise Wrong(f"fit returns {accuracy!r}, which is no float")
        if abs(float(accuracy) - recognised / TEST) > 1e-6:  # of float32, too
            raise Wrong(
                f"fit returns {accuracy:.6f}, but {recognised} of {TEST} images are recognised: "
                f"{recognised / TEST:.6f}; is it a mean of means?"
            )
        if group.rank == 0:
            loaded = saved_model(path, group)
            try:
                assert_all_equal("saved parameter", parameters(loaded), parameters(alone), TOLERANCE)
            except ParityError as error:
                raise Wrong(f"what rank 0 has saved is not the model that it trained: {error}") from None
        others = [rank for rank in range(1, group.world_size) if writers[rank]]
        if others:
            raise Wrong(f"ranks {others} save, too: all would write the same file at the same time")
    return f"{off:.0e} from one process after {EPOCHS} epochs, {recognised} of {TEST} images. Well done."


if __name__ == "__main__":
    check_exercise("10_mend", verify, ranks=3)
