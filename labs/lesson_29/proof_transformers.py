"""Hold lab_29_llama.py against transformers: the same logits from the same files, both ways.

Run it:      python labs/lesson_29/proof_transformers.py
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.run import run

import lab_29_llama as ours


def largest(what: str, a: torch.Tensor, b: torch.Tensor, tolerance: float) -> float:
    difference = (a - b).abs().max().item() / b.abs().max().item()
    if difference > tolerance:
        raise CourseError(f"{what}: logits differ by {difference:.1e} of the largest")
    return difference


def main() -> None:
    try:
        import transformers
    except ImportError:
        print("skipped: transformers is not installed")
        return
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tokens = torch.randint(0, 257, (3, 40), generator=torch.Generator().manual_seed(1))
    for tied, rope in ((False, None), (True, (8.0, 1.0, 4.0, 24))):
        sizes = ours.Sizes(257, layers=3, tied=tied, theta=500_000.0, rope=rope)
        model = ours.Llama(sizes)
        ours.initialize(model, seed=3)
        with tempfile.TemporaryDirectory() as name, torch.no_grad():
            folder = Path(name)
            ours.export(model, folder / "ours", 128, 256, torch.float32)
            theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "ours", dtype=torch.float32)
            far = largest("what transformers reads", theirs(tokens).logits, model(tokens), 1e-5)
            for parameter in theirs.parameters():
                parameter.normal_(0, 0.05)
            theirs.save_pretrained(folder / "theirs", max_shard_size="100KB")
            files = len(list((folder / "theirs").glob("*.safetensors")))
            back = ours.Llama(ours.sizes_in(folder / "theirs"))
            ours.load(back, folder / "theirs")
            near = largest("what we read", back(tokens), theirs(tokens).logits, 1e-5)
        print(
            f"tied {tied}, rope {rope}: transformers {transformers.__version__} reads ours, within {far:.0e}"
        )
        print(f"tied {tied}, rope {rope}: we read theirs, {files} files, within {near:.0e}")


if __name__ == "__main__":
    run(main)
