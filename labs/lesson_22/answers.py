"""Answers to exercise 22."""

from tests.planted import Right, Wrong, solved

ALONE = """
loss = total / count
(loss * dist.get_world_size(group)).backward()  # FSDP takes the mean over these ranks
"""
OWN_PART = solved("22_mesh", "own_part")
SHARD = solved("22_mesh", "shard")

ANSWERS = [
    Wrong(
        what="Divides by the labels of all, and so does FSDP by the ranks.",
        old="(loss * dist.get_world_size(group)).backward()",
        new="loss.backward()",
        told="is 0.25 times that of one process: FSDP divides by the ranks of its mesh, too",
    ),
    Wrong(
        what="Takes the mean of its own labels, and the mean of these means.",
        old=("dist.all_reduce(count, group=group)", ALONE, "dist.all_reduce(loss, group=group)"),
        new=(
            "",
            "loss = total / count\nloss.backward()\n",
            "dist.all_reduce(loss, dist.ReduceOp.AVG, group=group)",
        ),
        told="the loss is the mean of the ranks' means",
    ),
    Wrong(
        what="Counts the labels of copies as well, multiplies by the ranks with tokens of their own.",
        old=("dist.all_reduce(count, group=group)", "dist.all_reduce(loss, group=group)"),
        new=("dist.all_reduce(count)", "dist.all_reduce(loss)"),
        told="is 0.25 times that of one process: ranks along tp have the same tokens, which count once",
    ),
    Wrong(
        what="Multiplies by all ranks of the world.",
        old="dist.get_world_size(group)",
        new="dist.get_world_size()",
        told="is 4 times that of one process: FSDP divides by the ranks of its own mesh",
    ),
    Wrong(
        what="Counts the labels that are ignored, too.",
        old="(labels != IGNORED).sum()",
        new="torch.tensor(labels.numel())",
        told="that of one process is",
    ),
    Wrong(
        what="Reads rows by the rank of the world, as a sampler does by default.",
        old=OWN_PART,
        new="return batch.chunk(dist.get_world_size())[dist.get_rank()]",
        told="own_part returns (3, 12), expected are (12, 3)",
    ),
    Wrong(
        what="Takes its rank in the world for its place in each dimension: right along one of them.",
        old="mesh.get_local_rank(name)",
        new="dist.get_rank() % mesh[name].size()",
        told="mesh {'dp': 2, 'cp': 2, 'tp': 1}: own_part returns other rows or positions",
    ),
    Wrong(
        what="Takes every N-th row.",
        old=OWN_PART,
        new="""
        batch = batch[mesh.get_local_rank("dp") :: mesh["dp"].size()]
        return batch.chunk(mesh["cp"].size(), 1)[mesh.get_local_rank("cp")]
        """,
        told="other rows or positions than those of this rank's place",
    ),
    Wrong(
        what="Shards over dp alone, as without CP.",
        old='joined = mesh["dp", "cp"]._flatten("dp_cp")\n',
        new='joined = mesh["dp"]\n',
        told="shard over dp and cp together",
    ),
    Wrong(
        what="Shards over all ranks, those along tp too.",
        old='joined = mesh["dp", "cp"]._flatten("dp_cp")\n',
        new='joined = mesh._flatten("all")\n',
        told="all ranks together hold 1 times tokens.weight, expected 4: ranks along tp keep the same",
    ),
    Wrong(
        what="Makes the root the only unit.",
        old="fully_shard(block, mesh=joined)",
        new="pass",
        told="block 0 is no unit, so it is gathered with everything else",
    ),
    Wrong(
        what="Shards nothing.",
        old=SHARD,
        new="return None",
        told="is not sharded",
    ),
    Wrong(
        what="Returns a loss that still has its graph.",
        old="loss = loss.detach().clone()",
        new="loss = loss * 1",
        told="expected a 0-dim tensor without a graph",
    ),
    Wrong(
        what="Gathers the whole batch, and computes all of it on each rank.",
        below="""
        def backward(model, tokens, labels, mesh):
            group = mesh["dp", "cp"]._flatten("dp_cp").get_group()
            whole = []
            for part in (tokens, labels):
                parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
                dist.all_gather(parts, part.contiguous(), group=group)
                whole.append(torch.cat(parts))
            logits = model(whole[0]).flatten(0, 1)
            loss = F.cross_entropy(logits, whole[1].flatten(), ignore_index=IGNORED)
            loss.backward()
            return loss.detach()
        """,
        told="tokens on this rank, and its part has",
    ),
    Wrong(
        what="Sends all of its labels to count them.",
        old="dist.all_reduce(count, group=group)",
        new="""
        everyone = [torch.empty_like(labels) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyone, labels.contiguous(), group=group)
        count = sum((part != IGNORED).sum() for part in everyone)
        """,
        told="all_gather calls, FSDP needs 5",
    ),
    Right(
        what="Sums over all ranks, copies in both the labels and the losses.",
        old=(
            "dist.all_reduce(count, group=group)",
            "dist.get_world_size(group)",
            "dist.all_reduce(loss, group=group)",
        ),
        new=("dist.all_reduce(count)", "mesh.size()", "dist.all_reduce(loss)"),
    ),
]
