"""Lesson 14: the table of the sweep is that of the code; the images to test by choose nothing."""

from dataclasses import replace
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow  # it imports torch


@pytest.fixture(scope="module")
def sweep() -> ModuleType:
    from lesson_14 import sweep

    return sweep


def test_the_table_is_that_of_the_code(sweep: ModuleType):
    """A change of the code that trains asks for ``python labs/lesson_14/sweep.py``."""
    assert f"# code {sweep.digest()}, {sweep.Config()}" in sweep.PATH.read_text(encoding="utf-8").splitlines()
    settings = {(row.way, row.lr, row.outer_lr) for row in sweep.read()}
    wanted = set()
    for name, way in sweep.WAYS.items():
        outer = sweep.OUTER_LRS if way.kind == "DiLoCo" else (0.0,)
        wanted |= {(name, lr, outer_lr) for lr in sweep.LRS for outer_lr in outer}
    assert settings == wanted
    assert len(sweep.read()) == sweep.FOLDS * len(wanted)


def test_a_row_comes_out_again(sweep: ModuleType):
    (row,) = [row for row in sweep.read() if (row.way, row.lr, row.seed) == ("local SGD, H = 4", 0.2, 0)]
    cfg = replace(sweep.Config(), steps=row.test_95)
    (accuracies,) = sweep.train(sweep.WAYS[row.way], [sweep.Run(row.seed, row.lr)], cfg)
    repeated = sweep.row_of(row.way, sweep.Run(row.seed, row.lr), accuracies, cfg)
    assert (repeated.test_90, repeated.test_95) == (row.test_90, row.test_95)


def test_each_image_is_tested_once():
    from lesson_14.workers import FOLDS, split_of

    splits = [split_of(seed) for seed in range(FOLDS)]
    assert sum(len(split.test_y) for split in splits) == 1797
    assert all(len(split.train_y) + len(split.tune_y) + len(split.test_y) == 1797 for split in splits)


def test_what_is_tested_by_chooses_no_learning_rate(sweep: ModuleType):
    from lesson_14.tuned import most_accurate, tuned

    slow = sweep.Row("bf16", 0.1, 0.0, 0, 60, 80, 4, 4, 0.96, 0.99)
    fast = sweep.Row("bf16", 0.2, 0.0, 0, 40, 60, None, None, 0.97, 0.10)
    never = sweep.Row("bf16", 0.4, 0.0, 0, 20, None, 4, 4, 0.95, 0.99)
    assert tuned([slow, fast, never], "bf16", 0.95) == [fast]
    assert tuned([slow, fast, never], "bf16", 0.90) == [never]
    assert most_accurate([slow, fast, never], "bf16") == [fast]
