"""Transformers as lists of tensors. The parameters are counted, not estimated."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from .errors import PlanError, whole

FIRST = "first"  # the stage that has the embedding
LAST = "last"  # the stage that has the last norm and the head
ROWS = 0  # tensor parallelism divides a weight (out, in) along ``out``
COLUMNS = 1  # ... along ``in``


@dataclass(frozen=True)
class Tensor:
    """A parameter.

    Attributes:
        place: the number of its block, or FIRST or LAST.
        divided: the dimension along which tensor parallelism divides it; None where each rank has all of it.
        experts: how many experts a stack of their weights (experts, out, in) has; expert parallelism divides
            these. 0: none.
    """

    name: str
    shape: tuple[int, ...]
    place: int | str
    divided: int | None = None
    experts: int = 0

    @cached_property
    def numbers(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the MLP, in all blocks but the first ``dense_layers``."""

    routed: int
    chosen: int  # of the routed ones, for each token
    shared: int  # which every token goes through
    hidden: int
    dense_layers: int = 0


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: queries, keys and values come out of narrow vectors."""

    query_rank: int
    key_rank: int
    rotary: int  # numbers of a head that carry the position
    plain: int  # the others of a query's or a key's head
    value: int  # of a value's head


@dataclass(frozen=True)
class Model:
    """Sizes of a transformer.

    Attributes:
        heads: of the queries; ``kv_heads`` of keys and values, each ``head_width`` wide.
        hidden: width of the MLP; ``gated`` ones have three matrices, others two.
        tied: the head uses the embedding's weight.
        biases: linear layers and norms have one.
        positions: learned ones, as many as the context; 0 for rotary ones.
        norms: in a block.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    context: int
    head_width: int = 0  # 0: width / heads
    gated: bool = True
    tied: bool = False
    biases: bool = False
    positions: int = 0
    norms: int = 2
    experts: Experts | None = None
    latent: Latent | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "kv_heads", "hidden", "vocabulary", "context"):
            whole(name, getattr(self, name))
        if not self.head_width:
            if self.width % self.heads:
                raise PlanError(f"{self.heads} heads do not divide a width of {self.width}")
            object.__setattr__(self, "head_width", self.width // self.heads)
        if self.heads % self.kv_heads:
            raise PlanError(f"{self.kv_heads} heads of keys do not divide {self.heads} heads of queries")

    def tensors(self) -> Iterator[Tensor]:
        """All parameters, in the order in which a model has them."""
        yield Tensor("tokens.weight", (self.vocabulary, self.width), FIRST, ROWS)
        if self.positions:
            yield Tensor("positions.weight", (self.positions, self.width), FIRST)
        for layer in range(self.layers):
            yield from self._block(layer)
        yield from self._norm("norm", LAST)
        if not self.tied:
            yield Tensor("head.weight", (self.vocabulary, self.width), LAST, ROWS)

    def _block(self, layer: int) -> Iterator[Tensor]:
        block = f"blocks.{layer}"
        yield from self._norm(f"{block}.norm1", layer)
        if self.latent is None:
            yield from self._attention(f"{block}.attention", layer)
        else:
            yield from self._latent_attention(f"{block}.attention", layer, self.latent)
        if self.norms == 2:
            yield from self._norm(f"{block}.norm2", layer)
        if self.experts is None or layer < self.experts.dense_layers:
            yield from self._mlp(f"{block}.mlp", layer, self.hidden)
        else:
            yield from self._expert_mlp(f"{block}.mlp", layer, self.experts)

    def _norm(self, name: str, place: int | str) -> Iterator[Tensor]:
        yield Tensor(f"{name}.weight", (self.width,), place)
        if self.biases:
            yield Tensor(f"{name}.bias", (self.width,), place)

    def _linear(self, name: str, out: int, into: int, layer: int, divided: int | None) -> Iterator[Tensor]:
        yield Tensor(f"{name}.weight", (out, into), layer, divided)
        if self.biases:
            # What a division of columns computes is a part of a sum, and the bias is added to the sum.
            yield Tensor(f"{name}.bias", (out,), layer, ROWS if divided == ROWS else None)

    def _attention(self, name: str, layer: int) -> Iterator[Tensor]:
        queries = self.heads * self.head_width
        keys = self.kv_heads * self.head_width
        yield from self._linear(f"{name}.query", queries, self.width, layer, ROWS)
        yield from self._linear(f"{name}.key", keys, self.width, layer, ROWS)
        yield from self._linear(f"{name}.value", keys, self.width, layer, ROWS)
        yield from self._linear(f"{name}.out", self.width, queries, layer, COLUMNS)

    def _latent_attention(self, name: str, layer: int, latent: Latent) -> Iterator[Tensor]:
        head = latent.plain + latent.rotary
        yield from self._linear(f"{name}.query_down", latent.query_rank, self.width, layer, None)
        yield Tensor(f"{name}.query_norm.weight", (latent.query_rank,), layer)
        yield from self._linear(f"{name}.query_up", self.heads * head, latent.query_rank, layer, ROWS)
        narrow = latent.key_rank + latent.rotary
        yield from self._linear(f"{name}.key_down", narrow, self.width, layer, None)
        yield Tensor(f"{name}.key_norm.weight", (latent.key_rank,), layer)
        both = self.heads * (latent.plain + latent.value)
        yield from self._linear(f"{name}.key_up", both, latent.key_rank, layer, ROWS)
        yield from self._linear(f"{name}.out", self.width, self.heads * latent.value, layer, COLUMNS)

    def _mlp(self, name: str, layer: int, hidden: int) -> Iterator[Tensor]:
        if self.gated:
            yield from self._linear(f"{name}.gate", hidden, self.width, layer, ROWS)
        yield from self._linear(f"{name}.up", hidden, self.width, layer, ROWS)
        yield from self._linear(f"{name}.down", self.width, hidden, layer, COLUMNS)

    def _expert_mlp(self, name: str, layer: int, experts: Experts) -> Iterator[Tensor]:
        yield Tensor(f"{name}.router.weight", (experts.routed, self.width), layer)
        wide, narrow = (
            (experts.routed, experts.hidden, self.width),
            (experts.routed, self.width, experts.hidden),
        )
        if self.gated:
            yield Tensor(f"{name}.experts.gate", wide, layer, 1 + ROWS, experts.routed)
        yield Tensor(f"{name}.experts.up", wide, layer, 1 + ROWS, experts.routed)
        yield Tensor(f"{name}.experts.down", narrow, layer, 1 + COLUMNS, experts.routed)
        if experts.shared:
            yield from self._mlp(f"{name}.shared", layer, experts.shared * experts.hidden)

    def parameters(self) -> int:
        return _counted(self)[0]

    def active_parameters(self) -> int:
        """Those that one token goes through: of the routed experts, the chosen ones."""
        return _counted(self)[1]

    def embedding(self) -> int:
        """Parameters that are looked up and not multiplied with: of positions, and of tokens if not tied."""
        tokens = 0 if self.tied else self.vocabulary * self.width
        return tokens + self.positions * self.width

    def attention_width(self) -> float:
        """Width of all heads, the mean of what is compared (queries, keys) and what is summed (values)."""
        if self.latent is None:
            return self.heads * self.head_width
        return self.heads * (self.latent.plain + self.latent.rotary + self.latent.value) / 2


@lru_cache(maxsize=64)
def tensors_of(model: Model) -> tuple[Tensor, ...]:
    return tuple(model.tensors())


@lru_cache(maxsize=64)
def _counted(model: Model) -> tuple[int, int]:
    """Parameters, and those that one token goes through."""
    total = 0
    active = 0
    for tensor in tensors_of(model):
        total += tensor.numbers
        if tensor.experts and model.experts is not None:
            active += tensor.numbers // tensor.experts * model.experts.chosen
        else:
            active += tensor.numbers
    return total, active


def gpt(name: str, layers: int, width: int, heads: int, vocabulary: int, context: int) -> Model:
    """As GPT-2 and GPT-3 are built: learned positions, biases, an MLP four times as wide, a tied head."""
    return Model(
        name,
        layers,
        width,
        heads,
        heads,
        4 * width,
        vocabulary,
        context,
        gated=False,
        tied=True,
        biases=True,
        positions=context,
    )


# Sizes: Grattafiori et al. 2024, table 3; Brown et al. 2020, table 2.1; Jiang et al. 2024 (MegaScale),
# table 1 and section 6.1; Korthikanti et al. 2022, table 3; Chowdhery et al. 2022, table 1; llm-foundry's
# yamls; DeepSeek-AI 2024, section 4.2.
MODELS = {
    "8b": Model("Llama 3 8B", 32, 4096, 32, 8, 14336, 128256, 8192),
    "70b": Model("Llama 3 70B", 80, 8192, 64, 8, 28672, 128256, 8192),
    "405b": Model("Llama 3 405B", 126, 16384, 128, 8, 53248, 128256, 8192),
    "gpt3": gpt("GPT-3 175B", 96, 12288, 96, 50257, 2048),
    "megascale": gpt("MegaScale 175B", 96, 12288, 128, 64000, 2048),
    "mt-nlg": gpt("MT-NLG 530B", 105, 20480, 128, 51200, 2048),
    "mpt-7b": gpt("MPT 7B", 32, 4096, 32, 50368, 2048),
    "mpt-70b": gpt("MPT 70B", 80, 8192, 64, 50368, 2048),
    "palm": Model("PaLM 540B", 118, 18432, 48, 1, 73728, 256000, 2048, head_width=256, tied=True, norms=1),
    "deepseek-v3": Model(
        "DeepSeek-V3",
        61,
        7168,
        128,
        128,
        18432,
        129280,
        4096,
        experts=Experts(routed=256, chosen=8, shared=1, hidden=2048, dense_layers=3),
        latent=Latent(query_rank=1536, key_rank=512, rotary=64, plain=128, value=128),
    ),
}


def model_named(name: str, context: int | None = None) -> Model:
    """A model of the table, for sequences of ``context`` tokens.

    Raises:
        PlanError: there is none of that name, or its positions are learned and end earlier.
    """
    if name not in MODELS:
        raise PlanError(f"there is no model {name!r}: {', '.join(MODELS)}")
    model = MODELS[name]
    if context is None:
        return model
    whole("a sequence's length", context)
    if model.positions and context > model.positions:
        raise PlanError(f"{model.name} has {model.positions} positions, a sequence is not to have {context}")
    return replace(model, context=context)
