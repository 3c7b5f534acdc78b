"""Questions to a training script: its model and how it learns. Taught in lesson 10.

Each rule yields (place, what is wrong there). Its docstring asks, and says what happens else.
"""

import ast

from .files import Function
from .ranks import callers, direct_calls, identifier, is_inside, loop_of, may_follow
from .rule import Found, rule
from .script import Script, dotted
from .torch_calls import (
    REDUCING,
    SHARDING,
    WRAPPERS,
    argument,
    calls_anything,
    comes_from,
    is_literal,
    is_managed,
    is_opaque,
    is_parallel_otherwise,
    is_wrapped,
    methods,
    receiver,
)

CONVERTING = ("convert_sync_batchnorm", "convert_batch_norm", "convert_syncbn_model")
NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "resnet18", "resnet34", "resnet50", "resnet101")
SMALL_BATCH = 16
MOST_PARTS = 2000
LOSSES = (
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "bce_with_logits",
    "binary_cross_entropy_with_logits",
    "l1_loss",
)
LOSS_NAMES = ("criterion", "loss_fn", "loss_func", "loss_function", "criterion_fn")


@rule("wrong")
def wrap(s: Script) -> Found:
    """Are the gradients averaged? Else each rank trains a model of its own."""
    backward = [one for one in methods(s, "backward") if s.is_main(one)]
    if not backward or not s.find("init_process_group") or is_managed(s) or is_opaque(s):
        return
    by_hand = s.find(*REDUCING) and any(getattr(one, "attr", "") == "grad" for one in s.nodes)
    wrapped = calls_anything(s, *(name.lower() for name in (*WRAPPERS, *SHARDING, "DDP", "FSDP")))
    if not by_hand and not wrapped and not is_parallel_otherwise(s):
        yield backward[0], "no DistributedDataParallel, FSDP or fully_shard averages these gradients"


@rule("wrong")
def order(s: Script) -> Found:
    """Is the model complete when it is wrapped, sharded before the optimizer? Else they hold old tensors."""
    wrappers = s.find(*WRAPPERS)
    for call in [*methods(s, "to"), *methods(s, "cuda")]:
        before = [one for one in wrappers if may_follow(s, one, call)]
        if before and is_wrapped(s, receiver(call)) and not _is_new(s, call):
            yield call, "moved after it was wrapped: move the model first"
    for call in s.calls:
        if s.call_name(call).startswith("torch.optim.") and call.args and identifier(call.func)[:1] != "_":
            sharded = [one for one in s.find(*SHARDING) if may_follow(s, call, one)]
            if sharded and "lr_scheduler" not in s.call_name(call):
                yield (
                    call,
                    "the optimizer is made before the model is sharded: its parameters are replaced later",
                )
    yield from _replaced(s)


def _is_new(s: Script, call: ast.Call) -> bool:
    """Whether the result is something else than the wrapper: an input that is moved, say."""
    value = receiver(call)
    return not isinstance(value, ast.Name | ast.Attribute)


def _replaced(s: Script) -> Found:
    """Layers that are given to a model after it was wrapped: ``model.fc = nn.Linear(...)``."""
    for node in s.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        target = node.targets[0]
        made = [one for one in s.origins(node.value) if isinstance(one, ast.Call)]
        layers = [one for one in made if s.call_name(one).startswith("torch.nn.")]
        if not isinstance(target, ast.Attribute) or not layers or s.find(*WRAPPERS, among=made):
            continue
        if any(s.call_name(one).startswith(("torch.nn.parallel.", "torch.nn.utils.")) for one in layers):
            continue
        base = _root(target.value)
        for wrapper in s.find(*WRAPPERS):
            if may_follow(s, wrapper, node) and wrapper.args and _same_model(s, base, wrapper):
                yield node, "a layer is replaced after the model was wrapped: its gradients are not averaged"
                break


def _root(node: ast.expr) -> ast.expr:
    """``ddp`` of ``ddp.module.encoder``; ``self.model`` of ``self.model.module``."""
    while isinstance(node, ast.Attribute) and not (
        isinstance(node.value, ast.Name) and node.value.id == "self"
    ):
        node = node.value
    return node


def _same_model(s: Script, base: ast.expr, wrapper: ast.Call) -> bool:
    return is_wrapped(s, base) or dotted(base) == dotted(wrapper.args[0])


@rule("wrong")
def bypass(s: Script) -> Found:
    """Does training call the wrapper? Else nothing is averaged, and no error tells."""
    wrapped = [part for call in s.find(*WRAPPERS) for part in call.args[:1]]
    models = {one for part in wrapped for one in s.origins(part)}
    made = {one for one in models if isinstance(one, ast.Call) and not s.find(*WRAPPERS, among=[one])}
    backward = [
        one for one in s.calls if identifier(one.func) == "backward" and isinstance(one.func, ast.Attribute)
    ]
    backward = [one for one in backward if _steps_beside(s, one)]
    parts = {one for call in backward for one in _computed_from(s, _loss(call))}
    for call in [one for one in s.calls if one in parts]:  # all that takes part in a loss
        if _in_forward(s, call) or _is_wrapped_later(s, call) or not _is_near(s, call, backward):
            continue
        if getattr(call.func, "attr", "") == "module" and is_wrapped(s, receiver(call)):
            yield call, "the module inside the wrapper is called: call the wrapper"
        for one in [call.func, *_called_inside(s, call)]:
            if _is_unwrapped(s, one):
                yield call, "the module inside the wrapper is called: call the wrapper"
            plain = isinstance(one, ast.Name | ast.Attribute) and not made.isdisjoint(s.origins(one))
            if plain and not comes_from(s, one, *WRAPPERS) and not _has_own_wrapper(s, one):
                yield call, "the model computes this loss, not its wrapper"


def _computed_from(s: Script, loss: ast.expr) -> list[ast.AST]:
    """All that takes part in a value, but not how the objects were made whose methods are called."""
    seen: dict[ast.AST, None] = {}
    todo: list[ast.AST] = [loss]
    while todo and len(seen) < MOST_PARTS:
        one = todo.pop()
        if one in seen:
            continue
        seen[one] = None
        if not isinstance(one, ast.Call) or not any(_is_forward(function) for function in s.callees(one)):
            todo += s.origins(one)[1:]
        if not isinstance(one, ast.Call):
            todo += ast.iter_child_nodes(one)
        elif not any(isinstance(part, ast.ClassDef) for part in s.definitions_of(one)):
            todo += [*one.args, *(part.value for part in one.keywords)]
            todo += [one.func.value] if isinstance(one.func, ast.Attribute) else []
    return list(seen)


def _in_forward(s: Script, call: ast.Call) -> bool:
    """Whether a model calls its own parts."""
    return _is_forward(s.function_of(call))


def _is_forward(function: ast.AST | None) -> bool:
    return getattr(function, "name", "") in ("forward", "__call__")


def _steps_beside(s: Script, backward: ast.Call) -> bool:
    """Whether an optimizer steps in the same function: then it is training, and no measurement."""
    place = s.function_of(backward) or s.module_of(backward).tree
    return any(identifier(one.func) == "step" for one in direct_calls(s, place))


def _is_near(s: Script, call: ast.Call, backward: list[ast.Call]) -> bool:
    """Whether a call stands in a function that goes backward, or in one that such a function calls."""
    places = {s.function_of(one) for one in backward}
    function = s.function_of(call)
    from_there = any(s.function_of(one) in places for one in callers(s, function)) if function else False
    return function in places or from_there


def _is_wrapped_later(s: Script, call: ast.Call) -> bool:
    return any(may_follow(s, call, one) and loop_of(s, one) is None for one in s.find(*WRAPPERS))


def _is_unwrapped(s: Script, node: ast.expr) -> bool:
    """Whether a name stands for the module inside a wrapper, where there is one."""
    if not isinstance(node, ast.Name | ast.Attribute) or getattr(node, "attr", "") == "module":
        return False
    inside = [one for one in s.origins(node)[1:] if isinstance(one, ast.Attribute) and one.attr == "module"]
    return any(is_wrapped(s, one.value) for one in inside)


def _called_inside(s: Script, call: ast.Call) -> list[ast.expr]:
    """The arguments that a function of the script calls: ``model`` of ``step(model, x)``, if it is."""
    found = []
    for function in s.callees(call):
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        if isinstance(s.parent(function), ast.ClassDef):
            names = names[1:]
        called = {dotted(one.func) for one in ast.walk(function) if isinstance(one, ast.Call)}
        found += [one for name, one in zip(names, call.args, strict=False) if name in called]
    return found


def _loss(backward: ast.Call) -> ast.expr:
    """``loss`` of ``loss.backward()`` and of ``accelerator.backward(loss)``."""
    return backward.args[0] if backward.args else receiver(backward)


def _has_own_wrapper(s: Script, node: ast.expr) -> bool:
    """``fully_shard(model)`` changes the model in place."""
    return bool(s.find("fully_shard"))


@rule("wrong")
def batchnorm(s: Script) -> Found:
    """Is batch norm converted before DDP wraps it? Else small batches are normalized by themselves alone."""
    converted = [one for one in s.calls if identifier(one.func) in CONVERTING]
    for wrapper in s.find(*WRAPPERS):
        late = [one for one in converted if may_follow(s, wrapper, one) and _converts(s, one, wrapper)]
        if late:
            yield late[0], "converted after it was wrapped: convert first"
        elif (
            s.find(*NORMS) and not any(identifier(one) in CONVERTING for one in s.nodes) and _small_batches(s)
        ):
            yield wrapper, "batch norm on batches this small: call convert_sync_batchnorm before"


def _converts(s: Script, call: ast.Call, wrapper: ast.Call) -> bool:
    given = call.args[0] if call.args else None
    return given is not None and (is_wrapped(s, given) or dotted(given) == dotted(wrapper.args[0]))


def _small_batches(s: Script) -> bool:
    """Whether each rank trains on a few images at a time."""
    found = []
    for call in s.find("DataLoader"):
        size = argument(s, call, "batch_size", 1)
        numbers = [one for one in s.origins(size) if isinstance(one, ast.Constant)] if size else []
        found += [one.value for one in numbers if type(one.value) is int]
    return bool(found) and all(value <= SMALL_BATCH for value in found)


@rule("wrong")
def scaler(s: Script) -> Found:
    """Is the GradScaler used as a whole? Else fp16 gradients vanish, or are clipped at another scale."""
    if is_managed(s) or is_opaque(s):
        return
    for made in s.find("GradScaler"):
        lacks = [name for name in ("scale", "step", "update") if not _scaler_method(s, name)]
        if not any(identifier(node) == "autocast" for node in s.nodes):
            lacks.append("autocast")
        if calls_anything(s, "clip_grad_norm_", "clip_grad_norm") and not _scaler_method(s, "unscale_"):
            lacks.append("unscale_")
        if lacks and len(lacks) < 4:
            yield made, f"a GradScaler without {', '.join(lacks)}"


def _scaler_method(s: Script, name: str) -> bool:
    """Whether it is called on a GradScaler, or on what is named like one."""
    for call in methods(s, name):
        value = receiver(call)
        if comes_from(s, value, "GradScaler") or "scaler" in identifier(value):
            return True
    return False


@rule("wrong")
def precision(s: Script) -> Found:
    """Is the loss computed under autocast? Else it is a half-precision number, and fp16 overflows."""
    blocks = [one for one in s.nodes if isinstance(one, ast.With) and _is_autocast(s, one)]
    for block in blocks:
        for call in _calls_after(s, block):
            if _is_loss(s, call) and not any(is_inside(s, call, one) for one in blocks):
                outputs = _assigned_in(block)
                given = {one.id for one in call.args if isinstance(one, ast.Name)}
                if outputs & given and not _between(s, block, call, outputs & given):
                    yield call, "the loss is computed outside of autocast, from what was computed inside"


def _is_autocast(s: Script, block: ast.With) -> bool:
    for item in block.items:
        for one in s.origins(item.context_expr):
            if isinstance(one, ast.Call) and identifier(one.func) == "autocast":
                return not is_literal(argument(s, one, "enabled"), False)
    return False


def _calls_after(s: Script, block: ast.With) -> list[ast.Call]:
    """Calls below a block, in the same list of statements."""
    around = s.parent(block)
    for name in ("body", "orelse"):
        lines = getattr(around, name, [])
        if isinstance(lines, list) and block in lines:
            after = lines[lines.index(block) + 1 :]
            return [one for line in after for one in ast.walk(line) if isinstance(one, ast.Call)]
    return []


def _is_loss(s: Script, call: ast.Call) -> bool:
    name = identifier(call.func)
    if name in LOSSES or name in LOSS_NAMES:
        return True
    return any(
        s.call_name(one).startswith("torch.nn.") and "loss" in identifier(one.func) for one in _made(s, call)
    )


def _made(s: Script, call: ast.Call) -> list[ast.Call]:
    if isinstance(call.func, ast.Call):
        return []
    return [one for one in s.origins(call.func) if isinstance(one, ast.Call)]


def _assigned_in(block: ast.With) -> set[str]:
    found = set()
    for one in ast.walk(block):
        if isinstance(one, ast.Assign):
            for target in one.targets:
                found |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return found


def _between(s: Script, block: ast.With, call: ast.Call, names: set[str]) -> bool:
    """Whether an output is made anew, as by ``out = out.float()``, between the block and the loss."""
    place: Function | ast.AST = s.function_of(call) or s.tree
    for one in ast.walk(place):
        if isinstance(one, ast.Assign) and (block.end_lineno or 0) < one.lineno < call.lineno:
            targets = {
                part.id for target in one.targets for part in ast.walk(target) if isinstance(part, ast.Name)
            }
            if targets & names:
                return True
    return False


RULES = (wrap, order, bypass, batchnorm, scaler, precision)
