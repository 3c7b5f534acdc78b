"""The planner beside what others measured: ``rank-plan --check``, ``python -m rank_tools.planner.published``.

``published.csv`` has a training a line, and their sources. ``calibrated`` rows were looked at when the
constants were chosen, none of which belongs to one row. ``held out`` rows were not used for that; they were
computed while the planner was built. ``unseen`` rows were computed for the first time when it stood, and
``later`` ones after its release; no constant was changed for either.

The file is frozen: no row is added or changed any more, so that the errors stay those of one planner. Since
then the formulas have changed in three places, with no constant taken from a row: FSDP's gathers start as
nccl's rings do, replicas add up gradients once a step, and recomputation sends the messages of CP and the
counts of EP again. Nearly all rows are benchmarks that the makers of GPU or framework have tuned; ``search``
says how others' runs differ.

``outside.csv`` has memories of others. No constant was chosen by them, but options were: ``bf16``, ``last``,
``whole`` and ``logits6`` say what these rows' code holds otherwise than the stack, and three of the four came
into the planner when the rows were read.

``wholes.csv`` has the GPU hours of whole trainings of dense models. ``search.RUN`` is their range.
"""

import csv
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from .flops import CONVENTIONS, MEGATRON, WHOLE, per_token
from .hardware import GIB, Network, gpu_named
from .layout import CHOICES, Layout
from .search import Training, fullest, propose
from .stack import BF16, HALF, KERNELS, stack_named
from .step import step_time, tokens_per_s
from .transformer import Model, gpt, model_named, with_context

SETS = ("calibrated", "held out", "unseen", "later")
OF_THEIR_CODE = ("bf16", "last", "whole", "logits6")
WORDS: dict[str, dict[str, Any]] = {
    "sp": {"sequence_parallel": True},
    "keep": {"resharding": False},
    "fp8": {"fp8": True},
    "half": {"numbers": HALF},
    "bf16": {"numbers": BF16},
    "serial": {"overlap": False},
    "whole": {"whole_logits": True},
    **{str(way): {"context": way} for way in CHOICES["context"]},
    **{str(way): {"recompute": way} for way in CHOICES["recompute"]},
    **{str(way): {"sync": way} for way in CHOICES["sync"]},
    **{kernel: {"attention": kernel} for kernel in KERNELS},
}
SHORT = {"mb": "micro_batch", "vpp": "chunks", "rep": "replicate", "hides": "hidden_tp"}


@dataclass(frozen=True)
class Row:
    """A training that somebody has published."""

    set: str
    source: str
    model: Model
    gpu: str
    layout: Layout
    batch: int
    network: Network
    unit: str
    value: float

    def ours(self) -> float:
        """In the unit of the row: GiB, seconds, or tokens or operations a second of a GPU."""
        if self.unit == "GiB":
            return fullest(self.model, self.layout, self.batch).total / GIB
        time = step_time(self.model, self.layout, self.batch, gpu_named(self.gpu), self.network).total
        if self.unit == "s":
            return time
        tokens = tokens_per_s(self.model, self.batch, time) / self.layout.ranks
        counted = self.unit.removeprefix("TFLOP/s ")
        if counted == "tokens/s":
            return tokens
        if counted == "HFU":  # of Narayanan et al., who count the recomputation
            return tokens * per_token(self.model, MEGATRON, WHOLE) / 1e12
        return (
            tokens
            * per_token(self.model, {convention.name: convention for convention in CONVENTIONS}[counted])
            / 1e12
        )

    def deviation(self) -> float:
        """How much faster, or larger, the planner has it, as a share of what was measured."""
        ours = self.ours()
        return (self.value / ours if self.unit == "s" else ours / self.value) - 1


def model_of(text: str, length: int) -> Model:
    """``405b``, ``405b layers=4`` or ``gpt 96 12288 96 51200``: layers, width, heads, vocabulary."""
    name, *rest = text.split()
    if name == "gpt":
        layers, width, heads, vocabulary = map(int, rest)
        return gpt(f"GPT {layers} x {width}", layers, width, heads, vocabulary, length)
    model = model_named(name)
    changed: dict[str, Any] = {key: int(number) for key, number in (word.split("=") for word in rest)}
    if "dense" in changed and model.experts:
        changed["experts"] = model.experts._replace(dense_layers=changed.pop("dense"))
    return with_context(replace(model, **changed), length)


def options(words: list[str]) -> dict[str, Any]:
    """Of ``tp8 sp full``: fields of a layout or of a stack."""
    fields: dict[str, Any] = {}
    for word in words:
        if word in WORDS:
            fields |= WORDS[word]
            continue
        name, size = re.fullmatch(r"([a-zA-Z]+)([0-9.]*)", word).groups()  # type: ignore[union-attr]
        size = size or "1"
        fields[SHORT.get(name, name)] = float(size) if "." in size else int(size)
    return fields


def row_of(columns: dict[str, str]) -> Row:
    sizes = options(columns["layout"].split())
    name, *words = columns["stack"].split()
    sizes |= {"schedule": "interleaved" if sizes.get("chunks", 1) > 1 else "1F1B"}
    layout = Layout(**sizes, stack=stack_named(name, **options(words)))
    node, card = map(int, (columns["network"] or "8x400").split("x"))
    model = model_of(columns["model"], int(columns["length"]))
    rest = (int(columns["batch"]), Network(node, card * 1e9 / 8), columns["unit"], float(columns["value"]))
    return Row(columns["set"], columns["source"], model, columns["gpu"], layout, *rest)


@lru_cache(maxsize=1)
def read() -> tuple[dict[str, str], tuple[Row, ...]]:
    """{name: source} and the rows."""
    sources, table = lines_of("published.csv")
    return sources, tuple(map(row_of, table))


def lines_of(name: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    sources = dict(line[2:].split(": ", 1) for line in lines if line.startswith("#"))
    return sources, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def outside(told: bool = True) -> tuple[dict[str, str], list[Row]]:
    """{name: source} and others' memories; not ``told``: as if nobody had said what their code holds."""
    sources, table = lines_of("outside.csv")
    for columns in () if told else table:
        for name in ("layout", "stack"):
            columns[name] = " ".join(word for word in columns[name].split() if word not in OF_THEIR_CODE)
    return sources, list(map(row_of, table))


def wholes(stack: str) -> list[float]:
    """How many times as long whole trainings took as the first proposal for a stack."""
    took = []
    for columns in lines_of("wholes.csv")[1]:
        model, gpu = model_of(columns["model"], int(columns["length"])), gpu_named(columns["gpu"])
        sizes = (int(columns["gpus"]), int(columns["batch"]), float(columns["tokens"]))
        plans, _ = propose(Training(model, *sizes, gpu=gpu, stack=stack_named(stack)))
        took.append(float(columns["hours"]) / (plans[0].days * 24 * int(columns["gpus"])))
    return took


def rows(name: str, experts: bool | None = None) -> list[Row]:
    """Those of a set, with or without mixtures of experts."""
    chosen = [row for row in read()[1] if row.set == name]
    return [row for row in chosen if experts in (None, bool(row.model.experts))]


def checked() -> set[str]:
    """GPUs of which somebody's seconds were held against the planner."""
    return {gpu_named(row.gpu).name for row in read()[1] if row.unit != "GiB"}


def mean_error(chosen: list[Row]) -> float:
    return sum(abs(row.deviation()) for row in chosen) / len(chosen)


def summary(chosen: list[Row]) -> str:
    off = [row.deviation() for row in chosen]
    near = [sum(abs(deviation) <= limit for deviation in off) for limit in (0.1, 0.15)]
    names = {(row.model.name, row.model.layers) for row in chosen}
    return (
        f"{len(off)} of {len(names)} models: mean |error| {mean_error(chosen):.1%}, "
        f"mean {sum(off) / len(off):+.1%}, from {min(off):+.0%} to {max(off):+.0%}; "
        f"{near[0]} within 10 %, {near[1]} within 15 %"
    )


def table() -> str:
    """A line for each row: what they measured, what we say, and how far off that is; then the errors."""
    sources, everything = read()
    sources_outside, others = outside()
    lines = [f"{'':11} {'measured':>9} {'ours':>9} {'off':>5}"]
    for row in [*everything, *others]:
        layout, stack = row.layout, row.layout.stack
        sizes = f"{row.model.layers} x {row.model.width}"
        model = f"{row.model.name} ({sizes}), {row.model.context} tokens"
        what = f"{model}, {layout.ranks} x {row.gpu}: {layout}, {stack.name}"
        off = f"{row.value:9.6g} {row.ours():9.5g} {row.deviation():+5.0%} {row.unit:9}"
        lines.append(f"{row.set:11} {off} {what}{' FP8' if stack.fp8 else ''} ({row.source})")
    lines.append("")
    for name in SETS:
        for experts, kind in ((False, "dense"), (True, "with experts")):
            if rows(name, experts):
                lines.append(f"seconds, {name}, {kind}: {summary(rows(name, experts))}")
    lines.append(f"memory: {summary(rows('memory'))}")
    lines.append(f"memory, others' runs, told what their code holds: {summary(others)}")
    lines.append(f"memory, others' runs, by the stack's name alone: {summary(outside(told=False)[1])}")
    sources = sources | sources_outside
    return "\n".join([*lines, "", *(f"{name}: {where}" for name, where in sources.items())])


if __name__ == "__main__":
    print(table())
