"""The overlapped DDP equals torch's and one process; where communication overlaps, by events.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_09/proof_equal.py
"""

from dataclasses import dataclass

from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.side_by_side import same_buckets, train_side_by_side

from lab_09_overlapped import OverlappedDDP
from lesson_09.overlap import assert_overlap
from lesson_09.promises import STEPS, keeps_its_promises


@dataclass(frozen=True)
class Config:
    tolerance: float = 1e-12  # float64
    cap: float = 0.005  # MiB: a small net, and yet several buckets
    small_cap: float = 0.0004  # MiB: a bucket for each layer
    caps: tuple[float | None, ...] = (None, 25, 1)  # MiB, for 8 layers of 1 MiB
    patience_s: float = 8  # how long a rank may stand still until it counts as blocked


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        train_side_by_side(
            lambda net: OverlappedDDP(net, cfg.cap), group, tolerance=cfg.tolerance, unused=False
        )
        # Five buckets of one layer each and more; equal layers that odd ranks use in the other order.
        keeps_its_promises(
            lambda net, members: OverlappedDDP(net, cfg.small_cap, members), group, cfg.tolerance
        )
        print_on_rank_0(
            f"{STEPS} steps with crossed layers, batch norm and late results, in one group and in two: "
            "equal to one process; a parameter left out raises"
        )
        same_buckets(OverlappedDDP, group, cfg.caps)
        events = assert_overlap(OverlappedDDP, group, cfg.patience_s)
        print_on_rank_0("no rank waits inside backward; in this order things happen:")
        print_on_rank_0(", ".join(events))


if __name__ == "__main__":
    run(main, Config())
