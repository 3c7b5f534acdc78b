"""Answers to exercise 10."""

from tests.planted import Right, Wrong

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
    Right(
        what="Divides in float32.",
        old="""
        recognised, seen = counts.tolist()
        return recognised / seen
        """,
        new="return (counts[0].float() / counts[1]).item()",
    ),
    Right(
        what="Returns a float of NumPy, which has 32 bits.",
        old="return recognised / seen",
        new="return np.float32(recognised / seen)",
        below="import numpy as np",
    ),
    Wrong(
        what="Returns a tensor.",
        old="return recognised / seen",
        new="return counts[0] / counts[1]",
        told="which is no float",
    ),
    Wrong(
        what="A mean of the ranks' accuracies, whose shares differ in size.",
        old=SHARE,
        new="""
        share = counts[0].double() / counts[1]
        dist.all_reduce(share)
        return share.item() / size
        """,
        told="[rank 0] Exercise 10 mend: wrong: fit returns 0.",
    ),
    Wrong(
        what="Rank 0 waits in all_reduce for ranks that never come.",
        old="""
        accuracy = evaluate(model, test_set, device)
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), path)
        """,
        new="""
        accuracy = 0.0
        if dist.get_rank() == 0:
            accuracy = evaluate(model, test_set, device)
            torch.save(model.state_dict(), path)
        """,
        told="fit has returned here, but another rank waits in it",
    ),
    Wrong(
        what="All ranks write one file at the same time.",
        old=SAVE,
        new="torch.save(model.state_dict(), path)",
        told="ranks [1, 2] save, too",
    ),
    Wrong(
        what="Every epoch has the order of the first.",
        old="batches.epoch = epoch",
        new="",
        told="epoch 2 takes the images in the order of epoch 1",
    ),
    Wrong(
        what="The mean of the ranks' means; their shares have 9, 8 and 8 images.",
        old=LOSS,
        new="F.cross_entropy(scores, labels.to(device)).backward()",
        told="the order is right, but the model is not that of one process:",
    ),
    Wrong(
        what="Each rank has an order of its own: some images are taken twice, others never.",
        old="SEED + epoch",
        new="SEED + epoch + dist.get_rank()",
        told="epoch 1: the ranks together do not take each image of its batches once",
    ),
    Wrong(
        what="DistributedSampler pads, so that some images count twice.",
        old="DataLoader(Subset(test_set, range(rank, len(test_set), size)), batch_size=16)",
        new="DataLoader(test_set, batch_size=16, sampler=DistributedSampler(test_set, shuffle=False))",
        told="of 59 images are recognised",
        below="from torch.utils.data import DistributedSampler",
    ),
    Wrong(
        what="A copy of the model from before training is saved.",
        old=("train(ddp, train_set, epochs, device)", "torch.save(model.state_dict(), path)"),
        new=(
            """
            before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            train(ddp, train_set, epochs, device)
            """,
            "torch.save(before, path)",
        ),
        told="what rank 0 has saved is not the model that it trained",
    ),
    Wrong(
        what="The file lies where rank 1 is, which may be another machine.",
        old=SAVE,
        new="""
        if dist.get_rank() == 1:
            torch.save(model.state_dict(), path)
        """,
        told="rank 0 has saved nothing",
    ),
    Wrong(
        what="Each name begins with module.",
        old="model.state_dict",
        new="ddp.state_dict",
        told="the file does not fit the model without DDP: it holds ['module.0.weight'",
    ),
    Wrong(
        what="Counts the ranks of a run with two.",
        old="(dist.get_world_size() / BATCH)",
        new="(2 / BATCH)",
        told="one process: parameter 0.weight: differs by",
    ),
    Right(
        what="Saves ddp.module, and counts the test images by themselves.",
        old=("return recognised / seen", "model.state_dict"),
        new=("return recognised / len(test_set)", "ddp.module.state_dict"),
    ),
]
