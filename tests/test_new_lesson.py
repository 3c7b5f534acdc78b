"""``make lesson`` writes a lesson that runs and keeps every rule but one: it holds placeholders."""

from pathlib import Path

import pytest

from shared.runtime.errors import InputError
from shared.runtime.loading import load_file
from shared.tools.lessons import Lesson, read_lessons
from shared.tools.new_lesson import skeleton, write
from shared.tools.outputs import text_of
from shared.tools.sync import differences
from tests.helpers import ROOT, Done, command, copy_of_checkout, python, torchrun
from tests.rules import tell
from tests.rules.labs import exercises_problems, is_plain, lab_problems
from tests.rules.links import link_problems
from tests.rules.placeholders import placeholder_problems
from tests.rules.rooms import room_problems
from tests.test_anatomy import RULES

pytestmark = pytest.mark.slow  # a whole lesson is made in a copy of the checkout

NUMBER = "99"
TITLE = "Less communication"
SLUG = "99_less_communication"
EXERCISE = f"labs/exercises/{SLUG}"


def make_lesson(root: Path, number: str = NUMBER, title: str = TITLE) -> Done:
    return python("-m", "shared.tools.new_lesson", "--", number, title, root=root, cwd=root)


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with a new lesson."""
    root = copy_of_checkout(tmp_path_factory.mktemp("lesson") / "course")
    done = python("-m", "shared.tools.sync", root=root, cwd=root)
    assert done.returncode == 0, done.stdout
    done = make_lesson(root)
    assert done.returncode == 0, done.stdout
    assert f"wrote tests/answers/exercise_{NUMBER}.py" in done.stdout.splitlines()
    return root


@pytest.fixture(scope="module")
def new(course: Path) -> Lesson:
    (lesson,) = [lesson for lesson in read_lessons(course) if lesson.number == NUMBER]
    return lesson


def test_no_placeholder_is_left():
    tell(placeholder_problems(ROOT))


def test_the_placeholders_of_a_new_lesson_are_listed(course: Path):
    found = placeholder_problems(course)
    assert (
        f"{SLUG}.ipynb, cell 0: TODO: which question does it answer?** TODO: what is true at the end."
        in found
    )
    assert f"labs/lab_{NUMBER}_proof.py:1: TODO: what it proves, in one line." in found
    for place in (f"{EXERCISE}/solution.py:1", f"tests/faults/lesson_{NUMBER}.py:"):
        assert any(problem.startswith(place) for problem in found)
    assert not any("exercise.py" in problem for problem in found)


def test_a_new_lesson_keeps_all_other_rules(course: Path, new: Lesson):
    problems = [problem for rule in RULES for problem in rule(new.notebook)]
    problems += lab_problems(new, course)
    problems += exercises_problems(new, course)
    problems += link_problems(course / new.path, course)
    problems += room_problems(course)
    problems += [f"{path} {problem}" for path, problem in differences(course).items()]
    tell(problems)
    assert is_plain(course / new.labs[0])
    assert not is_plain(course / new.labs[1])


def test_its_neighbours_link_to_it(course: Path):
    before = read_lessons(course)[-2]
    assert f"[{NUMBER} {TITLE} →]({SLUG}.ipynb)" in before.notebook.cells[0].source
    assert f"[{TITLE}](notebooks/{SLUG}.ipynb)" in (course / "README.md").read_text(encoding="utf-8")


def test_its_code_is_tidy(course: Path):
    names = [name for name in skeleton(NUMBER, TITLE) if "exercise.py" not in name]
    for arguments in (("check",), ("format", "--check")):
        done = command("ruff", *arguments, "--no-cache", *names, cwd=course)
        assert done.returncode == 0, done.stdout


def test_its_faults_have_their_places(course: Path):
    faults = load_file(course / "tests" / "faults" / f"lesson_{NUMBER}.py").FAULTS
    assert {fault.lab for fault in faults} == {SLUG, f"{NUMBER}_proof"}
    for fault in faults:
        text = (course / "labs" / f"lab_{fault.lab}.py").read_text(encoding="utf-8")
        assert text.count(fault.old) == 1


@pytest.mark.parametrize(
    ("number", "title", "told"),
    [
        ("08", TITLE, "notebooks/08_ddp.ipynb is there already"),
        (NUMBER, TITLE, f"notebooks/{SLUG}.ipynb is there already"),
        ("", TITLE, "N must be two digits, not ''"),
        ("7", TITLE, "N must be two digits, not '7'"),
        ("-1", TITLE, "N must be two digits, not '-1'"),
        ("98", "", "TITLE must begin with a capital and hold letters, digits and spaces, not ''"),
        ("98", "../up", "TITLE must begin with a capital"),
        ("98", "A\nB", "TITLE must begin with a capital"),
        ("98", "A · B", "TITLE must begin with a capital"),
    ],
)
def test_a_bad_number_or_title_is_refused(number: str, title: str, told: str, course: Path):
    with pytest.raises(InputError) as refused:
        write(number, title, course)
    assert str(refused.value).startswith(told)
    assert len(str(refused.value).splitlines()) == 1


def test_a_refusal_is_told_in_one_line_and_writes_nothing(course: Path):
    done = make_lesson(course, "-1")
    assert done.returncode == 1
    expected = "N must be two digits, not '-1': make lesson N=29 TITLE=\"Another lesson\"\n"
    assert done.stdout == expected
    assert differences(course) == {}


def test_an_edited_lab_is_not_overwritten(course: Path):
    lab = course / "labs" / f"lab_{NUMBER}_proof.py"
    before = lab.read_text(encoding="utf-8")
    lab.write_text(before + "# edited\n", encoding="utf-8")
    with pytest.raises(InputError, match="proof.py differs from its source: call `make format`"):
        write("98", "Another one", course)
    assert lab.read_text(encoding="utf-8") == before + "# edited\n"
    lab.write_text(before, encoding="utf-8")


def test_the_notebook_of_a_new_lesson_runs(course: Path):
    done = python("-m", "shared.tools.refresh", NUMBER, root=course, cwd=course)
    assert done.returncode == 0, done.stdout
    (lesson,) = [lesson for lesson in read_lessons(course) if lesson.number == NUMBER]
    shown = "".join(text_of(cell) for cell in lesson.notebook.cells)
    assert "the mean of 2 ranks is 0.5" in shown
    assert "equal to one process, to 1e-12" in shown
    assert f"Exercise {NUMBER} less communication: not started" in shown


def test_the_check_of_a_new_lesson_judges(course: Path, tmp_path: Path):
    folder = course / EXERCISE
    done = torchrun(folder / "check.py", "--answer", folder / "solution.py", root=course)
    assert done.returncode == 0
    assert "right: the largest values of 2 ranks. Well done." in done.stdout
    for answer in load_file(course / "tests" / "answers" / f"exercise_{NUMBER}.py", "answers").ANSWERS:
        path = tmp_path / "answer.py"
        path.write_text(answer.text((folder / "solution.py").read_text(encoding="utf-8")), encoding="utf-8")
        done = torchrun(folder / "check.py", "--answer", path, root=course)
        assert done.returncode == 1
        assert answer.told in done.stdout
