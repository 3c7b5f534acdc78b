"""Failures that need a GPU, a container or a cluster: they were not run here, and each has its source."""

from dataclasses import dataclass

TORCH = "https://github.com/pytorch/pytorch/issues"


@dataclass(frozen=True)
class Sourced:
    see: str
    why: str
    cure: str
    lesson: str
    name: str
    url: str


SOURCED = [
    Sourced(
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=..., OpType=ALLREDUCE, ..., "
        "Timeout(ms)=600000) ran for 600013 milliseconds before timing out",
        "a rank has not made that call: `last enqueued` is larger on the ranks that wait",
        "find that rank, as in the first table; a longer time-out hides it",
        "26",
        "pytorch #118369",
        f"{TORCH}/118369",
    ),
    Sourced(
        "DataLoader worker (pid N) is killed by signal: Bus error. It is possible that dataloader's workers "
        "are out of shared memory",
        "workers hand batches over in `/dev/shm`, and a container has 64 MB of it",
        "`docker run --ipc=host` or `--shm-size=8g`; fewer workers",
        "27",
        "pytorch #5040",
        f"{TORCH}/5040",
    ),
    Sourced(
        "ncclInvalidUsage ... Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        "two ranks use one GPU: no `set_device`, or more ranks than GPUs",
        "`torch.cuda.set_device(LOCAL_RANK)` first; `--nproc-per-node` of the GPUs there",
        "10",
        "Megatron-LM #661",
        "https://github.com/NVIDIA/Megatron-LM/issues/661",
    ),
    Sourced(
        "[c10d] The client socket cannot be initialized to connect to [host]:29500 (errno: 97 - Address "
        "family not supported by protocol)",
        "a warning: this machine has no IPv6, and torch goes on with IPv4",
        "none needed; if it hangs after it, the cause is another one",
        "02",
        "pytorch #94286",
        f"{TORCH}/94286",
    ),
    Sourced(
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=... cgroup",
        "the job has used more memory of the host than it asked Slurm for",
        "`--mem`; fewer loaders' workers; one copy of the data per machine",
        "27",
        "OSC, out of memory",
        "https://www.osc.edu/documentation/knowledge_base/out_of_memory_oom_or_excessive_memory_usage",
    ),
    Sourced(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ...",
        "what a GPU holds is larger than it; on rank 0 alone: all ranks have loaded a checkpoint to GPU 0",
        "lesson 28 counts it; `torch.load(..., map_location='cpu')` and `set_device`",
        "28",
        "CUDA memory",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
    ),
    Sourced(
        "Cannot re-initialize CUDA in forked subprocess",
        "CUDA was used before a fork, such as in a notebook or before a DataLoader's workers",
        "start ranks by torchrun; `spawn` for processes of your own",
        "01",
        "torch.multiprocessing",
        "https://docs.pytorch.org/docs/stable/notes/multiprocessing.html#cuda-in-multiprocessing",
    ),
    Sourced(
        "use_libuv was requested but PyTorch was built without libuv support",
        "some builds for Windows",
        "`USE_LIBUV=0`, or WSL",
        "02",
        "pytorch #139990",
        f"{TORCH}/139990",
    ),
]
