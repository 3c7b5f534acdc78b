"""Kill lab_29_language.py at many moments, resume it on other ranks, and compare with an unbroken run.

Run it:      python labs/lesson_29/proof_resume.py
"""

import argparse
import random
import shutil
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from shared.runtime.errors import CourseError
from shared.runtime.run import run

import lab_29_language as script
from lab_11_checkpointing import DAMAGED
from lesson_11.kills import Kill, complete_in, difference, launch, values_in


@dataclass(frozen=True)
class Config:
    kills: int = 12
    steps: int = 12
    save_every: int = 4
    tolerance: float = 1e-12  # largest difference of two runs in float64
    options: str = (
        "--length 48 --layers 2 --width 32 --ffn 48 --batch-size 12 --warm-up 2 --precision float64 "
        "--keep 2 --eval-every 12 --steps 12 --save-every 4"
    )


HSDP = "--replicate 2"


class Proof:
    """A folder for runs, and what the unbroken one ends with."""

    def __init__(self, here: Path, cfg: Config) -> None:
        self.here = here
        self.cfg = cfg
        ended = launch(script, cfg.options, here / "unbroken")
        found = complete_in(here / "unbroken")
        if ended.codes != [0] or len(found) != 2:
            raise CourseError(f"the unbroken run: {ended.codes}, {found}\n{ended.said}")
        self.expected = values_in(here / "unbroken" / found[-1])

    def interrupt(self, name: str, ranks: int, kill: Kill, more: str = "") -> int:
        """Let a run end at a moment; return the steps that are lost, where the moment is a step."""
        folder = self.here / name
        ended = launch(script, f"{self.cfg.options} {more}", folder, ranks, kill)
        expected = -signal.SIGKILL if kill.signal == signal.SIGKILL else script.SAVED_AND_LEFT
        if ended.codes[kill.rank] != expected:
            raise CourseError(f"{name}, {kill}: expected {expected}, got {ended.codes}\n{ended.said}")
        begun = int(ended.resumed_from[5:] or 0)
        newest = int((complete_in(folder) or ["step_0"])[-1][5:])
        what, times = kill.moment
        return begun + times - 1 - newest if what == "train_step" else 0

    def finish(self, name: str, ranks: int, more: str = "", newest: str | None = None) -> str:
        """Run the script again, to the end: it resumes from the newest checkpoint and ends like the unbroken.

        Returns what it printed.
        """
        folder = self.here / name
        newest = (complete_in(folder) or [""])[-1] if newest is None else newest
        ended = launch(script, f"{self.cfg.options} {more}", folder, ranks)
        if ended.codes != [0] * ranks or ended.resumed_from != newest:
            told = f"resumes from {ended.resumed_from or 'nothing'}: {ended.codes}\n{ended.said}"
            raise CourseError(f"{name}: {told}")
        distance = difference(folder / f"step_{self.cfg.steps:08d}", self.expected)
        if distance > self.cfg.tolerance:
            raise CourseError(f"{name}: ends {distance:.1e} from the unbroken run")
        return ended.said


def damage(proof: Proof) -> None:
    """A flipped byte is found, its file is named, and the checkpoint before is taken."""
    folder = proof.here / "unbroken"
    before, last = complete_in(folder)
    file = max((folder / last).glob("*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    said = proof.finish("unbroken", 2, newest=before)
    if f"{last}: {file.name} {DAMAGED}" not in said:
        raise CourseError(f"a flipped byte in {file.name}: {said}")
    print(f"a flipped byte: {last} is not used, its file is named; {before} is, and the end is equal")


def asked_to_stop(proof: Proof) -> None:
    lost = proof.interrupt("asked", 2, Kill(("train_step", 6), 1, signal.SIGTERM))
    proof.finish("asked", 2)
    if lost > 0:
        raise CourseError(f"SIGTERM has cost {lost} steps")
    print("SIGTERM to one of 2 ranks: both save and leave with 75, no step is lost")


def other_sizes(proof: Proof) -> None:
    proof.interrupt("sizes", 4, Kill(("train_step", 6), 3))
    proof.interrupt("sizes", 2, Kill(("train_step", 5), 1))
    proof.finish("sizes", 3)
    print("killed on 4 ranks, then on 2, ended on 3: equal")
    proof.interrupt("hsdp", 4, Kill(("train_step", 6)), HSDP)
    proof.finish("hsdp", 2)
    proof.interrupt("to_hsdp", 2, Kill(("train_step", 6)))
    proof.finish("to_hsdp", 4, HSDP)
    print("from HSDP of 2 x 2 ranks to FSDP of 2, and back: equal")


def kills(proof: Proof) -> None:
    """Kills of one rank at moments that are drawn; each second run has another number of ranks."""
    cfg = proof.cfg
    watched = {n: launch(script, cfg.options, proof.here / f"watched_{n}", n).seen for n in (1, 2)}
    draw = random.Random(29)
    lost = []
    for number in range(cfg.kills):
        ranks = 1 + number % 2
        rank = draw.randrange(ranks)
        moments = [m for m in watched[ranks][rank] if m[0] != "evaluate" and m[1] < 20]  # of the writes a few
        steps = [moment for moment in moments if moment[0] == "train_step"]
        moments = steps if number % 3 == 2 else [moment for moment in moments if moment not in steps]
        name = f"killed_{number}"
        lost.append(proof.interrupt(name, ranks, Kill(draw.choice(moments[1:-1]), rank)))
        proof.finish(name, (2, 3, 1)[number % 3])
        shutil.rmtree(proof.here / name)
    if max(lost, default=0) >= 2 * cfg.save_every:
        raise CourseError(f"a kill has cost {max(lost)} steps, saves are {cfg.save_every} apart")
    print(f"{cfg.kills} kills: each second run ends within {cfg.tolerance:.0e} of the unbroken one")


def main(cfg: Config) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        proof = Proof(Path(name).resolve(), cfg)
        damage(proof)
        asked_to_stop(proof)
        other_sizes(proof)
        kills(proof)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=Config.kills)
    run(main, Config(parser.parse_args().kills))
