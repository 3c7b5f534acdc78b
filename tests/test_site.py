"""The web site that ``make site`` builds: its links, what it loads, how wide it is, how it is made."""

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell
from playwright.sync_api import Browser, sync_playwright

from docs.cheat_sheet import SHEET, cheat_sheet, tabulated
from docs.links import Checked, check
from docs.passages import blocks, with_columns
from docs.sources import LANGUAGES, add_project_pages, as_file, dressed, landing_page, settled
from shared.tools.lessons import WRITEFILE, read_lessons
from tests.browser import CHROMIUM_OPTIONS, find_chromium
from tests.helpers import HANG_S, LESSON_PATHS, ROOT, Done, python
from tests.mini_course import make_course
from tests.rules import tell

DESKTOP = {"width": 1400, "height": 1000}
PHONE = {"width": 390, "height": 844}
PAGE = "<!doctype html><html><head><title>A page</title>{head}</head><body>{body}</body></html>"
TABLE = "| You see | Why | You did | Cure | Lesson |\n|---|---|---|---|---|\n| a | b | c | d | e |"
FAILURES = f"# Failures\n\n**A hang**\n\n{TABLE}\n\n**An error**\n\n{TABLE}\n"


def need(is_there: bool, what: str) -> None:
    """Without it fail where it is required, as in CI, and skip elsewhere."""
    if not is_there:
        if os.environ.get("RANK_BY_RANK_BROWSER") == "required":
            pytest.fail(f"{what} is missing")
        pytest.skip(f"{what} is missing")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """The site of this checkout, and what the build said."""
    need(importlib.util.find_spec("sphinx") is not None, "Sphinx (`make site` installs it)")
    folder = tmp_path_factory.mktemp("site")
    return folder / "html", python("-m", "docs.build", "--to", folder)


@pytest.fixture
def site(built: tuple[Path, Done]) -> Path:
    return built[0]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    need(find_chromium() is not None, "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(CHROMIUM_OPTIONS))
        yield browser
        browser.close()


@dataclass
class Look:
    """What a browser says of a page: requests that leave the folder, complaints, pixels beyond its edge."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    beyond: dict[str, int] = field(default_factory=dict)

    def problems(self, name: str) -> list[str]:
        found = [f"{name} asks for {address}" for address in self.requests]
        found += [f"{name} complains: {text}" for text in self.complaints]
        found += [f"{name} is {n} pixels too wide for a {width}" for width, n in self.beyond.items() if n > 0]
        return found


def look_at(chromium: Browser, page_file: Path) -> Look:
    """Open a page at desktop width, then make it as narrow as a phone."""
    look = Look()
    page = chromium.new_page(viewport=DESKTOP)
    page.set_default_timeout(HANG_S * 1000)
    page.on("request", lambda one: look.requests.append(one.url) if _leaves(one.url) else None)
    page.on(
        "console", lambda one: look.complaints.append(one.text) if one.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: look.complaints.append(str(error)))
    page.goto(page_file.as_uri())
    for name, size in (("desktop", DESKTOP), ("phone", PHONE)):
        page.set_viewport_size(size)
        look.beyond[name] = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    page.close()
    return look


def _leaves(address: str) -> bool:
    return not address.startswith(("file:", "data:", "blob:"))


# The site of this checkout


@pytest.mark.slow
@pytest.mark.heavy
def test_the_site_is_built_without_a_warning_and_with_sound_links(built: tuple[Path, Done]):
    site, done = built
    assert done.returncode == 0, done.stdout
    checked = check(site)
    assert f"{checked.pages} pages, {checked.links:,} links" in done.stdout
    assert checked.pages >= len(LESSON_PATHS) + 3


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("path", LESSON_PATHS, ids=lambda path: path.stem)
def test_a_lesson_is_a_page_with_its_files_and_its_notebook(path: Path, site: Path):
    page = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
    files = [WRITEFILE.match(cell.source) for cell in nbformat.read(path, 4).cells]
    names = [match[1] for match in files if match]
    assert names
    shown = page.split('<details class="file"')[1:]
    assert len(shown) == len(names)
    for name, part in zip(names, shown, strict=True):
        assert f"<code>{name}</code>" in part.partition("</summary>")[0]
        assert f'class="highlight-{LANGUAGES[Path(name).suffix]} ' in part
    assert f'href="../_sources/notebooks/{path.name}"' in page
    assert (site / "_sources" / "notebooks" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow
@pytest.mark.heavy
def test_no_page_loads_from_elsewhere_complains_or_is_too_wide(site: Path, chromium: Browser):
    problems = []
    pages = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]
    for path in pages:
        problems += look_at(chromium, path).problems(path.relative_to(site).as_posix())
    assert len(pages) >= len(LESSON_PATHS) + 3
    tell(problems)


@pytest.mark.slow
@pytest.mark.heavy
def test_search_copy_and_dark_mode_work_from_files(site: Path, chromium: Browser):
    page = chromium.new_page(viewport=DESKTOP, color_scheme="dark")
    page.set_default_timeout(HANG_S * 1000)
    page.goto(f"{(site / 'search.html').as_uri()}?q=bucket")
    page.locator("#search-results li a").first.wait_for()
    addresses = page.locator("#search-results li a").evaluate_all("links => links.map(link => link.href)")
    assert any("09_ddp_inside.html" in address for address in addresses)
    page.goto((site / "notebooks" / "09_ddp_inside.html").as_uri())
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.locator("details.file button.copybtn").count() >= 5
    page.close()


@pytest.mark.slow
@pytest.mark.heavy
def test_formulas_are_mathml(site: Path):
    page = (site / "notebooks" / "10_training_template.html").read_text(encoding="utf-8")
    assert "<msub><mover><mi>x</mi>" in page


@pytest.mark.slow
@pytest.mark.heavy
def test_the_landing_page_has_what_the_readme_and_the_gallery_tell(site: Path):
    page = (site / "index.html").read_text(encoding="utf-8")
    linked = set(re.findall(r"\(notebooks/(\w+)\.ipynb", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert len(linked) > 20
    assert [name for name in linked if f'href="notebooks/{name}.html' not in page] == []
    for text in ("PP x FSDP x TP", "What do you see?", "DistStoreError"):
        assert text in page
    assert "A new lesson" not in page


# Faults are noticed


@pytest.mark.slow
@pytest.mark.heavy
def test_a_missing_source_of_the_cheat_sheet_is_red(checkout: Path):
    need(importlib.util.find_spec("sphinx") is not None, "Sphinx (`make site` installs it)")
    (path,) = (checkout / "notebooks").glob("05_*.ipynb")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("*Bus bandwidth*", "*Bandwidth of the bus*"), encoding="utf-8")
    done = python("-m", "docs.build", root=checkout, cwd=checkout)
    assert done.returncode == 1
    assert "lesson 05, 'What it costs elsewhere': '*Bus bandwidth*'" in done.stdout
    assert not (checkout / "docs" / "_build" / "html").exists()


@pytest.mark.slow
@pytest.mark.heavy
def test_a_warning_of_sphinx_is_red(tmp_path: Path):
    need(importlib.util.find_spec("sphinx") is not None, "Sphinx (`make site` installs it)")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# A page\n\n[no such page](other.md)\n", encoding="utf-8")
    code = "import sys, pathlib, docs.build; sys.exit(docs.build.to_html(*map(pathlib.Path, sys.argv[1:])))"
    done = python("-c", code, tmp_path / "pages", tmp_path / "html")
    assert done.returncode != 0
    assert "other.md" in done.stdout


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        ("", "<p>Nothing is wrong.</p>", ""),
        (
            "<script src='https://elsewhere.invalid/a.js'></script>",
            "",
            "asks for https://elsewhere.invalid/a.js",
        ),
        ("", "<script>fetch('https://elsewhere.invalid/b')</script>", "asks for https://elsewhere.invalid/b"),
        ("", "<script>console.error('oh')</script>", "complains: oh"),
        ("", "<script>undefined_function()</script>", "undefined_function is not defined"),
        ("", "<p style='width: 500px'>wide</p>", "pixels too wide for a phone"),
        ("", "<p style='width: 1500px'>wide</p>", "pixels too wide for a desktop"),
    ],
)
def test_a_browser_notices(head: str, body: str, expected: str, tmp_path: Path, chromium: Browser):
    (tmp_path / "page.html").write_text(PAGE.format(head=head, body=body), encoding="utf-8")
    found = look_at(chromium, tmp_path / "page.html").problems("page.html")
    assert bool(found) == bool(expected)
    assert expected in "\n".join(found)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<a href='other.html#here'>x</a> <a href='#top'>x</a> <a href='https://pytorch.org'>x</a>", ""),
        ("<a href='missing.html'>x</a>", "index.html links to missing.html: there is no such file"),
        (
            "<a href='other.html#there'>x</a>",
            "index.html links to other.html#there: there is no such place on that page",
        ),
        ("<a href='#bottom'>x</a>", "index.html links to #bottom: there is no such place on that page"),
        ("<img src='missing.png' alt='x'>", "index.html links to missing.png: there is no such file"),
        (
            "<script src='//elsewhere.invalid/x.js'></script>",
            "index.html loads //elsewhere.invalid/x.js from elsewhere",
        ),
        (
            "<link rel='stylesheet' href='https://elsewhere.invalid/x.css'>",
            "index.html loads https://elsewhere.invalid/x.css from elsewhere",
        ),
        (
            "<img src='data:image/png;base64,AAAA'>",
            "index.html shows data:image/png;base64,AAAA without a description",
        ),
    ],
)
def test_a_faulty_page_is_found(body: str, expected: str, tmp_path: Path):
    (tmp_path / "index.html").write_text(
        PAGE.format(head="", body=f"<p id='top'>{body}</p>"), encoding="utf-8"
    )
    (tmp_path / "other.html").write_text(PAGE.format(head="", body="<p id='here'></p>"), encoding="utf-8")
    checked: Checked = check(tmp_path)
    assert checked.problems == ([expected] if expected else [])
    assert checked.pages == 2


# How pages are put together


def test_the_cheat_sheet_finds_its_passages():
    failures = (ROOT / "notebooks" / "failures.md").read_text(encoding="utf-8")
    assert cheat_sheet(read_lessons(), failures).startswith("# Cheat sheet")


def test_the_cheat_sheet_names_each_passage_that_is_missing():
    with pytest.raises(LookupError) as error:
        cheat_sheet([], FAILURES)
    assert str(error.value).count("\nlesson ") == sum(map(len, SHEET.values()))


def test_columns_of_an_output_become_a_table():
    text = "--first   1    a number\n--second  two  a word, two blanks\nno column\n"
    assert tabulated(text, ("option", "default", "meaning")).splitlines() == [
        "| option | default | meaning |",
        "|---|---|---|",
        "| `--first` | 1 | a number |",
        "| `--second` | two | a word, two blanks |",
        "",
        "no column",
    ]


def test_a_table_is_reduced_to_columns():
    table = "| a | b |\n|---|---|\n| `x \\| y` | 2 |"
    assert with_columns(table, ("a",)) == "| a |\n| --- |\n| `x \\| y` |"
    with pytest.raises(LookupError, match="no column c in the table a | b"):
        with_columns(table, ("c", "a"))


def test_a_fenced_block_stays_whole():
    text = "one\n\n```python\na = 1\n\n## no heading\n```\n\n- x\n- y\n"
    assert list(blocks(text)) == ["one", "```python\na = 1\n\n## no heading\n```", "- x\n- y"]


def test_the_landing_page_leaves_out_what_is_for_authors():
    sections = "## One\n\n[x](notebooks/failures.md)\n\n## Layout\n\nno\n\n## Two\n\nyes\n"
    readme = f"# T\n\nA sentence.\n\nMore.\n\n{sections}"
    page = landing_page(readme, "the gallery: [04](04_collectives.ipynb)")
    titles = [line for line in page.splitlines() if line.startswith("#")]
    assert titles == ["# T", "## One", "## What do you see?", "## Two"]
    assert "[04](notebooks/04_collectives.ipynb)" in page


def test_links_to_files_become_pages_or_downloads_and_links_to_folders_become_text(tmp_path: Path):
    (tmp_path / "labs").mkdir()
    (tmp_path / "LICENSE").write_text("free", encoding="utf-8")
    (tmp_path / "MORE.md").write_text(
        "# More\n\n[licence](LICENSE), [labs](labs/), [back](README.md)\n", encoding="utf-8"
    )
    pages = {
        "index.md": settled(
            "<!-- a mark -->\n# A title\n\n[more](MORE.md) [up](#a-title) [gone](#gone)", tmp_path
        )
    }
    assert pages["index.md"] == "# A title\n\n[more](MORE.md) [up](#A-title) gone"
    assert add_project_pages(pages, tmp_path) == ["MORE.md", "LICENSE"]
    assert pages["MORE.md"] == "# More\n\n[licence](LICENSE), labs, [back](index.md)\n"


def test_a_job_script_is_told_by_its_first_comment():
    text = as_file("labs/lab_90_job.sbatch", "#!/bin/bash\n#SBATCH --nodes=2\n# Two nodes.\nsrun true", True)
    assert "<code>labs/lab_90_job.sbatch</code> · 4 lines · Two nodes.</summary>" in text
    assert "````bash\n#!/bin/bash\n" in text
    assert "1 lines</summary>" in as_file("labs/lab_90_job.yaml", "a: 1", True)


def test_what_is_folded_in_a_notebook_is_folded_on_the_site(tmp_path: Path):
    (lesson,) = read_lessons(make_course(tmp_path / "course", "90"))
    lesson.notebook.cells.append(new_code_cell("axis.plot([1])\n" * 8))
    lab, exercise = [cell.source for cell in dressed(lesson).cells if "<details class" in cell.source]
    assert lab.startswith(
        '<details class="file"><summary><code>labs/lab_90_small.py</code> · 17 lines · A lab of'
    )
    assert exercise.startswith('<details class="file" open>')
    assert "%%writefile" not in lab + exercise
    hidden = ["hide-input" in cell.metadata.get("tags", []) for cell in dressed(lesson).cells]
    assert hidden == [False] * (len(hidden) - 1) + [True]
    for cell in lesson.notebook.cells:
        cell.source = cell.source.replace("from shared.runtime", "from torch.distributed")
    plain = [cell.source for cell in dressed(lesson).cells if "<details class" in cell.source][0]
    assert plain.startswith('<details class="file" open>')
