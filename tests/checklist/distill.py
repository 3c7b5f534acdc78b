"""A student learns from a teacher that stays as it is; results are written as JSON by one rank."""

import json
import os
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchvision.models import mobilenet_v3_small, resnet50


@contextmanager
def main_process_first(local_rank):
    if local_rank != 0:
        dist.barrier()
    yield
    if local_rank == 0:
        dist.barrier()


def read_pictures(path):
    pictures, labels = torch.load(path)
    return TensorDataset(pictures, labels)


def distill(student, teacher, pictures, labels, temperature=4.0):
    with torch.no_grad():
        wanted = teacher(pictures)
    scores = student(pictures)
    soft = F.kl_div(F.log_softmax(scores / temperature, 1), F.softmax(wanted / temperature, 1), reduction="batchmean")
    return 0.9 * soft * temperature**2 + 0.1 * F.cross_entropy(scores, labels)


def main():
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    with main_process_first(local_rank):
        teacher = resnet50(weights="DEFAULT").cuda().eval()
    net = mobilenet_v3_small(num_classes=1000)
    for parameter in net.features.parameters():
        parameter.requires_grad = False
    student = DDP(net.cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD([p for p in student.parameters() if p.requires_grad], lr=0.05)
    data = read_pictures("pictures.pt")
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 64, sampler=sampler)
    history = []
    for epoch in range(30):
        sampler.set_epoch(epoch)
        student.train()
        total = torch.zeros(1).cuda()
        for step, (pictures, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = distill(student, teacher, pictures.cuda(), labels.cuda())
            loss.backward()
            work = dist.all_reduce(total.add_(loss.detach()), async_op=True) if step == 0 else None
            optimizer.step()
            if work is not None:
                work.wait()
        history.append(total.item())
        if rank == 0:
            with open("history.json", "w") as file:
                json.dump(history, file)
            torch.save(student.module.state_dict(), f"student_{epoch}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
