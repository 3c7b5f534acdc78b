"""Labs of lessons 02 to 06, 08, 23 and 24 notice planted faults; the others have tests of their own."""

from pathlib import Path

import pytest

from tests.helpers import faulty_lab, torchrun

pytestmark = pytest.mark.slow

MEAN = "parameter.grad /= dist.get_world_size()"
TAKEN = "dist.recv(box, src=0, group=mail, tag=tag)"


@pytest.mark.parametrize(
    ("lab", "old", "new", "told"),
    [
        ("02_five_ways", "= dist.get_rank() + 1", "= 1", "env://: rank, size"),
        ("03_messages", TAKEN, TAKEN.replace("tag=tag", "tag=WEIGHT + BIAS - tag"), "differs by"),
        ("03_ring", "held += mine", "held -= mine", "sum of ranks 0 to 1: differs by"),
        ("04_by_hand", "received.chunk(n)", "received.flip(0).chunk(n)", "all_to_all"),
        ("04_by_hand", "dist.send(x, ranks[me + 1])", "dist.send(x * 2, ranks[me + 1])", "broadcast"),
        ("05_ring", "target += incoming", "target.copy_(incoming)", "sum over 2 ranks: differs by"),
        (
            "05_ring",
            "sendrecv(outgoing, right, target, left)",
            "sendrecv(x, right, x.clone(), left)",
            "sum over",
        ),
        ("06_by_hand", MEAN, "pass", "differs by"),
        ("06_by_hand", "        broadcast_parameters(model)\n", "", "at the start"),
        ("06_train", MEAN, "pass", "the losses of 2 ranks and of one differ by"),
        ("06_uneven", 'reduction="sum") / total', 'reduction="sum") / len(x)', "the weighted mean is off by"),
        ("06_flat", "flat /= dist.get_world_size()", "pass", "differs by"),
        ("08_ddp", "train_step(ddp, optimizer", "train_step(model, optimizer", "differs by"),
        ("23_parameter_server", "self.weight.sub_(", "self.weight.add_(", "weights: differs by"),
        (
            "23_rref",
            "            rpc.rpc_sync(keeper, let_go)\n",
            "",
            "tables are alive on worker1, expected 0",
        ),
        ("24_gradients", 'HERE["head"] = build("head", 99', 'HERE["head"] = build("head", 98', "differs by"),
        ("24_train", "lr=rate, momentum", "lr=2 * rate, momentum", "losses: differs by"),
    ],
)
def test_a_planted_fault_is_noticed(lab: str, old: str, new: str, told: str, tmp_path: Path):
    done = torchrun(faulty_lab(lab, old, new, tmp_path), RANK_BY_RANK_RESULTS=str(tmp_path))
    assert done.returncode == 1
    assert told in done.stdout
    assert "SyntaxError" not in done.stdout and "NameError" not in done.stdout
