"""Planted faults of lesson 20; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("20_ring", "torch.logaddexp(lse, more_lse)", "torch.maximum(lse, more_lse)", "output differs"),
    Fault("20_ring", "columns, key == query))", "columns, False))", "output differs"),
    Fault(
        "20_ring",
        "(of_weights - (gradient * out).sum(-1, keepdim=True))",
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
        "            forward_blocks(q, kv, chunks[rank], chunks[source], out, lse)\n"
        "            if not last:\n"
        "                kv = shift.wait()\n",
        "                pass\n"
        "            source = (rank - step) % ranks  # whose keys and values we have now\n"
        "            forward_blocks(q, kv, chunks[rank], chunks[source], out, lse)\n"
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
        "list(range(2 * ranks * tiles))",
        "list(range(2 * tiles))",
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
        "    model.positions.register_forward_pre_hook(own_places)\n",
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
        "loss_sum(model(tokens), labels) / count",
        "loss_sum(model(tokens), labels) / labels.numel()",
        "step 0: loss: differs",
    ),
    Fault("20_memory", "    chunks = list(range(tiles))\n", "    chunks = [0]\n", "the memory for twice"),
    Fault("20_timeline", "[values[-1], *values[:-1]]", "values", "saw the keys of", ranks=0),
    Fault("20_timeline", "0.5 if diagonal else 1.0", "1.0", "takes 19.5 blocks, expected 18.5", ranks=0),
    Fault(
        "20_timeline",
        "devices.compute(key.device, READY, 0.0, after_step, key, one)",
        "key",
        "takes 14 blocks, expected 18.5",
        ranks=0,
    ),
    Fault(
        "20_torch", "part_of(torch.arange(length), 0)", "torch.arange(length).chunk(n)[0]", "does not cut as"
    ),
    Fault(
        "20_torch",
        '"math, causal": (SDPBackend.MATH, True',
        '"math, causal": (SDPBackend.MATH, False',
        "is not what this lab shows",
    ),
    Fault("20_faults", "model.positions._forward_pre_hooks.clear()", "pass", "'parity: equal' is not what"),
]

STILL_WITHOUT: list[str] = []
