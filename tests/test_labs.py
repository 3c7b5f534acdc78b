"""Each lab says what it is, and each exercise belongs to a lesson."""

from pathlib import Path

from shared.tools.lessons import read_lessons
from tests.helpers import EXERCISES, ROOT
from tests.rules import labs, tell

LESSONS = read_lessons()


def test_labs_keep_the_rules():
    tell(
        f"{lesson.path.name}: {problem}" for lesson in LESSONS for problem in labs.lab_problems(lesson, ROOT)
    )


def test_each_solution_belongs_to_a_lesson():
    assert sorted(Path(name).parent.name for lesson in LESSONS for name in lesson.exercises) == EXERCISES
