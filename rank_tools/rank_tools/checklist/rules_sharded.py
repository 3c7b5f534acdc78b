"""Rules of models whose parameters are sharded, by FSDP1 or FSDP2."""

import ast
from collections.abc import Iterator

from .flow import all_loops, callers
from .program import Program, dotted, is_method, last, parameters
from .rules_data import has_rank

Findings = Iterator[tuple[ast.AST, str]]
# After these all ranks have the same values, whatever they were built with; or the file does not say.
EQUAL = {"from_pretrained", "load_state_dict", "broadcast", "sync_module_states", "set_model_state_dict"}


def init(program: Program) -> Findings:
    """Do all ranks build the same sharded model? Else each shard is of another one."""
    keywords = {keyword.arg for call in program.calls for keyword in call.keywords}
    equal = program.managed or EQUAL & (program.attributes | keywords)
    seeds = [seed for seed in program.named("manual_seed") if seed.args and not equal]
    models = [one for wrap in program.wraps if wrap.args for one in program.assigned(wrap.args[0])]
    for model in [one for one in models if one is not None and hasattr(one, "lineno")]:
        before = [
            (place.lineno, seed.lineno, seed)
            for seed in seeds
            for place in (seed, *callers(program, program.function(seed)))
            if program.scope(place) is program.scope(model) and place.lineno < model.lineno
        ]
        if before and has_rank(program, max(before)[2].args[0]):
            yield max(before)[2], "each rank builds a model of its own and keeps a shard: seed by rank later"
            return


def is_sharded(program: Program, node: ast.AST, depth: int = 0) -> bool:
    """Whether a name is that of a sharded model: wrapped before, or given by a caller that has wrapped it."""
    text = dotted(node)
    if not text or depth > 3:
        return False
    for wrap in program.wraps:
        same = program.scope(wrap) is program.scope(node) or text.startswith("self.")
        taker = program.parents[wrap]
        kept = [dotted(one) for one in taker.targets] if isinstance(taker, ast.Assign) else []
        in_place = last(program.name(wrap)) == "fully_shard" and wrap.args and dotted(wrap.args[0]) == text
        if same and (text in kept or in_place):
            return text.startswith("self.") or wrap.lineno < node.lineno  # type: ignore[attr-defined]
    function = program.function(node)
    given = isinstance(node, ast.Name) and function is not None and text in parameters(function)
    values = program.assigned(node) if given and (function, text) not in program.values else []
    return any(is_sharded(program, one, depth + 1) for one in values if one is not None)


def alone(program: Program, node: ast.AST, depth: int = 0) -> bool:
    """Whether a condition lets some ranks come to a node, in its function or where that is called."""
    for part in [part for test in program.guards(node) for part in ast.walk(test)]:
        tests = program.assigned(part) if isinstance(part, ast.Name | ast.Attribute) else []
        parts = [part, *(one for test in tests if isinstance(test, ast.Compare) for one in ast.walk(test))]
        if any(program.role(one) in ("rank", "local rank") for one in parts):
            return True
    sites = callers(program, program.function(node)) if depth < 3 else []
    return bool(sites) and all(alone(program, site, depth + 1) for site in sites)


def shard(program: Program) -> Findings:
    """Do all ranks take part in a sharded model's state? Else rank 0 waits for them, or saves its shard."""
    for call in program.calls if not program.managed else []:
        owner = call.func.value if is_method(call, "state_dict") else None  # type: ignore[attr-defined]
        if owner is not None and is_sharded(program, owner) and alone(program, call):
            yield call, "some ranks call state_dict() of a sharded model: call it on all, and save on rank 0"


def forwards(program: Program) -> Findings:
    """Do all ranks call a sharded model equally often? Else the others wait in its all-gather."""
    for call in program.calls if not program.managed else []:
        model = call.func
        if isinstance(model, ast.Attribute) and model.attr in ("generate", "forward"):
            model = model.value
        if is_sharded(program, model):
            if alone(program, call):
                yield call, "some ranks call a sharded model: the others wait in its all-gather"
            elif any(unequal(program, getattr(loop, "iter", loop)) for loop in all_loops(program, call)):
                yield call, "ranks have different numbers of these: one calls the sharded model once more"


def unequal(program: Program, node: ast.AST) -> bool:
    """Whether ranks take every N-th of things whose number need not divide."""
    parts = list(program.parts(node))
    inner = [one for part in parts if isinstance(part, ast.Tuple) for one in part.elts[1:]]
    for part in parts:
        ends = (part.lower, part.step) if isinstance(part, ast.Slice) and part.upper is None else ()
        ends = () if part in inner else ends
        if isinstance(part, ast.Call) and dotted(part.func) == "range" and len(part.args) == 3:
            ends = (part.args[0], part.args[2])
        if [program.role(one) for one in ends] == ["rank", "world"]:
            return True
    return False
