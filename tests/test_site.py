"""The web site that ``make site`` builds: its links, what it loads, how wide it is, how it is made."""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, sync_playwright

from docs.pages import LANGUAGES, as_file, read_notebook
from shared.tools.lessons import WRITEFILE
from tests.browser import CHROMIUM_OPTIONS, find_chromium
from tests.helpers import HANG_S, LESSON_PATHS, ROOT, Done, notebook_of, python
from tests.rules import tell

DESKTOP = {"width": 1400, "height": 1000}
PHONE = {"width": 390, "height": 844}


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
        problems = [f"{name} asks for {address}" for address in self.requests]
        problems += [f"{name} complains: {text}" for text in self.complaints]
        problems += [
            f"{name} is {n} pixels too wide for a {width}" for width, n in self.beyond.items() if n > 0
        ]
        return problems


def look_at(chromium: Browser, page_file: Path) -> Look:
    """Open a page at desktop width, then make it as narrow as a phone."""
    look = Look()
    page = chromium.new_page(viewport=DESKTOP)
    page.set_default_timeout(HANG_S * 1000)
    page.on("request", lambda request: look.requests.append(request.url) if _leaves(request.url) else None)
    page.on(
        "console",
        lambda message: (
            look.complaints.append(message.text) if message.type in ("error", "warning") else None
        ),
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
def test_the_site_is_built_without_a_warning(built: tuple[Path, Done]):
    site, done = built
    assert done.returncode == 0, done.stdout
    assert done.stdout == f"open {site / 'index.html'}\n"


@pytest.mark.slow
def test_a_lesson_is_a_page_with_its_files_and_its_notebook(site: Path):
    for path in LESSON_PATHS:
        page = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
        cells = nbformat.read(path, 4).cells
        names = [match[1] for cell in cells if (match := WRITEFILE.match(cell.source))]
        shown = page.split('<details class="file"')[1:]
        assert names and len(shown) == len(names), path.name
        for name, part in zip(names, shown, strict=True):
            assert f"<code>{name}</code>" in part.partition("</summary>")[0]
            assert f'class="highlight-{LANGUAGES[Path(name).suffix]} ' in part
        assert (
            f'href="../_sources/notebooks/{path.name}" download' in page
            and 'href="#the-lab">The lab<' in page
        )
        assert (site / "_sources" / "notebooks" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_no_page_loads_from_elsewhere_complains_or_is_too_wide(site: Path, chromium: Browser):
    problems = []
    pages = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]
    for path in pages:
        problems += look_at(chromium, path).problems(path.relative_to(site).as_posix())
    assert len(pages) >= len(LESSON_PATHS) + 3
    tell(problems)


@pytest.mark.slow
def test_search_copy_and_dark_mode_work_from_files(site: Path, chromium: Browser):
    page = chromium.new_page(viewport=DESKTOP, color_scheme="dark")
    page.set_default_timeout(HANG_S * 1000)
    page.goto(f"{(site / 'search.html').as_uri()}?q=bucket")
    page.locator("#search-results li a").first.wait_for()
    addresses = page.locator("#search-results li a").evaluate_all("links => links.map(link => link.href)")
    assert any("09_ddp_inside.html" in address for address in addresses)
    page.goto((site / "notebooks" / "09_ddp_inside.html").as_uri())
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.locator("details.file button.copybtn").count() == 2  # the lab and the exercise
    page.close()


@pytest.mark.slow
def test_formulas_are_mathml(site: Path):
    page = (site / "notebooks" / "27_many_machines.html").read_text(encoding="utf-8")
    assert "<math" in page


@pytest.mark.slow
def test_the_landing_page_leads_to_each_lesson_and_page(site: Path):
    page = (site / "index.html").read_text(encoding="utf-8")
    names = [path.stem for path in (ROOT / "notebooks").iterdir() if path.suffix in (".ipynb", ".md")]
    assert [name for name in names if f'href="notebooks/{name}.html' not in page] == []


SOUGHT = {  # what people look for: the page that must come first
    "barrier timeout": "failures",
    "port in use": "failures",
    "hang": "failures",
    "exit code -9": "failures",
    "NCCL watchdog": "failures",
    "ncclSystemError": "failures",
    "device-side assert": "failures",
    "_orig_mod": "failures",
    "samples repeat after resume": "failures",
    "glossary": "glossary",
    "FSDP": "glossary",
    "checkpoint": "glossary",
}


@pytest.mark.slow
def test_search_finds_sections_with_an_excerpt_from_files(site: Path, chromium: Browser):
    page = chromium.new_page(viewport=DESKTOP)
    page.set_default_timeout(HANG_S * 1000)
    first = {}
    for query in SOUGHT:
        page.goto(f"{(site / 'search.html').as_uri()}?q={query}")
        link = page.locator("#search-results li a").first
        first[query] = Path(link.get_attribute("href").partition("#")[0]).stem
        assert query.split()[0].lower() in page.locator("#search-results li").first.inner_text().lower()
    assert first == SOUGHT
    page.goto(f"{(site / 'search.html').as_uri()}?q=zzzz")
    assert page.locator("#search-results").inner_text() == "No section has “zzzz”."
    page.close()


# How pages are put together


def test_a_file_tells_its_name_and_is_shown_in_its_language():
    text = as_file("labs/lab_90_job.sbatch", "#!/bin/bash\nsrun true")
    assert text.startswith(
        '<details class="file" open><summary><code>labs/lab_90_job.sbatch</code> · 2 lines<'
    )
    assert "````bash\n#!/bin/bash\n" in text


def test_a_file_that_a_cell_writes_is_shown_as_a_file():
    lab = "%%writefile ../labs/lab_90_plain.py\nimport torch\n"
    first, second = read_notebook(nbformat.writes(notebook_of(lab, "1 + 1"))).cells
    assert first.source.startswith('<details class="file" open><summary><code>labs/lab_90_plain.py')
    assert "%%writefile" not in first.source
    assert second.source == "1 + 1"
