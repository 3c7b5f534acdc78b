"""Diffs in prose: a fence while they are written, HTML with colours where they are read."""

import re
from html import escape, unescape

FENCED = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COLOURED = re.compile(r'^<pre class="diff">\n(.*?)^</pre>$', re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"</?span[^>]*>")
BACKGROUNDS = {"-": "rgba(179, 84, 34, 0.2)", "+": "rgba(43, 122, 61, 0.2)"}


def coloured(markdown: str) -> str:
    """The same text with its fenced diffs as HTML: JupyterLab gives the lines of a fence no colours."""
    return FENCED.sub(lambda match: f'<pre class="diff">\n{_shown(match[1])}</pre>', markdown)


def fenced(markdown: str) -> str:
    """The text that ``coloured`` was given."""
    return COLOURED.sub(lambda match: f"```diff\n{unescape(SPAN.sub('', match[1]))}```", markdown)


def _shown(diff: str) -> str:
    lines = []
    for line in diff.splitlines():
        text = escape(line, quote=False)
        background = BACKGROUNDS.get(line[:1])
        lines.append(f'<span style="background-color: {background}">{text}</span>' if background else text)
    return "".join(f"{line}\n" for line in lines)
