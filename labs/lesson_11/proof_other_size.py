"""Load what another number of ranks saved, from the newest checkpoint that is complete.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_11/proof_other_size.py
"""

import logging
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from shared.runtime.errors import CourseError, InputError
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import results_folder
from shared.runtime.run import run
from shared.training.parity import assert_all_equal

SHOWN = "conv2.weight"
# What proof_shards.py saved, as multiples of plain.pt: each step of its training doubled all values.
IN_STEP_1 = 1  # the copy that async_save made before the first three steps
IN_STEP_2 = 2**3
OVER_LATEST = 2**6


def newest_complete(folder: Path) -> Path:
    """A folder has its final name only when it is complete."""
    complete = [path for path in folder.glob("step_*") if path.suffix != ".part"]
    if not complete:
        raise InputError("there is no complete checkpoint: run proof_shards.py first")
    return max(complete, key=lambda path: int(path.stem.removeprefix("step_")))


def load_alone(folder: Path, like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Load a checkpoint in this process alone, whoever saved it."""
    state = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
    logging.disable(logging.WARNING)  # the text of an error comes in many lines, too
    try:
        with warnings.catch_warnings(action="ignore"):  # torch tells what we ask for
            dcp.load(state, checkpoint_id=folder, no_dist=True)
    finally:
        logging.disable(logging.NOTSET)
    return state


def load_part(folder: Path, before: dict[str, torch.Tensor]) -> str:
    """What dcp.load says about a checkpoint without its table of contents."""
    try:
        load_alone(folder, before)
    except dcp.api.CheckpointException as error:
        if isinstance(error, Exception):
            raise CourseError("CheckpointException should have escaped `except Exception`") from None
        return "CheckpointException, which `except Exception` does not catch"
    raise CourseError(f"{folder.name} should have been incomplete")


def load_overwritten(folder: Path, before: dict[str, torch.Tensor]) -> str:
    """What dcp.load makes of a folder that a save over it has half overwritten."""
    loaded = load_alone(folder, before)[SHOWN]
    old = 0
    new = 0
    for now, row in zip(loaded, before[SHOWN], strict=True):
        old += int(torch.equal(now, row))
        new += int(torch.equal(now, OVER_LATEST * row))
    if old + new != len(loaded) or min(old, new) == 0:
        raise CourseError(f"of {len(loaded)} rows {old} were old and {new} new: some of both were expected")
    return f"no error; of {len(loaded)} rows of {SHOWN} {new} are new and {old} are old"


def main() -> None:
    with process_group(timeout_s=20) as group:
        folder = results_folder() / "proof_shards"
        newest = newest_complete(folder)
        before = torch.load(folder / "plain.pt", weights_only=True)
        expected = {name: IN_STEP_2 * tensor for name, tensor in before.items()}
        if group.rank == 0:
            for path in sorted(path for path in folder.iterdir() if path.is_dir()):
                shards = len(list(path.glob("*.distcp")))
                contents = ".metadata" if (path / ".metadata").exists() else "no .metadata"
                print(f"{path.name}: {shards} shards, {contents}")
            print(f"loading step_3.part: {load_part(folder / 'step_3.part', before)}")
            print(f"loading latest: {load_overwritten(folder / 'latest', before)}")
            copied = load_alone(folder / "step_1", before)
            assert_all_equal("step_1", copied.items(), [(n, IN_STEP_1 * t) for n, t in before.items()], 0.0)
            print("step_1: holds the values of the moment when async_save was called")

        mesh = init_device_mesh(group.device.type, (group.world_size,))
        state = {}
        for name, tensor in before.items():
            state[name] = distribute_tensor(torch.zeros_like(tensor, device=group.device), mesh, [Shard(0)])
        dcp.load(state, checkpoint_id=newest)  # fills the tensors that are there
        rows = state[SHOWN].to_local().shape[0]
        print_in_rank_order(f"{newest.name}: holds {rows} of {len(expected[SHOWN])} rows of {SHOWN}")
        whole = [(name, tensor.full_tensor().cpu()) for name, tensor in state.items()]
        assert_all_equal(newest.name, whole, expected.items(), 0.0)
        print_on_rank_0(f"loaded by {group.world_size}: {len(whole)} tensors are equal bit for bit")
        if group.rank == 0:
            alone = load_alone(newest, before)
            assert_all_equal(newest.name, alone.items(), expected.items(), 0.0)
            print(f"loaded by 1: {len(alone)} tensors are equal bit for bit")
            file = folder / "as_one_file.pt"
            dcp_to_torch_save(newest, file)
            one_file = torch.load(file, weights_only=True)
            names = expected.keys()
            assert_all_equal(file.name, [(n, one_file[n]) for n in names], expected.items(), 0.0)
            print(f"dcp_to_torch_save: {len(one_file)} tensors are equal bit for bit")


if __name__ == "__main__":
    run(main)
