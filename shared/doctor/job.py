"""A job under the doctor's eyes: it is started, asked what its processes do, and ended."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from . import processes
from .inside import FOLDER, QUESTION

ANSWER_S = 5.0  # a process that does not answer within this time holds the interpreter, or is stopped
PLACES_S = 60.0  # and then for the places of its calls
GRACE_S = 5.0  # between SIGTERM and SIGKILL; torchrun needs some of it to end its ranks


class JobError(Exception):
    """The command cannot be started, or a process cannot be looked into. The text is one line."""


class Asked:
    """Processes that answer through a folder: those of a job that a doctor has started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, kind: str) -> dict[int, dict]:
        """{process: what it wrote last}. ``kind``: hello, answer or bye."""
        found = {}
        for path in self.folder.glob(f"{kind}-*.json"):
            with suppress(OSError, ValueError):
                said = json.loads(path.read_text(encoding="utf-8"))
                found[said["pid"]] = said
        return found

    def ask(self, full: bool) -> list[dict]:
        """What the living processes answer. One that is silent or gone is in it by its greeting alone."""
        number = time.monotonic_ns()
        aside = self.folder / "question.part"
        aside.write_text(json.dumps({"number": number, "full": full}), encoding="utf-8")
        aside.replace(self.folder / QUESTION)
        greeted = self.read("hello")
        alive = processes.parents()
        expected = {pid for pid in greeted if pid in alive}
        asked_at = time.monotonic()
        answers: dict[int, dict] = {}
        while True:
            time.sleep(0.05)
            answers = {pid: said for pid, said in self.read("answer").items() if said["number"] == number}
            silent = expected - answers.keys()
            incomplete = [pid for pid, said in answers.items() if full and not said["full"]]
            waited = time.monotonic() - asked_at
            if not (silent and waited < ANSWER_S) and not (incomplete and waited < PLACES_S):
                break
        byes = self.read("bye")
        alive = processes.parents()
        found = []
        for pid, hello in greeted.items():
            said = {**hello, **answers.get(pid, {})}
            said["answered"] = pid in answers
            said["alive"] = pid in alive
            said["stopped"] = processes.is_stopped(pid)
            said["bye"] = byes.get(pid)
            if pid not in answers:
                before = self.read("answer").get(pid, {})
                said = {**before, **said}  # what it last said
            found.append(said)
        return found


class Job(Asked):
    """A command, started so that its Python processes can be asked."""

    def __init__(self, command: list[str]) -> None:
        processes.adopt_orphans()
        super().__init__(Path(tempfile.mkdtemp(prefix="rank-doctor-")))
        shutil.copy(Path(__file__).with_name("inside.py"), self.folder / "sitecustomize.py")
        before = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(part for part in (str(self.folder), before) if part)
        environment = {**os.environ, "PYTHONPATH": path, FOLDER: str(self.folder)}
        try:
            self.process = subprocess.Popen(command, env=environment, preexec_fn=processes.end_with_us)
        except OSError as error:
            shutil.rmtree(self.folder)
            reason = error.strerror or type(error).__name__
            raise JobError(f"{command[0]!r} cannot be started: {reason}") from None

    def exit_code(self) -> int | None:
        """None while it runs; a signal's number counts from 128, as in a shell."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def end(self) -> None:
        """End the command and whatever descends from it, and remove the folder. Once is enough."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        while left := processes.descendants(os.getpid()):
            processes.end(left, GRACE_S)
        shutil.rmtree(self.folder, ignore_errors=True)
