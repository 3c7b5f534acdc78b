"""Answers to exercise 14; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "Divides before and after.",
        "the mean is divided by the number of ranks twice",
        ("[places]", "[places] / dist.get_world_size()"),
    ),
    wrong(
        "Sends always the same places.",
        "does each number get its turn?",
        ("corrected.abs().topk(self.k).indices", "torch.arange(self.k, device=gradient.device)"),
    ),
    wrong(
        "Keeps what is left of the last gradient only.",
        "the residual forgets what waited in it before this step",
        ("corrected.index_fill", "gradient.index_fill"),
    ),
    wrong(
        "Adds the residual to the gradient itself.",
        "average changes the gradient that it is given",
        ("gradient + self.residual", "gradient.add_(self.residual)"),
    ),
    wrong(
        "Keeps nothing.",
        "the residual stays as it was: what is not sent is lost",
        ("self.residual = corrected.index_fill(0, places, 0)", ""),
    ),
    wrong(
        "Changes the gradient's mean, but does not return it.",
        "the mean is NoneType, not a tensor",
        ("return total /", "total /="),
    ),
    wrong(
        "Rounds what it sends, and keeps no difference.",
        "do not add up to what was given: off by",
        ("like.itemsize", "2"),
        ("[places]", "[places].half()"),
    ),
    wrong(
        "Does not divide.",
        "average returns the sum over the ranks, not the mean",
        ("total / ranks", "total"),
    ),
    wrong(
        "All-reduces the values, as if all ranks had chosen the same places.",
        "ranks [1, 2] differ from rank 0",
        average="""
        corrected = gradient + self.residual
        places = corrected.abs().topk(self.k).indices
        values = corrected[places]
        self.residual = corrected.index_fill(0, places, 0)
        dist.all_reduce(values)
        return torch.zeros_like(gradient).index_copy(0, places, values / dist.get_world_size())
        """,
    ),
    wrong(
        "Sends places as int64.",
        "640 bytes in a step, the budget is 480",
        ("torch.int32", "torch.int64"),
        ("places.int()", "places"),
    ),
    right(
        "Values are rounded to fp16, and the residual keeps the difference.",
        ("like.itemsize", "2"),
        ("corrected[places]", "corrected[places].half()"),
        ("corrected.index_fill(0, places, 0)", "corrected.index_add(0, places, -values.double())"),
    ),
    right(
        "Another part of the gradient in each step, in turn; no places are sent.",
        __init__="""
        self.k = budget // like.itemsize
        self.start = 0
        """,
        average="""
        corrected = gradient + self.residual
        window = slice(self.start, self.start + self.k)
        values = corrected[window].clone()
        self.residual = corrected
        self.residual[window] = 0
        self.start = (self.start + self.k) % len(gradient)
        dist.all_reduce(values)
        mean = torch.zeros_like(gradient)
        mean[window] = values / dist.get_world_size()
        return mean
        """,
    ),
    right(
        "PowerSGD of rank 1: the vector as a matrix, sent as two thin ones.",
        __init__="""
        self.rows = 24
        self.q = torch.ones(len(like) // self.rows, 1, dtype=like.dtype, device=like.device)
        """,
        average="""
        corrected = gradient + self.residual
        matrix = corrected.view(self.rows, -1)
        p = matrix @ self.q
        dist.all_reduce(p)
        p /= p.norm()
        self.q = matrix.T @ p
        dist.all_reduce(self.q)
        self.q /= dist.get_world_size()
        mean = (p @ self.q.T).flatten()
        self.residual = corrected - mean
        return mean
        """,
    ),
    right(
        "All ranks send the places that rank 0 has chosen, by an all-reduce.",
        average="""
        corrected = gradient + self.residual
        chosen = corrected.abs().topk(self.k).indices.int()
        dist.broadcast(chosen, src=0)
        places = chosen.long()
        values = corrected[places]
        self.residual = corrected.index_fill(0, places, 0)
        dist.all_reduce(values)
        total = torch.zeros_like(gradient)
        total[places] = values
        return total / dist.get_world_size()
        """,
    ),
]
