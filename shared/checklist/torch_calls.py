"""What a script does with torch: loaders, wrapped models, collectives, evaluation. Taught in lesson 10."""

import ast
from typing import Any

from .files import Function
from .ranks import (
    Loop,
    callers,
    direct_calls,
    guards,
    identifier,
    is_inside,
    is_rank,
    launches,
    may_follow,
    reached,
)
from .script import Script, dotted

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")
SHARDING = ("FullyShardedDataParallel", "fully_shard")
REDUCING = (
    "all_reduce",
    "all_reduce_coalesced",
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
)
OF_CHECKPOINT = (  # of torch.distributed.checkpoint
    "async_save",
    "save",
    "load",
    "get_state_dict",
    "get_model_state_dict",
    "get_optimizer_state_dict",
    "set_state_dict",
    "set_model_state_dict",
    "set_optimizer_state_dict",
)
# Methods of Accelerate's Accelerator and of Lightning's Fabric at which all processes meet.
OF_ACCELERATOR = (
    "wait_for_everyone",
    "gather",
    "gather_for_metrics",
    "reduce",
    "pad_across_processes",
    "backward",
)
OF_FABRIC = ("barrier", "all_gather", "all_reduce", "broadcast", "backward")
# Helpers of this course at which all ranks meet; their files are not read.
OF_SHARED = (
    "process_group",
    "print_in_rank_order",
    "assert_same_on_every_rank",
    "broadcast_from_rank_0",
    "gather_random_states",
)
MANAGERS = ("Accelerator", "Fabric", "Trainer", "Seq2SeqTrainer", "SFTTrainer", "LightningCLI")
MANAGING = ("deepspeed", "horovod", "ray", "fastai", "composer", "colossalai", "megatron", "mmengine", "mmcv")
JOINING = ("init_process_group", "process_group", "init_device_mesh", "init_distributed")
PARALLEL = ("parallelize_module", "tensor_parallel", "DeviceMesh", "init_device_mesh", "distribute_module")
EVALUATION = ("eval", "val", "test")
TRAINING = ("train", "backward")


# --- arguments and values ---


def argument(script: Script, call: ast.Call, name: str, position: int = 99) -> ast.expr | None:
    """The argument given by name, by ``**`` or by position; None when it is not given."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    for keyword in call.keywords:
        if keyword.arg is None:
            found = _packed(script, keyword.value, name)
            if found is not None:
                return found
    if any(isinstance(one, ast.Starred) for one in call.args):
        return call.args[-1]
    return call.args[position] if position < len(call.args) else None


def _packed(script: Script, packed: ast.expr, name: str) -> ast.expr | None:
    """The value under a name in ``**options``; ``packed`` itself where that cannot be read."""
    known = [one for one in script.origins(packed) if isinstance(one, ast.Dict)]
    for one in known:
        for key, value in zip(one.keys, one.values, strict=True):
            if is_literal(key, name):
                return value
    for text, item in assigned_items(script, packed):
        if text == name:
            return item
    updated = any(dotted(one.func) == f"{dotted(packed)}.update" for one in script.calls)
    return packed if updated or not known else None


def assigned_items(script: Script, node: ast.expr) -> list[tuple[str, ast.expr]]:
    """(key, value) of ``state["model"] = ...`` for a name, anywhere in its function."""
    known = script.remembered("items")
    if not known:
        known[None] = []
        for one in script.nodes:
            if isinstance(one, ast.Assign):
                for target in one.targets:
                    if isinstance(target, ast.Subscript):
                        key = target.slice.value if isinstance(target.slice, ast.Constant) else "?"
                        place = (script.function_of(one), dotted(target.value))
                        known.setdefault(place, []).append((str(key), one.value))
    return known.get((script.function_of(node), dotted(node)), [])


def is_literal(node: ast.expr | None, *values: object) -> bool:
    """Whether it is one of these constants; an argument that is not given counts as None."""
    value = node.value if isinstance(node, ast.Constant) else ...
    return (None if node is None else value) in values


def constants(script: Script, node: ast.AST | None = None, inside: bool = False) -> set:
    """The plain values that an expression may have; those ``inside`` of it too, as in ``int(x["RANK"])``."""
    found = script.origins(node) if node else []
    if inside:  # a number that is computed, `rank % 8`, is another one
        found = [one for part in found if not isinstance(part, ast.BinOp) for one in ast.walk(part)]
    return {one.value for one in found if isinstance(one, ast.Constant)}


def names_in(node: ast.AST) -> set[str]:
    """The names and dotted names in an expression."""
    return {dotted(one) for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)} - {"?"}


# --- calls ---


def methods(script: Script, name: str, within: ast.AST | None = None, of: str = "") -> list[ast.Call]:
    """Calls of an object's method, such as ``loss.backward()``; not of functions of the script.

    With ``of`` only those of an object that a call of that name made.
    """
    calls = _by_method(script).get(name, [])
    if within is not None:
        inside = set(direct_calls(script, within))
        calls = [one for one in calls if one in inside]
    found = [one for one in calls if not script.callees(one) and not script.library[one]]
    return [one for one in found if not of or comes_from(script, receiver(one), of)]


def _by_method(script: Script) -> dict[str, list[ast.Call]]:
    known = script.remembered("methods")
    if not known:
        known[""] = []
        for call in script.calls:
            if isinstance(call.func, ast.Attribute):
                known.setdefault(call.func.attr, []).append(call)
    return known


def calls_anything(script: Script, *names: str) -> bool:
    """Whether some call, of whatever library, bears one of these names."""
    return any(identifier(one.func) in names for one in script.calls)


def receiver(call: ast.Call) -> ast.expr:
    """The object whose method is called: ``loss`` in ``loss.backward()``."""
    assert isinstance(call.func, ast.Attribute)
    return call.func.value


def comes_from(script: Script, node: ast.AST | None, *names: str) -> bool:
    """Whether a value may have been made by a call of one of these, of a known library."""
    made = [one for one in script.origins(node) if isinstance(one, ast.Call)] if node else []
    return bool(script.find(*names, among=made))


def is_wrapped(script: Script, node: ast.AST | None) -> bool:
    """Whether a value is a model that a wrapper averages, and has been wrapped by then."""
    made = [one for one in script.origins(node) if isinstance(one, ast.Call)] if node else []
    return any(not _comes_later(script, node, one) for one in script.find(*WRAPPERS, among=made))


def _comes_later(script: Script, node: ast.AST | None, wrapper: ast.Call) -> bool:
    """Whether a model is wrapped below the place that uses it, and not in a loop around both."""
    if node is None or not hasattr(node, "lineno") or not may_follow(script, node, wrapper):
        return False
    return not any(isinstance(one, Loop) and is_inside(script, node, one) for one in script.above(wrapper))


def is_sharded(script: Script, node: ast.AST | None) -> bool:
    """Whether a value is a model whose forward gathers parameters from all ranks."""
    if node is None:
        return False
    if comes_from(script, node, "FullyShardedDataParallel"):
        return True
    sharded = {dotted(one.args[0]) for one in script.find("fully_shard") if one.args}
    return isinstance(node, ast.Name | ast.Attribute) and dotted(node) in sharded


# --- what kind of script it is ---


def is_managed(script: Script) -> bool:
    """Whether a framework joins the processes, wraps the model and deals out the data."""
    made = any(identifier(one.func) in {name.lower() for name in MANAGERS} for one in script.calls)
    from_framework = script.imports("accelerate", "lightning", "pytorch_lightning", "transformers", "trl")
    return (made and from_framework) or script.imports(*MANAGING)


def uses_accelerate(script: Script) -> bool:
    return script.imports("accelerate") and calls_anything(script, "accelerator")


def is_distributed(script: Script) -> bool:
    """Whether it is written for several processes at all."""
    own = script.find(*JOINING, *WRAPPERS, "fully_shard", "DistributedSampler", "all_reduce", "barrier")
    return bool(own) or is_managed(script) or bool(launches(script) and script.find(*COLLECTIVES))


def is_opaque(script: Script) -> bool:
    """Whether packages take part that we cannot read, so that what is not seen may still happen."""
    known = script.remembered("opaque")
    if "answer" not in known:
        known["answer"] = bool(script.files.unknown()) or not script.files.complete
    return known["answer"]


def is_parallel_otherwise(script: Script) -> bool:
    """Whether ranks share a model in another way than by copies: then some of them need the same data."""
    return bool(script.find(*PARALLEL))


# --- evaluation ---


def is_evaluation(text: str) -> bool:
    """``val_loader``, ``test_set``, ``Evaluate``; not ``interval``, not ``train_test``."""
    words = text.lower().replace(".", "_").split("_")
    return any(word.startswith(EVALUATION) for word in words) and not any("train" in word for word in words)


def serves_evaluation(script: Script, call: ast.Call) -> bool:
    """Whether a loader or sampler does, by the name of its data, of what it is assigned to, or around it."""
    texts = []
    for given in [*call.args[:1], *(one.value for one in call.keywords if one.arg == "dataset")]:
        texts.append(ast.unparse(given))
        texts += [str(one.value) for one in _splits(script, given)]
    for around in script.above(call):
        if isinstance(around, ast.Assign):
            texts += [dotted(target) for target in around.targets if not isinstance(target, ast.Tuple)]
        elif isinstance(around, ast.FunctionDef):
            texts.append(around.name)
    for text in texts:
        if "train" in text.lower() or is_evaluation(text):
            return is_evaluation(text)
    return False


def _splits(script: Script, data: ast.expr) -> list[ast.Constant]:
    """``split="test"`` and ``train=False`` of the call that made the data, as texts."""
    found = []
    for made in script.origins(data):
        for keyword in made.keywords if isinstance(made, ast.Call) else []:
            if keyword.arg == "split" and isinstance(keyword.value, ast.Constant):
                found.append(keyword.value)
            elif keyword.arg == "train" and is_literal(keyword.value, False):
                found.append(ast.Constant("test"))
    return found


def evaluators(script: Script) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions that evaluate on all ranks: by their name, and because they measure and do not train."""
    known = script.remembered("evaluators")
    if "all" not in known:
        known["all"] = [one for one in script.functions if _evaluates(script, one)]
    return known["all"]


def _evaluates(script: Script, function: Function) -> bool:
    if isinstance(function, ast.Lambda) or not is_evaluation(function.name):
        return False
    names = {identifier(one.func) for one in reached(script, function)}
    measures = names & {"eval", "argmax", "max", "topk"}
    loops = any(isinstance(one, ast.For) for one in ast.walk(function))
    trains = "backward" in names
    alone = [bool(guards(script, call)) for call in callers(script, function)]
    return bool(measures) and loops and not trains and bool(alone) and not all(alone)


def around_calls(script: Script, function: Function) -> list[ast.Call]:
    """The calls in a function and in what it enters, and those beside the calls of the function itself."""
    places = [script.function_of(call) or script.module_of(call).tree for call in callers(script, function)]
    direct = [one for place in places for one in direct_calls(script, place)]
    return [*reached(script, function), *direct]


# --- meetings ---


def meeting(script: Script, call: ast.Call) -> str:
    """What it is, if all ranks have to meet at this call; "" else."""
    known = script.remembered("meeting")
    if call not in known:
        known[call] = _find_meeting(script, call)
    return known[call]


def _find_meeting(script: Script, call: ast.Call) -> str:
    name = script.call_name(call)
    last = name.rpartition(".")[2]
    if name.startswith("torch.distributed.") and _is_collective(name, last):
        return "" if _has_group(script, call) else last
    if name.startswith("shared.") and last in OF_SHARED:
        return last
    if isinstance(call.func, ast.Attribute) and not script.library.get(call):
        return _method_meeting(script, call, call.func)
    return "the forward of a sharded model" if is_sharded(script, call.func) else ""


def _is_collective(name: str, last: str) -> bool:
    return last in OF_CHECKPOINT if ".checkpoint" in name else last in COLLECTIVES


def _has_group(script: Script, call: ast.Call) -> bool:
    """Whether it is a collective of a part of the ranks; ``group=None`` is all of them."""
    for name in ("group", "process_group"):
        if not is_literal(argument(script, call, name), None):
            return True
    first = call.args[0] if identifier(call.func) == "barrier" and call.args else None
    return first is not None and not is_literal(first, None)


def _method_meeting(script: Script, call: ast.Call, method: ast.Attribute) -> str:
    name, value = method.attr, method.value
    if name in OF_ACCELERATOR and (
        comes_from(script, value, "Accelerator") or identifier(value) == "accelerator"
    ):
        return f"accelerator.{name}"
    if name in OF_FABRIC and identifier(value) == "fabric":
        return f"fabric.{name}"
    if name == "full_tensor":
        return "full_tensor, which gathers"
    if name == "state_dict" and comes_from(script, value, "FullyShardedDataParallel"):
        return "state_dict of a sharded model, which gathers"
    if name == "backward" and trains_together(script, call):
        return "the backward of a wrapped model"
    return "the forward of a sharded model" if is_sharded(script, method) else ""


def trains_together(script: Script, backward: ast.Call) -> bool:
    """Whether the gradients of this backward are averaged over the ranks."""
    parts = script.origins(receiver(backward), deep=True)
    calls = [one for one in parts if isinstance(one, ast.Call)]
    return any(is_wrapped(script, one.func) or is_sharded(script, one.func) for one in calls)


def meets(script: Script, call: ast.Call) -> tuple[str, ast.Call | None]:
    """(what all ranks meet at, where) in a call: in itself, or in the functions that it enters."""
    what = meeting(script, call)
    if what:
        return what, call
    for function in script.callees(call):
        found = _meeting_in(script, function)
        if found[0]:
            return found
    return "", None


def _meeting_in(script: Script, function: Function) -> tuple[str, ast.Call | None]:
    """The first meeting that all callers of a function come to."""
    known: dict[Any, tuple[str, ast.Call | None]] = script.remembered("meeting in")
    if function not in known:
        known[function] = "", None  # functions may call each other
        for call in direct_calls(script, function):
            if not _is_optional(script, call, function):
                found = meets(script, call)
                if found[0]:
                    known[function] = found
                    break
    return known[function]


def _is_optional(script: Script, call: ast.Call, function: Function) -> bool:
    """Whether a call stands in a nested function, under a condition on the rank, or under some option."""
    if script.function_of(call) is not function or guards(script, call):
        return True
    conditions = [one.test for one in script.above(call) if isinstance(one, ast.If) and one is not function]
    return any(_is_option(test) for test in conditions)


def _is_option(test: ast.expr) -> bool:
    """``if use_fsdp:``, that only some runs come past; not ``if distributed:``."""
    if isinstance(test, ast.UnaryOp):
        test = test.operand
    words = ("dist", "ddp", "world", "initialized", "parallel", "rank", "group")
    plain = isinstance(test, ast.Name | ast.Attribute)
    return plain and not any(word in identifier(test) for word in words)


def seeds_differ(script: Script, call: ast.Call) -> bool:
    """Whether a rank or a worker takes part in the seed that a call sets."""
    parts = [part for one in call.args for part in script.origins(one, deep=True)]
    parts += [part for one in call.keywords for part in script.origins(one.value, deep=True)]
    words = {identifier(one) for one in parts}
    if any(
        "worker" in word or word in ("initial_seed", "process_index", "urandom", "time") for word in words
    ):
        return True
    return any(is_rank(one) for one in parts)
