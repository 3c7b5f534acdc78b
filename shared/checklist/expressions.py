"""What expressions stand for, and who goes on at a condition."""

import ast
import builtins
from collections.abc import Callable
from typing import Any

from .conditions import Condition, Leaf, apart, both, either, leaves, negate
from .names import role_of_name, who_of_name
from .state import Call, State
from .values import (
    COUNTED,
    DIFFERS,
    DIVIDED,
    EVEN,
    NOTHING,
    OWN,
    RANK,
    ROUND,
    SAVED,
    SHAPE,
    UNEVEN,
    UNKNOWN,
    Choice,
    Class,
    Const,
    Function,
    Items,
    Lib,
    Method,
    Module,
    Pairs,
    Role,
    Thing,
    Value,
    each,
    inside,
    is_none,
    is_plain,
    plain,
    role,
)

BUILTINS = set(dir(builtins))
SIGNS = {"Lt": "Gt", "Gt": "Lt", "LtE": "GtE", "GtE": "LtE"}
LONGEST_TEXT = 10_000
MOST_ITEMS = 8  # of a list are looked at one by one
HOLDERS = (Items, Pairs, Choice)


class Expressions(State):
    """Looks at expressions."""

    def value(self, node: ast.AST | None) -> Value:
        """What an expression stands for."""
        if node is None:
            return Const(None)
        self.steps += 1
        look = getattr(self, f"value_{type(node).__name__}", None)
        return look(node) if look else self.value_of_parts(node)

    def value_of_parts(self, node: ast.AST) -> Value:
        return self.mixed(
            [self.value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        )

    def mixed(self, parts: list[Value], key: object = None) -> Value:
        """Something computed from these."""
        src: frozenset = NOTHING
        vary = 0
        for part in parts:
            vary |= part.vary
            for value in inside(part) if isinstance(part, HOLDERS) else (part,):
                vary |= value.vary
                if value.src:
                    src = src | value.src
        return Value(vary=vary, src=src, key=key)

    # --- names and literals ---

    def value_Constant(self, node: ast.Constant) -> Value:
        return Const(node.value)

    def value_Name(self, node: ast.Name) -> Value:
        return self.settle(self.look_up(node.id))

    def look_up(self, name: str) -> Value:
        frame = self.frame
        if name in frame.shared:
            return frame.shared[name].get(name) or Value(name=name)
        scope = frame
        while scope is not None:
            if name in scope.locals and (scope.owner is None or scope is frame):
                return scope.locals[name]
            if scope.outer is None:
                break
            scope = scope.outer
        if name == "__name__":
            return Const("__main__" if scope.source is self.main else scope.source.name)
        if name in BUILTINS:
            return Lib(f"builtins.{name}")
        value = self.hinted(name)
        scope.locals[name] = value  # the same one when it is asked for again
        return value

    def hinted(self, name: str) -> Value:
        """Something unknown, by its name: a rank, or whether this is the main process."""
        known = role_of_name(name)
        if not known:
            return Value(name=name, test=who_of_name(name))
        hint = Role(known)
        hint.mark(hinted=name not in ENVIRONMENT)
        return hint

    def value_JoinedStr(self, node: ast.JoinedStr) -> Value:
        parts = [
            self.value(part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values
        ]
        return self.text_of(parts)

    def text_of(self, parts: list[Value]) -> Value:
        """A text put together from parts: equal for equal parts."""
        data = [plain(part) for part in parts]
        if all(isinstance(piece, str | int) for piece in data):
            return Const("".join(map(str, data)))
        text = self.mixed(parts, ("text", *(part.key for part in parts)))
        text.name = "".join(str(piece) if isinstance(piece, str) else "*" for piece in data)
        if data and isinstance(data[0], str) and data[0].startswith("cuda"):
            text.mark(index=parts[-1])
        return text

    def value_Tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        items: list[Value] = []
        more = False
        for element in node.elts:
            if isinstance(element, ast.Starred):
                inner = self.value(element.value)
                if isinstance(inner, Items):
                    items += inner.items
                    more = more or inner.more
                else:
                    items.append(self.item_of(inner, element))
                    more = True
            else:
                items.append(self.value(element))
        return Items(items, more)

    value_List = value_Tuple
    value_Set = value_Tuple

    def value_Dict(self, node: ast.Dict) -> Value:
        pairs: dict[object, Value] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            inner = self.value(value)
            if key is None:
                pairs.update(inner.items if isinstance(inner, Pairs) else {...: inner})
                continue
            name = self.value(key)
            pairs[name.data if isinstance(name, Const) and is_plain(name.data) else ...] = inner
        return Pairs(pairs)

    def value_Lambda(self, node: ast.Lambda) -> Value:
        return Function(node, self.frame, self.frame.source)

    def value_NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.assign(node.target, value)
        return value

    def value_Starred(self, node: ast.Starred) -> Value:
        return self.value(node.value)

    def value_Await(self, node: ast.Await) -> Value:
        return self.value(node.value)

    def value_Yield(self, node: ast.Yield) -> Value:
        value = self.value(node.value)
        self.frame.yielded.append(value)
        if self.frame.then is not None:
            self.frame.then(value)
        return Value()

    def value_YieldFrom(self, node: ast.YieldFrom) -> Value:
        value = self.value(node.value)
        self.frame.yielded.append(self.item_of(value, node))
        return Value()

    def value_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Value:
        first = node.generators[0]
        over = self.value(first.iter)
        if (
            isinstance(over, Items)
            and not over.more
            and len(node.generators) == 1
            and not first.ifs
            and len(over.items) <= MOST_ITEMS
        ):
            items = []
            for item in over.items:
                self.assign(first.target, item)
                items.append(self.value(node.elt))
            return Items(items)
        return Items([self.comprehended(node, over, lambda: self.value(node.elt))], True, over.vary & UNEVEN)

    value_GeneratorExp = value_ListComp
    value_SetComp = value_ListComp

    def value_DictComp(self, node: ast.DictComp) -> Value:
        over = self.value(node.generators[0].iter)
        return Pairs({...: self.comprehended(node, over, lambda: self.value(node.value))})

    def comprehended(self, node: Any, over: Value, look: Callable[[], Value]) -> Value:
        """What stands in a list that is made in a loop."""
        undo = []
        for place, clause in enumerate(node.generators):
            over = over if place == 0 else self.value(clause.iter)
            undo.append(self.push(self.rounds(over, node), node, "loop"))
            self.assign(clause.target, self.item_of(over, node))
            for test in clause.ifs:
                undo.append(self.push(self.now(self.truth(self.value(test))), node, "if"))
        element = look()
        for clause in reversed(undo):
            self.pop(clause)
        return element

    # --- choices ---

    def value_IfExp(self, node: ast.IfExp) -> Value:
        condition = self.now(self.truth(self.value(node.test)))
        choices: list[tuple[Condition, Value]] = []

        def look(way: Condition, part: ast.expr) -> Callable[[], None]:
            return lambda: choices.append((way, self.value(part)))

        self.branches(condition, node, look(condition, node.body), look(negate(condition), node.orelse))
        result = self.choice(choices)
        if type(result) is Value and any(leaf.kind != "own" for leaf in apart(condition)):
            result.vary |= RANK
        return result

    def value_BoolOp(self, node: ast.BoolOp) -> Value:
        goes_on = isinstance(node.op, ast.And)
        choices: list[tuple[Condition, Value]] = []
        tests: list[Condition] = []
        undo = []
        way: Condition = True
        for operand in node.values:
            value = self.value(operand)
            test = self.now(self.truth(value))
            tests.append(test)
            ends = negate(test) if goes_on else test
            last = operand is node.values[-1]
            choices.append((way if last else both(way, ends), value))
            if last or ends is True:
                break
            way = both(way, negate(ends))
            undo.append(self.push(negate(ends), node, "if"))
        for done in reversed(undo):
            self.pop(done)
        result = self.choice(choices)
        test = both(*tests) if goes_on else either(*tests)
        if isinstance(result, Const | Thing | Role | Function | Lib | Class | Items | Pairs):
            return result
        if isinstance(result, Choice) or result.test is not None or len(choices) > 1:
            made = (
                Choice(result.choices, result.vary)
                if isinstance(result, Choice)
                else self.mixed([result], result.key)
            )
            made.test, made.name = test, result.name
            return made
        return result

    def value_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            test = negate(self.now(self.truth(value)))
            return Const(test) if isinstance(test, bool) else self.tested(test, [value])
        if isinstance(node.op, ast.USub) and isinstance(value, Const) and isinstance(value.data, int | float):
            return Const(-value.data)
        return self.mixed([value], ("unary", type(node.op).__name__, value.key))

    def tested(self, test: Condition, parts: list[Value]) -> Value:
        result = self.mixed(parts)
        result.test = test
        return result

    # --- truth ---

    def truth(self, value: Value) -> Condition:
        """Who finds that it is true."""
        if value.test is not None:
            return value.test
        if isinstance(value, Choice):
            return either(*(both(condition, self.truth(candidate)) for condition, candidate in value.choices))
        if isinstance(value, Const):
            return bool(value.data)
        if isinstance(value, Role):
            return negate(self.first(value)) if value.vary else True
        if isinstance(value, Lib | Function | Class | Module | Method):
            return True
        if isinstance(value, Thing) and value.kind not in ("subset", "dataset", "instance", "state"):
            return True
        if isinstance(value, Items | Pairs):
            known = not getattr(value, "more", True) and not value.vary & UNEVEN
            return bool(value.items) if known else Leaf("own" if value.vary & UNEVEN else "option", value.key)
        if value.vary & RANK and not value.vary & OWN and not value.note("number"):
            return Leaf("option", value.key)  # a text or an object of this rank, which all ranks have
        return self.asks(value, empty=True)

    def asks(self, value: Value, empty: bool = False) -> Leaf:
        """A question of which it is only known who answers it alike."""
        if value.vary & UNKNOWN:
            return Leaf("option", value.key)
        if value.vary & OWN or (empty and value.vary & SHAPE):
            return Leaf("own", value.key)
        return Leaf("some" if value.vary & RANK else "option", value.key)

    def first(self, value: Role) -> Leaf:
        """Whether it is rank 0."""
        if value.name == "remainder":
            return Leaf("local one", "remainder")
        return Leaf("local one" if value.name in ("local rank", "group rank") else "one", 0)

    # --- comparisons ---

    def value_Compare(self, node: ast.Compare) -> Value:
        left = self.value(node.left)
        tests: list[Condition] = []
        parts = [left]
        for sign, other in zip(node.ops, node.comparators, strict=True):
            right = self.value(other)
            self.use(left, node)
            tests.append(self.compared(left, type(sign).__name__, right))
            parts.append(right)
            left = right
        test = self.now(both(*tests))
        if isinstance(test, bool):
            return Const(test)
        result = self.tested(test, parts)
        if not any(leaf.kind == "own" for leaf in leaves(test)):
            result.vary &= ~OWN
        return result

    def compared(self, left: Value, sign: str, right: Value) -> Condition:
        if "Not" in sign:
            return negate(self.compared(left, sign.replace("Not", ""), right))
        few = isinstance(left, Choice) and (len(left.choices) <= 3 or isinstance(right, Const))
        if few and self.may_be_told(left) and not left.vary & OWN:
            return either(*(both(way, self.compared(value, sign, right)) for way, value in ways_of(left)))
        if isinstance(right, Choice) and role(left) and self.may_be_told(right):
            return either(*(both(way, self.compared(left, sign, value)) for way, value in ways_of(right)))
        return self.compared_two(left, sign, right)

    def compared_two(self, left: Value, sign: str, right: Value) -> Condition:
        if sign in ("Is", "Eq") and is_none(right) and isinstance(right, Const):
            return self.is_nothing(left)
        if sign == "In":
            return self.is_in(left, right)
        if isinstance(left, Const) and isinstance(right, Const):
            return self.compared_constants(left.data, sign, right.data)
        if role(right) and not role(left):
            left, sign, right = right, SIGNS.get(sign, sign), left
        if role(left):
            return self.compared_role(left, sign, right)
        if left.key == right.key and sign in ("Eq", "Is", "LtE", "GtE"):
            return True
        if left.note("last") == right.key and sign in ("Eq", "Lt", "GtE"):
            return Leaf("option", ("last round", right.key), sign != "Lt")
        return self.compared_others(left, sign, right)

    def may_be_told(self, value: Value) -> bool:
        return all(
            isinstance(candidate, Const | Role | Thing | Lib | Function | Class) for candidate in each(value)
        )

    def compared_others(self, left: Value, sign: str, right: Value) -> Condition:
        result = self.mixed([left, right], ("compare", left.key, sign, right.key))
        if sign in ("Eq", "Is") and isinstance(right, Const) and isinstance(right.data, bool):
            return self.truth(left) if right.data else negate(self.truth(left))
        for side in (left, right):
            if side.vary & ROUND and side.name == "world range" and result.vary & RANK:
                return Leaf("turn", result.key)
        empty = any(plain(side) == 0 and type(plain(side)) is int for side in (left, right))
        if isinstance(right, Const) and isinstance(right.data, str):
            result.vary &= ~OWN  # what kind a batch is of
            if sign == "Eq" and left.name and not left.vary & (DIFFERS | ROUND):
                return Leaf("option", ("is", left.name, right.data))  # wherever that option is asked
        return self.asks(result, empty)

    def compared_constants(self, left: Any, sign: str, right: Any) -> Condition:
        try:
            return {
                "Eq": lambda: left == right, "Is": lambda: left is right or left == right,
                "Lt": lambda: left < right, "Gt": lambda: left > right,
                "LtE": lambda: left <= right, "GtE": lambda: left >= right,
            }[sign]()  # fmt: skip
        except TypeError:
            return Leaf("option", ("compare", repr(left), sign, repr(right)))

    def is_nothing(self, value: Value) -> Condition:
        """Who finds that it is None."""
        if isinstance(value, Const):
            return value.data is None
        if isinstance(value, Choice):
            return either(
                *(both(condition, self.is_nothing(candidate)) for condition, candidate in value.choices)
            )
        if isinstance(value, Role | Lib | Function | Class | Module | Method | Thing | Items | Pairs):
            return False
        if value.vary & OWN and not value.vary & UNKNOWN and value.note("batch"):
            return Leaf("own", ("none", value.key))
        return Leaf("option", ("none", value.key))

    def is_in(self, left: Value, right: Value) -> Condition:
        if isinstance(right, Lib) and right.name == "os.environ":
            return True if role_of_environment(plain(left)) else Leaf("option", ("environ", left.key))
        if isinstance(right, Items) and not right.more:
            numbers = [plain(item) for item in right.items]
            if role(left) and all(type(number) is int for number in numbers):
                kept = [number for number in numbers if number >= 0]
                if len(kept) == 1:
                    return self.compared_role(left, "Eq", Const(kept[0]))
                return Leaf("some", ("in", left.key, tuple(kept))) if kept and left.vary & RANK else False
            if isinstance(left, Const) and all(isinstance(item, Const) for item in right.items):
                return left.data in numbers
        result = self.mixed([left, right], ("in", left.key, right.key))
        if role(left) in ("rank", "local rank", "index", "node"):
            return Leaf("some", result.key)
        if isinstance(right, Pairs):
            result.vary = left.vary & (OWN | UNKNOWN) if not isinstance(left, Items) else 0
        if not isinstance(left, Const):
            return self.asks(result)
        return Leaf("option", result.key)

    def compared_role(self, left: Value, sign: str, right: Value) -> Condition:
        """Who is meant by a rank, or a number of ranks, that is compared."""
        name = role(left)
        number = plain(right)
        key = (name, right.key)
        if type(number) not in (int, float):
            return self.compared_with_unknown(name, sign, right, key)
        if name in ("world", "local world"):
            least = {"Gt": number + 1, "GtE": number, "Lt": number, "LtE": number + 1, "Eq": number + 1}.get(
                sign, 3
            )
            return sign in ("Gt", "GtE") if least <= 2 else Leaf("option", (sign, *key))
        if sign == "Eq" and number < 0:
            return False
        kind = "local one" if name in ("local rank", "group rank", "remainder") else "one"
        kind = "some" if name == "node" else kind
        if sign == "Eq":
            return Leaf(kind, "remainder" if name == "remainder" else number if kind != "some" else key)
        below = {"Lt": number, "LtE": number + 1, "GtE": number, "Gt": number + 1}.get(sign)
        if below is None:
            return Leaf("some", key)
        if below <= 0:
            return sign in ("GtE", "Gt")
        if below == 1:
            return Leaf(kind, 0 if kind != "some" else key, sign in ("Lt", "LtE"))
        return Leaf("some", ("below", name, below), sign in ("Lt", "LtE"))

    def compared_with_unknown(self, name: str, sign: str, right: Value, key: object) -> Condition:
        if name in ("world", "local world"):
            return Leaf("option", (sign, key))
        if role(right) == name:
            return sign in ("Eq", "LtE", "GtE", "Is")
        if sign == "Eq" and right.vary & ROUND:
            return Leaf("turn", key)
        if sign == "Eq" and name != "node" and not right.vary & DIFFERS:
            return Leaf("local one" if name in ("local rank", "group rank") else "one", right.key)
        return Leaf("some", (sign, key))

    # --- arithmetic ---

    def value_BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        self.use(left, node)
        self.use(right, node)
        return self.computed(left, type(node.op).__name__, right)

    def computed(self, left: Value, sign: str, right: Value) -> Value:
        if isinstance(left, Const) and isinstance(right, Const):
            result = computed_constants(left.data, sign, right.data)
            if result is not None:
                return Const(result)
        if sign == "Div" and (left.note("path") or isinstance(left, Lib) or isinstance(plain(right), str)):
            return self.joined_path([left, right])
        if sign == "Add" and isinstance(left, Items) and isinstance(right, Items):
            return Items([*left.items, *right.items], left.more or right.more)
        if sign in ("Add", "Mod") and (isinstance(plain(left), str) or isinstance(plain(right), str)):
            return self.text_of([left, right])
        if sign == "Mult" and isinstance(left, Items) and len(left.items) < 9:
            return Items(left.items, True)
        number = computed_role(left, sign, right)
        if number:
            return Role(number)
        result = self.mixed([left, right], ("computed", hash((left.key, sign, right.key))))
        self.note_kind_of_number(result, left, sign, right)
        if sign == "Mult":
            result.mark(factors=(left.key, right.key))
        if sign in ("Mod", "FloorDiv", "Sub", "BitAnd"):
            result.mark(number=True)
        return result

    def note_kind_of_number(self, result: Value, left: Value, sign: str, right: Value) -> None:
        if sign in ("FloorDiv", "Mod") and role(right) == "world":
            result.vary |= EVEN
            result.vary &= ~UNEVEN
        if sign == "Div" and left.vary & OWN and right.vary & (COUNTED | UNEVEN) and not right.vary & UNKNOWN:
            result.vary |= DIVIDED
        if sign == "Sub" and right.vary & SAVED:
            result.mark(rest=True)
            result.vary &= ~SAVED
        if sign == "BitAnd" and (left.test is not None or right.test is not None):
            result.test = both(self.truth(left), self.truth(right))

    def joined_path(self, parts: list[Value]) -> Value:
        path = self.text_of([part for piece in parts for part in (piece, Const("/"))][:-1])
        if isinstance(path, Const):
            path = Const(path.data)
        path.mark(path=True)
        return path

    # --- parts of a value ---

    def value_Attribute(self, node: ast.Attribute) -> Value:
        return self.settle(self.attribute(self.value(node.value), node.attr))

    def value_Subscript(self, node: ast.Subscript) -> Value:
        of = self.value(node.value)
        if isinstance(node.slice, ast.Slice):
            return self.sliced(of, node.slice)
        return self.settle(self.item(of, self.value(node.slice)))

    def sliced(self, of: Value, node: ast.Slice) -> Value:
        lower, upper, step = self.value(node.lower), self.value(node.upper), self.value(node.step)
        if (
            isinstance(of, Items)
            and not of.more
            and all(isinstance(bound, Const) for bound in (lower, upper, step))
        ):
            return Items(of.items[slice(plain(lower), plain(upper), plain(step))])
        piece = self.mixed([of, lower, upper, step], ("slice", of.key, lower.key, upper.key, step.key))
        piece.name = of.name
        if lower.vary & RANK and role(step) == "world":
            even = (of.vary | upper.vary) & EVEN
            piece.vary = (piece.vary & ~EVEN) | (0 if even else UNEVEN)
        elif not is_none(upper) and upper.vary & EVEN and not lower.vary & RANK:
            piece.vary |= EVEN
        if lower.vary & RANK and of.vary & OWN and of.note("drawn"):
            self.see("random shard", Call(node, [of]), of)
        shard = (
            Thing("subset", node, inner=of, vary=piece.vary, src=piece.src) if lower.vary & RANK else piece
        )
        shard.key = piece.key
        return shard

    def item(self, of: Value, index: Value) -> Value:
        """``of[index]``."""
        key = plain(index)
        if isinstance(of, Choice):
            return self.choice([(condition, self.item(value, index)) for condition, value in of.choices])
        if isinstance(of, Lib):
            return self.of_environment(key) if of.name == "os.environ" else of
        if isinstance(of, Items):
            if isinstance(key, int) and -len(of.items) <= key < len(of.items):
                return of.items[key]
            return self.mixed([*of.items[:8], index])
        if isinstance(of, Pairs):
            return self.item_of_pairs(of, index)
        if isinstance(of, Thing) and of.kind in ("dataset", "stream") and isinstance(key, str):
            return of  # one of its splits
        if isinstance(of, Thing) and of.kind == "mesh":
            return Thing("mesh", of.node, Call(of.node or ast.Pass(), []))
        if isinstance(of, Thing) and of.made is not None:
            got = self.own_method(of, "__getitem__", Call(of.node or ast.Pass(), [index]))
            if got is not None:
                return got
        return self.part(of, f"[{key}]" if isinstance(index, Const) else "[]", index)

    def item_of_pairs(self, of: Pairs, index: Value) -> Value:
        key = plain(index)
        if isinstance(index, Const) and key in of.items:
            return of.items[key]
        rest = of.items.get(...)
        if type(rest) is Value and isinstance(index, Const):
            return self.part(rest, f"[{key}]", index)
        if rest is not None or not isinstance(index, Const):
            return rest or self.mixed([*of.items.values(), index])
        value = of.items[key] = self.hinted(str(key))
        return value

    def part(self, of: Value, name: str, index: Value | None = None) -> Value:
        """Something of a value that is not known itself; the same whenever it is asked for."""
        known_parts = of.own()
        if name in known_parts and name != "[]":
            return known_parts[name]
        before = of.note("before")  # how it varied before other parts of it were assigned
        vary = of.vary if before is None or name == "[]" else before | of.vary & UNKNOWN
        vary |= index.vary & (RANK | OWN | ROUND) if index is not None else 0
        hint = name.strip("[]")
        known = self.hinted(hint) if not vary & DIFFERS else Value(name=hint)
        if isinstance(known, Role):
            known_parts[name] = known
            return known
        part = Value(vary=vary, src=of.src, name=known.name or of.name, test=known.test)
        part.mark(of=of)
        known_parts[name] = part
        return part

    def of_environment(self, name: object) -> Value:
        known = role_of_environment(name)
        return Role(known) if known else Value(name=str(name).lower(), key=("environ", name))


def ways_of(value: Value) -> list[tuple[Condition, Value]]:
    return value.choices if isinstance(value, Choice) else [(True, value)]


def computed_constants(left: Any, sign: str, right: Any) -> Any:
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    try:
        if sign == "Add" and (numbers or (isinstance(left, str) and isinstance(right, str))):
            result = left + right
            return result if not isinstance(result, str) or len(result) < LONGEST_TEXT else None
        if not numbers:
            return None
        if sign == "Sub":
            return left - right
        if sign == "Mult" and abs(left) < 1e12 and abs(right) < 1e12:
            return left * right
        if sign in ("Div", "FloorDiv", "Mod"):
            return {"Div": left / right, "FloorDiv": left // right, "Mod": left % right}[sign]
    except (ArithmeticError, ValueError):
        pass
    return None


def computed_role(left: Value, sign: str, right: Value) -> str:
    """``node * gpus + local_rank`` is a rank, ``rank % gpus`` is a local rank."""
    first, second = role(left), role(right)
    if sign == "Add":
        for name, other in ((first, right), (second, left)):
            if name in ("local rank", "index") and (other.note("factors") or other.vary & RANK):
                return "rank"
    if (
        sign == "Mod"
        and first in ("rank", "index")
        and (
            second == "local world"
            or any(word in right.name.lower() for word in ("gpu", "device", "nproc", "local"))
        )
    ):
        return "remainder"
    if sign == "Mult" and "world" in (first, second) and (first == "local world" or second == "local world"):
        return "world"
    return ""


def role_of_environment(name: object) -> str:
    return ENVIRONMENT.get(name, "") if isinstance(name, str) else ""


ENVIRONMENT = {
    name: role
    for role, names in {
        "rank": "RANK SLURM_PROCID OMPI_COMM_WORLD_RANK PMI_RANK MV2_COMM_WORLD_RANK PALS_RANKID "
        "FLUX_TASK_RANK",
        "local rank": "LOCAL_RANK SLURM_LOCALID OMPI_COMM_WORLD_LOCAL_RANK PMI_LOCAL_RANK MPI_LOCALRANKID "
        "MV2_COMM_WORLD_LOCAL_RANK PALS_LOCAL_RANKID FLUX_TASK_LOCAL_ID",
        "world": "WORLD_SIZE SLURM_NTASKS SLURM_NPROCS OMPI_COMM_WORLD_SIZE PMI_SIZE MV2_COMM_WORLD_SIZE",
        "local world": "LOCAL_WORLD_SIZE SLURM_NTASKS_PER_NODE OMPI_COMM_WORLD_LOCAL_SIZE "
        "MV2_COMM_WORLD_LOCAL_SIZE",
        "node": "GROUP_RANK NODE_RANK SLURM_NODEID",
    }.items()
    for name in names.split()
}
