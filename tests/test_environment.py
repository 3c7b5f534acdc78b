"""The environment of a lab: what a kernel or a reader's shell sets changes nothing that commands print."""

import pytest
from nbclient import NotebookClient

from shared.runtime.environment import FIXED, lab_environment
from tests.helpers import HANG_S, ROOT, environment, notebook_of

DISTURBING = {
    "FORCE_COLOR": "1",
    "GREP_COLOR": "1;31",
    "LANG": "de_DE.UTF-8",
    "LC_COLLATE": "de_DE.UTF-8",
    "LANGUAGE": "de",
    "PYTHONWARNINGS": "always",
    "PYTHONOPTIMIZE": "1",
    "PYTHONNODEBUGRANGES": "1",
    "PYTHON_COLORS": "1",
    "TORCH_LOGS": "all",
    "PET_NPROC_PER_NODE": "7",
}
# As lesson 00 does: a traceback, searched for by grep.
COMMANDS = r"""
!(python -c "assert 1 + 1 == 3, 'counted'" 2>&1 || true) | grep -e "^Assertion"
!python -c "import warnings; warnings.warn('old', PendingDeprecationWarning)" 2>&1
!printf 'b\nB\na\n' | sort
!env | grep -o -e "^TORCH_LOGS" -e "^PET_.*" || echo "no more"
"""


def printed(*first: str, **disturbing: str) -> list[str]:
    """What a notebook's commands print, in a kernel that has started with these variables, too."""
    notebook = notebook_of(*first, "from shared.runtime import notebook\nnotebook.setup()", COMMANDS)
    client = NotebookClient(notebook, timeout=HANG_S, kernel_name="python3", allow_errors=True)
    client.execute(cwd=str(ROOT / "notebooks"), env={**environment(), **disturbing})
    lines = []
    for output in notebook.cells[-1].outputs:
        lines += output.get("text", output.get("evalue")).splitlines()
    return lines


@pytest.mark.slow
def test_what_a_shell_sets_changes_no_output():
    calm = printed()
    assert calm == ["AssertionError: counted", "B", "a", "b", "no more"]
    assert printed(**DISTURBING) == calm


@pytest.mark.slow
def test_without_the_function_it_does():
    as_it_is = "from shared.runtime import environment\nenvironment.enter_lab_environment = lambda: None"
    assert printed(as_it_is, **DISTURBING) != printed()


def test_what_says_where_things_lie_is_kept():
    kept = {"PYTHONPATH": "here", "PYTHONDONTWRITEBYTECODE": "1", "TORCH_HOME": "there", "HOME": "/home/me"}
    dropped = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "TORCH_CPP_LOG_LEVEL": "INFO", "RANK": "3"}
    assert lab_environment(kept | dropped) == kept | FIXED
