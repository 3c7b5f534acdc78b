"""What the language script promises for each step: that of one process which has every document alone.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_29/proof_one_step.py
"""

import gc
import io
import logging
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

from shared.comm.record import CommRecord, record
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_all_equal
from shared.training.storages import StorageRecorder

import lab_29_language as script
from lab_29_llama import tensors_in


@dataclass(frozen=True)
class Config:
    steps: int = 4
    micro_batch: int = 2
    tolerance: float = 1e-12  # float64
    options: str = (
        "--length 48 --layers 2 --width 32 --heads 4 --kv-heads 2 --ffn 48 --batch-size 13 "
        "--steps 10 --warm-up 2 --lr 0.01 --min-lr 0.1 --weight-decay 0.1 --clip 0.5 --precision float64"
    )
    rates: tuple[float, ...] = (  # two steps of warm-up, then a cosine from 0.01 to 0.001
        0.005,
        0.01,
        0.01,
        0.001 + 0.009 * 0.5 * (1 + math.cos(math.pi / 8)),
    )


Parameters = list[tuple[str, torch.Tensor]]


def trainer_of(ranks: script.Ranks, cfg: Config, *more: str) -> script.Trainer:
    options = script.parse([*cfg.options.split(), *more])
    trainer = script.Trainer(script.descriptions(), options, ranks)
    check_units(trainer)
    return trainer


def check_units(trainer: script.Trainer) -> None:
    """Each parameter is in some unit: one outside of all would be trained by each rank alone."""
    for name, parameter in trainer.model.named_parameters():
        if not isinstance(parameter, DTensor):
            raise CourseError(f"{name} is in no unit of FSDP")


def documents_of(row: torch.Tensor, end: int) -> Iterator[torch.Tensor]:
    """The pieces of documents in a row of length + 1 tokens, each with a label for all but its last token."""
    begin = 0
    for place, token in enumerate(row.tolist()):
        if token == end or place == len(row) - 1:
            if place > begin:
                yield row[begin : place + 1]
            begin = place + 1


def loss_of_rows(model: nn.Module, trainer: script.Trainer, stream: torch.Tensor, rows: list[int]):
    """(sum of the losses, labels) of one process: each document by itself, from its own position 0."""
    length = trainer.options.length
    loss = torch.zeros((), dtype=torch.float64)
    labels = 0
    for row in rows:
        whole = stream[row * length : (row + 1) * length + 1]
        if trainer.options.across_documents:
            expected = whole[1:].masked_fill(whole[:-1] == trainer.tokens.end, -100)
            loss = loss + F.cross_entropy(model(whole[None, :-1])[0], expected, reduction="sum")
            labels += int((expected != -100).sum())
            continue
        for document in documents_of(whole, trainer.tokens.end):
            loss = loss + F.cross_entropy(model(document[None, :-1])[0], document[1:], reduction="sum")
            labels += len(document) - 1
    return loss, labels


def one_process(ranks: script.Ranks, cfg: Config, *more: str) -> tuple[list[Parameters], float]:
    """The single-process truth, in plain PyTorch: parameters after each step, and the last test loss."""
    trainer = trainer_of(ranks, cfg, *more)  # for its options, tokens and sizes
    model = script.Llama(trainer.sizes).double()
    script.initialize(model, trainer.options.seed)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    order = script.RankBatches(trainer.rows, trainer.options.batch_size, 0, rank=0, ranks=1)
    after = []
    for rate, batch in zip(cfg.rates, order, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss, labels = loss_of_rows(model, trainer, trainer.tokens.train, [row for _, row in batch])
        optimizer.zero_grad()
        (loss / labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        after.append([(name, p.detach().clone()) for name, p in model.named_parameters()])
    test_rows = list(range(script.rows_in(trainer.tokens.test, trainer.options.length)))
    with torch.no_grad():
        loss, labels = loss_of_rows(model, trainer, trainer.tokens.test, test_rows)
    return after, loss.item() / labels


def whole(model: nn.Module) -> Parameters:
    return [(name, p.full_tensor().detach()) for name, p in model.named_parameters()]


def reductions_of(trainer: script.Trainer) -> int:
    return (trainer.options.layers + 1) * (trainer.pieces if trainer.options.reduce_each_piece else 1)


def check_calls(name: str, trainer: script.Trainer, log: CommRecord) -> None:
    """A block is gathered twice in each piece, the root once; gradients are reduced as the option says."""
    units = trainer.options.layers + 1
    expected = {"all_gather": trainer.pieces * (2 * units - 1), "reduce_scatter": reductions_of(trainer)}
    found = {kind: log.count(kind) for kind in expected}
    if found != expected:
        raise CourseError(f"{name}: a step has {found}, expected {expected}")


def take_steps(
    name: str, trainer: script.Trainer, expected: list[Parameters], test_loss: float, cfg: Config
) -> None:
    """The script's steps on this rank's rows, compared one by one with ``expected``."""
    for step, (expected_now, rows) in enumerate(zip(expected, trainer.batches(), strict=False)):
        with nullcontext() if trainer.options.compile else record() as log:  # the compiler would trace it
            trainer.train_step(rows)
        assert_all_equal(f"{name}, step {step + 1}:", whole(trainer.model), expected_now, cfg.tolerance)
    if log is not None:
        check_calls(name, trainer, log)
    with redirect_stdout(io.StringIO()):  # the script's own line
        found = trainer.evaluate()
    if abs(found - test_loss) > cfg.tolerance:
        raise CourseError(f"{name}: the test loss is {found:.9f}, that of one process {test_loss:.9f}")


def variants(ranks: script.Ranks, cfg: Config) -> dict[str, tuple[str, ...]]:
    """{what is told: options}; those of a group have one truth."""
    pieces = ("--micro-batch", str(cfg.micro_batch))
    found = {
        "whole": (),
        "in pieces": pieces,
        "each piece reduced": ("--reduce-each-piece", *pieces),
        "recompute all": ("--recompute", "full"),
        "recompute some, in pieces": ("--recompute", "selective", *pieces),
        "compiled": ("--compile",),
        "compiled, recompute some": ("--compile", "--recompute", "selective"),
    }
    if ranks.size % 2 == 0 and ranks.size > 2:
        found["HSDP"] = ("--replicate", "2")
        found["HSDP, in pieces"] = ("--replicate", "2", *pieces)
    return found


def same_as_one_process(ranks: script.Ranks, cfg: Config) -> None:
    expected = one_process(ranks, cfg)
    for name, more in variants(ranks, cfg).items():
        torch._dynamo.reset()
        trainer = trainer_of(ranks, cfg, *more)
        take_steps(name, trainer, *expected, cfg)
        units = trainer.options.layers + 1
        told = f"{trainer.pieces} x {2 * units - 1} all-gathers, {reductions_of(trainer)} reduce-scatters"
        print_on_rank_0(f"{name:26} equal in {cfg.steps} steps; {told}")
        if "--compile" in more and torch._dynamo.utils.counters["stats"]["unique_graphs"] < 1:
            raise CourseError(f"{name}: nothing was compiled")
    for name, more in {"tied": ("--tied",), "across documents": ("--across-documents",)}.items():
        take_steps(name, trainer_of(ranks, cfg, *more), *one_process(ranks, cfg, *more), cfg)
        print_on_rank_0(f"{name:26} equal in {cfg.steps} steps")


def kept_by(ranks: script.Ranks, cfg: Config, *more: str) -> int:
    """Bytes that are alive on this rank between the forward and the backward pass of its rows."""
    trainer = trainer_of(ranks, cfg, *more)
    ((tokens, labels),) = trainer.pieces_of(trainer.tokens.train, next(trainer.batches()), pieces=1)
    with StorageRecorder(trainer.model.parameters()) as memory:
        loss = trainer.model(tokens, labels, trainer.end)
        gc.collect()
        alive = memory.bytes_alive()
    loss.backward()
    return alive


def activations(ranks: script.Ranks, cfg: Config) -> None:
    """What each choice of ``--recompute`` keeps: less and less."""
    kinds = ("none", "selective", "full")
    kept = {kind: kept_by(ranks, cfg, "--recompute", kind) for kind in kinds}
    if not kept["none"] > 1.2 * kept["selective"] > 1.2 * kept["full"]:
        raise CourseError(f"bytes alive after the forward pass: {kept}")
    told = ", ".join(f"{kind} {size:,}" for kind, size in kept.items())
    print_on_rank_0(f"bytes alive after the forward pass, by --recompute: {told}")


@contextmanager
def dtypes_of_losses() -> Iterator[list]:
    """Yields a list that gets (dtype of the scores, dtype of the loss) of each ``F.cross_entropy``."""
    seen = []
    original = F.cross_entropy

    def spy(scores: torch.Tensor, *args, **options) -> torch.Tensor:
        loss = original(scores, *args, **options)
        seen.append((scores.dtype, loss.dtype))
        return loss

    with patch.object(F, "cross_entropy", spy):
        yield seen


def bf16(ranks: script.Ranks, cfg: Config) -> None:
    """Parameters travel in bfloat16, gradients in float32; masters, moments and losses are in float32."""
    logs = {}
    for precision in ("bf16", "float32"):
        trainer = trainer_of(ranks, cfg, "--precision", precision)
        batches = trainer.batches()
        with record() as logs[precision], dtypes_of_losses() as seen:
            trainer.train_step(next(batches))
        moments = [state["exp_avg"] for state in trainer.optimizer.state.values()]
        for value in [*trainer.model.parameters(), *moments]:
            if value.dtype != torch.float32:
                raise CourseError(f"{precision}: a master or a moment is in {value.dtype}")
        if set(seen) != {(torch.float32, torch.float32)}:
            raise CourseError(f"{precision}: scores and losses are in {seen}")
    parts = {}
    for kind in ("all_gather", "reduce_scatter"):
        parts[kind] = logs["bf16"].bytes(kind) / logs["float32"].bytes(kind)
    if parts != {"all_gather": 0.5, "reduce_scatter": 1.0}:
        raise CourseError(f"bf16: of the bytes in float32 travel {parts}")
    print_on_rank_0("bf16: half the bytes are gathered, as many reduced; masters and losses are in float32")


def exported(ranks: script.Ranks, cfg: Config) -> None:
    """What is written for transformers holds the parameters, and loads again."""
    trainer = trainer_of(ranks, cfg)
    trainer.train_step(next(trainer.batches()))
    names = [tempfile.mkdtemp() if ranks.rank == 0 else None]
    dist.broadcast_object_list(names, src=0)
    folder = Path(names[0])
    script.export(trainer.model, folder, 48, trainer.tokens.end, torch.float64)
    dist.barrier()
    assert_all_equal("export:", list(tensors_in(folder)), whole(trainer.model), 0.0)
    again = trainer_of(ranks, cfg, "--llama", str(folder))
    assert_all_equal("--llama:", whole(again.model), whole(trainer.model), 0.0)
    dist.barrier()
    if ranks.rank == 0:
        shutil.rmtree(folder)
    print_on_rank_0("export: the file holds the model, and --llama begins with it")


def main(cfg: Config) -> None:
    torch._logging.set_logs(all=logging.ERROR)
    with process_group(smallest=2, timeout_s=120) as group:
        ranks = script.Ranks(group.rank, group.world_size, torch.device("cpu"))
        activations(ranks, cfg)
        bf16(ranks, cfg)
        exported(ranks, cfg)
        # Kernels of the default backend need minutes of compiling; what is traced is the same.
        with patch.object(torch, "compile", partial(torch.compile, backend="aot_eager")):
            same_as_one_process(ranks, cfg)


if __name__ == "__main__":
    run(main, Config())
