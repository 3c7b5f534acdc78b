"""``python -m shared.checklist SCRIPT``: read a training script and say what it lacks on several ranks."""

import argparse
import sys
from pathlib import Path

from .findings import RULES, ScriptError, findings, read


def main() -> int:
    """Exit code 0: no finding; 1: at least one; 2: no script that can be read."""
    parser = argparse.ArgumentParser(
        prog="python -m shared.checklist",
        description="Read a training script and say what it lacks on several ranks. Nothing of it is run.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("script", nargs="?", type=Path)
    what.add_argument("--questions", action="store_true", help="list what is asked")
    options = parser.parse_args()
    if options.questions:
        for rule in RULES:
            print(f"{rule.__name__:9} {rule.__doc__}")
        return 0
    try:
        found = findings(read(options.script))
    except ScriptError as error:
        print(error, file=sys.stderr)
        return 2
    name = options.script.name
    for (line, *others), rule_name, text in found:
        also = f" (also in {', '.join(map(str, others))})" if others else ""
        print(f"{name}:{line}: {rule_name}: {text}{also}")
    print(f"{name}: {len(RULES)} questions, {len(found)} finding{'s' * (len(found) != 1)}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
