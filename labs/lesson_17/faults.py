"""Planted faults of lesson 17."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="17_mlp",
        old="        dist.all_reduce(total, group=ctx.group)\n",
        new="",
        told="gradient of the input differs",
    ),
    Fault(
        lab="17_mlp",
        old="(square + sum(p.grad.square().sum() for p in copied))",
        new="square",
        told="norm of the gradient differs",
    ),
    Fault(
        lab="17_gpt",
        old="        vectors = vectors.masked_fill(elsewhere.unsqueeze(-1), 0)\n",
        new="",
        told="GPT over 2 ranks, step 0: loss: differs",
    ),
    Fault(lab="17_gpt", old="group, enter=None)", new="group)", told="a block calls"),
    Fault(
        lab="17_gpt",
        old="    model.head.weight = model.tokens.weight  # tied, as before\n",
        new="",
        told="gradient of head.weight should not be here",
    ),
    Fault(
        lab="17_sequence",
        old="return scatter_sums(gradient, ctx.group), None",
        new="return tp.part_of(gradient, 1, ctx.group), None",
        told="sequence parallel, step 0: gradient of",
    ),
    Fault(
        lab="17_sequence",
        old="F.dropout(whole, self.p, self.training)",
        new="F.dropout(whole, self.p, False)",
        told="dropout on parts of one mask, step 0: loss",
    ),
    Fault(
        lab="17_sequence",
        old="        return gather_sequence(x, group)\n",
        new="        gather_sequence(x, group)\n        return gather_sequence(x, group)\n",
        told="bytes by rule, expected",
    ),
    # gate and up would each gather: PrepareModuleInput on the MLP gathers once for both.
    Fault(
        lab="17_torch",
        old='        "mlp": gather,\n'
        '        "mlp.gate": ColwiseParallel(),\n'
        '        "mlp.up": ColwiseParallel(),\n',
        new='        "mlp.gate": ColwiseParallel(input_layouts=Shard(1)),\n'
        '        "mlp.up": ColwiseParallel(input_layouts=Shard(1)),\n',
        told="gate and up share a gather: 3 all-gathers",
        run="17_plans",
    ),
    Fault(
        lab="17_plans",
        old="p.grad = p.grad.redistribute(",
        new="p.grad.redistribute(",
        told="gradients summed once: (10, 30) all-reduces",
    ),
    Fault(
        lab="17_plans",
        old="heads //= mesh.size()",
        new="heads //= 1",
        told="TP, step 0: loss: differs",
    ),
    Fault(
        lab="17_torch",
        old="p.unflatten(-1, (-1, self.head_width))",
        new="p.unflatten(-1, (4, -1))",  # as many heads as the whole block has, narrower ones
        told="the output differs",
    ),
    # Parts that are allocated, and never filled from rank 0.
    Fault(
        lab="17_torch",
        old="    set_model_state_dict(block, values, options=options)\n",
        new="    for p in block.parameters():\n        nn.init.zeros_(p)\n",
        told="the output differs",
    ),
    Fault(
        lab="17_fused",
        old="    return torch.cat([part[rank] for rank in range(ranks) for part in parts])\n",
        new="    return torch.cat([part[rank] for part in parts for rank in range(ranks)])\n",
        told="cut by projection: off by",
    ),
    Fault(
        lab="17_fused",
        old="saved = by_projection(saved, fused[layer], ranks)",
        new="pass",
        told="saved: qkv.weight: differs",
    ),
    Fault(
        lab="17_torch",
        old="y.square().sum()",
        new="y.square().mean()",
        told="the gradient's norm differs",
    ),
    Fault(
        lab="17_torch",
        old="    norm = nn.utils.clip_grad_norm_(block.parameters(), max_norm=1.0)\n",
        new="    gradients = [p.grad for p in block.parameters()]\n"
        "    norm = nn.utils.get_total_norm(gradients)\n"
        "    own = nn.utils.get_total_norm([getattr(g, '_local_tensor', g) for g in gradients]).item()\n"
        "    nn.utils.clip_grads_with_norm_(block.parameters(), 1.0, torch.tensor(own))\n",
        told="norm1.weight differs",
    ),
    Fault(
        lab="17_faults",
        old='("inside", plans.loss_parallel())',
        new='("inside", nullcontext())',
        told="inside loss right, gradient right' is not what",
    ),
    Fault(
        lab="17_faults",
        old='    del plan["norm"]\n',
        new="",
        told="'no difference' is not what",
    ),
    # The one layer that is misnamed is all that the plan had cut of the MLP.
    Fault(
        lab="17_faults",
        old="model, _ = with_a_typo(here, [layer])",
        new='model, _ = with_a_typo(here, ["up", "down"])',
        told="the first forward pass raises: never' is not what",
    ),
    Fault(
        lab="17_faults",
        old='    before = "one parameter"',
        new='    model.head.weight = model.tokens.weight\n    before = "one parameter"',
        told="a tied weight: 'one parameter, 0 warnings; after a step they are equal' is not what",
    ),
    Fault(
        lab="17_faults",
        old="enter=lambda x, _: x",
        new="enter=tp.CopyToRanks.apply",
        told="'parity: equal' is not what",
    ),
]
