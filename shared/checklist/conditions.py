"""Conditions: who goes on where a script asks something.

A condition is True, False, a ``Leaf``, or several of them joined by ``All`` or ``Some``. The script is looked
at as it runs on several ranks, so ``world_size > 1`` is True.
"""

from collections.abc import Iterator
from typing import NamedTuple

MOST_LEAVES = 10
APART = ("one", "local one", "some", "own")  # of these leaves ranks have answers of their own


class Leaf(NamedTuple):
    """One question that the script asks.

    kind: "one" (is it this rank?), "local one" (of each machine), "some" (by the rank in another way), "turn"
    (each rank in its turn), "own" (by data, a clock or an error of this rank) or "option" (all ranks agree).
    """

    kind: str
    key: object
    positive: bool = True


class All(NamedTuple):
    parts: tuple
    size: int = 0


class Some(NamedTuple):
    parts: tuple
    size: int = 0


Condition = bool | Leaf | All | Some


def negate(condition: Condition) -> Condition:
    if isinstance(condition, bool):
        return not condition
    if type(condition) is Leaf:
        return Leaf(condition[0], condition[1], not condition[2])
    parts = tuple([negate(part) for part in condition.parts])  # type: ignore[union-attr]
    return (Some if type(condition) is All else All)(parts, condition.size)  # type: ignore[union-attr]


def both(*conditions: Condition) -> Condition:
    return _join(All, conditions, True)


def either(*conditions: Condition) -> Condition:
    return _join(Some, conditions, False)


def _join(kind: type[All] | type[Some], conditions: tuple, neutral: bool) -> Condition:
    """``neutral`` is the answer that does not matter: True among those joined by ``and``."""
    parts: dict[Condition, None] = {}
    size = 0
    for condition in conditions:
        if condition is neutral:
            continue
        if condition is (not neutral):
            return not neutral
        for part in condition.parts if type(condition) is kind else (condition,):
            if part in parts:
                continue
            if type(part) is Leaf:
                if Leaf(part[0], part[1], not part[2]) in parts:
                    return not neutral
                size += 1
            else:
                size += part.size
            parts[part] = None
    if not parts:
        return neutral
    if len(parts) == 1:
        return next(iter(parts))
    if size > MOST_LEAVES:
        return _worst(parts)
    return kind(tuple(parts), size)


def _worst(parts: dict) -> Leaf:
    """One leaf in place of a long condition."""
    kinds = {leaf.kind for part in parts for leaf in leaves(part)}
    kind = next((kind for kind in ("own", "some", "turn") if kind in kinds), "")
    kind = kind or ("some" if kinds & {"one", "local one"} else "option")
    return Leaf(kind, ("long", hash(tuple(parts))))


def leaves(condition: Condition) -> Iterator[Leaf]:
    if isinstance(condition, Leaf):
        yield condition
    elif not isinstance(condition, bool):
        for part in condition.parts:
            yield from leaves(part)


def simplify(condition: Condition, known: dict) -> Condition:
    """The condition, where the answers to some questions are known: {(kind, key): answer}."""
    if isinstance(condition, bool):
        return condition
    if type(condition) is Leaf:
        kind, key, positive = condition
        answer = known.get((kind, key))
        if answer is not None:
            return answer is positive
        if kind == "one" and known.get("one", key) != key:
            return not positive
        return condition
    parts = [simplify(part, known) for part in condition.parts]  # type: ignore[union-attr]
    if all(new is old for new, old in zip(parts, condition.parts, strict=True)):  # type: ignore[union-attr]
        return condition
    return both(*parts) if type(condition) is All else either(*parts)


def answers(condition: Condition) -> dict:
    """What is known where a condition is true."""
    known: dict = {}
    for part in condition.parts if isinstance(condition, All) else (condition,):
        if isinstance(part, Leaf):
            known[part.kind, part.key] = part.positive
            if part.kind == "one" and part.positive:
                known["one"] = part.key
    return known


def apart(condition: Condition) -> list[Leaf]:
    """The questions that ranks answer differently, if any decide."""
    questions = list(leaves(condition))
    if any(leaf.kind == "turn" for leaf in questions):
        return []
    return [leaf for leaf in questions if leaf.kind in APART]


def is_of_error(leaf: Leaf) -> bool:
    """Whether it asks if this rank met an error."""
    return isinstance(leaf.key, tuple) and leaf.key[0] == "except"
