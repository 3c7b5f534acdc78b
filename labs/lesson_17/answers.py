"""Answers to exercise 17."""

from tests.planted import Right, Wrong, solved

SUM = """
total = x.clone(memory_format=torch.contiguous_format)
dist.all_reduce(total)
return total
"""
HIDDEN = """
hidden = F.silu(F.linear(x, self.gate_weight, self.gate_bias))
hidden = hidden * F.linear(x, self.up_weight, self.up_bias)
"""
__INIT__ = solved("17_gated_mlp", "__init__")
BACKWARD = solved("17_gated_mlp", "backward")

ANSWERS = [
    Wrong(
        what="Adds the bias to the partial sum of one rank.",
        old="return SumOverRanks.apply(F.linear(hidden, self.down_weight)) + self.down_bias",
        new="""
        bias = self.down_bias if dist.get_rank() == 0 else None
        return SumOverRanks.apply(F.linear(hidden, self.down_weight, bias))
        """,
        told="down_bias has no gradient",
    ),
    Wrong(
        what="Adds the bias to each partial sum.",
        old="self.down_weight)) + self.down_bias",
        new="self.down_weight, self.down_bias))",
        told="has the bias of down in it 3 times",
    ),
    Wrong(
        what="Adds its share of the bias to each partial sum.",
        old="self.down_weight)) + self.down_bias",
        new="self.down_weight, self.down_bias / dist.get_world_size()))",
        told="the gradient of down_bias is 3 times too small",
    ),
    Wrong(
        what="f stands before up alone.",
        old=("x = CopyToRanks.apply(x)", "F.linear(x, self.up_weight, self.up_bias)"),
        new=("", "F.linear(CopyToRanks.apply(x), self.up_weight, self.up_bias)"),
        told="lacks what other ranks have from gate",
    ),
    Wrong(
        what="Sums in float32.",
        old=SUM,
        new=SUM.replace("x.clone(", "x.float().clone(").replace("return total", "return total.to(x.dtype)"),
        told="is right to float32 alone",
    ),
    Wrong(
        what="Sums in place.",
        old="total = gradient.clone(memory_format=torch.contiguous_format)",
        new="total = gradient",
        told="CopyToRanks.backward changes the gradient",
    ),
    Wrong(
        what="g sums in place.",
        old=SUM,
        new="""
        dist.all_reduce(x)
        return x.view_as(x)
        """,
        told="SumOverRanks.forward changes the x",
    ),
    Wrong(
        what="Rank r takes each N-th hidden unit.",
        old=__INIT__,
        new="""
        self.gate_weight = nn.Parameter(whole.gate.weight.detach()[rank::ranks].clone())
        self.gate_bias = nn.Parameter(whole.gate.bias.detach()[rank::ranks].clone())
        self.up_weight = nn.Parameter(whole.up.weight.detach()[rank::ranks].clone())
        self.up_bias = nn.Parameter(whole.up.bias.detach()[rank::ranks].clone())
        self.down_weight = nn.Parameter(whole.down.weight.detach()[:, rank::ranks].clone())
        self.down_bias = nn.Parameter(whole.down.bias.detach().clone())
        """,
        told="gate_weight holds each N-th hidden unit",
    ),
    Wrong(
        what="f is the identity in both directions.",
        old=BACKWARD,
        new="return gradient",
        told="is what came back through this rank's columns alone",
    ),
    Wrong(
        what="Averages what is to be added up.",
        old=SUM,
        new=SUM.replace("return total", "return total / dist.get_world_size()"),
        told="is the mean of the ranks' partial sums",
    ),
    Wrong(
        what="Averages gradients, as data parallel training does.",
        old="total = gradient.clone(memory_format=torch.contiguous_format)",
        new="total = gradient / dist.get_world_size()",
        told="is the mean of what the ranks have",
    ),
    Wrong(
        what="g is the identity in both directions.",
        old=SUM,
        new="return x.view_as(x)",
        told="is this rank's partial sum alone",
    ),
    Wrong(
        what="g sums gradients as well.",
        old="return gradient",
        new="""
        total = gradient.clone()
        dist.all_reduce(total)
        return total
        """,
        told="times too large",
    ),
    Wrong(
        what="Each of the two layers has its own f.",
        old=("x = CopyToRanks.apply(x)", HIDDEN),
        new=("", HIDDEN.replace("(x,", "(CopyToRanks.apply(x),")),
        told="bytes by 2 x all_reduce",
    ),
    Wrong(
        what="Cuts all weights along their first dimension.",
        old="ranks, 1",
        new="ranks, 0",
        told="down_weight is (",
    ),
    Wrong(
        what="Its parameters are views, which keep the whole alive.",
        old="whole.gate.weight.detach().chunk(ranks, 0)[rank].clone()",
        new="whole.gate.weight.detach().chunk(ranks, 0)[rank]",
        told="gate_weight is a view",
    ),
    Wrong(
        what="g gathers all partial sums, which with two ranks costs no more.",
        old=SUM,
        new="""
        parts = [x.new_empty(x.shape) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return sum(parts)
        """,
        told="x all_gather",
    ),
    Right(
        what="Clones as the tensor lies.",
        old=("gradient.clone(memory_format=torch.contiguous_format)", SUM),
        new=("gradient.clone()", SUM.replace("memory_format=torch.contiguous_format", "")),
    ),
    Right(
        what="gate and up are one product, and the sums are torch's functional all-reduce.",
        old=(SUM, HIDDEN, BACKWARD),
        new=(
            'return functional.all_reduce(x, "sum", dist.group.WORLD)',
            """
            weight = torch.cat([self.gate_weight, self.up_weight])
            bias = torch.cat([self.gate_bias, self.up_bias])
            gate, up = F.linear(x, weight, bias).chunk(2, -1)
            hidden = F.silu(gate) * up
            """,
            'return functional.all_reduce(gradient, "sum", dist.group.WORLD)',
        ),
        below="import torch.distributed._functional_collectives as functional",
    ),
]
