"""Train a language model under FSDP2 on any number of ranks; resume it at any moment, on any other number.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_29_language.py --steps 20
Written by:  notebooks/29_language_model.ipynb (edit it there)

To copy, with lab_29_llama.py, lab_29_tokens.py and the four files of lab_10_train.py, whose signals and exit
codes it has: 0 done, 1 a failure, 2 refused, 75 saved and left; the same command resumes.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from lab_10_batches import DataError, RankBatches, seed_of
from lab_10_train import Ranks, join
from lab_11_checkpointing import Checkpoints, Refused
from lab_13_stopping import SAVED_AND_LEFT, StopSign, run_rank
from lab_29_llama import Llama, ModelError, Sizes, export, initialize, load, sizes_in
from lab_29_tokens import IGNORED, Tokens, batch_of, descriptions, read, rows_in

# When a run resumes, FREE options may differ, and with --allow-changes the CHANGEABLE ones; no others.
FREE = {"allow_changes", "checkpoints", "device", "eval_every", "eval_rows", "evaluate", "export", "keep"}
FREE |= {"keep_every", "llama", "log_every", "peak_tflops", "replicate", "save_every", "save_minutes"}
FREE |= {"timeout", "tokens"}
CHANGEABLE = {"clip", "compile", "lr", "micro_batch", "min_lr", "recompute", "reduce_each_piece", "steps"}
CHANGEABLE |= {"warm_up", "weight_decay"}
# Other numbers of an option are 1 or more.
MAY_BE_0 = {"clip", "lr", "min_lr", "save_minutes", "seed", "warm_up", "weight_decay"}
ATEN = torch.ops.aten
COSTLY = {  # what selective checkpointing keeps: products of matrices, and attention
    ATEN.mm.default,
    ATEN.addmm.default,  # of a layer with a bias
    ATEN._scaled_dot_product_flash_attention.default,
    ATEN._scaled_dot_product_efficient_attention.default,
    ATEN._scaled_dot_product_cudnn_attention.default,
    ATEN._scaled_dot_product_flash_attention_for_cpu.default,
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    shows_defaults = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(formatter_class=shows_defaults, allow_abbrev=False, exit_on_error=False)
    add = parser.add_argument
    add("--tokens", default="descriptions", help="a folder of lab_29_tokens.py, or a text of scikit-learn's")
    add("--length", type=int, default=128, help="tokens in a row")
    add("--across-documents", action="store_true", help="a token sees earlier documents of its row")
    add("--llama", type=Path, metavar="FOLDER", help="begin with this checkpoint of Hugging Face's format")
    for name, what in {
        "layers": "blocks",
        "width": "of the residual stream",
        "ffn": "inside the MLP",
    }.items():
        add(f"--{name}", type=int, default=getattr(Sizes, name), help=what)
    add("--heads", type=int, default=Sizes.heads, help="of queries")
    add("--kv-heads", type=int, default=Sizes.kv_heads, help="of keys and values")
    add("--tied", action="store_true", help="the output layer has the embedding's weight")
    add("--theta", type=float, default=Sizes.theta, help="of the rotary positions; Llama 3: 500000")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: GPUs, if there are any")
    add("--replicate", type=int, default=1, help="HSDP: copies of the model; each is sharded over the rest")
    add(
        "--precision", choices=["bf16", "float32", "float64"], default="bf16", help="bf16 has float32 masters"
    )
    add("--recompute", choices=["none", "selective", "full"], default="none", help="activations of a block")
    add("--compile", action="store_true", help="compile each block")
    add("--steps", type=int, default=200, help="optimizer steps")
    add("--batch-size", type=int, default=32, help="rows per step, of all ranks together")
    add("--micro-batch", type=int, help="rows per forward pass and rank; gradients add up to a step")
    add("--reduce-each-piece", action="store_true", help="keep gradients in shards between the pieces")
    add("--lr", type=float, default=3e-3, help="highest learning rate, after the warm-up")
    add("--min-lr", type=float, default=0.1, help="the last learning rate, as a part of the highest")
    add("--warm-up", type=int, default=20, help="steps in which the learning rate grows")
    add("--weight-decay", type=float, default=0.1, help="of matrices, not of norms")
    add("--clip", type=float, default=1.0, help="highest norm of the gradient; 0: any")
    add("--seed", type=int, default=0, help="of all that is random")
    add("--checkpoints", type=Path, metavar="FOLDER", help="save there, and resume from the newest one there")
    add("--save-every", type=int, default=100, help="steps between two checkpoints")
    add("--save-minutes", type=float, help="minutes between two checkpoints, beside --save-every; None: any")
    add("--keep", type=int, default=2, help="newest checkpoints to keep")
    add("--keep-every", type=int, help="also keep the checkpoint of each multiple of this step, for ever")
    add("--allow-changes", action="store_true", help=f"these may differ: {', '.join(sorted(CHANGEABLE))}")
    add("--eval-every", type=int, default=100, help="steps between two evaluations")
    add("--eval-rows", type=int, default=1024, help="rows of an evaluation, spread over those to test with")
    add("--evaluate", action="store_true", help="only test the newest checkpoint, and --export it")
    add("--export", type=Path, metavar="FOLDER", help="at the end, write the model there for transformers")
    add("--log-every", type=int, default=10, help="steps between two lines of JSON")
    add("--peak-tflops", type=float, help="of a GPU in this precision, from its data sheet, to log the MFU")
    add("--timeout", type=int, default=600, help="seconds that a rank waits for the others")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise Refused(f"unknown option {unknown[0]}; --help lists all")
    for name, value in vars(options).items():
        lowest = 0 if name in MAY_BE_0 else 1
        if type(value) in (int, float) and not lowest <= value < math.inf:
            raise Refused(f"--{name.replace('_', '-')} must be a number from {lowest}, not {value}")
    return options


def keep_the_costly(context: object, operation: object, *args: object, **more: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in COSTLY else CheckpointPolicy.PREFER_RECOMPUTE


def build(sizes: Sizes, options: argparse.Namespace, ranks: Ranks) -> Llama:
    """The model in shards, with its first values. No rank ever holds more than one whole parameter."""
    if ranks.size % options.replicate:
        raise Refused(f"--replicate {options.replicate} must divide the {ranks.size} ranks")
    shape, names = (ranks.size,), ("shard",)
    if options.replicate > 1:
        shape, names = (options.replicate, ranks.size // options.replicate), ("replicate", "shard")
    mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=names)
    halves = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    policy = MixedPrecisionPolicy(**halves if options.precision == "bf16" else {}, cast_forward_inputs=False)
    with torch.device("meta"):
        model = Llama(sizes)
    model.to(torch.float64 if options.precision == "float64" else torch.float32)
    again = {"use_reentrant": False}
    if options.recompute == "selective":
        again["context_fn"] = partial(create_selective_checkpoint_contexts, keep_the_costly)
    for block in model.model.layers:
        if options.recompute != "none":
            block.forward = partial(checkpoint, block.forward, **again)
        if options.compile:  # the forward alone: FSDP's hooks stay outside, and names stay as they are
            block.forward = torch.compile(block.forward, dynamic=False)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)  # the rest: embedding, last norm, output layer
    if buffers := [name for name, _ in model.named_buffers()]:  # to_empty would leave them without values
        raise ModelError(f"{buffers[0]} is a buffer: compute it in the forward pass, or exempt it in build")
    model.to_empty(device=ranks.device)  # a buffer that you exempt is filled after this
    if options.llama:
        load(model, options.llama)
    else:
        initialize(model, options.seed)
    return model


class Trainer:
    def __init__(self, tokens: Tokens, options: argparse.Namespace, ranks: Ranks) -> None:
        self.tokens = tokens
        self.options = options
        self.ranks = ranks
        self.step = 0  # optimizer steps that are done
        self.rows = rows_in(tokens.train, options.length)
        if not ranks.size <= options.batch_size <= self.rows:
            raise Refused(f"--batch-size must be {ranks.size} (the ranks) to {self.rows} (the rows)")
        if not rows_in(tokens.test, options.length):
            raise Refused(f"--length {options.length}: there are {len(tokens.test)} tokens to test with")
        largest_share = math.ceil(options.batch_size / ranks.size)
        self.micro_batch = min(options.micro_batch or largest_share, largest_share)
        self.pieces = math.ceil(largest_share / self.micro_batch)  # forward passes of a step, on each rank
        self.end = None if options.across_documents else tokens.end
        fields = ("layers", "width", "heads", "kv_heads", "ffn", "tied", "theta")
        given = {name: getattr(options, name) for name in fields}
        self.sizes = sizes_in(options.llama) if options.llama else Sizes(tokens.vocabulary, **given)
        if self.sizes.vocabulary < tokens.vocabulary:
            raise Refused(
                f"{tokens.vocabulary} kinds of tokens, but {self.sizes.vocabulary} in {options.llama}"
            )
        self.model = build(self.sizes, options, ranks)
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        norms = [p for p in self.model.parameters() if p.ndim <= 1]  # which do not decay
        groups = [{"params": matrices}, {"params": norms}]
        fused = True if ranks.device.type == "cuda" else None  # else a loop: foreach knows no DTensor
        self.optimizer = torch.optim.AdamW(groups, options.lr, betas=(0.9, 0.95), fused=fused)
        self.begin_log()

    def new_group(self) -> dist.ProcessGroup:  # for what must not mix with the gradients
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=self.options.timeout))

    def batches(self) -> Iterator[list[int]]:
        """This rank's rows of each step, from the next one on; the order follows from seed and step."""
        options, ranks = self.options, self.ranks
        order = RankBatches(self.rows, options.batch_size, options.seed, ranks.rank, ranks.size)
        order.done = self.step
        while True:
            for batch in order:
                yield [row for _, row in batch]

    def pieces_of(
        self, stream: torch.Tensor, rows: list[int], pieces: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(tokens, labels) of so many forward passes, one at a time; missing rows have no labels."""
        for first in range(0, pieces * self.micro_batch, self.micro_batch):
            mine = rows[first : first + self.micro_batch]
            batch = batch_of(stream, mine, self.options.length, self.tokens.end, self.micro_batch)
            yield tuple(part.to(self.ranks.device) for part in batch)

    def learning_rate(self) -> float:
        rise = min(1.0, (self.step + 1) / max(1, self.options.warm_up))
        done = max(0, self.step - self.options.warm_up) / max(1, self.options.steps - self.options.warm_up)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.options.lr * rise * (self.options.min_lr + (1 - self.options.min_lr) * cosine)

    def train_step(self, rows: list[int]) -> None:
        """One optimizer step on this rank's rows of a global batch."""
        torch.manual_seed(seed_of(self.options.seed, "noise", self.step, self.ranks.rank))
        for group, decay in zip(self.optimizer.param_groups, (self.options.weight_decay, 0.0), strict=True):
            group.update(lr=self.learning_rate(), weight_decay=decay)  # resume has restored the old ones
        pieces = list(self.pieces_of(self.tokens.train, rows, self.pieces))
        labels_of_all = sum((labels != IGNORED).sum() for _, labels in pieces)
        dist.all_reduce(labels_of_all)
        for number, (tokens, labels) in enumerate(pieces, start=1):
            is_reduced = number == self.pieces or self.options.reduce_each_piece
            self.model.set_requires_gradient_sync(is_reduced)  # else whole gradients wait for the last piece
            loss = self.model(tokens, labels, self.end)
            if loss.itemsize < 4:
                raise ModelError(f"the sum of the losses is in {loss.dtype}: cast the logits to float32")
            (loss * self.ranks.size / labels_of_all.clamp(min=1)).backward()  # FSDP divides by the ranks
            self.losses += loss.detach()
        self.labels += labels_of_all
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip or math.inf)
        self.gradient_norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1

    def is_finite(self) -> bool:
        shards = [p.to_local() for p in self.model.parameters()]
        finite = torch.stack([shard.isfinite().all() for shard in shards]).all().int()
        dist.all_reduce(finite, dist.ReduceOp.MIN)
        return bool(finite)

    @torch.no_grad()
    def evaluate(self) -> float:
        """The mean loss of the test rows. Each rank makes as many forward passes: they are collective."""
        there = rows_in(self.tokens.test, self.options.length)
        rows = range(0, there, math.ceil(there / self.options.eval_rows))
        mine = list(rows[self.ranks.rank :: self.ranks.size])
        most = math.ceil(len(rows) / self.ranks.size)
        sums = torch.zeros(2, dtype=torch.float64, device=self.ranks.device)  # of losses, of labels
        self.model.eval()
        for tokens, labels in self.pieces_of(self.tokens.test, mine, math.ceil(most / self.micro_batch)):
            sums[0] += self.model(tokens, labels, self.end)
            sums[1] += (labels != IGNORED).sum()
        self.model.train()
        self.model.reshard()  # the root, which stays whole after a forward pass
        dist.all_reduce(sums)
        loss, count = sums.tolist()
        self.say({"step": self.step, "test_loss": round(loss / count, 6), "labels": int(count)})
        return loss / count

    def begin_log(self) -> None:
        self.losses = torch.zeros((), dtype=torch.float64, device=self.ranks.device)  # it stays on the device
        self.labels = torch.zeros((), dtype=torch.int64, device=self.ranks.device)
        self.logged = self.step
        self.since = time.perf_counter()

    def log(self) -> None:
        """A line about the steps since the last one. Collective."""
        dist.all_reduce(self.losses)
        loss = (self.losses / self.labels.clamp(min=1)).item()  # it waits for the GPU, then the clock is read
        seconds = time.perf_counter() - self.since
        speed = (self.step - self.logged) * self.options.batch_size * self.options.length / seconds
        tflops = speed * self.sizes.flops_per_token(self.options.length) / self.ranks.size / 1e12
        line = {
            "step": self.step,
            "loss": round(loss, 6),
            "lr": round(self.optimizer.param_groups[0]["lr"], 8),
            "epoch": round(self.step * self.options.batch_size / self.rows, 4),  # above 1: rows come again
        }
        line |= {"gradient_norm": round(self.gradient_norm.item(), 4), "seconds": round(seconds, 2)}
        line |= {"tokens/s": round(speed, 1), "tflops_per_rank": float(f"{tflops:.3g}")}
        line |= {"mfu": round(tflops / self.options.peak_tflops, 4)} if self.options.peak_tflops else {}
        if self.ranks.device.type == "cuda":
            line["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        self.say(line)
        self.begin_log()

    def say(self, line: dict[str, float]) -> None:  # the place for wandb or TensorBoard
        if self.ranks.rank == 0:
            line = {name: value if math.isfinite(value) else None for name, value in line.items()}
            print(json.dumps(line), flush=True)


def open_checkpoints(trainer: Trainer) -> Checkpoints:
    options = trainer.options
    settings = {name: value for name, value in vars(options).items() if name not in FREE}
    settings["tokens"] = trainer.tokens.known_by  # not --tokens: they may be elsewhere in the next job
    settings |= vars(trainer.sizes)
    allowed = CHANGEABLE if options.allow_changes else frozenset()
    rules = {"keep": options.keep, "keep_every": options.keep_every}
    rules |= {"may_change": allowed, "only_read": options.evaluate}
    state = {"model": trainer.model, "optimizer": trainer.optimizer}
    return Checkpoints(options.checkpoints, settings, trainer.new_group(), **state, **rules)


def tokens_for_all(options: argparse.Namespace) -> Tokens:
    tokens = descriptions() if options.tokens == "descriptions" else read(Path(options.tokens))
    known = [None] * dist.get_world_size()
    dist.all_gather_object(known, tokens.known_by)
    if len(set(known)) > 1:
        raise DataError("the machines of this job have different tokens")
    return tokens


def train(options: argparse.Namespace) -> int:
    """Train to the end, or to a signal; return the exit code."""
    ranks = join(options)
    trainer = Trainer(tokens_for_all(options), options, ranks)
    checkpoints = open_checkpoints(trainer) if options.checkpoints else None
    if checkpoints:
        trainer.step = checkpoints.resume()
    if options.evaluate and not trainer.step:
        raise Refused("--evaluate: --checkpoints must name a folder with a checkpoint")
    if options.evaluate or trainer.step == options.steps:
        trainer.evaluate()
    stopped = False
    if not options.evaluate:
        stop_sign = StopSign(trainer.new_group(), save_every_s=60 * (options.save_minutes or math.inf))
        stopped = train_steps(trainer, checkpoints, stop_sign)
        stop_sign.finish()
        if checkpoints and not checkpoints.finish(trainer.step):
            return 1
    if stopped:
        trainer.say({"stopped after step": trainer.step, "saved": checkpoints is not None})
        return SAVED_AND_LEFT if checkpoints else 1
    if options.export:
        dtype = torch.bfloat16 if options.precision == "bf16" else getattr(torch, options.precision)
        export(trainer.model, options.export, options.length, trainer.tokens.end, dtype)
    return 0


def train_steps(trainer: Trainer, saver: Checkpoints | None, stop: StopSign) -> bool:
    """Train from the next step to the last. True if a signal came before."""
    options = trainer.options
    trainer.begin_log()
    batches = trainer.batches()
    while trainer.step < options.steps:
        trainer.train_step(next(batches))
        stopped = stop.seen_by_all()
        is_last = stopped or trainer.step == options.steps
        every = [options.save_every, options.keep_every]
        is_due = any(steps and trainer.step % steps == 0 for steps in every)
        is_saved = is_last or is_due or stop.save_now
        is_logged = is_last or trainer.step % options.log_every == 0
        if (is_saved or is_logged) and not trainer.is_finite():
            if saver:
                saver.wait()  # for the checkpoint of an earlier step
            raise Refused(f"step {trainer.step}: the model is not finite; try a lower --lr")
        if is_logged:
            trainer.log()
        if saver and is_saved:
            saver.save(trainer.step)
        if stopped:
            return True
        if is_last or trainer.step % options.eval_every == 0:
            trainer.evaluate()
            trainer.begin_log()
    return False


def main(arguments: list[str] | None = None) -> int:
    return run_rank(lambda: train(parse(arguments)), (Refused, DataError, ModelError, argparse.ArgumentError))


if __name__ == "__main__":
    sys.exit(main())
