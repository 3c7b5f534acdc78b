"""A failing command makes its notebook red, wherever it runs; a working one leaves it green."""

import os
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbformat.v4 import new_output

from shared.tools.refresh import KEY
from tests.helpers import HANG_S, ROOT, Done, notebook_of
from tests.kernels import (
    OWN_KERNEL,
    install_kernel,
    kernel_environment,
    run_nbclient,
    run_nbmake,
    run_papermill,
)
from tests.rules.cells import SET_UP

pytestmark = pytest.mark.slow

TORCHRUN = "!torchrun --standalone --nproc-per-node=2"
TOLD = "[rank 1] RuntimeError: rank 1 is the cause"
FAILING = {
    "lab": f"{TORCHRUN} ../tests/scripts/one_rank_ends.py exception",
    "false": "!false",
    "code": "!python -c 'raise SystemExit(3)'",
    "pipe": "!false | cat",
}
ALSO_FAILING = {"captured": "out = !false", "unknown": "!no-such-command", "killed": "!kill -9 $$"}
WORKING = {
    "true": "!true",
    "pipe": "!echo two | cat",
    "told": "!false ; echo exit code: $?",
    "python": "!python -c 'print(2)'",
}
PROGRESS = "for step in range(3):\n    print(f'\\rstep {step}', end='', flush=True)\nprint('\\rdone')"
MESSAGE = "CalledProcessError: the command above failed with exit code {}: {}"
NO_WORDS = "the first error in its output says why"
NOT_FOUND = "the command was not found; is the course installed in the environment of this kernel?"
OLDEST = ROOT / ".venv-oldest-kernel"


def write(checkout: Path, name: str, *code: str, shows: str = "") -> Path:
    notebook = notebook_of(SET_UP, *code)
    if shows:
        notebook.cells[-1].execution_count = 2
        notebook.cells[-1].outputs = [new_output("stream", name="stdout", text=shows)]
    path = checkout / "notebooks" / f"{name}.ipynb"
    nbformat.write(notebook, path)
    return path


@pytest.fixture(scope="module")
def under_nbmake(checkout: Path) -> Done:
    """All notebooks in one run under nbmake: each failing command, and what is compared afterwards."""
    for name, line in FAILING.items():
        write(checkout, f"91_{name}", line)
    write(checkout, "92_same", "print('loss 0.500')", shows="loss 0.501\n")
    write(checkout, "92_bar", PROGRESS, shows="done\n")
    write(checkout, "92_other", "print('loss 0.500')", shows="loss 0.900\n")
    write(checkout, "92_not_run", "print('not run here: ip was not found')", shows="4 machines\n")
    edited = write(checkout, "92_edited", "print('loss 0.500')", shows="loss 0.900\n")
    notebook = nbformat.read(edited, 4)
    notebook.metadata[KEY] = {"inputs": "those of another code"}
    nbformat.write(notebook, edited)
    others = ("92_same", "92_bar", "92_other", "92_not_run", "92_edited")
    names = [*(f"91_{name}" for name in FAILING), *others]
    return run_nbmake(checkout, *(f"notebooks/{name}.ipynb" for name in names))


@pytest.mark.parametrize("name", FAILING)
def test_red_under_nbmake(name: str, under_nbmake: Done):
    assert under_nbmake.returncode == 1
    assert f"FAILED notebooks/91_{name}.ipynb" in under_nbmake.stdout


def test_nbmake_shows_what_the_ranks_said(under_nbmake: Done):
    assert "what the failing cell printed" in under_nbmake.stdout
    assert TOLD in under_nbmake.stdout


def test_nbmake_compares_with_the_committed_outputs(under_nbmake: Done):
    assert "FAILED notebooks/92_other.ipynb" in under_nbmake.stdout
    assert "cell 1 shows\nloss 0.500\n\nbut committed is\nloss 0.900" in under_nbmake.stdout
    assert "FAILED notebooks/92_same.ipynb" not in under_nbmake.stdout
    assert "FAILED notebooks/92_bar.ipynb" not in under_nbmake.stdout
    assert "5 failed, 3 passed, 1 skipped" in under_nbmake.stdout


def test_what_was_not_run_is_skipped_with_its_reason(under_nbmake: Done):
    assert "not run here: ip was not found" in under_nbmake.stdout
    assert "make refresh" not in under_nbmake.stdout


def test_an_edited_lesson_is_run_but_not_compared(under_nbmake: Done):
    assert "92_edited.ipynb was edited: its outputs are not compared" in under_nbmake.stdout


@pytest.mark.usefixtures("under_nbmake")
def test_notebooks_without_a_number_are_no_lessons(checkout: Path):
    write(checkout, "own", "!false")
    collected = run_nbmake(checkout, "notebooks", "--collect-only").stdout
    assert "91_false.ipynb" in collected
    assert "own.ipynb" not in collected


def test_red_and_green_under_papermill(checkout: Path):
    """Each kind of failure is tried in the kernel, below; here one, behind what works."""
    path = write(checkout, "93_red", *WORKING.values(), FAILING["code"])
    assert run_papermill(path, checkout) == MESSAGE.format(3, NO_WORDS)


@pytest.fixture(params=["own", pytest.param("oldest", marks=pytest.mark.slow)])
def kernel(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a kernel: this environment's, then the oldest that the ranges allow."""
    if request.param == "own":
        return "python3"
    if not (OLDEST / ".installed").is_file():
        missing = f"not run with the oldest kernel: `make test-all` installs it into {OLDEST.name}"
        if os.environ.get("RANK_BY_RANK_BROWSER") == "required":  # in CI
            pytest.fail(missing)
        pytest.skip(missing)
    install_kernel(tmp_path, "oldest", OLDEST / "bin" / "python")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    return "oldest"


def test_red_and_green_in_the_kernel(kernel: str, checkout: Path):
    versions = "import IPython, ipykernel; print(IPython.__version__, ipykernel.__version__)"
    failing = {**FAILING, **ALSO_FAILING}
    notebook = notebook_of(SET_UP, versions, *failing.values(), *WORKING.values())
    set_up, version, *errors = run_nbclient(notebook, checkout / "notebooks", checkout, kernel)
    assert (set_up, version) == (None, None)
    if kernel == "oldest":
        lines = (ROOT / ".ci" / "oldest-kernel.txt").read_text(encoding="utf-8").splitlines()
        pins = dict(line.split("==") for line in lines if not line.startswith("#"))
        assert notebook.cells[1].outputs[0].text.split() == [pins["ipython"], pins["ipykernel"]]
    red = dict(zip(failing, errors, strict=False))
    codes = {"code": 3, "killed": -9}
    expected = {name: MESSAGE.format(codes.get(name, 1), NO_WORDS) for name in failing}
    expected["lab"] = MESSAGE.format(1, TOLD)
    assert red == {**expected, "unknown": f"CalledProcessError: {NOT_FOUND}"}
    assert errors[len(failing) :] == [None] * len(WORKING)
    assert TOLD in notebook.cells[2].outputs[0].text


def test_without_set_up_a_failing_command_goes_unnoticed(checkout: Path):
    """The fault that the set-up cures: it shows that these tests can fail."""
    assert run_nbclient(notebook_of("!false"), checkout, checkout) == [None]


@pytest.mark.parametrize(
    ("set_up", "expected"),
    [(SET_UP, "the command above was interrupted"), ("pass", None)],
    ids=["", "not set up"],
)
def test_an_interrupted_command_is_red_though_it_ends_well(set_up: str, expected: str | None):
    """As the training script does: it saves, and leaves with 0. Without the set-up the cell is green."""
    with kernel_environment(ROOT):
        manager, client = start_new_kernel(kernel_name=OWN_KERNEL, cwd=str(ROOT / "notebooks"))
    try:
        client.execute_interactive(set_up, timeout=HANG_S)
        command = "!trap 'exit 0' INT; echo ready; while true; do sleep 0.1; done"

        def interrupt(message: dict) -> None:
            if "ready" in message["content"].get("text", ""):
                manager.interrupt_kernel()

        reply = client.execute_interactive(command, timeout=HANG_S, output_hook=interrupt)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"].get("evalue") == expected
