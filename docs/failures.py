"""The table of failures, `notebooks/failures.md`, as the pages of the site show it."""

import re

from docs.passages import blocks, with_columns

GROUP = re.compile(r"^\*\*(.*)\*\*$", re.MULTILINE)


def groups(failures: str) -> dict[str, str]:
    """{what one sees in general: table of its failures}."""
    found = {}
    name = ""
    for block in blocks(failures):
        match = GROUP.fullmatch(block)
        if match:
            name = match[1]
        elif block.startswith("|"):
            found[name] = block
    if not found:
        raise LookupError("there is no table in failures.md")
    return found


def page(failures: str) -> str:
    """The table as a page: each group gets a heading. The names of the cases are left out."""
    parts = [failures.partition("\n")[0]]
    for name, table in groups(failures).items():
        parts += [f"## {name}", with_columns(table, ("You see", "You did", "Why", "Cure", "Lesson"))]
    return "\n\n".join(parts) + "\n"


def gallery(failures: str) -> str:
    """Each group folded, with what one sees and what helps."""
    parts = []
    for name, table in groups(failures).items():
        count = table.count("\n") - 1
        short = with_columns(table, ("You see", "You did", "Cure", "Lesson"))
        parts.append(f"<details><summary>{name} ({count})</summary>\n\n{short}\n\n</details>")
    return "\n\n".join(parts)
