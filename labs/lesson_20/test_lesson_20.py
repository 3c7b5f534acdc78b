"""Layouts of context parallelism: each chunk lies on one rank, a zigzag has the same work in each step."""

from types import ModuleType

import nbformat
import pytest

from rank_tools.planner import model_named
from shared.runtime.loading import load_file
from tests.helpers import ROOT

pytestmark = pytest.mark.slow  # it imports torch
RANKS = [1, 2, 3, 4, 7, 16]


@pytest.fixture(scope="module")
def ring() -> ModuleType:
    return load_file(ROOT / "labs" / "lab_20_ring.py", "lab_20_ring")


@pytest.mark.parametrize("zigzag", [False, True])
def test_each_chunk_lies_on_one_rank(ring: ModuleType, zigzag: bool):
    for ranks in RANKS:
        held = [chunk for rank in range(ranks) for chunk in ring.chunks_of(rank, ranks, zigzag)]
        assert sorted(held) == list(range(2 * ranks))


def blocks_in_steps(ring: ModuleType, rank: int, ranks: int, zigzag: bool) -> list[int]:
    """How many blocks ``rank`` computes in each step of the ring."""
    mine = ring.chunks_of(rank, ranks, zigzag)
    steps = []
    for step in range(ranks):
        theirs = ring.chunks_of((rank - step) % ranks, ranks, zigzag)
        steps.append(len(ring.blocks(mine, theirs, 1)))
    return steps


def test_a_zigzag_has_the_same_work_on_all_ranks_in_each_step(ring: ModuleType):
    for ranks in RANKS:
        for rank in range(ranks):
            assert blocks_in_steps(ring, rank, ranks, zigzag=True) == [3] + [2] * (ranks - 1)


def test_in_order_the_last_rank_computes_most(ring: ModuleType):
    for ranks in RANKS:
        work = [sum(blocks_in_steps(ring, rank, ranks, zigzag=False)) for rank in range(ranks)]
        assert work == [4 * rank + 3 for rank in range(ranks)]


def test_all_blocks_that_causality_needs_are_computed_once(ring: ModuleType):
    ranks = 3
    computed = []
    for rank in range(ranks):
        mine = ring.chunks_of(rank, ranks)
        for source in range(ranks):
            theirs = ring.chunks_of(source, ranks)
            for rows, columns, diagonal in ring.blocks(mine, theirs, 1):
                query, key = mine[rows.start], theirs[columns.start]
                assert diagonal == (query == key)
                computed.append((query, key))
    assert sorted(computed) == [(query, key) for query in range(6) for key in range(query + 1)]


def test_the_page_has_what_operations_alone_explain():
    """With full recomputation: of the layers' products, the head's, and 4.5 forward passes of attention."""
    model = model_named("8b")
    head = 6 * model.embedding()
    layers = 8 * (model.active_parameters() - 2 * model.embedding())
    short, long = (4.5 * 2 * model.layers * model.attention_width() * length for length in (32_768, 262_144))

    def times(products: float) -> str:
        return f"{(products + long) / (products + short):.1f} times"

    notebook = nbformat.read(ROOT / "notebooks" / "20_context_parallel.ipynb", 4)
    [page] = [cell.source for cell in notebook.cells if "By operations alone" in cell.source]
    assert f", {3890 / 548:.1f} times." in page
    assert f"take {(layers + head) / 1e9:.0f} GFLOP; causal attention takes {short / 1e9:.0f}" in page
    assert f"= {times(layers + head)} in bfloat16" in page
    assert f"= {times(layers / 2 + head)} if FP8" in page
