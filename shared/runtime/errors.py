"""Complaints that are shown as one line, without a traceback; what gloo says when another rank is gone.

In a proof, ``assert`` checks what the lesson claims about numbers at hand. A parallel result is compared with
another way to compute it by ``shared.training.parity``, which raises ``ParityError``. ``CourseError`` is for
what the reader has to be told in one line.
"""

import re

# gloo's words in torch 2.15, some of them Linux's. Which of them a rank hears, depends on the moment.
GONE = re.compile(r"onnection (closed|reset|refused)|ocket closed|pair closure|roken pipe")


class CourseError(Exception):
    """Something the reader can act on; its text says what to do."""


class InputError(CourseError):
    """A wrong argument, a missing file, a wrong number of ranks."""


class ParityError(CourseError, AssertionError):
    """Two tensors that a lesson claims to be equal are not."""


def neighbour_is_gone(error: Exception | str) -> bool:
    """Whether gloo says with ``error`` that the connection to another rank is closed."""
    return bool(GONE.search(str(error)))


def waited_in_vain(error: Exception | str) -> bool:
    """Whether gloo's time was up. Who gives up first closes its connections, and others may hear of that."""
    return "Timed out waiting" in str(error) or neighbour_is_gone(error)
