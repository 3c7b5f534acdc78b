"""``make bench``: what the helpers and the lessons cost, side by side in one run. Not a test.

Every figure is the median of some runs, taken in turns so that all see the same load.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat

from shared.runtime.errors import CourseError
from shared.runtime.options import positive
from shared.tools import run_tool
from shared.tools.lessons import ROOT, cells_of, read_lessons

EMPTY = "pass\n"
BY_HAND = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""
WITH_HELPER = """
from shared.runtime.group import process_group
from shared.runtime.run import run
def main():
    with process_group():
        pass
run(main)
"""
COMMAND = re.compile(r"^!", re.MULTILINE)


def seconds(command: list[str], folder: Path) -> float:
    """Seconds of one command. Raises ``CourseError`` if it fails."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if done.returncode:
        raise CourseError(f"exit code {done.returncode}: {' '.join(command)}")
    return time.perf_counter() - started


def in_turns(commands: dict[str, list[str]], folder: Path, repeats: int) -> dict[str, float]:
    """{name: median seconds} of commands run one after the other, ``repeats`` times round."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            taken[name].append(seconds(command, folder))
    return {name: statistics.median(times) for name, times in taken.items()}


def torchrun(script: str | Path, ranks: int) -> list[str]:
    return ["torchrun", "--standalone", f"--nproc-per-node={ranks}", str(script)]


def bench_helper(repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        commands = {}
        for name, code in {
            "empty script": EMPTY,
            "group by hand": BY_HAND,
            "our helper": WITH_HELPER,
        }.items():
            path = Path(folder) / f"{name.replace(' ', '_')}.py"
            path.write_text(code, encoding="utf-8")
            commands[name] = torchrun(path, 2)
        times = in_turns(commands, Path(folder), repeats)
    print("\ntorchrun with 2 ranks, seconds")
    for name, took in times.items():
        print(f"  {name:32} {took:6.2f}")
    print(f"  helper / by hand {times['our helper'] / times['group by hand']:.2f}")


def seconds_of_labs(executed: Path) -> float:
    """Seconds of the cells that run a command, as papermill noted them."""
    cells = cells_of(nbformat.read(executed, 4), "code")
    return sum(cell.metadata.papermill.duration for cell in cells if COMMAND.search(cell.source))


def bench_lessons(repeats: int) -> None:
    print("\nlessons through papermill, seconds; of these, cells that run labs; ratio")
    for lesson in read_lessons():
        with tempfile.TemporaryDirectory() as folder:
            executed = Path(folder) / "out.ipynb"
            command = [sys.executable, "-m", "papermill", str(ROOT / lesson.path), str(executed)]
            rounds = []
            for _ in range(repeats):
                took = seconds([*command, "--no-progress-bar", "-k", "python3"], ROOT / "notebooks")
                rounds.append((took, seconds_of_labs(executed)))
        took, labs = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"  {lesson.path.stem:32} {took:6.2f} {labs:6.2f} {took / labs:5.2f}")


def bench_ring(repeats: int) -> None:
    from shared.runtime.results import load_results

    print("\nring against gloo's all_reduce: bytes per second, ratio of medians")
    for ranks in (2, 4):
        ratios = []
        for _ in range(repeats):
            seconds(torchrun("labs/lab_05_cost.py", ranks), ROOT)
            cost = load_results("lab_05_cost", ranks)[0]
            ratios.append(
                [g / r for g, r in zip(cost["medians"]["gloo"], cost["medians"]["ring"], strict=True)]
            )
        for size, column in zip(cost["sizes"], zip(*ratios, strict=True), strict=True):
            if size >= 1 << 20:
                print(f"  {ranks} ranks, {size >> 20:3} MiB: {statistics.median(column):.2f}")


def bench_script(ranks: int = 2) -> None:
    """The training script's loop beside a bare one; it takes turns by itself."""
    print(f"\ntraining script of lesson 10, {ranks} ranks", flush=True)
    launcher = ["torchrun", "--standalone", f"--nproc-per-node={ranks}"]
    subprocess.run([*launcher, "-m", "shared.training.bench_train"], cwd=ROOT, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure helpers, labs, notebooks and the ring.")
    parser.add_argument("--repeats", type=positive, default=3, help="runs of each command; the median counts")
    repeats = parser.parse_args().repeats
    scripts = Path(sys.executable).parent
    os.environ["PATH"] = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    assert shutil.which("torchrun"), "torchrun was not found"
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the first run")
    bench_helper(repeats)
    bench_ring(repeats)
    bench_script()
    bench_lessons(repeats)
    return 0


if __name__ == "__main__":
    run_tool(main)
