"""The page of rank-replay in a browser: steps, keys, one rank, a hang, many events, and no network."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from rank_tools.replay.events import read, say_who_waits
from rank_tools.replay.page import page as page_of
from tests.browser import CHROMIUM_OPTIONS, find_chromium
from tests.test_browser import need_chromium

pytestmark = pytest.mark.slow

MANY = 20_000


def line(seconds: float, number: int, **changes: str) -> list:
    return ["line", seconds, 0, 1, 0, number, "main", changes, 0]


def reduce(seconds: float, number: int, **more: list) -> list[list]:
    asked = ["call", seconds, 0, number, "allreduce_", "0", [0, 1], None, 0, 8, ["(2,) float32"], ["[1, 2]"]]
    ends = [["wait", seconds, 0, number], ["end", seconds, 0, number, ["[3, 4]"]]]
    return [asked, *(ends if more.get("ends", True) else ends[:1])]


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    need_chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=find_chromium(), args=list(CHROMIUM_OPTIONS))
        yield started.new_page(viewport={"width": 1300, "height": 800})
        started.close()


def shown(browser: Page, folder: Path, *ranks: list[list], is_hang: bool = False) -> Page:
    """The page of ranks that did this, opened from the disk."""
    script = folder / "script.py"
    script.write_text("\n".join(f"x = {number}" for number in range(1, 41)), encoding="utf-8")
    for rank, events in enumerate(ranks):
        all_events = [["rank", 0.0, 0, rank, len(ranks)], ["file", 0.0, 0, 0, str(script)], *events]
        text = "".join(json.dumps(event) + "\n" for event in all_events)
        (folder / f"events-{rank}.jsonl").write_text(text, encoding="utf-8")
    replay = read(folder)
    if is_hang:
        say_who_waits(replay)
    out = folder / "replay.html"
    out.write_text(page_of(replay, "torchrun script.py", "exit code 0"), encoding="utf-8")
    asked: list[str] = []
    browser.on("request", lambda request: asked.append(request.url))
    browser.goto(out.as_uri())
    browser.evaluate("show(0)")
    assert asked == [out.as_uri()], "the page asks for nothing but itself"
    return browser


def marks(browser: Page) -> dict[str, str]:
    """{line of the script: the ranks that stand there}."""
    found = browser.locator("#code div.here").all()
    return {
        mark.locator(".number").inner_text(): mark.locator(".ranks").inner_text().replace("\n", "")
        for mark in found
    }


RANK_0 = [line(1, 3, x="1"), line(2, 4, x="2"), *reduce(3, 1), line(4, 5, y="[3, 4]")]
RANK_1 = [line(5, 3, x="7"), *reduce(6, 1), line(7, 5)]


def test_it_steps_forward_and_back_by_keys(browser: Page, tmp_path: Path):
    page = shown(browser, tmp_path, RANK_0, RANK_1)
    page.keyboard.press("ArrowRight")
    assert marks(page) == {"3": "01"}
    page.keyboard.press("ArrowRight")
    assert marks(page) == {"3": "1", "4": "0"}
    assert page.locator("#state tr.new").first.inner_text().split() == ["x", "2"]
    page.keyboard.press("ArrowLeft")
    assert marks(page) == {"3": "01"}
    page.keyboard.press("End")
    assert marks(page) == {"5": "01"}


def test_it_goes_to_the_next_communication_and_to_the_next_line_of_a_rank(browser: Page, tmp_path: Path):
    page = shown(browser, tmp_path, RANK_0, RANK_1)
    page.keyboard.press("c")
    assert page.locator("#step").inner_text().startswith("2 ")  # rank 1 calls, while rank 0 is in line 4
    assert "calls all_reduce (2,) float32 8 bytes" in page.locator("#state").inner_text()
    page.keyboard.press("1")
    assert marks(page)["5"].endswith("1")
    page.locator("#slider").fill("0")
    page.locator("#line").select_option("0")
    assert marks(page) == {"3": "01"}


def test_it_shows_one_rank_alone_and_the_seconds(browser: Page, tmp_path: Path):
    page = shown(browser, tmp_path, RANK_0, RANK_1)
    page.locator("#only").select_option("1")
    assert page.locator("#state h2").all_inner_texts() == ["rank 1"]
    page.locator("#only").select_option("-1")
    page.locator("#order").select_option("seconds")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert marks(page) == {"3": "0"}  # by the clocks, rank 1 comes seconds later


def test_it_shows_a_hang_as_it_opens(browser: Page, tmp_path: Path):
    waits = [line(1, 3), *reduce(2, 1, ends=False)]
    page = shown(browser, tmp_path, waits, [line(1, 3), line(2, 9)], is_hang=True)
    page.reload()
    assert (
        "rank 0 waits in all_reduce, collective 1 of its group, for rank 1"
        in page.locator("#notes").inner_text()
    )
    assert marks(page) == {"3": "0", "9": "1"}


def test_many_events_open_and_step(browser: Page, tmp_path: Path):
    lines = [line(number, 1 + number % 40, x=str(number)) for number in range(MANY)]
    page = shown(browser, tmp_path, lines, lines)
    page.keyboard.press("End")
    assert page.locator("#step").inner_text() == f"{MANY} of {MANY}"
    milliseconds = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    print(f"opened in {milliseconds / 1000:.2f} s")
