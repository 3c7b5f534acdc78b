"""Each lesson begins alike, and its links lead somewhere."""

from shared.tools.lessons import read_lessons
from tests.helpers import LESSON_PATHS, ROOT
from tests.rules import cells, tell
from tests.rules.links import link_problems

RULES = (cells.set_up_problems, cells.image_problems)


def test_lessons_keep_the_rules():
    problems = []
    for lesson in read_lessons():
        for rule in RULES:
            problems += [f"{lesson.path.name}: {problem}" for problem in rule(lesson.notebook)]
        if lesson.header["number"] != lesson.number:
            problems.append(f"{lesson.path.name} has another number in its header")
    tell(problems)


def test_links_lead_somewhere():
    tell(problem for path in (*LESSON_PATHS, *ROOT.glob("*.md")) for problem in link_problems(path, ROOT))
