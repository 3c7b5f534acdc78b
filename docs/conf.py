"""Sphinx's settings for `make site`. Notebooks are shown with their committed outputs; none is run."""

from docutils import nodes
from latex2mathml.converter import convert

from docs.search import write_sections

project = "Rank by Rank"
author = "the authors of Rank by Rank"
language = "en"
smartquotes = False  # it makes a dash of the two hyphens of an option
extensions = ["myst_nb", "sphinx_copybutton", "sphinx.ext.githubpages"]

nb_execution_mode = "off"
nb_custom_formats = {".ipynb": "docs.pages.read_notebook"}
nb_merge_streams = True
nb_render_markdown_format = "myst"  # tables that a cell made, with links to other lessons
myst_enable_extensions = ["attrs_block", "dollarmath"]
myst_heading_anchors = 4
myst_heading_slug_func = "docs.pages.slug"
suppress_warnings = ["misc.highlighting_failure"]  # cells with `!` lines that go on after a backslash

html_theme = "sphinx_book_theme"
html_title = "Rank by Rank"
html_use_index = False
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_math_renderer = "mathml"
html_show_sphinx = False
html_show_copyright = False
html_context = {"default_mode": "auto"}  # light or dark as the reader's system is
html_theme_options = {
    "footer_content_items": [],
    "home_page_in_toc": True,
    "navbar_persistent": [],  # else an empty bar with a second search field stands on top
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "toc_title": "On this page",
    "use_download_button": True,
    "use_fullscreen_button": False,
}
copybutton_selector = "div.cell_input pre, details.file pre, div.highlight-bash pre"


def _inline(translator, node: nodes.math) -> None:
    translator.body.append(convert(node.astext(), display="inline"))
    raise nodes.SkipNode


def _block(translator, node: nodes.math_block) -> None:
    translator.body.append(convert(node.astext(), display="block"))
    raise nodes.SkipNode


def setup(app) -> None:
    """Formulas become MathML, which browsers draw by themselves. The search gets its sections."""
    app.connect("build-finished", write_sections)
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
