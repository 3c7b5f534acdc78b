"""Planted faults of lesson 17; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("17_mlp", "        dist.all_reduce(total, group=ctx.group)\n", "", "gradient of the input differs"),
    Fault(
        "17_mlp",
        "self.leave(F.linear(x, self.weight), self.group)",
        "self.leave(F.linear(x, self.weight, self.bias), self.group)",
        "output differs",
    ),
    Fault(
        "17_mlp",
        "dist.all_reduce(of_input, group=ctx.group, async_op=True)",
        "dist.all_reduce(of_input.clone(), group=ctx.group, async_op=True)",
        "overlap True, biases True: gradient of the input differs",
    ),
    Fault(
        "17_mlp",
        "(square + sum(p.grad.square().sum() for p in copied))",
        "square",
        "norm of the gradient differs",
    ),
    Fault(
        "17_mlp",
        "        return gradient, None\n",
        "        return gradient * dist.get_world_size(), None\n",
        "GPT over 2 ranks, step 0: gradient of",
        run="17_gpt",
    ),
    Fault("17_gpt", "        attention.heads //= ranks\n", "", "GPT over 2 ranks, step 0: loss: differs"),
    Fault(
        "17_gpt",
        "        vectors = vectors.masked_fill(elsewhere.unsqueeze(-1), 0)\n",
        "",
        "GPT over 2 ranks, step 0: loss: differs",
    ),
    Fault("17_gpt", "group, enter=None)", "group)", "a block calls"),
    Fault(
        "17_gpt",
        "    model.head.weight = model.tokens.weight  # tied, as before\n",
        "",
        "gradient of head.weight should not be here",
    ),
    Fault(
        "17_sequence",
        "    dist.all_reduce(flat, group=group)\n",
        "",
        "sequence parallel, step 0: gradient of",
    ),
    Fault(
        "17_sequence",
        "return scatter_sums(gradient, ctx.group), None",
        "return tp.part_of(gradient, 1, ctx.group), None",
        "sequence parallel, step 0: gradient of",
    ),
    Fault(
        "17_sequence",
        "F.dropout(whole, self.p, self.training)",
        "F.dropout(whole, self.p, False)",
        "dropout on parts of one mask, step 0: loss",
    ),
    Fault(
        "17_sequence",
        "        return gather_sequence(x, group)\n",
        "        gather_sequence(x, group)\n        return gather_sequence(x, group)\n",
        "bytes by rule, expected",
    ),
    Fault("17_plans", "heads //= mesh.size()", "heads //= 1", "TP, step 0: loss: differs"),
    Fault(
        "17_plans",
        "    model.head.weight = model.tokens.weight  # parallelize_module has made two parameters of one\n",
        "",
        "gradient of head.weight should not be here",
    ),
    Fault("17_faults", "enter=lambda x, _: x", "enter=tp.CopyToRanks.apply", "'parity: equal' is not what"),
]
