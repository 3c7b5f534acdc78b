"""Each lab is turned red by a fault planted in it: the table ``tests/faults`` is complete and true."""

import re
from dataclasses import replace
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import nbformat
import pytest

from shared.tools.lessons import OTHER_KINDS, cells_of
from shared.tools.outputs import text_of
from tests import faults
from tests.faults import Fault, place_of
from tests.helpers import LESSON_PATHS, ROOT, Done, command, python, torchrun_command
from tests.launch import Job, run_job
from tests.rules.labs import BREAK_THE_SCRIPT, COMBINED, COMBINES, PREDICTED, PREDICTS

LABS = ROOT / "labs"
FAULTS = [fault for lesson in faults.lessons() for fault in faults.faults_of(lesson)]
LAB_RUN = re.compile(r"\blab_(\d\d_\w+)\.py|-m shared\.lesson_(\d\d)\.(\w+)")
SLIPS = ("SyntaxError", "IndentationError", "NameError", "ImportError", "ModuleNotFoundError")


def name_of(fault: Fault) -> str:
    return f"{fault.lab}: {fault.told}"


def labs_of(lesson: str) -> list[Path]:
    return sorted(LABS.glob(f"lab_{lesson}_*.py"))


def other_files_of(lesson: str) -> list[Path]:
    """Job scripts and manifests."""
    return [path for kind in OTHER_KINDS for path in sorted(LABS.glob(f"lab_{lesson}_*.{kind}"))]


def table_problems(labs: list[str], table: list[Fault]) -> list[str]:
    """The labs that the table does not name."""
    named = {fault.lab for fault in table} | faults.CLAIMS_NOTHING
    return [f"lab_{lab}.py has no planted fault" for lab in labs if lab not in named]


def place_problems(fault: Fault) -> list[str]:
    """What is wrong with the place of a fault in its lab."""
    lab, to_run = place_of(fault.lab, ROOT), place_of(fault.lab_to_run, ROOT)
    if not lab.is_file() or not to_run.is_file():
        return [f"there is no {lab.name} to plant a fault in, or no {to_run.name} to run"]
    text = lab.read_text(encoding="utf-8")
    times = text.count(fault.old) if fault.old else 0
    if times != 1:
        return [f"{lab.name}: {fault.old!r} occurs {times} times, not once"]
    if fault.old == fault.new or not fault.told:
        return [f"{lab.name}: {fault.old!r}: the fault changes nothing, or expects no words"]
    return []


def said_without_a_fault() -> dict[str, str]:
    """{lab: what the lessons show that it prints}, some labs end red on purpose, too."""
    outputs: dict[str, str] = {}
    for path in LESSON_PATHS:
        for cell in cells_of(nbformat.read(path, 4), "code"):
            commands = [line for line in cell.source.splitlines() if line.startswith("!")]
            for lab, *module in LAB_RUN.findall("\n".join(commands)):
                name = lab or "_".join(module)
                outputs[name] = outputs.get(name, "") + text_of(cell)
    return outputs


def words_problems(fault: Fault, said: dict[str, str]) -> list[str]:
    """Whether the words that are to tell of a fault are printed without it, too: they would prove nothing."""
    if fault.told in said.get(fault.lab_to_run, ""):
        return [f"lab_{fault.lab_to_run}.py prints {fault.told!r} without the fault, too"]
    return []


def test_each_lab_has_a_planted_fault_and_each_fault_its_place():
    labs = [path.stem.removeprefix("lab_") for path in sorted(LABS.glob("lab_*.py"))]
    outputs = said_without_a_fault()
    modules = [name for name in outputs if not place_of(name, ROOT).is_relative_to(LABS)]
    problems = table_problems([*labs, *modules], FAULTS)
    for fault in FAULTS:
        problems += place_problems(fault) + words_problems(fault, outputs)
    assert not problems, "\n".join(problems)


def test_a_hole_in_the_table_is_found():
    table = [Fault("90_a", "old", "new", "told")]
    assert table_problems(["90_a", "90_b"], table) == ["lab_90_b.py has no planted fault"]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault("90_a", "x = 1\n", "x = 2\n", "told"), None),
        (Fault("90_a", "x = 1\n", "x = 2\n", "told", run="90_b"), "no lab_90_b.py to run"),
        (Fault("90_b", "x = 1\n", "x = 2\n", "told"), "there is no lab_90_b.py"),
        (Fault("90_a", "x = 3", "x = 2", "told"), "occurs 0 times, not once"),
        (Fault("90_a", "x", "y", "told"), "occurs 3 times, not once"),
        (Fault("90_a", "", "y", "told"), "occurs 0 times, not once"),
        (Fault("90_a", "x = 1\n", "x = 1\n", "told"), "the fault changes nothing"),
        (Fault("90_a", "x = 1\n", "x = 2\n", ""), "expects no words"),
    ],
)
def test_a_fault_without_its_place_is_found(
    fault: Fault, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "labs").mkdir()
    (tmp_path / "labs" / "lab_90_a.py").write_text("x = 1\nassert x == x\n", encoding="utf-8")
    monkeypatch.setattr("tests.test_planted_faults.ROOT", tmp_path)
    problems = place_problems(fault)
    assert (problems == []) == (expected is None)
    assert expected is None or expected in problems[0]


def test_words_that_prove_nothing_are_found():
    outputs = said_without_a_fault()
    assert len(outputs) > len(list(LABS.glob("lab_*.py"))) / 2
    hello = Fault("00_hello", "old", "new", "was here", run="00_digits")
    assert words_problems(hello, {"00_hello": "rank 0 was here"}) == []
    expected = ["lab_00_digits.py prints 'was here' without the fault, too"]
    assert words_problems(hello, {"00_digits": "rank 0 was here"}) == expected


def copy_labs(fault: Fault, folder: Path) -> None:
    """Copy the labs that the one to run may import."""
    for lesson in (fault.lesson, fault.lab_to_run[:2]):
        for path in [*labs_of(lesson), *other_files_of(lesson)]:
            copy(path, folder)
    if f"lab_{fault.lab_to_run}".startswith(BREAK_THE_SCRIPT):
        copy(LABS / "lab_10_train.py", folder)
    lab = f"lab_{fault.lab_to_run}"
    if lab == PREDICTS or lab.startswith(COMBINES[: len("lab_NN_")]):
        for path in sorted(LABS.glob("lab_*.py")):
            if path.name.startswith((*COMBINED, *PREDICTED)):
                copy(path, folder)


def planted(fault: Fault, root: Path) -> Path:
    """Copy what the lab to run may import into ``root/labs``, plant the fault, return what is to run.

    Around a module of ``shared`` all labs are copied, and all of ``shared``.
    """
    places = [place_of(name, ROOT) for name in (fault.lab, fault.lab_to_run)]
    if all(place.is_relative_to(LABS) for place in places):
        (root / "labs").mkdir()
        copy_labs(fault, root / "labs")
    else:
        copytree(LABS, root / "labs", ignore=ignore_patterns("exercises", "__pycache__"))
        copytree(ROOT / "shared", root / "shared", ignore=ignore_patterns("__pycache__"))
    target = place_of(fault.lab, root)
    text = target.read_text(encoding="utf-8")
    target.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    return place_of(fault.lab_to_run, root)


def job_of(fault: Fault, folder: Path) -> Job:
    """The launch of the lab that has the fault, all in folders of its own."""
    own = folder / "own"
    own.mkdir()
    script = planted(fault, folder)
    environment = {name: value.replace("FOLDER", str(own)) for name, value in fault.environment}
    if (folder / "shared").is_dir():
        environment["PYTHONPATH"] = str(folder)
    return Job(
        script,
        [argument.replace("FOLDER", str(own)) for argument in fault.arguments],
        ranks=fault.ranks,
        environment={"RANK_BY_RANK_RESULTS": str(folder / "results"), **environment},
        folder=folder / "labs",
    )


def job_before(fault: Fault, job: Job) -> Job:
    """The launch of the lab that leaves behind what this one needs."""
    lab, *arguments = fault.before
    return replace(job, script=job.folder / f"lab_{lab}.py", arguments=arguments)


def launched_cold(fault: Fault, folder: Path) -> Done:
    job = job_of(fault, folder)
    if fault.launch == "python":
        return python(job.script, *job.arguments, cwd=job.folder, **job.environment)
    options = [option.replace("FOLDER", str(folder / "own")) for option in fault.options]
    launch = torchrun_command(job.script, job.ranks, *job.arguments, options=options)
    return command(*launch, cwd=job.folder, **job.environment)


def assert_noticed(fault: Fault, done: Done) -> None:
    assert done.returncode != 0, done.stdout
    assert fault.told in done.stdout, done.stdout
    assert not [slip for slip in SLIPS if slip in done.stdout], done.stdout


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, "x: differs by 1"), (1, "another error"), (1, "NameError: y. x: differs by 1")],
    ids=["green", "another check", "a slip"],
)
def test_a_fault_that_goes_unnoticed_is_found(code: int, said: str):
    fault = Fault("90_a", "x", "y", "differs by")
    assert_noticed(fault, Done([], 1, "x: differs by 1"))
    with pytest.raises(AssertionError):
        assert_noticed(fault, Done([], code, said))


@pytest.mark.slow
@pytest.mark.parametrize("warm", [fault for fault in FAULTS if fault.launch == "warm"], ids=name_of)
def test_a_planted_fault_is_noticed(warm: Fault, tmp_path: Path):
    assert place_problems(warm) == []
    job = job_of(warm, tmp_path)
    if warm.before:
        run_job(job_before(warm, job))  # however that ends
    assert_noticed(warm, run_job(job))


@pytest.mark.slow
@pytest.mark.parametrize("cold", [fault for fault in FAULTS if fault.launch != "warm"], ids=name_of)
def test_a_planted_fault_is_noticed_by_the_real_launch(cold: Fault, tmp_path: Path):
    assert place_problems(cold) == []
    reason = cold.missing() if cold.missing else None
    if reason:
        pytest.skip(reason)
    assert_noticed(cold, launched_cold(cold, tmp_path))
