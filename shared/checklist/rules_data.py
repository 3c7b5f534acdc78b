"""Questions to a training script: its data, its seeds and its evaluation. Taught in lesson 10.

Each rule yields (place, what is wrong there). Its docstring asks, and says what happens else.
"""

import ast

from .files import Function
from .ranks import depends_on_rank, guards, identifier, in_loop, is_local, is_rank, may_follow, who
from .rule import Found, rule
from .script import Script, dotted
from .torch_calls import (
    REDUCING,
    WRAPPERS,
    argument,
    around_calls,
    calls_anything,
    comes_from,
    evaluators,
    is_distributed,
    is_literal,
    is_managed,
    is_opaque,
    is_parallel_otherwise,
    methods,
    receiver,
    seeds_differ,
    serves_evaluation,
)

SEEDING = ("torch.manual_seed", "numpy.random.seed", "random.seed")
OF_A_RANK = ("DistributedSampler", "RASampler", "StatefulDistributedSampler", "DistributedEvalSampler")
AUGMENTING = ("augment", "autoaugment", "colorjitter", "cutmix", "dropout", "jitter", "mixup", "rand")


def own_sampler(s: Script, node: ast.AST | None) -> bool:
    """Whether a sampler gives each rank a part of its own."""
    if comes_from(s, node, "DistributedSampler") or depends_on_rank(s, node):
        return True
    made = [one for one in s.origins(node) if isinstance(one, ast.Call)] if node else []
    return any("distributed" in identifier(one.func) for one in made)


@rule("wrong")
def sampler(s: Script) -> Found:
    """Has each rank its own part of the data? Else all train on the same images, N times for nothing."""
    if not s.find("init_process_group", *WRAPPERS) or is_managed(s) or is_parallel_otherwise(s):
        return
    for call in s.find("DataLoader"):
        given = argument(s, call, "sampler", 3)
        batches = argument(s, call, "batch_sampler", 4)
        whole = _takes_all(s, given) and is_literal(batches, None)
        known = _data_is_known(s, argument(s, call, "dataset", 0))
        trains = _trains_on(s, call) and not serves_evaluation(s, call)
        if whole and known and trains and "all" in who(s, call):
            yield call, "each rank gets all the data: pass sampler=DistributedSampler(...)"


def _takes_all(s: Script, given: ast.expr | None) -> bool:
    if is_literal(given, None):
        return True
    return comes_from(s, given, "RandomSampler", "SequentialSampler") and not own_sampler(s, given)


def _data_is_known(s: Script, data: ast.expr | None) -> bool:
    """Whether a data set neither depends on the rank nor yields its items in an order of its own."""
    if data is None or depends_on_rank(s, data):
        return False
    for kind in s.classes_of(data):
        names = {identifier(one) for part in s.bases(kind) for one in ast.walk(part)}
        if any("iterable" in name or is_rank(ast.Name(name)) for name in names) or "get_rank" in names:
            return False
    words = ast.unparse(data).lower()
    return not any(word in words for word in ("iter", "stream", "shard", "wds", "webdataset"))


def _trains_on(s: Script, call: ast.Call) -> bool:
    """Whether a loader is one to train on: by its name, or because all others serve evaluation."""
    assignments = [one for one in s.above(call) if isinstance(one, ast.Assign)]
    named = any("train" in dotted(target) for one in assignments for target in one.targets)
    others = [one for one in s.find("DataLoader") if one is not call and not serves_evaluation(s, one)]
    return bool(methods(s, "backward")) and (named or not others)


@rule("wrong")
def share(s: Script) -> Found:
    """Do the samplers of all ranks agree? Else their parts overlap, and some images are never seen."""
    for call in s.find("DistributedSampler"):
        rank = argument(s, call, "rank", 2)
        seed = argument(s, call, "seed", 4)
        if rank is not None and is_local(s, rank) and not is_literal(rank, None):
            yield call, "its rank is a local rank: the second machine gets the images of the first"
        if seed is not None and depends_on_rank(s, seed):
            yield call, "its seed depends on the rank: each rank deals from another order, and parts overlap"


@rule("wrong")
def shuffle(s: Script) -> Found:
    """Is it the sampler that shuffles? Else the loader, told twice, ends with a ValueError."""
    for call in s.find("DataLoader"):
        given = argument(s, call, "sampler", 3)
        shuffles = argument(s, call, "shuffle", 2)
        if not _may_be_none(s, given) and is_literal(shuffles, True):
            yield call, "shuffle=True beside a sampler: leave it out, the sampler shuffles"


def _may_be_none(s: Script, given: ast.expr | None) -> bool:
    return given is None or any(
        is_literal(one, None) for one in s.origins(given) if isinstance(one, ast.expr)
    )


@rule("wrong")
def epoch(s: Script) -> Found:
    """Does the sampler hear of each epoch? Else the order of the first one repeats for ever."""
    ours = [one for one in s.find("DistributedSampler") if not serves_evaluation(s, one)]
    ours = [one for one in ours if not is_literal(argument(s, one, "shuffle", 3), False)]
    told = [one for one in s.calls if identifier(one.func) == "set_epoch" and one.args]
    if not ours or is_managed(s) or not _has_epochs(s):
        return
    if not any(in_loop(s, one) and not isinstance(one.args[0], ast.Constant) for one in told):
        yield (told or ours)[0], "call sampler.set_epoch(epoch) at the start of each epoch"


def _has_epochs(s: Script) -> bool:
    """Whether the script goes over its data more than once: a loop over epochs."""
    loops = [one for one in s.nodes if isinstance(one, ast.For)]
    return any("epoch" in identifier(part) for one in loops for part in ast.walk(one.target)) or any(
        "epoch" in identifier(part) for one in loops for part in ast.walk(one.iter)
    )


@rule("wrong")
def seeds(s: Script) -> Found:
    """Has each rank its own random numbers? Else all ranks and their workers augment alike.

    Copies of a model get the parameters of rank 0, so ranks may differ. A model that is sharded or split is
    initialized in parts: there all ranks need the same seed, and nothing is asked.
    """
    if not s.find("DistributedDataParallel") or is_parallel_otherwise(s) or s.find("fully_shard"):
        return
    if is_managed(s) or s.find("FullyShardedDataParallel"):
        return
    if _draws(s):
        for name in SEEDING:
            calls = [one for one in s.calls if s.call_name(one) == name and "all" in who(s, one)]
            calls = [one for one in calls if not _is_for_an_order(s, one)]
            every = [one for one in s.calls if s.call_name(one) == name]
            if name == "torch.manual_seed":
                every += _of_default_generators(s)
            if calls and not any(seeds_differ(s, one) for one in every):
                yield (
                    calls[0],
                    f"{name} gets the same seed on each rank: add the rank once the model is built",
                )
    for call in s.find("DataLoader"):
        made = [one for one in methods(s, "manual_seed") if comes_from(s, receiver(one), "Generator")]
        alike = comes_from(s, argument(s, call, "generator"), "Generator")
        if alike and argument(s, call, "num_workers", 5) and not any(seeds_differ(s, one) for one in made):
            yield call, "its generator has the same seed on each rank, and so have the workers"


def _of_default_generators(s: Script) -> list[ast.Call]:
    """``torch.default_generator.manual_seed(...)`` and the like: they seed what a model draws from."""
    seeding = [one for one in s.calls if identifier(one.func) == "manual_seed"]
    return [one for one in seeding if not comes_from(s, receiver(one), "Generator")]


def _is_for_an_order(s: Script, seeding: ast.Call) -> bool:
    """Whether the next line shuffles or splits data: that all ranks must do alike."""
    statement = s.statement_of(seeding)
    block = getattr(s.parent(statement) if statement else None, "body", [])
    if statement not in block:
        return False
    after = block[block.index(statement) + 1 : block.index(statement) + 2]
    names = [identifier(one.func) for line in after for one in ast.walk(line) if isinstance(one, ast.Call)]
    return any(name in ("shuffle", "sample", "permutation", "randperm", "random_split") for name in names)


def _draws(s: Script) -> bool:
    """Whether training draws random numbers on each rank: augmentation, or dropout."""
    for call in s.calls:
        name = identifier(call.func)
        if name.startswith(AUGMENTING) and name not in ("random_split", "randperm"):
            return True
    return False


@rule("wrong")
def split(s: Script) -> Found:
    """Is data split alike on all ranks? Else one rank trains on what another one tests."""
    if not is_distributed(s):
        return
    for call in s.find("random_split"):
        generator = argument(s, call, "generator", 2)
        seeds_before = [
            one for one in s.calls if s.call_name(one) in ("torch.manual_seed", "seed_everything")
        ]
        seeded = [one for one in s.calls if "seed" in identifier(one.func)]
        if generator is None and "all" in who(s, call):
            if not seeded:
                yield call, "random_split without a seed: each rank splits the data in another way"
            elif seeds_before and all(seeds_differ(s, one) for one in seeds_before):
                yield call, "random_split after a seed that differs by rank: each rank splits in another way"


@rule("wrong")
def download(s: Script) -> Found:
    """Does one rank download? Else all write into the same files, and some read them half-written."""
    if not is_distributed(s):
        return
    for call in s.calls:
        downloads = any(one.arg == "download" and is_literal(one.value, True) for one in call.keywords)
        if downloads and "all" in who(s, call) and not _after_a_barrier(s, call):
            yield (
                call,
                "every rank downloads: let one of each machine do it, and the others wait at a barrier",
            )


def _after_a_barrier(s: Script, call: ast.Call) -> bool:
    """Whether some ranks wait before: ``if rank != 0: barrier()``, or a ``with`` that orders the ranks."""
    for around in s.above(call):
        if isinstance(around, ast.With) and "range" not in ast.unparse(around.items[0].context_expr):
            words = ast.unparse(around.items[0].context_expr).lower()
            if any(word in words for word in ("first", "main", "rank", "lock", "zero")):
                return True
    barriers = [one for one in s.find("barrier") if may_follow(s, one, call)]
    others = [
        one for one in s.calls if "download" in {keyword.arg for keyword in one.keywords} and one is not call
    ]
    first = any(guards(s, one) and may_follow(s, one, call) for one in others)
    return any(guards(s, one) for one in barriers) or (bool(barriers) and first)


@rule("wrong")
def reduce(s: Script) -> Found:
    """Are the counts of all ranks joined? Else rank 0 reports the accuracy of its own part."""
    if not _evaluates_in_parts(s) or is_managed(s) or is_opaque(s):
        return
    for function in evaluators(s):
        around = around_calls(s, function)
        names = {s.call_name(one) for one in around}
        joined = any(one.startswith("torch.distributed.") and one.endswith(REDUCING) for one in names)
        hidden = any(identifier(one.func) in ("gather", "reduce", "sync", "synchronize") for one in around)
        if not joined and not hidden and _says_something(s, function):
            yield function, f"{function.name} joins nothing: all_reduce its sums and counts"


def _says_something(s: Script, function: Function) -> bool:
    """Whether a function returns what it measured, or prints it."""
    says = any(
        identifier(one.func) in ("print", "info", "log")
        for one in ast.walk(function)
        if isinstance(one, ast.Call)
    )
    return says or bool(s.results(function))


def _evaluates_in_parts(s: Script) -> bool:
    """Whether each rank evaluates a part of the data."""
    samplers = [one for one in s.find("DistributedSampler") if serves_evaluation(s, one)]
    loaders = [one for one in s.find("DataLoader") if serves_evaluation(s, one)]
    parts = any(depends_on_rank(s, argument(s, one, "dataset", 0)) for one in loaders)
    return bool(samplers) or parts


@rule("wrong")
def once(s: Script) -> Found:
    """Does each test image count once? Else DistributedSampler repeats some, to give each rank as many."""
    for call in s.find("DistributedSampler"):
        if serves_evaluation(s, call) and not is_literal(argument(s, call, "drop_last", 5), True):
            yield call, "it pads the test set: give each rank range(rank, len(data), world_size)"


@rule("wrong")
def mode(s: Script) -> Found:
    """Is evaluation in eval mode, training not? Else dropout blurs the accuracy, or stays off for good."""
    if not is_distributed(s) or is_opaque(s):
        return
    for function in evaluators(s):
        if s.is_main(function) and not _calls_eval(s, function):
            yield function, f"{function.name} does not call eval()"
    evals = [one for one in methods(s, "eval") if in_loop(s, one) and not one.args]
    trains = calls_anything(s, "train") and any(
        identifier(one.func) == "train" and isinstance(one.func, ast.Attribute) for one in s.calls
    )
    if evals and methods(s, "backward") and not trains and not _trains_in(s, evals):
        yield evals[0], "nothing calls train() after this eval()"


def _calls_eval(s: Script, function: Function) -> bool:
    for call in around_calls(s, function):
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method == "eval" or (method == "train" and call.args):  # `model.train(False)`
            return True
    return False


def _trains_in(s: Script, evals: list[ast.Call]) -> bool:
    """Whether a part of the model is in eval mode on purpose while it trains."""
    functions = [s.function_of(one) for one in evals]
    return any(one is not None and methods(s, "backward", one) for one in functions)


@rule("slow")
def no_grad(s: Script) -> Found:
    """Is evaluation free of gradients? Else it keeps every activation for a backward that never comes."""
    if not is_distributed(s) or is_opaque(s):
        return
    off = ("no_grad", "inference_mode", "set_grad_enabled")
    for function in evaluators(s):
        called = {identifier(one.func) for one in around_calls(s, function)}
        named = {identifier(one) for one in getattr(function, "decorator_list", [])}
        if s.is_main(function) and not called & set(off) and not named & set(off):
            yield function, f"{function.name} does not call no_grad()"


RULES = (sampler, share, shuffle, epoch, seeds, split, download, reduce, once, mode, no_grad)
