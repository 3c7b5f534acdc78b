"""Transformers as lists of tensors. The parameters are counted, not estimated."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from .errors import PlanError, whole

FIRST, LAST = "first", "last"  # the stage with the embedding, and the one with the last norm and the head
MOST_LAYERS = 500
MAY_BE_NONE = ("shared", "dense_layers", "query_rank", "rotary")
ROWS, COLUMNS = 0, 1  # tensor parallelism divides a weight (out, in) along ``out``, or along ``in``


@dataclass(frozen=True)
class Tensor:
    """A parameter: its block, or FIRST or LAST; along what tensor parallelism divides it; how many experts a
    stack of their weights (experts, out, in) has, 0 for none."""

    name: str
    shape: tuple[int, ...]
    place: int | str
    divided: int | None = None
    experts: int = 0

    @cached_property
    def numbers(self) -> int:
        return math.prod(self.shape)


class Experts(NamedTuple):
    """A mixture of experts in place of the MLP, in all blocks but the first ``dense_layers``."""

    routed: int
    chosen: int  # of the routed ones, for each token
    shared: int  # which every token goes through
    hidden: int
    dense_layers: int = 0


class Latent(NamedTuple):
    """Multi-head latent attention (MLA): queries, keys and values come out of narrow vectors."""

    query_rank: int  # 0: queries come straight from the input
    key_rank: int
    rotary: int  # numbers of a head that carry the position
    plain: int  # the others of a query's or a key's head
    value: int  # of a value's head


@dataclass(frozen=True)
class Model:
    """Sizes of a transformer.

    Attributes:
        width: the hidden size; ``hidden`` is the width of the MLP, ``context`` the length of a sequence.
        heads: of the queries; ``kv_heads`` of keys and values, each ``head_width`` wide.
        gated: the MLP has three matrices (SwiGLU) and norms are RMSNorm; else two, and LayerNorm.
        positions: learned ones, as many as the context; 0 for rotary ones or none.
        norms: in a block.
        dropout: masks of what is dropped are kept for backward.
        window: tokens that attention looks back in the share ``windowed`` of the layers; 0: all.
        unsure: what a config asks for that this counting leaves out; "" if nothing is known to be.
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
    dropout: bool = False
    window: int = 0
    windowed: float = 1.0
    experts: Experts | None = None
    latent: Latent | None = None
    unsure: str = ""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "kv_heads", "hidden", "vocabulary", "context", "norms"):
            whole(name, getattr(self, name))
        for name in ("head_width", "positions", "window"):
            whole(name, getattr(self, name), smallest=0)
        for name in ("gated", "tied", "biases", "dropout"):
            if not isinstance(getattr(self, name), bool):
                raise PlanError(f"{name} must be true or false, not {str(getattr(self, name))[:40]!r}")
        for part in (self.experts, self.latent):
            for name, value in (part._asdict() if part else {}).items():
                whole(name, value, smallest=0 if name in MAY_BE_NONE else 1)
        if self.experts and self.experts.chosen > self.experts.routed:
            raise PlanError(f"{self.experts.chosen} experts cannot be chosen of {self.experts.routed}")
        if self.layers > MOST_LAYERS:
            raise PlanError(f"{self.layers} layers are more than {MOST_LAYERS}: each is counted")
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
            block = f"blocks.{layer}"
            for number in range(1, self.norms + 1):
                yield from self._norm(f"{block}.norm{number}", layer)
            for name, out, into, divided in self._attention():
                yield from self._linear(f"{block}.attention.{name}", out, into, layer, divided)
            hidden = self.hidden
            if self.experts is not None and has_experts(self, layer):
                yield from self._experts(f"{block}.mlp", layer, self.experts)
                hidden = self.experts.shared * self.experts.hidden
            ups = ("gate", "up") if self.gated else ("up",)
            for name in ups if hidden else ():
                yield from self._linear(f"{block}.mlp.{name}", hidden, self.width, layer, ROWS)
            if hidden:
                yield from self._linear(f"{block}.mlp.down", self.width, hidden, layer, COLUMNS)
        yield from self._norm("norm", LAST)
        if not self.tied:
            yield Tensor("head.weight", (self.vocabulary, self.width), LAST, ROWS)

    def _norm(self, name: str, place: int | str) -> Iterator[Tensor]:
        yield Tensor(f"{name}.weight", (self.width,), place)
        if self.biases:
            yield Tensor(f"{name}.bias", (self.width,), place)

    def _linear(self, name: str, out: int, into: int, layer: int, divided: int | None) -> Iterator[Tensor]:
        yield Tensor(f"{name}.weight", (out, into) if into else (out,), layer, divided)
        if self.biases:
            # What a division of columns computes is a part of a sum, and the bias is added to the sum.
            yield Tensor(f"{name}.bias", (out,), layer, ROWS if divided == ROWS else None)

    def _attention(self) -> Iterator[tuple[str, int, int, int | None]]:
        """Name, outputs, inputs (0 for a norm) and division of each layer."""
        latent = self.latent
        if latent is None:
            yield "query", self.queries, self.width, ROWS
            yield "key", self.keys, self.width, ROWS
            yield "value", self.keys, self.width, ROWS
        else:
            if latent.query_rank:
                yield "query_down", latent.query_rank, self.width, None
                yield "query_norm", latent.query_rank, 0, None
            yield "query_up", self.queries, latent.query_rank or self.width, ROWS
            yield "key_down", latent.key_rank + latent.rotary, self.width, None
            yield "key_norm", latent.key_rank, 0, None
            yield "key_up", self.heads * (latent.plain + latent.value), latent.key_rank, ROWS
        yield "out", self.width, self.values, COLUMNS

    def _experts(self, name: str, layer: int, experts: Experts) -> Iterator[Tensor]:
        yield Tensor(f"{name}.router.weight", (experts.routed, self.width), layer)
        wide, narrow = (
            (experts.routed, experts.hidden, self.width),
            (experts.routed, self.width, experts.hidden),
        )
        if self.gated:
            yield Tensor(f"{name}.experts.gate", wide, layer, 1 + ROWS, experts.routed)
        yield Tensor(f"{name}.experts.up", wide, layer, 1 + ROWS, experts.routed)
        yield Tensor(f"{name}.experts.down", narrow, layer, 1 + COLUMNS, experts.routed)

    @cached_property
    def queries(self) -> int:
        """Width of all heads of queries together; ``keys`` of keys, ``values`` of what attention returns."""
        each = self.latent.plain + self.latent.rotary if self.latent else self.head_width
        return self.heads * each

    @cached_property
    def keys(self) -> int:
        return self.kv_heads * self.head_width

    @cached_property
    def values(self) -> int:
        return self.heads * (self.latent.value if self.latent else self.head_width)

    def parameters(self) -> int:
        return _counted(self)[0]

    def active_parameters(self) -> int:
        """Those that one token goes through: of the routed experts, the chosen ones."""
        return _counted(self)[1]

    def embedding(self) -> int:
        """Parameters that are looked up and not multiplied with: of positions, and of tokens if not tied."""
        return (0 if self.tied else self.vocabulary * self.width) + self.positions * self.width

    def attention_width(self) -> float:
        """Width of all heads, the mean of what is compared (queries, keys) and what is summed (values)."""
        return (self.queries + self.values) / 2

    def seen(self) -> float:
        """Tokens that a query would look at without the causal mask, the mean over the layers."""
        if not self.window or 2 * self.window >= self.context:
            return self.context
        return self.windowed * 2 * self.window + (1 - self.windowed) * self.context


def has_experts(model: Model, layer: int) -> bool:
    return model.experts is not None and layer >= model.experts.dense_layers


@lru_cache(maxsize=64)
def tensors_of(model: Model) -> tuple[Tensor, ...]:
    return tuple(model.tensors())


@lru_cache(maxsize=64)
def _counted(model: Model) -> tuple[int, int]:
    """Parameters, and those that one token goes through."""
    experts = sum(tensor.numbers for tensor in tensors_of(model) if tensor.experts)
    total = sum(tensor.numbers for tensor in tensors_of(model))
    used = experts // model.experts.routed * model.experts.chosen if model.experts else 0
    return total, total - experts + used


def gpt(name: str, layers: int, width: int, heads: int, vocabulary: int, context: int) -> Model:
    """As GPT-3 is built: learned positions, biases, dropout, an MLP four times as wide, a tied head."""
    sizes = (layers, width, heads, heads, 4 * width, vocabulary, context)
    return Model(name, *sizes, gated=False, tied=True, biases=True, positions=context, dropout=True)


LIKE_GPT2 = ("gpt2", "opt", "gpt_neo", "gpt_bigcode")  # learned positions, biases, LayerNorm
LIKE_NEOX = ("gpt_neox", "bloom", "mpt", "falcon", "nemotron", "phi", "gptj", "starcoder2")  # an MLP of two
LIKE_LLAMA: tuple[str, ...] = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
)
LIKE_LLAMA += ("deepseek_v2", "deepseek_v3", "gpt_oss", "olmo", "olmo2", "granite", "phi3", "palm", "smollm3")
NO_DECODERS: tuple[str, ...] = (
    "bert",
    "roberta",
    "distilbert",
    "albert",
    "electra",
    "deberta",
    "deberta-v2",
    "modernbert",
)
NO_DECODERS += ("xlm-roberta", "vit", "clip", "t5", "mt5", "bart", "whisper", "wav2vec2", "mamba", "mamba2")
NO_DECODERS += ("rwkv", "jamba", "bamba", "zamba", "zamba2", "nemotron_h", "falcon_mamba", "recurrent_gemma")
ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


def refuse(config: dict[str, Any]) -> None:
    """Raise PlanError for what is no decoder of attention and MLPs: its bytes and seconds are not known."""
    kind = str(config.get("model_type", ""))
    if kind in NO_DECODERS or config.get("is_encoder_decoder"):
        raise PlanError(f"{kind} is no decoder of attention and MLPs, and the planner knows no other")
    kinds = config.get("layer_types") or []
    others = [layer for layer in kinds if layer not in ATTENTION]
    if others:
        told = f"{len(others)} of {len(kinds)} layers are {others[0]}"
        raise PlanError(f"{told}, which the planner cannot count")
    for key in ("linear_num_value_heads", "full_attention_interval", "ssm_state_size", "mamba_d_state"):
        if config.get(key):
            raise PlanError(f"{kind} has {key}: layers that are no attention, which the planner cannot count")


def unsure(config: dict[str, Any]) -> str:
    """What is planned otherwise than the config may mean it, in a sentence, or ""."""
    kind = str(config.get("model_type", ""))
    if kind not in LIKE_GPT2 + LIKE_NEOX + LIKE_LLAMA:
        return f"model_type {kind or '(none)'} is not known here: it is planned as Llama is built"
    if config.get("num_nextn_predict_layers"):
        return "layers that predict further tokens (num_nextn_predict_layers) are left out"
    return ""


def model_of_config(config: dict[str, Any], name: str = "") -> Model:
    """The model of a ``config.json`` of Hugging Face's transformers.

    Raises:
        KeyError: a size is missing.
        PlanError: it is no decoder of attention and MLPs.
    """
    refuse(config)

    def given(*names: str, otherwise: Any = None) -> Any:
        values = [config[name] for name in names if config.get(name) is not None]
        if not values and otherwise is None:
            raise KeyError(f"{names[0]} is missing")
        return values[0] if values else otherwise

    kind = config.get("model_type", "a model")
    width = given("hidden_size", "n_embd", "d_model")
    heads = given("num_attention_heads", "n_head", "n_heads")
    hidden = given("intermediate_size", "ffn_hidden_size", "n_inner", otherwise=4 * width)
    routed = given("n_routed_experts", "num_local_experts", "num_experts", otherwise=0)
    of_experts = (
        routed,
        given("num_experts_per_tok", otherwise=1),
        given("n_shared_experts", otherwise=0),
        given("moe_intermediate_size", otherwise=hidden),
        given("first_k_dense_replace", otherwise=0),
    )
    parts = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    learned = kind in LIKE_GPT2
    gelu = kind in LIKE_NEOX or learned
    context = given("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", otherwise=2048)
    kinds = config.get("layer_types") or ["sliding_attention"]
    return Model(
        str(name or config.get("_name_or_path") or kind),
        given("num_hidden_layers", "n_layer", "n_layers"),
        width,
        heads,
        given("num_key_value_heads", otherwise=heads),
        hidden,
        given("vocab_size"),
        context,
        given("head_dim", otherwise=0),
        gated=not gelu,
        tied=given("tie_word_embeddings", otherwise=learned),
        biases=learned or kind in ("gpt_neox", "bloom", "mpt"),
        positions=context if learned or kind == "mpt" else 0,
        norms=1 if kind == "palm" else 2,
        dropout=(config.get("attn_pdrop") or 0) > 0,
        window=given("sliding_window", otherwise=0) if config.get("use_sliding_window", True) else 0,
        windowed=kinds.count("sliding_attention") / len(kinds),
        experts=Experts(*of_experts) if routed else None,
        latent=Latent(*(given(part, otherwise=0) for part in parts)) if config.get("kv_lora_rank") else None,
        unsure=unsure(config),
    )


def model_in(path: str) -> Model:
    """Raises PlanError: the file cannot be read, or is no config of a decoder."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
        return model_of_config(config.get("text_config", config))
    except PlanError:
        raise
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: {error}") from None
    except (KeyError, AttributeError, TypeError, RecursionError) as error:
        raise PlanError(f"{path} is no config of a decoder: {error}") from None


# Sizes: config.json of each on the Hugging Face hub; MPT: llm-foundry's yamls; GPT-3: Brown et al. 2020,
# table 2.1; MegaScale: table 1; MT-NLG: Korthikanti et al. 2022, table 3; PaLM, Nemotron-4: their tables 1.
TABLE = json.loads(Path(__file__).with_name("models.json").read_text(encoding="utf-8"))
MODELS = {config["key"]: model_of_config(config) for config in TABLE}


def model_named(name: str, context: int | None = None) -> Model:
    """A model of the table, for sequences of that length; ``llama3-8b`` and ``Llama-3.1-8B`` are ``8b``.

    Raises:
        PlanError: there is none of that name.
    """
    key = re.sub("^llama-?3([.][0-9])?-", "", name.lower().replace("_", "-"))
    if key not in MODELS:
        near = get_close_matches(key, MODELS, 1, 0.5)
        meant = f"; the nearest name is {near[0]}" if near else ""
        raise PlanError(f"there is no model {name!r}{meant}: {', '.join(MODELS)}")
    return with_context(MODELS[key], context)


def with_context(model: Model, context: int | None) -> Model:
    """The model for sequences of another length; learned positions become as many."""
    if context is None:
        return model
    return replace(model, context=whole("a length", context), positions=context if model.positions else 0)
