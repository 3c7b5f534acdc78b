"""Operations of a token, and the shares of a GPU's peak that they make: MFU and HFU, in each convention.

Counted are multiplications and additions in matrix products. A parameter costs 2 forward and 4 backward.
Attention costs 12 x layers x width x length besides, or half of that if only what a causal mask leaves is
counted. Publications differ in that, and in whether the input embedding counts, which is looked up only.
"""

from dataclasses import dataclass

from .errors import PlanError
from .models import Model

NONE = "none"
SELECTIVE = "selective"
WHOLE = "full"
RECOMPUTE = (NONE, SELECTIVE, WHOLE)


@dataclass(frozen=True)
class Convention:
    """How a publication counts.

    Attributes:
        attention: the share of the products of queries and keys that counts.
        embedding: whether parameters count that are only looked up.
    """

    name: str
    attention: float
    embedding: bool


PARAMETERS_ONLY = Convention("6N", 0.0, True)
FULL = Convention("6N + 12Lds", 1.0, True)  # PaLM, appendix B; llm-foundry
CAUSAL = Convention("6(N - Vd) + 6Lds", 0.5, False)  # Megatron-Bridge
MEGATRON = Convention("6(N - Vd) + 12Lds", 1.0, False)  # Narayanan et al. 2021, Korthikanti et al. 2022
CONVENTIONS = (PARAMETERS_ONLY, FULL, CAUSAL, MEGATRON)


def per_token(model: Model, convention: Convention, recompute: str | None = None) -> float:
    """Operations of forward and backward for one token of a sequence of ``model.context``.

    With ``recompute`` those that the hardware does: ``full`` repeats the forward pass, ``selective`` the
    products of queries and keys, and of these with values. (Equation 8 of Korthikanti et al. 2022 adds three
    times as much for ``selective``: as much as their forward and backward pass.)
    """
    parameters = model.active_parameters()
    if not convention.embedding:
        parameters -= model.embedding()
    attention = 12 * model.layers * model.attention_width() * model.context * convention.attention
    if recompute is None or recompute == NONE:
        return 6 * parameters + attention
    if recompute == SELECTIVE:
        return 6 * parameters + attention * 4 / 3
    if recompute == WHOLE:
        return (6 * parameters + attention) * 4 / 3
    raise PlanError(f"recompute must be one of {', '.join(RECOMPUTE)}, not {recompute!r}")


def utilization(operations_per_token: float, tokens_per_s_and_gpu: float, peak: float) -> float:
    """The share of ``peak``, in operations a second. MFU or HFU, as the operations are counted."""
    return operations_per_token * tokens_per_s_and_gpu / peak
