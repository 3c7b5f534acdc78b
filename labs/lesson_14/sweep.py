"""The sweep of lesson 14: every way with every learning rate and five seeds, a row each in ``sweep.csv``.

    .venv/bin/python labs/lesson_14/sweep.py

That takes about ten minutes of one core. The file says in its first lines which code made it, and a test
compares.
"""

import ast
import csv
import hashlib
import inspect
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import shared  # noqa: F401 - makes the rooms importable

from lesson_14 import workers
from lesson_14.workers import FOLDS, WAYS, Config, Run, train

PATH = Path(__file__).with_name("sweep.csv")
LRS = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
OUTER_LRS = (0.1, 0.2, 0.4, 0.7, 1.0)  # DiLoCo's; the paper has 0.7
TARGETS = (0.90, 0.95)
COLUMNS = (
    "way",
    "lr",
    "outer_lr",
    "seed",
    "tune_90",
    "tune_95",
    "test_90",
    "test_95",
    "tune_end",
    "test_end",
)


@dataclass(frozen=True)
class Row:
    """One training: steps until an accuracy was reached, None if it was not, and the accuracies in the end.

    What ends on ``tune`` chooses the learning rate, what ends on ``test`` is reported.
    """

    way: str
    lr: float
    outer_lr: float
    seed: int
    tune_90: int | None
    tune_95: int | None
    test_90: int | None
    test_95: int | None
    tune_end: float
    test_end: float


def steps_to(target: float, accuracies: list[float], look: int) -> int | None:
    for number, accuracy in enumerate(accuracies, start=1):
        if accuracy >= target:
            return look * number
    return None


def row_of(way: str, run: Run, accuracies: list[tuple[float, float]], cfg: Config) -> Row:
    tune = [pair[0] for pair in accuracies]
    test = [pair[1] for pair in accuracies]
    low, high = TARGETS
    return Row(
        way=way,
        lr=run.lr,
        outer_lr=run.outer_lr,
        seed=run.seed,
        tune_90=steps_to(low, tune, cfg.look),
        tune_95=steps_to(high, tune, cfg.look),
        test_90=steps_to(low, test, cfg.look),
        test_95=steps_to(high, test, cfg.look),
        tune_end=round(tune[-1], 4),
        test_end=round(test[-1], 4),
    )


def digest() -> str:
    """Of the code that trains, without its docstrings and comments."""
    tree = ast.parse(inspect.getsource(workers))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            del node.body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def write(rows: list[Row], path: Path = PATH) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# python labs/lesson_14/sweep.py, torch {torch.__version__}\n")
        file.write(f"# code {digest()}, {Config()}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow(["" if value is None else value for value in vars(row).values()])


def read(path: Path = PATH) -> list[Row]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = []
    for cells in csv.DictReader(lines):
        values: dict[str, Any] = {"way": cells["way"], "seed": int(cells["seed"])}
        for name in ("lr", "outer_lr", "tune_end", "test_end"):
            values[name] = float(cells[name])
        for name in ("tune_90", "tune_95", "test_90", "test_95"):
            values[name] = int(cells[name]) if cells[name] else None
        rows.append(Row(**values))
    return rows


def main() -> None:
    torch.set_num_threads(1)
    cfg = Config()
    rows = []
    for name, way in WAYS.items():
        start = time.perf_counter()
        for outer_lr in OUTER_LRS if way.kind == "DiLoCo" else (0.0,):
            runs = [Run(seed, lr, outer_lr) for lr in LRS for seed in range(FOLDS)]
            curves = train(way, runs, cfg)
            rows += [row_of(name, run, curve, cfg) for run, curve in zip(runs, curves, strict=True)]
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    write(rows)


if __name__ == "__main__":
    main()
