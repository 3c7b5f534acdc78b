"""Rules of data: whose part it is, in which order, and who fetches it."""

import ast
import re
from collections.abc import Iterator

from .flow import all_loops, uses_of
from .program import Function, Program, argument, dotted, last

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


def has_rank(program: Program, node: ast.AST) -> bool:
    """Whether a rank is added or given there, also through variables."""
    return any(program.role(part) in ("rank", "local rank") for part in program.parts(node))


def epoch(program: Program) -> Findings:
    """Does the sampler hear of each epoch? Else the order of the first one repeats for ever."""
    if program.managed or "set_epoch" in program.attributes:
        return
    for call in program.named("DistributedSampler"):
        if not shuffles(program, argument(call, "shuffle", 3)):
            continue
        own = program.loops(call)
        for use in uses_of(program, call):
            if any(re.search(r"eval|val|test|infer|dev", name) for name in use.names):
                continue
            if trains_again(program, use.node, own):
                yield call, "call sampler.set_epoch(epoch) at the start of each epoch"
                break


def shuffles(program: Program, given: ast.expr | None) -> bool:
    """Whether a sampler surely shuffles; it does so unless it is told not to."""
    values = [given] if given is None or isinstance(given, ast.Constant) else program.assigned(given)
    return bool(values) and all(one is given is None or getattr(one, "value", None) is True for one in values)


def trains_again(program: Program, use: ast.AST, own: list) -> bool:
    """Whether a loader is read anew in each round of a loop, for training."""
    function = program.function(use)
    parts = list(ast.walk(function)) if function is not None else []
    yields = any(isinstance(part, ast.Yield | ast.YieldFrom) for part in parts)
    cycles = isinstance(use, ast.Call) and last(dotted(use.func)) == "cycle"
    if cycles or yields and any(isinstance(one, ast.While) for one in program.loops(use)):
        return "backward" in program.attributes
    rounds = [one for one in all_loops(program, use) if one not in own and one is not use and repeats(one)]
    inner = [use] if isinstance(use, ast.For | ast.AsyncFor) else rounds
    return bool(rounds) and any(program.goes_backward(one) for one in inner)


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
        earlier = [
            one for one in program.calls if one.lineno < call.lineno and program.function(one) is function
        ]
        waits = any("barrier" in dotted(one.func).lower() for one in earlier)  # one goes before the others
        own = any(has_rank(program, part) for part in call.args)
        if own or waits or function in told or not program.everyone(call):
            continue
        told.add(function)
        yield call, "every rank downloads: let one of each machine do it, and the others wait at a barrier"
