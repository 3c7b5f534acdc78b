"""What others have published, and what the planner says of it: ``python -m shared.planner.published``."""

from collections.abc import Callable
from dataclasses import dataclass

from . import memory, search, step
from .flops import CAUSAL, FULL, MEGATRON, PARAMETERS_ONLY, Convention, per_token, utilization
from .hardware import GPUS, Network
from .layout import Layout
from .memory import ZERO_PAPER, states
from .models import gpt, model_named
from .pipeline import bubble
from .step import step_time

H100 = 989.5e12  # what llm-foundry divides by
A100 = 312e12
TPU_V4 = 275e12


@dataclass(frozen=True)
class Row:
    """A published figure.

    Attributes:
        kind: of the formula; PLANTED has a wrong one for each.
        off: how far ours may be off, as a share of what is published: what rounding explains, or, for a
            prediction or a formula that simplifies, what we claim.
        formula, arguments: they give the planner's figure.
    """

    kind: str
    what: str
    published: float
    off: float
    formula: Callable[..., float]
    arguments: tuple

    def ours(self) -> float:
        return self.formula(*self.arguments)

    def deviation(self) -> float:
        return self.ours() / self.published - 1


def mfu(name: str, length: int, tokens: float, convention: Convention, peak: float) -> float:
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
# Korthikanti et al. (arXiv 2205.05198), tables 3 and 5, the last row section 6.3; s2048, vocabulary 51,200:
# model, layers, width, heads, GPUs, sequences, seconds, MFU, HFU
KORTHIKANTI = [
    ("22B", 48, 6144, 64, 8, 4, 1.10, 41.5, 43.7),
    ("175B", 96, 12288, 96, 64, 64, 13.75, 51.4, 52.8),
    ("530B", 105, 20480, 128, 280, 280, 37.83, 56.0, 57.0),
    ("1T", 128, 25600, 160, 512, 512, 71.49, 56.3, 57.0),
    ("530B", 105, 20480, 128, 2240, 2240, 39.15, 54.2, None),
]
# Narayanan et al. (arXiv 2104.04473), section 5.1: parameters, tokens, A100s, TFLOP/s of each, days
NARAYANAN = [(175e9, 300e9, 1024, 140, 34), (1.008e12, 450e9, 3072, 163, 84)]
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


def parameters(name: str) -> float:
    return model_named(name).parameters()


def active(name: str) -> float:
    """Billions of parameters that a token goes through."""
    return model_named(name).active_parameters() / 1e9


def thousand_tokens_per_s(name: str, sequences: int, seconds_of_step: float) -> float:
    return step.tokens_per_s(model_named(name), sequences, seconds_of_step) / 1e3


def days(tokens: float, rate: float) -> float:
    return search.days_for(tokens, rate)


def computing(schedule: str, ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """The share of the time that is not bubble."""
    return 1 - bubble(schedule, ranks, micro_batches, chunks)


def interleaved_gains(ranks: int, micro_batches: int, chunks: int) -> float:
    """How much faster interleaved stages are than 1F1B."""
    plain = computing("1F1B", ranks, micro_batches)
    return computing("interleaved", ranks, micro_batches, chunks) / plain


def zero_gb(stage: int) -> float:
    return states(7.5e9, ZERO_PAPER, stage, 64) / 1e9


def selective(name: str) -> float:
    """Per cent of a block's activations that selective recomputation does without."""
    model = model_named(name)
    everything = memory.per_layer(model, Layout())
    return 100 * (1 - memory.per_layer(model, Layout(recompute="selective")) / everything)


def narayanan(size: float, tokens: float, gpus: int, tflop_s: float) -> float:
    """Days, at so many TFLOP/s of the hardware, which computes forward twice: 8 operations a parameter."""
    model = model_named("gpt3")
    each = per_token(model, PARAMETERS_ONLY, "full") / model.parameters()
    return days(tokens, gpus * tflop_s * 1e12 / (each * size))


def megatron_mfu(layers: int, width: int, heads: int, tokens: float) -> float:
    """Per cent of an A100, at so many tokens a second and GPU."""
    model = gpt("GPT", layers, width, heads, 51200, 2048)
    return 100 * utilization(per_token(model, MEGATRON), tokens, A100)


def h100_mfu(tflop_s: float) -> float:
    return 100 * tflop_s * 1e12 / GPUS["h100"].peak


def predicted(row: tuple) -> float:
    return llama_step(row, fitted())


def operations(name: str, tokens: float) -> float:
    return per_token(model_named(name), PARAMETERS_ONLY) * tokens


def rows() -> list[Row]:
    return [*utilization_rows(), *megascale_rows(), *megatron_rows(), *paper_rows(), *llama_rows()]


def utilization_rows() -> list[Row]:
    found = []
    for name, gpus, tokens, stated, peak in FOUNDRY:
        what = f"llm-foundry, {name} on {gpus} {'H100' if peak == H100 else 'A100'}: MFU"
        found.append(Row(FULL.name, what, stated, 0.002, mfu, (name, 2048, tokens, FULL, peak)))
    for name, count in (("mpt-70b", 64862437376), ("mpt-7b", 6658859008)):
        found.append(Row("parameters", f"llm-foundry, {name}: parameters", count, 0.0, parameters, (name,)))
    what = "PaLM, 6,144 TPU v4: MFU"
    found.append(Row(FULL.name, what, 46.2, 0.002, mfu, ("palm", 2048, 238.3e3 / 6144, FULL, TPU_V4)))
    for release, name, gpus, tokens, stated in BRIDGE:
        what = f"Megatron-Bridge {release}, {name} on {gpus}: TFLOP/s"
        found.append(Row(CAUSAL.name, what, stated, 0.002, tflops, (name, tokens, 8192)))
    for numbers, tokens, stated in BRIDGE_DEEPSEEK:
        what = f"Megatron-Bridge 25.11 GB300, deepseek-v3 {numbers}: TFLOP/s"
        found.append(Row(CAUSAL.name, what, stated, 0.004, tflops, ("deepseek-v3", tokens, 4096)))
    return found


def megascale_rows() -> list[Row]:
    """The rows of Megatron-LM count all of attention, MegaScale's own half of it: a test shows that."""
    found = []
    for who, sequences, gpus, seconds_of_step, tokens, in_days, stated in MEGASCALE:
        what = f"MegaScale table 2, {who} on {gpus}"
        of_step = ("megascale", sequences, seconds_of_step)
        found.append(Row("tokens", f"{what}: k tokens/s", tokens, 0.006, thousand_tokens_per_s, of_step))
        found.append(Row("days", f"{what}: days for 300B", in_days, 0.003, days, (300e9, tokens * 1e3)))
        convention = CAUSAL if who == "MegaScale" else MEGATRON
        arguments = ("megascale", 2048, tokens * 1e3 / gpus, convention, A100)
        found.append(Row(convention.name, f"{what}: MFU", stated, 0.004, mfu, arguments))
    return found


def megatron_rows() -> list[Row]:
    found = []
    for name, layers, width, heads, gpus, sequences, seconds_of_step, stated, _ in KORTHIKANTI:
        what = f"Korthikanti et al., {name} on {gpus:,} A100: MFU"
        off = 0.005 if seconds_of_step == 1.10 else 0.002  # as far as the seconds are rounded
        tokens = sequences * 2048 / seconds_of_step / gpus
        arguments = (layers, width, heads, tokens)
        found.append(Row(MEGATRON.name, what, stated, off, megatron_mfu, arguments))
    for name, stated in (("gpt3", 70), ("mt-nlg", 65)):  # section 5
        what = f"Korthikanti et al., {model_named(name).name}: selective saves, %"
        found.append(Row("scores", what, stated, 0.01, selective, (name,)))
    for size, tokens, gpus, tflop_s, stated in NARAYANAN:
        what = f"Narayanan et al., {size / 1e9:,.0f}B on {gpus:,} A100: days"
        found.append(Row("recompute", what, stated, 0.01, narayanan, (size, tokens, gpus, tflop_s)))
    return found


def paper_rows() -> list[Row]:
    found = []
    for micro_batches, slow, fast in ZERO_BUBBLE:
        what = f"Zero Bubble, 28.3B, p 32, m {micro_batches}: 1F1B / ZB-2p"
        found.append(Row("bubble", what, slow / fast, 0.02, computing, ("1F1B", 32, micro_batches)))
    what = "torchtitan 202412, 405B on 512 H100: interleaved / 1F1B"
    found.append(Row("bubble", what, 128 / 100, 0.02, interleaved_gains, (8, 8, 2)))
    for stage, stated in ZERO:
        found.append(
            Row("states", f"ZeRO figure 1, stage {stage}: GB", stated, 0.05 / stated, zero_gb, (stage,))
        )
    one_trillion = (1e12, 1e12 / (180e3 * 3600) * 2048)  # 180 thousand hours of a GPU, on 2,048
    return found + [
        Row("days", "DeepSeek-V3, 2,048 H800: days for 1T", 3.7, 0.015, days, one_trillion),
        Row("active", "DeepSeek-V3: billion parameters of a token", 37, 0.02, active, ("deepseek-v3",)),
        Row("parameters", "DeepSeek-V3: parameters", 671e9, 0.001, parameters, ("deepseek-v3",)),
        Row("parameters", "PaLM: parameters", 540.35e9, 0.0001, parameters, ("palm",)),
        Row("parameters", "GPT-3: parameters", 175e9, 0.003, parameters, ("gpt3",)),
    ]


def llama_rows() -> list[Row]:
    found = []
    for gpus, length, *_, rate, stated in LLAMA:
        what = f"Llama 3 table 4, {gpus} GPUs, {length} tokens: MFU of {rate} TFLOP/s"
        found.append(Row("peak", what, stated, 0.015, h100_mfu, (rate,)))
    for row in LLAMA[1:]:
        what = f"Llama 3 table 4, {row[0]} GPUs, {row[1]} tokens: TFLOP/s predicted"
        found.append(Row("predicted", what, row[5], 0.03, predicted, (row,)))
    what = "Llama 3, 405B on 15.6T tokens: operations"
    found.append(Row("operations", what, 3.8e25, 0.002, operations, ("405b", 15.6e12)))
    return found


ROWS = rows()


def table() -> str:
    """A line for each row: what they say, what we say, and how far off that is."""
    lines = [f"{'published':76} {'theirs':>10} {'ours':>10} {'off':>7}"]
    for row in ROWS:
        lines.append(f"{row.what:76} {row.published:10.6g} {row.ours():10.6g} {row.deviation():+7.2%}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
