"""Print the requirements of one extra of pyproject.toml, a line each. Runs with nothing installed.

python shared/tools/pins.py EXTRA [--over OTHER] [--only NAME ...]
"""

import argparse
import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def requirements(extra: str, over: str | None = None, only: list[str] | None = None) -> list[str]:
    """The requirements of ``extra``; those of ``over`` take the place of its own for the same packages."""
    extras = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    by_name = {name_of(line): line for line in extras[extra]}
    if over:
        by_name.update({name_of(line): line for line in extras[over]})
    return [line for name, line in by_name.items() if not only or name in only]


def name_of(line: str) -> str:
    """The package that a requirement such as ``torch==2.15.0`` is about."""
    return re.split(r"[<>=!~\[ ]", line)[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the requirements of one extra of pyproject.toml.")
    parser.add_argument("extra")
    parser.add_argument("--over", metavar="EXTRA", help="an extra whose requirements go before")
    parser.add_argument("--only", metavar="NAME", nargs="+", help="the packages to print")
    wanted = parser.parse_args()
    print("\n".join(requirements(wanted.extra, wanted.over, wanted.only)))
