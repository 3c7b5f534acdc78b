"""Questions to a training script: its data, its seeds and its evaluation. Taught in lesson 10.

Each rule yields (place, what is wrong there). Its docstring asks, and says what happens else.
"""

import ast
from collections.abc import Iterator

from .ranks import depends_on_rank, identifier, in_loop
from .script import Script
from .torch_calls import (
    REDUCING,
    argument,
    around_calls,
    comes_from,
    evaluators,
    is_literal,
    methods,
    receiver,
    seeds_differ,
    serves_evaluation,
)

Findings = Iterator[tuple[ast.AST, str]]
SEEDING = ("torch.manual_seed", "numpy.random.seed", "random.seed")


def sampler(s: Script) -> Findings:
    """Has each rank its own part of the data? Else all train on the same images, N times for nothing."""
    for call in s.find("DataLoader"):
        given = argument(s, call, "sampler") or argument(s, call, "batch_sampler")
        whole = is_literal(given, None) or comes_from(s, given, "RandomSampler", "SequentialSampler")
        own = comes_from(s, given, "DistributedSampler") or serves_evaluation(s, call)
        if whole and not own and not depends_on_rank(s, argument(s, call, "dataset", 0)):
            yield call, "each rank gets all the data: pass sampler=DistributedSampler(...)"


def shuffle(s: Script) -> Findings:
    """Is it the sampler that shuffles? Else the loader, told twice, ends with a ValueError."""
    for call in s.find("DataLoader"):
        given = argument(s, call, "sampler")
        shuffles = argument(s, call, "shuffle", 2)
        if not is_literal(given, None) and is_literal(shuffles, True):
            yield call, "shuffle=True beside a sampler: leave it out, the sampler shuffles"


def epoch(s: Script) -> Findings:
    """Does the sampler hear of each epoch? Else the order of the first one repeats for ever."""
    ours = [one for one in s.find("DistributedSampler") if not serves_evaluation(s, one)]
    ours = [one for one in ours if not is_literal(argument(s, one, "shuffle", 3), False)]
    told = methods(s, "set_epoch")
    if ours and not any(in_loop(s, one) and not isinstance(one.args[0], ast.Constant) for one in told):
        yield (told or ours)[0], "call sampler.set_epoch(epoch) at the start of each epoch"


def seeds(s: Script) -> Findings:
    """Has each rank its own random numbers? Else all ranks and their workers augment alike."""
    for name in SEEDING:
        calls = [one for one in s.calls if s.name(one.func) == name]
        if calls and not any(seeds_differ(s, one) for one in calls):
            yield calls[0], f"{name} gets the same seed on each rank: add the rank to it"
    for call in s.find("DataLoader"):
        made = [one for one in methods(s, "manual_seed") if comes_from(s, receiver(one), "Generator")]
        alike = comes_from(s, argument(s, call, "generator"), "Generator")
        if alike and argument(s, call, "num_workers", 5) and not any(seeds_differ(s, one) for one in made):
            yield call, "its generator has the same seed on each rank, and so have the workers"


def reduce(s: Script) -> Findings:
    """Are the counts of all ranks joined? Else rank 0 reports the accuracy of its own part."""
    for function in evaluators(s):
        names = {s.name(one.func) for one in around_calls(s, function) if one in s.library}
        if not any(one.startswith("torch.distributed.") and one.endswith(REDUCING) for one in names):
            yield function, f"{function.name} joins nothing: all_reduce its sums and counts"


def once(s: Script) -> Findings:
    """Does each test image count once? Else DistributedSampler repeats some, to give each rank as many."""
    for call in s.find("DistributedSampler"):
        if serves_evaluation(s, call) and not is_literal(argument(s, call, "drop_last", 5), True):
            yield call, "it pads the test set: give each rank range(rank, len(data), world_size)"


def mode(s: Script) -> Findings:
    """Is evaluation in eval mode, training not? Else dropout blurs the accuracy, or stays off for good."""
    for function in evaluators(s):
        called = {identifier(one.func) for one in around_calls(s, function)}
        for name in ("eval", "no_grad"):
            if name not in called and not (name == "no_grad" and "inference_mode" in called):
                yield function, f"{function.name} does not call {name}()"
    if methods(s, "eval") and not methods(s, "train"):
        yield methods(s, "eval")[0], "nothing calls train() after this eval()"


RULES = (sampler, shuffle, epoch, seeds, reduce, once, mode)
