"""Answers to exercise 26; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "Each rank skips its own bad batches.",
        "train hangs:",
        ("if on_all_ranks(bool(loss.isfinite()), device):", "if loss.isfinite():"),
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
        "The cache holds one loss only.",
        "mean_loss hangs:",
        mean_loss="""
        known = mean_loss.__dict__
        if known.get("loss") != loss:
            total = torch.tensor(loss, dtype=torch.float64)
            dist.all_reduce(total, op=dist.ReduceOp.AVG)
            known.update(loss=loss, mean=total.item())
        return known["mean"]
        """,
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
        ("if on_all_ranks(bool(loss.isfinite()), device):", "if True:"),
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
        "Metrics travel as objects.",
        mean_metrics="""
        everything: list = [None] * dist.get_world_size()
        dist.all_gather_object(everything, (sums, samples))
        seen = sum(count for _, count in everything)
        return {name: sum(one[name] for one, _ in everything) / seen for name in sums}
        """,
    ),
]
