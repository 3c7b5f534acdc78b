"""Load what another number of ranks saved, from the newest checkpoint that is complete.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_11_other_size.py
Written by:  notebooks/11_checkpoints.ipynb
"""

import logging
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from shared.runtime.errors import CourseError, InputError
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import results_folder
from shared.runtime.run import run
from shared.training.parity import assert_all_equal

SHOWN = "conv2.weight"


def newest_complete(folder: Path) -> Path:
    """A checkpoint is complete when its table of contents is there: that is written last."""
    complete = [path for path in folder.glob("step_*") if (path / ".metadata").exists()]
    if not complete:
        raise InputError("there is no complete checkpoint: run lab_11_shards.py first")
    return max(complete, key=lambda path: int(path.name.removeprefix("step_")))


def load_incomplete(folder: Path) -> str:
    """What dcp.load says about a checkpoint without its table of contents."""
    logging.disable(logging.WARNING)  # the same in many lines
    try:
        dcp.load({SHOWN: torch.zeros(1)}, checkpoint_id=folder)
    except dcp.api.CheckpointException as error:
        if isinstance(error, Exception):
            raise CourseError("CheckpointException was to escape `except Exception`") from None
        return "CheckpointException, which `except Exception` does not catch"
    finally:
        logging.disable(logging.NOTSET)
    raise CourseError(f"{folder.name} was to be incomplete")


def main() -> None:
    with process_group(timeout_s=20) as group:
        folder = results_folder() / "lab_11_shards"
        newest = newest_complete(folder)
        for path in sorted(folder.glob("step_*")):
            slices = len(list(path.glob("*.distcp")))
            complete = "complete" if (path / ".metadata").exists() else "no .metadata"
            print_on_rank_0(f"{path.name}: {slices} slices, {complete}")
        print_on_rank_0(f"loading step_3: {load_incomplete(folder / 'step_3')}")

        expected = torch.load(folder / "plain.pt", map_location=group.device, weights_only=True)
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        state = {n: distribute_tensor(torch.zeros_like(t), mesh, [Shard(0)]) for n, t in expected.items()}
        dcp.load(state, checkpoint_id=newest)  # fills the tensors that are there
        rows = state[SHOWN].to_local().shape[0]
        print_in_rank_order(f"{newest.name}: holds {rows} of {len(expected[SHOWN])} rows of {SHOWN}")
        whole = [(name, tensor.full_tensor()) for name, tensor in state.items()]
        assert_all_equal(newest.name, whole, expected.items(), 0.0)
        print_on_rank_0(f"loaded by {group.world_size}: {len(whole)} tensors are equal bit for bit")
        if group.rank == 0:
            alone = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
            with warnings.catch_warnings(action="ignore"):  # torch tells what we ask for
                dcp.load(alone, checkpoint_id=newest, no_dist=True)  # one process, without a group
            assert_all_equal(newest.name, alone.items(), expected.items(), 0.0)
            print(f"loaded by 1: {len(alone)} tensors are equal bit for bit")


if __name__ == "__main__":
    run(main)
