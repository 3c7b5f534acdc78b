"""Answers to exercise 23."""

from tests.planted import Right, Wrong, solved

UPDATE = solved("23_batching_server", "update")

ANSWERS = [
    Wrong(
        what="Takes a step for each gradient.",
        old=(
            "answer = self.answer",
            """
            mean = torch.stack(self.gradients).mean(0)
            self.weight = self.weight - self.learning_rate * mean
            self.steps += 1
            """,
        ),
        new=(
            """
            answer = self.answer
            self.weight = self.weight - self.learning_rate * gradient / self.trainers
            self.steps += 1
            """,
            "",
        ),
        told="after 1 round(s) of 12 gradients the server has taken 12 steps",
    ),
    Wrong(
        what="Has no lock.",
        old="with self.lock:",
        new="if True:",
        told="under one lock",
    ),
    Wrong(
        what="Keeps the Future of the round before.",
        old="\nself.gradients = []\nself.answer = torch.futures.Future()",
        new="self.gradients = []",
        told="those are the weights of the round before",
    ),
    Wrong(
        what="Does not divide.",
        old="gradients).mean",
        new="gradients).sum",
        told="that is a step by the sum of the gradients",
    ),
    Wrong(
        what="Adds the gradient.",
        old=".weight - self",
        new=".weight + self",
        told="that is a step up the gradient, not down",
    ),
    Wrong(
        what="Every call waits inside for the last one, and holds its thread.",
        told="round 1: 4 of 4 calls were not answered within 5 s",
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
    Right(
        what="A running sum and a count instead of a list; answered while the lock is held.",
        old=UPDATE,
        new="""
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
