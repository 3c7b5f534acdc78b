"""Each lab is turned red by a fault planted in it: the table ``tests/faults`` is complete and true."""

from pathlib import Path
from shutil import copy

import pytest

from tests import faults
from tests.faults import Fault
from tests.helpers import ROOT, Done, command, python, torchrun_command

LABS = ROOT / "labs"
FAULTS = [fault for lesson in faults.lessons() for fault in faults.faults_of(lesson)]
SLIPS = ("SyntaxError", "IndentationError", "NameError", "ImportError", "ModuleNotFoundError")


def labs_of(lesson: str) -> list[Path]:
    return sorted(LABS.glob(f"lab_{lesson}_*.py"))


def table_problems(labs: list[str], table: list[Fault], excused: list[str]) -> list[str]:
    """What is wrong with the table as such: labs that it does not name, names that it should not hold."""
    named = {fault.lab for fault in table}
    found = [f"lab_{lab}.py has no planted fault" for lab in labs if lab not in named and lab not in excused]
    found += [f"lab_{lab}.py has a fault: delete it from STILL_WITHOUT" for lab in excused if lab in named]
    found += [f"lab_{lab}.py is in STILL_WITHOUT; there is no such lab" for lab in excused if lab not in labs]
    for fault in table:
        for lab in {fault.lab, fault.lab_to_run}:
            if lab not in labs:
                found.append(f"there is no lab_{lab}.py to plant a fault in or to run")
    return found


def text_problems(fault: Fault, text: str) -> list[str]:
    """What is wrong with the place of a fault in its lab."""
    times = text.count(fault.old) if fault.old else 0
    if times != 1:
        return [f"lab_{fault.lab}.py: {fault.old!r} occurs {times} times, not once"]
    if fault.old == fault.new or not fault.told:
        return [f"lab_{fault.lab}.py: {fault.old!r}: the fault changes nothing, or expects no words"]
    return []


def test_each_lab_has_a_planted_fault_and_each_fault_its_place():
    labs = [path.stem.removeprefix("lab_") for path in sorted(LABS.glob("lab_*.py"))]
    excused = [lab for lesson in faults.lessons() for lab in faults.still_without(lesson)]
    problems = table_problems(labs, FAULTS, excused)
    for fault in FAULTS:
        if fault.lab in labs:
            problems += text_problems(fault, (LABS / f"lab_{fault.lab}.py").read_text(encoding="utf-8"))
    assert not problems, "\n".join(problems)


def planted(fault: Fault, folder: Path) -> Path:
    """Copy the labs of the lesson into ``folder``, plant the fault, return the lab to run."""
    for path in labs_of(fault.lesson):
        copy(path, folder)
    target = folder / f"lab_{fault.lab}.py"
    text = target.read_text(encoding="utf-8")
    assert not text_problems(fault, text)
    target.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    return folder / f"lab_{fault.lab_to_run}.py"


def tried(fault: Fault, folder: Path) -> Done:
    """How the lab ends that has the fault."""
    labs, own = folder / "labs", folder / "own"
    labs.mkdir()
    own.mkdir()
    lab = planted(fault, labs)
    arguments = [argument.replace("FOLDER", str(own)) for argument in fault.arguments]
    environment = {name: value.replace("FOLDER", str(own)) for name, value in fault.environment}
    environment.setdefault("RANK_BY_RANK_RESULTS", str(folder / "results"))
    if fault.launch == "python" or not fault.ranks:
        return python(lab, *arguments, cwd=labs, **environment)
    options = [option.replace("FOLDER", str(own)) for option in fault.options]
    launch = torchrun_command(lab, fault.ranks, *arguments)
    return command(*launch[: -1 - len(arguments)], *options, lab, *arguments, cwd=labs, **environment)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.lab}: {fault.told}")
def test_a_planted_fault_is_noticed(fault: Fault, tmp_path: Path):
    done = tried(fault, tmp_path)
    assert done.returncode != 0, done.stdout
    assert fault.told in done.stdout, done.stdout
    assert not [slip for slip in SLIPS if slip in done.stdout], done.stdout
