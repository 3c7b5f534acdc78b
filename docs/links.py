"""Checks a built site: links lead somewhere, pictures are described, nothing is loaded from elsewhere."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

WITH_SOURCE = ("script", "img", "iframe", "source", "video", "audio", "embed")
LOADING = {"stylesheet", "icon", "preload", "preconnect", "modulepreload"}  # relations of <link>


class Page(HTMLParser):
    """The places of a page, where it leads to, what is loaded with it, pictures without a description."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.leads_to: list[str] = []
        self.loads: list[str] = []
        self.undescribed: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.leads_to.append(values["href"])
        if tag == "link" and LOADING & set(values.get("rel", "").split()):
            self.loads.append(values["href"])
        if tag in WITH_SOURCE and "src" in values:
            self.loads.append(values["src"])
        if tag == "img" and not values.get("alt"):
            self.undescribed.append(values.get("src", ""))


@dataclass
class Checked:
    """What is wrong with a site, and how much was looked at."""

    problems: list[str] = field(default_factory=list)
    pages: int = 0
    links: int = 0


def check(site: Path) -> Checked:
    """Look at all pages of the built site. Links that leave it are not followed."""
    paths = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.relative_to(site).parts]
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in paths}
    checked = Checked(pages=len(pages))
    for path, page in pages.items():
        found = [f"shows {target} without a description" for target in page.undescribed]
        for target in page.loads:
            if leaves(target) and not target.startswith("data:"):
                found.append(f"loads {target} from elsewhere")
        inside = [target for target in page.leads_to + page.loads if not leaves(target)]
        for target in inside:
            problem = problem_of(path, target, pages)
            if problem:
                found.append(f"links to {target}: {problem}")
        checked.links += len(inside)
        checked.problems += [f"{path.relative_to(site).as_posix()} {problem}" for problem in found]
    return checked


def leaves(target: str) -> bool:
    """Whether a link leads out of the site, to a host or into another program."""
    parts = urlsplit(target)
    return bool(parts.scheme or parts.netloc)


def problem_of(path: Path, target: str, pages: dict[Path, Page]) -> str:
    """What is wrong with a link on the page at ``path``, or an empty text."""
    parts = urlsplit(target)
    file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not file.is_file():
        return "there is no such file"
    place = unquote(parts.fragment)
    if place and file in pages and place not in pages[file].places:
        return "there is no such place on that page"
    return ""
