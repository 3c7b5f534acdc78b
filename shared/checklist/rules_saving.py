"""Questions to a training script: what it saves and loads. Taught in lesson 10.

Each rule yields (place, what is wrong there). Its docstring asks, and says what happens else.
"""

import ast
from typing import NamedTuple

from .files import Function
from .ranks import branches, callers, depends_on_rank, direct_calls, identifier, may_follow, names_rank, who
from .rule import Found, rule
from .script import Script, dotted
from .torch_calls import (
    argument,
    assigned_items,
    comes_from,
    is_distributed,
    is_managed,
    is_wrapped,
    methods,
    receiver,
    uses_accelerate,
)

SAVING = ("torch.save", "shared.training.checkpoint.save_atomically")
REPLACING = ("os.replace", "os.rename", "shutil.move")
UNWRAPPING = ("module", "unwrap_model", "_orig_mod", "get_model", "unwrap")


class Saving(NamedTuple):
    """A call that writes a file: of ``torch.save``, or of a function that hands its arguments on to it."""

    call: ast.Call
    what: ast.expr
    where: ast.expr | None


def saves(s: Script) -> list[Saving]:
    found = []
    for call in s.calls:
        if s.call_name(call) not in SAVING or not call.args:
            continue
        if isinstance(call.args[0], ast.Starred):
            function = s.function_of(call)
            given = [one for one in callers(s, function) if one.args] if function else []
            found += [Saving(one, one.args[0], argument(s, one, "f", 1)) for one in given]
        else:
            found.append(Saving(call, call.args[0], argument(s, call, "f", 1)))
    return found


def _writers(s: Script) -> list[Saving]:
    """The calls of ``torch.save`` themselves."""
    return [
        Saving(one, one.args[0], argument(s, one, "f", 1))
        for one in s.calls
        if s.call_name(one) in SAVING and one.args
    ]


def _in_memory(s: Script, target: ast.expr | None) -> bool:
    made = [one for one in s.origins(target) if isinstance(one, ast.Call)] if target else []
    return any(identifier(one.func) in ("bytesio", "open") for one in made)


@rule("wrong")
def save(s: Script) -> Found:
    """Does one rank alone save? Else N processes write into one file at the same time."""
    if not is_distributed(s) or (is_managed(s) and not uses_accelerate(s)):
        return
    for call, _, target in _writers(s):
        if _in_memory(s, target) or depends_on_rank(s, target):
            continue
        kinds = who(s, call)
        if kinds & {"all", "others"}:
            yield call, "every rank writes this file: save on rank 0"
        elif "local one" in kinds and "one" not in kinds:
            yield call, "one rank of each machine writes this file: save on the global rank 0"


def contents(s: Script, node: ast.expr) -> list[tuple[str, ast.expr]]:
    """(key, value) of all that is saved, as far as it can be seen; the key "" for a value by itself."""
    found: list[tuple[str, ast.expr]] = []
    for one in s.origins(node):
        if isinstance(one, ast.Dict):
            pairs = zip(one.keys, one.values, strict=True)
            found += [
                (str(getattr(key, "value", dotted(key) if key else "**")), value) for key, value in pairs
            ]
        elif isinstance(one, ast.Call) and identifier(one.func) == "dict":
            found += [(keyword.arg or "**", keyword.value) for keyword in one.keywords]
        elif isinstance(one, ast.Name | ast.Attribute):
            found += assigned_items(s, one)
        elif isinstance(one, ast.expr):
            found.append(("", one))
    return found


def _is_hidden(s: Script, pairs: list[tuple[str, ast.expr]]) -> bool:
    """Whether something unknown is in a checkpoint: ``**more``, or the result of another file's function."""
    for key, value in pairs:
        if key == "**" or (key == "" and not _is_state(s, value)):
            return True
    return False


def _is_state(s: Script, value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and identifier(value.func) in ("state_dict", "dict")


def _state_of(s: Script, value: ast.expr) -> list[ast.expr]:
    """The objects whose ``state_dict()`` a value holds."""
    found = []
    for one in s.origins(value):
        if (
            isinstance(one, ast.Call)
            and isinstance(one.func, ast.Attribute)
            and one.func.attr == "state_dict"
        ):
            found.append(one.func.value)
    return found


def _holds_optimizer(s: Script, pairs: list[tuple[str, ast.expr]]) -> bool:
    for key, value in pairs:
        if "optim" in key.lower() or key == "opt":
            return True
        if any("optim" in dotted(one).lower() or dotted(one) == "opt" for one in _state_of(s, value)):
            return True
    return False


@rule("wrong")
def saved(s: Script) -> Found:
    """Is all in the checkpoint that a run needs to go on? Else it goes on with an optimizer that is new."""
    if is_managed(s) or not is_distributed(s) or not methods(s, "backward"):
        return
    resumes = any(s.call_name(one) == "torch.load" and "all" in who(s, one) for one in s.calls)
    for call, what, _ in saves(s):
        pairs = contents(s, what)
        if _is_hidden(s, pairs) or not any(_state_of(s, value) for _, value in pairs):
            continue
        steps = any(word in key.lower() for key, _ in pairs for word in ("epoch", "step", "iter"))
        if not _holds_optimizer(s, pairs):
            if steps and resumes:
                yield call, "the state of the optimizer is not saved, though the run can go on from this file"
        elif s.find("GradScaler") and not any(_is_scaler(s, value) for _, value in pairs):
            yield call, "the state of the GradScaler is not saved"


def _is_scaler(s: Script, value: ast.expr) -> bool:
    whole = [*_state_of(s, value), value]
    return any(comes_from(s, one, "GradScaler") or "scaler" in dotted(one).lower() for one in whole)


@rule("style")
def prefix(s: Script) -> Found:
    """Is the model's own state saved? Else its names begin with "module." and fit a wrapper alone."""
    if is_managed(s):
        return
    for call, what, _ in saves(s):
        for key, value in contents(s, what):
            for model in _state_of(s, value):
                if _wraps_here(s, model) and not _loads_into_wrapper(s):
                    where = f' under "{key}"' if key else ""
                    yield call, f"the wrapper's state is saved{where}: save that of its .module"


def _wraps_here(s: Script, model: ast.expr) -> bool:
    """Whether it is surely DDP's own state: the wrapper is named, and never unwrapped."""
    if not comes_from(s, model, "DistributedDataParallel"):
        return False
    return not any(
        identifier(one) in UNWRAPPING for one in s.origins(model) if not isinstance(one, ast.Constant)
    )


def _loads_into_wrapper(s: Script) -> bool:
    """Whether the script loads a state into the wrapper: then the names fit."""
    return any(is_wrapped(s, receiver(one)) for one in methods(s, "load_state_dict"))


@rule("slow")
def load(s: Script) -> Found:
    """Does each rank load onto its own device? Else all load onto the GPU of the rank that saved."""
    if not is_distributed(s) or is_managed(s):
        return
    for call in s.calls:
        if s.call_name(call) != "torch.load" or not call.args or argument(s, call, "map_location", 1):
            continue
        alone = _without_a_gpu(s, call) or depends_on_rank(s, call.args[0]) or _in_memory_load(s, call)
        if not alone and "all" in who(s, call) and _is_checkpoint(s, call):
            yield call, "torch.load without map_location"


def _without_a_gpu(s: Script, call: ast.Call) -> bool:
    """Whether the line is for a run without ranks: ``if args.gpu is None``."""
    for around in s.above(call):
        if isinstance(around, ast.If) and names_rank(around.test) and branches(s, around.test) == ("", ""):
            return True
        if isinstance(around, ast.If) and "distributed" in ast.unparse(around.test):
            return True
    return False


def _in_memory_load(s: Script, call: ast.Call) -> bool:
    return any(
        isinstance(one, ast.Call) and identifier(one.func) == "bytesio" for one in s.origins(call.args[0])
    )


def _callers(s: Script, place: ast.AST) -> list[ast.Call]:
    return callers(s, place) if isinstance(place, Function) else []


def _is_checkpoint(s: Script, call: ast.Call) -> bool:
    """Whether what is loaded is the state of a model, which was on a GPU; a data set was not."""
    place = s.function_of(call) or s.module_of(call).tree
    places = [place, *(s.function_of(one) or s.tree for one in _callers(s, place))]
    return any(identifier(one.func) == "load_state_dict" for part in places for one in direct_calls(s, part))


@rule("wrong")
def overwrite(s: Script) -> Found:
    """Is a checkpoint written beside the old one? Else a run that dies while it saves cannot be resumed."""
    if not is_distributed(s) or is_managed(s) or any(_replaces(s, one) for one in s.calls):
        return
    loads = [one for one in s.calls if s.call_name(one) == "torch.load"]
    paths = [(one, _path(s, argument(s, one, "f", 0))) for one in loads]
    for call, what, target in saves(s):
        if not any(_state_of(s, value) for _, value in contents(s, what)):
            continue
        path = _path(s, target)
        resumed = [one for one, loaded in paths if loaded == path and not _comes_after(s, call, one)]
        if path and resumed and not _in_memory(s, target):
            yield call, "the file that is resumed is overwritten: save beside it, then os.replace"


def _comes_after(s: Script, saving: ast.Call, loading: ast.Call) -> bool:
    """Whether a file is loaded only once it has been saved, as to test with it: then nothing is resumed."""
    firsts: list[ast.Call] = [saving]
    seconds: list[ast.Call] = [loading]
    for calls in (firsts, seconds):
        function = s.function_of(calls[0])
        calls += callers(s, function) if function else []
    return any(may_follow(s, first, second) for first in firsts for second in seconds)


def _replaces(s: Script, call: ast.Call) -> bool:
    """Whether a file gets another name: os.replace, or the method of a path."""
    if s.call_name(call) in REPLACING:
        return True
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return method == "rename" or (method == "replace" and len(call.args) == 1)


def _path(s: Script, node: ast.expr | None) -> str:
    """A text that is equal for equal paths: what a name was assigned, the names and constants in it."""
    if node is None:
        return ""
    values = [one for one in s.origins(node) if isinstance(one, ast.expr) and not isinstance(one, ast.Name)]
    texts = {ast.unparse(one) for one in values if not isinstance(one, ast.Attribute)}
    fixed = [one for one in sorted(texts) if not any(word in one for word in ("epoch", "step", "None"))]
    if len(fixed) == len(texts) == 1:
        return fixed[0]
    return dotted(node) if isinstance(node, ast.Name | ast.Attribute) and not texts else ""


RULES = (save, saved, prefix, load, overwrite)
