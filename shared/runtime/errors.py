"""Complaints that are shown as one line, without a traceback."""


class CourseError(Exception):
    """Something the reader can act on; its text says what to do."""


class InputError(CourseError):
    """A wrong argument, a missing file, a wrong number of ranks."""


class ParityError(CourseError, AssertionError):
    """Two tensors that a lesson claims to be equal are not."""
