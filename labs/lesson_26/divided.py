"""Failures of models that are divided: FSDP2, tensor, expert and context parallelism; and of batch norm."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from lesson_26.stage import ANY, ERROR, WRONG, Case, collector

CASES: list[Case] = []
case = collector(CASES)
HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
FROM_RANK_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def gathered(x: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The ranks' parts of a tensor, one after the other."""
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim)


class Tied(nn.Module):
    """A language model in small: the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens(x))


@case(
    ERROR,
    says={0: "is shared with a parameter already managed by another FSDP group"},
    right="^tied: True$",
    did="gave a tied head and its embedding to two units of FSDP2",
    cause="they are one parameter, which two units cannot both divide",
    cure="one call for both: `fully_shard([embedding, head])`",
    lesson="19",
)
def tied_in_two_units(rank: int, cured: bool) -> str:
    mesh = init_device_mesh("cpu", (2,))
    model = Tied()
    for unit in [[model.tokens, model.head]] if cured else [model.tokens, model.head]:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(torch.arange(8)).sum().backward()
    return f"tied: {model.head.weight is model.tokens.weight}"


@case(
    ERROR,
    says={0: "FSDP expects uniform original parameter dtype"},
    right="^a step$",
    symptom="`AssertionError: FSDP expects uniform original parameter dtype but got {...}`",
    did="put float32 adapters (LoRA) and bfloat16 weights that both learn into one unit",
    cause="a unit's flat buffer has one dtype",
    cure="one dtype for all trainable parameters; or a unit for each dtype",
    lesson="19",
)
def two_types_in_a_unit(rank: int, cured: bool) -> str:
    mesh = init_device_mesh("cpu", (2,))
    base = nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
    adapter = nn.Linear(4, 4, bias=False)
    model = nn.Sequential(base, adapter)
    for unit in [base, adapter, model] if cured else [model]:
        fully_shard(unit, mesh=mesh, mp_policy=HALF)
    model(torch.ones(2, 4)).sum().backward()
    return "a step"


@case(
    ERROR,
    says={ANY: "op.preamble.length <= op.nbytes"},
    right=r"^\(5, 6\)$",
    symptom="a moving average (EMA) of FSDP2's weights covers 1/N of the model, or its save deadlocks, with "
    "`op.preamble.length <= op.nbytes` on gloo",
    did="kept the average of each rank's shard, and gathered it by `DTensor.from_local` without a shape",
    cause="`from_local` takes the local shape × ranks, and the last shard may be smaller",
    cure="`from_local(..., shape=p.shape, stride=p.stride())`, on all ranks",
    lesson="19",
)
def average_of_shards(rank: int, cured: bool) -> tuple[int, ...]:
    layer = fully_shard(nn.Linear(6, 5, bias=False), mesh=init_device_mesh("cpu", (2,)))
    p = layer.weight  # five rows: three here, two there
    average = p.to_local().detach().clone()
    whole = {"shape": p.shape, "stride": p.stride()} if cured else {}
    return tuple(DTensor.from_local(average, p.device_mesh, p.placements, **whole).full_tensor().shape)


@case(
    WRONG,
    says={0: "^moved by 0.000$"},
    right="^moved by 0.010$",
    symptom="late in training the loss levels off higher than in float32; "
    "under FSDP2 weights do not move by small steps",
    did="loaded the model in bfloat16 (bf16), and trusted `MixedPrecisionPolicy` for the rest",
    cause="the policy casts for the computation alone; parameters and AdamW's state keep their type",
    cure="float32 parameters before `fully_shard`; assert it before the optimizer is made",
    lesson="19",
)
def state_in_bfloat16(rank: int, cured: bool) -> str:
    layer = nn.Linear(2, 2, bias=False, dtype=torch.float32 if cured else torch.bfloat16)
    nn.init.ones_(layer.weight)
    fully_shard(layer, mesh=init_device_mesh("cpu", (2,)), mp_policy=HALF)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0)
    for _ in range(10):
        layer(torch.ones(2, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return f"moved by {1 - layer.weight.full_tensor().float().mean().item():.3f}"


class Rotary(nn.Module):
    """A layer with a table that no state dict holds."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.register_buffer("table", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(x) * self.table


@case(
    WRONG,
    says={1: "^loss is nan$"},
    right="^loss is finite$",
    symptom="NaN, or a wrong loss, on all ranks or on all but 0, in a model built on `meta` for FSDP2",
    did="called `to_empty`, and filled the model from rank 0's state dict",
    cause="a non-persistent buffer, such as a rotary table (`inv_freq`), is in no state dict, so "
    "no rank sends it",
    cure="compute such buffers again after `to_empty`; or broadcast rank 0's, if rank 0 was not on `meta`",
    lesson="15",
)
def buffer_that_nobody_sends(rank: int, cured: bool) -> str:
    torch.use_deterministic_algorithms(True)  # memory that nobody filled is NaN
    with torch.device("cpu" if rank == 0 else "meta"):
        model = Rotary()
    whole = {name: x.clone() for name, x in model.state_dict().items()} if rank == 0 else {}
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    if rank != 0:
        model.to_empty(device="cpu")
    set_model_state_dict(model, whole, options=FROM_RANK_0)
    if cured:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
    loss = model(torch.ones(2, 4)).sum()
    return f"loss is {'finite' if loss.isfinite() else 'nan'}"


@case(
    WRONG,
    says={0: "^2 copies$"},
    right="^1 copies$",
    symptom="host memory grows with each rank while the model loads; `exitcode: -9` before the first step",
    did="built, or loaded, the whole model on each rank before FSDP divided it",
    cause="a machine holds one copy for each of its ranks",
    cure="rank 0 builds it, the others on `meta`; `set_model_state_dict(..., options=StateDictOptions("
    "full_state_dict=True, broadcast_from_rank0=True))` sends it",
    lesson="19",
)
def every_rank_builds_it(rank: int, cured: bool) -> str:
    with torch.device("meta" if cured and rank != 0 else "cpu"):
        model = nn.Linear(4, 4)
    held = sum(p.numel() for p in model.parameters() if not p.is_meta)
    whole = {name: x.clone() for name, x in model.state_dict().items()} if rank == 0 else {}
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    if cured and rank != 0:
        model.to_empty(device="cpu")
    set_model_state_dict(model, whole, options=FROM_RANK_0)
    numbers = torch.tensor(held)
    dist.all_reduce(numbers)
    return f"{numbers.item() // 20} copies"


@case(
    WRONG,
    says={0: "^4 all-reduces$"},
    right="^1 all-reduces$",
    symptom="under FSDP2 or HSDP, gradient accumulation over 4 micro-batches takes 4 times as long",
    did="left synchronization on for each micro-batch, or set `model.require_backward_grad_sync`, which is "
    "DDP's",
    cause="each micro-batch communicates as much as a whole step",
    cure="HSDP: `set_requires_all_reduce(last)`, at no extra memory; "
    "FSDP2: `set_requires_gradient_sync(last)`, which keeps whole gradients until then",
    lesson="19",
)
def reduces_between_replicas(rank: int, cured: bool) -> str:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    layer = fully_shard(nn.Linear(4, 4), mesh=mesh)
    with CommDebugMode() as seen:
        for micro_batch in range(4):
            layer.set_requires_all_reduce(micro_batch == 3 or not cured)
            layer(torch.ones(2, 4)).sum().backward()
    counts = {str(call).rpartition(".")[2]: n for call, n in seen.get_comm_counts().items()}
    return f"{counts['allreduce_']} all-reduces"


def exchanged(x: torch.Tensor) -> torch.Tensor:
    """Row i goes to rank i; its gradient comes back."""
    return functional.all_to_all_single_autograd(x, [1, 1], [1, 1], dist.group.WORLD)


@case(
    WRONG,
    says={0: "^gradient 1.0$"},
    right="^gradient 0.5$",
    symptom="experts' gradients are EP times too large: SGD steps too far, and clipping sees a wrong norm; "
    "Adam hides most of it",
    did="did not divide the experts' gradients, or summed them once more",
    cause="the all-to-all's backward has summed over the EP group, and each rank's loss is a mean",
    cure="divide them by the EP size, as DDP divides the others",
    lesson="21",
)
def experts_not_divided(rank: int, cured: bool) -> str:
    expert = nn.Parameter(torch.ones(1))
    own_tokens = torch.ones(2, 1)  # one for each expert
    exchanged(exchanged(own_tokens) * expert).mean().backward()
    if cured:
        expert.grad /= dist.get_world_size()
    return f"gradient {expert.grad.item()}"  # one process with all four tokens has 0.5


@case(
    WRONG,
    says={0: "^gradient 0.5$", 1: "^gradient 1.5$"},
    right="^gradient 2.0$",
    symptom="TP ranks' copies of norms, of norms of heads (q, k) or of KV heads drift apart",
    did="stepped with each rank's own gradient of these parameters",
    cause="each rank has seen its own tokens or heads: its gradient is a partial sum",
    cure="before the optimizer's step sum norms' gradients over the TP group, a KV head's only over the "
    "ranks that hold a copy of that head",
    lesson="17",
)
def summand_as_gradient(rank: int, cured: bool) -> str:
    scale = nn.Parameter(torch.ones(1))
    sequence = torch.tensor([1.0, 3.0])
    (scale * sequence[rank]).sum().div(len(sequence)).backward()
    if cured:
        dist.all_reduce(scale.grad)
    return f"gradient {scale.grad.item()}"


@case(
    WRONG,
    says={1: "^sees the document before$"},
    right="^sees its own document$",
    symptom="the loss of packed sequences is plausible, but a document sees the one before it",
    did="packed documents under context parallelism, or any attention, with `is_causal` alone",
    cause="a causal mask hides what comes later, not an earlier document",
    cure="a mask by document, or `cu_seqlens`; check that one document's outputs ignore the others",
    lesson="20",
)
def documents_see_each_other(rank: int, cured: bool) -> str:
    torch.manual_seed(rank)
    own = torch.randn(1, 1, 2, 4)  # this rank's half of the sequence: document 0 or 1, two tokens
    keys = gathered(own, dim=2)
    place = torch.arange(4)
    mine = place[2 * rank : 2 * rank + 2]
    allowed = mine[:, None] >= place
    if cured:
        allowed &= mine[:, None] // 2 == place // 2
    out = F.scaled_dot_product_attention(own, keys, keys, attn_mask=allowed)
    alone = F.scaled_dot_product_attention(own, own, own, is_causal=True)
    return "sees its own document" if torch.allclose(out, alone, atol=1e-6) else "sees the document before"


@case(
    WRONG,
    says={0: "^not as one process$"},
    right="^as one process$",
    symptom="more GPUs converge worse, with few images on each; the saved statistics are rank 0's",
    did="kept BatchNorm as it was",
    cause="each rank normalizes by its own few images",
    cure="`SyncBatchNorm.convert_sync_batchnorm(model)` before DDP; GroupNorm; or freeze the statistics",
    lesson="10",
)
def few_images_each(rank: int, cured: bool) -> str:
    torch.manual_seed(0)
    images = torch.randn(4, 3)
    alone = nn.BatchNorm1d(3)(images)
    norm = nn.BatchNorm1d(3)
    own = images[2 * rank : 2 * rank + 2]
    if cured:  # what SyncBatchNorm computes
        out = norm(gathered(own))[2 * rank : 2 * rank + 2]
    else:
        out = norm(own)
    same = torch.allclose(out, alone[2 * rank : 2 * rank + 2], atol=1e-6)
    return "as one process" if same else "not as one process"
