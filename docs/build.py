"""``make site``: build the web site from the committed notebooks. Runs no notebook.

python -m docs.build [--to FOLDER] [--linkcheck]
"""

import argparse
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx_build

from docs.pages import write_pages

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def run_sphinx(pages: Path, target: Path, builder: str = "html") -> int:
    """Run Sphinx over a folder of pages. A warning, such as a link that leads nowhere, is an error."""
    options = ["-q", "-W", "--keep-going", "-b", builder, "-c", str(HERE), "-d", str(target / "doctrees")]
    return sphinx_build([*options, str(pages), str(target / builder)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the web site of the course.")
    parser.add_argument("--to", type=Path, default=HERE / "_build", help="a folder, which is emptied first")
    parser.add_argument("--linkcheck", action="store_true", help="ask for each address that a page links to")
    options = parser.parse_args()
    target = options.to.resolve()
    shutil.rmtree(target, ignore_errors=True)
    write_pages(ROOT, target / "pages")
    builder = "linkcheck" if options.linkcheck else "html"
    code = run_sphinx(target / "pages", target, builder)
    if code == 0 and builder == "html":
        print(f"open {target / 'html' / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
