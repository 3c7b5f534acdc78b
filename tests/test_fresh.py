"""``tests.fresh`` says in one line what it cannot do, and types what the README says."""

import os

import pytest

from tests.fresh.__main__ import main, readme_commands
from tests.helpers import ROOT

ANSWERS = {
    ("potato",): "potato",
    ("sid", "--solved", "7"): "--solved",
    ("sid", "--wrong"): "--wrong needs --solved",
}


@pytest.mark.parametrize("arguments", ANSWERS)
def test_what_it_cannot_do_is_told(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    assert ANSWERS[arguments] in capsys.readouterr().err.splitlines()[-1]


def test_it_needs_root(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    with pytest.raises(SystemExit, match="a Debian is made as root"):
        main(["trixie"])


def test_it_types_what_the_readme_says():
    commands = readme_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert commands[1:] == ["cd rank-by-rank", "make lab", "make fit", "make test"]
