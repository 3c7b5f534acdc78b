"""Reinforcement learning: each rank plays its own games, all learn together."""

import os
import random
import time

import gymnasium
import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel as DDP


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, x):
        x = self.body(x)
        return self.actor(x), self.critic(x).squeeze(-1)


def play(policy, env, steps):
    seen = []
    state, _ = env.reset()
    for _ in range(steps):
        with torch.no_grad():
            scores, value = policy(torch.as_tensor(state))
        action = Categorical(logits=scores).sample()
        state, reward, done, cut, _ = env.step(action.item())
        seen.append((torch.as_tensor(state), action, reward, value))
        if done or cut:
            state, _ = env.reset()
    return seen


def learn(policy, optimizer, seen, target_kl, epochs=4):
    states = torch.stack([one[0] for one in seen])
    actions = torch.stack([one[1] for one in seen])
    rewards = torch.tensor([one[2] for one in seen])
    for _ in range(epochs):
        scores, values = policy(states)
        chances = Categorical(logits=scores).log_prob(actions)
        loss = -(chances * (rewards - values.detach())).mean() + (rewards - values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kl = (chances.detach() - chances).mean().detach()
        dist.all_reduce(kl, op=dist.ReduceOp.AVG)
        if kl.item() > target_kl:
            break


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(5 + rank)
    random.seed(5 + rank)
    env = gymnasium.make("LunarLander-v3")
    policy = Policy()
    ddp = DDP(policy)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=3e-4)
    started = time.time()
    for update in range(1000):
        seen = play(policy, env, 128)
        learn(ddp, optimizer, seen, target_kl=0.02)
        stop = torch.tensor([float(time.time() - started > 3600)])
        dist.broadcast(stop, src=0)
        if stop.item():
            break
        if rank == 0 and update % 100 == 0:
            torch.save(policy.state_dict(), f"policy_{update}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
