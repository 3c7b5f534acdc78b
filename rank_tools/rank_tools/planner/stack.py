"""What a framework does by itself: dtypes, kernels, what it keeps, what hides behind what."""

from dataclasses import dataclass, replace

from .errors import PlanError

UNFUSED = "unfused"  # the matrix of scores is written and read
KERNELS = ("flash1", "flash2", "flash3", UNFUSED)


@dataclass(frozen=True)
class Numbers:
    """Bytes of one number of each kind.

    Attributes:
        parameter, gradient: as they are held from step to step.
        optimizer: of all that the optimizer keeps for a parameter: Adam's two moments, and a copy in float32
            if the parameter itself has fewer bits. ``per_tensor``: for a whole tensor, as a count of steps.
        gathered, reduced: in FSDP's all-gather, and in the collective of gradients.
    """

    parameter: int = 2
    gradient: int = 4
    optimizer: int = 12
    per_tensor: int = 0
    activation: int = 2
    gathered: int = 2
    reduced: int = 4


MIXED = Numbers()  # bfloat16, gradients added up in float32, Adam in float32
FSDP2 = Numbers(parameter=4, optimizer=8)  # float32 shards, gathered in bfloat16
HALF = Numbers(gradient=2, reduced=2)  # gradients in 16 bits, as in ZeRO's paper and NVIDIA's recipes
BF16 = Numbers(gradient=2, optimizer=4)  # all in bfloat16, no copy in float32; added up in float32
FLOAT64 = Numbers(8, 8, 16, 4, 8, 8, 8)  # the lessons


@dataclass(frozen=True)
class Stack:
    """Choices that come with a framework and its age.

    Attributes:
        attention: its kernel, one of KERNELS.
        fused: norms, rotary positions, the MLP's activation and the loss are one kernel each.
        regather: sequence parallelism keeps a rank's part of a layer's input and gathers it again for
            backward (Megatron), else it keeps the gathered input (torch).
        fp8: linear layers multiply in FP8, and FSDP gathers it; attention and the head stay in bfloat16.
        hidden_tp, hidden_ep: shares of these collectives that hide behind compute.
        overlap: collectives of data parallelism hide, too.
        logits: bytes of a logit at the fullest moment.
        whole_logits: with tensor parallelism each rank gathers the logits of the whole vocabulary for the
            loss (``ColwiseParallel(output_layouts=Replicate())``, no ``loss_parallel``).
        gaps: the share of the time in which a GPU waits for its host, or the reader of data.
        library: how much of today's speed matrix products had on Hopper.
    """

    name: str
    numbers: Numbers = MIXED
    attention: str = "flash3"
    fused: bool = True
    regather: bool = False
    fp8: bool = False
    hidden_tp: float = 0.0
    hidden_ep: float = 0.0
    overlap: bool = True
    logits: float = 13.0
    whole_logits: bool = False
    gaps: float = 0.0
    library: float = 1.0

    def __post_init__(self) -> None:
        if self.attention not in KERNELS:
            raise PlanError(f"attention must be one of {', '.join(KERNELS)}, not {self.attention!r}")


MOMENTS = 8  # bytes of Adam's two, in float32


def in_bf16(numbers: Numbers, parameters: bool, adam: bool) -> Numbers:
    """The same, with ``parameters``, their gradients and no copy of them in float32, or ``adam``'s moments.

    torch's AdamW makes its moments in the parameters' dtype, so the first brings the second along there.
    """
    if parameters:
        numbers = replace(numbers, parameter=2, gradient=2, optimizer=MOMENTS)
    if adam:
        numbers = replace(numbers, optimizer=numbers.optimizer - MOMENTS // 2)
    return numbers


STACKS = {
    "megatron": Stack("megatron", regather=True, hidden_tp=0.7, logits=10.0, gaps=0.02),
    "nemo": Stack("nemo", HALF, regather=True, hidden_tp=0.7, logits=10.0, gaps=0.02),
    "torch": Stack("torch", FSDP2, "flash2", gaps=0.04),  # FSDP2 and torch.compile
    "eager": Stack("eager", FSDP2, "flash2", fused=False, logits=14.0, gaps=0.06),
    "2023": Stack("2023", FSDP2, "flash1", fused=False, logits=14.0, gaps=0.01, library=0.92),
    "2021": Stack("2021", HALF, UNFUSED, regather=True, overlap=False, gaps=0.04, library=0.95),
}


def stack_named(name: str, **changed: object) -> Stack:
    """Raises PlanError: there is none of that name."""
    if name not in STACKS:
        raise PlanError(f"there is no stack {name!r}: {', '.join(STACKS)}")
    return replace(STACKS[name], **changed)  # type: ignore[arg-type]
