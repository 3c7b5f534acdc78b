"""What a rule is: a question to a script, and how bad it is when the answer is no. Taught in lesson 10."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .script import Script

SEVERITIES = {
    "style": "it works, but repeats itself or is old",
    "slow": "it works, but wastes time or memory",
    "wrong": "no error, and another result: it learns, saves or reports something else, or fails later",
    "hangs": "ranks wait for each other until the timeout",
}
Found = Iterator[tuple[ast.AST, str]]


@dataclass(frozen=True)
class Rule:
    """A function that yields (place, what is wrong there). Its docstring asks, and says what happens else."""

    severity: str
    find: Callable[[Script], Found]

    @property
    def name(self) -> str:
        return self.find.__name__

    @property
    def question(self) -> str:
        return " ".join((self.find.__doc__ or "").split())


def rule(severity: str) -> Callable[[Callable[[Script], Found]], Rule]:
    """Make a rule of a function."""
    assert severity in SEVERITIES
    return lambda find: Rule(severity, find)
