"""The strategies of lesson 22 at real size: Llama 3 8B on 64 H100, 64 sequences of 8,192 tokens, by formula.

Run it:      python labs/lesson_28/real_size.py

prints the table of notebooks/strategies.md; with ``--draw`` it writes notebooks/images/strategies_8b.png.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rank_tools.planner import Layout, Memory, Network, gpu_named, memory_of, model_named, stack_named
from rank_tools.planner.hardware import GIB, by_rule
from rank_tools.planner.search import ERROR_OUTSIDE
from rank_tools.planner.stack import MIXED
from rank_tools.planner.step import most_traffic, step_time

MODEL, GPUS, SEQUENCES = "8b", 64, 64
SLOW = Network(card=12.5e9)  # 100 Gb/s a GPU
SHARDED: dict[str, Any] = {"zero": 3, "stack": stack_named("torch")}
ROWS = {
    "DDP 64": Layout(dp=64, stack=stack_named("torch")),
    "ZeRO-1 64, as in Megatron": Layout(dp=64, zero=1, stack=stack_named("torch", numbers=MIXED)),
    "FSDP 64": Layout(dp=64, **SHARDED),
    "FSDP 64, checkpointing": Layout(dp=64, recompute="full", **SHARDED),
    "HSDP 8 x 8 shards": Layout(dp=8, replicate=8, **SHARDED),
    "FSDP 8 x TP 8 + SP": Layout(dp=8, tp=8, sequence_parallel=True, **SHARDED),
    "the same, checkpointing": Layout(dp=8, tp=8, sequence_parallel=True, recompute="full", **SHARDED),
    "FSDP 8 x TP 8, 4 at a time": Layout(dp=8, tp=8, sequence_parallel=True, micro_batch=4, **SHARDED),
    "FSDP 8 x CP 8, gather": Layout(dp=8, cp=8, context="gather", **SHARDED),
    "FSDP 8 x CP 8, 8 at a time": Layout(dp=8, cp=8, context="gather", micro_batch=8, **SHARDED),
    "FSDP 8 x PP 8": Layout(dp=8, pp=8, resharding=False, **SHARDED),
}
TO_FIT = 0.92 * 80  # GiB
KINDS = ("parameters", "gradients", "optimizer", "gathered", "activations", "working")
DIMENSIONS = ("dp", "replicate", "tp", "cp", "pp")


def held(layout: Layout) -> Memory:
    return memory_of(model_named(MODEL), layout, SEQUENCES)


def sent(layout: Layout) -> dict[str, float]:
    """{dimension: bytes that a rank has to send in a step}."""
    found: dict[str, float] = {}
    for (dimension, op), (_, size) in most_traffic(model_named(MODEL), layout, SEQUENCES).items():
        if op != "recv":
            ranks, _ = layout.group(dimension, 8)
            found[dimension] = found.get(dimension, 0.0) + by_rule(op, ranks, size)
    return found


def seconds(layout: Layout, network: Network) -> float:
    return step_time(model_named(MODEL), layout, SEQUENCES, gpu_named("h100"), network).total


def table() -> str:
    lines = [
        f"| strategy | {' | '.join(KINDS)} | GiB in all | sent, GB | s at 400 Gb/s | at 100 |",
        "|---" * (len(KINDS) + 5) + "|",
    ]
    for name, layout in ROWS.items():
        memory = held(layout)
        cells = [f"{getattr(memory, kind) / GIB:.1f}" for kind in KINDS]
        total = memory.total / GIB
        cells.append(f"{total:.1f}{fits(total)}")
        cells.append(f"{sum(sent(layout).values()) / 1e9:.0f}")
        cells += [f"{seconds(layout, network):.2f}" for network in (Network(), SLOW)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def fits(total: float) -> str:
    """What the table says of so many GiB: nothing if they fit with room for the planner's error."""
    if total >= TO_FIT:
        return ", does not fit"
    return ", tight" if total * (1 + ERROR_OUTSIDE[0]) > TO_FIT else ""


def draw(path: Path) -> None:
    """Two bars for each strategy: what a rank holds, and what it sends over each dimension."""
    from shared.runtime.figures import plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 5.2), sharey=True, width_ratios=(3, 2))
    greys, hatches = ("0.15", "0.45", "0.75", "0.9", "white", "white"), ("", "", "", "..", "//", "xx")
    for y, layout in enumerate(ROWS.values()):
        stack(left, y, {kind: size / GIB for kind, size in asdict(held(layout)).items()}, greys, hatches)
        stack(right, y, {name: size / 1e9 for name, size in sent(layout).items()}, greys, hatches, along=True)
    left.axvline(TO_FIT, color="black", lw=1, ls="--")
    left.set(
        xlabel="GiB on a rank (dashed: 92 % of an H100's 80 GiB)", yticks=range(len(ROWS)), yticklabels=ROWS
    )
    right.set(xlabel="GB that a rank sends in a step")
    left.invert_yaxis()
    for axis, names, title in ((left, KINDS, "holds"), (right, DIMENSIONS, "sends along")):
        bars = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        axis.legend([bars[name] for name in names], names, fontsize=11, title=title)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def stack(axis, y: int, parts: dict[str, float], greys: tuple, hatches: tuple, along: bool = False) -> None:
    order = DIMENSIONS if along else KINDS
    edge = 0.0
    for colour, hatch, name in zip(greys, hatches, order, strict=False):
        if parts.get(name, 0.0) <= 0:
            continue
        known = name in axis.get_legend_handles_labels()[1]
        look = {"color": colour, "hatch": hatch, "edgecolor": "black", "lw": 0.7}
        axis.barh(y, parts[name], 0.72, left=edge, label=None if known else name, **look)
        edge += parts[name]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true")
    if parser.parse_args().draw:
        draw(Path(__file__).resolve().parents[2] / "notebooks" / "images" / "strategies_8b.png")
    print(table())
