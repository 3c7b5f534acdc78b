"""``rank-check PATH...``: read training scripts and say what they lack on several ranks."""

import argparse
import os
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from .findings import RULES, check
from .report import FORMATS, page
from .rule import DEFAULT, SEVERITIES, Rule

FOUND, FAILED = 1, 2  # exit codes
SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv", ".venv"}
OPTIONS = {"select": list, "ignore": list, "exclude": list, "src": list, "sure": bool}  # of [tool.rank-check]

EPILOG = f"""\
severities, the worst first:
{chr(10).join(f"  {name:6} {what}" for name, what in reversed(SEVERITIES.items()))}

exit code:
  0  nothing was found
  1  something was found
  2  a file could not be read, or an option is wrong

By default the rules of "hangs" and "wrong" are asked, but for those that were wrong too often:
{", ".join(rule.name for rule in RULES if rule.severity in DEFAULT and not rule.by_default)}.
A finding that is less than sure ends with how many such findings were true on scripts that its rule had not
seen. The sure rules: {", ".join(rule.name for rule in RULES if rule.tier == "sure")}.
--select and --ignore take codes (RC101), their beginnings (RC1), names (meet), severities (slow) or ALL. The
comment "# rank-check: ignore[RC101]" keeps a rule silent about its line, "# rank-check: ignore" all of them.
What stands in [tool.rank-check] of the pyproject.toml above the first path (select, ignore, exclude, src,
sure) holds where no option says otherwise. Nothing is run or imported.
"""


class UsageError(Exception):
    """A wrong option; the text says why."""


def installed_version() -> str:
    """That of the package. A copied folder is not it, also beside an installed one."""
    try:
        return metadata.version("rank-by-rank") if __package__.startswith("shared.") else "(a copied folder)"
    except metadata.PackageNotFoundError:
        return "(not installed)"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="rank-check",
        description="Read training scripts and say what they lack on several ranks.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help='scripts, notebooks, folders; "-" is the standard input'
    )
    parser.add_argument("--select", help="ask these rules alone; separated by commas")
    parser.add_argument("--ignore", help="leave these rules out")
    parser.add_argument(
        "--sure", action="store_true", help="ask those alone that were right nine times in ten"
    )
    parser.add_argument("--exclude", help="leave out files and folders of these names, in folders")
    parser.add_argument("--output-format", choices=list(FORMATS), default="text")
    parser.add_argument("--no-config", action="store_true", help="do not read pyproject.toml")
    parser.add_argument("--rules", action="store_true", help="list the rules, and leave")
    parser.add_argument("--page", action="store_true", help="print the page of all rules, and leave")
    parser.add_argument("--version", action="version", version=f"%(prog)s {installed_version()}")
    options = parser.parse_args(arguments)
    if not options.paths and not options.rules and not options.page:
        parser.error("name at least one script, notebook or folder")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Ask all files; return the exit code, see ``--help``."""
    options = parse(arguments)
    if options.page:
        print(page(RULES))
        return 0
    try:
        settings = {} if options.no_config or not options.paths else read_settings(options.paths[0])
        for name in ("select", "ignore", "exclude"):
            given = getattr(options, name)
            if given is not None:
                settings[name] = [word.strip() for word in given.split(",") if word.strip()]
        rules = chosen(settings.get("select"), settings.get("ignore", []))
        if options.sure or settings.get("sure"):
            rules = tuple(rule for rule in rules if rule.tier == "sure")
    except UsageError as error:
        print(f"rank-check: {error}", file=sys.stderr)
        return FAILED
    if options.rules:
        for rule in RULES:
            print(f"{rule.code} {rule.severity:6} {rule.name:14} {rule.question}")
        return 0
    paths = list(files_of(options.paths, {*SKIPPED, *settings.get("exclude", [])}))
    report = check(paths, rules, [Path(folder) for folder in settings.get("src", [])])
    print(FORMATS[options.output_format](report, rules, len(paths)))
    for line in report.errors:
        print(line, file=sys.stderr)
    return FAILED if report.errors else FOUND if report.findings else 0


def read_settings(first: str) -> dict[str, Any]:
    """What [tool.rank-check] says in the pyproject.toml above the first path.

    Raises:
        UsageError: it cannot be read, or says something that is unknown.
    """
    start = Path.cwd() if first == "-" else Path(first).resolve()
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("rank-check", {})
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: {error}") from None
        for name, value in settings.items():
            if name not in OPTIONS or not isinstance(value, OPTIONS[name]):
                known = ", ".join(f"{name} ({kind.__name__})" for name, kind in OPTIONS.items())
                raise UsageError(f"{path}: [tool.rank-check] {name}: known are {known}")
        return {**settings, "src": [str(folder / src) for src in settings.get("src", [])]}
    return {}


def chosen(select: list[str] | None, ignore: list[str]) -> tuple[Rule, ...]:
    """The rules that are asked.

    Raises:
        UsageError: a word names no rule.
    """
    asked = [rule for rule in RULES if rule.by_default] if select is None else named(select)
    left_out = named(ignore)
    return tuple(rule for rule in RULES if rule in asked and rule not in left_out)


def named(words: list[str]) -> list[Rule]:
    result = []
    for word in words:
        rules = [
            rule
            for rule in RULES
            if word == "ALL" or word in (rule.name, rule.severity) or rule.code.startswith(word)
        ]
        if not rules:
            raise UsageError(f"{word} is no rule: see rank-check --rules")
        result += rules
    return result


def files_of(paths: list[str], left_out: set[str]) -> Iterator[Path]:
    """The files that are named, and the scripts and notebooks in the folders that are."""
    for name in paths:
        path = Path(name)
        if not path.is_dir() or name == "-":
            yield path
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(
                child for child in folders if child not in left_out and not child.startswith(".")
            )
            for file in sorted(names):
                if file.endswith((".py", ".ipynb")) and file not in left_out:
                    yield Path(folder, file)


def command() -> None:
    sys.exit(main())


if __name__ == "__main__":
    command()
