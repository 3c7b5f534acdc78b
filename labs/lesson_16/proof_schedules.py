"""Five schedules train a GPT with tied embeddings: all equal one process; what they send and hold.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_16/proof_schedules.py
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.comm.record import CommRecord, record
from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import gather_on_rank_0, print_on_rank_0
from shared.runtime.run import run
from shared.training.gpt import GPT, IGNORED, GPTConfig, loss_sum, token_batch
from shared.training.one_process import PlainSGD, Step, assert_same_training, step_of, train_steps
from shared.training.schedules import order_table, simulate, stages_of

from lab_16_executor import Action, gpipe, one_f_one_b
from lesson_16.proof_halves import SplitPipeline
from lesson_16.stage import new_stage

BY_HAND = {"GPipe": gpipe, "1F1B": one_f_one_b}
CLIPPED = "all stages clip by the norm of the whole model"
FROM_TORCH = ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")


@dataclass(frozen=True)
class Config:
    gpt: GPTConfig = field(default_factory=lambda: GPTConfig(context=16, layers=8))
    steps: int = 2
    learning_rate: float = 0.5
    max_norm: float = 0.1  # less than any norm here, so that clipping matters
    patience_s: float = 30.0  # for a message that does not come
    tolerance: float = 1e-12  # float64


class TiedWeight:
    """Keeps the embedding of the first and of the last stage one weight, on whichever ranks the two are."""

    def __init__(self, stages: dict[int, nn.Module], owner: list[int]) -> None:
        self.source = owner[0]
        ends = sorted({owner[0], owner[-1]})
        self.group = dist.new_group(ends)  # a collective of all ranks, members or not
        self.weight: nn.Parameter | None = None
        if dist.get_rank() in ends:
            own = [stages[number] for number in (0, len(owner) - 1) if number in stages]
            for stage in own:
                stage.tokens = own[0].tokens  # both ends on one rank: the same module, nothing to send
                if stage.last:
                    stage.head.weight = stage.tokens.weight
            self.weight = own[0].tokens.weight
        self.apart = len(ends) == 2

    def make_equal(self) -> None:
        """Once, before training: the last stage gets what the first stage has."""
        if self.apart and self.weight is not None:
            dist.broadcast(self.weight.data, src=self.source, group=self.group)

    def add_gradients(self) -> None:
        """After each backward: the weight was used at both ends, so its gradient is the sum of both."""
        if self.apart and self.weight is not None:
            dist.all_reduce(self.weight.grad, group=self.group)


class Counted(SplitPipeline):
    """It also counts the bytes saved for the backward passes, and the gradients on their way."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.of_one = 0  # bytes of the first micro-batch, after its first forward pass
        self.peak_saved = 0
        self.peak_sent = 0

    def do(self, kind: str, stage: int, number: int) -> None:
        super().do(kind, stage, number)
        saved = sum(self.kept_of(*key) for key in self.saved)
        self.of_one = self.of_one or saved
        self.peak_saved = max(self.peak_saved, saved)
        self.peak_sent = max(self.peak_sent, sum(what == "gradients" for what, _, _ in self.sends))

    def kept_of(self, stage: int, number: int) -> int:
        """Bytes that autograd keeps of one micro-batch, and those that I has left for W."""
        tensors = [box.tensor for box in self.saved[stage, number] if box.tensor is not None]
        tensors += [half.gradient for half in self.halves.get((stage, number), [])]
        own = {p.untyped_storage().data_ptr() for p in self.stages[stage].parameters()}
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        return sum(storage.nbytes() for place, storage in storages.items() if place not in own)


@dataclass
class Batch:
    """A batch cut into micro-batches: tokens and labels, (rows, length) each; rows and labels may differ."""

    tokens: list[torch.Tensor]
    labels: list[torch.Tensor]
    counted: int  # labels of the whole batch that are not ignored


def uneven_batch(cfg: GPTConfig, step: int, micro_batches: int, device: torch.device) -> Batch:
    """Half of the micro-batches have two rows, the others one; no two rows have as many labels that count."""
    rows = micro_batches + micro_batches // 2
    tokens, labels = token_batch(cfg, rows, step)
    labels = labels.clone()  # tokens and labels are views of the same rows
    for row in range(rows):
        labels[row, : 5 * row % cfg.context] = IGNORED
    tokens, labels = tokens.to(device), labels.to(device)
    counted = int((labels != IGNORED).sum())
    return Batch(list(tokens.tensor_split(micro_batches)), list(labels.tensor_split(micro_batches)), counted)


def plan_of(name: str, ranks: int, micro_batches: int) -> list[list[Action]]:
    """The actions of each rank."""
    if name in BY_HAND:
        return [BY_HAND[name](rank, ranks, micro_batches) for rank in range(ranks)]
    return order_table(name, ranks, micro_batches)


def plan_for_all(name: str, ranks: int, micro_batches: int) -> list[list[Action]]:
    """``plan_of``, asked by rank 0 for all: torch's tables import its compiler, 3 s of CPU. Collective."""
    plan = [plan_of(name, ranks, micro_batches)] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(plan, src=0)
    return plan[0]


def owners(plan: list[list[Action]]) -> list[int]:
    """The rank of each stage."""
    rank_of = {stage: rank for rank, actions in enumerate(plan) for _, stage, _ in actions}
    return [rank_of[stage] for stage in range(len(rank_of))]


class Trainer:
    """This rank's part of a GPT in a pipeline: stages, tied weight, optimizer."""

    def __init__(self, name: str, plan: list[list[Action]], group: Group, cfg: Config) -> None:
        self.name = name
        self.plan = plan
        self.group = group
        self.cfg = cfg
        self.owner = owners(plan)
        torch.manual_seed(1 + group.rank)  # ranks begin with different numbers
        own = [number for number, rank in enumerate(self.owner) if rank == group.rank]
        self.stages = {n: new_stage(cfg.gpt, n, len(self.owner)).to(group.device) for n in own}
        self.tied = TiedWeight(self.stages, self.owner)
        self.tied.make_equal()
        patience = timedelta(seconds=cfg.patience_s)
        self.pipeline = Counted(self.stages, self.owner, group.device, cfg.gpt.dtype, patience)
        self.parameters = dict(p for stage in self.stages.values() for p in stage.named_parameters())
        self.optimizer = PlainSGD(list(self.parameters.values()), cfg.learning_rate)

    def whole(self) -> GPT:
        """The same model, on this rank alone, to compare with. Collective."""
        everyones: list = [None] * self.group.world_size
        dist.all_gather_object(everyones, {name: p.detach().cpu() for name, p in self.parameters.items()})
        model = GPT(self.cfg.gpt)
        names = {name for name, _ in model.named_parameters()}
        for held in reversed(everyones):  # the first stage's copy of the tied weight counts
            model.load_state_dict(held, strict=False)
            names -= held.keys()
        assert not names, f"no stage holds {names}"
        return model.to(self.group.device)

    def forward_and_backward(self, batch: Batch, share_of_loss: Callable | None = None) -> torch.Tensor:
        """All micro-batches; gradients are added to those that are there. The loss, on the last stage."""
        length, width = self.cfg.gpt.context, self.cfg.gpt.width
        shapes = [torch.Size((len(tokens), length, width)) for tokens in batch.tokens]

        def by_tokens(number: int, logits: torch.Tensor) -> torch.Tensor:
            return loss_sum(logits, batch.labels[number]) / batch.counted

        actions = self.plan[self.group.rank]
        return self.pipeline.step(actions, batch.tokens, shapes, share_of_loss or by_tokens)

    def train_step(
        self,
        batch: Batch,
        share_of_loss: Callable | None = None,
        add_gradients: bool = True,
        clip: Callable[["Trainer"], None] | None = None,
    ) -> tuple[Step, CommRecord]:
        """One step; what it leaves behind, and the messages between stages."""
        self.optimizer.zero_grad()
        with record() as log:
            loss = self.forward_and_backward(batch, share_of_loss)
        if add_gradients:
            self.tied.add_gradients()
        if clip is not None:
            clip(self)
        self.optimizer.step()
        dist.broadcast(loss, src=self.owner[-1])  # only to compare it
        return step_of(loss, self.parameters.items()), log

    def part_of(self, name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        return tensor if name in self.parameters else None


def expected_messages(trainer: Trainer, batch: Batch) -> tuple[int, int]:
    """How many messages this rank sends in a step, and their bytes: (calls, bytes)."""
    gpt = trainer.cfg.gpt
    of_all = sum(len(tokens) for tokens in batch.tokens) * gpt.context * gpt.width * gpt.dtype.itemsize
    borders = 0  # to a neighbour on another rank
    for stage in trainer.stages:
        for neighbour in (stage - 1, stage + 1):
            if 0 <= neighbour < len(trainer.owner) and trainer.owner[neighbour] != trainer.group.rank:
                borders += 1
    return borders * len(batch.tokens), borders * of_all


def clip_tied_twice(trainer: Trainer, copies: Sequence[nn.Parameter] = ()) -> None:
    from lab_16_torch import clip_stages  # imports torch's pipelines, 1.5 s of CPU: lesson 22 needs none

    clip_stages(nn.ModuleList(trainer.stages.values()), trainer.cfg.max_norm, copies)


def clip_once(trainer: Trainer) -> None:
    """By the norm of the whole model, in which the tied weight counts once: on the first stage."""
    first = trainer.owner[0] == trainer.group.rank
    clip_tied_twice(trainer, [] if first or trainer.tied.weight is None else [trainer.tied.weight])


def clip_alone(trainer: Trainer) -> None:
    """What a script does that was written for one process: each stage by its own norm."""
    nn.utils.clip_grad_norm_(trainer.parameters.values(), trainer.cfg.max_norm)


def truth_of(trainer: Trainer, batches: list[Batch], max_norm: float | None = None) -> list[Step]:
    """The same training in one process, the whole batch at once; clipped if there is a ``max_norm``."""

    def clip(model: nn.Module, _: torch.Tensor) -> None:
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        labels = torch.cat(batches[step].labels)
        return loss_sum(model(torch.cat(batches[step].tokens)), labels) / batches[step].counted

    alone = trainer.whole()
    optimizer = PlainSGD(alone.parameters(), trainer.cfg.learning_rate)
    return train_steps(alone, optimizer, loss_of, len(batches), clip)


def prove(name: str, group: Group, cfg: Config) -> dict:
    """Train with one schedule beside one process; the numbers of this rank."""
    micro_batches = 2 * max(2, group.world_size)
    plan = plan_for_all(name, group.world_size, micro_batches)
    simulated = simulate(plan, micro_batches)
    trainer = Trainer(name, plan, group, cfg)
    batches = [uneven_batch(cfg.gpt, step, micro_batches, group.device) for step in range(cfg.steps)]
    truth = truth_of(trainer, batches)
    ours = []
    for batch in batches:
        step, log = trainer.train_step(batch)
        ours.append(step)
        sent = (log.count("send"), log.bytes("send"))
        expected = expected_messages(trainer, batch)
        if sent != expected:
            raise CourseError(f"{name}: {sent} messages and bytes were sent, expected are {expected}")
    assert_same_training(name, ours, truth, cfg.tolerance, trainer.part_of)
    per_rank = stages_of(plan) // group.world_size
    live = trainer.pipeline.peak_live / per_rank
    if live != simulated.peak_live[group.rank]:
        raise CourseError(
            f"{name}: {live} micro-batches at once, {simulated.peak_live[group.rank]} simulated"
        )
    under_way = trainer.pipeline.peak_sent
    if under_way > group.world_size:
        raise CourseError(f"{name}: {under_way} gradients on their way, more than there are ranks")
    return {"calls": sent[0], "live": live, "under way": under_way}


def activations(name: str, micro_batches: int, group: Group, cfg: Config) -> dict:
    """Bytes that one step keeps on this rank, with micro-batches of one row each."""
    plan = plan_for_all(name, group.world_size, micro_batches)
    trainer = Trainer(name, plan, group, cfg)
    tokens, labels = (tensor.to(group.device) for tensor in token_batch(cfg.gpt, micro_batches, 0))
    batch = Batch(list(tokens.chunk(micro_batches)), list(labels.chunk(micro_batches)), labels.numel())
    trainer.forward_and_backward(batch)
    pipeline = trainer.pipeline
    if name in BY_HAND and pipeline.peak_saved != pipeline.peak_live * pipeline.of_one:
        raise CourseError(
            f"{name}: {pipeline.peak_saved} bytes for {pipeline.peak_live} times {pipeline.of_one}"
        )
    return {"live": pipeline.peak_live, "saved": pipeline.peak_saved, "of_one": pipeline.of_one}


def assert_memory(group: Group, cfg: Config) -> dict[str, dict]:
    """GPipe keeps all micro-batches, 1F1B as many as there are stages to come."""
    number = 2 * group.world_size
    two_blocks_each = replace(cfg, gpt=replace(cfg.gpt, layers=number))
    names = [*BY_HAND, *(FROM_TORCH if group.world_size > 1 else ())]
    memory = {name: activations(name, number, group, two_blocks_each) for name in names}
    for name, expected in (("GPipe", number), ("1F1B", group.world_size - group.rank)):
        live = memory[name]["live"]
        if live != expected:
            raise CourseError(f"{name} holds {live} micro-batches at once, expected are {expected}")
    return memory


def tell_what_goes_wrong(group: Group, cfg: Config) -> None:
    """Faults that raise no error, and clipping done right; what the comparison with one process says."""
    micro_batches = 2 * max(2, group.world_size)
    batch = uneven_batch(cfg.gpt, 0, micro_batches, group.device)
    ranks = list(range(group.world_size))
    apart = ranks if group.world_size > 1 else []

    def mean_of_means(number: int, logits: torch.Tensor) -> torch.Tensor:
        labels = batch.labels[number]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED) / micro_batches

    for fault, options, expected in (
        ("the tied weight's gradients are not added", {"add_gradients": False}, apart[:1] + apart[-1:]),
        ("a mean of the micro-batches' means", {"share_of_loss": mean_of_means}, ranks),
        ("each stage clips by its own norm", {"clip": clip_alone}, apart),
        ("the tied weight counts twice in the norm", {"clip": clip_tied_twice}, apart),
        ("all stages clip by the norm of the whole model", {"clip": clip_once}, []),
    ):
        trainer = Trainer(fault, plan_of("1F1B", group.world_size, micro_batches), group, cfg)
        truth = truth_of(trainer, [batch], cfg.max_norm if "clip" in options else None)
        step, _ = trainer.train_step(batch, **options)
        verdict = ""
        try:
            assert_same_training("1F1B", [step], truth, cfg.tolerance, trainer.part_of)
        except ParityError as error:
            verdict = str(error).removeprefix("1F1B, step 0: ").split(", allowed")[0]
        everyones: list[str] = [""] * group.world_size
        dist.all_gather_object(everyones, verdict)
        differ = [rank for rank in ranks if everyones[rank]]
        if differ != expected:
            raise CourseError(f"{fault}: ranks {differ} differ from one process, expected are {expected}")
        print_on_rank_0(
            f"{fault}: " + (f"ranks {differ}, {everyones[0]}" if differ else "equals one process")
        )


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group:
        layers = max(cfg.gpt.layers, 2 * group.world_size)  # some schedules have two stages on each rank
        cfg = replace(cfg, gpt=replace(cfg.gpt, layers=layers))
        for name in [*BY_HAND, *(FROM_TORCH if group.world_size > 1 else ())]:
            everyones = gather_on_rank_0(prove(name, group, cfg))
            if group.rank == 0:
                calls = sum(result["calls"] for result in everyones)
                held = [result["live"] for result in everyones]
                most = max(result["under way"] for result in everyones)
                print(f"{name}: equals one process; {calls} messages, at most {most} gradients on their way")
                print(f"    micro-batches held: {held}")
        memory = assert_memory(group, cfg)
        for name, most in memory.items():
            in_bytes = gather_on_rank_0(round(most["saved"] / memory["GPipe"]["of_one"], 2))
            print_on_rank_0(f"{name}: bytes held at the peak, in micro-batches: {in_bytes}")
        tell_what_goes_wrong(group, cfg)


if __name__ == "__main__":
    run(main, Config())
