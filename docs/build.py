"""``make site``: build the web site from the committed notebooks, and check its links. Runs no notebook.

python -m docs.build [--to FOLDER]
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from sphinx.cmd.build import main as sphinx_build

from docs.links import check
from docs.sources import write_sources

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def build(root: Path, folder: Path) -> int:
    """Build the site of the course at ``root`` into ``folder``/html; exit code 0 when nothing is wrong."""
    began = time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    site = folder / "html"
    write_sources(root, pages)
    code = to_html(pages, site)
    if code:
        return code
    for original in (root / "notebooks").glob("[0-9]*.ipynb"):
        shutil.copy(original, site / "_sources" / "notebooks" / original.name)  # for the download button
    checked = check(site)
    for problem in checked.problems:
        print(problem)
    megabytes = sum(path.stat().st_size for path in site.rglob("*")) / 1e6
    seconds = time.perf_counter() - began
    print(f"{checked.pages} pages, {checked.links:,} links within them, {megabytes:.0f} MB, {seconds:.0f} s")
    print(f"open {site / 'index.html'}")
    return int(bool(checked.problems))


def to_html(pages: Path, site: Path) -> int:
    """Run Sphinx over a folder of pages. A warning is an error; all of them are shown."""
    options = ["-q", "-W", "--keep-going", "-c", str(HERE), "-d", str(site.parent / "doctrees")]
    return sphinx_build([*options, str(pages), str(site)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the web site of the course.")
    parser.add_argument("--to", type=Path, default=HERE / "_build", help="a folder, which is emptied first")
    return build(ROOT, parser.parse_args().to.resolve())


if __name__ == "__main__":
    sys.exit(main())
