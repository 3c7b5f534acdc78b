"""The rules. Each is a function that yields (node, what is wrong there)."""

import ast
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .program import LOOPS, Function, Program, argument, dotted, last, parameters, text_of

Findings = Iterator[tuple[ast.AST, str]]


class Rule(NamedTuple):
    """Its code, name and question, and the function that finds."""

    code: str
    name: str
    question: str
    find: Callable[[Program], Findings]


RULES: list[Rule] = []


def rule(code: str) -> Callable[[Callable[[Program], Findings]], Callable[[Program], Findings]]:
    """Make a rule of a function; its docstring asks the question."""

    def add(find: Callable[[Program], Findings]) -> Callable[[Program], Findings]:
        RULES.append(Rule(code, find.__name__, " ".join((find.__doc__ or "").split()), find))
        return find

    return add


# --- data ---


@rule("RC202")
def share(program: Program) -> Findings:
    """Do the samplers of all ranks agree? Else their parts overlap, and some images are never seen."""
    joins_locally = any(
        program.role(argument(call, "rank", 3)) == "local rank" for call in program.named("init_process_group")
    )
    for call in program.named("DistributedSampler"):
        rank, ranks = argument(call, "rank", 2), argument(call, "num_replicas", 1)
        seed = argument(call, "seed", 4)
        local = program.role(rank) == "local rank" and program.role(ranks) != "local world"
        if local and not joins_locally and not program.one_machine:
            yield call, "its rank is a local rank: the second machine gets the images of the first"
        if seed is not None and has_rank(program, seed):
            yield call, "its seed depends on the rank: each rank deals from another order, and parts overlap"


def has_rank(program: Program, node: ast.expr) -> bool:
    """Whether a rank is added or given there."""
    return any(
        program.role(part) in ("rank", "local rank") for part in ast.walk(node) if part in program.parents
    )


@rule("RC204")
def epoch(program: Program) -> Findings:
    """Does the sampler hear of each epoch? Else the order of the first one repeats for ever."""
    if program.managed or "set_epoch" in program.attributes:
        return
    for call in program.named("DistributedSampler"):
        shuffle = argument(call, "shuffle", 3)
        if shuffle is not None and not (isinstance(shuffle, ast.Constant) and shuffle.value is True):
            continue
        made = loader_of(program, call)
        name, scope = target_of(program, made) if made is not None else ("", program.tree)
        if re.search(r"eval|val|test|infer", name):
            continue
        loops = loops_over(program, name, scope)
        own = program.loops(call)
        for loop, outer in loops or []:
            if any(one not in own and repeats(one) for one in outer) and goes_backward(program, loop):
                yield call, "call sampler.set_epoch(epoch) at the start of each epoch"
                break


def target_of(program: Program, node: ast.AST) -> tuple[str, ast.AST]:
    """(name or ``self.name``, the function, class or module in which it stands) that a value is set to."""
    parent = program.parents[node]
    while isinstance(parent, ast.IfExp):
        parent = program.parents[parent]
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return "", program.tree
    text = dotted(parent.targets[0])
    scope = program.scope(parent)
    if text.startswith("self.") and text.count(".") == 1:
        while not isinstance(scope, ast.ClassDef | ast.Module):
            scope = program.parents[scope]
        return text, scope
    return (text, scope) if "." not in text else ("", scope)


def uses(name: str, scope: ast.AST) -> list[ast.AST]:
    """Where a name is read in a function, class or module."""
    return [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and dotted(node) == name
    ]


def loader_of(program: Program, sampler: ast.Call) -> ast.Call | None:
    """The DataLoader that a sampler is for; None if the sampler is used in another way, too."""
    parent = program.parents[program.parents[sampler]]
    if isinstance(parent, ast.Call) and is_loader(program, parent):
        return parent
    name, scope = target_of(program, sampler)
    loaders = []
    for use in uses(name, scope) if name else []:
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
    program: Program, name: str, scope: ast.AST, outer: tuple[ast.AST, ...] = (), depth: int = 0
) -> list[tuple[ast.AST, list[ast.AST]]] | None:
    """(loop over a loader, the loops around it), through functions of the file; None if it leaves them."""
    found = []
    for use in uses(name, scope) if name and depth < 3 else []:
        holder, node = program.parents[use], use
        while isinstance(holder, ast.Call) and last(dotted(holder.func)) in ("enumerate", "tqdm"):
            holder, node = program.parents[holder], holder
        if isinstance(holder, LOOPS) and getattr(holder, "iter", None) is node:
            found.append((holder, [*program.loops(holder), *outer]))
            continue
        if is_asked(program, use) or isinstance(holder, ast.Call) and dotted(holder.func) == "len":
            continue
        inner = handed_on(program, use)
        if inner is None:
            return None
        around = (*program.loops(use), *outer)
        deeper = loops_over(program, inner[0], inner[1], around, depth + 1)
        if deeper is None:
            return None
        found += deeper
    return found


def handed_on(program: Program, use: ast.AST) -> tuple[str, ast.AST] | None:
    """(parameter, function of the file) that a value is handed to."""
    holder = program.parents[use]
    call = program.parents[holder] if isinstance(holder, ast.keyword) else holder
    if not isinstance(call, ast.Call):
        return None
    functions = program.functions.get(last(dotted(call.func)), [])
    if len(functions) != 1:
        return None
    names = [name for name in parameters(functions[0]) if name not in ("self", "cls")]
    for place, name in enumerate(names):
        if argument(call, name, place) is use:
            return name, functions[0]
    return None


def repeats(loop: ast.AST) -> bool:
    """Whether a loop counts, as one over epochs does."""
    if isinstance(loop, ast.While):
        return True
    iterated = getattr(loop, "iter", None)
    while isinstance(iterated, ast.Call) and last(dotted(iterated.func)) == "tqdm" and iterated.args:
        iterated = iterated.args[0]
    counts = isinstance(iterated, ast.Call) and last(dotted(iterated.func)) in ("range", "trange", "count")
    return counts and not (len(iterated.args) == 1 and getattr(iterated.args[0], "value", 0) == 1)


def goes_backward(program: Program, loop: ast.AST, depth: int = 0) -> bool:
    for call in [node for node in ast.walk(loop) if isinstance(node, ast.Call)]:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            return True
        functions = program.functions.get(last(dotted(call.func)), [])
        if depth < 2 and any(goes_backward(program, function, depth + 1) for function in functions):
            return True
    return False


@rule("RC208")
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


# --- processes and devices ---


@rule("RC309")
def device(program: Program) -> Findings:
    """Has each rank a GPU of its machine? Else the second machine has none with that number."""
    if program.managed or program.one_machine:
        return
    for call in program.calls:
        if any(program.role(number) == "rank" for number in gpu_numbers(program, call)):
            yield call, "the second machine has no GPU with the number of a global rank: use LOCAL_RANK"
            return


def gpu_numbers(program: Program, call: ast.Call) -> list[ast.AST]:
    """The expressions that say which GPU a call is for."""
    name = program.name(call)
    if name == "torch.cuda.set_device" and call.args:
        return numbers_in(call.args[0])
    if name == "torch.device" and call.args:
        return numbers_in(call.args[-1])
    if last(name) == "DistributedDataParallel" and name.startswith("torch."):
        ids = argument(call, "device_ids", 1)
        return list(ids.elts) if isinstance(ids, ast.List) else []
    return []


def numbers_in(node: ast.expr) -> list[ast.AST]:
    """The number itself, or that in ``f"cuda:{rank}"``."""
    if isinstance(node, ast.JoinedStr):
        first = node.values[0]
        cuda = text_of(first).startswith("cuda:")
        return [part.value for part in node.values if isinstance(part, ast.FormattedValue)] if cuda else []
    return [node]


@rule("RC310")
def number(program: Program) -> Findings:
    """Is the rank that joins the group the global one? Else two machines have two ranks 0."""
    for call in program.named("init_process_group"):
        rank, ranks = argument(call, "rank", 4), argument(call, "world_size", 3)
        if not program.one_machine and program.role(rank) == "local rank" and program.role(ranks) == "world":
            yield call, "its rank is a local rank: on two machines two processes are rank 0, and both wait"


@rule("RC106")
def objects(program: Program) -> Findings:
    """Has each rank chosen its GPU before nccl sends objects? Else all use GPU 0, and nccl fails or hangs."""
    if program.managed or program.starts or not program.attributes.isdisjoint(("set_device", "set_default_device")):
        return
    backends = [argument(call, "backend", 0) for call in program.named("init_process_group")]
    chosen = any(argument(call, "device_id", 99) for call in program.named("init_process_group"))
    hides = "CUDA_VISIBLE_DEVICES" in {text_of(node) for node in program.nodes}
    if not backends or chosen or hides or any(text_of(one or ast.Pass()) != "nccl" for one in backends):
        return
    for call in program.named("all_gather_object", "gather_object", "broadcast_object_list"):
        if argument(call, "group", 2) is None and argument(call, "device", 3) is None:
            yield call, "nccl sends objects from the current GPU, which is 0 on each rank: call set_device before"


# --- the model ---


@rule("RC303")
def order(program: Program) -> Findings:
    """Is the model sharded before its optimizer is made? Else the optimizer holds tensors of no use."""
    for call in program.named("fully_shard", "FullyShardedDataParallel"):
        model = dotted(call.args[0]) if call.args else ""
        for made in optimizers(program, model) if model else []:
            if not came_before(program, made, call) or program.loops(call) != program.loops(made):
                continue
            name, _ = target_of(program, made)
            again = any(
                came_before(program, call, later) and target_of(program, later)[0] == name
                for later in program.calls
            )
            if not again:
                yield made, f"line {call.lineno} shards the model after this: the optimizer keeps the old tensors"


def optimizers(program: Program, model: str) -> Iterator[ast.Call]:
    """The calls that make an optimizer of a model's parameters."""
    for call in program.calls:
        if program.name(call).startswith("torch.optim.") and call.args:
            parts = [node for node in ast.walk(call.args[0]) if isinstance(node, ast.Call)]
            if any(dotted(part.func) == f"{model}.parameters" for part in parts):
                yield call


def came_before(program: Program, first: ast.AST, second: ast.AST) -> bool:
    """Whether two nodes stand in one function in this order, and one run can come to both."""
    return (
        program.scope(first) is program.scope(second)
        and first.lineno < second.lineno  # type: ignore[attr-defined]
        and not program.exclude(first, second)
    )


@rule("RC304")
def bypass(program: Program) -> Findings:
    """Does training call the wrapper? Else nothing is averaged, and no error tells."""
    if program.managed:
        return
    for call in program.named("DistributedDataParallel"):
        wrapper, scope = target_of(program, call)
        if not wrapper:
            continue
        inner = inner_names(program, call, wrapper)
        own = {last(name).lower() for name in (wrapper, *inner)} - {"module"}
        for use in inner_calls(program, call, wrapper, inner, scope):
            backward = backward_of(program, use)
            if backward is not None and not has_no_grad(program, use) and steps_own(program, backward, own):
                yield use, "the model inside the wrapper computes this loss: call the wrapper"


def inner_names(program: Program, wrap: ast.Call, wrapper: str) -> set[str]:
    """What the model inside a wrapper is called."""
    names = {f"{wrapper}.module"}
    if wrap.args and dotted(wrap.args[0]) not in ("", wrapper):
        names.add(dotted(wrap.args[0]))
    for node in program.nodes:
        if isinstance(node, ast.Assign):
            values = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
            if any(dotted(value) == f"{wrapper}.module" for value in values):
                names |= {dotted(target) for target in node.targets}
    return names - {""}


def inner_calls(
    program: Program, wrap: ast.Call, wrapper: str, inner: set[str], scope: ast.AST
) -> Iterator[ast.Call]:
    """The calls of the model inside a wrapper, also in a function of the file that it is handed to."""
    inside = set(ast.walk(scope))
    for call in program.calls:
        if call not in inside or not (wrapper.startswith("self.") or came_before(program, wrap, call)):
            continue
        if dotted(call.func) in inner:
            yield call
        for given in [*call.args, *(keyword.value for keyword in call.keywords)]:
            handed = handed_on(program, given) if dotted(given) in inner else None
            if handed is not None:
                name, function = handed
                yield from (
                    deeper
                    for deeper in program.calls
                    if dotted(deeper.func) == name and program.scope(deeper) is function
                )


def backward_of(program: Program, use: ast.Call) -> ast.Call | None:
    """The ``loss.backward()`` that the result of a call comes to, in its function."""
    function = program.scope(use)
    later = [node for node in ast.walk(function) if getattr(node, "lineno", 0) >= use.lineno]
    later.sort(key=lambda node: node.lineno)  # type: ignore[attr-defined]
    carried = targets(program.statement(use))
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
    for child in ast.iter_child_nodes(node):
        found |= read_in(child)
    return found


def targets(statement: ast.AST) -> set[str]:
    """The names that a statement sets."""
    if not isinstance(statement, ast.Assign | ast.AugAssign):
        return set()
    outer = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {name.id for target in outer for name in ast.walk(target) if isinstance(name, ast.Name)}


def has_no_grad(program: Program, use: ast.Call) -> bool:
    contexts = [test for test in program.guards(use) if isinstance(test, ast.Call)]
    return any(last(dotted(one.func)) in ("no_grad", "inference_mode") for one in contexts)


def steps_own(program: Program, backward: ast.Call, own: set[str]) -> bool:
    """Whether the optimizer that steps next was made of the model's parameters."""
    scope = program.scope(backward)
    steps = [
        call
        for call in program.calls
        if is_method(call, "step") and program.scope(call) is scope and call.lineno > backward.lineno
    ]
    steps = [call for call in steps if not program.exclude(backward, call)]
    if not steps:
        return False
    step = min(steps, key=lambda call: call.lineno)
    stepped = step.args[0] if step.args else step.func.value  # type: ignore[attr-defined]
    made = [value for value in program.assigned(stepped) if value is not None]
    return any(own & program.words(value) for value in made)


@rule("RC306")
def scaler(program: Program) -> Findings:
    """Are gradients unscaled before they are clipped? Else they are clipped at another scale."""
    for call in program.calls:
        if last(dotted(call.func)) not in ("clip_grad_norm_", "clip_grad_value_"):
            continue
        scope = program.scope(call)
        mine = [other for other in program.calls if program.scope(other) is scope]
        scaled = [one for one in mine if is_method(one, "scale") and came_before(program, one, call)]
        steps = [one for one in mine if is_method(one, "step") and came_before(program, call, one)]
        unscales = any(is_method(one, "unscale_") and one.lineno <= call.lineno for one in mine)
        for step in steps if scaled and not unscales else []:
            owner = dotted(step.func.value) if isinstance(step.func, ast.Attribute) else ""
            if step.args and any(owner == dotted(one.func.value) for one in scaled):  # type: ignore[attr-defined]
                yield call, f"the gradients are still scaled: call {owner}.unscale_(...) before"
                break


def is_method(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


# --- files ---


@rule("RC401")
def save(program: Program) -> Findings:
    """Does one rank alone save? Else N processes write into one file at the same time."""
    if program.managed or not program.together or "backward" not in program.attributes:
        return
    for call in program.calls:
        if program.name(call) != "torch.save":
            continue
        path = argument(call, "f", 1)
        if path is None:
            continue
        words = program.words(path, 3)
        own = any(re.search(r"rank|gpu|proc|local|worker|pid|uuid|bytesio|temp", word) for word in words)
        if not own and program.everyone(call):
            yield call, "every rank writes this file: save on rank 0"


@rule("RC404")
def load(program: Program) -> Findings:
    """Does each rank load onto its own device? Else all load onto the GPU of the rank that saved."""
    if program.managed or not program.together or "cuda" not in program.attributes:
        return
    saves = [call for call in program.calls if program.name(call) == "torch.save" and call.args]
    if not any("state_dict" in program.words(call.args[0]) for call in saves):
        return  # what is loaded may come from a CPU
    for call in program.calls:
        if program.name(call) != "torch.load" or argument(call, "map_location", 1) is not None:
            continue
        name, scope = target_of(program, call)
        given = [call, *uses(name, scope)] if name else [call]
        options = any(keyword.arg is None for keyword in call.keywords)
        if not options and any(into_state(program, node) for node in given) and program.everyone(call):
            yield call, "every rank loads onto the GPU of the rank that saved: give map_location"


def into_state(program: Program, node: ast.AST) -> bool:
    for child, parent in program.above(node):
        if isinstance(parent, ast.Call) and last(dotted(parent.func)) == "load_state_dict":
            return True
        if isinstance(parent, ast.stmt):
            return False
    return False


@rule("RC407")
def overwrite(program: Program) -> Findings:
    """Is a checkpoint written beside the old one? Else a run that dies while it saves cannot be resumed."""
    if program.managed or not program.together:
        return
    loads = [call for call in program.calls if program.name(call) == "torch.load"]
    read = {name for call in loads for name in [fixed_name(program, argument(call, "f", 0), call)] if name}
    for call in program.calls:
        name = program.name(call)
        if name != "torch.save" or not any(goes_backward(program, loop) for loop in program.loops(call)):
            continue
        fixed = fixed_name(program, argument(call, "f", 1), call)
        if fixed in read and not is_moved(program, call):
            yield call, f"{fixed} is overwritten in place: write beside it, then os.replace"


def is_moved(program: Program, save: ast.Call) -> bool:
    """Whether files are moved or copied in the same function."""
    moves = {"replace", "rename", "move", "copy", "copyfile", "copy2"}
    return any(
        last(dotted(call.func)) in moves and program.scope(call) is program.scope(save) for call in program.calls
    )


def fixed_name(program: Program, path: ast.expr | None, use: ast.AST, depth: int = 0) -> str:
    """The name of a file that is the same at each round of the loops around; "" if it may change."""
    if path is None or depth > 4:
        return ""
    if isinstance(path, ast.Constant):
        return text_of(path)
    if isinstance(path, ast.Name):
        values = program.assigned(path)
        if len(values) != 1:
            return ""
        return fixed_name(program, values[0], use, depth + 1)
    parts: list[ast.expr] = []
    if isinstance(path, ast.Call) and last(dotted(path.func)) in ("join", "Path", "str"):
        parts = path.args
    elif isinstance(path, ast.BinOp) and isinstance(path.op, ast.Div | ast.Add):
        parts = [path.left, path.right]
    if not parts or any(changes(program, part, use) for part in parts[:-1]):
        return ""
    return fixed_name(program, parts[-1], use, depth + 1)


def changes(program: Program, part: ast.expr, use: ast.AST, depth: int = 0) -> bool:
    """Whether a folder may differ between rounds: it is made of more than names from outside the loops."""
    if isinstance(part, ast.Constant):
        return False
    if isinstance(part, ast.Call) and last(dotted(part.func)) in ("join", "Path", "str") or isinstance(part, ast.BinOp):
        inner = part.args if isinstance(part, ast.Call) else [part.left, part.right]
        return any(changes(program, one, use, depth) for one in inner)
    if not dotted(part):
        return True
    loops = program.loops(use)
    values = [value for value in program.assigned(part) if value is not None]
    within = [value for value in values if any(loop in program.loops(value) for loop in loops)]
    return bool(within) and (depth > 2 or any(changes(program, value, use, depth + 1) for value in within))
