"""Planted faults of lesson 21."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(lab="21_moe", old="returned[plan.slots.argsort()]", new="returned", told="output differs"),
    Fault(
        lab="21_moe",
        old="    dist.all_reduce(layer.router.weight.grad)",
        new="    layer.router.weight.grad",
        told="gradient of the router differs",
    ),
    Fault(
        lab="21_moe",
        old="        rows = tokens[plan.slots // self.router.k]\n",
        new="        rows = tokens[plan.slots // self.router.k].detach()\n",
        told="a layer calls",
        run="21_gpt",
    ),
    Fault(
        lab="21_moe",
        old="with torch.autocast(tokens.device.type, enabled=False):",
        new="if True:",
        told="router under autocast: differs by",
        run="21_gpt",
    ),
    Fault(
        lab="21_moe",
        old="        if self.k > 1:",
        new="        if self.k:",
        told="router with k = 1: no gradient reaches it",
        run="21_gpt",
    ),
    Fault(
        lab="21_gpt",
        old="    dist.all_reduce(of_experts, group=expert_group)\n",
        new="",
        told="experts over 2 ranks, step 0: gradient of",
    ),
    Fault(
        lab="21_gpt",
        old="    for gradient in (*dense, *experts):\n",
        new="    for gradient in dense:\n",
        told="mean of own tokens: blocks.0.mlp.experts.up: differs",
    ),
    Fault(
        lab="21_gpt",
        old="    return functional.all_to_all_single_autograd(rows, receive, send, group)\n",
        new="    return functional.all_to_all_single(rows.detach(), receive, send, group)\n",
        told="exchange by functional",
    ),
    Fault(
        lab="21_gpt",
        old="        return F.grouped_mm(hidden, self.down, offs=ends)\n",
        new="        return F.grouped_mm(hidden, self.down.flip(0), offs=ends)\n",
        told="grouped_mm: output",
    ),
    Fault(
        lab="21_gpt",
        old="    largest_norm: float = 0.2 ",
        new="    largest_norm: float = 200.0 ",
        told="nothing was clipped",
    ),
    Fault(lab="21_balance", old="    dist.all_reduce(load)\n", new="", told="balance loss: differs by"),
    Fault(
        lab="21_balance",
        old="sign()\n",
        new="sign().neg()\n",
        told="the load should become more even by both ways",
    ),
    Fault(
        lab="21_balance",
        old="torch.optim.Adam(layer.parameters(), lr=cfg.lr)",
        new="torch.optim.SGD(layer.parameters(), lr=0.3)",
        told="balance should not cost the task so much",
    ),
    Fault(
        lab="21_fsdp",
        old="    for module in blocks.modules():\n",
        new="    for module in [blocks, *blocks]:\n",
        told="0.attention.weight differs",
        ranks=4,
    ),
    Fault(
        lab="21_fsdp",
        old='few = sparse["efsdp"].size() * ep > block.mlp.expert_count',
        new="few = False",
        told="holds nothing of its experts",
        ranks=4,
    ),
    Fault(
        lab="21_fsdp",
        old="    dist.all_reduce(squares)\n",
        new="",
        told="0.attention.weight differs",
    ),
    Fault(
        lab="21_fsdp",
        old="        module.set_modules_to_forward_prefetch([following, following.mlp.experts])\n",
        new="        module.set_modules_to_forward_prefetch([following])\n",
        told="with lists: 0' is not what this lab shows",
        run="21_faults",
    ),
    Fault(
        lab="21_capacity",
        old="    place = so_far.gather(1, queue.unsqueeze(1)).squeeze(1) - 1\n",
        new="    place = so_far.gather(1, queue.unsqueeze(1)).squeeze(1)\n",
        told="rows dropped, expected",
    ),
    Fault(
        lab="21_capacity",
        old="        rows = boxes.view(by_rank).transpose(0, 1).reshape(here, -1, width)\n",
        new="        rows = boxes.view(here, -1, width)\n",
        told="room for all: differs",
    ),
    Fault(
        lab="21_faults",
        old="            if not ep.is_expert(name):\n                p.grad.div_(ranks)\n",
        new="            p.grad.div_(ranks)\n",
        told="'parity: equal' is not what this lab shows",
    ),
    Fault(
        lab="21_faults",
        old="CheckpointPolicy.MUST_SAVE if operation in SAVED else",
        new="CheckpointPolicy.MUST_SAVE if False else",
        told="' is not what this lab shows",
    ),
]
