"""Each lab, helper and exercise keeps the rules; each rule finds the fault that it is there for."""

from pathlib import Path

import pytest

from shared.tools.lessons import Lesson, read_lessons
from tests.helpers import EXERCISES, ROOT
from tests.mini_course import LAB, SOLUTION, make_course, mini_notebook, write_lesson
from tests.rules import labs, tell

LESSONS = read_lessons()


def test_labs_keep_the_rules():
    tell(
        f"{lesson.path.name}: {problem}" for lesson in LESSONS for problem in labs.lab_problems(lesson, ROOT)
    )


def test_exercises_keep_the_rules():
    tell(
        f"{lesson.path.name}: {problem}"
        for lesson in LESSONS
        for problem in labs.exercises_problems(lesson, ROOT)
    )


def test_each_solution_belongs_to_a_lesson():
    assert sorted(Path(name).parent.name for lesson in LESSONS for name in lesson.exercises) == EXERCISES


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
        ("from shared.runtime.group", "from .other import x\nfrom shared.runtime.group", "imports relative"),
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
        return labs.docstring_problems(path, "90_small.ipynb") + [
            problem for rule in rules for problem in rule(path)
        ]

    assert found(lab_with(tmp_path)) == []
    problems = found(lab_with(tmp_path, old, new))
    assert [expected in problem for problem in problems] == [True]


@pytest.mark.parametrize(
    ("name", "imported", "problems"),
    [
        ("lab_90_proof.py", "lab_90_small", []),
        ("lab_90_proof.py", "lab_90_proof", ["lab_90_proof.py imports lab_90_proof"]),
        ("lab_90_proof.py", "lab_91_small", ["lab_90_proof.py imports lab_91_small"]),
        ("lab_22_strategies.py", "lab_17_gpt", []),
        ("lab_22_strategies.py", "lab_14_hooks", ["lab_22_strategies.py imports lab_14_hooks"]),
        ("lab_22_table.py", "lab_17_gpt", ["lab_22_table.py imports lab_17_gpt"]),
        ("exercise.py", "lab_90_small", ["exercise.py imports lab_90_small"]),
        ("exercise.py", "exercis", ["exercise.py imports exercis"]),
    ],
)
def test_a_lab_imports_labs_of_its_own_lesson_only(
    name: str, imported: str, problems: list[str], tmp_path: Path
):
    path = tmp_path / name
    path.write_text(f"from {imported} import main\n", encoding="utf-8")
    assert labs.import_problems(path) == problems


PLAIN_LAB = '''"""A plain lab of the tests.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_90_small.py
Written by:  notebooks/90_small.ipynb
"""

import os

import torch
from tqdm import tqdm


def main() -> None:
    print(os.environ["RANK"], torch.zeros(1), tqdm)


if __name__ == "__main__":
    main()
'''


def plain_course(folder: Path, lab: str = PLAIN_LAB) -> Lesson:
    """A course whose lesson begins with a plain lab."""
    root = make_course(folder / "course")
    notebook = mini_notebook()
    (cell,) = [cell for cell in notebook.cells if cell.source.startswith("%%writefile ../labs/lab_")]
    cell.source = f"%%writefile ../labs/lab_90_small.py\n{lab}"
    (root / "labs" / "lab_90_small.py").write_text(lab, encoding="utf-8")
    return write_lesson(root, notebook)


def test_a_plain_lab_needs_no_run(tmp_path: Path):
    assert labs.lab_problems(plain_course(tmp_path), tmp_path / "course") == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("import os", "import os\n\nimport numpy", "it is to be plain, but imports numpy"),
        ("from tqdm", "from shared.runtime.run import run\nfrom tqdm", "to be plain, but imports shared"),
        ("import os", "import os\n\nimport lab_90_other", "it is to be plain, but imports lab_90_other"),
        ('if __name__ == "__main__":\n    main()', "main()", "does not start under a __main__ guard"),
    ],
)
def test_a_first_lab_that_is_not_plain_is_found(old: str, new: str, expected: str, tmp_path: Path):
    assert old in PLAIN_LAB
    lesson = plain_course(tmp_path, PLAIN_LAB.replace(old, new))
    assert any(expected in problem for problem in labs.lab_problems(lesson, tmp_path / "course"))


def test_all_problems_are_told_at_once(tmp_path: Path):
    lesson = plain_course(tmp_path, PLAIN_LAB.replace("Written by", "From").replace("    main()", "    pass"))
    (tmp_path / "course" / "labs" / "exercises" / "90_small" / "solution.py").unlink()
    root = tmp_path / "course"
    with pytest.raises(pytest.fail.Exception) as told:
        tell([*labs.lab_problems(lesson, root), *labs.exercises_problems(lesson, root)])
    assert str(told.value).strip().splitlines() == [
        "lab_90_small.py has no line `Written by:  notebooks/90_small.ipynb`",
        "lab_90_small.py does not start under a __main__ guard",
        "90_small has no solution",
        "90_small has no check",
    ]


def test_a_lab_without_torchrun_is_told_apart(tmp_path: Path):
    assert labs.starts_with_torchrun(lab_with(tmp_path))
    assert not labs.starts_with_torchrun(lab_with(tmp_path, "Run it:      torchrun", "Run it:      python"))


@pytest.fixture
def exercise(tmp_path: Path) -> Path:
    """The root of a course whose exercise is complete."""
    folder = tmp_path / "labs" / "exercises" / "90_small"
    folder.mkdir(parents=True)
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
    ],
)
def test_an_incomplete_exercise_is_found(name: str, text: str | None, expected: str, exercise: Path):
    if text is None:
        (exercise / name).unlink()
    else:
        (exercise / name).write_text(text, encoding="utf-8")
    problems = labs.exercise_problems("90_small", exercise.parents[2])
    assert [expected in problem for problem in problems] == [True]
