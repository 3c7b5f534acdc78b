"""Planted faults of lesson 20; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("20_ring", "torch.logaddexp(lse, more_lse)", "torch.maximum(lse, more_lse)", "output differs"),
    Fault("20_ring", "columns, key == query))", "columns, False))", "output differs"),
    Fault(
        "20_ring",
        "(of_weights - (gradient.to(weights.dtype) * out).sum(-1, keepdim=True))",
        "of_weights",
        "gradient of q differs",
    ),
    Fault(
        "20_ring",
        "            of_own_kv += homeward.wait()\n",
        "            homeward.wait()\n",
        "gradient of k differs",
    ),
    Fault(
        "20_ring",
        "                    of_kv += homeward.wait()\n",
        "                    homeward.wait()\n",
        "gradient of k differs",
        ranks=3,
    ),
    Fault(
        "20_ring",
        "        kv = torch.stack([k, v])\n        homeward",
        "        kv = torch.stack([k, v])\n        Shift(kv, group).wait()\n        homeward",
        "ring, in order, backward: ",
        run="20_ways",
    ),
    Fault(
        "20_ring",
        "                shift = Shift(kv, group)  # sent while we compute with it\n"
        "            source = (rank - step) % ranks  # whose keys and values we have now\n"
        "            forward_blocks(part, kv, chunks[source], out, lse)\n"
        "            if not last:\n"
        "                kv = shift.wait()\n",
        "                pass\n"
        "            source = (rank - step) % ranks  # whose keys and values we have now\n"
        "            forward_blocks(part, kv, chunks[source], out, lse)\n"
        "            if not last:\n"
        "                kv = Shift(kv, group).wait()\n",
        "ring, in order: does compute send recv wait",
        run="20_ways",
    ),
    Fault(
        "20_ring",
        "            if key <= query:\n",
        "            if key // 2 <= query // 2:\n",
        "output differs",
    ),
    Fault(
        "20_ways",
        "dist.reduce_scatter_tensor(own, torch.cat(parts), group=ctx.group)",
        "own.copy_(parts[dist.get_rank(ctx.group)])",
        "gather: gradient of k",
    ),
    Fault(
        "20_ways",
        "list(range(2 * ranks))",
        "list(range(2))",
        "Ulysses: 6 blocks, expected 5",
    ),
    Fault(
        "20_ways",
        "    kv = GatherSequence.apply(torch.stack([k, v]), group)\n",
        "    kv = torch.stack([GatherSequence.apply(k, group), GatherSequence.apply(v, group)])\n",
        "gather, forward: ",
    ),
    Fault(
        "20_gpt",
        "    model.positions.register_forward_pre_hook(own_positions)\n",
        "",
        "ring, in order, step 0: loss: differs",
    ),
    Fault(
        "20_gpt",
        "        sum_gradients(model, group)\n        optimizer",
        "        optimizer",
        "step 0: gradient of",
    ),
    Fault(
        "20_gpt",
        "labels, way, group)\n        return loss_sum(model(tokens), labels) / count",
        "labels, way, group)\n        return loss_sum(model(tokens), labels) / labels.numel()",
        "step 0: loss: differs",
    ),
    Fault(
        "20_ring",
        "        out = torch.zeros_like(q, dtype=accumulated(q))\n",
        "        out = torch.zeros_like(q)\n",
        "bfloat16: output of the ring is off by",
        run="20_ways",
        ranks=4,
    ),
    Fault(
        "20_ring",
        "    return gradient.unflatten(1, (keys.shape[1], -1)).sum(2)\n",
        "    return gradient[:, : keys.shape[1]]\n",
        "gradient of k differs",
    ),
    Fault(
        "20_ring",
        "                same = None if same.all() else same\n",
        "                same = None\n",
        "packed documents: output differs",
    ),
    Fault(
        "20_gpt",
        "            positions = positions - torch.searchsorted(documents, documents)",
        "            pass",
        "packed documents, step 0: loss: differs",
    ),
    Fault(
        "20_memory",
        "qkv = list(torch.randn(3, 1, 1, length, cfg.head_width, device=group.device))",
        "qkv = list(torch.randn(3, 1, 1, length, cfg.head_width, device=group.device).double())",
        "the memory for twice",
    ),
    Fault(
        "20_torch",
        "part_of(torch.arange(length), 0)",
        "part_of(torch.arange(length), 0, zigzag=False)",
        "is not our zigzag",
    ),
    Fault(
        "20_torch",
        " & (documents[own].unsqueeze(-1) == documents[order])",
        "",
        "head-tail, three documents: output",
    ),
    Fault(
        "20_faults",
        "        block.attention.attend = ring_attention\n",
        "        pass\n",
        "'parity: equal' is not what",
    ),
    Fault("20_faults", "model.positions._forward_pre_hooks.clear()", "pass", "'parity: equal' is not what"),
]
