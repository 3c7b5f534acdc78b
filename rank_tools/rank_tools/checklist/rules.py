"""All rules. Each is a function that yields (node, what is wrong there); its docstring asks the question."""

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from . import rules_data, rules_files, rules_model, rules_sharded
from .program import Program


class Rule(NamedTuple):
    code: str
    find: Callable[[Program], Iterator[tuple[ast.AST, str]]]

    @property
    def name(self) -> str:
        return self.find.__name__

    def answers(self, word: str) -> bool:
        """Whether a word is its name or the beginning of its code."""
        return word == self.name or self.code.startswith(word)


RULES = [
    Rule("RC202", rules_data.share),
    Rule("RC204", rules_data.epoch),
    Rule("RC208", rules_data.download),
    Rule("RC304", rules_model.bypass),
    Rule("RC306", rules_model.scaler),
    Rule("RC309", rules_model.device),
    Rule("RC310", rules_model.number),
    Rule("RC314", rules_sharded.init),
    Rule("RC315", rules_sharded.forwards),
    Rule("RC401", rules_files.save),
    Rule("RC404", rules_files.load),
    Rule("RC407", rules_files.overwrite),
    Rule("RC408", rules_sharded.shard),
]
