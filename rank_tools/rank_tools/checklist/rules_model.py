"""Rules of processes, devices and the training step."""

import ast
from collections.abc import Iterator

from .flow import given_to
from .program import Program, argument, dotted, is_method, last, text_of

Findings = Iterator[tuple[ast.AST, str]]


def device(program: Program) -> Findings:
    """Has each rank a GPU of its machine? Else the second machine has none with that number."""
    if program.managed or program.one_machine or program.joins_locally:
        return
    for call in program.calls:
        if any(program.role(number) == "rank" for number in gpu_numbers(program, call)):
            yield call, "the second machine has no GPU with the number of a global rank: use LOCAL_RANK"
            return


def gpu_numbers(program: Program, call: ast.Call) -> list[ast.AST]:
    """The expressions that say which GPU a call is for, as ``rank`` in ``f"cuda:{rank}"``."""
    name = program.name(call)
    if last(name) == "DistributedDataParallel" and name.startswith("torch."):
        ids = argument(call, "device_ids", 1)
        return list(ids.elts) if isinstance(ids, ast.List) else []
    if name not in ("torch.cuda.set_device", "torch.device") or not call.args:
        return []
    given = call.args[-1]
    if isinstance(given, ast.JoinedStr) and "".join(map(text_of, given.values)).startswith("cuda:"):
        return [part.value for part in given.values if isinstance(part, ast.FormattedValue)]
    return [given]


def number(program: Program) -> Findings:
    """Is the rank that joins the group the global one? Else two machines have two ranks 0."""
    for call in program.named("init_process_group"):
        rank, ranks = argument(call, "rank", 4), argument(call, "world_size", 3)
        if not program.one_machine and program.role(rank) == "local rank" and program.role(ranks) == "world":
            yield call, "its rank is a local rank: on two machines two processes are rank 0, and both wait"


def bypass(program: Program) -> Findings:
    """Does training call the wrapper? Else nothing is averaged, and no error tells."""
    for call in program.named("DistributedDataParallel") if not program.managed else []:
        wrapper, scope = program.target(call)
        inner = {f"{wrapper}.module", dotted(call.args[0]) if call.args else ""} - {"", ".module", wrapper}
        own = {last(name).lower() for name in (wrapper, *inner)} - {"module"}
        for use in inner_calls(program, call, wrapper, inner, scope) if wrapper else []:
            backward = backward_of(program, use)
            if backward is not None and steps_own(program, backward, own):
                yield use, "the model inside the wrapper computes this loss: call the wrapper"


def inner_calls(
    program: Program, wrap: ast.Call, wrapper: str, inner: set[str], scope: ast.AST
) -> Iterator[ast.Call]:
    """The calls of the model inside a wrapper, also in a function of the file that it is handed to."""
    around = set(ast.walk(scope))
    for call in program.calls:
        if call not in around or not (wrapper.startswith("self.") or program.before(wrap, call)):
            continue
        if dotted(call.func) in inner:
            yield call
        for given in call.args:
            handed = given_to(program, call, given) if dotted(given) in inner else None
            for deeper in program.calls if handed is not None else []:
                if handed == (dotted(deeper.func), program.scope(deeper)):
                    yield deeper


def backward_of(program: Program, use: ast.Call) -> ast.Call | None:
    """The ``loss.backward()`` that the result of a call comes to, in its function."""
    if any({"no_grad", "inference_mode"} & program.words(test, 0) for test in program.guards(use)):
        return None
    later = [node for node in ast.walk(program.scope(use)) if getattr(node, "lineno", 0) >= use.lineno]
    later.sort(key=lambda node: node.lineno)  # type: ignore[attr-defined]
    carried = targets(next(child for child, _ in program.above(use) if isinstance(child, ast.stmt)))
    for node in later:
        if program.exclude(use, node) or program.loops(use)[:1] != program.loops(node)[:1]:
            continue
        if isinstance(node, ast.Assign | ast.AugAssign):
            carried |= targets(node) if read_in(node.value) & carried else set()
        elif isinstance(node, ast.Call) and is_method(node, "backward") and read_in(node.func) & carried:
            return node
    return None


def read_in(node: ast.AST) -> set[str]:
    """The names in an expression that gradients come through."""
    if isinstance(node, ast.Call) and is_method(node, "detach"):
        return set()
    found = {node.id} if isinstance(node, ast.Name) else set()
    return found.union(*(read_in(child) for child in ast.iter_child_nodes(node)))


def targets(statement: ast.AST) -> set[str]:
    """The names that a statement sets."""
    if isinstance(statement, ast.AugAssign):
        return read_in(statement.target)
    return set().union(*map(read_in, statement.targets)) if isinstance(statement, ast.Assign) else set()


def steps_own(program: Program, backward: ast.Call, own: set[str]) -> bool:
    """Whether the optimizer that steps next was made of the model's parameters."""
    later = [call for call in program.calls if is_method(call, "step") and program.before(backward, call)]
    if not later:
        return False
    step = min(later, key=lambda call: call.lineno)
    stepped = step.args[0] if step.args else step.func.value  # type: ignore[attr-defined]
    made = [value for value in program.assigned(stepped) if value is not None]
    return any(own & program.words(value) for value in made)


def scaler(program: Program) -> Findings:
    """Are gradients unscaled before they are clipped? Else they are clipped at another scale."""
    for call in program.calls:
        if last(dotted(call.func)) not in ("clip_grad_norm_", "clip_grad_value_"):
            continue
        scope = program.scope(call)
        mine = [other for other in program.calls if program.scope(other) is scope]
        scaled = [one for one in mine if is_method(one, "scale") and program.before(one, call)]
        steps = [one for one in mine if is_method(one, "step") and program.before(call, one)]
        unscales = any(is_method(one, "unscale_") and one.lineno <= call.lineno for one in mine)
        for step in steps if scaled and not unscales else []:
            owner = dotted(step.func.value) if isinstance(step.func, ast.Attribute) else ""
            if step.args and any(owner == dotted(one.func.value) for one in scaled):  # type: ignore[attr-defined]
                yield call, f"the gradients are still scaled: call {owner}.unscale_(...) before"
                break
