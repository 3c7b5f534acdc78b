"""Each lab, helper and exercise keeps the rules; each rule finds the fault that it is there for."""

from pathlib import Path

import pytest

from shared.tools.lessons import Lesson, read_lessons
from tests.helpers import EXERCISES, ROOT
from tests.mini_course import LAB, SOLUTION
from tests.rules import labs


def test_a_lesson_has_labs_that_keep_the_rules(lesson: Lesson):
    assert lesson.labs
    for name in lesson.labs:
        path = ROOT / name
        found = labs.docstring_problems(path, lesson.path.name) + labs.import_problems(path)
        if labs.starts_with_torchrun(path):
            found += labs.runner_problems(path)
        assert found == []


def test_a_lesson_has_an_exercise_and_what_belongs_to_it(lesson: Lesson):
    assert lesson.exercises
    for name in lesson.exercises:
        assert labs.exercise_problems(Path(name).parent.name, ROOT) == []
        assert labs.import_problems(ROOT / name) == []


def test_each_solution_belongs_to_a_lesson():
    assert (
        sorted(Path(name).parent.name for lesson in read_lessons() for name in lesson.exercises) == EXERCISES
    )


def lab_with(folder: Path, old: str = "", new: str = "") -> Path:
    text = LAB.format(number="90")
    assert old in text
    path = folder / "lab_90_small.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Run it:      torchrun", "Run:  torchrun", "has no line `Run it: "),
        ("labs/lab_90_small.py", "labs/lab_91_small.py", "has no line `Run it: "),
        ("90_small.ipynb", "91_small.ipynb", "has no line `Written by: "),
        ("A lab of the tests.", "", "does not say what it is"),
        (
            "from shared.runtime.group",
            "import lab_00_hello\nfrom shared.runtime.group",
            "imports lab_00_hello",
        ),
        ("from shared.runtime.group", "from .other import x\nfrom shared.runtime.group", "imports ."),
        ("from shared.runtime.group", "import requests\nfrom shared.runtime.group", "imports requests"),
        ("    run(main)", "    main()", "does not call shared.runtime.run.run"),
        ('if __name__ == "__main__":\n    run', "run", "does not call shared.runtime.run.run"),
        (
            "from shared.runtime.run import run",
            "from asyncio import run",
            "does not call shared.runtime.run.run",
        ),
    ],
)
def test_a_faulty_lab_is_found(old: str, new: str, expected: str, tmp_path: Path):
    def found(path: Path) -> list[str]:
        rules = (labs.import_problems, labs.runner_problems)
        return labs.docstring_problems(path, "90_small.ipynb") + [one for rule in rules for one in rule(path)]

    assert found(lab_with(tmp_path)) == []
    problems = found(lab_with(tmp_path, old, new))
    assert [expected in problem for problem in problems] == [True]


def test_only_a_launch_variant_imports_the_training_script(tmp_path: Path):
    for name, imported, problems in (
        ("lab_10_launch_spawn.py", "lab_10_train", 0),
        ("lab_10_launch_spawn.py", "lab_10_claims", 1),
        ("lab_10_claims.py", "lab_10_train", 1),
    ):
        (tmp_path / name).write_text(f"from {imported} import main\n", encoding="utf-8")
        assert len(labs.import_problems(tmp_path / name)) == problems


def test_a_lab_without_torchrun_is_told_apart(tmp_path: Path):
    assert labs.starts_with_torchrun(lab_with(tmp_path))
    assert not labs.starts_with_torchrun(lab_with(tmp_path, "Run it:      torchrun", "Run it:      python"))


@pytest.fixture
def exercise(tmp_path: Path) -> Path:
    """The root of a course whose exercise is complete."""
    folder = tmp_path / "labs" / "exercises" / "90_small"
    (folder / "wrong_answers").mkdir(parents=True)
    for number in range(3):
        (folder / "wrong_answers" / f"{number}.py").write_text(
            f"# rejected: reason {number}\n", encoding="utf-8"
        )
    (folder / "solution.py").write_text(SOLUTION.format(number="90"), encoding="utf-8")
    (folder / "check.py").write_text("", encoding="utf-8")
    assert labs.exercise_problems("90_small", tmp_path) == []
    return folder


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("solution.py", None, "has no solution"),
        ("solution.py", "# solution: begin\n", "are not pairs"),
        ("solution.py", "x = 1\n", "are not pairs"),
        ("check.py", None, "has no check"),
        ("wrong_answers/0.py", None, "has 2 wrong answers"),
        ("wrong_answers/0.py", "x = 1\n", "does not begin with"),
        ("wrong_answers/0.py", "# rejected: reason 1\n", "for the same reason"),
    ],
)
def test_an_incomplete_exercise_is_found(name: str, text: str | None, expected: str, exercise: Path):
    if text is None:
        (exercise / name).unlink()
    else:
        (exercise / name).write_text(text, encoding="utf-8")
    problems = labs.exercise_problems("90_small", exercise.parents[2])
    assert [expected in problem for problem in problems] == [True]
