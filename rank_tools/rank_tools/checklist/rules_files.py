"""Rules of checkpoints."""

import ast
import re
from collections.abc import Iterator

from .program import Program, argument, dotted, is_method, last, text_of

Findings = Iterator[tuple[ast.AST, str]]


MOVES = {"replace", "rename", "move", "copy", "copyfile", "copy2"}


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
        own = any(re.search(r"rank|gpu|proc|local|worker|pid|uuid|bytesio|temp|host", word) for word in words)
        if not own and program.everyone(call):
            yield call, "every rank writes this file: save on rank 0"


def load(program: Program) -> Findings:
    """Does each rank load onto its own device? Else all load onto the GPU of the rank that saved."""
    if program.managed or not program.together or "cuda" not in program.attributes:
        return
    saves = [call for call in program.calls if program.name(call) == "torch.save" and call.args]
    saved = set().union(*(program.words(call.args[0], isinstance(call.args[0], ast.Name)) for call in saves))
    if "state_dict" not in saved or "cpu" in saved:
        return  # what is loaded may come from a CPU
    for call in program.calls:
        options = argument(call, "map_location", 1) or any(keyword.arg is None for keyword in call.keywords)
        if program.name(call) != "torch.load" or options:
            continue
        name, scope = program.target(call)
        uses = program.uses(name, scope) if name else []
        around = [(use, parent) for use in (*uses, call) for _, parent in program.above(use)]
        states = [
            use for use, one in around if isinstance(one, ast.Call) and is_method(one, "load_state_dict")
        ]
        resumes = len(states) > 1 and any(is_checkpoint(program, one) for one in saves)
        if (resumes or states and any(same_file(call, one) for one in saves)) and program.everyone(call):
            yield call, "every rank loads onto the GPU of the rank that saved: give map_location"


def same_file(load: ast.Call, save: ast.Call) -> bool:
    """Whether a file is saved under the expression by which it is loaded."""
    read, written = argument(load, "f", 0), argument(save, "f", 1)
    if read is None or written is None:
        return False
    return last(dotted(read)) == last(dotted(written)) != "" or ast.dump(read) == ast.dump(written)


def is_checkpoint(program: Program, call: ast.Call) -> bool:
    """Whether a call saves what a run needs to go on."""
    if program.name(call) != "torch.save" or not call.args:
        return False
    words = program.words(call.args[0], isinstance(call.args[0], ast.Name))
    return "state_dict" in words and any("optim" in word or "epoch" in word for word in words)


def overwrite(program: Program) -> Findings:
    """Is a checkpoint written beside the old one? Else a run that dies while it saves cannot be resumed."""
    if program.managed or not program.together:
        return
    loads = [call for call in program.calls if program.name(call) == "torch.load"]
    read = {fixed_name(program, argument(call, "f", 0), call) for call in loads} - {""}
    for call in program.calls:
        loops = program.loops(call) if is_checkpoint(program, call) else []
        fixed = fixed_name(program, argument(call, "f", 1), call)
        if fixed not in read or not any(program.goes_backward(loop) for loop in loops):
            continue
        others = [other for other in program.calls if program.scope(other) is program.scope(call)]
        if not any(last(dotted(other.func)) in MOVES for other in others):
            yield call, f"{fixed} is overwritten in place: write beside it, then os.replace"


def fixed_name(program: Program, path: ast.expr | None, use: ast.AST) -> str:
    """The name of a file that is the same at each round of the loops around; "" if it may change."""
    if isinstance(path, ast.Name):
        values = program.assigned(path)
        return fixed_name(program, values[0], use) if len(values) == 1 and values[0] is not path else ""
    parts: list[ast.expr] = [path] if path is not None else []
    if isinstance(path, ast.Call) and last(dotted(path.func)) == "join":
        parts = path.args
    while isinstance(parts and parts[0], ast.BinOp):  # folder / name, or folder + "/" + name
        parts = [parts[0].left, parts[0].right, *parts[1:]]  # type: ignore[attr-defined]
    loops = program.loops(use)
    for part in parts[:-1]:
        values = program.assigned(part)
        inside = any(value is None or set(loops) & set(program.loops(value)) for value in values)
        if inside or not (dotted(part) or text_of(part)):
            return ""
    return text_of(parts[-1]).lstrip("/") if parts else ""
