"""How a training is divided among ranks, and why a division is impossible."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from .errors import PlanError, whole
from .flops import NONE, RECOMPUTE
from .models import Model
from .pipeline import SCHEDULES

RING = "ring"
ULYSSES = "Ulysses"
GATHER = "gather"
WAYS = (RING, ULYSSES, GATHER)
ORDER = ("tp", "cp", "ep", "pp", "dp", "replicate")  # from the inside; Llama 3 has TP, CP, PP, DP


@dataclass(frozen=True)
class Layout:
    """Sizes of the mesh, and choices that go with them.

    Attributes:
        dp: ranks among which ZeRO divides; all of data parallelism with ``replicate`` 1.
        replicate: copies of such a group (HSDP).
        ep: ranks among which experts are divided. They read rows of their own, as dp does.
        zero: what is divided along dp. 0: nothing, 1: optimizer state, 2: gradients too, 3: parameters too.
        micro_batch: sequences that a rank computes at once.
        chunks: stages of the pipeline on each rank, 1 unless the schedule is interleaved.
        sequence_parallel: tensor parallelism divides what lies between the split layers, too.
        by_tensor: with zero 0 or 2, each tensor has a collective of its own, as if written by hand. Else DDP
            fills buckets, and ZeRO has one flat tensor.
        context: how cp gets at keys and values: ring, Ulysses or gather.
        recompute: none, selective or full.
        resharding: with zero 3, parameters are freed after forward and gathered again for backward.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    dp: int = 1
    replicate: int = 1
    zero: int = 0
    micro_batch: int = 1
    chunks: int = 1
    schedule: str = "1F1B"
    sequence_parallel: bool = False
    by_tensor: bool = False
    context: str = RING
    recompute: str = NONE
    resharding: bool = True

    def __post_init__(self) -> None:
        for name in (*ORDER, "micro_batch", "chunks"):
            whole(name, getattr(self, name))
        if self.zero not in (0, 1, 2, 3):
            raise PlanError(f"zero must be 0, 1, 2 or 3, not {self.zero!r}")
        if self.by_tensor and self.zero not in (0, 2):
            raise PlanError(f"by_tensor goes with zero 0 or 2, not {self.zero}")
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("context", self.context, WAYS)
        _one_of("recompute", self.recompute, RECOMPUTE)

    @property
    def ranks(self) -> int:
        return math.prod(getattr(self, name) for name in ORDER)

    @property
    def readers(self) -> int:
        """Parts of the batch: ranks that differ along these dimensions read different sequences."""
        return self.dp * self.replicate * self.ep

    def step_of(self, name: str) -> int:
        """How far apart the ranks of a group along a dimension are."""
        inner = ORDER[: ORDER.index(name)]
        return math.prod(getattr(self, one) for one in inner)

    def position(self, rank: int) -> dict[str, int]:
        """{dimension: index of ``rank`` along it}."""
        if not 0 <= rank < self.ranks:
            raise PlanError(f"there is no rank {rank} of {self.ranks}")
        found = {}
        for name in ORDER:
            size = getattr(self, name)
            found[name] = rank % size
            rank //= size
        return found

    def micro_batches(self, sequences: int) -> int:
        """How often a rank computes forward and backward in a step with so many sequences in all."""
        return sequences // (self.readers * self.micro_batch)

    def __str__(self) -> str:
        sizes = [f"{name.upper()} {getattr(self, name)}" for name in ORDER if getattr(self, name) > 1]
        words = [" ".join(sizes) or "one rank"]
        if self.dp > 1:
            words.append(f"ZeRO {self.zero}")
        words.append(f"micro-batch {self.micro_batch}")
        if self.chunks > 1:
            words.append(f"{self.chunks} stages a rank")
        if self.recompute != NONE:
            words.append(f"{self.recompute} recomputation")
        return ", ".join(words)


class Problem(NamedTuple):
    """Why a layout cannot run: a word for the kind, a sentence, and how far it is off where that is known."""

    kind: str
    text: str
    off: float = 0.0


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PlanError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def problems(model: Model, layout: Layout, gpus: int, sequences: int, node: int) -> list[Problem]:
    """Why this layout cannot run, a sentence each; memory is another question."""
    found = []
    if layout.ranks != gpus:
        found.append(Problem("ranks", f"the mesh has {layout.ranks} ranks, not {gpus}"))
    found += _problems_of_tensors(model, layout, node)
    found += _problems_of_stages(model, layout)
    rows = layout.readers * layout.micro_batch
    if sequences % rows:
        text = (
            f"{sequences} sequences do not divide into {layout.readers} parts of {layout.micro_batch} "
            f"at once: a batch has at least {rows}"
        )
        found.append(Problem("batch", text))
    elif layout.chunks > 1 and layout.micro_batches(sequences) % layout.pp:
        text = (
            f"interleaved stages need micro-batches in groups of {layout.pp}, "
            f"not {layout.micro_batches(sequences)}"
        )
        found.append(Problem("batch", text))
    return found


def _problems_of_tensors(model: Model, layout: Layout, node: int) -> list[Problem]:
    found = []
    tp = layout.tp
    if model.kv_heads % tp and model.kv_heads != 1:
        found.append(Problem("heads", f"{model.kv_heads} heads of keys and values do not divide by TP {tp}"))
    elif model.heads % tp:
        found.append(Problem("heads", f"{model.heads} heads do not divide by TP {tp}"))
    if model.hidden % tp:
        found.append(Problem("width", f"an MLP of {model.hidden} does not divide by TP {tp}"))
    if model.experts is not None and model.experts.hidden % tp:
        text = f"an expert's MLP of {model.experts.hidden} does not divide by TP {tp}"
        found.append(Problem("width", text))
    if model.vocabulary % tp:
        text = f"a vocabulary of {model.vocabulary} does not divide by TP {tp}: pad it"
        found.append(Problem("vocabulary", text))
    if tp > node:
        found.append(Problem("node", f"TP {tp} leaves the node of {node} GPUs"))
    parts = 2 * layout.cp if layout.cp > 1 else 1  # each rank takes an early part and a late one
    if model.context % (parts * tp if layout.sequence_parallel else parts):
        found.append(
            Problem("length", f"a sequence of {model.context} does not divide by CP {layout.cp} and TP {tp}")
        )
    if layout.cp > 1 and layout.context == ULYSSES and model.kv_heads // tp % layout.cp:
        found.append(
            Problem(
                "heads",
                f"{model.kv_heads} heads of keys and values do not divide by TP {tp} x CP {layout.cp}",
            )
        )
    if layout.ep > 1 and model.experts is None:
        found.append(Problem("experts", f"{model.name} has no experts for EP {layout.ep}"))
    elif model.experts is not None and model.experts.routed % layout.ep:
        found.append(Problem("experts", f"{model.experts.routed} experts do not divide by EP {layout.ep}"))
    return found


def _problems_of_stages(model: Model, layout: Layout) -> list[Problem]:
    found = []
    stages = layout.pp * layout.chunks
    if stages > model.layers + 2:
        text = f"{stages} stages are more than {model.layers} layers, embedding and head"
        found.append(Problem("stages", text))
    if layout.chunks > 1 and layout.pp == 1:
        found.append(Problem("stages", f"{layout.chunks} stages a rank need a pipeline"))
    if layout.chunks > 1 and layout.schedule != "interleaved":
        found.append(Problem("stages", f"{layout.schedule} has one stage a rank, not {layout.chunks}"))
    if layout.pp > 1 and layout.zero == 3 and layout.resharding:
        found.append(
            Problem(
                "ZeRO",
                "ZeRO 3 with a pipeline gathers all parameters again for each micro-batch: take ZeRO 2",
            )
        )
    return found


def layers_of(model: Model, layout: Layout, stage: int) -> range:
    """The blocks of a stage, of ``pp * chunks`` in all; the numbers differ by one at most.

    With more stages than blocks, the first and the last stage are the embedding and the head alone, as in
    Llama 3, which has 126 blocks for 16 x 8 stages.
    """
    stages = layout.pp * layout.chunks
    if stages <= model.layers:
        return range(model.layers * stage // stages, model.layers * (stage + 1) // stages)
    both = model.layers + 2
    begin = max(1, both * stage // stages)
    end = min(both - 1, both * (stage + 1) // stages)
    return range(begin - 1, max(begin, end) - 1)


def stages_of(layout: Layout, index: int) -> range:
    """The stages of the rank with this index along pp: interleaved ones are pp apart."""
    return range(index, layout.pp * layout.chunks, layout.pp)


def blocks_of(model: Model, layout: Layout, index: int) -> list[int]:
    """All blocks of the rank with this index along pp."""
    return [layer for stage in stages_of(layout, index) for layer in layers_of(model, layout, stage)]
