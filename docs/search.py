"""What the site's search looks through: each section of each page, as a script that works from files, too."""

import json
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes

LONGEST_CODE = 1500  # characters; longer blocks are labs, which are searched in their own files
SKIPPED = (nodes.section, nodes.title, nodes.raw, nodes.comment)
ROWS_APART = "notebooks/failures"  # its rows are looked for one by one


def write_sections(app, exception: Exception | None) -> None:
    """Sphinx calls this when it has built the site."""
    if exception is not None or app.builder.format != "html":
        return
    sections = []
    for name in sorted(app.env.found_docs):
        page = app.env.titles[name].astext()
        sections += [
            {"page": name, "title": page, "anchor": anchor, "heading": heading, "text": text}
            for anchor, heading, text in sections_of(app.env.get_doctree(name), name == ROWS_APART)
        ]
    script = f"const SECTIONS = {json.dumps(sections, ensure_ascii=False)};\n"
    (Path(app.outdir) / "_static" / "sections.js").write_text(script, encoding="utf-8")


def sections_of(page: nodes.document, rows_apart: bool = False) -> Iterator[tuple[str, str, str]]:
    """(anchor, heading, text without that of sections below) of each section.

    With ``rows_apart`` each row of a table comes by itself, too, and its first cell is its heading.
    """
    for section in page.findall(nodes.section):
        heading = section.next_node(nodes.title)
        anchor = section["ids"][-1]
        tables = [child for child in section.children if rows_apart and isinstance(child, nodes.table)]
        others = [child for child in section.children if child not in tables]
        yield anchor, heading.astext() if heading else "", _text(others)
        for table in tables:
            for row in next(table.findall(nodes.tbody)).children:
                yield anchor, _text(row.children[:1]), _text(row.children)


def _text(parts: list[nodes.Node]) -> str:
    return " ".join(" ".join(text for part in parts for text in _texts(part)).split())


def _texts(node: nodes.Node) -> Iterator[str]:
    if isinstance(node, SKIPPED):
        return
    if isinstance(node, nodes.literal_block):
        if len(node.astext()) <= LONGEST_CODE:
            yield node.astext()
    elif isinstance(node, nodes.TextElement):
        yield node.astext()
    else:
        for child in node.children:
            yield from _texts(child)
