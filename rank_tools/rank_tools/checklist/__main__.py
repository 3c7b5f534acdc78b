"""``rank-check PATH...``: read training scripts and say what is wrong on several ranks."""

import argparse
import os
import sys
from importlib import metadata

from .report import FORMATS, check
from .rules import RULES, Rule
from .source import files_of

FOUND, FAILED = 1, 2  # exit codes

EPILOG = """\
exit code:
  0  nothing was found
  1  something was found
  2  a file could not be read, or an option is wrong

--select and --ignore take codes (RC202), their beginnings (RC2) and names (share). The comment
"# rank-check: ignore[RC202]" keeps a rule silent about its line, "# rank-check: ignore" all of them.
Nothing is run or imported, and no other file is followed.
"""


def words_of(option: str) -> list[str]:
    return [word.strip() for word in option.split(",") if word.strip()]


class UsageError(Exception):
    """A wrong option; the text says why."""


def installed_version() -> str:
    """That of the package. A copied folder is not it, also beside an installed one."""
    if not __package__.startswith("rank_tools."):
        return "(a copied folder)"
    try:
        return metadata.version("rank-tools")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="rank-check",
        description="Read training scripts and say what is wrong on several ranks.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help='scripts, notebooks, folders; "-" is the standard input'
    )
    parser.add_argument(
        "--select", metavar="RULES", type=words_of, help="ask these rules alone; separated by commas"
    )
    parser.add_argument("--ignore", metavar="RULES", type=words_of, default=[], help="leave these rules out")
    parser.add_argument(
        "--exclude",
        metavar="NAMES",
        type=words_of,
        default=[],
        help="leave out files and folders of these names",
    )
    parser.add_argument("--output-format", choices=list(FORMATS), default="text")
    parser.add_argument("--rules", action="store_true", help="list the rules, and leave")
    parser.add_argument("--version", action="version", version=f"%(prog)s {installed_version()}")
    options = parser.parse_args(arguments)
    if not options.paths and not options.rules:
        parser.error("name at least one script, notebook or folder")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Ask all files; return the exit code, see ``--help``."""
    options = parse(arguments)
    if options.rules:
        for rule in RULES:
            print(f"{rule.code} {rule.name:10} {rule.find.__doc__}")
        return 0
    try:
        rules = chosen(options.select, options.ignore)
    except UsageError as error:
        print(f"rank-check: {error}", file=sys.stderr)
        return FAILED
    report = check(list(files_of(options.paths, set(options.exclude))), rules)
    print(FORMATS[options.output_format](report, rules))
    for line in report.errors:
        print(line, file=sys.stderr)
    return FAILED if report.errors else FOUND if report.findings else 0


def chosen(select: list[str] | None, ignore: list[str]) -> list[Rule]:
    """The rules that are asked; a UsageError if a word names none, or if none is left."""
    for word in [*(select or []), *ignore]:
        if not any(rule.answers(word) for rule in RULES):
            raise UsageError(f"{word} is no rule: see rank-check --rules")
    asked = [rule for rule in RULES if select is None or any(map(rule.answers, select))]
    rules = [rule for rule in asked if not any(map(rule.answers, ignore))]
    if not rules:
        raise UsageError("no rule is left to ask: see rank-check --rules")
    return rules


def command() -> None:
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has enough, as ``| head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FOUND
    sys.exit(code)


if __name__ == "__main__":
    command()
