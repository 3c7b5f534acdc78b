"""Answers to exercise 26; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

PASS_ON = """
calls = [
    dist.P2POp(dist.isend, x, (rank + 1) % ranks),
    dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
]
for work in dist.batch_isend_irecv(calls):
    work.wait()
"""

ANSWERS = [
    wrong(
        "Each rank skips its own bad batches.",
        "train hangs:",
        ("dist.all_reduce(finite, op=dist.ReduceOp.MIN)", ""),
    ),
    wrong(
        "The model stays in evaluation mode.",
        "accuracy leaves the model in evaluation mode",
        ("ddp.train()", ""),
    ),
    wrong(
        "The order is mended, the weights are not.",
        "mean_metrics returns the mean of the ranks' means",
        mean_metrics="""
        means = {}
        for name in sorted(sums):
            mean = torch.tensor(sums[name] / samples, dtype=torch.float64)
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            means[name] = mean.item()
        return means
        """,
    ),
    wrong(
        "One all-reduce, in the order of each rank's dict.",
        "mean_metrics: loss is",
        ("sorted(sums)", "list(sums)"),
    ),
    wrong(
        "All ranks send first.",
        "pass_on hangs: this rank waits for another one",
        (
            PASS_ON,
            """
            dist.send(x, (rank + 1) % ranks)
            dist.recv(received, (rank - 1) % ranks)
            """,
        ),
    ),
    wrong(
        "No hang any more, but the share is that of rank 0's samples.",
        "accuracy returns",
        accuracy="""
        share = 0.0
        if dist.get_rank() == 0:
            share = (ddp.module(x).argmax(1) == y).float().mean().item()
        """,
    ),
    wrong(
        "A bad loss is used.",
        "train: the parameters are no numbers",
        ("if finite:", "if True:"),
    ),
    right(
        "The ranks agree on the number of batches before the loop.",
        train="""
        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
        for x, y in batches[: int(count)]:
            loss = F.mse_loss(ddp(x), y)
            bad = torch.tensor(0 if loss.isfinite() else 1)
            dist.all_reduce(bad)
            if bad:
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        return steps
        """,
    ),
    right(
        "Even ranks send first, odd ranks receive first; metrics travel as objects.",
        (
            PASS_ON,
            """
            if rank % 2 == 0:
                dist.send(x, (rank + 1) % ranks)
            dist.recv(received, (rank - 1) % ranks)
            if rank % 2 == 1:
                dist.send(x, (rank + 1) % ranks)
            """,
        ),
        mean_metrics="""
        everything: list = [None] * dist.get_world_size()
        dist.all_gather_object(everything, (sums, samples))
        seen = sum(count for _, count in everything)
        return {name: sum(one[name] for one, _ in everything) / seen for name in sums}
        """,
    ),
]
