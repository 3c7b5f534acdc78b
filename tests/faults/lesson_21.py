"""Planted faults of lesson 21; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "21_moe",
        "        return exchange(gradient, ctx.receive, ctx.send, ctx.group), None, None, None\n",
        "        return torch.zeros(sum(ctx.send), gradient.shape[1]).to(gradient), None, None, None\n",
        "gradient of the tokens differs",
    ),
    Fault("21_moe", "        return arrived[plan.by_expert]\n", "        return arrived\n", "output differs"),
    Fault("21_moe", "returned[plan.slots.argsort()]", "returned", "output differs"),
    Fault(
        "21_moe",
        "    dist.all_reduce(layer.router.weight.grad)",
        "    layer.router.weight.grad",
        "gradient of the router differs",
    ),
    Fault(
        "21_moe",
        "    dist.all_reduce(layer.router.weight.grad)",
        "    dist.all_reduce(layer.experts.up.grad)\n    dist.all_reduce(layer.router.weight.grad)",
        "gradient of up differs",
    ),
    Fault(
        "21_moe",
        "        rows = tokens[plan.slots // self.router.k]\n",
        "        rows = tokens[plan.slots // self.router.k].detach()\n",
        "a layer calls",
        run="21_gpt",
    ),
    Fault(
        "21_gpt",
        "    dist.all_reduce(of_experts, group=expert_group)\n",
        "",
        "experts over 2 ranks, step 0: gradient of",
    ),
    Fault(
        "21_gpt",
        "    if replicas is not None and dist.get_world_size(replicas) > 1:\n",
        "    if False:\n",
        "experts over 2 ranks, step 0: gradient of",
        ranks=4,
    ),
    Fault(
        "21_gpt",
        "    for gradient in (*dense, *experts):\n",
        "    for gradient in dense:\n",
        "mean of own tokens: blocks.0.mlp.experts.up: differs",
    ),
    Fault(
        "21_gpt",
        "    return functional.all_to_all_single_autograd(rows, receive, send, group)\n",
        "    return functional.all_to_all_single(rows.detach(), receive, send, group)\n",
        "exchange by functional",
    ),
    Fault(
        "21_gpt",
        "        return F.grouped_mm(hidden, self.down, offs=ends)\n",
        "        return F.grouped_mm(hidden, self.down.flip(0), offs=ends)\n",
        "grouped_mm: output",
    ),
    Fault(
        "21_gpt", "    largest_norm: float = 0.2 ", "    largest_norm: float = 200.0 ", "nothing was clipped"
    ),
    Fault("21_balance", "        dist.all_reduce(load)\n", "", "balance loss: differs by"),
    Fault(
        "21_balance",
        "            balance.move_bias(load, cfg.speed * ",
        "            balance.move_bias(balance.load(), cfg.speed * ",
        "bias bias: ranks [1] differ from rank 0",
    ),
    Fault(
        "21_balance",
        "sign()\n",
        "sign().neg()\n",
        "the load was to become more even by both ways",
    ),
    Fault(
        "21_capacity",
        "    place = so_far.gather(1, queue.unsqueeze(1)).squeeze(1) - 1\n",
        "    place = so_far.gather(1, queue.unsqueeze(1)).squeeze(1)\n",
        "rows dropped, expected",
    ),
    Fault(
        "21_capacity",
        "        rows = boxes.view(by_rank).transpose(0, 1).reshape(here, -1, width)\n",
        "        rows = boxes.view(here, -1, width)\n",
        "room for all: differs",
    ),
    Fault("21_faults", "if x.numel() else x", "if True else x", "is not what this lab shows"),
    Fault(
        "21_faults",
        "        for p in model.parameters():\n            dist.all_reduce(p.grad)\n",
        "        ep.reduce_gradients(model, dist.group.WORLD)\n",
        "'parity: equal' is not what this lab shows",
    ),
]
