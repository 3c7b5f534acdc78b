"""Answers to exercise 26."""

from tests.planted import Right, Wrong, solved

MEAN_METRICS = solved("26_mend_four", "mean_metrics")
MEAN_LOSS = solved("26_mend_four", "mean_loss")
ACCURACY = solved("26_mend_four", "accuracy")
TRAIN = solved("26_mend_four", "train")

ANSWERS = [
    Wrong(
        what="The model stays in evaluation mode.",
        old="ddp.train()",
        new="",
        told="accuracy leaves the model in evaluation mode",
    ),
    Wrong(
        what="The order is mended, the weights are not.",
        old=MEAN_METRICS,
        new="""
        means = {}
        for name in sorted(sums):
            mean = torch.tensor(sums[name] / samples, dtype=torch.float64)
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            means[name] = mean.item()
        return means
        """,
        told="mean_metrics returns the mean of the ranks' means",
    ),
    Wrong(
        what="The number of samples is added to the caller's dictionary.",
        old=MEAN_METRICS,
        new="""
        sums["samples"] = samples
        names = sorted(sums)
        total = torch.tensor([sums[name] for name in names], dtype=torch.float64)
        dist.all_reduce(total)
        everyone = total[names.index("samples")]
        return dict(zip(names, (total / everyone).tolist(), strict=True))
        """,
        told="mean_metrics changes the dictionary that it was given",
    ),
    Wrong(
        what="One all-reduce, in the order of each rank's dict.",
        old="sorted(sums)",
        new="list(sums)",
        told="mean_metrics: loss is",
    ),
    Wrong(
        what="The cache holds one loss only.",
        old=MEAN_LOSS,
        new="""
        known = mean_loss.__dict__
        if known.get("loss") != loss:
            total = torch.tensor(loss, dtype=torch.float64)
            dist.all_reduce(total, op=dist.ReduceOp.AVG)
            known.update(loss=loss, mean=total.item())
        return known["mean"]
        """,
        told="mean_loss hangs:",
    ),
    Wrong(
        what="No hang any more, but the share is that of rank 0's samples.",
        old=ACCURACY,
        new="""
        share = 0.0
        if dist.get_rank() == 0:
            share = (ddp.module(x).argmax(1) == y).float().mean().item()
        """,
        told="accuracy returns",
    ),
    Wrong(
        what="All ranks call the wrapper, which gives them the buffers of rank 0.",
        old="ddp.module(x)",
        new="ddp(x)",
        told="accuracy changes the buffers of a rank",
    ),
    Wrong(
        what="A bad batch skips the question whether all ranks have another one.",
        old=TRAIN,
        new="""
        for number, (x, y) in enumerate(batches, start=1):
            loss = F.mse_loss(ddp(x), y)
            if not on_all_ranks(bool(loss.isfinite()), device):
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if not on_all_ranks(number < len(batches), device):
                break
        return steps
        """,
        told="train hangs:",
    ),
    Wrong(
        what="Gradients of all steps add up.",
        old="            optimizer.zero_grad()\n",
        new="",
        told="train: the parameters are not those of three steps",
    ),
    Wrong(
        what="A bad loss is used.",
        old="if on_all_ranks(bool(loss.isfinite()), device):",
        new="if True:",
        told="train: the parameters are no numbers",
    ),
    Right(
        what="The ranks agree on the number of batches before the loop.",
        old=TRAIN,
        new="""
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
]
