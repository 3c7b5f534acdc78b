"""Lesson 14: the sweep's table is that of the code, and how the time of a step on a network is computed."""

from dataclasses import replace
from types import ModuleType

import pytest

from shared.runtime.loading import load_file
from tests.helpers import ROOT

pytestmark = pytest.mark.slow  # it imports torch


@pytest.fixture(scope="module")
def networks() -> ModuleType:
    return load_file(ROOT / "labs" / "lab_14_networks.py")


@pytest.fixture(scope="module")
def sweep() -> ModuleType:
    from shared.lesson_14 import sweep

    return sweep


def test_the_table_is_that_of_the_code(sweep: ModuleType):
    """A change of the code that trains asks for ``python -m shared.lesson_14.sweep``."""
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
    from shared.lesson_14.workers import FOLDS, split_of

    splits = [split_of(seed) for seed in range(FOLDS)]
    assert sum(len(split.test_y) for split in splits) == 1797
    assert all(len(split.train_y) + len(split.tune_y) + len(split.test_y) == 1797 for split in splits)


@pytest.mark.parametrize(
    ("way", "hidden", "expected"),
    [
        ("all-reduce", False, 10 + 56 + 1.4),  # 2 * 7/8 * 4e9 bytes at 1 Gbit/s, 14 messages of 0.1 s
        ("all-reduce", True, 10 + 56 + 1.4 - 5),
        ("bf16", True, 10 + 28 + 1.4 - 5),
        ("local SGD, H = 4", False, 10 + 14 + 0.35),
        ("local SGD, H = 4", True, 10 + 14 + 0.35),
    ],
)
def test_a_step_takes_computation_messages_and_bytes(
    networks: ModuleType, way: str, hidden: bool, expected: float
):
    job = networks.Job(parameters=1e9, step_s=10, backward=0.5)
    assert networks.step_s(way, networks.Network(100, 1), job, hidden) == pytest.approx(expected)


def test_a_way_is_told_apart_if_it_is_slower_with_every_seed(networks: ModuleType):
    cells = {
        "a": networks.Cell("all-reduce", [10.0, 12.0]),
        "b": networks.Cell("bf16", [20.0, 12.0]),
        "c": networks.Cell("DiLoCo, H = 4", [10.5, 12.5]),
    }
    assert networks.fastest(cells) == ["a", "b"]
