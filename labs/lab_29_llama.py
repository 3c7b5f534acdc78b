"""A Llama with the names of transformers, so that weights of that family load into it, and its export.

A module, which needs torch. ``lab_29_language.py`` uses it.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_29_language.py --steps 20
Written by:  notebooks/29_language_model.ipynb (edit it there)
"""

import ctypes
import json
import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from lab_10_batches import seed_of
from lab_29_tokens import IGNORED

LOSS_TOKENS = 4096  # whose logits exist at once; with 128,256 words in float32 they take 2 GiB
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NAMES = {  # {field of Sizes: key of a config.json}
    "vocabulary": "vocab_size",
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}

ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class ModelError(Exception):
    """Its text says what does not fit."""


@dataclass(frozen=True)
class Sizes:
    vocabulary: int
    layers: int = 4
    width: int = 64
    heads: int = 4
    kv_heads: int = 2  # of keys and values; each serves heads / kv_heads heads of queries
    ffn: int = 176  # width inside the MLP
    theta: float = 10_000.0  # of the rotary positions
    rope: tuple[float, ...] | None = None  # of Llama 3.1 and later: see ROPE
    eps: float = 1e-5
    tied: bool = False  # the output layer uses the embedding's weight

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.width % (2 * self.heads):
            told = f"{self.kv_heads} kv-heads must divide {self.heads} heads, and 2 x heads the width"
            raise ModelError(f"{told} {self.width}")

    def parameters(self) -> int:
        block = self.width * self.width * (2 + 2 * self.kv_heads / self.heads)
        block += 3 * self.width * self.ffn + 2 * self.width
        embeddings = self.vocabulary * self.width * (1 if self.tied else 2)
        return int(self.layers * block + self.width + embeddings)

    def flops_per_token(self, length: int) -> float:
        """Of a forward and a backward pass: 6 for each parameter that multiplies, and causal attention."""
        multiplied = self.parameters() - (0 if self.tied else self.vocabulary * self.width)
        return 6 * multiplied + 6 * self.layers * length * self.width


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """(batch, heads, length, head width), turned by the angles of its positions, at least in float32."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head_width = sizes.width // sizes.heads
        self.sharing = sizes.heads // sizes.kv_heads
        self.q_proj = nn.Linear(sizes.width, sizes.width, bias=False)
        self.k_proj = nn.Linear(sizes.width, sizes.kv_heads * self.head_width, bias=False)
        self.v_proj = nn.Linear(sizes.width, sizes.kv_heads * self.head_width, bias=False)
        self.o_proj = nn.Linear(sizes.width, sizes.width, bias=False)

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, heads * head width) to (batch, heads, length, head width)."""
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        query = rotated(self.split_heads(self.q_proj(x)), cos, sin)
        key = rotated(self.split_heads(self.k_proj(x)), cos, sin).repeat_interleave(self.sharing, dim=1)
        value = self.split_heads(self.v_proj(x)).repeat_interleave(self.sharing, dim=1)
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.ffn, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.ffn, bias=False)
        self.down_proj = nn.Linear(sizes.ffn, sizes.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(sizes.width, sizes.eps)
        self.self_attn = Attention(sizes)
        self.post_attention_layernorm = nn.RMSNorm(sizes.width, sizes.eps)
        self.mlp = MLP(sizes)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Tokens (batch, length) to (batch, length, width)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, sizes.eps)

    def forward(self, tokens: torch.Tensor, end: int | None) -> torch.Tensor:
        """With ``end``, no token sees another document. Rotary positions are relative: they need no reset."""
        x = self.embed_tokens(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        mask = None
        if end is not None:
            is_first = torch.ones_like(tokens, dtype=torch.bool)
            is_first[:, 1:] = tokens[:, :-1] == end
            begins = torch.where(is_first, places, 0).cummax(1).values  # of the document of each token
            same = begins[:, None, :, None] == begins[:, None, None, :]
            mask = same & (places[:, None, :, None] >= places[:, None, None, :])
        angles = (places[..., None] * self.frequencies(tokens.device)).repeat(1, 1, 2)[:, None]
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)

    def frequencies(self, device: torch.device) -> torch.Tensor:
        """Of the rotary positions, (head width / 2,); Llama 3.1 and later turn slow ones more slowly.

        In float64: in float32 the angle of a large position is too coarse to depend on differences alone.
        """
        half = torch.arange(0, self.sizes.width // self.sizes.heads, 2, dtype=torch.float64, device=device)
        found = self.sizes.theta ** (-half * self.sizes.heads / self.sizes.width)
        if self.sizes.rope is None:
            return found
        factor, low, high, length = self.sizes.rope
        kept = ((length * found / (2 * math.pi) - low) / (high - low)).clamp(0, 1)  # turns in the old length
        return found * (kept + (1 - kept) / factor)


class Llama(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.model = Decoder(sizes)
        self.lm_head = None if sizes.tied else nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return F.linear(x, weight)

    def loss_of(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.logits(x)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return F.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum")

    def forward(
        self, tokens: torch.Tensor, labels: torch.Tensor | None = None, end: int | None = None
    ) -> torch.Tensor:
        """Logits; or, with ``labels``, the sum of the losses, in pieces whose logits are computed again."""
        x = self.model(tokens, end)
        if labels is None:
            return self.logits(x)
        pieces = zip(x.flatten(0, 1).split(LOSS_TOKENS), labels.flatten().split(LOSS_TOKENS), strict=True)
        again = {"use_reentrant": False, "preserve_rng_state": False}
        return torch.stack([checkpoint(self.loss_of, *piece, **again) for piece in pieces]).sum()


@torch.no_grad()
def fill(parameter: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy ``whole`` into a parameter, or this rank's shard of it. All ranks have it: nothing is sent."""
    if isinstance(parameter, DTensor):
        whole = whole.to(parameter.device, parameter.dtype)
        whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(whole)


def initialize(model: Llama, seed: int) -> None:
    """The same first values on any number of ranks: each parameter has a seed of its own."""
    depth = math.sqrt(2 * model.model.sizes.layers)
    for name, parameter in model.named_parameters():
        whole = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)  # of a bias
        if name.endswith("norm.weight"):
            whole.fill_(1.0)
        elif parameter.ndim > 1:
            generator = torch.Generator(parameter.device).manual_seed(seed_of(seed, "weights", name))
            std = 0.02 / depth if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
            whole.normal_(0.0, std, generator=generator)
        elif not name.endswith("bias"):
            raise ModelError(f"{name}: say in initialize which first value it has")
        fill(parameter, whole)


def sizes_in(folder: Path) -> Sizes:
    """Of a Llama in the format of Hugging Face's transformers: ``config.json`` and ``*.safetensors``.

    Others of the family, by their files in transformers: a Mistral without a sliding window is the same;
    Qwen2 has biases in q_proj, k_proj and v_proj; Qwen3 normalizes each head's queries and keys, and its
    heads have a width of their own. Change ``Attention``, then let them pass here.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        sizes = Sizes(
            **{field: config[key] for field, key in NAMES.items()},
            theta=config.get("rope_theta", rope.get("rope_theta", 10_000.0)),
            rope=tuple(rope[key] for key in ROPE) if kind == "llama3" else None,
        )
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{folder} has no config.json of a Llama: {error!r}") from None
    extras = [key for key in ("attention_bias", "mlp_bias") if config.get(key)]
    head_width = config.get("head_dim") or sizes.width // sizes.heads
    if config.get("model_type") != "llama" or kind not in ("default", "llama3") or extras:
        raise ModelError(
            f"{folder}: a {config.get('model_type')} with rope {kind}, {extras} is not supported; "
            "sizes_in of lab_29_llama.py says what others of the family need"
        )
    if head_width != sizes.width // sizes.heads:
        raise ModelError(f"{folder}: heads of {head_width} are not width / heads")
    return sizes


def tensors_in(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of all ``*.safetensors`` there, mapped into memory."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as stream:
                start = 8 + struct.unpack("<Q", stream.read(8))[0]
                header = json.loads(stream.read(start - 8))
                mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
            header.pop("__metadata__", None)
            for name, about in header.items():
                dtype = FLOATS[about["dtype"]]
                where = {"count": math.prod(about["shape"]), "offset": start + about["data_offsets"][0]}
                yield name, torch.frombuffer(mapped, dtype=dtype, **where).view(about["shape"])
        except (OSError, struct.error, ValueError, KeyError, MemoryError) as error:
            raise ModelError(f"{file} is no whole file of safetensors: {error!r}") from None


def load(model: Llama, folder: Path) -> None:
    """Fill the parameters from ``*.safetensors``; each rank copies its shards."""
    missing = dict(model.named_parameters())
    for name, whole in tensors_in(folder):
        if name == "lm_head.weight" and model.lm_head is None:
            continue  # some files repeat the embedding
        parameter = missing.pop(name, None)
        if parameter is None or parameter.shape != whole.shape:
            raise ModelError(f"{folder}: {name} {tuple(whole.shape)} has no place in this model")
        fill(parameter, whole)
    if missing:
        raise ModelError(f"{folder} lacks {next(iter(missing))}")


def export(model: Llama, folder: Path, length: int, end: int, dtype: torch.dtype) -> None:
    """Write the model as transformers reads it. Collective: parameters are gathered one by one for rank 0."""
    sizes = model.model.sizes
    is_first = dist.get_rank() == 0
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, parameter in model.named_parameters():
        following = offset + parameter.numel() * dtype.itemsize
        kind = next(kind for kind, one in FLOATS.items() if one == dtype)
        header[name] = {"dtype": kind, "shape": [*parameter.shape], "data_offsets": [offset, following]}
        offset = following
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = folder / "model.safetensors.part"
    if is_first:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_bytes(struct.pack("<Q", len(text)) + text)
    for parameter in model.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        if is_first:
            whole = whole.detach().to("cpu", dtype).contiguous()
            with part.open("ab") as stream:
                stream.write(ctypes.string_at(whole.data_ptr(), whole.nbytes))
    if is_first:
        config = {key: getattr(sizes, field) for field, key in NAMES.items()}
        config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
        rope = {"rope_type": "llama3", **dict(zip(ROPE, sizes.rope, strict=True))} if sizes.rope else {}
        config |= {"rope_theta": sizes.theta, "rope_scaling": rope or None}  # transformers 4
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": sizes.theta, **rope}  # and 5
        config |= {"max_position_embeddings": length, "eos_token_id": end}
        config |= {"bos_token_id": None, "torch_dtype": str(dtype).removeprefix("torch.")}
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        part.rename(folder / "model.safetensors")
