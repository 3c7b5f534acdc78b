"""Two networks against each other, each in its own DDP."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torch.utils.tensorboard import SummaryWriter
from torchvision.datasets import ImageFolder
from torchvision.utils import save_image


class Generator(nn.Module):
    def __init__(self, noise=100, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(noise, width * 4, 4), nn.BatchNorm2d(width * 4), nn.ReLU(),
            nn.ConvTranspose2d(width * 4, 3, 4, 4), nn.Tanh(),
        )  # fmt: skip

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.LazyLinear(1))

    def forward(self, x):
        return self.net(x)


class Trainer:
    def __init__(self, rank, device):
        self.rank, self.device = rank, device
        generator, discriminator = Generator().to(device), Discriminator().to(device)
        self.generator = DDP(generator, device_ids=[device.index])
        self.discriminator = DDP(discriminator, device_ids=[device.index])
        self.g_optimizer = torch.optim.Adam(self.generator.parameters(), 2e-4, betas=(0.5, 0.999))
        self.d_optimizer = torch.optim.Adam(self.discriminator.parameters(), 2e-4, betas=(0.5, 0.999))
        self.loss = nn.BCEWithLogitsLoss()
        self.writer = SummaryWriter("runs") if rank == 0 else None
        self.steps = 0

    def step(self, real):
        noise = torch.randn(len(real), 100, 1, 1, device=self.device)
        fake = self.generator(noise)
        self.d_optimizer.zero_grad()
        right, wrong = self.discriminator(real), self.discriminator(fake.detach())
        d_loss = self.loss(right, torch.ones_like(right)) + self.loss(wrong, torch.zeros_like(wrong))
        d_loss.backward()
        self.d_optimizer.step()
        self.g_optimizer.zero_grad()
        judged = self.discriminator(fake)
        g_loss = self.loss(judged, torch.ones_like(judged))
        g_loss.backward()
        self.g_optimizer.step()
        self.steps += 1
        if self.writer is not None:
            self.writer.add_scalar("loss/d", d_loss.item(), self.steps)

    @torch.no_grad()
    def sample(self, epoch):
        self.generator.eval()
        images = self.generator.module(torch.randn(64, 100, 1, 1, device=self.device))
        self.generator.train()
        save_image(images, f"epoch_{epoch}.png")

    def save(self, epoch):
        state = {"generator": self.generator.module.state_dict(), "discriminator": self.discriminator.module.state_dict()}
        torch.save(state, f"gan_{epoch}.pt")


def main():
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    torch.manual_seed(rank)
    data = ImageFolder("faces")
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, 128, sampler=sampler, num_workers=4, drop_last=True)
    trainer = Trainer(rank, device)
    for epoch in range(50):
        sampler.set_epoch(epoch)
        for images, _ in loader:
            trainer.step(images.to(device))
        if trainer.rank == 0:
            trainer.sample(epoch)
            trainer.save(epoch)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
