"""Each lab, helper and exercise keeps the rules; each rule finds the fault that it is there for."""

from pathlib import Path

import pytest

from shared.tools.lessons import Lesson, read_lessons
from tests.helpers import EXERCISES, ROOT
from tests.mini_course import LAB, SOLUTION
from tests.rules import labs

FOLDERS = (
    "shared",
    "shared/tools",
    "labs",
    "labs/checks",
    "labs/solutions",
    "tests",
    "tests/rules",
    "tests/scripts",
)
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_is_not_too_long(path: Path):
    assert labs.length_problems(path) == []


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
        assert labs.exercise_problems(Path(name).stem, ROOT) == []
        assert labs.import_problems(ROOT / name) == []


def test_each_solution_belongs_to_a_lesson():
    assert sorted(Path(name).stem for lesson in read_lessons() for name in lesson.exercises) == EXERCISES


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
        ("from shared.group", "import lab_00_hello\nfrom shared.group", "imports lab_00_hello"),
        ("from shared.group", "from .other import x\nfrom shared.group", "imports ."),
        ("from shared.group", "import requests\nfrom shared.group", "imports requests"),
        ("    run(main)", "    main()", "does not call shared.lab.run"),
        ('if __name__ == "__main__":\n    run', "run", "does not call shared.lab.run"),
        ("from shared.lab import run", "from asyncio import run", "does not call shared.lab.run"),
    ],
)
def test_a_faulty_lab_is_found(old: str, new: str, expected: str, tmp_path: Path):
    def found(path: Path) -> list[str]:
        rules = (labs.import_problems, labs.runner_problems, labs.length_problems)
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


def test_a_long_file_is_found(tmp_path: Path):
    path = tmp_path / "long.py"
    path.write_text("1\n" * 151, encoding="utf-8")
    assert labs.length_problems(path) == ["long.py has 151 lines, allowed are 150"]


@pytest.fixture
def exercise(tmp_path: Path) -> Path:
    """The root of a course whose exercise is complete."""
    wrong = tmp_path / "tests" / "wrong_answers" / "exercise_90_small"
    for folder in (wrong, tmp_path / "labs" / "solutions", tmp_path / "labs" / "checks"):
        folder.mkdir(parents=True)
    for number in range(3):
        (wrong / f"{number}.py").write_text(f"# rejected: reason {number}\n", encoding="utf-8")
    solution = tmp_path / "labs" / "solutions" / "exercise_90_small.py"
    solution.write_text(SOLUTION.format(number="90"), encoding="utf-8")
    (tmp_path / "labs" / "checks" / "check_90_small.py").write_text("", encoding="utf-8")
    assert labs.exercise_problems("exercise_90_small", tmp_path) == []
    return tmp_path


WRONG = "tests/wrong_answers/exercise_90_small/0.py"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("labs/solutions/exercise_90_small.py", None, "has no solution"),
        ("labs/solutions/exercise_90_small.py", "# solution: begin\n", "are not pairs"),
        ("labs/solutions/exercise_90_small.py", "x = 1\n", "are not pairs"),
        ("labs/checks/check_90_small.py", None, "has no check"),
        (WRONG, None, "has 2 wrong answers"),
        (WRONG, "x = 1\n", "does not begin with"),
        (WRONG, "# rejected: reason 1\n", "for the same reason"),
    ],
)
def test_an_incomplete_exercise_is_found(name: str, text: str | None, expected: str, exercise: Path):
    if text is None:
        (exercise / name).unlink()
    else:
        (exercise / name).write_text(text, encoding="utf-8")
    problems = labs.exercise_problems("exercise_90_small", exercise)
    assert [expected in problem for problem in problems] == [True]
