"""The instruments that measure each strategy see what they are for: parity, peak storage, timeline."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from shared.runtime.errors import CourseError, ParityError
from shared.training import storages, timeline
from shared.training.flops import MatmulFlops
from shared.training.gpt import GPT, IGNORED, GPTConfig, loss_sum, token_batch
from shared.training.one_process import PlainSGD, Step, assert_same_training, step_of, train_steps
from shared.training.storages import GRADIENTS, OPTIMIZER, OTHER, PARAMETERS, PeakByKind, StorageRecorder
from shared.training.timeline import (
    COMMUNICATE,
    COMPUTE,
    SimulatedDevices,
    Span,
    Task,
    bubble,
    busy_together,
)

pytestmark = pytest.mark.slow  # it imports torch
CFG = GPTConfig(layers=2)
S = 0.004  # of one piece of simulated work


def gpt(seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(CFG)


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    tokens, labels = token_batch(CFG, 4, step)
    return loss_sum(model(tokens), labels) / labels.numel()


def alone(steps: int = 2) -> list[Step]:
    model = gpt()
    return train_steps(model, torch.optim.SGD(model.parameters(), 0.5), loss_of, steps)


# --- The transformer ---


def test_no_token_sees_a_later_one():
    model = gpt()
    tokens, _ = token_batch(CFG, 1, 0)
    changed = tokens.clone()
    changed[0, 20:] = (changed[0, 20:] + 1) % CFG.vocabulary
    before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :20], after[0, :20])
    assert not torch.equal(before[0, 20], after[0, 20])


def test_labels_are_the_next_tokens_and_ignored_ones_count_nothing():
    tokens, labels = token_batch(CFG, 3, 5)
    assert torch.equal(tokens[:, 1:], labels[:, :-1])
    logits = gpt()(tokens)
    first = loss_sum(logits[:1], labels[:1])
    others_ignored = labels.clone()
    others_ignored[1:] = IGNORED
    assert torch.equal(loss_sum(logits, others_ignored), first)


def test_it_learns_and_its_head_is_tied():
    model = gpt()
    assert model.head.weight is model.tokens.weight
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = [step.loss.item() for step in train_steps(model, optimizer, loss_of, 30)]
    assert losses[-1] < 0.6 * losses[0]


# --- Parity ---


def test_the_same_training_is_the_same():
    assert assert_same_training("twice", alone(), alone(), 0.0) == 0.0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("loss", "step 1: loss: differs by"),
        ("gradient", "step 1: gradient of blocks.1.mlp.up.weight: differs by"),
        ("parameter", "step 0: parameter tokens.weight: differs by"),
        ("missing", "step 1: gradient of norm.bias is missing"),
        ("more", "step 0: parameter another should not be here"),
        ("dtype", "step 0: parameter norm.weight: \\(32,\\) torch.float32, expected \\(32,\\) torch.float64"),
        ("steps", "1 steps, one process did 2"),
    ],
)
def test_a_fault_of_training_is_named(fault: str, message: str):
    ours = copy.deepcopy(alone())
    if fault == "loss":
        ours[1].loss += 1e-9
    elif fault == "gradient":
        ours[1].gradients["blocks.1.mlp.up.weight"][3, 4] += 1e-9
    elif fault == "parameter":
        ours[0].parameters["tokens.weight"][0, 0] *= 1.001
    elif fault == "missing":
        del ours[1].gradients["norm.bias"]
    elif fault == "more":
        ours[0].parameters["another"] = torch.ones(1)
    elif fault == "dtype":
        ours[0].parameters["norm.weight"] = ours[0].parameters["norm.weight"].float()
    else:
        ours.pop()
    with pytest.raises(ParityError, match=message):
        assert_same_training("planted", ours, alone(), 1e-12)


def test_a_rank_is_held_against_its_part():
    truth = alone(1)

    def half_of_mlp(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        return tensor.chunk(2)[1] if "mlp.up" in name else None

    ours = [Step(truth[0].loss)]
    for name in (
        "blocks.0.mlp.up.weight",
        "blocks.0.mlp.up.bias",
        "blocks.1.mlp.up.weight",
        "blocks.1.mlp.up.bias",
    ):
        ours[0].gradients[name] = truth[0].gradients[name].chunk(2)[1]
        ours[0].parameters[name] = truth[0].parameters[name].chunk(2)[1]
    assert assert_same_training("half", ours, truth, 0.0, half_of_mlp) == 0.0
    ours[0].gradients["blocks.1.mlp.up.bias"] = truth[0].gradients["blocks.1.mlp.up.bias"].chunk(2)[0]
    with pytest.raises(ParityError, match="gradient of blocks.1.mlp.up.bias: differs"):
        assert_same_training("half", ours, truth, 1e-12, half_of_mlp)


def test_a_step_is_a_copy():
    model = gpt()
    loss_of(model, 0).backward()
    step = step_of(torch.zeros(()), model.named_parameters())
    before = step.parameters["norm.weight"].clone()
    with torch.no_grad():
        model.norm.weight.add_(1)
    assert torch.equal(step.parameters["norm.weight"], before)


# --- Peak storage ---


def test_each_kind_of_storage_is_told_apart():
    layer = nn.Linear(50, 40, bias=False)
    optimizer = torch.optim.Adam(layer.parameters())
    size = 50 * 40 * 4
    with PeakByKind(layer, optimizer) as memory:
        assert memory.at_peak == {PARAMETERS: size, GRADIENTS: 0, OPTIMIZER: 0, OTHER: 0}
        x = torch.ones(7, 50)
        layer(x).sum().backward()
        assert memory.by_kind()[GRADIENTS] == size
        optimizer.step()
        assert 2 * size <= memory.by_kind()[OPTIMIZER] <= 2 * size + 8
        optimizer.zero_grad()
        held = memory.by_kind()
        assert held[GRADIENTS] == 0
        assert held[OTHER] >= x.nbytes
        memory.reset_peak()
        activations = torch.ones(1000)
        activations.mul(2)
    assert memory.at_peak[PARAMETERS] == size
    assert memory.at_peak[OTHER] >= held[OTHER] + 2 * activations.nbytes


def test_a_tied_weight_counts_once():
    model = gpt()
    with PeakByKind(model) as memory:
        pass
    assert memory.at_peak[PARAMETERS] == sum(p.nbytes for p in model.parameters())


def test_the_peak_is_that_of_torch_s_own_tracker():
    """MemTracker knows the same kinds; it, too, sees what goes through the dispatcher."""
    from torch.distributed._tools.mem_tracker import MemTracker

    peaks = []
    for kind in ("ours", "torch's"):
        model = gpt()
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(2):  # in the second step the optimizer's state is there from the start
            optimizer.zero_grad()
            if kind == "ours":
                with PeakByKind(model, optimizer) as memory:
                    loss_of(model, step).backward()
                    optimizer.step()
                peak = memory.at_peak | {"total": memory.peak}
            else:
                tracker = MemTracker()
                tracker.track_external(model, optimizer)
                with tracker:
                    loss_of(model, step).backward()
                    optimizer.step()
                snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
                peak = {getattr(key, "name", key): value for key, value in snapshot.items()}
        peaks.append(peak)
    ours, theirs = peaks
    assert ours["total"] == theirs["Total"]
    assert ours[PARAMETERS] == theirs["PARAM"]
    assert ours[GRADIENTS] == theirs["GRAD"]
    assert ours[OPTIMIZER] == theirs["OPT"]
    assert ours[OTHER] == theirs["ACT"] + theirs["TEMP"] + theirs["BUFFER"]


def test_a_storage_that_is_emptied_and_filled_again_counts_again():
    whole = torch.zeros(1000, dtype=torch.float64)
    with StorageRecorder([whole]) as memory:
        whole.add_(1)
        assert memory.peak == 8000
        whole.untyped_storage().resize_(0)  # no operation tells of that
        part = torch.ones(500, dtype=torch.float64)
        assert (memory.peak, memory.bytes_alive()) == (8000, 4000)
        whole.untyped_storage().resize_(8000)
        whole.fill_(2)
        assert memory.peak == 12000
        del part
        assert memory.bytes_alive() == 8000


def test_a_look_waits_until_gloo_s_threads_have_slept_from_one_look_to_the_next(monkeypatch):
    looks = iter(["S 7", "R 7", "R 8", "S 9", "S 9", "not looked at"])
    monkeypatch.setattr(storages, "_gloo_threads", lambda: [f"State:\t{next(looks)}"])
    storages.wait_for_gloo()
    assert next(looks) == "not looked at"


def test_gloo_s_threads_are_known_by_their_name():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.all_reduce(torch.ones(1))  # a thread has worked, so it has given itself its name
        threads = storages._gloo_threads()
    finally:
        dist.destroy_process_group()
    assert threads or not storages.THREADS.is_dir()
    assert all(len(thread.splitlines()) == 4 for thread in threads)


# --- Timeline ---


def two_stages(devices: SimulatedDevices, micro_batches: int, cut: bool = True) -> None:
    """Forward of a batch in micro-batches through two devices, one time unit a stage for the whole batch."""
    for number in range(micro_batches):
        x = devices.given(0, torch.ones(4))
        y = devices.compute(0, f"F{number}", 8 * S / micro_batches, torch.relu, x)
        y = devices.send(y, 1) if cut else devices.given(1, torch.ones(4))
        devices.compute(1, f"F{number}", 8 * S / micro_batches, torch.relu, y)


def overlaps(micro_batches: int, cut: bool = True) -> tuple[float, float]:
    """Seconds in which both devices work: as executed, and by dependencies alone."""
    with SimulatedDevices(2) as devices:
        two_stages(devices, micro_batches, cut)
        executed, ideal = devices.finish(), devices.ideal()
    seconds = [busy_together(spans, (0, COMPUTE), (1, COMPUTE)) for spans in (executed, ideal)]
    return seconds[0], seconds[1]


def test_idle_time_comes_from_dependencies_alone():
    assert overlaps(1) == (0.0, 0.0)
    assert overlaps(4)[1] > 0.0
    assert overlaps(1, cut=False)[1] > 0.0  # two models that need nothing of each other


def test_the_ideal_timeline_is_that_of_the_formula():
    for micro_batches in (1, 2, 4, 8):
        with SimulatedDevices(2) as devices:
            two_stages(devices, micro_batches)
            executed = devices.finish()
            ideal = devices.ideal()
        assert bubble(ideal, 2) == pytest.approx(1 / (micro_batches + 1))
        assert sorted(s.what for s in executed) == sorted(s.what for s in ideal)


def test_nothing_begins_before_its_inputs_are_there():
    with SimulatedDevices(2, alpha_s=S) as devices:
        two_stages(devices, 3)
        devices.finish()
        for task in devices.tasks:
            for input_task in task.inputs:
                assert input_task.what == timeline.GIVEN or input_task.end <= task.start


def test_collectives_give_what_torch_gives_and_take_what_the_model_says():
    with SimulatedDevices(3, alpha_s=S / 10, bytes_per_s=96 / S) as devices:
        given = [devices.given(i, torch.arange(6.0) + 10 * i) for i in range(3)]
        reduced = devices.all_reduce(given)
        gathered = devices.all_gather(given)
        scattered = devices.reduce_scatter(given)
        swapped = devices.all_to_all(given)
        devices.finish()
        ideal = {(s.device, s.what): s for s in devices.ideal()}
    total = sum(torch.arange(6.0) + 10 * i for i in range(3))
    assert all(torch.equal(task.value(), total) for task in reduced)
    assert gathered[2].value().tolist()[:7] == [0, 1, 2, 3, 4, 5, 10]
    assert [task.value().tolist() for task in scattered] == [part.tolist() for part in total.chunk(3)]
    assert swapped[1].value().tolist() == [2, 3, 12, 13, 22, 23]
    seconds = {what: s.end - s.start for (_, what), s in ideal.items()}
    assert seconds["all_reduce"] == pytest.approx(4 * S / 10 + (4 / 3) * S / 4)
    assert seconds["all_gather"] == pytest.approx(2 * S / 10 + 2 * S / 4)
    assert seconds["reduce_scatter"] == pytest.approx(2 * S / 10 + (2 / 3) * S / 4)


def test_communication_hides_behind_computation_only_where_nothing_waits_for_it():
    def run(prefetch: bool) -> list[Span]:
        with SimulatedDevices(2, alpha_s=S) as devices:
            after: list[Task | None] = [None, None]
            for _ in range(3):
                shards = [devices.given(i, torch.ones(2)) for i in range(2)]
                if not prefetch:
                    shards = [
                        part if t is None else devices.compute(t.device, "then", 0.0, lambda s, _: s, part, t)
                        for part, t in zip(shards, after, strict=True)
                    ]
                layers = devices.all_gather(shards)
                after = [devices.compute(i, "layer", S, torch.sum, layers[i]) for i in range(2)]
            devices.finish()
            return devices.ideal()

    assert busy_together(run(prefetch=True), (0, COMPUTE), (0, COMMUNICATE)) > 0
    assert busy_together(run(prefetch=False), (0, COMPUTE), (0, COMMUNICATE)) == 0


def test_different_orders_are_a_deadlock_and_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timeline, "PATIENCE_S", 0.5)
    with SimulatedDevices(2) as devices:
        a, b = (devices.given(i, torch.ones(2)) for i in range(2))
        first = timeline._Meeting(2, lambda values: values, lambda _: 0.0)
        second = timeline._Meeting(2, lambda values: values, lambda _: 0.0)
        devices._join(first, 0, 0, "first", a)
        devices._join(second, 0, 0, "second", a)
        devices._join(second, 1, 1, "second", b)
        devices._join(first, 1, 1, "first", b)
        with pytest.raises(CourseError, match="waits for a device that never joins"):
            devices.finish()


def test_a_tensor_of_another_device_is_refused():
    with SimulatedDevices(2) as devices, pytest.raises(ValueError, match="send it"):
        devices.compute(1, "layer", 0.0, torch.relu, devices.given(0, torch.ones(1)))


def test_an_error_in_the_work_is_raised():
    def fails(_: torch.Tensor) -> None:
        raise ArithmeticError("no")

    with SimulatedDevices(1) as devices:
        devices.compute(0, "layer", 0.0, fails, devices.given(0, torch.ones(1)))
        with pytest.raises(ArithmeticError, match="no"):
            devices.finish()


def test_plain_sgd_is_that_of_torch_to_the_last_bit():
    ours, torchs = gpt(), gpt()
    steps = train_steps(ours, PlainSGD(ours.parameters(), 0.5), loss_of, 3)
    expected = train_steps(torchs, torch.optim.SGD(torchs.parameters(), 0.5), loss_of, 3)
    assert assert_same_training("plain SGD", steps, expected, tolerance=0.0) == 0.0
    steps = train_steps(ours, PlainSGD(ours.parameters(), 0.25), loss_of, 3)
    with pytest.raises(ParityError):
        assert_same_training("half the rate", steps, expected, tolerance=0.0)


def test_flops_are_those_that_torch_counts():
    model = gpt()
    with MatmulFlops() as ours:
        loss_of(model, 0).backward()
    with FlopCounterMode(display=False) as torchs:
        loss_of(model, 0).backward()
    assert ours.total == torchs.get_total_flops() > 0
