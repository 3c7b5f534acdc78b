"""Every strategy of lessons 08 to 21 as a row of the table: a part of one transformer, a step, formulas.

What trains here is what lessons 16, 17, 18, 20 and 21 proved. To add a row, write a function that returns a
``Row`` into one of the rows_*.py, and put it into ``ROWS``.
"""

from collections.abc import Callable
from functools import partial

from shared.runtime.errors import InputError
from shared.runtime.group import Group
from shared.training.gpt import GPT

from lesson_21.proof_gpt import use_experts
from lesson_22.rows import Config, Job, Row, Truth
from lesson_22.rows_data import ddp, single, zero_1
from lesson_22.rows_experts import ep, ep_recomputing, fsdp_ep
from lesson_22.rows_pipeline import pp_1f1b, pp_fsdp_tp
from lesson_22.rows_sequence import cp_ring, cp_ring_recomputing, cp_ulysses, fsdp_cp
from lesson_22.rows_sharded import fsdp, fsdp_recomputing, hsdp
from lesson_22.rows_tensor import fsdp_tp, tp, tp_sp, tp_sp_recomputing

Build = Callable[[Job], Row]
ROWS: dict[str, Build] = {
    "single": single,
    "DDP": ddp,
    "ZeRO-1": zero_1,
    "FSDP": fsdp,
    "FSDP, checkpointing": fsdp_recomputing,
    "HSDP": hsdp,
    "TP": tp,
    "TP + SP": tp_sp,
    "TP + SP, checkpointing": tp_sp_recomputing,
    "PP, 1F1B": pp_1f1b,
    "CP, ring": cp_ring,
    "CP, ring, checkpointing": cp_ring_recomputing,
    "CP, Ulysses": cp_ulysses,
    "FSDP x CP": fsdp_cp,
    "FSDP x TP": fsdp_tp,
}
ROWS_WITH_EXPERTS: dict[str, Build] = {
    "single, experts": single,
    "EP": ep,
    "EP, checkpointing": ep_recomputing,
    "FSDP x EP": fsdp_ep,
}
ROWS_OF_8: dict[str, Build] = {"PP x FSDP x TP": pp_fsdp_tp}


def rows_for(ranks: int) -> dict[str, Build]:
    """The rows that run with so many ranks."""
    rows = {4: ROWS | ROWS_WITH_EXPERTS, 8: ROWS_OF_8}.get(ranks)
    if rows is None:
        raise InputError(f"the table runs with 4 ranks, its last row with 8, not with {ranks}")
    return rows


def new_model(experts: bool, group: Group, cfg: Config) -> GPT:
    """The one transformer; with ``experts`` its MLPs are mixtures of them."""
    model = GPT(cfg.gpt)
    if experts:
        model = use_experts(model, cfg.experts, cfg.k)
    return model.to(group.device)


class Truths:
    """One ``Truth`` for each kind of model, made when it is asked for. Collective."""

    def __init__(self, group: Group, cfg: Config) -> None:
        self.group = group
        self.cfg = cfg
        self.made: dict[bool, Truth] = {}

    def of(self, experts: bool) -> Truth:
        if experts not in self.made:
            make = partial(new_model, experts, self.group, self.cfg)
            self.made[experts] = Truth(make, self.group, self.cfg)
        return self.made[experts]

    @property
    def size(self) -> int:
        """S: the bytes of all parameters of the transformer without experts, the unit of *all* rows."""
        return self.of(experts=False).size

    def job(self, name: str) -> Job:
        experts = name in ROWS_WITH_EXPERTS
        return Job(self.of(experts), experts, self.group, self.cfg)
