"""The checklist of lesson 10: silent about right scripts, and it finds each planted fault by its rule.

``tests/checklist`` holds right scripts of many kinds. A block of ``faults.txt`` plants one fault into one of
them: ``script: rule``, the lines that go and those that come.
"""

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import pytest

from shared.checklist.__main__ import chosen, main
from shared.checklist.findings import RULES, Report, check, examine, findings
from shared.checklist.machine import Machine
from shared.checklist.report import page
from shared.checklist.rule import SEVERITIES
from shared.checklist.sources import Project, Source, read_notebook
from tests import checklist_corpus as corpus
from tests.helpers import ROOT, command

FOLDER = Path(__file__).parent / "checklist"
SCRIPTS = sorted(path for path in FOLDER.iterdir() if path.suffix in (".py", ".ipynb"))
BY_DEFAULT = chosen(None, [])
SURE = [rule.name for rule in RULES if rule.tier == "sure"]
OF_FAULTS = chosen(["hangs", "wrong"], [])
ALONE = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('checklist', run_name='__main__')"
)
# What is found in our labs: what they are about.
MEANT = {
    "lab_03_deadlock": {"both_send"},
    "lab_03_in_flight": {"early"},
    "lab_04_mispaired": {"meet"},
    "lab_05_deadlock": {"both_send"},
    "lab_06_faults": {"uneven"},
    "lab_08_faults": {"meet"},
    "lab_19_state": {"quits"},
    "lab_25_profile": {"sampler"},  # random data, for a profile
    "lab_26_look": {"meet"},
}


class Fault(NamedTuple):
    script: str
    rule: str
    old: str
    new: str


def read_faults() -> list[Fault]:
    faults = []
    for block in (FOLDER / "faults.txt").read_text(encoding="utf-8").strip("\n").split("\n\n"):
        head, *lines = block.split("\n")
        old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        faults.append(Fault(*head.split(": "), old, new))
    return faults


FAULTS = read_faults()


def rules_in(name: str, text: str, rules=BY_DEFAULT) -> list[str]:
    """The rules that find something in a script or notebook; no other file is read."""
    report = Report([], Counter(), [])
    sources = read_notebook(text.encode(), Path(name)) if name.endswith(".ipynb") else [Source(text, None)]
    for source in sources:
        examine(Project(), source, rules, report, set())
    assert not report.errors
    return [finding.rule.name for finding in report.findings]


def test_nothing_is_found_in_a_right_script():
    rules_by_script = {
        path.name: rules_in(path.name, path.read_text(encoding="utf-8"), OF_FAULTS) for path in SCRIPTS
    }
    assert {name: rules for name, rules in rules_by_script.items() if rules} == {}


def test_each_planted_fault_is_found():
    missed = []
    for fault in FAULTS:
        text = (FOLDER / fault.script).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, fault
        if fault.rule not in rules_in(fault.script, text.replace(fault.old, fault.new), OF_FAULTS):
            missed.append(fault)
    assert missed == []


def test_each_rule_has_a_planted_fault_and_a_place_on_the_page():
    planted = {fault.rule for fault in FAULTS}
    assert {rule.name for rule in OF_FAULTS} <= planted
    assert len(SCRIPTS) > 20 and len(FAULTS) > 60
    text = page(RULES)
    for rule in RULES:
        question, _, otherwise = rule.question.partition("? Else ")
        assert question and otherwise.endswith(".")
        assert f"### {rule.code} {rule.name}" in text
        assert ast.parse(rule.bad).body and ast.parse(rule.good).body
    written = (ROOT / "notebooks" / "rank_check.md").read_text(encoding="utf-8")
    assert written == f"{text}\n", "python -m shared.checklist --page > notebooks/rank_check.md"
    assert len({rule.code for rule in RULES}) == len(RULES)


SELECTED = {
    "no_grad": ("vision.py", "@torch.no_grad()\n", ""),
    "talk": ("slurm.py", "        if out_of_time(", "        print('one more')\n        if out_of_time("),
    "leave": ("ppo.py", "    dist.destroy_process_group()\n", ""),
    "backend": ("vision.py", '"nccl", device_id=device', '"gloo"'),
    "once": ("vision.py", "(mine, args", "(mine, sampler=DistributedSampler(mine), batch_size=args"),
}  # fmt: skip


def test_rules_of_speed_and_style_are_asked_when_they_are_selected():
    for rule, (name, old, new) in SELECTED.items():
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert text.count(old) == 1
        rules = chosen([rule], [])
        assert rules_in(name, text, rules) == []
        assert set(rules_in(name, text.replace(old, new), rules)) == {rule}
        assert rule not in rules_in(name, text.replace(old, new))


def test_the_page_of_tools_says_how_often_it_is_right():
    scripts = corpus.read_list()
    page = (ROOT / "notebooks" / "tools.md").read_text(encoding="utf-8")
    for told in corpus.sentences(scripts):
        assert told in page, told
    verdicts = {finding.verdict for script in scripts for finding in script.findings}
    rules = {entry.rule for script in scripts for entry in (*script.findings, *script.faults)}
    first = [finding for findings in corpus.read_first_sight().values() for finding in findings]
    assert corpus.tallies(first) == {rule.name: rule.first_sight for rule in RULES if rule.first_sight[1]}
    assert f"only {', '.join(f'`{name}`' for name in SURE[:-1])} and `{SURE[-1]}`," in page
    assert verdicts <= {"true", "false"} and rules <= {rule.name for rule in RULES}


def test_a_fault_is_planted_line_by_line(tmp_path: Path):
    write(tmp_path, "train.py", "if first:\n    save()\n    wait()\n")
    corpus.plant(tmp_path, "train.py", "2 try:|    save() & train.py:+4 leave()")
    text = (tmp_path / "train.py").read_text(encoding="utf-8")
    assert text == "if first:\n    try:\n        save()\n    leave()\n    wait()\n"


def test_the_corpus_tells_what_could_not_be_read(tmp_path: Path, capsys, monkeypatch):
    write(tmp_path, "some+one/broken.py", "def")
    script = corpus.Script("some/one", "0", "broken.py", 0, [], [])
    monkeypatch.setattr(corpus, "read_list", lambda *_: [script])
    monkeypatch.setattr(corpus, "write_list", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["checklist_corpus", str(tmp_path)])
    assert corpus.main() == 1
    assert "broken.py:1: no Python: " in capsys.readouterr().err


def test_what_python_warns_of_while_it_reads_is_no_finding(tmp_path: Path):
    script = write(tmp_path, "escapes.py", 'DIGITS = "\\d+"\n')
    done = command(sys.executable, "-W", "always", "-m", "shared.checklist", script)
    assert done.stdout.endswith("rules: nothing found\n") and done.stdout.count("\n") == 1


# --- Our own labs ---


def test_in_our_labs_it_finds_what_is_meant_and_nothing_else():
    rules = (*BY_DEFAULT, *chosen(["both_send", "uneven", "early"], []))
    report = check(sorted((ROOT / "labs").glob("lab_*.py")), rules)
    assert not report.errors
    rules_by_lab: dict[str, set[str]] = {}
    for finding in report.findings:
        rules_by_lab.setdefault(Path(finding.path).stem, set()).add(finding.rule.name)
    assert rules_by_lab == MEANT


# --- How a script is read ---

GUARDED = """
import os
import torch
import torch.distributed as dist

def main(args):
    dist.init_process_group("nccl")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    world_size = dist.get_world_size()
    x = torch.ones(1)
    {}

main(object())
"""


CONDITIONS = (
    ("if rank == 0: dist.barrier()", ["meet"]),
    ("if 0 == rank: dist.barrier()", ["meet"]),
    ("if not rank: dist.barrier()", ["meet"]),
    ("if rank < 1 and args.often: dist.barrier()", ["meet"]),
    ("if int(os.environ['RANK']) == 0: dist.barrier()", ["meet"]),
    ("if args.is_main_process: dist.barrier()", ["meet"]),
    ("if (first := rank == 0) and first: dist.barrier()", ["meet"]),
    ("rank == 0 and dist.barrier()", ["meet"]),
    ("for i in range(rank): dist.barrier()", ["parted"]),
    ("if rank == 0: dist.all_reduce(x, group=dist.new_group(backend='gloo'))", ["meet"]),
    ("all_ranks = dist.new_group()\n    if rank == 0: dist.all_reduce(x, group=all_ranks)", ["meet"]),
    ("if rank != 0: return\n    dist.barrier()", ["quits"]),
    ("while True:\n        if rank == 0: break\n        dist.barrier()", ["quits"]),
    ("writer = open('log') if rank == 0 else None\n    if writer is not None: dist.barrier()", ["meet"]),
    ("if rank in (0, 1): pair = dist.new_group([0, 1])", ["parted"]),
    ("raise NotImplementedError  # your turn\n    if rank == 0: dist.barrier()", ["meet"]),
    ("if world_size > 1: dist.barrier()", []),
    ("if rank >= 0: dist.barrier()", []),
    ("if 'RANK' in os.environ and args.often: dist.barrier()", []),
    ("if rank != dist.get_rank(): raise RuntimeError\n    dist.barrier()", []),
    ("if rank == 0 and world_size == 1: dist.barrier()", []),
    ("if rank == 0: dist.barrier()\n    else: dist.barrier()", []),
    ("if rank == 0 and not args.known: dist.barrier()\n    else: dist.barrier()", []),
    ("if rank == 0:\n        dist.destroy_process_group()\n        dist.barrier()", []),
    ("def save():\n        if args.sharded: dist.barrier()\n    if rank == 0: save()", []),
    ("if rank != 0: dist.barrier()\n    print(1)\n    if rank == 0: dist.barrier()", []),
    ("for r in range(world_size):\n        if r == rank: print(r)\n        dist.barrier()", []),
    ("pair = dist.new_group([0, 1])\n    if rank < 2: dist.all_reduce(x, group=pair)", []),
    ("if args.on_all or rank == 0:\n        if args.on_all: dist.barrier()", []),
    ("if rank == 0: torch.distributed.checkpoint.save({}, no_dist=True)", []),
    ("if rank in (0, 1): dist.new_group([0, 1], use_local_synchronization=True)", []),
    ("if rank == 0: dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)", []),
)  # fmt: skip


def test_conditions_are_understood():
    names = {rule.name for rule in RULES if rule.severity == "hangs"}
    for lines, expected in CONDITIONS:
        rules = {rule for _, rule, _ in findings(GUARDED.format(lines)) if rule in names}
        assert sorted(rules) == expected, lines


SOURCES = (
    b"",
    b"\xef\xbb\xbfimport torch\n",
    b"# coding: latin-1\nname = '\xe9'\n",
    b"\r\n\r\nif True:\r\n    pass\r\n",
    b"x = " + b" + ".join([b"f(1)"] * 400) + b"\n",
    b"x = x.next()\nx = x.next().next()\n",
    b"import torch\nx = torch.optim.Adam(p)\nx.step = torch.compile(x.step)\nx.step()\n",
    b"def f():\n    return f()\nf()\n",
    b"def f(g):\n    return g(f)\nx, y = f(f)\nx, y = y, x\n",
    b"class A(B): pass\nclass B(A): pass\nA().b.c = B().d\n",
    b"match f(x):\n    case [a, *b] if rank == 0:\n        print(a)\n    case {'k': v, **c}: pass\n",
    b"async def f():\n    async with a as b, c:\n        async for x in y: await dist.barrier()\n",
    b"from torch import *\nfrom . import *\nfrom .. import x\nfrom .x import *\n",
    b"import torch.distributed as dist\ndist.init_process_group(*a, **b)\nimport torch\ntorch.save(*a)\n",
    b"from torch.utils.data import DataLoader\nDataLoader(*a)\nDataLoader()\nlambda: (yield)\n",
    b"for x in y:\n    continue\nelse:\n    pass\nwhile 1: break\n",
    b"print(*[i for i in a if (b := i)], sep=f'{x!r:>{w}}')\ndel a[0]\nglobal c\n",
)


def test_no_source_is_too_much(tmp_path: Path):
    script = tmp_path / "script.py"
    for source in SOURCES:
        script.write_bytes(source)
        assert main([str(script), "--select", "ALL"]) in (0, 1), source


def test_time_grows_with_the_lines(tmp_path: Path):
    """No assertion on seconds: twice the lines take about twice the steps."""
    steps = []
    text = (FOLDER / "vision.py").read_text(encoding="utf-8")
    for times in (4, 8):
        body = "\n".join(
            text.replace("def main", f"def main_{n}").replace("    main()", f"    main_{n}()")
            for n in range(times)
        )
        machine = Machine(Project(), Source(body, None))
        machine.run()
        steps.append(machine.steps)
    assert steps[1] < 2.5 * steps[0]


# --- The command ---

BAD = """import torch.distributed as dist
dist.init_process_group()
if dist.get_rank() == 0:
    dist.barrier({})
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_an_error_of_ours_is_told_and_the_other_files_are_read(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(Machine, "do_Pass", lambda self, node: 1 / 0, raising=False)
    first, bad = write(tmp_path, "first.py", "pass\n"), write(tmp_path, "bad.py", BAD.format(""))
    assert main([str(first), str(bad)]) == 2
    told = capsys.readouterr()
    assert "RC101" in told.out and "first.py:1: rank-check failed: ZeroDivisionError" in told.err


def test_the_exit_code_tells_whether_something_was_found(tmp_path: Path, capsys):
    right, bad, broken = (
        write(tmp_path, "right.py", "x = 1\n"),
        write(tmp_path, "bad.py", BAD.format("")),
        write(tmp_path, "broken.py", "def"),
    )
    assert main([str(right)]) == 0
    assert main([str(right), str(bad)]) == 1
    assert f"{bad}:4:5: RC101 may hang: only rank 0 comes to barrier" in capsys.readouterr().out
    assert main([str(bad), str(broken)]) == 2
    assert "broken.py:1: no Python: " in capsys.readouterr().err
    assert main([str(tmp_path / "none.py")]) == 2
    assert main([str(bad), "--select", "nonsense"]) == 2
    assert "nonsense is no rule" in capsys.readouterr().err


BOTH_TIERS = """import os
import torch.distributed as dist
rank, place, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
dist.init_process_group("nccl", rank=place, world_size=world)
if rank == 0:
    dist.barrier()
"""
RECORD = "(6 of 34 such findings were true)"


def test_a_finding_is_sure_or_says_how_often_its_like_was_true(tmp_path: Path, capsys):
    path = str(write(tmp_path, "train.py", BOTH_TIERS))
    number = {"tier": "sure", "first_sight": {"true": 7, "judged": 7}}
    meet = {"tier": "likely", "first_sight": {"true": 6, "judged": 34}}
    for settings, options, expected in (
        ("", [], [number, meet]),
        ("", ["--sure"], [number]),
        ("sure = true", [], [number]),
        ("sure = true", ["--no-config"], [number, meet]),
        ("", ["--sure", "--ignore", "number"], []),
    ):
        write(tmp_path, "pyproject.toml", f"[tool.rank-check]\n{settings}\n")
        code = bool(expected)
        assert main([path, *options, "--output-format", "json"]) == code
        told = json.loads(capsys.readouterr().out)["findings"]
        assert [{key: finding[key] for key in number} for finding in told] == expected, (settings, options)
        assert main([path, *options]) == code
        assert [RECORD in line for line in capsys.readouterr().out.splitlines()[:-1]] == [
            finding == meet for finding in expected
        ]


SELECTIONS = {
    "--select RC101": 1,
    "--select RC1": 1,
    "--select meet": 1,
    "--select hangs": 1,
    "--select wrong,slow": 0,
    "--ignore RC1": 0,
    "--select ALL --ignore meet,style": 0,
}


def test_rules_are_selected_by_code_name_and_severity(tmp_path: Path):
    path = str(write(tmp_path, "bad.py", BAD.format("")))
    assert {words: main([path, *words.split()]) for words in SELECTIONS} == SELECTIONS


COMMENTS = {
    "  # rank-check: ignore": 0,
    "  # rank-check: ignore[RC101]": 0,
    "  # rank-check: ignore[RC102, meet]": 0,
    "  # rank-check: ignore[RC102]": 1,
    "; x = '# rank-check: ignore'": 1,
}


def test_a_comment_asks_for_silence(tmp_path: Path):
    for comment, code in COMMENTS.items():
        text = BAD.format("\n    ").replace("    )", f"    ){comment}")
        assert comment in text
        assert main([str(write(tmp_path, "bad.py", text))]) == code


def test_folders_notebooks_and_the_settings_of_a_project(tmp_path: Path, capsys, monkeypatch):
    write(tmp_path, "train/bad.py", BAD.format(""))
    write(tmp_path, "train/.hidden/bad.py", BAD.format(""))
    write(tmp_path, "train/old/bad.py", BAD.format(""))
    cells = [
        {"cell_type": "code", "source": ["!ls\n", "%time x\n"]},
        {"cell_type": "code", "source": BAD.format("").splitlines(True)},
    ]
    write(tmp_path, "train/book.ipynb", json.dumps({"cells": cells}))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--exclude", "old"]) == 1
    out = capsys.readouterr().out
    assert "train/bad.py:4:5: RC101" in out and "train/book.ipynb:cell 2:4:5: RC101" in out
    assert "2 files, " in out
    write(tmp_path, "pyproject.toml", '[tool.rank-check]\nignore = ["RC1"]\nexclude = ["old"]\n')
    assert main(["train"]) == 0
    assert main(["train", "--no-config"]) == 1
    write(tmp_path, "pyproject.toml", "[tool.rank-check]\nignored = []\n")
    assert main(["train"]) == 2


def test_a_file_that_a_notebook_writes_is_a_script_of_its_own(tmp_path: Path):
    cells = [
        {"cell_type": "code", "source": "%%writefile train.py\n" + BAD.format("")},
        {"cell_type": "code", "source": "from train import main"},
    ]
    path = write(tmp_path, "book.ipynb", json.dumps({"cells": cells}))
    (finding,) = check([path], BY_DEFAULT).findings
    assert (finding.cell, finding.line) == (1, 5)


@pytest.mark.parametrize("form", ["json", "sarif", "github"])
def test_other_formats_tell_the_same(form: str, tmp_path: Path, capsys):
    path = write(tmp_path, "bad.py", BAD.format(""))
    assert main([str(path), "--output-format", form]) == 1
    out = capsys.readouterr().out
    if form == "github":
        assert (
            out.startswith("::warning file=") and ",line=4,col=5,title=RC101 (may hang)::only rank 0" in out
        )
        assert out.endswith(f" {RECORD}\n")
        return
    told = json.loads(out)
    finding = told["findings"][0] if form == "json" else told["runs"][0]["results"][0]
    assert (finding["code"] if form == "json" else finding["ruleId"]) == "RC101"
    if form == "sarif":
        assert finding["level"] == "warning" and finding["message"]["text"].endswith(RECORD)
        assert finding["locations"][0]["physicalLocation"]["region"] == {"startLine": 4, "startColumn": 5}


def test_imports_beside_a_script_are_followed_whatever_their_name(tmp_path: Path):
    write(
        tmp_path,
        "shared/groups.py",
        "import torch.distributed as dist\ndef is_first():\n    return dist.get_rank() == 0\n",
    )
    text = BAD.format("").replace("dist.get_rank() == 0", "is_first()")
    path = write(tmp_path, "train.py", "from shared.groups import is_first\n" + text)
    assert [finding.rule.name for finding in check([path], BY_DEFAULT).findings] == ["meet"]
    (tmp_path / "shared" / "groups.py").unlink()
    assert check([path], BY_DEFAULT).findings == []


def test_what_is_not_asked_is_told_in_one_line(tmp_path: Path, capsys):
    text = (FOLDER / "vision.py").read_text(encoding="utf-8")
    text = text.replace(
        "        sampler.set_epoch(epoch)", "        from unread import tell\n        tell(sampler, epoch)"
    )
    assert main([str(write(tmp_path, "train.py", text))]) == 0
    assert "1 question not asked: the sampler is handed to tell (1)" in capsys.readouterr().out


def test_it_reads_the_standard_input():
    done = subprocess.run(
        [sys.executable, "-m", "shared.checklist", "-"],
        input=BAD.format("").encode(),
        capture_output=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout.startswith(b"-:4:5: RC101")) == (1, True)


def test_a_copy_of_the_folder_works_alone_with_nothing_installed(tmp_path: Path):
    copytree(ROOT / "shared" / "checklist", tmp_path / "checklist")
    script = FOLDER / "vision.py"
    done = command(
        sys.executable, "-I", "-S", "-c", ALONE, tmp_path, script, "--no-config", root=None, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, f"1 file, {len(BY_DEFAULT)} rules: nothing found\n")


def test_it_lists_its_rules(capsys):
    assert main(["--rules"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(RULES)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    assert all(f"  {severity}" in told for severity in SEVERITIES)
