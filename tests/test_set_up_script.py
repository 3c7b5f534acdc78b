"""`.ci/set_up.py`: each thing that a machine lacks is one line, and an interrupted set-up goes on."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers import ROOT, Done, command

SCRIPT = ROOT / ".ci" / "set_up.py"
RETRYING = (
    "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by 'NewConnectionError'\n"
)
NO_SPACE = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("set_up", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pretended(path: Path, version: str, *, venv: bool = True) -> Path:
    """A program that says of itself that it is a Python of this version."""
    path.write_text(
        f"#!/bin/sh\necho {version.replace('.', ' ')}\nexit {0 if venv else 1}\n", encoding="utf-8"
    )
    path.chmod(0o755)
    return path


BAD = [
    ("3.10.13", True, "is Python 3.10.13, which is too old: install Python 3.11 to 3.14"),
    ("3.15.0", True, "is Python 3.15.0, which is too new for torch's packages"),
    ("3.14.1", True, "is Python 3.14.1, the one version that torchvision leaves out"),
    ("3.13.5", False, "is Python 3.13.5, which has no venv: install Python 3.11 to 3.14 with venv (Debian"),
    ("", True, "does not start"),
]


@pytest.mark.parametrize(("version", "venv", "expected"), BAD)
def test_a_python_that_does_not_fit_is_one_line(
    version: str,
    venv: bool,
    expected: str,
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(script.sys, "executable", str(pretended(tmp_path / "python3", version, venv=venv)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as stopped:
        script.main(tmp_path / ".venv" / ".installed", ["-r", "none"])
    assert expected in str(stopped.value) and "\n" not in str(stopped.value)
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("version", ["3.11.2", "3.12.0", "3.14.0", "3.14.2"])
def test_a_python_that_fits_is_taken(version: str, script: ModuleType, tmp_path: Path):
    assert script.unfit(str(pretended(tmp_path / "python3", version)), "") == ""


def test_the_newest_python_that_fits_is_taken_in_place_of_one_that_does_not(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(script.sys, "executable", str(pretended(tmp_path / "python3", "3.10.13")))
    monkeypatch.setenv("PATH", str(tmp_path))
    pretended(tmp_path / "python3.14", "3.14.1")
    pretended(tmp_path / "python3.13", "3.13.5", venv=False)
    fits = pretended(tmp_path / "python3.12", "3.12.3")
    pretended(tmp_path / "python3.11", "3.11.2")
    assert script.find_python() == str(fits)
    assert f"which is too old; {fits} is taken" in capsys.readouterr().out


@pytest.mark.parametrize("program", ["ls", "true", "echo", "/nonexistent"])
def test_a_program_that_is_no_python_is_one_line(program: str):
    done = command("make", "-B", "setup", f"PYTHON={program}")
    assert done.returncode != 0
    first, *others = done.stdout.splitlines()
    assert first.startswith(f"set-up: {program} is no Python 3 that starts: install Python 3.11 to 3.14")
    assert len(others) == 1  # make's own


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (RETRYING + NO_SPACE, "the disk is full: make room"),
        (
            RETRYING + "ERROR: No matching distribution found for setuptools>=77",
            "the package index does not answer",
        ),
        ("ERROR: No matching distribution found for torch==2.15.0", "has no torch==2.15.0 for this Python"),
        ("words\nERROR: one\nERROR: two\nwords", "it failed: two"),
        ("Killed\n", "it failed: Killed"),
        ("", "it failed: no output"),
    ],
)
def test_what_pip_says_becomes_one_line(output: str, expected: str, script: ModuleType, tmp_path: Path):
    with pytest.raises(SystemExit) as stopped:
        script.explain(output, tmp_path / "set_up.log")
    assert expected in str(stopped.value)
    assert str(tmp_path / "set_up.log") in str(stopped.value) and "\n" not in str(stopped.value)


@pytest.mark.parametrize(
    ("index", "told"),
    [("", "3.3 GB to download, 10 GB of disk"), ("there", "0.5 GB to download, 2.5 GB of disk")],
)
def test_the_download_is_told_and_a_small_disk_is_no_place_for_it(
    index: str, told: str, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    monkeypatch.setattr(script.Path, "exists", lambda path: False)  # no GPU
    monkeypatch.setattr(script.shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(2e9, 1e9, 1e9))
    with pytest.raises(SystemExit, match="1.0 GB are free for"):
        script.announce(tmp_path / ".venv", index)
    printed = capsys.readouterr().out
    assert told in printed
    assert ("TORCH_INDEX=ADDRESS" in printed) == (not index)


def test_a_folder_of_somebody_else_is_left_alone(script: ModuleType, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit, match="was not made by this course and cannot be used: move it away"):
        script.make(tmp_path, tmp_path / "set_up.log", sys.executable)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def small_wheel(folder: Path) -> Path:
    path = folder / "small_thing-1-py3-none-any.whl"
    info = "small_thing-1.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("small_thing.py", "")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: small-thing\nVersion: 1\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


def set_up(mark: Path, *arguments: str | Path) -> Done:
    return command(
        sys.executable, SCRIPT, mark, *arguments, root=None, TORCH_INDEX="", PIP_CONFIG_FILE=os.devnull
    )


@pytest.mark.slow
def test_an_interrupted_set_up_goes_on(tmp_path: Path):
    """Killed in pip, ended by Ctrl-C, no network, its Python gone, a package half-installed."""
    mark = tmp_path / ".venv" / ".installed"
    log = mark.parent / "set_up.log"
    for number, told in (
        (signal.SIGKILL, ""),
        (signal.SIGINT, "set-up: interrupted; the next call goes on\n"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"http://127.0.0.1:{silent.getsockname()[1]}"
            words = [sys.executable, SCRIPT, mark, "--index-url", address, "small-thing"]
            child = subprocess.Popen(words, stderr=subprocess.PIPE, encoding="utf-8", process_group=0)
            silent.settimeout(120)
            silent.accept()  # pip asks: the environment is made
            os.killpg(child.pid, number)
            assert child.communicate(timeout=60)[1] == told
    assert not mark.exists()
    closed = ("--retries", "1", "--timeout", "1", "--index-url", "http://127.0.0.1:9")
    done = set_up(mark, *closed, "small-thing")
    assert done.returncode == 1
    assert done.stdout.startswith("set-up: the package index does not answer: look at the network")
    assert done.stdout.count("\n") == 1 and str(log) in done.stdout
    assert "Retrying" in log.read_text(encoding="utf-8")

    local = ("--no-index", small_wheel(tmp_path))
    own = mark.parent / "bin" / "python"
    for name in ("python", "python3", own.resolve().name):
        (mark.parent / "bin" / name).unlink()
    done = set_up(mark, *local)
    assert done.returncode == 0 and mark.exists(), done.stdout
    (package,) = mark.parent.glob("lib/python*/site-packages/small_thing.py")
    (info,) = package.parent.glob("small_thing-1.dist-info")
    assert (info / "INSTALLER").read_text(encoding="utf-8") == "pip\n"
    package.unlink()
    (info / "INSTALLER").unlink()  # as a kill between two files of a package leaves it
    assert set_up(mark, *local).returncode == 0
    assert package.exists()
