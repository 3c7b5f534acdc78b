"""How a training is divided among ranks, and why a division is impossible."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from .errors import PlanError, whole
from .flops import NONE, RECOMPUTE
from .pipeline import SCHEDULES
from .stack import STACKS, Stack
from .transformer import Model

RING = "ring"
ULYSSES = "Ulysses"
GATHER = "gather"
WAYS = (RING, ULYSSES, GATHER)
ORDER = ("tp", "cp", "dp", "replicate", "pp")  # from the inside, as Megatron and torchtitan have it
SHARDS, EACH, LAST = "shards", "each", "last"  # when FSDP adds up gradients over ranks
SYNCS = (SHARDS, EACH, LAST)
CHOICES = {
    "zero": (0, 1, 2, 3),
    "schedule": SCHEDULES,
    "context": WAYS,
    "recompute": RECOMPUTE,
    "sync": SYNCS,
}


@dataclass(frozen=True)
class Layout:
    """Sizes of the mesh, and choices that go with them.

    Attributes:
        dp: ranks of data parallelism; ZeRO divides among dp x cp. All of it with ``replicate`` 1.
        replicate: copies of such a group (HSDP).
        ep: ranks among which experts are divided, folded into tp x cp x dp as in Megatron: they need no ranks
            of their own. Each expert is divided among ``etp`` of them.
        zero: what is divided. 0: nothing, 1: optimizer state, 2: gradients too, 3: parameters too (FSDP).
        micro_batch: sequences that a rank computes at once.
        chunks: stages of the pipeline on each rank (VPP), 1 unless the schedule is interleaved.
        sequence_parallel: tensor parallelism divides what lies between the split layers, too.
        context: how cp gets at keys and values: ring, Ulysses or gather.
        recompute: none, selective (the core of attention), op (as torchtitan) or full; ``recomputed`` is the
            share of the blocks that do it (Megatron's ``recompute_num_layers``, torchtitan's "every second").
        resharding: with zero 3, parameters are freed after forward and gathered again for backward.
        sync: with zero 3, when gradients are added up over the ranks. ``shards``: each micro-batch within the
            shards, and over the replicas once a step (FSDP2's ``set_requires_all_reduce(is_last)``).
            ``each``: over the replicas, too, with each micro-batch, as FSDP2 does by default. ``last``: only
            with the last one (``set_requires_gradient_sync(is_last)``); until then a rank keeps whole
            gradients in the dtype of the reduction.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    replicate: int = 1
    ep: int = 1
    etp: int = 1
    zero: int = 0
    micro_batch: int = 1
    chunks: int = 1
    schedule: str = "1F1B"
    sequence_parallel: bool = False
    context: str = RING
    recompute: str = NONE
    recomputed: float = 1.0
    resharding: bool = True
    sync: str = SHARDS
    stack: Stack = STACKS["megatron"]

    def __post_init__(self) -> None:
        for name in (*ORDER, "ep", "etp", "micro_batch", "chunks"):
            whole(name, getattr(self, name))
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                words = ", ".join(map(str, allowed))
                raise PlanError(f"{name} must be one of {words}, not {getattr(self, name)!r}")
        if not 0 < self.recomputed <= 1:
            raise PlanError(f"recomputed is a share of 1, not {self.recomputed!r}")

    @property
    def ranks(self) -> int:
        return math.prod(getattr(self, name) for name in ORDER)

    @property
    def readers(self) -> int:
        """Parts of the batch: ranks that differ along these dimensions read different sequences."""
        return self.dp * self.replicate

    @property
    def shards(self) -> int:
        """Ranks among which ZeRO divides; ``expert_shards`` those that hold the same experts."""
        return self.dp * self.cp

    @property
    def expert_shards(self) -> int:
        return max(1, self.tp * self.cp * self.dp // (self.ep * self.etp))

    @property
    def between(self) -> int:
        """Into how many parts a sequence is divided between the split layers."""
        return self.tp if self.sequence_parallel else 1

    def group(self, name: str, node: int) -> tuple[int, int]:
        """Ranks of a group along a dimension, and how many of them are in one node."""
        free = {"dp": ("cp", "dp"), "ep": ("tp", "cp", "dp"), "edp": ("tp", "cp", "dp")}.get(name, (name,))
        near = 0
        for rank in range(min(node, self.ranks)):
            near += all(index == 0 or dimension in free for dimension, index in self.position(rank).items())
        expert_ranks = self.ep * self.etp
        if name == "edp":
            return self.expert_shards, max(1, near // expert_ranks)
        size = {"dp": self.shards, "ep": expert_ranks}.get(name) or getattr(self, name)
        return size, min(size, near)

    def position(self, rank: int) -> dict[str, int]:
        """{dimension: index of ``rank`` along it}."""
        if not 0 <= rank < self.ranks:
            raise PlanError(f"there is no rank {rank} of {self.ranks}")
        indices = {}
        for name in ORDER:
            rank, indices[name] = divmod(rank, getattr(self, name))
        return indices

    def micro_batches(self, sequences: int) -> int:
        """How often a rank computes forward and backward in a step with so many sequences in all."""
        return max(1, sequences // (self.readers * self.micro_batch))

    def __str__(self) -> str:
        sizes = [f"{name.upper()} {getattr(self, name)}" for name in ORDER if getattr(self, name) > 1]
        words = [" ".join(sizes) or "one rank"]
        words += [f"EP {self.ep}"] if self.ep > 1 else []
        words += ["FSDP" if self.zero == 3 else f"ZeRO {self.zero}"] if self.shards > 1 else []
        words.append(f"micro-batch {self.micro_batch}")
        words += [f"VPP {self.chunks}"] if self.chunks > 1 else []
        of_blocks = f" of {self.recomputed:.0%} of the blocks" if self.recomputed < 1 else ""
        words += [f"{self.recompute} recomputation{of_blocks}"] if self.recompute != NONE else []
        words += [f"sync {self.sync}"] if self.sync != SHARDS else []
        return ", ".join(words)


class Problem(NamedTuple):
    """Why a layout cannot run: a word for the kind, a sentence, how far it is off, a batch that would do."""

    kind: str
    text: str
    off: float = 0.0
    batch: int = 0


def problems(model: Model, layout: Layout, gpus: int, sequences: int, node: int) -> list[Problem]:
    """Why this layout cannot run, a sentence each; memory is another question."""
    tp, cp, ep = layout.tp, layout.cp, layout.ep
    ranks = tp * cp * layout.dp
    routed = model.experts.routed if model.experts else 1
    stages = layout.pp * layout.chunks
    parts = (2 * cp if cp > 1 else 1) * layout.between  # each rank of cp takes an early part and a late one
    keys = f"{model.kv_heads} heads of keys and values"
    checks = [
        (layout.ranks != gpus, "ranks", f"the mesh has {layout.ranks} ranks, not {gpus}"),
        (model.heads % tp, "heads", f"{model.heads} heads do not divide by TP {tp}"),
        (model.kv_heads % tp and (tp % model.kv_heads or not layout.stack.regather), "heads",
         f"{keys} do not divide by TP {tp}"),
        (model.hidden % tp, "width", f"an MLP of {model.hidden} does not divide by TP {tp}"),
        (tp > node, "node", f"TP {tp} leaves the node of {node} GPUs"),
        (model.context % parts, "length",
         f"a sequence of {model.context} does not divide by CP {cp} and TP"),
        (layout.context == ULYSSES and cp > 1 and max(1, model.kv_heads // tp) % cp, "heads",
         f"{keys} do not divide by TP {tp} x CP {cp}"),
        (ep > 1 and not model.experts, "experts", f"{model.name} has no experts for EP {ep}"),
        (model.experts and routed % ep, "experts", f"{routed} experts do not divide by EP {ep}"),
        (ranks % (ep * layout.etp), "experts",
         f"EP {ep} x {layout.etp} does not divide the {ranks} of TP, CP and DP"),
        (stages > model.layers + 2, "stages",
         f"{stages} stages are more than {model.layers} layers and 2 ends"),
        (layout.chunks > 1 and layout.pp == 1, "stages", f"VPP {layout.chunks} needs a pipeline"),
        ((layout.chunks > 1) != (layout.schedule == "interleaved"), "stages",
         f"VPP {layout.chunks} does not go with {layout.schedule}"),
        (layout.pp > 1 and layout.zero == 3 and layout.resharding, "ZeRO",
         "FSDP with a pipeline gathers all parameters again for each micro-batch: do not reshard"),
    ]  # fmt: skip
    reasons = [Problem(kind, text) for wrong, kind, text in checks if wrong]
    least = layout.readers * layout.micro_batch * (layout.pp if layout.chunks > 1 else 1)
    if sequences % least:
        near = max(1, round(sequences / least)) * least
        text = f"a global batch of {sequences} is no multiple of {least}: take {near}"
        reasons.append(Problem("batch", text, abs(near / sequences - 1), near))
    return reasons


def layers_of(model: Model, layout: Layout, stage: int) -> range:
    """The blocks of a stage, of ``pp * chunks`` in all; the numbers differ by one at most.

    Where embedding and head make them even if they count as a block each, they count: Llama 3 has 126 blocks
    for 16 x 8 stages.
    """
    stages = layout.pp * layout.chunks
    both = model.layers + 2
    if stages == 1 or (stages <= model.layers and (model.layers % stages == 0 or both % stages)):
        return range(model.layers * stage // stages, model.layers * (stage + 1) // stages)
    begin = max(1, both * stage // stages)
    end = min(both - 1, both * (stage + 1) // stages)
    return range(begin - 1, max(begin, end) - 1)


def stages_of(layout: Layout, index: int) -> range:
    """The stages of the rank with this index along pp: interleaved ones are pp apart."""
    return range(index, layout.pp * layout.chunks, layout.pp)


def blocks_of(model: Model, layout: Layout, index: int) -> list[int]:
    """All blocks of the rank with this index along pp."""
    return [layer for stage in stages_of(layout, index) for layer in layers_of(model, layout, stage)]
