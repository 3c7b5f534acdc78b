"""What a script does with torch: loaders, wrapped models, collectives, evaluation. Taught in lesson 10."""

import ast

from .ranks import callers, identifier, is_rank, on_one_rank, reached
from .script import Function, Script

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")
REDUCING = (
    "all_reduce",
    "reduce",
    "gather",
    "all_gather",
    "gather_object",
    "all_gather_object",
    "all_gather_single",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
)
COLLECTIVES = (
    *REDUCING,
    "broadcast",
    "broadcast_object_list",
    "scatter",
    "scatter_object_list",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
    "new_group",
    "init_process_group",
    "destroy_process_group",
    "async_save",  # this and the next two are of torch.distributed.checkpoint
    "save",
    "load",
)
# Helpers of this course at which all ranks meet; their files are not read.
OF_SHARED = (
    "process_group",
    "print_in_rank_order",
    "assert_same_on_every_rank",
    "broadcast_from_rank_0",
    "gather_random_states",
)
EVALUATION = ("eval", "val", "test")


def argument(script: Script, call: ast.Call, name: str, position: int = 99) -> ast.expr | None:
    """The argument given by name, by ``**`` or by position; None when it is not given."""
    named = [one.value for one in call.keywords if one.arg == name]
    for packed in (one.value for one in call.keywords if one.arg is None):
        known = [one for one in script.origins(packed) if isinstance(one, ast.Dict)]
        if not known or any(ast.unparse(one.func) == f"{ast.unparse(packed)}.update" for one in script.calls):
            named.append(packed)  # perhaps: what it holds cannot be read
        pairs = [pair for one in known for pair in zip(one.keys, one.values, strict=True)]
        named += [value for key, value in pairs if is_literal(key, name)]
    if named:
        return named[0]
    return call.args[position] if position < len(call.args) else None


def is_literal(node: ast.expr | None, *values) -> bool:
    """Whether it is one of these constants; an argument that is not given counts as None."""
    value = node.value if isinstance(node, ast.Constant) else ...
    return (None if node is None else value) in values


def constants(script: Script, node: ast.AST | None = None, inside: bool = False) -> set:
    """The plain values that an expression may have; those ``inside`` of it too, as in ``int(x["RANK"])``."""
    found = script.origins(node) if node else []
    if inside:  # a number that is computed, `rank % 8`, is another one
        found = [one for part in found if not isinstance(part, ast.BinOp) for one in ast.walk(part)]
    return {one.value for one in found if isinstance(one, ast.Constant)}


def methods(script: Script, name: str, within: ast.AST | None = None, of: str = "") -> list[ast.Call]:
    """Calls of an object's method, such as ``loss.backward()``; not of functions of this file.

    With ``of`` only those of an object that a call of that name made.
    """
    calls = script.calls if within is None else [one for one in ast.walk(within) if isinstance(one, ast.Call)]
    found = [one for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr == name]
    found = [one for one in found if not script.callees(one) and not script.library[one]]
    return [one for one in found if not of or comes_from(script, receiver(one), of)]


def receiver(call: ast.Call) -> ast.expr:
    """The object whose method is called: ``loss`` in ``loss.backward()``."""
    assert isinstance(call.func, ast.Attribute)
    return call.func.value


def comes_from(script: Script, node: ast.AST | None, *names: str) -> bool:
    """Whether a value may have been made by a call of one of these."""
    made = [one for one in script.origins(node) if one in script.library] if node else []
    return bool(script.find(*names, among=made))


def seeds_differ(script: Script, call: ast.Call) -> bool:
    """Whether a rank or a worker takes part in the seed that a call sets."""
    parts = [part for one in call.args for part in script.origins(one, deep=True)]
    return any(
        is_rank(one) or "worker" in identifier(one) or identifier(one) == "initial_seed" for one in parts
    )


def is_evaluation(text: str) -> bool:
    """``val_loader``, ``test_set``, ``Evaluate``; not ``interval``, not ``train_test``."""
    words = text.lower().replace(".", "_").split("_")
    return any(word.startswith(EVALUATION) for word in words) and not any("train" in word for word in words)


def serves_evaluation(script: Script, call: ast.Call) -> bool:
    """Whether a loader or sampler does, by the name of its data, of what it is assigned to, or around it."""
    texts = [ast.unparse(call.args[0])] if call.args else []
    texts += [ast.unparse(one.value) for one in call.keywords if one.arg == "dataset"]
    for around in script.above(call):
        if isinstance(around, ast.Assign):
            texts += [ast.unparse(target) for target in around.targets if not isinstance(target, ast.Tuple)]
        elif isinstance(around, ast.FunctionDef):
            texts.append(around.name)
    for text in texts:
        if "train" in text.lower() or is_evaluation(text):
            return is_evaluation(text)
    return False


def evaluators(script: Script) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions that evaluate on all ranks: by their name, and because they measure and do not train."""
    found = []
    for function in script.functions:
        if isinstance(function, ast.Lambda) or not is_evaluation(function.name):
            continue
        measures = [
            one for name in ("eval", "argmax", "max", "topk") for one in methods(script, name, function)
        ]
        trains = any(methods(script, "backward", call) for call in reached(script, function))
        alone = [on_one_rank(script, call) for call in callers(script, function)]
        if measures and not trains and not (alone and all(alone)):
            found.append(function)
    return found


def around_calls(script: Script, function: Function) -> list[ast.Call]:
    """The calls in a function and in what it enters, and those beside the calls of the function itself."""
    places = [script.function_of(call) or script.tree for call in callers(script, function)]
    direct = [one for place in places for one in ast.walk(place) if isinstance(one, ast.Call)]
    return [*reached(script, function), *direct]


def meeting(script: Script, call: ast.Call) -> str:
    """What it is, if all ranks have to meet at this call: a collective, or the forward of a wrapped model."""
    name = script.name(call.func)
    last = name.rpartition(".")[2]
    if name.startswith("torch.distributed.") and last in COLLECTIVES and not argument(script, call, "group"):
        return last
    if name.startswith("shared.") and last in OF_SHARED:
        return last
    wrapped = not script.library[call] and comes_from(script, call.func, *WRAPPERS)
    return "the forward of a wrapped model" if wrapped else ""
