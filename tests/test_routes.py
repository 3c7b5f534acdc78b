"""A route's lessons stand on that route: what it skips is said in two sentences of ``lessons.md``."""

import re

import pytest

from shared.tools.course import ROUTES, Route
from shared.tools.lessons import read_lessons
from tests.helpers import ROOT

ROW = re.compile(r"^\| (\d\d) \| (.+) \|$", re.MULTILINE)
BUILDS_ON = {lesson.number: set(re.findall(r"\d\d", lesson.header["builds_on"])) for lesson in read_lessons()}
LONGEST = 80  # words


def told() -> dict[str, str]:
    """{lesson: its two sentences}, as the page has them."""
    page = (ROOT / "notebooks" / "lessons.md").read_text(encoding="utf-8")
    return dict(ROW.findall(page.partition("## Each lesson in two sentences")[2]))


def skipped(route: Route) -> set[str]:
    """Lessons that a later lesson of the route builds on, and that the route has not had by then."""
    missing = set()
    for place, number in enumerate(route.lessons):
        missing |= BUILDS_ON[number] - set(route.lessons[:place])
    return missing


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.who)
def test_what_a_route_skips_is_said(route: Route):
    assert sorted(skipped(route) - told().keys()) == []


def test_a_lesson_that_is_not_said_is_noticed():
    assert skipped(Route("skip much", ("00", "09"), {})) == {"05", "08"}
    assert "07" not in told()
    assert "07" not in set().union(*map(skipped, ROUTES))


def test_the_page_says_only_what_a_route_needs_and_briefly():
    needed = set().union(*map(skipped, ROUTES))
    assert sorted(told().keys() - needed) == []
    assert [number for number, text in told().items() if len(text.split()) > LONGEST] == []
