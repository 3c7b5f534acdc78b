"""All rules, and what they find in a script. Taught in lesson 10."""

import ast
from pathlib import Path

from . import rules_data, rules_model, rules_ranks
from .script import Script

RULES = (*rules_ranks.RULES, *rules_model.RULES, *rules_data.RULES)


class ScriptError(Exception):
    """A file that is no Python script; the text says why in one line."""


def findings(source: str) -> list[tuple[list[int], str, str]]:
    """(lines, rule, what is wrong there) in a script's text, the first lines first."""
    script = Script(source)
    found: dict[tuple[str, str], set[int]] = {}
    for rule in RULES:
        for place, text in rule(script):
            found.setdefault((rule.__name__, text), set()).add(getattr(place, "lineno", 1))
    return sorted((sorted(lines), rule, text) for (rule, text), lines in found.items())


def read(path: Path) -> str:
    """The text of a script that can be parsed.

    Raises:
        ScriptError: there is no such file, it is no text, or it is no Python.
    """
    try:
        text = path.read_text(encoding="utf-8")
        ast.parse(text)
    except SyntaxError as error:
        raise ScriptError(f"{path.name}:{error.lineno or 1}: no Python: {error.msg}") from None
    except (OSError, ValueError) as error:
        raise ScriptError(f"{path.name}: {getattr(error, 'strerror', None) or 'no text in UTF-8'}") from None
    return text
