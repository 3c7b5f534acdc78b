"""The rules of a lesson. Each is a function that returns the problems it finds, as sentences."""

from collections.abc import Iterable

import pytest


def tell(problems: Iterable[str], cure: str = "") -> None:
    """Fail if there are ``problems``, and show all of them, a line each."""
    lines = list(problems)
    if cure and lines:
        lines.append(cure)
    if lines:
        pytest.fail("\n".join(["", *lines]), pytrace=False)
