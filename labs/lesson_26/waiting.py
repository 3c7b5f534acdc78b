"""Failures in which a rank waits for something that does not come."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.ports import HERE

from lesson_26.stage import ANY, ERROR, HANG, Case, collector, other_port

CASES: list[Case] = []
case = collector(CASES)
TIMED_OUT = r"Timed out waiting \d+ms for (recv|send) operation to complete"


@case(
    HANG,
    says={0: TIMED_OUT, 1: "^the sum is 4.0$"},
    right="^the sum is 8.0$",
    stands="rank 0 in a barrier or collective of its own, such as at a save; the others in the next step's "
    "call, with the same number, or past the loop",
    did="called a collective, a barrier or `dcp.save` under `if rank == 0`",
    cause="the others do not call it",
    cure="call it on all ranks, use its result on one",
    lesson="04",
)
def collective_on_rank_0(rank: int, cured: bool) -> str:
    x = torch.ones(4)
    if cured or rank == 0:
        dist.all_reduce(x)
    return f"the sum is {x.sum().item()}"


@case(
    ERROR,
    says={0: "Connection (closed|reset) by peer"},
    symptom="`RuntimeError: ... Connection closed by peer` or `Connection reset by peer`",
    right="^8.0$",
    did="let one rank end while others wait for it",
    cause="an echo of the rank that left",
    cure="find that rank's error; `@record` of `torch.distributed.elastic.multiprocessing.errors` on `main`",
    lesson="00",
)
def a_rank_has_left(rank: int, cured: bool) -> float:
    if not cured and rank == 1:
        sys.exit(1)
    x = torch.ones(4)
    dist.all_reduce(x)
    return x.sum().item()


@case(
    ERROR,
    says={1: "^ended with exit code -9"},
    symptom="`exitcode: -9`, in torchrun's summary `Signal 9 (SIGKILL)`; no traceback; `Killed` in a shell; "
    "exit code 137 or `OOMKilled` in Kubernetes or Docker",
    right="^8.0$",
    did="took more memory than the machine or the container has",
    cause="mostly the kernel: `sudo dmesg -T` has `Out of memory: Killed process`; else an eviction, a "
    "preemption, a time limit, or torchrun itself, 30 s after SIGTERM (`kubectl describe pod`, "
    "`sacct -j JOB`)",
    cure="while the model loads: one copy per machine ([Memory](#memory): *host memory grows*); else fewer "
    "workers, or ask the scheduler for more",
    lesson="27",
)
def killed_by_the_kernel(rank: int, cured: bool) -> float:
    if not cured and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.ones(4)
    dist.all_reduce(x)
    return x.sum().item()


@case(
    ERROR,
    says={0: "No backend type associated with device type cpu"},
    right="^8.0$",
    did="passed a tensor on the CPU to a group whose backend is for GPUs, such as nccl",
    cause="each device type has its own backend; typical are `full_tensor()` after offloading, and a counter",
    cure="`x.to(device)` first, or `init_process_group('cpu:gloo,cuda:nccl')`",
    lesson="02",
    forms_group=False,
)
def tensor_of_another_device(rank: int, cured: bool) -> float:
    backend = "cpu:gloo" if cured else "cuda:gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=30))
    x = torch.ones(4)
    dist.all_reduce(x)
    return x.sum().item()


@case(
    ERROR,
    says={1: "NaN found in input tensor"},
    right="^inf or nan: False$",
    did="set `TORCH_DIST_NAN_CHECK=1`, and rank 1 passed a NaN",
    cause="torch looks at what goes into each collective, and stops the rank that brings it",
    cure="look at that rank's batch and loss; over nccl before torch 2.15 `TORCH_NCCL_NAN_CHECK=1`",
    lesson="10",
    forms_group=False,
)
def nan_on_one_rank(rank: int, cured: bool) -> str:
    os.environ["TORCH_DIST_NAN_CHECK"] = "1"
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    x = torch.full((4,), torch.nan if rank == 1 and not cured else 1.0)
    dist.all_reduce(x)
    return f"inf or nan: {not x.isfinite().all().item()}"


@case(
    ERROR,
    says={ANY: "^ended with exit code -11"},
    symptom="`exitcode: -11`, `Signal 11 (SIGSEGV)`, in DDP's constructor, not each time",
    right="^made$",
    did="ran DDP on a CPU with `TORCH_DISTRIBUTED_DEBUG=DETAIL`",
    cause="a fault of torch 2.15",
    cure="`INFO` in its place, or DETAIL without DDP",
    lesson="26",
    forms_group=False,
)
def detail_with_ddp(rank: int, cured: bool) -> str:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO" if cured else "DETAIL"
    dist.set_debug_level_from_env()
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    for _ in range(20):  # with one group it crashes always or never
        DistributedDataParallel(nn.Linear(4, 1), process_group=dist.new_group())
    return "made"


@case(
    ERROR,
    says={0: r"Rank 1 failed to pass monitoredBarrier in 1000 ms"},
    right="^through$",
    did="called `monitored_barrier`, and a rank is missing",
    cause="the named rank has not called it: it is late, in another call, or gone",
    cure="look at what the named rank does instead",
    lesson="12",
)
def monitored_barrier(rank: int, cured: bool) -> str:
    if cured or rank == 0:
        dist.monitored_barrier(timeout=timedelta(seconds=30 if cured else 1))
    return "through"


@case(
    HANG,
    says={0: TIMED_OUT},
    right="^8.0$",
    stands="all but one in the call; that one works: it computes, reads or writes",
    did="let a rank work longer than the time-out: downloading, preparing data, or compiling what another "
    "node has in its cache",
    cause="nobody is missing, one is late",
    cure="a longer `timeout=` for this group, or a barrier of a second group that has one; if ranks compile, "
    "a dummy step before that barrier",
    lesson="12",
    timeout_s=0.5,
)
def slower_than_the_timeout(rank: int, cured: bool) -> float:
    if rank == 1:
        time.sleep(1.5)
    x = torch.ones(4)
    dist.all_reduce(x)
    return x.sum().item()


@case(
    HANG,
    says={1: TIMED_OUT, 0: "^2 steps$"},
    right="^2 steps$",
    stands="one in `backward()`, the others at the end of the epoch",
    did="gave one rank more batches than the other",
    cause="each backward pass all-reduces, and one rank has stopped",
    cure="agree on the number of steps by an all-reduce with `MIN`; or use a `DistributedSampler`, which "
    "gives all ranks equally many samples. A DataLoader's `drop_last` does not",
    lesson="12",
)
def one_batch_more(rank: int, cured: bool) -> str:
    ddp = DistributedDataParallel(nn.Linear(4, 1))
    steps = torch.tensor(2 + rank)
    if cured:
        dist.all_reduce(steps, dist.ReduceOp.MIN)
    for _ in range(int(steps)):
        ddp(torch.ones(2, 4)).sum().backward()
    return f"{steps} steps"


@case(
    ERROR,
    says={ANY: "op.preamble.length <= op.nbytes"},
    symptom="`what(): op.preamble.length <= op.nbytes. 32 vs 20`, in an evaluation",
    right="^2 epochs$",
    did="evaluated on rank 0 alone, by `ddp(x)`",
    cause="DDP's forward pass broadcasts buffers; the others continue, and the calls no longer match",
    cure="evaluate `ddp.module` there, or on all ranks; the others wait meanwhile, so it must be shorter "
    "than the time-out",
    lesson="08",
)
def evaluates_on_rank_0(rank: int, cured: bool) -> str:
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    for _ in range(2):
        ddp(torch.randn(8, 4)).sum().backward()
        if rank == 0:
            model = ddp.module if cured else ddp
            with torch.no_grad():
                model(torch.randn(8, 4))
    dist.barrier()
    return "2 epochs"


@case(
    HANG,
    says={0: TIMED_OUT},
    right="^(1|2) of 2 batches$",
    stands="one in `backward()`, another one in the next forward or past the loop",
    did="skipped a batch by `continue` where the loss was not finite",
    cause="the other rank waits in the backward pass",
    cure="skip on all ranks: all-reduce whether the loss is finite",
    lesson="12",
)
def skips_a_bad_batch(rank: int, cured: bool) -> str:
    ddp = DistributedDataParallel(nn.Linear(4, 1))
    used = 0
    for batch in range(2):
        bad = rank == 1 and batch == 1
        loss = ddp(torch.full((2, 4), torch.nan if bad else 1.0)).sum()
        finite = loss.isfinite().float()
        if cured:
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        if not finite:
            continue
        loss.backward()
        used += 1
    return f"{used} of 2 batches"


@case(
    HANG,
    says={1: TIMED_OUT},
    right="^stopped after 2$",
    stands="one in an all-reduce of the loop, another past the loop",
    did="stopped early on each rank by its own loss",
    cause="they stop at different steps",
    cure="decide by a number that all ranks have, such as the reduced loss",
    lesson="12",
)
def stops_early(rank: int, cured: bool) -> str:
    for step in range(1, 5):
        loss = torch.tensor(1.0 / (step * (2 - rank)))
        mean = loss.clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if (mean if cured else loss) < 0.4:
            break
    return f"stopped after {step}"


@case(
    HANG,
    says={0: TIMED_OUT},
    right="^64 numbers$",
    stands="rank 0 in `full_tensor()` or `state_dict`, the others in the next step",
    did="called it on rank 0 alone",
    cause="it gathers the shards of all ranks",
    cure="all ranks gather, rank 0 writes",
    lesson="19",
)
def gathers_on_rank_0(rank: int, cured: bool) -> str:
    layer = fully_shard(nn.Linear(8, 8), mesh=init_device_mesh("cpu", (2,)))
    if cured or rank == 0:
        return f"{layer.weight.full_tensor().numel()} numbers"
    return "64 numbers"


@case(
    HANG,
    says={ANY: TIMED_OUT},
    right="^1.0$",
    stands="two in `send`, to each other; over nccl often in the next synchronization",
    did="called `send`, then `recv`, on both ranks",
    cause="each waits until the other receives; nccl's buffers may hold small messages, so only larger ones "
    "hang ([#129341](https://github.com/pytorch/pytorch/issues/129341))",
    cure="`batch_isend_irecv`",
    lesson="03",
    forms_group=False,
)
def both_send_first(rank: int, cured: bool) -> float:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30 if cured else 4))
    x = torch.ones(10)
    y = torch.zeros(10)
    if cured:
        sending = dist.P2POp(dist.isend, x, 1 - rank)
        receiving = dist.P2POp(dist.irecv, y, 1 - rank)
        for work in dist.batch_isend_irecv([sending, receiving]):
            work.wait()
    else:
        dist.send(x, 1 - rank)
        dist.recv(y, 1 - rank)
    return y.mean().item()


@case(
    HANG,
    says={ANY: TIMED_OUT},
    right=r"^\(2.0, 2.0\)$",
    stands="in calls of different kinds under one sequence number; each rank makes both, in a different "
    "order",
    did="called `all_reduce`, then `broadcast` on one rank, the other way round on the other",
    cause="calls are paired by their order, not by their names",
    cure="the same order on all ranks",
    lesson="04",
)
def kinds_in_another_order(rank: int, cured: bool) -> tuple[float, float]:
    a = torch.ones(4)
    b = torch.full((4,), 2.0)
    calls = [lambda: dist.all_reduce(a), lambda: dist.broadcast(b, src=0)]
    if not cured and rank == 1:
        calls.reverse()
    for call in calls:
        call()
    return a[0].item(), b[0].item()


@case(
    HANG,
    says={ANY: TIMED_OUT},
    right="^4.0$",
    stands="each rank in another group's call",
    did="used two groups in a different order on each rank",
    cause="each rank waits in a group that the other has not reached yet",
    cure="one order of groups for all ranks",
    lesson="04",
)
def groups_in_another_order(rank: int, cured: bool) -> float:
    patience = timedelta(seconds=30 if cured else 1)
    groups = [dist.new_group([0, 1], timeout=patience) for _ in range(2)]
    if not cured and rank == 1:
        groups.reverse()
    x = torch.ones(1)
    for group in groups:
        dist.all_reduce(x, group=group)
    return x.item()


@case(
    HANG,
    says={0: r"wait timeout after \d+ms, keys: /default_pg/0//1//cpu//0/1"},
    right="^formed$",
    stands="one in `new_group`, the others elsewhere",
    did="called `new_group` on some ranks only",
    cause="a member does not call it",
    cure="call it on all ranks, members or not, in one order",
    lesson="04",
)
def new_group_on_one_rank(rank: int, cured: bool) -> str:
    if cured or rank == 0:
        dist.new_group([0, 1], timeout=timedelta(seconds=30 if cured else 1))
    return "formed"


@case(
    HANG,
    says={0: f"{TIMED_OUT}|Gloo connectFullMesh failed", 1: "^3.0$", 2: "^3.0$"},
    right="^(2|4).0$",
    stands="all members in the first collective of their sub-group; other ranks are through, perhaps with "
    "a wrong sum; not each time",
    did="called `new_group` once on each rank, with the list of its own group",
    cause="a group is named by counting the calls: both groups get the same name, and their ranks meet "
    "under the same keys of the store",
    cure="each rank makes all groups, in one order: `new_subgroups_by_enumeration` or `init_device_mesh` "
    "([#130102](https://github.com/pytorch/pytorch/issues/130102))",
    lesson="04",
    ranks=4,
)
def new_group_of_its_own(rank: int, cured: bool) -> float:
    patience = timedelta(seconds=30 if cured else 6)
    lists = [[0, 2], [1, 3]]
    if cured:
        mine, _ = dist.new_subgroups_by_enumeration(lists, timeout=patience)
    else:
        dist.barrier()
        time.sleep(1.5 * rank)  # who comes first decides who meets whom; in a job it changes
        mine = dist.new_group(lists[rank % 2], timeout=patience)
    x = torch.tensor(float(rank))
    dist.all_reduce(x, group=mine)
    return x.item()


@case(
    ERROR,
    says={0: r"Timed out after \d+ seconds waiting for clients. 1/2 clients joined"},
    right="^met 2$",
    did="started fewer ranks than WORLD_SIZE, or one failed before `init_process_group`",
    cause="rank 0 waits for all of them; on several nodes, each may meet itself at `localhost`, such as by "
    "`$(scontrol ...)` in a container that has no scontrol",
    cure="start all of them; look at the missing one's log",
    lesson="02",
    forms_group=False,
)
def a_rank_does_not_come(rank: int, cured: bool) -> str:
    if not cured and rank == 1:
        return "it never tried"
    patience = timedelta(seconds=30 if cured else 1)
    address = f"tcp://{HERE}:{other_port()}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=patience)
    return f"met {dist.get_world_size()}"


@case(
    ERROR,
    says={0: r"wait timeout after \d+ms, keys: .*data is ready"},
    right="^ready$",
    did="called `store.get` or `store.wait` for a key that nobody sets",
    cause="the rank that should set it failed, or spells it differently",
    cure="one constant for the key on both sides; on a failure set another key, which the waiting rank "
    "looks at, too; a time-out of your own",
    lesson="02",
)
def a_key_that_nobody_sets(rank: int, cured: bool) -> str:
    store = dist.PrefixStore("case", dist.distributed_c10d._get_default_store())
    if rank == 1:
        store.set("data is ready" if cured else "data ready", "yes")
        return "ready"
    store.wait(["data is ready"], timedelta(seconds=30 if cured else 1))
    return "ready"


@case(
    ERROR,
    says={0: r"wait timeout after \d+ms, keys: /rpc_prefix_0/shutdown"},
    right="^all have left$",
    did="left `rpc.shutdown` out on a worker",
    cause="shutdown waits until all workers have nothing left to do",
    cure="all workers call it",
    lesson="23",
    forms_group=False,
)
def one_skips_rpc_shutdown(rank: int, cured: bool) -> str:
    os.environ["MASTER_PORT"] = str(other_port())
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=20, init_method=f"tcp://{HERE}:{other_port()}")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if cured or rank == 0:
        rpc.shutdown(timeout=20 if cured else 1)
    return "all have left"


@case(
    ERROR,
    says={ANY: "op.preamble.length <= op.nbytes"},
    right="^8.0$",
    did="reduced 1,000 elements on one rank, 3,000 on the other",
    cause="shapes differ: a last batch, a frozen layer, another vocabulary",
    cure="compare shapes first; `TORCH_DISTRIBUTED_DEBUG=DETAIL` names both, but may crash DDP's constructor "
    "on a CPU (torch 2.15)",
    lesson="04",
)
def sizes_differ(rank: int, cured: bool) -> float:
    x = torch.ones(1000 if cured or rank == 0 else 3000)
    dist.all_reduce(x)
    return x[:4].sum().item()


@case(
    ERROR,
    says={
        0: "Detected mismatch between collectives on ranks",
        1: "Detected mismatch between collectives on ranks",
    },
    right="^8.0$",
    did="reduced tensors of different sizes on each rank, with `TORCH_DISTRIBUTED_DEBUG=DETAIL`",
    cause="each collective is compared before it runs",
    cure="the message names both ranks' shapes; do not use it with DDP on a CPU",
    lesson="04",
    forms_group=False,
)
def sizes_differ_with_detail(rank: int, cured: bool) -> float:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    x = torch.ones(4 if cured or rank == 0 else 6)
    dist.all_reduce(x)
    return x[:4].sum().item()
