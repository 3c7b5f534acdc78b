# rejected: under one lock
"""Exercise 23: a parameter server that batches updates."""

from threading import Lock

import torch
from torch.distributed import rpc


class BatchingServer:
    """Collects one gradient from each trainer, then takes one step for all of them.

    Args:
        weight: the weights to begin with; the server may change this tensor.
        trainers: how many gradients make a round.
        learning_rate: a step is ``weight -= learning_rate * mean of the round's gradients``.
    """

    def __init__(self, weight: torch.Tensor, trainers: int, learning_rate: float) -> None:
        self.weight = weight
        self.trainers = trainers
        self.learning_rate = learning_rate
        self.steps = 0  # how often ``weight`` was changed
        self.lock = Lock()
        self.gradients: list[torch.Tensor] = []  # of this round
        self.answer = torch.futures.Future()  # what this round's trainers wait for

    @rpc.functions.async_execution
    def update(self, gradient: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Take part in the round. All its trainers get the weights after the round's one step.

        Returns at once and holds no thread: there may be more trainers than threads. When the last
        gradient of a round is here, a new round begins. Calls may run at the same time.
        """
        with self.lock:
            self.gradients.append(gradient)
        answer = self.answer
        if len(self.gradients) == self.trainers:  # another call may find the same
            with self.lock:
                mean = torch.stack(self.gradients).mean(0)
                self.weight = self.weight - self.learning_rate * mean
                self.steps += 1
                self.gradients = []
                self.answer = torch.futures.Future()
            answer.set_result(self.weight)
        return answer
