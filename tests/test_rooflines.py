"""The rooflines of lesson 28 beside all trainings of ``published.csv``, and beside the planner.

In no published training may communication alone take longer than the whole step took. That refutes formulas
that are too slow; it cannot refute ones that are too fast.
"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

from rank_tools.planner import Layout, model_named, stack_named, traffic_of
from rank_tools.planner.hardware import Gpu, Network, gpu_named, seconds
from rank_tools.planner.layout import blocks_of
from rank_tools.planner.published import Row, read
from rank_tools.planner.step import most_traffic, step_time
from shared.runtime.loading import load_file
from tests.helpers import LABS, ROOT

from lesson_28.real_size import ROWS as ROWS_AT_REAL_SIZE
from lesson_28.real_size import TO_FIT, held, table
from lesson_28.real_size import seconds as real_size_seconds

LAB = LABS / "lab_28_rooflines.py"
GROUPS = ((8, 8), (16, 8), (128, 8), (2048, 8), (16, 1), (64, 2))  # ranks, and how many of them share a node
ROWS = [row for row in read()[1] if row.unit != "GiB"]
# {what: old, new}: what an earlier edition of the lesson had, and its opposite
FAULTS = {
    "each GPU brings in all bytes through its own card": (
        "/ (near * machine.card)",
        "/ machine.card",
    ),
    "an exchange through the cards of all": (
        "size * (ranks - near) / ranks / machine.card",
        "size * (ranks - near) / ranks / (near * machine.card)",
    ),
}


def lab_with(tmp_path: Path, old: str = "", new: str = "") -> ModuleType:
    text = LAB.read_text(encoding="utf-8")
    assert not old or text.count(old) == 1
    path = tmp_path / "lab_28_changed.py"
    path.write_text(text.replace(old, new) if old else text, encoding="utf-8")
    return load_file(path)


def seconds_of(lab: ModuleType, op: str, handed_in: float, ranks: int, near: int, machine: object) -> float:
    """By the lesson's formulas, of what a rank hands in to a collective."""
    if op == "all_gather":
        return lab.all_gather(handed_in * ranks, ranks, near, machine)
    if op == "reduce_scatter":
        return lab.all_gather(handed_in, ranks, near, machine)
    if op == "all_reduce":
        return 2 * lab.all_gather(handed_in, ranks, near, machine)
    return lab.all_to_all(handed_in, ranks, near, machine)


def machine_of(lab: ModuleType, gpu: Gpu, network: Network) -> object:
    link, card = gpu.link * network.reached, network.card * network.reached
    return lab.Machine(gpu.gemm * gpu.peak, link, card, network.node)


def communication(lab: ModuleType, row: Row) -> dict[str, float]:
    """{dimension of the mesh: seconds of its collectives in a step}; sends are left out."""
    machine = machine_of(lab, gpu_named(row.gpu), row.network)
    found: dict[str, float] = {}
    for (dimension, op), (_, handed_in) in most_traffic(row.model, row.layout, row.batch).items():
        if op not in ("send", "recv"):
            ranks, near = row.layout.group(dimension, row.network.node)
            near = max(size for size in range(1, max(1, min(ranks, near)) + 1) if ranks % size == 0)
            taken = seconds_of(lab, op, handed_in, ranks, near, machine)
            found[dimension] = found.get(dimension, 0.0) + taken
    return found


def impossible(lab: ModuleType) -> list[str]:
    """Trainings along a dimension of which collectives alone would take longer than the whole step took."""
    told = []
    for row in ROWS:
        planned = step_time(row.model, row.layout, row.batch, gpu_named(row.gpu), row.network).total
        took = planned * (1 + row.deviation())
        longest = max(communication(lab, row).values(), default=0.0)
        if longest > took:
            told.append(f"{row.model.name} on {row.layout.ranks} x {row.gpu}: {longest:.2f} s of {took:.2f}")
    return told


def off_the_planner(lab: ModuleType) -> list[str]:
    """Collectives whose seconds are not the planner's, but for what starts them."""
    gpu, nothing = gpu_named("h100"), dict.fromkeys(("hop_inside", "hop_between"), 0.0)
    network = replace(Network(), start_inside=0.0, start_between=0.0, **nothing)
    machine = machine_of(lab, gpu, network)
    told = []
    for op in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        for ranks, near in GROUPS:
            own = seconds_of(lab, op, 1e9, ranks, near, machine)
            planned = seconds(op, ranks, near, 1, 1e9, gpu, network)
            if abs(own / planned - 1) > 1e-9:
                told.append(f"{op} of {ranks} ranks: {own:.4g} s, the planner says {planned:.4g}")
    return told


def test_no_training_contradicts_the_rooflines(tmp_path: Path):
    lab = lab_with(tmp_path)
    assert len(ROWS) == 191
    assert impossible(lab) == []
    assert off_the_planner(lab) == []


@pytest.mark.parametrize("what", FAULTS)
def test_a_wrong_roofline_is_told(what: str, tmp_path: Path):
    lab = lab_with(tmp_path, *FAULTS[what])
    assert impossible(lab) or off_the_planner(lab)


def test_twelve_trainings_refute_one_card_for_each_gpu(tmp_path: Path):
    lab = lab_with(tmp_path, *FAULTS["each GPU brings in all bytes through its own card"])
    assert len(impossible(lab)) == 12


def test_the_planner_has_eight_bytes_of_a_parameter_and_eight_or_ten_rows_of_a_token():
    """What the lesson's text counts by hand for FSDP and for tensor parallelism."""
    llama, ranks = model_named("405b"), 64
    sent = traffic_of(llama, Layout(dp=ranks, zero=3), sequences=ranks)
    moved = sent["dp", "all_gather"][1] * ranks + sent["dp", "reduce_scatter"][1]
    assert moved / llama.parameters() == pytest.approx(8, rel=0.01)
    for stack, transfers in (("torch", 8), ("nemo", 10)):
        layout = Layout(tp=8, pp=8, dp=32, sequence_parallel=True, stack=stack_named(stack))
        sent = traffic_of(llama, layout, sequences=32)
        rows = sent["tp", "all_gather"][1] * layout.tp + sent["tp", "reduce_scatter"][1]
        row = len(blocks_of(llama, layout, 0)) * llama.context * llama.width * 2
        assert rows / row == pytest.approx(transfers, rel=0.02)


def test_latencies_are_the_planners(tmp_path: Path):
    lab = lab_with(tmp_path)
    for ranks in (16, 128, 2048):
        planned = Network().start("all_gather", ranks, 8)
        assert lab.latency(ranks, 8, lab.H100) == pytest.approx(planned)


def test_what_a_newer_nccl_would_change(tmp_path: Path):
    """Its 14 us between nodes: the threshold of 8B on 256 nodes, as the lesson rounds it."""
    lab = lab_with(tmp_path)
    newer = replace(lab.H100, hop_between=14e-6)
    assert round(lab.of_fsdp(1, 2048, newer, lab.BLOCKS["8B"]), -3) == 19_000


def test_tp_is_decided_by_the_width_of_the_mlp(tmp_path: Path):
    """The ratio is 1 at TP - 1 = 0.375 x block / width x NVLink / C; 0.3 x, with Megatron's transfers."""
    lab = lab_with(tmp_path)
    prices = {}
    for name in ("8b", "70b", "405b"):
        model = model_named(name)
        block = (model.parameters() - 2 * model.vocabulary * model.width) / model.layers
        others = 0.375 * block / model.width * lab.H100.link / lab.H100.flops
        prices[name] = lab.of_tp(model.width, block, 8, lab.H100)
        assert prices[name] == pytest.approx(7 / others)
        assert 0.375 * block / model.width == pytest.approx(1.4 * model.hidden, rel=0.03)
        assert 0.3 * block / model.width == pytest.approx(model.hidden, rel=0.12)
    page = (ROOT / "notebooks" / "strategies.md").read_text(encoding="utf-8")
    assert f"Megatron ten: with ten, 70B pays {10 / 8 * prices['70b']:.2f} at TP 8, if none hides." in page
    ratios = f"TP 8: {prices['70b']:.2f} of the computing for 70B, {prices['8b']:.2f} for 8B"
    assert f"{ratios}; about 1 for 70B at TP 20." in page
    assert 19 / 7 * prices["70b"] < 1 < 20 / 7 * prices["70b"]


def test_the_lessons_text_holds_for_its_numbers():
    """Runs the cells by hand and of the cost."""
    cells = nbformat.read(ROOT / "notebooks" / "28_plan_a_cluster.ipynb", as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    found: dict = {}
    ends = ('parameters"', 'of activations"', '- 1:+.0%}")', 'on 16,384")')
    of_code = [cell.source for cell in cells if cell.cell_type == "code"]
    for end in ends:
        (source,) = (source for source in of_code if source.endswith(end))
        exec(source, found)
    below = 1 - found["by_hand"] / found["MEASURED"]
    assert f"the seconds are {below:.0%} below the measured ones".replace("%", " %") in text
    best = list(found["best"].values())
    growth = [more.dollars / fewer.dollars for fewer, more in pairwise(best)]
    assert 1.1 < max(growth[:-1]) < 1.12 and "raises the total cost by at most a ninth" in text
    assert f"the last doubling by {round(growth[-1] - 1, 1):.0%}.".replace("%", " %") in text
    assert found["low"] < found["meta"] / found["best"][16_384].days < 1.1
    cost = f"{round(found['best'][8192].days)} days for {round(found['best'][8192].dollars / 1e6)} million"
    assert f"8,192 finish in {cost} dollars" in text


def test_ranks_that_fill_no_node_are_refused(tmp_path: Path):
    lab = lab_with(tmp_path)
    with pytest.raises(ValueError, match="12 ranks do not fill nodes of 8"):
        lab.of_fsdp(1, 12, lab.H100)


def test_the_page_of_strategies_has_what_real_size_prints():
    page = (ROOT / "notebooks" / "strategies.md").read_text(encoding="utf-8")
    assert table() in page


def test_what_the_page_of_strategies_says_at_real_size():
    """DDP and ZeRO-1 do not fit. TP and CP are slow with one sequence at a time, not with as many as fit."""
    fits = {name: held(layout).total / 2**30 < TO_FIT for name, layout in ROWS_AT_REAL_SIZE.items()}
    assert [name for name, fit in fits.items() if not fit] == ["DDP 64", "ZeRO-1 64, as in Megatron"]
    recomputing = real_size_seconds(ROWS_AT_REAL_SIZE["FSDP 64, checkpointing"], Network())
    for name in ("FSDP 8 x TP 8 + SP", "FSDP 8 x CP 8, gather", "FSDP 8 x PP 8"):
        assert real_size_seconds(ROWS_AT_REAL_SIZE[name], Network()) > 1.6 * recomputing
    both = Network(), Network(card=12.5e9)
    tp, cp = (
        [real_size_seconds(ROWS_AT_REAL_SIZE[f"FSDP 8 x {name} at a time"], network) for network in both]
        for name in ("TP 8, 4", "CP 8, 8")
    )
    fsdp, *others = (
        [real_size_seconds(ROWS_AT_REAL_SIZE[name], network) for network in both]
        for name in ("FSDP 64", "FSDP 8 x TP 8 + SP", "FSDP 8 x CP 8, gather", "FSDP 8 x PP 8")
    )
    fast = [times[0] / fsdp[0] for times in others]
    slow = [times[1] / fsdp[1] for times in others]
    assert 2 < min(fast) < max(fast) < 2.5
    assert 5.6 < min(slow[:2]) < max(slow[:2]) < 6
    for at_a_time, alone in ((tp, others[0]), (cp, others[1])):
        assert at_a_time[0] < 0.8 * alone[0] and at_a_time[1] < 0.4 * alone[1]
