"""``rank-check SCRIPT...``: read training scripts and say what they lack on several ranks."""

import argparse
import sys
from pathlib import Path

from .findings import RULES, Finding, ScriptError, examine, read
from .rule import SEVERITIES

NOT_READ = 2  # as argparse ends after a wrong option
CODES = {"style": 1, "slow": 1, "wrong": 3, "hangs": 4}

EPILOG = f"""\
severities:
{chr(10).join(f"  {name:6} {what}" for name, what in reversed(SEVERITIES.items()))}

exit code:
  0  nothing was found
  1  the worst finding is of style or slow
  2  a script could not be read, or an option is wrong
  3  the worst finding is of wrong
  4  the worst finding is of hangs

A comment "# rank-check: ignore" on a line keeps the checklist silent about that line. Modules beside the
script, or in its package, are read as far as the script uses them. Nothing is run.
"""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="rank-check",
        description="Read training scripts and say what they lack on several ranks.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scripts", nargs="*", type=Path, metavar="SCRIPT")
    parser.add_argument("--questions", action="store_true", help="list what is asked, and leave")
    parser.add_argument(
        "--from",
        dest="mildest",
        choices=list(SEVERITIES),
        default="style",
        help="say and count only what is at least as bad as this",
    )
    options = parser.parse_args(arguments)
    if not options.scripts and not options.questions:
        parser.error("name at least one script")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Ask all questions to all scripts; return the exit code, see ``--help``."""
    options = parse(arguments)
    if options.questions:
        for rule in RULES:
            print(f"{rule.severity:6} {rule.name:10} {rule.question}")
        return 0
    counted = list(SEVERITIES)[list(SEVERITIES).index(options.mildest) :]
    codes = {0}
    for path in options.scripts:
        try:
            found = [one for one in check(path) if one.severity in counted]
        except ScriptError as error:
            print(error, file=sys.stderr)
            codes.add(NOT_READ)
            continue
        for one in found:
            print(line_of(one, path))
        print(f"{path.name}: {len(RULES)} questions, {len(found)} finding{'s' * (len(found) != 1)}")
        codes |= {CODES[one.severity] for one in found}
    return NOT_READ if NOT_READ in codes else max(codes)


def check(path: Path) -> list[Finding]:
    """What is found in one script.

    Raises:
        ScriptError: it cannot be read, or it is nested too deeply.
    """
    source = read(path)
    try:
        return examine(source, path)
    except (RecursionError, MemoryError):
        raise ScriptError(f"{path.name}: nested too deeply to be read") from None


def line_of(found: Finding, script: Path) -> str:
    """``train.py:12: wrong: epoch: what is wrong there (also in 30, 41)``."""
    name = (found.path or script).name
    first, *others = found.lines
    also = f" (also in {', '.join(map(str, others))})" if others else ""
    return f"{name}:{first}: {found.severity}: {found.rule}: {found.text}{also}"


def command() -> None:
    sys.exit(main())


if __name__ == "__main__":
    command()
