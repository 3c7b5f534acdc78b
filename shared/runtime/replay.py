"""What the ranks of a lab, or of an answer to an exercise, did: a page made by ``rank-replay``."""

import html
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from shared.runtime.errors import CourseError
from shared.runtime.results import ROOT

HEIGHT = 640  # pixels
ENDED = 3  # exit code of rank-replay when it has ended a job that hangs
LABS = ROOT / "labs"


def show(lab: str, ranks: int, *arguments: str, hangs_after: float | None = None) -> None:
    """Run ``labs/{lab}.py`` on so many ranks, and show what each of them did, line by line.

    Args:
        hangs_after: a lab that hangs on purpose is ended when for so many seconds no rank has got on; then
            the page shows who waits.

    Raises:
        CourseError: the lab does not exist, or failed; or one that should hang has ended by itself.
    """
    script = LABS / f"{lab}.py"
    if not script.is_file():
        raise CourseError(f"there is no lab {lab}: run the cell that writes labs/{lab}.py first")
    from IPython.display import display

    page, picture = recorded(script, ranks, arguments, hangs_after)
    display(_Shown("text/html", _framed(page), f"Replay of {lab}.py on {ranks} ranks"))
    display(_Shown("image/svg+xml", picture, f"Picture: the communications of {lab}.py on {ranks} ranks"))


def recorded(
    script: Path, ranks: int, arguments: tuple[str, ...], hangs_after: float | None
) -> tuple[str, str]:
    """The page and the picture, as text."""
    with tempfile.TemporaryDirectory() as name:
        page, picture = Path(name) / "replay.html", Path(name) / "still.svg"
        options = [f"--out={page}", f"--still={picture}", "--no-seconds"]
        options += [] if hangs_after is None else [f"--stuck={hangs_after}"]
        done = _rank_replay(options, ranks, os.path.relpath(script), *arguments)
        expected = 0 if hangs_after is None else ENDED
        if done.returncode != expected or not page.is_file():
            raise CourseError(f"the replay ended with exit code {done.returncode}:\n{done.stdout[-3000:]}")
        return page.read_text(encoding="utf-8"), picture.read_text(encoding="utf-8")


def show_failing_case(check: str, answer: Path, ranks: int) -> int:
    """Run the check of an exercise, and write what its ranks did in the case that fails, beside the answer.

    Only the answer's own lines are in the page, and what it calls. Returns the exit code of the check.
    """
    out = answer.with_suffix(".replay.html")
    with tempfile.TemporaryDirectory() as name:
        page = Path(name) / out.name
        options = [f"--out={page}", f"--only={answer}"]
        done = _rank_replay(options, ranks, check, f"--answer={answer}", stdout=None, stderr=subprocess.PIPE)
        if page.is_file():
            shutil.copy(page, out)
            print(f"The case that fails, line by line on all ranks: open {os.path.relpath(out)} in a browser")
            print("(arrow keys step, c goes to the next communication, 0 to 9 to the next line of that rank)")
        elif done.returncode == 0:
            print("No case fails: there is nothing to replay.")
        else:
            print(f"There is no replay:\n{done.stderr[-3000:]}")
    return done.returncode


def _rank_replay(
    options: list[str],
    ranks: int,
    script: str,
    *arguments: str,
    stdout: int | None = subprocess.PIPE,
    stderr: int | None = subprocess.STDOUT,
) -> subprocess.CompletedProcess:
    job = ["torchrun", "--standalone", f"--nproc-per-node={ranks}", script, *arguments]
    path = os.pathsep.join([str(ROOT / "rank_tools"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "rank_tools.replay", *options, "--", *job],
        env={**os.environ, "PYTHONPATH": path},
        encoding="utf-8",
        errors="replace",
        stdout=stdout,
        stderr=stderr,
    )


def _framed(page: str) -> str:
    source = html.escape(page)
    return f'<iframe srcdoc="{source}" width="100%" height="{HEIGHT}" title="replay of the ranks"></iframe>'


class _Shown:
    """One form of an output, whose plain text says what it is."""

    def __init__(self, kind: str, content: str, text: str) -> None:
        self.kind = kind
        self.content = content
        self.text = text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": self.text, self.kind: self.content}

    def __repr__(self) -> str:
        return self.text
