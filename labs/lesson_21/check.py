"""Check of exercise 21. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

from dataclasses import dataclass
from types import ModuleType

import torch
import torch.distributed as dist

from shared.comm.record import Call, CommRecord
from shared.comm.same_calls import DifferentCalls, SameCalls
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.judging import compare

TOLERANCE = 1e-12  # float64
TRAFFIC = 1.1  # bytes sent, as a multiple of the rows that have to travel
FOR_COUNTS = 64  # bytes for each expert and rank
WIDTH = 32
TOKENS = 12
EXPERTS = 3  # on each rank


class SameExchanges(SameCalls):
    """As ``SameCalls``, and an all-to-all of one rank must be one of all, of whatever size.

    The ranks compare in ``beside``, a group that they have used before: one that is made only now could
    find that a rank has left already.
    """

    def __init__(self, beside: dist.ProcessGroup) -> None:
        CommRecord.__init__(self)
        self.group = beside

    def note(self, call: Call) -> None:
        if call.op == "all_to_all":
            self._compare(call.op)
        super().note(call)


@dataclass
class Case:
    """Tokens, choices and weights of all ranks: {rank: tensor}. ``name`` says what is special."""

    name: str
    tokens: list[torch.Tensor]
    chosen: list[torch.Tensor]
    weights: list[torch.Tensor]


def make_case(name: str, seed: int, k: int, group: Group) -> Case:
    """The same on all ranks. The first number of each token is like no other's."""
    generator = torch.Generator().manual_seed(seed)
    ranks = group.world_size
    case = Case(name, [], [], [])
    for rank in range(ranks):
        number = TOKENS + rank
        if name == "a rank without tokens" and rank == ranks - 1:
            number = 0
        tokens = torch.randn(number, WIDTH, generator=generator, dtype=torch.float64)
        tokens[:, 0] = (torch.arange(number) + rank * (TOKENS + ranks)) / 100
        scores = torch.rand(number, EXPERTS * ranks, generator=generator)
        if name != "any expert":
            scores[:, :EXPERTS] += 1  # all choose experts of rank 0
        weights = torch.rand(number, k, generator=generator, dtype=torch.float64)
        case.tokens.append(tokens.to(group.device))
        case.chosen.append(scores.topk(k).indices.to(group.device))
        case.weights.append(weights.to(group.device))
    return case


def apply(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """What an expert does with its rows."""
    return (rows @ matrix).tanh()


def rows_of(case: Case, expert: int) -> torch.Tensor:
    """Tokens of all ranks that chose ``expert``, by their first number."""
    picked = []
    for tokens, chosen in zip(case.tokens, case.chosen, strict=True):
        picked.append(tokens[(chosen == expert).any(1)])
    return by_first_number(torch.cat(picked))


def by_first_number(rows: torch.Tensor) -> torch.Tensor:
    return rows[rows[:, 0].argsort()]


def check_rows(case: Case, rows: torch.Tensor, load: list[int], group: Group) -> None:
    """Each expert gets the tokens that chose it, in any order."""
    where = f"{case.name}: dispatch"
    first = EXPERTS * group.rank
    expected = [rows_of(case, expert) for expert in range(first, first + EXPERTS)]
    loads = [len(part) for part in expected]
    if list(load) != loads:
        raise Wrong(f"{where}: load is {list(load)}, expected {loads}")
    if tuple(rows.shape) != (sum(loads), WIDTH):
        raise Wrong(f"{where}: rows are {tuple(rows.shape)}, expected {(sum(loads), WIDTH)}")
    by_expert = [by_first_number(part) for part in rows.detach().split(loads)]
    if all(torch.equal(mine, right) for mine, right in zip(by_expert, expected, strict=True)):
        return
    if torch.equal(by_first_number(rows.detach()), by_first_number(torch.cat(expected))):
        raise Wrong(f"{where}: the right rows have arrived, but they are not sorted by expert")
    raise Wrong(f"{where}: these rows are not the tokens that chose this rank's experts")


def check_traffic(case: Case, log: SameCalls, group: Group) -> int:
    """Rows travel once there and once back. Returns the bytes that this rank sends by rule."""
    first = EXPERTS * group.rank
    here = [(chosen >= first) & (chosen < first + EXPERTS) for chosen in case.chosen]
    away = case.chosen[group.rank].numel() - int(here[group.rank].sum())
    come = int(sum(mask.sum() for mask in here)) - int(here[group.rank].sum())
    rows = (away + come) * WIDTH * 8
    allowed = TRAFFIC * rows + FOR_COUNTS * EXPERTS * group.world_size**2
    if log.by_rule() > allowed:
        made = ", ".join(f"{count} x {op}" for op, count in log.counts().items())
        raise Wrong(f"{case.name}: a rank sends {log.by_rule():,.0f} bytes by {made}; its rows are {rows:,}")
    return rows


def check_gradients(
    case: Case, found: dict[str, torch.Tensor | None], expected: dict[str, torch.Tensor], group: Group
) -> None:
    for name, gradient in found.items():
        what = f"{case.name}: the gradient of {name}"
        if gradient is None:
            why = (
                "combine has to keep them in the graph"
                if name == "the weights"
                else "does each exchange have one?"
            )
            raise Wrong(f"{what} is missing: no backward leads there; {why}")
        n = group.world_size
        guesses = {f"is divided by {divisor}": expected[name] / divisor for divisor in (n, n * n)}
        compare(what, gradient, expected[name], guesses, TOLERANCE)


def check_averages(
    answer: ModuleType,
    case: Case,
    gain: torch.Tensor,
    gain_alone: torch.Tensor,
    matrices: torch.Tensor,
    of_experts: torch.Tensor,
    beside: dist.ProcessGroup,
) -> None:
    """What every rank has and what this one has alone, as gradients of the mean of all ranks' losses."""
    ranks = dist.get_world_size()
    with SameExchanges(beside):
        answer.average_gradients([gain.grad], [matrices.grad])
    where = f"{case.name}: average_gradients: the gradient of"
    dense = gain_alone.grad / ranks
    guesses = {f"is {ranks} times too large": gain_alone.grad, "is divided twice": dense / ranks}
    compare(f"{where} what every rank has", gain.grad, dense, guesses, TOLERANCE)
    everybodys = of_experts.clone()
    dist.all_reduce(everybodys, group=beside)
    guesses = {
        f"is {ranks} times too large: it is a sum over the rows of all ranks, not divided yet": of_experts,
        "is mixed with those of other experts": everybodys / ranks,
    }
    compare(f"{where} the experts", matrices.grad, of_experts / ranks, guesses, TOLERANCE)


def check_case(answer: ModuleType, case: Case, group: Group, beside: dist.ProcessGroup) -> int:
    """One routing, forward and backward. Returns the bytes of this rank's rows."""
    rank, ranks = group.rank, group.world_size
    torch.manual_seed(21)
    whole = torch.randn(EXPERTS * ranks, WIDTH, WIDTH, dtype=torch.float64).to(group.device) / 4
    gain_alone = torch.ones(WIDTH, dtype=torch.float64, device=group.device, requires_grad=True)
    tokens_alone = [tokens.clone().requires_grad_() for tokens in case.tokens]
    weights_alone = [weights.clone().requires_grad_() for weights in case.weights]
    matrices_alone = whole.clone().requires_grad_()
    outputs = []
    for tokens, chosen, weights in zip(tokens_alone, case.chosen, weights_alone, strict=True):
        results = torch.einsum("tw,tkwv->tkv", tokens * gain_alone, matrices_alone[chosen]).tanh()
        outputs.append((results * weights.unsqueeze(-1)).sum(1))
    sum(output.square().sum() for output in outputs).backward()

    gain = torch.ones_like(gain_alone, requires_grad=True)  # every rank has it, as it has attention
    tokens = case.tokens[rank].clone().requires_grad_()
    weights = case.weights[rank].clone().requires_grad_()
    matrices = whole.chunk(ranks)[rank].clone().requires_grad_()
    try:
        with SameExchanges(beside) as log:
            rows, load, way = answer.dispatch(tokens * gain, case.chosen[rank], EXPERTS * ranks)
            check_rows(case, rows, load, group)
            parts = zip(matrices, rows.split(list(load)), strict=True)
            results = torch.cat([apply(matrix, part) for matrix, part in parts])
            output = answer.combine(results, weights, way)
        k = case.chosen[rank].shape[1]
        plain = torch.einsum("tw,tkwv->tkv", tokens, whole[case.chosen[rank]]).tanh().sum(1)
        guesses = {
            "is the plain sum of the results: the weights are missing": plain,
            f"is divided by {k}: the weights do that already": outputs[rank] / k,
        }
        compare(f"{case.name}: the output", output, outputs[rank], guesses, TOLERANCE)
        with SameExchanges(beside):
            output.square().sum().backward()
    except DifferentCalls as error:
        raise Wrong(f"{case.name}: {error}") from None
    except RuntimeError as error:
        if "Split sizes" in str(error):
            raise Wrong(f"{case.name}: the counts do not fit the rows; which way do these rows go?") from None
        raise
    gradients = {"the tokens": tokens.grad, "the weights": weights.grad, "the experts": matrices.grad}
    expected = {
        "the tokens": tokens_alone[rank].grad,
        "the weights": weights_alone[rank].grad,
        "the experts": matrices_alone.grad.chunk(ranks)[rank],
    }
    check_gradients(case, gradients, expected, group)
    check_averages(answer, case, gain, gain_alone, matrices, expected["the experts"], beside)
    return check_traffic(case, log, group)


def verify(answer: ModuleType, group: Group) -> str:
    beside = dist.new_group(backend="gloo")
    dist.barrier(group=beside)  # nobody leaves while another one connects
    sent = 0
    for seed, (name, k) in enumerate((("any expert", 2), ("all to rank 0", 1), ("a rank without tokens", 3))):
        sent += check_case(answer, make_case(name, seed, k, group), group, beside)
    total = torch.tensor(sent, device=group.device)
    dist.all_reduce(total)
    return (
        f"three routings equal to one process, forward and backward; "
        f"{int(total):,} bytes of rows between the ranks. Well done."
    )


if __name__ == "__main__":
    check_exercise("21_dispatch", verify, ranks=3)
