"""How many operations a step of a GPT has: the formula of the PaLM paper against torch's own count, exactly.

Run it:      python labs/lesson_25/proof_flops.py
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from shared.runtime.errors import CourseError
from shared.runtime.run import run
from shared.training.gpt import GPT, GPTConfig, loss_sum, token_batch


@dataclass(frozen=True)
class Config:
    rows: int = 2  # sequences in the batch


class Recomputed(nn.Module):
    """A block that keeps its input alone, and is computed again in backward."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


def counted(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[int, int]:
    """Operations of forward and of backward: products of matrices, two for each multiply-add."""
    with FlopCounterMode(display=False) as forward:
        loss = loss_sum(model(tokens), labels)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


def expect(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise CourseError(f"{what}: torch counts {found:,}, the formula says {wanted:,}")
    print(f"{what:52} {found:12,}")


def main(cfg: Config) -> None:
    sizes = GPTConfig()
    tokens, labels = token_batch(sizes, cfg.rows, 0)
    model = GPT(sizes)
    d = tokens.numel()  # tokens of a step
    matrices = [model.head.weight]  # the embedding is the same tensor; to look it up multiplies nothing
    for block in model.blocks:
        matrices += [p for p in block.parameters() if p.dim() == 2]
    n = sum(p.numel() for p in matrices)
    attention = sizes.layers * sizes.width * sizes.context  # L H Q T: H heads of width Q are the width

    forward, backward = counted(model, tokens, labels)
    expect("forward: 2 N D + 4 L H Q T D", forward, 2 * n * d + 4 * attention * d)
    expect("backward: twice as many", backward, 2 * forward)
    expect("a step: 6 N D + 12 L H Q T D", forward + backward, 6 * n * d + 12 * attention * d)

    recomputed = GPT(sizes)
    recomputed.load_state_dict(model.state_dict())
    last = sum(block.mlp.down.weight.numel() for block in recomputed.blocks)
    in_blocks = n - model.head.weight.numel()
    recomputed.blocks = nn.ModuleList(Recomputed(block) for block in recomputed.blocks)
    _, again = counted(recomputed, tokens, labels)
    more = 2 * (in_blocks - last) * d + 4 * attention * d
    expect("backward that computes the blocks again", again, backward + more)
    ratio = (forward + again) / (forward + backward)
    if not 1.22 < ratio < 1.24:
        raise CourseError(f"with recomputation the hardware does {ratio:.2f} times what the model needs")
    print(f"HFU = {ratio:.2f} MFU")


if __name__ == "__main__":
    run(main, Config())
