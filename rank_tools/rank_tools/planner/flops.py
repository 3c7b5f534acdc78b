"""Operations of a token, and the shares of a GPU's peak that they make: MFU and HFU, in each convention.

Counted are multiplications and additions in matrix products. A parameter costs 2 forward and 4 backward.
Attention costs 12 x layers x width x length besides, or half of that if only what a causal mask leaves is
counted. Publications differ in that, and in whether the input embedding counts, which is looked up only.
"""

from typing import NamedTuple

from .transformer import Model

NONE = "none"
SELECTIVE = "selective"
BY_OP = "op"
WHOLE = "full"
RECOMPUTE = (NONE, SELECTIVE, BY_OP, WHOLE)


class Convention(NamedTuple):
    """How a publication counts: the share of attention, and whether what is only looked up counts."""

    name: str
    attention: float
    embedding: bool


PARAMETERS_ONLY = Convention("6N", 0.0, True)
FULL = Convention("6N + 12Lds", 1.0, True)  # PaLM, appendix B; llm-foundry
CAUSAL = Convention("6(N - Vd) + 6Lds", 0.5, False)  # Megatron-Bridge
MEGATRON = Convention("6(N - Vd) + 12Lds", 1.0, False)  # Narayanan et al. 2021, Korthikanti et al. 2022
CONVENTIONS = (PARAMETERS_ONLY, FULL, CAUSAL, MEGATRON)


def per_token(model: Model, convention: Convention, recompute: str = NONE) -> float:
    """Operations of forward and backward for one token of a sequence of ``model.context``.

    With ``recompute`` those that the hardware does: ``full`` repeats the forward pass, ``op`` half of it
    without attention, ``selective`` attention's products.
    """
    parameters = model.active_parameters() - (0 if convention.embedding else model.embedding())
    attention = 12 * model.layers * model.attention_width() * model.seen() * convention.attention
    of_parameters = {WHOLE: 8, BY_OP: 7}.get(recompute, 6)
    of_attention = 4 / 3 if recompute in (WHOLE, SELECTIVE) else 1.0
    return of_parameters * parameters + of_attention * attention


def utilization(operations_per_token: float, tokens_per_s_and_gpu: float, peak: float) -> float:
    """The share of ``peak``, in operations a second. MFU or HFU, as the operations are counted."""
    return operations_per_token * tokens_per_s_and_gpu / peak
