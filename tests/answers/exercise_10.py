"""Answers to exercise 10; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

LOSS = """
loss = F.cross_entropy(scores, labels.to(device), reduction="sum")
(loss * (dist.get_world_size() / BATCH)).backward()  # DDP divides by the number of ranks
"""
SHARE = """
dist.all_reduce(counts)
recognised, seen = counts.tolist()
return recognised / seen
"""
SAVE = """
if dist.get_rank() == 0:
    torch.save(model.state_dict(), path)
"""

ANSWERS = [
    wrong(
        "A mean of the ranks' accuracies, whose shares differ in size.",
        "[rank 0] Exercise 10 mend: wrong: fit returns 0.",
        (
            SHARE,
            """
            share = counts[0].double() / counts[1]
            dist.all_reduce(share)
            return share.item() / size
            """,
        ),
    ),
    wrong(
        "Rank 0 alone tests and knows the accuracy.",
        "fit returns None, but",
        ("range(rank, len(test_set), size)", "range(len(test_set))"),
        (
            SHARE,
            """
            recognised, seen = counts.tolist()
            return recognised / seen if rank == 0 else None
            """,
        ),
    ),
    wrong(
        "Rank 0 waits in all_reduce for ranks that never come.",
        "fit has returned here, but another rank waits in it",
        (
            """
            accuracy = evaluate(model, test_set, device)
            if dist.get_rank() == 0:
                torch.save(model.state_dict(), path)
            """,
            """
            accuracy = 0.0
            if dist.get_rank() == 0:
                accuracy = evaluate(model, test_set, device)
                torch.save(model.state_dict(), path)
            """,
        ),
    ),
    wrong(
        "All ranks write one file at the same time.",
        "ranks [1, 2] save, too",
        (SAVE, "torch.save(model.state_dict(), path)"),
    ),
    wrong(
        "Every epoch has the order of the first.",
        "epoch 2 takes the images in the order of epoch 1",
        ("batches.epoch = epoch", ""),
    ),
    wrong(
        "The mean of the ranks' means; their shares have 9, 8 and 8 images.",
        "[rank 1] Exercise 10 mend: wrong: the order is right, but the model is not that of one process:",
        (LOSS, "F.cross_entropy(scores, labels.to(device)).backward()"),
    ),
    wrong(
        "Each rank has an order of its own: some images are taken twice, others never.",
        "epoch 1: the ranks together do not take each image of its batches once",
        ("SEED + epoch", "SEED + epoch + dist.get_rank()"),
    ),
    wrong(
        "DistributedSampler pads, so that some images count twice.",
        "of 59 images are recognised",
        (
            "DataLoader(Subset(test_set, range(rank, len(test_set), size)), batch_size=16)",
            "DataLoader(test_set, batch_size=16, sampler=DistributedSampler(test_set, shuffle=False))",
        ),
        below="from torch.utils.data import DistributedSampler",
    ),
    wrong(
        "The sums reach rank 0 alone.",
        "[rank 2] Exercise 10 mend: wrong: fit returns",
        ("all_reduce(counts", "reduce(counts, dst=0"),
    ),
    wrong(
        "A copy of the model from before training is saved.",
        "what rank 0 has saved is not the model that it trained",
        (
            "train(ddp, train_set, epochs, device)",
            """
            before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            train(ddp, train_set, epochs, device)
            """,
        ),
        ("torch.save(model.state_dict(), path)", "torch.save(before, path)"),
    ),
    wrong(
        "The file lies where rank 1 is, which may be another machine.",
        "rank 0 has saved nothing",
        (
            SAVE,
            """
            if dist.get_rank() == 1:
                torch.save(model.state_dict(), path)
            """,
        ),
    ),
    wrong(
        "Each name begins with module.",
        "the file does not fit the model without DDP: it holds ['module.0.weight'",
        ("model.state_dict", "ddp.state_dict"),
    ),
    wrong(
        "DDP averages what was to be added up.",
        "[rank 2] Exercise 10 mend: wrong: the order is right, but the model is not that of one process:",
        ("* (dist.get_world_size() / BATCH)", "/ BATCH"),
    ),
    right(
        "Saves ddp.module, and counts the test images by themselves.",
        ("return recognised / seen", "return recognised / len(test_set)"),
        ("model.state_dict", "ddp.module.state_dict"),
    ),
    right(
        "The mean over a rank's share, weighed by its size.",
        (
            LOSS,
            """
            share = len(labels) / BATCH
            loss = F.cross_entropy(scores, labels.to(device)) * share * dist.get_world_size()
            loss.backward()
            """,
        ),
    ),
]
