"""Failures that need a GPU, a container or a cluster: each has its source.

Those with ``seen`` we have also seen ourselves, on the GPU that the page names.
"""

from dataclasses import dataclass

TORCH = "https://github.com/pytorch/pytorch/issues"
NCCL = "https://github.com/NVIDIA/nccl/issues"
NCCL_TESTS = "https://github.com/NVIDIA/nccl-tests/issues"
C10D = "https://github.com/pytorch/pytorch/blob/0323141fed065e2d6dbdaab41c93ea979ce8004e/torch/csrc/distributed/c10d"
GUIDE = "https://docs.nvidia.com/deeplearning/nccl/archives/nccl_2262/user-guide/docs/_sources"
XID = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
ML_ENGINEERING = "https://github.com/stas00/ml-engineering/blob/15de338c6411c943fc083f7365017c1547acf9af"


@dataclass(frozen=True)
class Sourced:
    see: str
    why: str
    cure: str
    lesson: str
    name: str
    url: str
    seen: bool = False


SOURCED = [
    Sourced(
        see="Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, ..., "
        "Timeout(ms)=15000) ran for 15084 milliseconds before timing out",
        why="a rank has not made that call: `last enqueued` is larger on the ranks that wait, and one"
        " of those speaks; it ends with `exitcode: -6`",
        cure="find the rank that is missing: the first table, or RAS and `torchfrtrace` of lesson 26; "
        "a longer time-out hides it; if none is missing and the first call hangs, try "
        "`NCCL_P2P_DISABLE=1`: if it helps, switch PCIe's ACS off in the BIOS "
        f"([nccl #2079]({NCCL}/2079))",
        lesson="26",
        name="pytorch #118369",
        url=f"{TORCH}/118369",
        seen=True,
    ),
    Sourced(
        see="ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in "
        "monitoring enqueued collectives",
        why="the watchdog itself is stuck in a CUDA call, such as when another thread holds the GIL in one",
        cure="`py-spy dump --native` of that process; raise `TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC` only if"
        " the wait is meant",
        lesson="26",
        name="pytorch #115888",
        url=f"{TORCH}/115888",
    ),
    Sourced(
        see="ncclInvalidUsage: This usually reflects invalid usage of NCCL library. Last error: "
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60",
        why="two ranks use one GPU: no `set_device`, more ranks than GPUs, or a LOCAL_RANK that is "
        "lost or taken `% device_count()`",
        cure="`torch.cuda.set_device(LOCAL_RANK)` first; `--nproc-per-node` of the GPUs there",
        lesson="10",
        name="Megatron-LM #661",
        url="https://github.com/NVIDIA/Megatron-LM/issues/661",
        seen=True,
    ),
    Sourced(
        see="ncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
        "device error.",
        why="something outside nccl failed: an interface, pinned memory, `/dev/shm`; the lines after "
        "`Last error:` say what",
        cure="`NCCL_DEBUG=WARN`, then the first `NCCL WARN` in time; in a container `--shm-size=1g "
        "--ulimit memlock=-1`",
        lesson="27",
        name="NCCL 2.26, troubleshooting",
        url=f"{GUIDE}/troubleshooting.rst.txt",
    ),
    Sourced(
        see="NCCL WARN Error while creating shared memory segment /dev/shm/nccl-WU88OE (size "
        "9637888), error: No space left on device (28)",
        why="`/dev/shm` is full; a container has 64 MB of it, and dead jobs leave files there",
        cure="`docker run --shm-size=1g`; under Kubernetes a volume with `medium: Memory`; delete "
        "`/dev/shm/nccl-*` of dead jobs",
        lesson="27",
        name="nccl #525",
        url=f"{NCCL}/525",
    ),
    Sourced(
        see="ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.",
        why="an echo: the rank at the other end has gone, or its network has",
        cure="the first error in time, on the other machines; then their `dmesg -T`",
        lesson="26",
        name="torch, NCCLUtils.cpp",
        url=f"{C10D}/NCCLUtils.cpp",
    ),
    Sourced(
        see="unhandled cuda error (run with NCCL_DEBUG=INFO for details) ... ncclUnhandledCudaError: "
        "Call to CUDA function failed.",
        why="a CUDA call in nccl failed; `Cuda failure '...'` below it has the cause, such as `out of"
        " memory`, an earlier fault of the process, or nccl built for another CUDA",
        cure="look that text up; compare driver, CUDA, nccl and the `NCCL_*` variables on all machines: in a "
        "weight sync, vLLM before its #24141 sets `NCCL_CUMEM_ENABLE=0`, and the trainer needs the same "
        "([SkyRL #143](https://github.com/NovaSky-AI/SkyRL/pull/143))",
        lesson="27",
        name="nccl-tests #6",
        url=f"{NCCL_TESTS}/6",
    ),
    Sourced(
        see="CUDA error: invalid device ordinal",
        why="`set_device` got a number that this node has no GPU for: more ranks than GPUs, the global rank "
        "in place of LOCAL_RANK, or `CUDA_VISIBLE_DEVICES` leaves fewer",
        cure="`--nproc-per-node` of the GPUs that are visible; `torch.cuda.set_device(LOCAL_RANK)`",
        lesson="10",
        name="stanford_alpaca #67",
        url="https://github.com/tatsu-lab/stanford_alpaca/issues/67",
    ),
    Sourced(
        see="ncclInternalError: Internal check failed. Last error: Bootstrap : no socket interface found",
        why="`NCCL_SOCKET_IFNAME` names an interface that this machine has not, or there is none but `lo`; "
        "since nccl 2.27 also `connecting to address with family ... is neither AF_INET(2) nor AF_INET6(10)`",
        cure="`ip -br addr` on each node; unset the variable, or give a prefix: `NCCL_SOCKET_IFNAME=eth`",
        lesson="27",
        name="nccl #1837",
        url=f"{NCCL}/1837",
    ),
    Sourced(
        see="NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host); "
        "socketStartConnect: Connect to ... failed : Connection refused",
        why="the other node has announced an address that cannot be reached from here, such as that of a "
        "container's bridge (`veth`, `docker`), or a firewall is between them: nccl takes any port",
        cure="`NCCL_SOCKET_IFNAME` with the interface that the nodes share; open all ports between them; "
        "`nc -l PORT` there, `nc ADDRESS PORT` here",
        lesson="27",
        name="nccl #913",
        url=f"{NCCL}/913",
    ),
    Sourced(
        see="NCCL WARN Message truncated : received 1024 bytes instead of 256",
        why="the ranks have different versions of nccl, or different `NCCL_*` variables",
        cure="compare `torch.cuda.nccl.version()` and those variables on all nodes; one image for all",
        lesson="27",
        name="nccl #1328",
        url=f"{NCCL}/1328",
    ),
    Sourced(
        see="[c10d] sendBytes failed on SocketImpl(fd=67, ...): Broken pipe; Failed to check the 'should "
        "dump' flag on TCPStore, (maybe TCPStore server has shut down too early)",
        why="an echo: the process with the store, mostly rank 0, has ended before this one",
        cure="the first error in time, mostly rank 0's; if there is none, `destroy_process_group()` on all "
        "ranks at the end of the script",
        lesson="02",
        name="vllm #32139",
        url="https://github.com/vllm-project/vllm/pull/32139",
    ),
    Sourced(
        see="CUDA error: device-side assert triggered",
        why="a label, a token or a position is out of range; all later CUDA calls of this process "
        "fail with the same text, nccl's too",
        cure="the first line `Assertion ... failed` names the kernel, such as `nll_loss`: a label; "
        "then that batch on a CPU, or `CUDA_LAUNCH_BLOCKING=1`",
        lesson="26",
        name="pytorch #17425",
        url=f"{TORCH}/17425",
        seen=True,
    ),
    Sourced(
        see="CUDA error: an illegal memory access was encountered",
        why="a kernel has left its memory, mostly by a fault of the program (Xid 31); the stack is "
        "that of a later call, often of nccl's watchdog",
        cure="`CUDA_LAUNCH_BLOCKING=1` for the line; `compute-sanitizer --tool memcheck` for the kernel",
        lesson="26",
        name="NVIDIA, Xid 31",
        url=XID,
    ),
    Sourced(
        see="CUDA error: uncorrectable ECC error encountered",
        why="the GPU's memory has failed (Xid 48, 94 or 95)",
        cure="`nvidia-smi -q`, its ECC counts; reset this GPU, leave the machine out, go on from the "
        "checkpoint",
        lesson="26",
        name="ml-engineering, debug",
        url=f"{ML_ENGINEERING}/compute/accelerator/nvidia/debug.md",
    ),
    Sourced(
        see="NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.",
        why="the driver, in `dmesg`: this GPU has failed; the number says how",
        cure="`dmesg -T` on the machine of the first failed rank; the table of lesson 26 has the numbers",
        lesson="26",
        name="NVIDIA, Xid catalog",
        url=XID,
    ),
    Sourced(
        see="NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out",
        why="two network cards do not reach each other: a dead link, rails that are not joined, on "
        "RoCE a wrong GID",
        cure="`ib_write_bw` between these two machines; `NCCL_CROSS_NIC=0` on rails; `NCCL_IB_GID_INDEX`",
        lesson="27",
        name="nccl #2013",
        url=f"{NCCL}/2013",
    ),
    Sourced(
        see="NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        why="the job may lock too little memory",
        cure="`ulimit -l` must say `unlimited` in the job itself, not only in your shell",
        lesson="27",
        name="nccl-tests #206",
        url=f"{NCCL_TESTS}/206",
    ),
    Sourced(
        see="NCCL WARN NET/IB : Got completion from peer ... with status=12 opcode=1 len=0 vendor err 129",
        why="no answer in time: at the start, the two cards cannot talk; later, a bad link or a dead machine",
        cure="`ib_write_bw`, the counters of the link; a larger `NCCL_IB_TIMEOUT` helps if the link is"
        " only bad",
        lesson="27",
        name="nccl #902",
        url=f"{NCCL}/902",
    ),
    Sourced(
        see="DataLoader worker (pid N) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory",
        why="workers hand batches over in `/dev/shm`, and a container has 64 MB of it",
        cure="`docker run --ipc=host` or `--shm-size=8g`; fewer workers",
        lesson="27",
        name="pytorch #5040",
        url=f"{TORCH}/5040",
    ),
    Sourced(
        see="[c10d] The client socket cannot be initialized to connect to [host]:29500 (errno: 97 - "
        "Address family not supported by protocol)",
        why="a warning: this machine has no IPv6, and torch goes on with IPv4",
        cure="none needed; if it hangs after it, the cause is another one",
        lesson="02",
        name="pytorch #94286",
        url=f"{TORCH}/94286",
    ),
    Sourced(
        see="ImportError: .../.triton/cache/.../__triton_launcher...so: cannot stat shared object: "
        "Stale file handle",
        why="Triton keeps compiled kernels in the home folder; on NFS the ranks of several nodes write there"
        " at once, and the others' watchdog speaks later",
        cure="`export TRITON_CACHE_DIR=/tmp/triton-$USER-$SLURM_JOB_ID`, a disk of the node",
        lesson="27",
        name="prime-rl #2305",
        url="https://github.com/PrimeIntellect-ai/prime-rl/pull/2305",
    ),
    Sourced(
        see="slurmstepd: error: Detected 1 oom-kill event(s) in StepId=... cgroup",
        why="the job has used more memory of the host than it asked Slurm for",
        cure="`--mem`; fewer loaders' workers; one copy of the data per machine",
        lesson="27",
        name="OSC, out of memory",
        url="https://www.osc.edu/documentation/knowledge_base/out_of_memory_oom_or_excessive_memory_usage",
    ),
    Sourced(
        see="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ...",
        why="weights, gradients, optimizer, activations and the allocator's gaps take more than the GPU has; "
        "on GPU 0 alone: all ranks are on it, too (next rows)",
        cure="in this order: a smaller micro-batch with accumulation (under FSDP checkpointing first: each "
        "micro-batch gathers again); activation checkpointing; FSDP; offloading. A snapshot says what holds "
        "the memory (lesson 25), `rank-plan` what a layout needs",
        lesson="25",
        name="CUDA memory",
        url="https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
        seen=True,
    ),
    Sourced(
        see="CUDA out of memory ... 12.37 GiB is reserved by PyTorch but unallocated",
        why="the allocator's segments have gaps of the wrong sizes, as with sequences of changing length and "
        "FSDP's buffers",
        cure="`PYTORCH_ALLOC_CONF=expandable_segments:True` (torch before 2.9: `PYTORCH_CUDA_ALLOC_CONF`); "
        "few fixed lengths of sequences",
        lesson="25",
        name="NeMo RL #919",
        url="https://github.com/NVIDIA-NeMo/RL/issues/919",
    ),
    Sourced(
        see="nvidia-smi: each rank is on GPU 0, too, with some hundred MiB; GPU 0 runs out of memory",
        why="a CUDA call before `set_device` makes a context there: a barrier, pinned memory, "
        "`torch.load` without `map_location`",
        cure="`torch.cuda.set_device(LOCAL_RANK)` right after the imports, and "
        "`init_process_group(device_id=...)`",
        lesson="10",
        name="pytorch #159262",
        url=f"{TORCH}/159262",
    ),
    Sourced(
        see="NCCL INFO NET/Socket : Using [0]eth0 on a cluster with InfiniBand or EFA; steps take 5 to 100 "
        "times as long, and nothing fails",
        why="nccl has found no driver or plugin in the container, so it sends by TCP",
        cure="the plugin's folder in `LD_LIBRARY_PATH` (AWS: `/opt/amazon/aws-ofi-nccl/lib`), the devices in "
        "the container; `NCCL_NET=IB`, or the plugin's name, makes nccl fail instead",
        lesson="27",
        name="NeMo RL #1973",
        url="https://github.com/NVIDIA-NeMo/RL/issues/1973",
    ),
    Sourced(
        see="huggingface/tokenizers: The current process just got forked, after parallelism has already "
        "been used",
        why="a fast tokenizer has run in the main process before the loader's workers were forked, without "
        "its threads: it switches them off so that no worker waits for one",
        cure="`TOKENIZERS_PARALLELISM=false`; use the tokenizer only in the workers, or tokenize before "
        "training",
        lesson="10",
        name="silnlp #316",
        url="https://github.com/sillsdev/silnlp/issues/316",
    ),
    Sourced(
        see="a time-out; py-spy shows one rank in torch/_dynamo or _inductor, the others in a collective",
        why="this rank compiles again, for a shape that the others have not had yet, or without a cache",
        cure="`TORCH_LOGS=recompiles` says why; few fixed shapes, or `mark_dynamic`; a warm-up of all shapes "
        "and a barrier before the loop",
        lesson="10",
        name="nanochat #722",
        url="https://github.com/karpathy/nanochat/pull/722",
    ),
    Sourced(
        see="The NVIDIA driver on your system is too old (found version 11040)",
        why="torch was built for a CUDA that this machine's driver does not know; often on one node of many",
        cure="a newer driver, or a torch built for that CUDA; compare `nvidia-smi` on all nodes",
        lesson="27",
        name="Fooocus #1313",
        url="https://github.com/lllyasviel/Fooocus/issues/1313",
    ),
    Sourced(
        see="Cannot re-initialize CUDA in forked subprocess",
        why="CUDA was used before a fork, such as in a notebook or before a DataLoader's workers",
        cure="start ranks by torchrun; `spawn` for processes of your own",
        lesson="01",
        name="torch.multiprocessing",
        url="https://docs.pytorch.org/docs/stable/notes/multiprocessing.html#cuda-in-multiprocessing",
    ),
    Sourced(
        see="use_libuv was requested but PyTorch was built without libuv support",
        why="some builds for Windows",
        cure="`USE_LIBUV=0`, or WSL",
        lesson="02",
        name="pytorch #139990",
        url=f"{TORCH}/139990",
    ),
]
