# rejected: round 1: 4 of 4 calls were not answered within 5 s
"""Exercise 23: every call waits inside for the last one, and holds its thread."""

from threading import Condition

import torch


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
