"""Failures while ranks start, form a group, save, load and end."""

import os
import pickle
import socket
import subprocess
import sys
import time
from datetime import timedelta
from types import ModuleType

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.children import FORK
from shared.runtime.ports import HERE, free_port

from lesson_26.stage import ERROR, WRONG, Case, collector, folder_of_case, other_port

CASES: list[Case] = []
case = collector(CASES)
PATIENCE = timedelta(seconds=30)
SHORT = timedelta(seconds=1)


@case(
    ERROR,
    says={0: "Default process group has not been initialized"},
    right="^2 ranks$",
    did="called a collective or `get_world_size()` without a group",
    cause="`init_process_group` was not called, or the group is destroyed already",
    cure="call it first; in code that also runs alone, ask `dist.is_initialized()`",
    lesson="02",
    forms_group=False,
)
def no_group(rank: int, cured: bool) -> str:
    if cured:
        dist.init_process_group("gloo")
    return f"{dist.get_world_size()} ranks"


@case(
    ERROR,
    says={0: "environment variable RANK expected, but not set"},
    right="^2 ranks$",
    did="started `python train.py` in place of `torchrun train.py`",
    cause="nobody has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
    cure="start it by torchrun",
    lesson="01",
    forms_group=False,
)
def started_by_python(rank: int, cured: bool) -> str:
    if not cured:
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]
    dist.init_process_group("gloo")
    return f"{dist.get_world_size()} ranks"


@case(
    ERROR,
    says={0: "trying to initialize the default process group twice"},
    right="^2 ranks$",
    did="called `init_process_group` a second time, such as by running a cell again",
    cause="a process has one default group",
    cure="`destroy_process_group()` before, or ask `dist.is_initialized()`",
    lesson="02",
)
def group_formed_twice(rank: int, cured: bool) -> str:
    if cured:
        dist.barrier()
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(other_port())
    dist.init_process_group("gloo")
    return f"{dist.get_world_size()} ranks"


if not torch.cuda.is_available():

    @case(
        ERROR,
        says={0: "requires at least one CUDA device"},
        right="^gloo$",
        did="asked for nccl on a machine without a GPU",
        cause="nccl needs a GPU; older torch: `ProcessGroupNCCL is only supported with GPUs, no GPUs found!`",
        cure="pick the backend by the device",
        lesson="02",
        forms_group=False,
    )
    def nccl_without_gpu(rank: int, cured: bool) -> str:
        dist.init_process_group("gloo" if cured else "nccl")
        dist.barrier()
        return dist.get_backend()


@case(
    ERROR,
    says={0: "The server socket has failed to listen on any local network address.*EADDRINUSE"},
    right="^listens$",
    symptom="`DistNetworkError: The server socket has failed to listen on any local network address. port: "
    "PORT, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use`",
    did="started a second job, or left one behind",
    cause="it holds the store's port, 29500 by default",
    cure="`ss -ltnp 'sport = :29500'` shows who holds it; `torchrun --standalone`, or on several nodes "
    "another port for all",
    lesson="02",
    forms_group=False,
)
def port_is_taken(rank: int, cured: bool) -> str:
    with socket.socket() as other_job:
        other_job.bind((HERE, 0))
        other_job.listen()
        port = 0 if cured else other_job.getsockname()[1]
        dist.TCPStore(HERE, port, is_master=True, wait_for_workers=False)
    return "listens"


@case(
    ERROR,
    says={0: "Unable to find address for: nosuch0"},
    right="^2 ranks$",
    did="named an interface in GLOO_SOCKET_IFNAME that is not there (for NCCL_SOCKET_IFNAME: "
    "`no socket interface found`)",
    cause="set for another machine",
    cure="a name that `ip addr` shows; often it need not be set",
    lesson="02",
    forms_group=False,
)
def unknown_interface(rank: int, cured: bool) -> str:
    if not cured:
        os.environ["GLOO_SOCKET_IFNAME"] = "nosuch0"
    dist.init_process_group("gloo")
    dist.barrier()
    return f"{dist.get_world_size()} ranks"


@case(
    ERROR,
    says={0: r"client socket has timed out .* trying to connect to \(no-such-host.invalid"},
    right="^2 ranks$",
    symptom="`DistNetworkError: The client socket has timed out after N ms while trying to connect to "
    "(HOST, PORT).`",
    did="set a MASTER_ADDR and MASTER_PORT at which nobody answers, or let torchrun announce them",
    cause="the name does not resolve (a pod's is known to itself alone); rank 0 has failed, or has not "
    "started; it has another MASTER_PORT; a firewall",
    cure="`getent hosts HOST` and `nc -zv HOST PORT` on the machine of the rank that says it; rank 0's log; "
    "the numeric address of rank 0's machine, `torchrun --local-addr=ADDRESS`",
    lesson="02",
    forms_group=False,
)
def unknown_host(rank: int, cured: bool) -> str:
    host = HERE if cured else "no-such-host.invalid"
    address = f"tcp://{host}:{other_port()}"
    patience = PATIENCE if cured else SHORT
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=patience)
    dist.barrier()
    return f"{dist.get_world_size()} ranks"


@case(
    ERROR,
    says={0: "Gloo connectFullMesh failed"},
    right="^2 ranks$",
    did="ran on several machines whose host names resolve to loopback, or used "
    "`init_method='file://...'` with the file of an earlier run (played here)",
    cause="a crash leaves the file behind, with addresses of ranks that are gone; "
    "`remote=[127.0.0.1]` on several machines: loopback",
    cure="a fresh file for each run; on several machines `GLOO_SOCKET_IFNAME=eth0`, the card by its name",
    lesson="02",
    forms_group=False,
)
def file_of_an_earlier_run(rank: int, cured: bool) -> str:
    path = folder_of_case() / "meeting"
    here = folder_of_case() / "earlier run"
    if rank == 0:
        lives = [FORK.Process(target=crash_after_meeting, args=(r, path)) for r in range(2)]
        for life in lives:
            life.start()
        for life in lives:
            life.join()
        if cured:
            path.unlink()
        here.touch()
    while not here.exists():
        time.sleep(0.01)
    if rank == 1 and not cured:
        return "2 ranks"  # it would come when rank 0 has lost patience with the addresses of the dead
    patience = PATIENCE if cured else SHORT
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2, timeout=patience)
    return f"{dist.get_world_size()} ranks"


def crash_after_meeting(rank: int, path: os.PathLike) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )
    dist.barrier()
    os._exit(1)


@case(
    ERROR,
    says={0: "error_file: <N/A>"},
    right="^the summary names the cause$",
    symptom="`ChildFailedError`, and below it `error_file: <N/A>`",
    did="read the launcher's summary alone after a worker failed",
    cause="the summary knows the exit code only",
    cure="read the first traceback above it; `@record` brings it into the summary",
    lesson="00",
    forms_group=False,
)
def summary_without_cause(rank: int, cured: bool) -> str:
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=1,
        rdzv_backend="static",
        rdzv_endpoint=f"{HERE}:{free_port()}",
        rdzv_configs={"rank": 0, "timeout": 30},
        max_restarts=0,
        monitor_interval=0.05,
        start_method="fork",
    )
    try:
        if cured:
            elastic_launch(config, record(fails))()
        else:
            elastic_launch(config, sys.executable)("-c", "raise ValueError('the cause')")
    except ChildFailedError as error:
        known = "names the cause" if "ValueError: the cause" in str(error) else "does not help"
        return f"the summary {known}\n{error}"
    return "nothing failed"


def fails() -> None:
    raise ValueError("the cause")


@case(
    ERROR,
    says={0: "^AttributeError: .*'train'"},
    right="^found$",
    symptom="`AttributeError: Can't get attribute 'train' on <module '__main__'`; "
    "from Python 3.14 on `module '__main__' has no attribute 'train'`",
    did="gave `mp.spawn` or a DataLoader's worker a function typed into a notebook",
    cause="the new process imports the module by name, and a notebook is not a module",
    cure="`%%writefile` and torchrun; a module for the function",
    lesson="00",
    forms_group=False,
)
def function_of_a_notebook(rank: int, cured: bool) -> str:
    module = ModuleType("a_module_of_mine" if cured else "__main__")
    exec("def train(): pass", module.__dict__)
    sys.modules[module.__name__] = module
    path = folder_of_case() / f"{rank}"
    path.mkdir()
    (path / "a_module_of_mine.py").write_text("def train(): pass\n", encoding="utf-8")
    (path / "function").write_bytes(pickle.dumps(module.train))
    load = "import pickle; pickle.load(open('function', 'rb')); print('found')"
    done = subprocess.run(
        [sys.executable, "-c", load], cwd=path, capture_output=True, encoding="utf-8", check=False
    )
    return done.stdout + done.stderr


@case(
    ERROR,
    says={0: "^(AttributeError|PicklingError): .*<lambda>"},
    right="^pickled$",
    symptom="`Can't pickle local object ...<lambda>`; in Python 3.13 `Can't get local object ...<lambda>`",
    did="gave a lambda to `mp.spawn`, or sent one by RPC",
    cause="a lambda has no name under which another process could find it",
    cure="a function of a module",
    lesson="01",
    forms_group=False,
)
def lambda_for_another_process(rank: int, cured: bool) -> str:
    if cured:
        pickle.dumps(fails)
        return "pickled"
    mp.spawn(lambda index: None, nprocs=1)
    return "spawned"


@case(
    WRONG,
    says={0: "^0 ranks ran, exit code 0$"},
    right="^1 ranks ran, exit code 0$",
    symptom="the job ends at once with exit code 0 and has trained nothing",
    did="called `mp.spawn(..., nprocs=torch.cuda.device_count())` on a machine without a GPU",
    cause="no process is started",
    cure="assert that the expected ranks have reported",
    lesson="01",
    forms_group=False,
)
def success_of_nobody(rank: int, cured: bool) -> str:
    folder = folder_of_case() / f"{rank}"
    folder.mkdir()
    count = 1 if cured else 0  # torch.cuda.device_count() without a GPU
    mp.start_processes(report, args=(folder,), nprocs=count, start_method="fork")
    return f"{len(list(folder.iterdir()))} ranks ran, exit code 0"


def report(rank: int, folder: os.PathLike) -> None:
    (folder / f"rank {rank}").touch()


@case(
    ERROR,
    says={0: r"Missing key\(s\) in state_dict: \"weight\", \"bias\""},
    right="<All keys matched successfully>",
    did="saved `ddp.state_dict()`, and loaded it into the model without DDP",
    cause="each name begins with `module.`",
    cure="save `ddp.module.state_dict()`; or `consume_prefix_in_state_dict_if_present`",
    lesson="11",
)
def module_prefix(rank: int, cured: bool) -> str:
    state = DistributedDataParallel(nn.Linear(2, 2)).state_dict()
    if cured:
        consume_prefix_in_state_dict_if_present(state, "module.")
    return str(nn.Linear(2, 2).load_state_dict(state))


@case(
    ERROR,
    says={1: r"FileNotFoundError: .* No such file or directory: .*step.pt"},
    right="^step 3$",
    did="saved on rank 0, and loaded on the others at once",
    cause="they are faster than the file",
    cure="write aside and `os.replace`; then a barrier; then load",
    lesson="11",
)
def loads_too_early(rank: int, cured: bool) -> str:
    path = folder_of_case() / "step.pt"
    if rank == 0:
        time.sleep(0.3)
        torch.save({"step": 3}, path)
    if cured:
        dist.barrier()
    return f"step {torch.load(path)['step']}"


@case(
    ERROR,
    says={0: "Missing key in checkpoint state_dict: head"},
    right="^loaded$",
    did="added a layer before `dcp.load`, or asked for a key that the old optimizer did not have",
    cause="DCP asks for each key of the new state; `except Exception` does not catch this",
    cure="load what is there; `allow_partial_load=True` only for parameters that may begin at random",
    lesson="19",
)
def key_missing_in_checkpoint(rank: int, cured: bool) -> str:
    path = folder_of_case() / "checkpoint"
    dcp.save({"body": torch.ones(2)}, checkpoint_id=path)
    state = {"body": torch.zeros(2), "head": torch.zeros(2)}
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True) if cured else None
    try:
        dcp.load(state, checkpoint_id=path, planner=planner)
    except dcp.CheckpointException as error:
        return str(error)
    return "loaded"


@case(
    ERROR,
    says={0: "doesn't match the size of optimizer's group"},
    right="^loaded$",
    did="loaded an optimizer's state after the model or its groups had changed",
    cause="states are matched by position, not by name",
    cure="the same parameters in the same groups; or state by name: `get_optimizer_state_dict`",
    lesson="11",
    forms_group=False,
)
def optimizer_of_another_model(rank: int, cured: bool) -> str:
    saved = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1, momentum=0.9).state_dict()
    model = nn.Linear(2, 2, bias=cured)
    torch.optim.SGD(model.parameters(), 0.1, momentum=0.9).load_state_dict(saved)
    return "loaded"


@case(
    WRONG,
    says={0: r"^steps made: \[1, 2, 3, 1, 2, 3, 4\]$"},
    right=r"^steps made: \[1, 2, 3, 4\]$",
    symptom="after a restart the step counter begins at one again",
    did="let `--max-restarts` or the queue restart a script that saves or reads nothing",
    cause="a restart runs the script from its top",
    cure="save each few steps, and look for a checkpoint first",
    lesson="13",
    forms_group=False,
)
def restart_from_nothing(rank: int, cured: bool) -> str:
    folder = folder_of_case() / f"{rank}"
    folder.mkdir()
    made: list[int] = []
    for life in range(2):
        step = 0
        if cured and (folder / "step").exists():
            step = int((folder / "step").read_text(encoding="utf-8"))
        while step < 4:
            step += 1
            made.append(step)
            (folder / "step").write_text(str(step), encoding="utf-8")
            if life == 0 and step == 3:
                break  # this life ends here
    return f"steps made: {made}"
