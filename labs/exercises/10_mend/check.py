"""Check of exercise 10. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

import ast
import contextlib
import io
import tempfile
from pathlib import Path
from types import ModuleType

import torch._dynamo  # the first optimizer would do it, in seconds that a collective may not have
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from shared.checklist.findings import findings
from shared.runtime.errors import ParityError
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, parameters

BATCHES, TEST, EPOCHS = 10, 59, 3  # 59 divides by no number of ranks
TOLERANCE = 1e-12  # float64


def ask_the_checklist(path: Path) -> tuple[list[str], str]:
    """(rules that found something, the first finding)."""
    source = path.read_text(encoding="utf-8")
    raised = [node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise)]
    if any("NotImplementedError" in ast.unparse(error) for error in raised if error):
        raise NotImplementedError
    found = findings(source)
    told = [f"the checklist says of line {line}: {rule}: {text}" for (line, *_), rule, text in found]
    return [rule for _, rule, _ in found], told[0] if told else "the checklist is content"


def build(seed: int, group: Group) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Dropout(0.0), nn.Linear(16, 10)
    return nn.Sequential(*layers).double().to(group.device)


def reference(
    answer: ModuleType, train_set: TensorDataset, test_set: TensorDataset, batch: int, group: Group
) -> tuple:
    """One process on the joined batches, from rank 0's model: (model, images recognised)."""
    model = build(0, group)
    sampler = DistributedSampler(train_set, num_replicas=1, rank=0, seed=answer.SEED)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(train_set, batch, sampler=sampler):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    x, y = test_set.tensors
    return model, (model(x).argmax(1) == y).sum().item()


def compare(answer: ModuleType, group: Group) -> str:
    """Train with the answer and with one process; return what is equal, or raise ``Wrong``."""
    data = load_images("digits")
    x, y = data.train_x.double().to(group.device), data.train_y.to(group.device)
    batch = 24 // group.world_size * group.world_size  # what the loaders of all ranks take together
    count = BATCHES * batch
    train_set, test_set = TensorDataset(x[:count], y[:count]), TensorDataset(x[-TEST:], y[-TEST:])
    alone, recognised = reference(answer, train_set, test_set, batch, group)
    model = build(group.rank, group)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "model.pt"  # each rank has its own
        accuracy = answer.fit(model, train_set, test_set, EPOCHS, path)
        if group.rank == 0 and not path.is_file():
            raise Wrong("rank 0 has saved nothing")
    try:
        assert_same_on_every_rank("parameter", parameters(model))
        off = assert_all_equal("parameter", parameters(model), parameters(alone), TOLERANCE)
    except ParityError as error:
        raise Wrong(f"the model is not that of one process: {error}") from None
    if not isinstance(accuracy, float) or abs(accuracy - recognised / TEST) > TOLERANCE:
        raise Wrong(f"fit returns {accuracy} here, and {recognised} of {TEST} are {recognised / TEST:.3f}")
    return f"{off:.0e} from one process after {EPOCHS} epochs, {recognised} of {TEST} images recognised"


def verify(answer: ModuleType, group: Group) -> str:
    rules, told = ask_the_checklist(Path(answer.__file__))
    if "meet" in rules:  # it would hang
        raise Wrong(told)
    try:
        equal = compare(answer, group)
    except Wrong as error:
        raise Wrong(f"{told}{' and ' if rules else ', but '}{error}") from None
    if rules:
        raise Wrong(f"equal to one process, but {told}")
    return f"no finding on {group.world_size} rank(s), {equal}. Well done."


if __name__ == "__main__":
    check_exercise("10_mend", verify)
