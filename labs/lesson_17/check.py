"""Check of exercise 17. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

from types import ModuleType

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.comm.record import least_bytes
from shared.comm.same_calls import DifferentCalls, SameCalls
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.judging import compare

TOLERANCE = 1e-12  # float64
ROUNDING = 1e-5  # of a sum in float32
TRAFFIC = 1.05  # bytes sent, as a multiple of one all-reduce
WIDTH = 10
# {parameter: the dimension along which it is divided; None: all ranks have it}
CUT = {
    "gate_weight": 0,
    "gate_bias": 0,
    "up_weight": 0,
    "up_bias": 0,
    "down_weight": 1,
    "down_bias": None,
}


class Whole(nn.Module):
    """(..., WIDTH) to the same, on one process."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, hidden, dtype=torch.float64)
        self.up = nn.Linear(WIDTH, hidden, dtype=torch.float64)
        self.down = nn.Linear(hidden, WIDTH, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def part_of(name: str, whole: torch.Tensor, group: Group) -> torch.Tensor:
    dim = CUT[name]
    return whole if dim is None else whole.chunk(group.world_size, dim)[group.rank]


def whole_of(whole: Whole, name: str) -> nn.Parameter:
    """The parameter of ``whole`` that ``name``, such as gate_weight, is a part of."""
    layer, _, kind = name.partition("_")
    return getattr(getattr(whole, layer), kind)


def compare_sum(
    what: str, found: torch.Tensor, expected: torch.Tensor, guesses: dict[str, torch.Tensor]
) -> None:
    """``compare``, which also tells a sum that was made in float32."""
    try:
        compare(what, found, expected, guesses, TOLERANCE)
    except Wrong:
        if found.shape == expected.shape and torch.allclose(found.double(), expected, rtol=0, atol=ROUNDING):
            raise Wrong(f"{what} is right to float32 alone: sum in the type of what comes in") from None
        raise


def partial_sum_of(
    whole: Whole, into_gate: torch.Tensor, into_up: torch.Tensor, group: Group
) -> torch.Tensor:
    """What this rank has to add to the sum, without the bias. Both inputs are the same."""
    parts = {name: part_of(name, whole_of(whole, name), group) for name in CUT}
    hidden = F.silu(F.linear(into_gate, parts["gate_weight"], parts["gate_bias"]))
    hidden = hidden * F.linear(into_up, parts["up_weight"], parts["up_bias"])
    return F.linear(hidden, parts["down_weight"])


def check_functions(answer: ModuleType, group: Group) -> None:
    """f and g leave alone what they are given."""
    x = torch.ones(3, WIDTH, dtype=torch.float64, device=group.device, requires_grad=True)
    given = torch.full_like(x, 1.0 + group.rank)
    before = given.clone()
    answer.CopyToRanks.apply(x).backward(given)
    if not torch.equal(given, before):
        raise Wrong("CopyToRanks.backward changes the gradient that it is given; sum a copy")
    answer.SumOverRanks.apply(given)
    if not torch.equal(given, before):
        raise Wrong("SumOverRanks.forward changes the x that it is given; sum a copy")


def check_parameters(mlp: nn.Module, whole: Whole, group: Group) -> None:
    parameters = dict(mlp.named_parameters())
    if set(parameters) != set(CUT):
        raise Wrong(f"the parameters are {sorted(parameters)}, expected {sorted(CUT)}")
    for name in CUT:
        expected = part_of(name, whole_of(whole, name).detach(), group)
        parameter = parameters[name].detach()
        if parameter.shape != expected.shape:
            raise Wrong(f"{name} is {tuple(parameter.shape)}, expected is {tuple(expected.shape)}")
        dim = CUT[name]
        guesses = {}
        if dim is not None:
            indices = torch.arange(group.rank, whole_of(whole, name).shape[dim], group.world_size)
            strided = whole_of(whole, name).detach().index_select(dim, indices.to(group.device))
            guesses["holds each N-th hidden unit; expected are consecutive ones"] = strided
        compare_sum(name, parameter, expected, guesses)
        held = parameters[name].untyped_storage().nbytes()
        if held != parameters[name].nbytes:
            raise Wrong(f"{name} is a view: it keeps {held} bytes alive for its {parameters[name].nbytes}")


def check_traffic(what: str, log: SameCalls, size: int, group: Group) -> None:
    allowed = least_bytes("all_reduce", size, group.world_size)
    if log.by_rule() > TRAFFIC * allowed:
        made = ", ".join(f"{count} x {op}" for op, count in log.counts().items())
        raise Wrong(
            f"{what}: a rank sends {log.by_rule():,.0f} bytes by {made}; one all-reduce sends {allowed:,.0f}"
        )


def verify(answer: ModuleType, group: Group) -> str:
    n = group.world_size
    torch.manual_seed(17)
    whole = Whole(6 * n).to(group.device)
    x = torch.randn(4, 3, WIDTH, dtype=torch.float64, device=group.device)
    gradient = torch.randn_like(x)
    into_gate, into_up = x.clone().requires_grad_(), x.clone().requires_grad_()
    partial_sum = partial_sum_of(whole, into_gate, into_up, group)
    partial_sum.backward(gradient)
    by_gate, by_up = into_gate.grad, into_up.grad
    whole.zero_grad()
    x_alone = x.clone().requires_grad_()
    y_alone = whole(x_alone)
    y_alone.backward(gradient)

    mlp = answer.GatedMLP(whole)
    check_parameters(mlp, whole, group)
    x_split = x.clone().requires_grad_()
    try:
        with SameCalls() as forward:
            y = mlp(x_split)
        bias = whole.down.bias.detach()
        only_one = (
            {}
            if n == 1
            else {
                "is this rank's partial sum alone: the sum over the ranks is missing": partial_sum + bias,
                f"has the bias of down in it {n} times": y_alone + (n - 1) * bias,
                "is the mean of the ranks' partial sums, not their sum": (y_alone - bias) / n + bias,
            }
        )
        compare_sum("the output", y, y_alone, only_one)
        with SameCalls() as backward:
            y.backward(gradient)
    except DifferentCalls as error:
        raise Wrong(str(error)) from None
    for name, p in mlp.named_parameters():
        if p.grad is None:
            raise Wrong(f"{name} has no gradient")
        expected = part_of(name, whole_of(whole, name).grad, group)
        guesses = {f"is {n} times too large: does a gradient get summed that is whole already?": n * expected}
        if CUT[name] is None:
            guesses[f"is {n} times too small: add the whole bias once, after the sum"] = expected / n
        compare_sum(f"the gradient of {name}", p.grad, expected, guesses if n > 1 else {})
    by_all = by_gate + by_up
    sums = {"gate": by_gate.clone(), "up": by_up.clone()}
    for total in sums.values():
        dist.all_reduce(total)
    guesses = {
        "is what came back through this rank's columns alone: the other ranks' are missing": by_all,
        "is the mean of what the ranks have, not their sum": x_alone.grad / n,
        "lacks what other ranks have from gate: gate and up both need f": by_gate + sums["up"],
        "lacks what other ranks have from up: gate and up both need f": sums["gate"] + by_up,
    }
    if x_split.grad is None:
        raise Wrong("the input has no gradient")
    compare_sum("the gradient of the input", x_split.grad, x_alone.grad, guesses if n > 1 else {})
    check_functions(answer, group)
    check_traffic("forward", forward, y.nbytes, group)
    check_traffic("backward", backward, x.nbytes, group)
    held = sum(p.numel() for p in mlp.parameters()) / sum(p.numel() for p in whole.parameters())
    return (
        f"equal to one process, forward and backward; a rank holds {held:.0%} of the parameters and sends "
        f"{forward.by_rule():,.0f} + {backward.by_rule():,.0f} bytes. Well done."
    )


if __name__ == "__main__":
    check_exercise("17_gated_mlp", verify, ranks=3)
