"""Each lab is seen red: the faults of each lesson's room, planted one by one, are noticed.

Try one: ``.venv/bin/python -m pytest tests/test_planted_faults.py -k 05_ring``.
"""

import os
import re
from dataclasses import replace
from pathlib import Path
from shutil import copytree, ignore_patterns

import nbformat
import pytest

from shared.tools.lessons import cells_of
from shared.tools.outputs import text_of
from tests.helpers import LABS, LESSON_PATHS, ROOT, Done, command, python, torchrun_command
from tests.launch import Job, run_job
from tests.planted import Fault, all_faults, changed, place_of

FAULTS = all_faults()
# One measures, one is an example, one needs transformers, which is not installed: no fault turns them red.
CLAIMS_NOTHING = {"09_bench_ddp", "11_loop", "12_one_more", "29_transformers"}
SHORTEST_WORDS = 12
LAB_RUN = re.compile(r"\blab_(\d\d_\w+)\.py|\blesson_(\d\d)/(?:proof_)?(\w+)\.py")
KEPT = re.compile(r"/proof_(\w+)\.txt")  # what proofs that shared a launch have said
SLIPS = ("SyntaxError", "IndentationError", "NameError", "ImportError", "ModuleNotFoundError")


def name_of(fault: Fault) -> str:
    return f"{fault.lab}: {fault.told}"


def said_without_a_fault() -> dict[str, str]:
    """{lab: what the lessons show that it prints}, some labs end red on purpose, too."""
    outputs: dict[str, str] = {}
    for path in LESSON_PATHS:
        for cell in cells_of(nbformat.read(path, 4), "code"):
            commands = [line for line in cell.source.splitlines() if line.startswith("!")]
            shown = [(path.name[:2], proof) for proof in KEPT.findall("\n".join(commands))]
            for lab, *module in [*LAB_RUN.findall("\n".join(commands)), *(("", *pair) for pair in shown)]:
                name = lab or "_".join(module)
                outputs[name] = outputs.get(name, "") + text_of(cell)
    return outputs


def name_of_proof(path: Path) -> str:
    return f"{path.parent.name[-2:]}_{path.stem.removeprefix('proof_')}"


def test_each_lab_is_turned_red():
    outputs = said_without_a_fault()
    labs = {path.stem.removeprefix("lab_") for path in LABS.glob("lab_*.py")}
    started = {name for name in outputs if not name.endswith(("_check", "_exercise"))}
    proofs = {name_of_proof(path) for path in LABS.glob("*/proof_*.py")}
    turned_red = {name for fault in FAULTS for name in (fault.lab, fault.lab_to_run)}
    never_red = (labs | proofs | started) - turned_red
    assert never_red == CLAIMS_NOTHING


def test_each_fault_has_its_place_and_its_words():
    outputs = said_without_a_fault()
    for fault in FAULTS:
        changed(place_of(fault.lab, ROOT).read_text(encoding="utf-8"), fault.old, fault.new)
        assert place_of(fault.lab_to_run, ROOT).is_file(), fault
        assert len(fault.told) >= SHORTEST_WORDS, fault
        assert fault.told not in outputs.get(fault.lab_to_run, ""), f"also printed without it: {fault}"


def planted(fault: Fault, root: Path) -> Path:
    """Copy the labs into ``root``; plant the fault."""
    copytree(LABS, root / "labs", ignore=ignore_patterns("exercise.py", "__pycache__"))
    target = place_of(fault.lab, root)
    text = target.read_text(encoding="utf-8")
    target.write_text(changed(text, fault.old, fault.new), encoding="utf-8")
    return place_of(fault.lab_to_run, root)


def job_of(fault: Fault, folder: Path) -> Job:
    """The launch of the lab that has the fault, all in folders of its own."""
    own = folder / "own"
    own.mkdir()
    script = planted(fault, folder)
    environment = {name: value.replace("FOLDER", str(own)) for name, value in fault.environment}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (folder / "labs", ROOT, ROOT / "rank_tools")))
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
    return replace(job, script=place_of(lab, job.folder.parent), arguments=arguments)


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


@pytest.mark.slow
@pytest.mark.parametrize("warm", [fault for fault in FAULTS if fault.launch == "warm"], ids=name_of)
def test_a_planted_fault_is_noticed(warm: Fault, tmp_path: Path):
    job = job_of(warm, tmp_path)
    if warm.before:
        run_job(job_before(warm, job))  # however that ends
    assert_noticed(warm, run_job(job))


@pytest.mark.slow
@pytest.mark.parametrize("cold", [fault for fault in FAULTS if fault.launch != "warm"], ids=name_of)
def test_a_planted_fault_is_noticed_by_the_real_launch(cold: Fault, tmp_path: Path):
    reason = cold.missing() if cold.missing else None
    if reason:
        pytest.skip(reason)
    assert_noticed(cold, launched_cold(cold, tmp_path))
