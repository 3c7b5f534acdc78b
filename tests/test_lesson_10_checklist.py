"""The checklist of lesson 10: each rule is red for its fault alone, and green without it."""

import sys
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import pytest

from shared.checklist.__main__ import main
from shared.checklist.findings import RULES, examine, findings
from shared.checklist.rule import SEVERITIES
from tests.helpers import ROOT, SCRIPTS, command, python

TEMPLATE = ROOT / "labs" / "lab_10_train.py"
ALONE = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('checklist', run_name='__main__')"
)
WELL = (SCRIPTS / "trains_well.py").read_text(encoding="utf-8")


class Fault(NamedTuple):
    """A change of ``trains_well.py``: the rule that finds it, what it says, the line that it points at."""

    rule: str
    told: str
    at: str
    old: str
    new: str


def read_faults() -> list[Fault]:
    """The blocks of ``trains_well.faults``: ``rule: told``, ``at: line``, lines to remove and to add."""
    faults = []
    for block in (SCRIPTS / "trains_well.faults").read_text(encoding="utf-8").strip().split("\n\n"):
        (head, at), changes = block.splitlines()[:2], block.splitlines()[2:]
        old, new = (["", *(line[1:] for line in changes if line[0] == sign), ""] for sign in "-+")
        rule, _, told = head.partition(": ")
        faults.append(Fault(rule, told, at.removeprefix("at: "), "\n".join(old), "\n".join(new)))
    return faults


FAULTS = read_faults()


def test_a_good_script_has_no_finding():
    assert findings(WELL) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.rule}-{fault.told}")
def test_a_planted_fault_is_found_and_nothing_else(fault: Fault):
    assert WELL.count(fault.old) == 1
    source = WELL.replace(fault.old, fault.new)
    found = findings(source)
    assert [(rule, fault.told in text) for _, rule, text in found] == [(fault.rule, True)]
    assert source.splitlines()[found[0][0][0] - 1].strip() == fault.at


def test_each_rule_asks_and_has_a_planted_fault():
    assert {rule.name for rule in RULES} == {fault.rule for fault in FAULTS}
    assert len(FAULTS) > 60
    for rule in RULES:
        question, _, otherwise = rule.question.partition("? Else ")
        assert question and otherwise.endswith(".")
        assert rule.severity in SEVERITIES


@pytest.mark.slow
def test_no_python_file_of_this_course_is_too_much():
    paths = [path for folder in ("shared", "labs", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 100
    for path in paths:
        assert all(lines[0] >= 1 for lines, _, _ in findings(path.read_text(encoding="utf-8"))), path


def check(*arguments: str | Path) -> tuple[int, list[str]]:
    done = python("-m", "shared.checklist", *arguments)
    return done.returncode, done.stdout.splitlines()


def test_the_template_is_clean():
    assert check(TEMPLATE) == (0, [f"lab_10_train.py: {len(RULES)} questions, 0 findings"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("loss = F.cross_entropy(self.ddp(x), y,", "loss = F.cross_entropy(self.ddp.module(x), y,", "bypass"),
        ("            self.scaler.unscale_(self.optimizer)\n", "", "scaler"),
        ("        self.scaler.update()\n", "", "scaler"),
        ("    model.eval()\n", "", "mode"),
        ("    dist.all_reduce(counts)\n", "", "reduce"),
        (
            "        loss_sum = torch.zeros((), device=ranks.device)\n        size",
            "        if ranks.rank == 0:\n            dist.barrier()\n"
            "        loss_sum = torch.zeros((), device=ranks.device)\n        size",
            "meet",
        ),
        (
            "            log.note(trainer.train_step(images, labels, steps))\n",
            "            log.note(trainer.train_step(images, labels, steps))\n"
            "            if ranks.rank == 0:\n                break\n",
            "skip meet",
        ),
    ],
)
def test_a_fault_in_the_template_is_found(old: str, new: str, expected: str):
    template = TEMPLATE.read_text(encoding="utf-8")
    assert template.count(old) == 1
    assert [rule for _, rule, _ in findings(template.replace(old, new))] == expected.split()


def test_a_script_is_read_and_not_run(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "open('written', 'w')\nimport no_such_module\nimport torch.distributed as dist\n"
        "dist.init_process_group()\nprint('running')\n",
        encoding="utf-8",
    )
    code, lines = check(script)
    assert code == 1
    assert lines == [
        "script.py:4: style: leave: there is no destroy_process_group for it",
        "script.py:5: style: talk: every rank speaks: let rank 0 do it, or say which rank it is",
        f"script.py: {len(RULES)} questions, 2 findings",
    ]
    assert not (ROOT / "written").exists() and not (tmp_path / "written").exists()


OF_EACH_SEVERITY = {
    "style": (
        "            print(f",
        "            pass\n        print('one more')\n        if rank == 0:\n            print(f",
    ),
    "slow": ("@torch.no_grad()\n", ""),
    "wrong": ("        sampler.set_epoch(epoch)\n", ""),
    "hangs": ("        dist.barrier()\n", "        if rank == 0:\n            dist.barrier()\n"),
}


@pytest.mark.parametrize(("severity", "code"), [("style", 1), ("slow", 1), ("wrong", 3), ("hangs", 4)])
def test_the_exit_code_tells_the_worst_severity(severity: str, code: int, tmp_path: Path, capsys):
    old, new = OF_EACH_SEVERITY[severity]
    assert WELL.count(old) == 1
    script = tmp_path / "script.py"
    script.write_text(WELL.replace(old, new), encoding="utf-8")
    assert [one.severity for one in examine(script.read_bytes(), script)] == [severity]
    assert main([str(script)]) == code
    assert f": {severity}: " in capsys.readouterr().out
    worse = list(SEVERITIES)[list(SEVERITIES).index(severity) + 1 :]
    for mildest in SEVERITIES:
        assert main(["--from", mildest, str(script)]) == (0 if mildest in worse else code)


@pytest.mark.slow
def test_of_several_scripts_the_worst_decides_and_an_unread_one_most(tmp_path: Path, capsys):
    faulty, bad = tmp_path / "faulty.py", tmp_path / "bad.py"
    faulty.write_text(WELL.replace(*OF_EACH_SEVERITY["hangs"]), encoding="utf-8")
    bad.write_text("def", encoding="utf-8")
    well = str(SCRIPTS / "trains_well.py")
    assert main([well, well]) == 0
    assert main([well, str(faulty)]) == 4
    assert main([str(bad), str(faulty)]) == 2
    assert "bad.py:1: no Python: " in capsys.readouterr().err


def test_a_line_can_be_exempted():
    old, new = OF_EACH_SEVERITY["style"]
    assert (
        findings(WELL.replace(old, new.replace("print('one more')", "print('more')  # rank-check: ignore")))
        == []
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "script.py: No such file or directory"),
        (b"def main(:\n", "script.py:1: no Python: invalid syntax"),
        (b"\xff\xfe", "script.py:1: no Python: "),
        (b"# coding: latin-9000\n", "script.py:1: no Python: "),
        (b"x = 1\0", "script.py:1: no Python: "),
        (b"x = " + b"(" * 5000 + b")" * 5000, "script.py"),
        (b"x = " + b"-" * 100_000 + b"1", "script.py: nested too deeply to be read"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(content: bytes | None, told: str, tmp_path: Path, capsys):
    script = tmp_path / "script.py"
    if content is not None:
        script.write_bytes(content)
    assert main([str(script)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(told)


def test_a_folder_is_no_script(tmp_path: Path, capsys):
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path.name}: Is a directory\n"


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"\xef\xbb\xbfimport torch\n",
        b"# coding: latin-1\nname = '\xe9'\n",
        b"\r\n\r\nif True:\r\n    pass\r\n",
        b"x = " + b" + ".join([b"f(1)"] * 400) + b"\n",
        b"x = " + b".a()".join([b"b"] + [b""] * 300) + b"\n",
        b"x = x.next()\nx = x.next().next()\n",
        b"def f():\n    return f()\nf()\n",
        b"def f(g):\n    return g(f)\nx, y = f(f)\nx, y = y, x\n",
        b"class A(B): pass\nclass B(A): pass\nA().b.c = B().d\n",
        b"match f(x):\n    case [a, *b] if rank == 0:\n        print(a)\n    case {'k': v, **c}: pass\n",
        b"async def f():\n    async with a as b, c:\n        async for x in y: await dist.barrier()\n",
        b"from torch import *\nfrom . import *\nfrom .. import x\nfrom .x import *\n",
        b"import torch.distributed as dist\nif (rank := 0) == 0: dist.barrier()\n",
        b"import torch.distributed as dist\ndist.init_process_group(*a, **b)\ntorch.save(*a)\n",
        b"from torch.utils.data import DataLoader\nDataLoader(*a)\nDataLoader()\nlambda: (yield)\n",
        b"for x in y:\n    continue\nelse:\n    pass\nwhile 1: break\n",
        b"print(*[i for i in a if (b := i)], sep=f'{x!r:>{w}}')\n",
    ],
)
def test_no_source_is_too_much(source: bytes, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_bytes(source)
    assert main([str(script)]) in (0, 1, 3, 4)


@pytest.mark.slow
def test_a_copy_of_the_folder_works_alone_with_nothing_installed(tmp_path: Path):
    copytree(ROOT / "shared" / "checklist", tmp_path / "checklist")
    done = command(sys.executable, "-I", "-S", "-c", ALONE, tmp_path, TEMPLATE, root=None, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"lab_10_train.py: {len(RULES)} questions, 0 findings\n")


def test_it_lists_its_questions():
    code, lines = check("--questions")
    assert (code, len(lines)) == (0, len(RULES))
    assert all("? Else " in line for line in lines)


def test_its_help_tells_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    assert all(f"  {code}  " in told for code in range(5))
    assert all(f"  {severity}" in told for severity in SEVERITIES)


def test_without_a_script_it_tells_its_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "name at least one script" in capsys.readouterr().err
