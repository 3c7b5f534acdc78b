"""Answers to exercise 17; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

SUM = """
total = x.clone()
dist.all_reduce(total)
return total
"""
HIDDEN = """
hidden = F.silu(F.linear(x, self.gate_weight, self.gate_bias))
hidden = hidden * F.linear(x, self.up_weight, self.up_bias)
"""

ANSWERS = [
    wrong(
        "Adds the bias to the summand of one rank.",
        "down_bias has no gradient",
        (
            "return SumOverRanks.apply(F.linear(hidden, self.down_weight)) + self.down_bias",
            """
            bias = self.down_bias if dist.get_rank() == 0 else None
            return SumOverRanks.apply(F.linear(hidden, self.down_weight, bias))
            """,
        ),
    ),
    wrong(
        "Adds the bias to each summand.",
        "has the bias of down in it 3 times",
        ("self.down_weight)) + self.down_bias", "self.down_weight, self.down_bias))"),
    ),
    wrong(
        "Adds its share of the bias to each summand.",
        "the gradient of down_bias is 3 times too small",
        ("self.down_weight)) + self.down_bias", "self.down_weight, self.down_bias / dist.get_world_size()))"),
    ),
    wrong(
        "f stands before up alone.",
        "lacks what other ranks have from gate",
        ("x = CopyToRanks.apply(x)", ""),
        (
            "F.linear(x, self.up_weight, self.up_bias)",
            "F.linear(CopyToRanks.apply(x), self.up_weight, self.up_bias)",
        ),
    ),
    wrong(
        "f stands before gate alone.",
        "lacks what other ranks have from up",
        ("x = CopyToRanks.apply(x)", ""),
        (
            "F.linear(x, self.gate_weight, self.gate_bias)",
            "F.linear(CopyToRanks.apply(x), self.gate_weight, self.gate_bias)",
        ),
    ),
    wrong(
        "Sums in float32.",
        "is right to float32 alone",
        (SUM, SUM.replace("x.clone()", "x.float()").replace("return total", "return total.to(x.dtype)")),
    ),
    wrong(
        "Sums in place.",
        "CopyToRanks.backward changes the gradient",
        ("total = gradient.clone()", "total = gradient"),
    ),
    wrong(
        "Rank r takes each N-th hidden number.",
        "gate_weight holds each N-th hidden number",
        __init__="""
        self.gate_weight = nn.Parameter(whole.gate.weight.detach()[rank::ranks].clone())
        self.gate_bias = nn.Parameter(whole.gate.bias.detach()[rank::ranks].clone())
        self.up_weight = nn.Parameter(whole.up.weight.detach()[rank::ranks].clone())
        self.up_bias = nn.Parameter(whole.up.bias.detach()[rank::ranks].clone())
        self.down_weight = nn.Parameter(whole.down.weight.detach()[:, rank::ranks].clone())
        self.down_bias = nn.Parameter(whole.down.bias.detach().clone())
        """,
    ),
    wrong(
        "f is the identity in both directions.",
        "is what came back through this rank's columns alone",
        backward="return gradient",
    ),
    wrong(
        "Averages what is to be added up.",
        "is the mean of the ranks' summands",
        (SUM, SUM.replace("return total", "return total / dist.get_world_size()")),
    ),
    wrong(
        "Averages gradients, as data parallel training does.",
        "is the mean of what the ranks have",
        ("total = gradient.clone()", "total = gradient / dist.get_world_size()"),
    ),
    wrong(
        "g is the identity in both directions.",
        "is this rank's summand alone",
        (SUM, "return x.view_as(x)"),
    ),
    wrong(
        "g sums gradients as well.",
        "times too large",
        (
            "return gradient",
            """
            total = gradient.clone()
            dist.all_reduce(total)
            return total
            """,
        ),
    ),
    wrong(
        "Each of the two layers has its own f.",
        "bytes by 2 x all_reduce",
        ("x = CopyToRanks.apply(x)", ""),
        (HIDDEN, HIDDEN.replace("(x,", "(CopyToRanks.apply(x),")),
    ),
    wrong(
        "Cuts all weights along their first dimension.",
        "down_weight is (",
        ("ranks, 1", "ranks, 0"),
    ),
    wrong(
        "Its parameters are views, which keep the whole alive.",
        "gate_weight is a view",
        (
            "whole.gate.weight.detach().chunk(ranks, 0)[rank].clone()",
            "whole.gate.weight.detach().chunk(ranks, 0)[rank]",
        ),
    ),
    right(
        "gate and up are one product, and the sums are torch's functional all-reduce.",
        (SUM, 'return functional.all_reduce(x, "sum", dist.group.WORLD)'),
        (
            HIDDEN,
            """
            weight = torch.cat([self.gate_weight, self.up_weight])
            bias = torch.cat([self.gate_bias, self.up_bias])
            gate, up = F.linear(x, weight, bias).chunk(2, -1)
            hidden = F.silu(gate) * up
            """,
        ),
        backward='return functional.all_reduce(gradient, "sum", dist.group.WORLD)',
        below="import torch.distributed._functional_collectives as functional",
    ),
    right(
        "The all-reduce is done by its two halves, reduce-scatter and all-gather.",
        (SUM, "return summed(x)"),
        backward="return summed(gradient)",
        below="""
        def summed(x: torch.Tensor) -> torch.Tensor:
            flat = x.flatten()
            padded = F.pad(flat, (0, -len(flat) % dist.get_world_size()))
            part = padded.new_empty(len(padded) // dist.get_world_size())
            dist.reduce_scatter_tensor(part, padded)
            dist.all_gather_into_tensor(padded, part)
            return padded[: len(flat)].view_as(x)
        """,
    ),
]
