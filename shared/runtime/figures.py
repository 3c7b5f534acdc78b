"""Pictures drawn from what a run recorded. Taught in lesson 05. Imports no torch."""

import io

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from cycler import cycler
from IPython.display import Image, display
from matplotlib.ticker import LogLocator

# Okabe and Ito's colours, safe for colour-blind readers, in an order that also steps in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "oo", "++")

plt.rcParams.update(
    {
        "figure.dpi": 110,
        "figure.figsize": (7.2, 3.8),
        "figure.constrained_layout.use": True,
        "font.size": 12,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#dddddd",
        "lines.linewidth": 2,
        "lines.markersize": 7,
        "axes.prop_cycle": cycler(color=COLOURS) + cycler(marker=MARKERS),
    }
)


def show(figure: plt.Figure, alt: str) -> None:
    """Display ``figure`` as a PNG with the text ``alt``, which says what a reader sees in it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    plt.close(figure)
    display(_Picture(buffer.getvalue(), alt))


def number_grid(axis: plt.Axes, rows: list[list[int]], title: str, highest: int) -> None:
    """Draw whole numbers as shaded squares, from white for 0 to dark for ``highest``, and write them in."""
    axis.imshow(rows, cmap="Blues", vmin=0, vmax=1.3 * highest)
    for y, row in enumerate(rows):
        for x, number in enumerate(row):
            color = "white" if 2 * number > highest else "black"
            axis.text(x, y, str(number), ha="center", va="center", color=color)
    axis.set(xticks=range(len(rows[0])), yticks=range(len(rows)), title=title)
    axis.grid(visible=False)


def tens_with_halves() -> LogLocator:
    """Ticks of a logarithmic axis at 1, 2, 5, 10, 20, 50, ..."""
    return LogLocator(subs=(1, 2, 5))


class _Picture(Image):
    """A PNG whose plain-text form is its alt text, so that it reads without the image too."""

    def __init__(self, data: bytes, alt: str) -> None:
        super().__init__(data=data, format="png", alt=alt)

    def __repr__(self) -> str:
        return f"Picture: {self.alt}"
