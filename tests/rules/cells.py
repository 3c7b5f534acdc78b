"""Rules for the cells of a lesson."""

import ast
import re
from collections.abc import Iterator

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from shared.tools.folding import is_folded_lab
from shared.tools.lessons import cells_of

SECTIONS = (
    "You will",
    "The lab",
    "Reading the result",
    "What it costs",
    "What goes wrong",
    "Your turn",
    "On real GPUs",
    "You did",
)
SET_UP = "from shared.runtime import notebook\n\nnotebook.setup()"
LONGEST_CELL = 25
HEADING = re.compile(r"^(#{1,6}) +(.+?) *$", re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\(|<img\b(?P<attributes>[^>]*)>")
ABOVE = re.compile(r"^Folded: [^\n]+\.\Z", re.MULTILINE)
BRACES = re.compile(r"\$?\{[^{}]*\}|[{}]")
SHELL_CALLS = ("system", "getoutput")
FORBIDDEN_MODULES = ("multiprocessing", "subprocess", "torch.multiprocessing")
FORBIDDEN_CALLS = ("os.system", "os.popen", "os.fork")
FORBIDDEN_MAGICS = ("bash", "sh", "script", "sx", "system", "!", "!!", "python", "python3")


def headings(markdown: str) -> list[tuple[int, str]]:
    """(level, title) of each heading; code blocks are left out."""
    return [(len(marks), title) for marks, title in HEADING.findall(FENCE.sub("", markdown))]


def section_problems(notebook: NotebookNode) -> list[str]:
    titles = [
        title
        for cell in cells_of(notebook, "markdown")
        for level, title in headings(cell.source)
        if level == 2
    ]
    problems, position = [], 0
    for section in SECTIONS:
        places = [index for index, title in enumerate(titles) if section in title]
        if not places:
            problems.append(f"there is no section {section!r}")
        elif places[-1] < position:
            problems.append(f"section {section!r} stands too early")
        else:
            position = next(place for place in places if place >= position)
    return problems


def set_up_problems(notebook: NotebookNode) -> list[str]:
    code = cells_of(notebook, "code")
    problems = []
    if not code or code[0].source != SET_UP:
        problems.append("the first code cell is not the set-up")
    if len(code) < 2 or "parameters" not in code[1].metadata.get("tags", []):
        problems.append("the second code cell is not tagged `parameters`")
    elif not re.search(r"^WORLD_SIZE = \d+", code[1].source, re.MULTILINE):
        problems.append("the cell tagged `parameters` does not set WORLD_SIZE")
    return problems


def length_problems(notebook: NotebookNode) -> list[str]:
    return [
        f"cell {index} has {lines} lines, allowed are {LONGEST_CELL}"
        for index, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and not cell.source.startswith("%%writefile")
        if (lines := len(cell.source.splitlines())) > LONGEST_CELL
    ]


def folded_problems(notebook: NotebookNode) -> list[str]:
    """Above a folded lab stands a line that says what the lab does."""
    cells = notebook.cells
    return [
        f"above {cell.source.split()[1]} stands no line `Folded: ... .`"
        for above, cell in zip(cells, cells[1:], strict=False)
        if cell.cell_type == "code" and is_folded_lab(cell.source)
        if above.cell_type != "markdown" or not ABOVE.search(above.source)
    ]


def image_problems(notebook: NotebookNode) -> list[str]:
    problems = []
    for cell in cells_of(notebook, "markdown"):
        for match in IMAGE.finditer(FENCE.sub("", cell.source)):
            alt = match["alt"] or re.search(r"""\balt=(["'])\s*\S.*?\1""", match["attributes"] or "")
            if not alt:
                problems.append(f"an image has no alt text: {match[0]}")
    return problems


def starting_problems(notebook: NotebookNode) -> list[str]:
    """A lesson starts processes in one way only: a line that begins with ``!``."""
    forbidden = []
    for node in _nodes(notebook):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call):
            names = [ast.unparse(node.func)]
            if isinstance(node.func, ast.Attribute) and node.func.attr in (
                "run_cell_magic",
                "run_line_magic",
            ):
                names = [f"%{node.args[0].value}"] if node.args[0].value in FORBIDDEN_MAGICS else []
        else:
            continue
        forbidden += [name for name in names if name.startswith("%") or name in FORBIDDEN_CALLS]
        forbidden += [name for name in names if name.startswith(FORBIDDEN_MODULES)]
    return [f"a cell uses {name}; start processes with `!`" for name in forbidden]


def brace_problems(notebook: NotebookNode) -> list[str]:
    """IPython leaves a whole ``!`` line as it is when a single brace in it cannot be expanded."""
    known = {node.id for node in _nodes(notebook) if isinstance(node, ast.Name)}
    problems = []
    for line in shell_lines(notebook):
        for brace in BRACES.findall(line):
            if brace[1:-1] not in known:
                problems.append(f"{brace} in `!{line}` is not the name of a variable alone")
    return problems


def shell_lines(notebook: NotebookNode) -> list[str]:
    """What follows each ``!``, with continued lines joined."""
    return [
        node.args[0].value
        for node in _nodes(notebook)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in SHELL_CALLS and ast.unparse(node.func.value) == "get_ipython()"
    ]


def _nodes(notebook: NotebookNode) -> Iterator[ast.AST]:
    for cell in cells_of(notebook, "code"):
        yield from ast.walk(ast.parse(TransformerManager().transform_cell(cell.source)))
