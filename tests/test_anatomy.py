"""Each lesson begins alike, its links lead somewhere, and its labs say what they are."""

from pathlib import Path

from shared.tools.lessons import read_lessons
from tests.helpers import LESSON_PATHS, ROOMS, ROOT
from tests.rules import cells, labs, tell
from tests.rules.links import link_problems

LESSONS = read_lessons()
RULES = (cells.set_up_problems, cells.image_problems)


def test_lessons_keep_the_rules():
    problems = []
    for lesson in LESSONS:
        for rule in RULES:
            problems += [f"{lesson.path.name}: {problem}" for problem in rule(lesson.notebook)]
        if lesson.header["number"] != lesson.number:
            problems.append(f"{lesson.path.name} has another number in its header")
    tell(problems)


def test_links_lead_somewhere():
    tell(problem for path in (*LESSON_PATHS, *ROOT.glob("*.md")) for problem in link_problems(path, ROOT))


def test_labs_keep_the_rules():
    tell(
        f"{lesson.path.name}: {problem}" for lesson in LESSONS for problem in labs.lab_problems(lesson, ROOT)
    )


def test_each_solution_belongs_to_a_lesson():
    written = sorted(Path(name).parent for lesson in LESSONS for name in lesson.exercises)
    assert [ROOT / folder for folder in written] == ROOMS
