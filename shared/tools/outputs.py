"""Outputs of a notebook: cleaned for committing, searched for leaks, compared with another execution."""

import re

import nbformat

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")  # what a progress bar wrote over
LEAKS = {
    "a path of this machine": re.compile(r"(?<![\w.])/(?:home|root|tmp|work|usr|Users|opt|var|mnt)/\S*"),
    "a process id": re.compile(r"\bpid[ :=]+\d+", re.IGNORECASE),
    "a warning": re.compile(r"\w*Warning\b|\[W\d{3}|\b[WE]\d{4} \d\d:\d\d:"),
    "an address in memory": re.compile(r"\b0x[0-9a-f]{6,}"),
    "that it was not run": re.compile(r"^not run here: .*", re.MULTILINE),
}
NOT_RUN = LEAKS["that it was not run"]
RUNS_CHECK = re.compile(r"^!.*labs/lesson_\d\d/check\.py", re.MULTILINE)  # its verdict is the reader's own
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
RELATIVE_TOLERANCE = 0.02  # processors round differently, and training amplifies it
ZERO = 1e-11  # differences below this count as the same nothing
# What torch says where there is no name server or no IPv6.
OF_THE_NETWORK = re.compile(r"^\[W\d{4} \S+ socket\.cpp:\d+\] \[c10d\] .*\n", re.MULTILINE)


def clean(notebook: nbformat.NotebookNode) -> None:
    """Give the notebook fixed ids and metadata, and drop what changes from run to run."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python", "pygments_lexer": "ipython3"},
        }
    )
    notebook.nbformat_minor = 5
    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{index:02d}"
        cell.metadata = nbformat.from_dict(
            {k: v for k, v in cell.metadata.items() if k in ("tags", "jupyter")}
        )
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                text = ANSI.sub("", output.text.replace("\r\n", "\n"))
                output.text = OVERWRITTEN.sub("", text)


def text_of(cell: nbformat.NotebookNode) -> str:
    """All that a code cell shows, as plain text."""
    parts = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            parts.append(output.text)
        elif output.output_type == "error":
            parts.append(f"{output.ename}: {output.evalue}\n")
        else:
            parts.append(str(output.data.get("text/plain", "")) + "\n")
            parts.extend(f"<{kind}>\n" for kind in sorted(output.data) if kind != "text/plain")
    return "".join(parts)


def problems(notebook: nbformat.NotebookNode, host: str) -> list[str]:
    """What forbids committing this notebook: missing or failed outputs, leaks, pictures without alt text."""
    faults = []
    patterns = {**LEAKS, "this machine's name": re.compile(rf"\b{re.escape(host)}\b")}
    if len(host) < 4 or host == "localhost":
        del patterns["this machine's name"]
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        if cell.execution_count is None:
            faults.append(f"cell {index} was not executed")
        for output in cell.outputs:
            if output.output_type == "error":
                faults.append(f"cell {index} holds an error: {output.ename}")
            if "image/png" in output.get("data", {}) and not output.metadata.get("image/png", {}).get("alt"):
                faults.append(f"cell {index} shows a picture without alt text")
        text = text_of(cell)
        for what, pattern in patterns.items():
            match = pattern.search(text)
            if match:
                faults.append(f"cell {index} shows {what}: {match[0]!r}")
    return faults


def same_text(expected: str, actual: str) -> bool:
    """Texts and whole numbers equal, other numbers within ``RELATIVE_TOLERANCE`` or both below ``ZERO``."""
    if NUMBER.sub("#", expected) != NUMBER.sub("#", actual):
        return False
    return all(
        _same_number(a, b) for a, b in zip(NUMBER.findall(expected), NUMBER.findall(actual), strict=True)
    )


def same_words(expected: str, actual: str) -> bool:
    """Texts equal but for the numbers in them and the blanks around these."""
    return NUMBER.sub("#", expected).split() == NUMBER.sub("#", actual).split()


def _same_number(expected: str, actual: str) -> bool:
    if expected == actual:
        return True
    if not any(mark in expected + actual for mark in ".eE"):
        return False
    a, b = (float(text.replace(",", "")) for text in (expected, actual))
    return abs(a - b) <= max(RELATIVE_TOLERANCE * abs(a), ZERO)


def compare(committed: nbformat.NotebookNode, executed: nbformat.NotebookNode) -> list[str]:
    """Cells whose outputs differ between two executions.

    Cells tagged ``timing`` may show anything, and so may the check of an exercise, a cell that says ``not run
    here``, and one that its reader never ran or whose run failed. Cells tagged ``varies`` must show the same
    words; their numbers come from training in float32, and depend on the processor's vector instructions.
    """
    clean(committed)
    clean(executed)
    differences = []
    for index, (old, new) in enumerate(zip(committed.cells, executed.cells, strict=True)):
        tags = old.metadata.get("tags", [])
        if old.cell_type != "code" or "timing" in tags or RUNS_CHECK.search(old.source):
            continue
        never_ran = old.execution_count is None and not old.outputs
        if never_ran or any(output.output_type == "error" for output in old.outputs):
            continue
        before = text_of(old)
        now = text_of(new)
        if NOT_RUN.search(now):
            continue
        same = same_words if "varies" in tags else same_text
        if not same(before, OF_THE_NETWORK.sub("", now)):
            differences.append(f"cell {index} shows\n{now}\nbut committed is\n{before}")
    return differences


def not_run(executed: nbformat.NotebookNode) -> list[str]:
    """What the cells say that were not run here, each reason once."""
    said = [text for cell in executed.cells for text in NOT_RUN.findall(text_of(cell))]
    return list(dict.fromkeys(said))
