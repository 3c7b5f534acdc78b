"""What `make` calls: fit and run for readers; sync and refresh for those who write lessons."""

import sys
from collections.abc import Callable

from shared.runtime.environment import enter_lab_environment
from shared.runtime.errors import CourseError


def run_tool(main: Callable[[], int]) -> None:
    """Exit with what ``main`` returns; a ``CourseError`` becomes one line and exit code 1.

    Kernels that a tool starts begin in the environment of a lab.
    """
    enter_lab_environment()
    try:
        sys.exit(main())
    except CourseError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing of yours has changed")
