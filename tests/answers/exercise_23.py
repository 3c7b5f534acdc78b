"""Answers to exercise 23; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "Takes a step for each gradient.",
        "after 1 round(s) of 12 gradients the server has taken 12 steps",
        (
            "answer = self.answer",
            """
            answer = self.answer
            self.weight = self.weight - self.learning_rate * gradient / self.trainers
            self.steps += 1
            """,
        ),
        (
            """
            mean = torch.stack(self.gradients).mean(0)
            self.weight = self.weight - self.learning_rate * mean
            self.steps += 1
            """,
            "",
        ),
    ),
    wrong(
        "Has no lock.",
        "under one lock",
        ("with self.lock:", "if True:"),
    ),
    wrong(
        "Keeps the gradients of the round before.",
        "round 2: 4 of 4 calls were not answered within 5 s",
        ("self.gradients = []", ""),
    ),
    wrong(
        "Keeps the Future of the round before.",
        "those are the weights of the round before",
        ("self.gradients = []\nself.answer = torch.futures.Future()", "self.gradients = []"),
    ),
    wrong(
        "Gives each call a Future of its own, and answers the last one only.",
        "calls were not answered within 5 s",
        ("answer = self.answer", "answer = torch.futures.Future()"),
    ),
    wrong(
        "Does not divide.",
        "that is a step by the sum of the gradients",
        ("gradients).mean", "gradients).sum"),
    ),
    wrong(
        "Adds the gradient.",
        "that is a step up the gradient, not down",
        (".weight - self", ".weight + self"),
    ),
    wrong(
        "Every call waits inside for the last one, and holds its thread.",
        "round 1: 4 of 4 calls were not answered within 5 s",
        below="""
        from threading import Condition


        class BatchingServer:
            def __init__(self, weight: torch.Tensor, trainers: int, learning_rate: float) -> None:
                self.weight = weight
                self.trainers = trainers
                self.learning_rate = learning_rate
                self.steps = 0
                self.gradients: list[torch.Tensor] = []
                self.complete = Condition()

            def update(self, gradient: torch.Tensor) -> torch.Tensor:
                with self.complete:
                    steps = self.steps
                    self.gradients.append(gradient)
                    if len(self.gradients) == self.trainers:
                        self.weight = self.weight - self.learning_rate * torch.stack(self.gradients).mean(0)
                        self.steps += 1
                        self.gradients = []
                        self.complete.notify_all()
                    self.complete.wait_for(lambda: self.steps > steps)
                    return self.weight
        """,
    ),
    right(
        "Each trainer of a round has a Future of its own.",
        update="""
        mine = torch.futures.Future()
        with self.lock:
            self.gradients.append((gradient, mine))
            if len(self.gradients) < self.trainers:
                return mine
            complete = self.gradients
            self.gradients = []
            total = sum(one for one, _ in complete)
            self.weight = self.weight - self.learning_rate * total / self.trainers
            self.steps += 1
            weight = self.weight
        for _, answer in complete:
            answer.set_result(weight)
        return mine
        """,
    ),
    right(
        "The lock is taken and released by hand, the mean is taken one gradient at a time.",
        update="""
        self.lock.acquire()
        try:
            round_of_mine = self.answer
            self.gradients += [gradient]
            full = len(self.gradients) == self.trainers
            if full:
                gradients = self.gradients
                self.gradients = []
                self.answer = torch.futures.Future()
                self.steps += 1
                for one in gradients:
                    self.weight = self.weight - one * (self.learning_rate / self.trainers)
                weight = self.weight
        finally:
            self.lock.release()
        if full:
            round_of_mine.set_result(weight)
        return round_of_mine
        """,
    ),
    right(
        "A running sum and a count instead of a list; answered while the lock is held.",
        update="""
        with self.lock:
            if not hasattr(self, "count"):
                self.count = 0
                self.total = torch.zeros_like(self.weight)
            self.count += 1
            self.total += gradient
            answer = self.answer
            if self.count == self.trainers:
                self.weight -= self.learning_rate * self.total / self.trainers
                self.steps += 1
                self.count = 0
                self.total = torch.zeros_like(self.weight)
                self.answer = torch.futures.Future()
                answer.set_result(self.weight.clone())
        return answer
        """,
    ),
]
