"""Print the requirements of one extra of pyproject.toml, a line each. Runs with nothing installed.

python shared/tools/pins.py EXTRA [NAME ...]
"""

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def requirements(extra: str, names: list[str]) -> list[str]:
    """The requirements of ``extra``, or only those of the packages ``names``."""
    lines = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"][extra]
    return [line for line in lines if not names or re.split(r"[<>=!~ ]", line)[0] in names]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1], sys.argv[2:])))
