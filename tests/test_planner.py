"""The planner beside what others have published. Each row names its source and how far off we are.

``python -m tests.test_planner`` prints the table. A test plants a wrong formula for each kind of row, and
then all rows of that kind are red.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree

import pytest

from shared.planner import (
    CAUSAL,
    FULL,
    GPUS,
    PARAMETERS_ONLY,
    Layout,
    Network,
    Plan,
    Rejected,
    Training,
    best_interval,
    bubble,
    failures,
    flops,
    goodput,
    judge,
    mean_time_between,
    memory,
    model_named,
    models,
    per_token,
    pipeline,
    propose,
    search,
    step,
    step_time,
    utilization,
)
from shared.planner.__main__ import main
from shared.planner.failures import young
from shared.planner.flops import MEGATRON
from shared.planner.hardware import by_rule, seconds
from shared.planner.memory import ZERO_PAPER, states
from tests.helpers import ROOT

H100 = 989.5e12  # what llm-foundry divides by
A100 = 312e12
TPU_V4 = 275e12


@dataclass(frozen=True)
class Row:
    """A published figure.

    Attributes:
        kind: of the formula; PLANTED has a wrong one for each.
        ours: the planner's figure.
        off: how far ours may be off, as a share of what is published: what rounding explains, or, for a
            prediction, what we claim.
    """

    kind: str
    what: str
    published: float
    ours: Callable[[], float]
    off: float

    def deviation(self) -> float:
        return self.ours() / self.published - 1


def mfu(name: str, length: int, tokens: float, convention: flops.Convention, peak: float) -> float:
    """Per cent."""
    return 100 * utilization(per_token(model_named(name, length), convention), tokens, peak)


def tflops(name: str, tokens: float, length: int) -> float:
    return per_token(model_named(name, length), CAUSAL) * tokens / 1e12


# mosaicml/llm-foundry, scripts/train/benchmarking/README.md: model, GPUs, tokens/s/GPU, MFU, peak
FOUNDRY = [
    ("mpt-70b", 512, 1007, 41.25, H100),
    ("mpt-70b", 256, 1035, 42.42, H100),
    ("mpt-70b", 128, 1058, 43.36, H100),
    ("mpt-7b", 8, 10643, 46.44, H100),
    ("mpt-70b", 128, 376, 48.91, A100),
]
# NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary-archive.md:
# release, model, GPUs, tokens/s/GPU, TFLOP/s
BRIDGE = [
    ("25.11 H100", "8b", 8, 14451, 744),
    ("25.11 H100", "70b", 64, 1602, 719),
    ("25.11 H100", "405b", 1024, 292, 737),
    ("26.06 GB300", "405b", 256, 1048, 2646),
    ("26.02 GB300 NVFP4", "70b", 64, 6798, 3056),
    ("26.02 GB300 NVFP4", "405b", 256, 1333, 3365),
    ("26.02 H100", "405b", 1024, 311, 784),
]
BRIDGE_DEEPSEEK = [("BF16", 3848, 961), ("FP8-MX", 4357, 1088)]  # 25.11 GB300, without the extra head, s4096
# MegaScale (arXiv 2402.15627), table 2: who, sequences, GPUs, seconds, thousand tokens/s, days, MFU
MEGASCALE = [
    ("Megatron-LM", 768, 256, 40.0, 39.3, 88.35, 53.0),
    ("Megatron-LM", 768, 1024, 11.9, 132.7, 26.17, 44.7),
    ("Megatron-LM", 6144, 3072, 29.02, 433.6, 8.01, 48.7),
    ("Megatron-LM", 6144, 12288, 8.57, 1466.8, 2.37, 41.2),
    ("MegaScale", 768, 256, 32.0, 49.0, 70.86, 65.3),
    ("MegaScale", 768, 1024, 8.9, 176.9, 19.62, 59.0),
    ("MegaScale", 6144, 3072, 23.66, 531.9, 6.53, 59.1),
    ("MegaScale", 6144, 12288, 6.34, 1984.0, 1.75, 55.2),
]
# Zero Bubble (arXiv 2401.10241), tables 4 and 5, 28.3B on 32 GPUs: micro-batches, 1F1B, ZB-2p, samples/GPU/s
ZERO_BUBBLE = [(96, 0.76, 0.99), (128, 0.80, 1.00), (256, 0.88, 1.00)]
# ZeRO (arXiv 1910.02054), figure 1, 7.5B on 64 GPUs: stage, GB
ZERO = [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)]
# Llama 3 (arXiv 2407.21783), table 4: GPUs, length, cp, dp, sequences for each dp, TFLOP/s, MFU.
# It prints dp 4 in the last row; 16,384 GPUs and 16M tokens need 8.
LLAMA = [
    (8192, 8192, 1, 64, 32, 430, 43),
    (16384, 8192, 1, 128, 16, 400, 41),
    (16384, 131072, 16, 8, 16, 380, 38),
]


def llama_layout(cp: int, dp: int) -> Layout:
    """With 8 stages a rank, which the paper does not say: 126 blocks, embedding and head are 16 x 8."""
    return Layout(
        tp=8,
        cp=cp,
        pp=16,
        dp=dp,
        zero=2,
        chunks=8,
        schedule="interleaved",
        sequence_parallel=True,
        context="gather",
    )


def llama_step(row: tuple, reached: float) -> float:
    """TFLOP/s of a GPU, predicted."""
    gpus, length, cp, dp, each, *_ = row
    model = model_named("405b", length)
    sequences = each * dp
    time = step_time(model, llama_layout(cp, dp), sequences, GPUS["h100"], Network(), reached).total
    return tflops("405b", sequences * length / time / gpus, length)


def fitted() -> float:
    """The share of the peak with which the first row of Llama's table comes out."""
    low, high = 0.3, 0.9
    for _ in range(40):
        middle = (low + high) / 2
        if llama_step(LLAMA[0], middle) < LLAMA[0][5]:
            low = middle
        else:
            high = middle
    return low


def rows() -> list[Row]:
    found = [
        Row(
            FULL.name,
            f"llm-foundry, {name} on {gpus}, {'H100' if peak == H100 else 'A100'}: MFU",
            published,
            lambda name=name, tokens=tokens, peak=peak: mfu(name, 2048, tokens, FULL, peak),
            0.002,
        )
        for name, gpus, tokens, published, peak in FOUNDRY
    ]
    for name, count in (("mpt-70b", 64862437376), ("mpt-7b", 6658859008)):
        what = f"llm-foundry, {name}: parameters"
        found.append(Row("parameters", what, count, lambda name=name: model_named(name).parameters(), 0.0))
    for release, name, gpus, tokens, published in BRIDGE:
        found.append(
            Row(
                CAUSAL.name,
                f"Megatron-Bridge {release}, {name} on {gpus}: TFLOP/s",
                published,
                lambda name=name, tokens=tokens: tflops(name, tokens, 8192),
                0.002,
            )
        )
    for numbers, tokens, published in BRIDGE_DEEPSEEK:
        what = f"Megatron-Bridge 25.11 GB300, deepseek-v3 {numbers}: TFLOP/s"
        ours = lambda tokens=tokens: tflops("deepseek-v3", tokens, 4096)  # noqa: E731
        found.append(Row(CAUSAL.name, what, published, ours, 0.004))
    return found + megascale_rows() + paper_rows() + llama_rows()


def megascale_rows() -> list[Row]:
    found = []
    for who, sequences, gpus, step_s, tokens, days, published in MEGASCALE:
        what = f"MegaScale table 2, {who} on {gpus}"
        found.append(
            Row(
                "tokens",
                f"{what}: k tokens/s",
                tokens,
                lambda n=sequences, s=step_s: step.tokens_per_s(model_named("megascale"), n, s) / 1e3,
                0.006,
            )
        )
        found.append(
            Row(
                "days",
                f"{what}: days for 300B tokens",
                days,
                lambda tokens=tokens: search.days_for(300e9, tokens * 1e3),
                0.003,
            )
        )
        rate = tokens * 1e3 / gpus
        convention = CAUSAL if who == "MegaScale" else MEGATRON  # see test_one_table_has_two_conventions
        found.append(
            Row(
                convention.name,
                f"{what}: MFU",
                published,
                lambda rate=rate, how=convention: mfu("megascale", 2048, rate, how, A100),
                0.004,
            )
        )
    return found


def paper_rows() -> list[Row]:
    found = []
    for micro_batches, slow, fast in ZERO_BUBBLE:
        found.append(
            Row(
                "bubble",
                f"Zero Bubble, 28.3B, p 32, m {micro_batches}: 1F1B / ZB-2p",
                slow / fast,
                lambda m=micro_batches: 1 - bubble("1F1B", 32, m),
                0.02,
            )
        )
    found.append(
        Row(
            "bubble",
            "torchtitan 202412, 405B on 512 H100: interleaved / 1F1B",
            128 / 100,
            lambda: (1 - bubble("interleaved", 8, 8, 2)) / (1 - bubble("1F1B", 8, 8)),
            0.02,
        )
    )
    for zero, published in ZERO:
        ours = lambda zero=zero: states(7.5e9, ZERO_PAPER, zero, 64) / 1e9  # noqa: E731
        found.append(Row("states", f"ZeRO figure 1, stage {zero}: GB", published, ours, 0.05 / published))
    deepseek = model_named("deepseek-v3")
    hours = 180e3  # of a GPU, for 1e12 tokens
    found += [
        Row(
            "days",
            "DeepSeek-V3, 2,048 H800: days for 1T tokens",
            3.7,
            lambda: search.days_for(1e12, 1e12 / (hours * 3600) * 2048),
            0.015,
        ),
        Row("active", "DeepSeek-V3: billion parameters of a token", 37, lambda: active(deepseek) / 1e9, 0.02),
        Row("parameters", "DeepSeek-V3: parameters", 671e9, lambda: deepseek.parameters(), 0.001),
        Row("parameters", "PaLM: parameters", 540.35e9, lambda: model_named("palm").parameters(), 0.0001),
        Row("parameters", "GPT-3: parameters", 175e9, lambda: model_named("gpt3").parameters(), 0.003),
        Row(
            FULL.name,
            "PaLM, 6,144 TPU v4: MFU",
            46.2,
            lambda: mfu("palm", 2048, 238.3e3 / 6144, FULL, TPU_V4),
            0.002,
        ),
        Row("scores", "Korthikanti et al., GPT-3: selective saves, %", 70, lambda: selective("gpt3"), 0.01),
        Row(
            "scores", "Korthikanti et al., MT-NLG: selective saves, %", 65, lambda: selective("mt-nlg"), 0.01
        ),
        Row(
            "recompute",
            "Narayanan et al., 175B on 1,024 A100: days",
            34,
            lambda: narayanan(175e9, 300e9, 1024, 140),
            0.01,
        ),
        Row(
            "recompute",
            "Narayanan et al., 1T on 3,072 A100: days",
            84,
            lambda: narayanan(1.008e12, 450e9, 3072, 163),
            0.01,
        ),
    ]
    return found


def active(model: models.Model) -> float:
    return model.active_parameters()


def selective(name: str) -> float:
    """Per cent of a block's activations that selective recomputation does without."""
    model = model_named(name)
    everything = memory.per_layer(model, Layout())
    return 100 * (1 - memory.per_layer(model, Layout(recompute="selective")) / everything)


def narayanan(parameters: float, tokens: float, gpus: int, tflop_s: float) -> float:
    """Days, at so many TFLOP/s of the hardware, which computes forward twice: 8 operations a parameter."""
    alike = replace(model_named("gpt3"), layers=1)
    repeated = per_token(alike, PARAMETERS_ONLY, "full") / alike.parameters()
    return repeated * parameters * tokens / (gpus * tflop_s * 1e12) / search.DAY_S


def llama_rows() -> list[Row]:
    found = [
        Row(
            "peak",
            f"Llama 3 table 4, {gpus} GPUs, {length} tokens: MFU of {rate} TFLOP/s",
            published,
            lambda rate=rate: 100 * rate * 1e12 / GPUS["h100"].peak,
            0.015,
        )
        for gpus, length, _, _, _, rate, published in LLAMA
    ]
    for row in LLAMA[1:]:
        gpus, length, *_, rate, _ = row
        what = f"Llama 3 table 4, {gpus} GPUs, {length} tokens: TFLOP/s predicted"
        found.append(Row("predicted", what, rate, lambda row=row: llama_step(row, fitted()), 0.03))
    found.append(
        Row(
            "operations",
            "Llama 3, 405B on 15.6T tokens: operations",
            3.8e25,
            lambda: per_token(model_named("405b"), PARAMETERS_ONLY) * 15.6e12,
            0.002,
        )
    )
    found.append(
        Row(
            "between",
            "Llama 3, 16,384 GPUs: unexpected interruptions in 54 days",
            419,
            lambda: 54 * 86400 / mean_time_between(16384),
            0.001,
        )
    )
    return found


ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_published_figure_is_ours(row: Row):
    assert abs(row.deviation()) <= row.off, f"{row.what}: {row.ours():.5g}, off by {row.deviation():+.2%}"


def test_there_are_enough_of_them():
    assert len(ROWS) >= 25


def wrong_attention(patch: pytest.MonkeyPatch, factor: float) -> None:
    """Attention counts in another way than the convention says."""
    before = models.Model.attention_width
    patch.setattr(models.Model, "attention_width", lambda self: factor * before(self))


def without_head(patch: pytest.MonkeyPatch) -> None:
    """The head counts as if it were looked up, too."""
    before = models.Model.embedding
    patch.setattr(models.Model, "embedding", lambda self: before(self) + self.vocabulary * self.width)


def no_bubble(*_: object) -> float:
    return 0.0


# {kind: plants a wrong formula}
PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    FULL.name: lambda patch: wrong_attention(patch, 0.5),
    CAUSAL.name: lambda patch: wrong_attention(patch, 2.0),
    MEGATRON.name: lambda patch: wrong_attention(patch, 0.5),
    "parameters": lambda patch: patch.setattr(
        models.Model, "parameters", lambda self: 12 * self.layers * self.width**2
    ),
    "active": lambda patch: patch.setattr(models.Model, "active_parameters", lambda self: self.parameters()),
    "tokens": lambda patch: patch.setattr(step, "tokens_per_s", lambda model, n, s: n * 2000 / s),
    "days": lambda patch: patch.setattr(search, "DAY_S", 24 * 60 * 60 * 1.05),
    "bubble": lambda patch: patch.setitem(
        globals(), "bubble", lambda name, p, m, v=1: 2 * (p - 1) / (m * v + 2 * p - 2)
    ),
    "states": lambda patch: patch.setitem(globals(), "ZERO_PAPER", memory.MIXED),
    "scores": lambda patch: patch.setattr(
        memory, "per_layer", lambda model, layout: 34 if layout.recompute == "selective" else 34 + 5
    ),
    "recompute": lambda patch: patch.setitem(
        globals(), "per_token", lambda model, convention, recompute=None: 6 * model.parameters()
    ),
    "peak": lambda patch: patch.setitem(GPUS, "h100", replace(GPUS["h100"], peak=1979e12)),  # sparse
    "predicted": lambda patch: patch.setattr(step, "bubble", no_bubble),
    "operations": lambda patch: patch.setitem(globals(), "PARAMETERS_ONLY", FULL),
    "between": lambda patch: patch.setattr(failures, "GPU_HOURS_PER_FAILURE", 54 * 24 * 16384 / 466),
}


def test_each_kind_has_a_wrong_formula():
    assert {row.kind for row in ROWS} == set(PLANTED)


@pytest.mark.parametrize("kind", PLANTED)
def test_a_wrong_formula_is_found(kind: str, monkeypatch: pytest.MonkeyPatch):
    """By each row of its kind."""
    PLANTED[kind](monkeypatch)
    still_right = [row.what for row in ROWS if row.kind == kind and abs(row.deviation()) <= row.off]
    assert still_right == []


def test_llamas_data_parallelism_is_misprinted():
    """Table 4 prints DP 4 in its last row; the GPUs and the tokens of the batch both want 8."""
    model = model_named("405b", 131072)
    as_printed = judge(Training(model, 16384, 64, 15.6e12), llama_layout(16, 4))
    assert isinstance(as_printed, Rejected)
    assert as_printed.problems[0].text == "the mesh has 8192 ranks, not 16384"
    assert isinstance(judge(Training(model, 16384, 128, 15.6e12), llama_layout(16, 8)), Plan)
    assert 16 * 8 * 131072 == 2**24


def test_llamas_share_of_faulty_gpus_is_misprinted():
    """Table 5 prints 30.1 % for 148 of 419 interruptions, beside 17.2 % for 72."""
    assert round(100 * 72 / 419, 1) == 17.2
    assert round(100 * 148 / 419, 1) == 35.3


def test_megascales_petaflops_on_12288_are_misprinted():
    """Table 2 prints 2166.3. Its own tokens a second, and its own MFU, give 2.5 % less; other rows agree."""
    printed = {3072: (531.9e3, 59.1, 566.5), 6144: (1030.9e3, 57.3, 1098.4), 12288: (1984.0e3, 55.2, 2166.3)}
    off = {}
    for gpus, (tokens, percent, petaflops) in printed.items():
        by_tokens = per_token(model_named("megascale"), CAUSAL) * tokens / 1e15
        by_mfu = percent / 100 * gpus * A100 / 1e15
        assert abs(by_tokens / by_mfu - 1) < 0.005
        off[gpus] = petaflops / by_mfu - 1
    assert abs(off[3072]) < 0.001 and abs(off[6144]) < 0.001
    assert off[12288] == pytest.approx(0.0236, abs=0.001)


def test_one_table_has_two_conventions():
    """Of table 2 of MegaScale, the rows of Megatron-LM count all of attention, its own rows half of it."""
    for who, _, gpus, _, tokens, _, published in MEGASCALE:
        rate = tokens * 1e3 / gpus
        off = {
            how.name: mfu("megascale", 2048, rate, how, A100) / published - 1 for how in (CAUSAL, MEGATRON)
        }
        own, other = (CAUSAL, MEGATRON) if who == "MegaScale" else (MEGATRON, CAUSAL)
        assert abs(off[own.name]) < 0.004 < 0.009 < abs(off[other.name])


def test_llamas_layout_is_the_first_proposal():
    """Among all that the search tries on 16,384 GPUs, it takes what Llama 3 took."""
    plans, rejected = propose(Training(model_named("405b"), 16384, 2048, 15.6e12))
    best = plans[0].layout
    assert (best.tp, best.cp, best.pp, best.dp, best.recompute) == (8, 1, 16, 128, "none")
    kinds = {problem.kind for one in rejected for problem in one.problems}
    assert kinds == {"batch", "heads", "node", "memory", "stages"}


def test_goodput_reproduces_more_than_90_per_cent():
    """Llama 3 and MegaScale say so; with half an hour for each failure it would not be possible."""
    between = mean_time_between(16384)
    assert between / 3600 == pytest.approx(3.09, abs=0.005)
    assert goodput(best_interval(5, between), 5, 600, between) > 0.9
    assert goodput(best_interval(5, between), 5, 1800, between) < 0.9


@pytest.mark.parametrize("save_s", [1, 10, 60, 600])
def test_no_interval_is_better_than_dalys(save_s: float):
    between = 3 * 3600
    best = max(range(1, 20000, 5), key=lambda interval: goodput(interval, save_s, 300, between))
    reached = goodput(best_interval(save_s, between), save_s, 300, between)
    assert reached >= goodput(best, save_s, 300, between) * (1 - 1e-4)
    assert goodput(2.5 * best, save_s, 300, between) < reached
    assert best_interval(save_s, between) == pytest.approx(young(save_s, between), rel=0.25)


def test_the_bubble_of_each_schedule():
    assert bubble("GPipe", 4, 8) == bubble("1F1B", 4, 8) == 3 / 11
    assert bubble("interleaved", 4, 8, 2) == 1.5 / 9.5
    assert bubble("ZB-1P", 4, 8) == 1 / 9
    assert bubble("ZB-2P", 4, 8) == 0
    assert pipeline.at_once("GPipe", 4, 0, 8) == 8
    assert [pipeline.at_once("1F1B", 4, index, 8) for index in range(4)] == [4, 3, 2, 1]
    narayanan_2021 = 4 * (1 + 3 / (4 * 2))
    assert pipeline.at_once("interleaved", 4, 0, 8, 2) == pytest.approx(narayanan_2021)


@pytest.mark.parametrize(
    ("op", "size", "sent"),
    [("all_reduce", 4, 1.5), ("all_gather", 4, 3), ("reduce_scatter", 4, 0.75), ("all_reduce", 1, 0)],
)
def test_bytes_by_rule(op: str, size: int, sent: float):
    assert by_rule(op, size, 1.0) == sent


def test_a_group_that_leaves_its_node_is_slower():
    gpu, network = GPUS["h100"], Network()
    inside = seconds("all_reduce", 8, 1, 1, 1e9, gpu, network)
    scattered = seconds("all_reduce", 8, 8, 1, 1e9, gpu, network)
    both = seconds("all_reduce", 16, 1, 1, 1e9, gpu, network)
    assert inside < both < scattered
    assert scattered / inside == pytest.approx(gpu.link / network.card, rel=0.05)


def test_korthikantis_memory_of_a_block():
    """s b h (34 + 5 a s / h), and what tensor and sequence parallelism divide of it."""
    model = model_named("gpt3")
    unit = model.context * model.width
    scores = 5 * model.heads * model.context / model.width
    assert memory.per_layer(model, Layout()) == pytest.approx(unit * (34 + scores))
    assert memory.per_layer(model, Layout(tp=8)) == pytest.approx(unit * (10 + 24 / 8 + scores / 8))
    both = Layout(tp=8, sequence_parallel=True)
    assert memory.per_layer(model, both) == pytest.approx(unit * (34 + scores) / 8)
    assert memory.per_layer(model, Layout(recompute="full")) == unit * 2


IMPOSSIBLE = {
    "ranks": ({"dp": 8}, "the mesh has 8 ranks, not 64"),
    "heads": ({"tp": 16, "dp": 4}, "8 heads of keys and values do not divide by TP 16"),
    "node": ({"tp": 16, "dp": 4}, "TP 16 leaves the node of 8 GPUs"),
    "batch": ({"dp": 64, "micro_batch": 3}, "do not divide into 64 parts of 3 at once"),
    "stages": ({"pp": 32, "chunks": 8, "dp": 2, "schedule": "interleaved"}, "256 stages are more than 80"),
    "experts": ({"ep": 8, "dp": 8}, "Llama 3 70B has no experts for EP 8"),
    "ZeRO": ({"pp": 2, "dp": 32, "zero": 3}, "gathers all parameters again for each micro-batch"),
    "length": ({"cp": 64}, "a sequence of 8200 does not divide by CP 64"),
    "memory": ({"dp": 64}, "a rank needs"),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_why_a_layout_is_rejected(kind: str):
    fields, told = IMPOSSIBLE[kind]
    model = model_named("70b", 8200 if kind == "length" else 8192)
    found = judge(Training(model, 64, 2048, 1e12), Layout(**fields))
    assert isinstance(found, Rejected)
    assert [told in problem.text for problem in found.problems if problem.kind == kind] == [True]


COMMAND = ["--model", "8b", "--gpus", "8", "--sequences", "128"]


def test_the_command_shows_a_plan(capsys: pytest.CaptureFixture):
    assert main([*COMMAND, "--show", "1"]) == 0
    said = capsys.readouterr().out
    assert "Llama 3 8B: 8,030,261,248 parameters on 8 x H100 80GB" in said
    assert "layouts run and fit" in said
    assert "by memory, such as" in said


def test_the_command_says_that_nothing_fits(capsys: pytest.CaptureFixture):
    assert main(["--model", "405b", "--gpus", "8"]) == 1
    assert "0 layouts run and fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "9b", "--gpus", "8"], "there is no model '9b'"),
        (["--model", "8b", "--gpus", "none"], "'none' is no whole number"),
        (["--model", "8b", "--gpus", "0"], "must be at least 1"),
        (["--model", "8b"], "the following arguments are required: --gpus"),
        ([*COMMAND, "--gpu", "h1000"], "there is no GPU 'h1000'"),
        ([*COMMAND, "--tokens", "many"], "'many' is no number"),
        ([*COMMAND, "--tokens", "-1"], "must be above 0"),
        ([*COMMAND, "--reached", "1.5"], "reached is a share of 1"),
        ([*COMMAND, "--tp", "3"], "tp 3 does not divide 8 GPUs"),
        ([*COMMAND, "--zero", "4"], "invalid choice"),
        (["--model", "gpt3", "--gpus", "8", "--length", "4096"], "GPT-3 175B has 2048 positions"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture):
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith("rank-plan: ")
    assert said.count("\n") == 1
    assert told in said


def test_the_folder_can_be_copied(tmp_path: Path):
    """It needs Python alone, under any name."""
    copytree(ROOT / "shared" / "planner", tmp_path / "planner")
    command = [sys.executable, "-I", "-c", ALONE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Llama 3 8B" in done.stdout


ALONE = """\
import sys
sys.path.insert(0, sys.argv[1])
from planner.__main__ import main
code = main(["--model", "8b", "--gpus", "8", "--sequences", "128"])
assert "torch" not in sys.modules and "shared" not in sys.modules
sys.exit(code)
"""


def table() -> str:
    lines = [f"{'published':76} {'theirs':>12} {'ours':>12} {'off':>7}"]
    for row in ROWS:
        lines.append(f"{row.what:76} {row.published:12.6g} {row.ours():12.6g} {row.deviation():+7.2%}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
