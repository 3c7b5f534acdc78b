"""Planted faults of lesson 20."""

from tests.planted import Fault, group_of

FAULTS: list[Fault] = [
    Fault(lab="20_ring", old="columns, key == query))", new="columns, False))", told="output differs"),
    Fault(
        lab="20_ring",
        old="            grad_own_kv += homeward.wait()\n",
        new="            homeward.wait()\n",
        told="gradient of k differs",
    ),
    Fault(
        lab="20_ways",
        old="dist.reduce_scatter_tensor(own, torch.cat(parts), group=ctx.group)",
        new="own.copy_(parts[dist.get_rank(ctx.group)])",
        told="gather: gradient of k",
    ),
    Fault(
        lab="20_ways",
        old="list(range(2 * ranks))",
        new="list(range(2))",
        told="Ulysses: 6 blocks, expected 5",
    ),
    Fault(
        lab="20_gpt",
        old="    sum_over_ranks(gradients_of(model))\n    dist",
        new="    dist",
        told="step 0: gradient of",
    ),
    Fault(
        lab="20_ring",
        old="    return torch.promote_types(q.dtype, torch.float32)\n",
        new="    return q.dtype\n",
        told="bfloat16: output of the ring is off by",
        run="20_ways",
        ranks=4,
    ),
    Fault(
        lab="20_gpt",
        old=" & (documents[own].unsqueeze(-1) == documents[of_keys])",
        new="",
        told="packed documents, step 0: loss",
    ),
    Fault(
        lab="20_torch",
        old=" >= of_keys  #",
        new=" >= torch.arange(length, device=device)  #",
        told="output differs from our ring",
    ),
    Fault(
        lab="20_gpt",
        old="        own = part_of(everything, 0, zigzag=WAYS[way].zigzag)\n",
        new="        own = everything[: len(everything) // dist.get_world_size()]\n",
        told="ring, rotary positions, step 0: loss",
    ),
    Fault(
        lab="20_faults",
        old="        block.attention.attend = ring_attention\n",
        new="        pass\n",
        told="'parity: equal' is not what",
    ),
    *group_of(
        Fault(
            lab="20_ring",
            old="        homeward = None  #",
            new="        Shift(torch.stack([k, v]), ctx.group).wait()\n        homeward = None  #",
            told="ring, in order, backward: ",
        ),
        Fault(
            lab="20_ring",
            old="        shift = Shift(kv, group) if step < ranks - 1 else None\n"
            "        yield (rank - step) % ranks, kv\n",
            new="        yield (rank - step) % ranks, kv\n"
            "        shift = Shift(kv, group) if step < ranks - 1 else None\n",
            told="ring, in order: does compute send recv wait",
        ),
        run="20_ways",
    ),
    *group_of(
        Fault(
            lab="20_ways",
            old="        return of_server.chunk(inner_size, -2)[dist.get_rank(inner)].clone()\n",
            new="        return of_server.chunk(inner_size, -2)[-1 - dist.get_rank(inner)].clone()\n",
            told="Ulysses x ring: output",
        ),
        Fault(
            lab="20_ways",
            old="    out = ring_attention(q, k, v, outer)\n",
            new="    exchange(v, cut=-3, join=-2, group=inner)\n    out = ring_attention(q, k, v, outer)\n",
            told="Ulysses x ring: a rank sends (",
        ),
        Fault(
            lab="20_ways",
            old="checkpoint(block, q.requires_grad_(), use_reentrant=False)",
            new="block(q.requires_grad_())",
            told="bytes, expected 196,608",
        ),
        ranks=4,
    ),
]
