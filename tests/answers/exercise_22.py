"""Answers to exercise 22; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ALONE = """
loss = total / count
(loss * dist.get_world_size(group)).backward()  # FSDP takes the mean over these ranks
"""

ANSWERS = [
    wrong(
        "Divides by the labels of all, and so does FSDP by the ranks.",
        "is 0.333 times that of one process: FSDP divides by the ranks of its mesh, too",
        ("(loss * dist.get_world_size(group)).backward()", "loss.backward()"),
    ),
    wrong(
        "Takes the mean of its own labels, and the mean of these means.",
        "the loss is the mean of the ranks' means",
        ("dist.all_reduce(count, group=group)\n", ""),
        (ALONE, "loss = total / count\nloss.backward()\n"),
        ("dist.all_reduce(loss, group=group)", "dist.all_reduce(loss, dist.ReduceOp.AVG, group=group)"),
    ),
    wrong(
        "Counts the labels of copies as well, and multiplies by the ranks that have tokens of their own.",
        "is 0.333 times that of one process: ranks along tp have the same tokens, which count once",
        ("dist.all_reduce(count, group=group)", "dist.all_reduce(count)"),
        ("dist.all_reduce(loss, group=group)", "dist.all_reduce(loss)"),
    ),
    wrong(
        "Multiplies by all ranks of the world.",
        "is 3 times that of one process",
        ("dist.get_world_size(group)", "dist.get_world_size()"),
    ),
    wrong(
        "Counts the labels that are ignored, too.",
        "that of one process is",
        ("(labels != IGNORED).sum()", "torch.tensor(labels.numel())"),
    ),
    wrong(
        "Reads rows by the rank of the world, as a sampler does by default.",
        "own_part returns (4, 12), expected are (12, 4)",
        own_part="return batch.chunk(dist.get_world_size())[dist.get_rank()]",
    ),
    wrong(
        "Divides the sequence along dp and the rows along cp.",
        "own_part returns (12, 4), expected are (4, 12)",
        ('("dp", "cp")):', '("cp", "dp")):'),
    ),
    wrong(
        "Takes every third row.",
        "other rows or positions than those of this rank's place",
        own_part="""
        batch = batch[mesh.get_local_rank("dp") :: mesh["dp"].size()]
        return batch.chunk(mesh["cp"].size(), 1)[mesh.get_local_rank("cp")]
        """,
    ),
    wrong(
        "Shards over dp alone, as without CP.",
        "shards lie over dp and cp together",
        ('joined = mesh["dp", "cp"]._flatten("dp_cp")\n', 'joined = mesh["dp"]\n'),
    ),
    wrong("Shards nothing.", "is not sharded", shard="return None"),
    wrong(
        "Returns a loss that still has its graph.",
        "expected a 0-dim tensor without a graph",
        ("loss = loss.detach().clone()", "loss = loss * 1"),
    ),
    right(
        "FSDP adds up and divides by nothing, as torchtitan has it.",
        (
            "fully_shard(model, mesh=joined)\n",
            """
            fully_shard(model, mesh=joined)
            for module in (*model.blocks, model):
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0)
            """,
        ),
        ("(loss * dist.get_world_size(group)).backward()", "loss.backward()"),
    ),
    right(
        "Sums over all ranks, copies in both the labels and the losses.",
        ("dist.all_reduce(count, group=group)", "dist.all_reduce(count)"),
        ("dist.get_world_size(group)", "mesh.size()"),
        ("dist.all_reduce(loss, group=group)", "dist.all_reduce(loss)"),
    ),
    right(
        "Parts by numbers of rows and positions, from the coordinate.",
        own_part="""
        dp, cp, _ = mesh.get_coordinate()
        rows, length = len(batch) // mesh.size(0), batch.shape[1] // mesh.size(1)
        return batch[dp * rows : (dp + 1) * rows, cp * length : (cp + 1) * length]
        """,
    ),
]
