"""The planner: beside published trainings and measured memory, formulas, reasons, and its command.

Bytes and calls are held against real programs by the course, in lessons 22 and 28.
"""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

from helpers import PACKAGE
from rank_tools.planner import (
    CAUSAL,
    FULL,
    Layout,
    Model,
    Network,
    Plan,
    PlanError,
    Rejected,
    Training,
    best_interval,
    bubble,
    goodput,
    gpu_named,
    judge,
    mean_time_between,
    memory,
    memory_of,
    model_in,
    model_named,
    nearest_batch,
    ops,
    per_token,
    pipeline,
    propose,
    published,
    search,
    step,
    step_time,
    traffic,
    traffic_of,
    utilization,
)
from rank_tools.planner.__main__ import main
from rank_tools.planner.flops import MEGATRON
from rank_tools.planner.hardware import by_rule, fsdp_hides_from, seconds
from rank_tools.planner.stack import BF16, FSDP2, MIXED, STACKS, in_bf16, stack_named
from rank_tools.planner.transformer import gpt

# What NVIDIA's, MosaicML's, Google's and Megatron's publications say of tokens a second, and how they count:
# name, length, tokens/s/GPU, convention, peak, per cent of it.
UTILIZATIONS = [
    ("mpt-70b", 2048, 1007, FULL, 989.5e12, 41.25),
    ("mpt-7b", 2048, 10643, FULL, 989.5e12, 46.44),
    ("mpt-70b", 2048, 376, FULL, 312e12, 48.91),
    ("palm", 2048, 238.3e3 / 6144, FULL, 275e12, 46.2),
    ("8b", 8192, 14451, CAUSAL, 744e14, 1.0),  # TFLOP/s in place of a share, Megatron-Bridge 25.11
    ("405b", 8192, 292, CAUSAL, 737e14, 1.0),
    ("deepseek-v3", 4096, 3848, CAUSAL, 961e14, 1.0),
    ("megascale", 2048, 39.3e3 / 256, MEGATRON, 312e12, 53.0),  # MegaScale's table 2: Megatron-LM's row
    ("megascale", 2048, 49.0e3 / 256, CAUSAL, 312e12, 65.3),  # and its own, counted in another way
]
PARAMETERS = {
    "mpt-70b": 64862437376,  # llm-foundry
    "mpt-7b": 6658859008,
    "8b": 8030261248,
    "405b": 405853388800,
    "deepseek-v3": 671026404352,
}


@pytest.mark.parametrize(("name", "length", "tokens", "convention", "peak", "stated"), UTILIZATIONS)
def test_operations_in_each_convention(name, length, tokens, convention, peak, stated):
    ours = 100 * utilization(per_token(model_named(name, length), convention), tokens, peak)
    assert ours == pytest.approx(stated, rel=0.004)


def test_parameters_are_counted():
    assert {name: model_named(name).parameters() for name in PARAMETERS} == PARAMETERS
    assert model_named("deepseek-v3").active_parameters() == pytest.approx(37e9, rel=0.02)


def test_seconds_beside_published_trainings():
    """The error that every plan prints is that of the rows that were not used for it."""
    rows = [row for name in published.SETS[1:] for row in published.rows(name)]
    dense = [row for row in rows if row.model.experts is None]
    mixtures = [row for row in rows if row.model.experts]
    assert len(dense) >= 130 and len({row.model.name for row in dense}) >= 30
    assert published.mean_error(dense) <= search.ERROR
    assert published.mean_error(mixtures) <= search.ERROR_OF_EXPERTS
    assert sum(abs(row.deviation()) <= 0.1 for row in dense) / len(dense) >= 0.75


def test_memory_beside_measured_peaks():
    rows = published.rows("memory")
    assert len(rows) >= 30
    assert published.mean_error(rows) <= search.ERROR_OF_MEMORY
    assert sum(abs(row.deviation()) <= 0.15 for row in rows) / len(rows) >= 0.85


def test_each_row_has_its_source():
    sources, rows = published.read()
    assert {row.source for row in rows} == set(sources)
    sources, rows = published.outside()
    assert {row.source for row in rows} == set(sources) and len(rows) >= 20
    table = published.table()
    assert all(f"seconds, {name}, dense" in table for name in published.SETS)
    assert "others' runs, told what their code holds: 31 of 5 models" in table


def test_memory_of_others_is_printed_as_it_is():
    """To be told what their code holds halves the error at least."""
    _, rows = published.outside()
    off = [row.deviation() for row in rows]
    average, low, high, count = search.ERROR_OUTSIDE
    assert count == len(off)
    assert published.mean_error(rows) == pytest.approx(average, abs=0.005)
    assert (round(min(off), 2), round(max(off), 2)) == (low, high)
    untold = published.mean_error(published.outside(told=False)[1])
    assert untold == pytest.approx(search.UNTOLD, abs=0.006)
    assert untold > 2 * published.mean_error(rows)


@pytest.mark.parametrize("stack", ["megatron", "nemo", "torch"])
def test_whole_trainings_lie_in_the_range_of_a_run(stack: str):
    took = sorted(published.wholes(stack))
    assert len(took) == 10
    assert search.RUN[0] <= round(took[0], 1) and took[-2] < 2.0 < took[-1] <= search.RUN[1]


def test_a_plan_that_fits_by_less_than_the_error_is_tight(capsys: pytest.CaptureFixture):
    """Such plans follow behind all others, and say so."""
    training = Training(model_named("405b"), 16384, 2048, 1e12, stack=stack_named("torch"))
    plans, _ = propose(training)
    room = training.gpu.memory * training.usable
    assert [plan.tight for plan in plans] == sorted(plan.memory.total * 1.12 > room for plan in plans)
    assert min(plans, key=lambda plan: plan.time.total).tight and not plans[0].tight
    given = [*COMMAND, "--micro-batch=1", "--recompute=none", "--zero=3", "--tp=1", "--cp=1", "--pp=1"]
    for usable, told in (("0.92", True), ("1", False)):
        assert main([*given, "--usable", usable]) == 0
        assert ("tight   " in capsys.readouterr().out) == told


@pytest.mark.parametrize("word", published.OF_THEIR_CODE)
def test_each_word_about_their_code_is_needed(word: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(published, "OF_THEIR_CODE", (word,))
    without = published.mean_error(published.outside(told=False)[1])
    assert without > 1.1 * published.mean_error(published.outside()[1])


def test_replicas_add_up_gradients_once_a_step():
    """As with FSDP2's ``set_requires_all_reduce(is_last)``: 33 calls, 4 GB, not those of 8 micro-batches."""
    model = model_named("8b")
    layout = Layout(dp=8, replicate=8, zero=3, stack=STACKS["torch"])
    assert layout.micro_batches(512) == 8
    sent = {sync: traffic_of(model, replace(layout, sync=sync), 512) for sync in ("shards", "each", "last")}
    once = sent["shards"]["replicate", "all_reduce"]
    assert once == (33, 4 * memory.held_by(model, layout, layout.position(0)).sharded(layout, False))
    assert sent["each"]["replicate", "all_reduce"] == (8 * 33, 8 * once[1])
    assert sent["last"]["replicate", "all_reduce"] == once
    scattered = {sync: counts["dp", "reduce_scatter"][0] for sync, counts in sent.items()}
    assert scattered == {"shards": 8 * 33, "each": 8 * 33, "last": 33}
    gathered = {counts["dp", "all_gather"] for counts in sent.values()}
    assert len(gathered) == 1


def test_whole_gradients_wait_for_the_last_micro_batch():
    """8B in one piece takes 29.9 GiB in float32; with one micro-batch nothing waits."""
    model = model_named("8b")
    layout = Layout(dp=64, zero=3, stack=STACKS["torch"])
    last = replace(layout, sync="last")
    assert memory_of(model, last, 512).gradients == 4 * model.parameters()
    assert memory_of(model, last, 512).total > 25 * 2**30 + memory_of(model, layout, 512).total - 5 * 2**30
    assert memory_of(model, last, 64).gradients == memory_of(model, layout, 64).gradients
    bf16 = replace(layout, replicate=2, stack=stack_named("torch", numbers=in_bf16(FSDP2, True, True)))
    waiting = memory_of(model, bf16, 1024).gradients
    assert waiting == 2 * memory_of(model, bf16, 128).gradients  # sums of shards wait in float32


def test_bytes_of_parameters_and_adam():
    assert in_bf16(FSDP2, True, True) == BF16
    assert (in_bf16(FSDP2, False, True).optimizer, in_bf16(MIXED, False, True).optimizer) == (4, 8)
    assert in_bf16(FSDP2, True, False).optimizer == 8


@pytest.mark.parametrize(
    ("context", "plain", "recomputing"), [("ring", 6, 8), ("gather", 6, 6), ("Ulysses", 8, 12)]
)
def test_recomputing_sends_messages_of_cp_again(context: str, plain: int, recomputing: int):
    """In units of lesson 20: C, the keys of a rank, and N = 2; the heads of keys are those of queries."""
    model = replace(model_named("8b"), kv_heads=32)
    layout = Layout(cp=2, context=context, sequence_parallel=False)
    unit = model.layers * model.context / 2 * model.width * 2

    def sent(**changed: object) -> float:
        counts = traffic_of(model, replace(layout, **changed), 1)
        data = {op: size for (along, op), (_, size) in counts.items() if along == "cp" and op != "recv"}
        data.pop("all_reduce", None)
        return sum(by_rule(op, 2, size) for op, size in data.items()) / unit

    share = 2 if context == "Ulysses" else 1
    assert sent() * share == pytest.approx(plain)
    assert sent(recompute="full") * share == pytest.approx(recomputing)
    assert sent(recompute="full", recomputed=0.5) * share == pytest.approx((plain + recomputing) / 2)


def test_recomputing_makes_eight_exchanges_of_five():
    model = model_named("mixtral-8x7b")
    layout = Layout(dp=8, ep=8)
    calls = {
        recompute: traffic_of(model, replace(layout, recompute=recompute), 8)["ep", "all_to_all"][0]
        for recompute in ("none", "full")
    }
    assert calls == {"none": 5 * model.layers, "full": 8 * model.layers}


def test_some_blocks_recompute():
    """Half of the blocks keep half of what the others save, and cost half of the time."""
    model, gpu = model_named("8b"), gpu_named("h100")
    layout = Layout(dp=8, zero=3, stack=STACKS["torch"])
    kept, time = [], []
    for changed in ({}, {"recompute": "full", "recomputed": 0.5}, {"recompute": "full"}):
        kept.append(memory_of(model, replace(layout, **changed), 8).activations)
        time.append(step.stage_seconds(model, replace(layout, **changed), 0, gpu))
    assert kept[1] == pytest.approx((kept[0] + kept[2]) / 2)
    assert time[1] == pytest.approx((time[0] + time[2]) / 2)
    with pytest.raises(PlanError, match="recomputed is a share"):
        Layout(recomputed=0.0)


BOOK = {"h100": 2475, "b200": 5625}  # How to Scale Your Model, GPUs: gradients in bfloat16, nothing lost


@pytest.mark.parametrize("name", BOOK)
def test_from_how_many_tokens_fsdp_hides(name: str):
    """C / W as the book has it. By bytes alone 100 Gb/s want 6,016 to 11,986 tokens; a ring's start more."""
    ideal = gpu_named(name)._replace(gemm=1.0, link=1e15)
    block = 218e6
    found = fsdp_hides_from(block, 10**6, ideal, Network(reached=1.0))
    assert found.by_bytes * 6 / 8 == pytest.approx(BOOK[name], rel=0.002)
    slow = Network(card=12.5e9)
    of_nodes = [fsdp_hides_from(block, 8 * nodes, gpu_named("h100"), slow) for nodes in (1, 2, 16, 256)]
    assert [round(one.by_bytes) for one in of_nodes] == [2340, 6016, 11281, 11986]
    starts = [one.by_starts for one in of_nodes]
    assert starts == sorted(starts) and starts[-1] > of_nodes[-1].by_bytes
    assert fsdp_hides_from(block, 1, gpu_named("h100"), slow).tokens == 0


def test_an_nvlink_domain_of_72():
    """TP and EP of 32 stay within it, and are fast; on nodes of 8 one cannot run and the other leaves."""
    domain, node = Network(node=72), Network(node=8)
    model = model_named("405b")
    wide = Layout(tp=32, dp=2, zero=1, sequence_parallel=True, recompute="full", stack=STACKS["nemo"])
    assert isinstance(
        judge(Training(model, 64, 64, 1e12, gpu=gpu_named("gb300"), network=domain), wide), Plan
    )
    assert "leaves the node" in judge(Training(model, 64, 64, 1e12, network=node), wide).problems[0].text
    gpu = gpu_named("gb300")
    inside = seconds("all_to_all", 64, 64, 1, 1e9, gpu, domain)
    assert seconds("all_to_all", 64, 8, 1, 1e9, gpu, node) > 10 * inside


def slower(factor: float) -> Callable:
    return lambda patch: patch.setattr(ops, "K_EXTRA", 128 * factor)


def rows_that(keep: Callable[[published.Row], bool]) -> list[published.Row]:
    return [row for row in published.read()[1] if row.model.experts is None and keep(row)]


def measured_memory(row: published.Row) -> bool:
    return row.unit == "GiB"


def plain_pipelines(row: published.Row) -> bool:
    return row.layout.pp > 1 and row.layout.chunks == 1 and row.unit != "GiB"


# {what: plants a wrong formula, the rows that must notice}
WRONG: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[published.Row], bool]]] = {
    "a tile's overhead": (
        lambda patch: patch.setattr(ops, "K_EXTRA", 4000),
        lambda row: row.set == "held out",
    ),
    "attention without a mask": (
        lambda patch: patch.setattr(Model, "seen", lambda self: 4 * self.context),
        lambda row: row.set == "held out",
    ),
    "no bubble": (lambda patch: patch.setattr(step, "bubble", lambda *_: 0.0), plain_pipelines),
    "tensor parallelism for nothing": (
        lambda patch: patch.setattr(traffic, "_add_tensor", lambda counts, work: None),
        lambda row: row.layout.tp > 1 and row.unit != "GiB",
    ),
    "the logits": (lambda patch: patch.setattr(memory, "working", lambda work: 0.0), measured_memory),
    "FSDP's whole units": (lambda patch: patch.setattr(memory, "gathered", lambda work: 0), measured_memory),
    "ZeRO along dp alone": (
        lambda patch: patch.setattr(Layout, "shards", Layout.readers),
        measured_memory,
    ),
    "activations of one micro-batch": (
        lambda patch: patch.setattr(memory, "at_once", lambda *_: 1.0),
        measured_memory,
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_formula_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch):
    """The mean error of these rows grows by a tenth at least."""
    plant, keep = WRONG[what]
    rows = rows_that(keep)
    before = published.mean_error(rows)
    ops.block.cache_clear()
    plant(monkeypatch)
    after = published.mean_error(rows)
    ops.block.cache_clear()
    assert after > 1.1 * before


def test_matrix_products_of_every_shape_beside_simumax():
    """Their seconds on an A100 PCIe, of which the formula knows the peak, the bandwidth and one share."""
    gpu = gpu_named("a100")._replace(bandwidth=1.4e12)
    off = []
    with (Path(__file__).parent / "gemms_a100_pcie.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            m, n, k = (int(row[name]) for name in "mnk")
            share = 2 * m * n * k / 312e12 / ops.gemm(m, n, k, gpu, 0.78 * 312e12)
            off.append(abs(share / float(row["share"]) - 1))
    assert len(off) >= 100
    assert sum(off) / len(off) < 0.05


def test_llamas_data_parallelism_is_misprinted():
    """Table 4 of Llama 3 prints DP 4 in its last row; the GPUs and the tokens of the batch both want 8."""
    model = model_named("405b", 131072)
    layout = Layout(
        tp=8, cp=16, pp=16, chunks=8, schedule="interleaved", sequence_parallel=True, context="gather"
    )
    printed = judge(Training(model, 16384, 64, 15.6e12), replace(layout, dp=4))
    assert isinstance(printed, Rejected)
    assert printed.problems[0].text == "the mesh has 8192 ranks, not 16384"
    assert replace(layout, dp=8).ranks == 16384 and 16 * 8 * 131072 == 2**24


def test_goodput_reproduces_more_than_90_per_cent():
    """Llama 3 and MegaScale say so; with half an hour for each failure it would not be possible."""
    between = mean_time_between(16384)
    assert between / 3600 == pytest.approx(3.09, abs=0.005)
    assert goodput(best_interval(5, between), 5, 600, between) > 0.9
    assert goodput(best_interval(5, between), 5, 1800, between) < 0.9
    assert goodput(1.0, 1.0, 1e12, 1.0) == 0.0


@pytest.mark.parametrize("save_s", [1, 60, 600])
def test_no_interval_is_better_than_dalys(save_s: float):
    between = 3 * 3600
    best = max(range(1, 20000, 5), key=lambda interval: goodput(interval, save_s, 300, between))
    reached = goodput(best_interval(save_s, between), save_s, 300, between)
    assert reached >= goodput(best, save_s, 300, between) * (1 - 1e-4)


def test_the_bubble_of_each_schedule():
    assert bubble("GPipe", 4, 8) == bubble("1F1B", 4, 8) == 3 / 11
    assert bubble("interleaved", 4, 8, 2) == 1.5 / 9.5
    assert bubble("ZB-1P", 4, 8) == 1 / 9
    assert bubble("ZB-2P", 4, 8) == 0
    assert pipeline.at_once("GPipe", 4, 0, 8) == 8
    assert [pipeline.at_once("1F1B", 4, index, 8) for index in range(4)] == [4, 3, 2, 1]
    assert pipeline.at_once("interleaved", 4, 0, 8, 2) == pytest.approx(4 * (1 + 3 / (4 * 2)))
    zero_bubble = {96: 0.76 / 0.99, 128: 0.80, 256: 0.88}  # Qi et al., tables 4 and 5: 1F1B / ZB-2p on 32
    for micro_batches, measured in zero_bubble.items():
        assert 1 - bubble("1F1B", 32, micro_batches) == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(
    ("op", "size", "sent"),
    [("all_reduce", 4, 1.5), ("all_gather", 4, 3), ("reduce_scatter", 4, 0.75), ("all_reduce", 1, 0)],
)
def test_bytes_by_rule(op: str, size: int, sent: float):
    assert by_rule(op, size, 1.0) == sent


def test_a_group_that_leaves_its_node_is_slower():
    gpu, network = gpu_named("h100"), Network()
    inside = seconds("all_reduce", 8, 8, 1, 1e9, gpu, network)
    scattered = seconds("all_reduce", 8, 1, 1, 1e9, gpu, network)
    both = seconds("all_reduce", 16, 8, 1, 1e9, gpu, network)
    assert inside < both < scattered
    assert scattered / inside == pytest.approx(gpu.link / network.card, rel=0.05)
    assert Layout(tp=2, dp=32).group("dp", 8) == (32, 4)
    assert Layout(tp=2, pp=4, dp=8).group("pp", 8) == (4, 1)
    assert Layout(dp=64, ep=16).group("ep", 72) == (16, 16)


def test_korthikantis_memory_of_a_block():
    """s b h (34 + 5 a s / h), and what tensor and sequence parallelism divide of it."""
    model = model_named("gpt3")
    scores = 5 * model.heads * model.context
    width = model.width

    def kept(**choices: object) -> float:
        return memory.kept_by_block(model, Layout(stack=STACKS["2021"], **choices), experts=False)

    assert kept() == 34 * width + scores
    assert kept(tp=8) == pytest.approx(10 * width + (24 * width + scores) / 8)
    assert kept(tp=8, sequence_parallel=True) == pytest.approx((34 * width + scores) / 8)
    assert kept(recompute="selective") == 34 * width
    assert kept(recompute="full") == 2 * width
    torch = Layout(tp=8, sequence_parallel=True, stack=replace(STACKS["2021"], regather=False))
    assert memory.kept_by_block(model, torch, experts=False) > kept(tp=8, sequence_parallel=True) + 3 * width


def test_zeros_paper_and_what_keeping_shards_gathered_costs():
    """7.5B on 64: 120, 31.4, 16.6 and 1.9 GB. Without resharding a step needs whole parameters besides."""
    gigabytes = [memory.states(7.5e9, STACKS["2021"].numbers, zero, 64) / 1e9 for zero in range(4)]
    assert gigabytes == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)
    model = model_named("8b")
    fsdp = Layout(dp=64, zero=3, stack=STACKS["torch"])
    again = memory_of(model, fsdp, 128)
    kept = memory_of(model, replace(fsdp, resharding=False), 128)
    assert again.parameters == kept.parameters
    assert kept.gathered == model.parameters() * (2 + 4) > 4 * again.gathered


def test_zero_divides_along_dp_and_cp_and_experts_along_what_is_left():
    model = model_named("8b", 32768)
    alone, both = Layout(dp=8, zero=1), Layout(dp=2, cp=4, zero=1)
    assert memory_of(model, alone, 8).optimizer == memory_of(model, both, 8).optimizer
    assert ("cp", "all_reduce") not in traffic_of(model, both, 8)
    model = model_named("deepseek-v3")
    whole = memory.held_by(model, Layout(), Layout().position(0))
    parts = memory.held_by(model, Layout(dp=16, ep=8), Layout().position(0))
    assert whole.dense == parts.dense and whole.experts == 8 * parts.experts
    assert Layout(dp=16, ep=8).ranks == 16 and Layout(dp=16, ep=8).expert_shards == 2
    experts = {"edp": 2 * parts.experts}  # FSDP hands in what a rank holds, for both gathers of a block
    for ep, expected in ((8, experts), (16, {})):
        sent = traffic_of(model, Layout(dp=16, ep=ep, zero=3, stack=STACKS["torch"]), 16)
        gathered = {
            name: size for (name, op), (_, size) in sent.items() if op == "all_gather" and name != "dp"
        }
        assert gathered == expected


IMPOSSIBLE = {
    "ranks": ({"dp": 8}, "the mesh has 8 ranks, not 64"),
    "heads": ({"tp": 24, "dp": 4}, "64 heads do not divide by TP 24"),
    "node": ({"tp": 16, "dp": 4}, "TP 16 leaves the node of 8 GPUs"),
    "batch": ({"dp": 64, "micro_batch": 3}, "a global batch of 2048 is no multiple of 192: take 2112"),
    "stages": ({"pp": 32, "chunks": 8, "dp": 2, "schedule": "interleaved"}, "256 stages are more than 80"),
    "experts": ({"ep": 8, "dp": 64}, "Llama 3 70B has no experts for EP 8"),
    "ZeRO": ({"pp": 2, "dp": 32, "zero": 3}, "gathers all parameters again for each micro-batch"),
    "length": ({"cp": 64}, "a sequence of 8200 does not divide by CP 64"),
    "memory": ({"dp": 64}, "does not fit: "),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_why_a_layout_is_rejected(kind: str):
    fields, told = IMPOSSIBLE[kind]
    model = model_named("70b", 8200 if kind == "length" else 8192)
    rejected = judge(Training(model, 64, 2048, 1e12), Layout(**fields))
    assert isinstance(rejected, Rejected)
    assert [told in problem.text for problem in rejected.problems if problem.kind == kind] == [True]


def test_equal_plans_are_ordered_by_simplicity():
    training = Training(model_named("8b"), 64, 512, 1e12)
    plans = [plan for plan in propose(training)[0] if not plan.tight]
    limit = min(plan.time.total for plan in plans) * (1 + training.error)
    equal = [plan.time.total <= limit for plan in plans]
    count = sum(equal)
    assert all(equal[:count]) and count > 3
    used = [search.simplicity(plan)[0] for plan in plans[:count]]
    assert used == sorted(used)
    assert used[0] <= 1 < used[-1]


def test_any_number_of_gpus_and_a_batch_that_almost_fits():
    training = Training(model_named("405b"), 6144, 2000, 1e12)
    plans, rejected = propose(training)
    batch = nearest_batch(training, rejected)
    assert batch is not None and abs(batch / 2000 - 1) < 0.1
    more, _ = propose(replace(training, sequences=batch))
    assert len(more) > len(plans)
    assert {plan.layout.pp for plan in more} & {3, 6, 12, 24}


CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


LATENT = {"kv_lora_rank": 64, "q_lora_rank": 64, "qk_nope_head_dim": 32}
MALFORMED = [
    ({"tie_word_embeddings": []}, "tied must be true or false, not"),
    ({"num_experts": 1.5}, "routed must be a whole number of at least 1, not '1.5'"),
    ({"num_experts": 8, "moe_intermediate_size": 0}, "hidden must be"),
    ({"num_experts": 8, "num_experts_per_tok": 9}, "9 experts cannot be chosen of 8"),
    ({"head_dim": "x"}, "head_width must be"),
    ({"sliding_window": "x"}, "window must be"),
    ({"vocab_size": 10**400}, "vocabulary must be"),
    ({**LATENT, "v_head_dim": None}, "value must be"),
]


def test_a_config_of_hugging_face(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    assert model_in(str(path)).parameters() == model_named("8b").parameters()
    for text, told in (
        ("{", "config.json"),
        (json.dumps({"hidden_size": 8}), "is missing"),
        ("[]", "no config"),
        ("[" * 100_000, "no config"),
        *((json.dumps({**CONFIG, **wrong}), told) for wrong, told in MALFORMED),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(PlanError, match=told) as error:
            model_in(str(path))
        assert len(str(error.value).splitlines()) == 1


UNKNOWN = [
    ({"model_type": "bert"}, "bert is no decoder"),
    ({"model_type": "t5", "is_encoder_decoder": True}, "is no decoder"),
    (
        {"model_type": "qwen3_next", "full_attention_interval": 4},
        "full_attention_interval: layers that are no",
    ),
    (
        {"model_type": "olmo3", "layer_types": ["linear_attention", "full_attention"]},
        "1 of 2 layers are linear_attention, which the planner cannot count",
    ),
]


@pytest.mark.parametrize(("config", "told"), UNKNOWN)
def test_what_it_cannot_count_is_refused(config: dict, told: str, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **config}), encoding="utf-8")
    with pytest.raises(PlanError, match=told):
        model_in(str(path))


def test_what_it_is_not_sure_of_is_said(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "model_type": "arcee"}), encoding="utf-8")
    assert main(["--config", str(path), "--gpus", "8", "--show", "1"]) == 0
    assert "unsure   model_type arcee is not known here: it is planned as Llama" in capsys.readouterr().out
    assert not model_named("8b").unsure


OF_MY_OWN = ["--layers=12", "--width=768", "--heads=12", "--ffn=3072", "--vocabulary=50304"]
COMMAND = ["--model", "8b", "--gpus", "8", "--global-batch", "128"]


def test_the_command_shows_a_plan_its_assumptions_and_its_error(capsys: pytest.CaptureFixture):
    assert main([*COMMAND, "--show", "1", "--tokens", "100B"]) == 0
    output = capsys.readouterr().out
    assert "Llama 3 8B: 8,030,261,248 parameters on 8 x H100 80GB" in output
    for word in (
        "large GEMMs reach 73%",
        "tuned benchmarks come within 8%",
        "0.9 to 3.5 times",
        "at 2 an hour of a GPU",
        "the simplest comes first",
        "layouts run and fit",
    ):
        assert word in output
    assert "0.0 M" not in output and " k dollars" in output
    step, planned = re.search(r"step    ([0-9.]+) to [0-9.]+ s; planned ([0-9.]+)", output).groups()
    assert float(step) * 1.08 == pytest.approx(float(planned), rel=0.01)


def test_with_experts_the_range_is_a_factor_of_two(capsys: pytest.CaptureFixture):
    """As nine in ten of the published rows have it."""
    assert main(["--model", "deepseek-v3", "--gpus", "2048", "--show", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    plan = report["plans"][0]
    assert report["assumed"]["seconds"] == "with experts within a factor of 2"
    assert plan["step_s_from_to"] == [plan["time"]["total"] / 2, 2 * plan["time"]["total"]]
    assert plan["dollars_from_to"] == [plan["dollars"] / 2, 2 * plan["dollars"]]
    rows = [row.deviation() for name in published.SETS[1:] for row in published.rows(name, experts=True)]
    assert sum(0.5 <= 1 + off <= 2 for off in rows) / len(rows) > 0.9


def test_the_command_prints_json(capsys: pytest.CaptureFixture):
    assert main([*COMMAND, "--json", "--show", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["plans"]) == 2 and report["error"] == search.ERROR
    assert report["plans"][0]["time"]["total"] > 0 and report["model"]["parameters"] == 8030261248


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--model", "405b", "--gpus", "8"], 1, "0 layouts run and fit"),
        ([*COMMAND, "--restart", "1e12"], 1, "no work gets done"),
        ([*COMMAND, "--gpu-hours", "1e-9"], 1, "no work gets done"),
        ([*COMMAND, "--save", "1e9"], 0, "layouts run and fit"),
        (["--model", "8b", "--gpus", "6144", "--nic", "1e-9"], 0, "layouts run and fit"),
        ([*COMMAND, "--gpu", "v100", "--memory", "300"], 0, "seconds  not known for V100"),
        ([*COMMAND, "--gpu", "mi355x"], 0, "seconds  not known for MI355X"),
        ([*COMMAND, "--gpu", "h20"], 0, "seconds  not known for H20"),
        (["--model", "405b", "--gpus", "576", "--gpu", "gb300"], 0, "72 GPUs at 900 GB/s"),
        (["--model", "Llama-3.1-8B", "--gpus", "8"], 0, "Llama 3 8B: 8,030,261,248"),
        (
            [*COMMAND, "--bf16-parameters", "--bf16-adam"],
            0,
            "2 bytes of a parameter, 2 of its gradient, 4 of",
        ),
        ([*COMMAND, "--zero", "3", "--sync", "last"], 0, "sync last"),
        ([*COMMAND, "--brief", "--tp", "2"], 0, "waiting add: tp "),
        ([*COMMAND, "--brief", "--memory", "8"], 1, ": does not fit: "),
        ([*COMMAND, "--gpu", "h800"], 0, "not known for H800 80GB: DeepSeek-V3's step is planned at 43 s"),
        ([*COMMAND, "--stack", "torch", "--logits", "6", "--whole-logits"], 0, "6 of a logit, whole on each"),
        (["--model", "8b", "--gpus", "128"], 0, "at 400 Gb/s a GPU, 12,149 at 100 Gb/s"),
        ([*COMMAND, "--zero", "3", "--micro-batch", "8", "--recompute", "none", "--anyway"], 0, "DP 8, FSDP"),
        ([*COMMAND, "--anyway"], 0, "tensors get all that they need (--anyway)"),
        (
            ["--gpus=8", "--layers=12", "--width=768", "--heads=12", "--ffn=3072", "--vocabulary=50304"],
            0,
            "12 layers",
        ),
    ],
)
def test_no_number_breaks_it(arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture):
    assert main([*arguments, "--show", "1"]) == code
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "9b", "--gpus", "8"], "there is no model '9b'"),
        (["--model", "llama-3.1-80b", "--gpus", "8"], "the nearest name is 8b"),
        ([*COMMAND, "--recompute", "full", "--recomputed", "2"], "recomputed is a share of 1"),
        (["--model", "8b", "--gpus", "none"], "'none' is no whole number"),
        (["--model", "8b", "--gpus", "0"], "must be at least 1"),
        (["--model", "8b"], "the following arguments are required: --gpus"),
        (["--gpus", "8"], "give one of --model, --config, or --layers"),
        (["--gpus", "8", "--layers", "3"], "a model of your own needs all of --layers"),
        (["--config", "none.json", "--gpus", "8"], "none.json"),
        ([*COMMAND, "--gpu", "h1000"], "there is no GPU 'h1000'"),
        ([*COMMAND, "--gpu", "a100", "--fp8"], "A100 80GB has no FP8"),
        ([*COMMAND, "--tokens", "many"], "'many' is no number"),
        ([*COMMAND, "--tokens", "-1"], "must be above 0"),
        ([*COMMAND, "--peak", "1e-320"], "is not between 1e-12 and 1e+24"),
        ([*COMMAND, "--dollars", "1e308"], "is not between 1e-12 and 1e+24"),
        ([*COMMAND, "--experts", "8"], "a named model has its own"),
        (["--gpus=8", "--layers=9999", *OF_MY_OWN[1:]], "9999 layers are more than 500"),
        ([*COMMAND, "--gemm", "1.5"], "gemm is a share of 1"),
        ([*COMMAND, "--tp", "3"], "tp 3 does not divide 8 GPUs"),
        ([*COMMAND, "--zero", "4"], "invalid choice"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture):
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    stderr = capsys.readouterr().err
    assert code == 2
    assert stderr.startswith("rank-plan: ")
    assert stderr.count("\n") == 1
    assert told in stderr


@pytest.mark.slow
def test_the_folder_can_be_copied_and_its_reader_may_leave(tmp_path: Path):
    """It needs Python alone, under any name; ``| head -1`` is no error."""
    copytree(PACKAGE / "planner", tmp_path / "planner")
    alone = "import sys; sys.path.insert(0, sys.argv.pop(1)); from planner.__main__ import command; "
    alone += "import planner; assert not {'torch', 'rank_tools'} & set(sys.modules); command()"
    run = [sys.executable, "-I", "-c", alone, str(tmp_path), "--model", "8b", "--gpus", "8"]
    whole = subprocess.run([*run, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert whole.returncode == 0, whole.stderr
    assert "memory: " in whole.stdout
    with subprocess.Popen([*run, "--show", "999"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as left:
        assert left.stdout is not None and left.stderr is not None
        assert left.stdout.readline().startswith(b"Llama 3 8B")
        left.stdout.close()
        assert left.stderr.read() == b""
    assert left.returncode == 0


def test_a_stack_decides_seconds_and_memory():
    """Eager kernels, FP8, hidden tensor parallelism: each moves what it should, and nothing else breaks."""
    model, gpu, network = model_named("8b"), gpu_named("h100"), Network()
    layout = Layout(dp=8, zero=3, micro_batch=2, stack=STACKS["torch"])

    def total(**changed: object) -> float:
        stack = stack_named("torch", **changed)
        return step_time(model, replace(layout, stack=stack), 128, gpu, network).total

    assert total(fp8=True) < 0.9 * total() < total()
    assert total(fused=False) > 1.05 * total()
    assert total(attention="unfused") > 1.3 * total()
    assert isinstance(judge(Training(model, 8, 128, 1e12), replace(layout, micro_batch=1)), Plan)
    assert gpt("GPT", 2, 64, 4, 63, 32).parameters() > 0
