"""What the site's search looks through: each section of each page, as a script that works from files, too."""

import json
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes

LONGEST_CODE = 1500  # characters; longer blocks are labs, which are searched in their own files
SKIPPED = (nodes.section, nodes.title, nodes.raw, nodes.comment)


def write_sections(app, exception: Exception | None) -> None:
    """Sphinx calls this when it has built the site."""
    if exception is not None or app.builder.format != "html":
        return
    sections = []
    for name in sorted(app.env.found_docs):
        page = app.env.titles[name].astext()
        sections += [
            {"page": name, "title": page, "anchor": anchor, "heading": heading, "text": text}
            for anchor, heading, text in sections_of(app.env.get_doctree(name))
        ]
    script = f"const SECTIONS = {json.dumps(sections, ensure_ascii=False)};\n"
    (Path(app.outdir) / "_static" / "sections.js").write_text(script, encoding="utf-8")


def sections_of(page: nodes.document) -> Iterator[tuple[str, str, str]]:
    """(anchor, heading, text without that of sections below) of each section."""
    for section in page.findall(nodes.section):
        heading = section.next_node(nodes.title)
        text = " ".join(part for child in section.children for part in _texts(child))
        yield section["ids"][-1], heading.astext() if heading else "", " ".join(text.split())


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
