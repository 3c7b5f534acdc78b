"""Answers to exercise 29."""

from tests.planted import Right, Wrong

ROOT = "    fully_shard(model, mesh=mesh)  # embedding, norm and head, with the one weight that they share\n"
BLOCKS = """
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
"""

ANSWERS = [
    Wrong(
        what="Shards the blocks and forgets what is in none.",
        old=ROOT,
        new="",
        told="embed.weight is in no unit",
    ),
    Wrong(
        what="Makes one unit of all.",
        old=BLOCKS,
        new="",
        told="bytes of parameters are whole at once",
    ),
    Wrong(
        what="Makes a unit of each layer.",
        old="        fully_shard(block, mesh=mesh)\n",
        new="        fully_shard(block.up, mesh=mesh)\n"
        "        fully_shard(block.down, mesh=mesh)\n"
        "        fully_shard(block, mesh=mesh)\n",
        told="3 blocks and the rest are gathered",
    ),
    Wrong(
        what="Unties the weights, so that each can have a unit of its own.",
        old=ROOT,
        new="    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())\n"
        "    fully_shard(model.embed, mesh=mesh)\n"
        "    fully_shard(model.head, mesh=mesh)\n" + ROOT,
        told="head and embed no longer share one weight",
    ),
    Wrong(
        what="Reduces after each piece.",
        old="        model.set_requires_gradient_sync(number == len(pieces))\n",
        new="",
        told="a step has 12 reduce-scatters",
    ),
    Wrong(
        what="Divides by the labels of its own rank.",
        old="    dist.all_reduce(count)\n",
        new="",
        told="step 1: the gradient of embed.weight: differs by",
    ),
    Wrong(
        what="Never reduces.",
        old="number == len(pieces)",
        new="number > len(pieces)",
        told="has no gradient in shards when backward returns",
    ),
    Right(
        what="Groups embedding, norm and head in a unit, as torchtitan does; the root is empty then.",
        old=ROOT,
        new="    fully_shard([model.embed, model.norm, model.head], mesh=mesh, reshard_after_forward=False)\n"
        "    fully_shard(model, mesh=mesh)\n",
    ),
    Right(
        what="Lets FSDP sum in place of averaging.",
        old="(loss * dist.get_world_size() / count).backward()",
        new="(loss / count).backward()",
        below="""
        from torch.distributed.fsdp import FSDPModule

        sharded = shard


        def shard(model, mesh):
            sharded(model, mesh)
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.set_gradient_divide_factor(1.0)
        """,
    ),
]
