"""Cases of models and sequences that are cut: by stages, by columns, and by context parallelism."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, ScheduleZBVZeroBubble
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from lesson_26.stage import ERROR, WRONG, Case, collector

CASES: list[Case] = []
case = collector(CASES)
MICRO_BATCHES = 4


@case(
    WRONG,
    says={0: r"^gradient 1\.0$", 1: r"^gradient 1\.0$"},
    right=r"^gradient 0\.[68]$",
    symptom="with a pipeline the loss, or the logged norm (grad_norm), differs between stages and depends on "
    "their number",
    did="called `clip_grad_norm_` on the parameters of a pipeline stage",
    cause="each stage clips by its own norm",
    cure="add up the squares of all stages' norms, then `clip_grads_with_norm_`: `clip_stages` of lesson 16. "
    "A tied weight counts once. With FSDP and TP, too: lesson 22",
    lesson="16",
)
def stages_clip_alone(rank: int, cured: bool) -> str:
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.tensor([3.0 + rank])  # of the whole model: 5
    norm = nn.utils.get_total_norm([p.grad])
    if cured:
        square = norm.square()
        dist.all_reduce(square)
        norm = square.sqrt()
    nn.utils.clip_grads_with_norm_([p], 1.0, norm)
    return f"gradient {p.grad.item():.1f}"


@case(
    WRONG,
    says={1: "^4 outputs kept, 32,768 bytes$"},
    right="^0 outputs kept, 0 bytes$",
    symptom="the last rank of a pipeline runs out of memory first, although 1F1B holds one micro-batch there",
    did="called `schedule.step(...)` without `return_outputs=False`",
    cause="by default the last stage keeps the logits of all micro-batches until the next step",
    cure="`return_outputs=False`, on all ranks; the loss comes back in `losses`",
    lesson="16",
)
def outputs_of_all_micro_batches(rank: int, cured: bool) -> str:
    model = nn.Linear(8, 8) if rank == 0 else nn.Linear(8, 256)
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda output, _: output.square().mean())
    x = torch.ones(8 * MICRO_BATCHES, 8)
    inputs = (x,) if rank == 0 else ()
    target = {} if rank == 0 else {"target": x}
    schedule.step(*inputs, **target, return_outputs=not cured)
    kept = stage.output_chunks
    return f"{len(kept)} outputs kept, {sum(output.nbytes for output in kept):,} bytes"


def one_step(rank: int, n_microbatches: int, rows: int) -> str:
    """A step of 1F1B on two stages, with a batch of ``rows`` rows."""
    stage = PipelineStage(nn.Linear(8, 8), rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches, loss_fn=lambda output, _: output.square().mean())
    x = torch.ones(rows, 8)
    inputs = (x,) if rank == 0 else ()
    target = {} if rank == 0 else {"target": x}
    schedule.step(*inputs, **target)
    return "a step"


@case(
    ERROR,
    says={0: r"Number of microbatches \(1\) must be greater than or equal to the number of stages \(2\)"},
    right="^a step$",
    did="gave 1F1B fewer micro-batches than there are stages; older torch hangs in the first step",
    cause="1F1B fills the pipeline with a micro-batch for each stage",
    cure="more micro-batches, fewer stages, or `ScheduleGPipe` "
    "([torchtitan #775](https://github.com/pytorch/torchtitan/issues/775))",
    lesson="16",
)
def fewer_micro_batches_than_stages(rank: int, cured: bool) -> str:
    return one_step(rank, 2 if cured else 1, rows=4)


@case(
    ERROR,
    says={0: "Expecting 4 arg_mbs but got 2"},
    right="^a step$",
    did="gave `schedule.step` fewer rows than `n_microbatches`, such as an epoch's last batch",
    cause="the batch is cut along its rows, and 2 rows make 2 micro-batches",
    cure="a batch of at least `n_microbatches` rows; `drop_last=True`",
    lesson="16",
)
def fewer_rows_than_micro_batches(rank: int, cured: bool) -> str:
    return one_step(rank, 4, rows=4 if cured else 2)


@case(
    ERROR,
    says={1: "can't steal_bwd_input if this stage doesn't have backward"},
    right="^evaluated$",
    did="called `schedule.eval(...)` of `ScheduleZBVZeroBubble`, torch 2.15",
    cause="in a V two neighbouring stages share a rank: torch passes on their gradient, and there is none",
    cure="evaluate with a schedule whose stages form a loop, not a V",
    lesson="16",
)
def evaluation_of_a_v(rank: int, cured: bool) -> str:
    numbers = (rank, 2 + rank) if cured else (rank, 3 - rank)
    stages = [PipelineStage(nn.Linear(8, 8), number, 4, torch.device("cpu")) for number in numbers]
    make: type[PipelineScheduleMulti] = ScheduleInterleaved1F1B if cured else ScheduleZBVZeroBubble
    schedule = make(stages, MICRO_BATCHES, loss_fn=lambda output, _: output.square().mean())
    x = torch.ones(MICRO_BATCHES, 8)
    inputs = (x,) if 0 in numbers else ()
    target = {"target": x} if 3 in numbers else {}
    schedule.eval(*inputs, **target)
    return "evaluated"


@case(
    WRONG,
    says={0: r"^off by 1\.\d$"},
    right="^equal$",
    symptom="with tensor parallelism the first loss is not that of one process; a pretrained model answers "
    "nonsense",
    did="gave `ColwiseParallel` a fused layer: one matrix for query, key and value, or for gate and up",
    cause="it cuts across the projections: rank 0 gets all of the query, and half of the key",
    cure="order its rows by rank first, [q0 k0 v0 q1 k1 v1], undo it when saving (lesson 17); or "
    "three layers in place of one",
    lesson="17",
)
def fused_projection(rank: int, cured: bool) -> str:
    torch.manual_seed(0)
    layer = nn.Linear(4, 12, bias=False)  # query, key, value: 4 outputs each
    x = torch.ones(1, 4)
    expected = sum(layer(x).chunk(3, -1))
    if cured:
        with torch.no_grad():
            layer.weight.copy_(layer.weight.unflatten(0, (3, 2, 2)).transpose(0, 1).flatten(0, 2))
    layer = parallelize_module(layer, init_device_mesh("cpu", (2,)), ColwiseParallel())
    here = sum(layer(x).chunk(3, -1))  # this rank's half of q + k + v
    off = (here - expected.chunk(2, -1)[rank]).abs().max().item()
    return "equal" if off < 1e-6 else f"off by {off:.1f}"


@case(
    ERROR,
    says={0: r"shape '\[1, 3, 4, 2\]' is invalid for input of size 12"},
    right=r"^\[1, 3, 2, 2\]$",
    did="split a column-parallel layer's output into all heads: `q.view(batch, length, heads, width)`",
    cause="under TP a rank has heads / TP of them",
    cure="`q.view(batch, length, -1, head_width)`, or `unflatten(-1, (-1, head_width))`",
    lesson="17",
)
def view_of_all_heads(rank: int, cured: bool) -> list[int]:
    query = parallelize_module(nn.Linear(8, 8), init_device_mesh("cpu", (2,)), ColwiseParallel())
    return list(query(torch.ones(1, 3, 8)).view(1, 3, -1 if cured else 4, 2).shape)


@case(
    WRONG,
    says={0: "^6 labels$"},
    right="^7 labels$",
    symptom="with context parallelism the loss is a little off, and fewer labels count than in one process",
    did="cut the sequence first, and let each rank shift its own part to make labels",
    cause="the last token of each part loses its label",
    cure="make labels from the whole row, then cut both",
    lesson="20",
)
def labels_after_the_cut(rank: int, cured: bool) -> str:
    tokens, ignored = torch.arange(8), -100
    own = tokens.chunk(2)[rank]
    labels = F.pad(tokens[1:], (0, 1), value=ignored).chunk(2)[rank]
    if not cured:
        labels = F.pad(own[1:], (0, 1), value=ignored)
    counted = (labels != ignored).sum()
    dist.all_reduce(counted)
    return f"{counted.item()} labels"
