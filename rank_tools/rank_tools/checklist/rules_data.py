"""Rules of data: whose part it is, in which order, and who fetches it."""

import ast
import re
from collections.abc import Iterator

from .program import LOOPS, Function, Program, argument, dotted, last

Findings = Iterator[tuple[ast.AST, str]]


def share(program: Program) -> Findings:
    """Do the samplers of all ranks agree? Else their parts overlap, and some images are never seen."""
    for call in program.named("DistributedSampler"):
        rank, ranks = argument(call, "rank", 2), argument(call, "num_replicas", 1)
        seed = argument(call, "seed", 4)
        local = program.role(rank) == "local rank" and program.role(ranks) != "local world"
        if local and not program.one_machine and not program.joins_locally:
            yield call, "its rank is a local rank: the second machine gets the images of the first"
        if seed is not None and has_rank(program, seed):
            yield call, "its seed depends on the rank: each rank deals from another order, and parts overlap"


def has_rank(program: Program, node: ast.expr) -> bool:
    """Whether a rank is added or given there."""
    return any(
        program.role(part) in ("rank", "local rank") for part in ast.walk(node) if part in program.parents
    )


def epoch(program: Program) -> Findings:
    """Does the sampler hear of each epoch? Else the order of the first one repeats for ever."""
    if program.managed or "set_epoch" in program.attributes:
        return
    for call in program.named("DistributedSampler"):
        shuffle = argument(call, "shuffle", 3)
        if shuffle is not None and not (isinstance(shuffle, ast.Constant) and shuffle.value is True):
            continue
        made = loader_of(program, call)
        name, scope = program.target(made) if made is not None else ("", program.tree)
        if re.search(r"eval|val|test|infer", name):
            continue
        loops = loops_over(program, name, scope)
        own = program.loops(call)
        for loop, outer in loops or []:
            if any(one not in own and repeats(one) for one in outer) and program.goes_backward(loop):
                yield call, "call sampler.set_epoch(epoch) at the start of each epoch"
                break


def loader_of(program: Program, sampler: ast.Call) -> ast.Call | None:
    """The DataLoader that a sampler is for; None if the sampler is used in another way, too."""
    parent = program.parents[program.parents[sampler]]
    if isinstance(parent, ast.Call) and is_loader(program, parent):
        return parent
    name, scope = program.target(sampler)
    loaders = []
    for use in program.uses(name, scope) if name else []:
        holder = program.parents[use]
        call = program.parents[holder] if isinstance(holder, ast.keyword) else holder
        if isinstance(call, ast.Call) and is_loader(program, call) and argument(call, "sampler", 3) is use:
            loaders.append(call)
        elif not is_asked(program, use):
            return None
    return loaders[0] if len(loaders) == 1 else None


def is_loader(program: Program, call: ast.Call) -> bool:
    name = program.name(call)
    return last(name) == "DataLoader" and name.startswith("torch.")


def is_asked(program: Program, use: ast.AST) -> bool:
    """Whether it is only asked whether there is one."""
    holder = program.parents[use]
    if isinstance(holder, ast.If | ast.IfExp):
        return use is holder.test
    return isinstance(holder, ast.Compare | ast.BoolOp | ast.UnaryOp)


def loops_over(
    program: Program, name: str, scope: ast.AST, outer: tuple = (), depth: int = 0
) -> list[tuple[ast.AST, list]] | None:
    """(loop over a loader, the loops around it), through functions of the file; None if it leaves them."""
    found: list[tuple[ast.AST, list]] = []
    for use in program.uses(name, scope) if name and depth < 3 else []:
        holder, node = program.parents[use], use
        while isinstance(holder, ast.Call) and last(dotted(holder.func)) in ("enumerate", "tqdm"):
            holder, node = program.parents[holder], holder
        if isinstance(holder, LOOPS) and getattr(holder, "iter", None) is node:
            found.append((holder, [*program.loops(holder), *outer]))
            continue
        if is_asked(program, use) or isinstance(holder, ast.Call) and dotted(holder.func) == "len":
            continue
        inner = program.handed_on(use)
        if inner is None:
            return None
        around = (*program.loops(use), *outer)
        deeper = loops_over(program, inner[0], inner[1], around, depth + 1)
        if deeper is None:
            return None
        found += deeper
    return found


def repeats(loop: ast.AST) -> bool:
    """Whether a loop counts, as one over epochs does."""
    if isinstance(loop, ast.While):
        return True
    iterated: ast.AST = getattr(loop, "iter", loop)
    while isinstance(iterated, ast.Call) and last(dotted(iterated.func)) == "tqdm" and iterated.args:
        iterated = iterated.args[0]
    if not isinstance(iterated, ast.Call) or last(dotted(iterated.func)) not in ("range", "trange", "count"):
        return False
    return not (len(iterated.args) == 1 and getattr(iterated.args[0], "value", 0) == 1)


def download(program: Program) -> Findings:
    """Does one rank download, and do the others wait? Else files are written twice, or read too early."""
    if program.managed or not program.together:
        return
    told: set[Function | None] = set()
    for call in program.calls:
        name = program.name(call)
        asked = argument(call, "download", 99)
        if not name.startswith(("torchvision.", "torchaudio.")) or getattr(asked, "value", None) is not True:
            continue
        function = program.function(call)
        own = any(has_rank(program, part) for part in call.args)
        if own or function in told or waits_before(program, call) or not program.everyone(call):
            continue
        told.add(function)
        yield call, "every rank downloads: let one of each machine do it, and the others wait at a barrier"


def waits_before(program: Program, node: ast.Call) -> bool:
    """Whether ranks meet earlier in the same function, as where one goes before the others."""
    return any(
        "barrier" in dotted(call.func).lower()
        and program.function(call) is program.function(node)
        and call.lineno < node.lineno
        for call in program.calls
    )
