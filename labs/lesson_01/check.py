"""Check of exercise 01. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

from datetime import timedelta
from types import ModuleType

import torch.distributed as dist

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.runtime.ports import HERE, is_taken

NODES = {"3,4": [3, 4], "4,3": [4, 3], "2(x2),1": [2, 2, 1], "1,5(x3)": [1, 5, 5, 5], "2": [2]}
NODES["12,2(x11)"] = [12, *[2] * 11]
JOBS = (4711, 4712, 4713, 12345678)  # numbers of jobs have up to eight digits
PATIENCE = timedelta(seconds=10)
Processes = list[tuple[str, dict[str, str]]]


def ask(answer: ModuleType, tasks_per_node: str, hosts: list[str], job: int) -> Processes:
    """What the answer says of a job. Raises ``Wrong`` unless it has the form that was asked for."""
    slurm = {"SLURM_TASKS_PER_NODE": tasks_per_node, "SLURM_JOB_ID": str(job)}
    processes = answer.processes_of(slurm, list(hosts))
    if not isinstance(processes, list):
        raise Wrong(f"processes_of returned a {type(processes).__name__}, expected a list")
    for place, entry in enumerate(processes):
        if not (isinstance(entry, (tuple, list)) and len(entry) == 2 and isinstance(entry[1], dict)):
            raise Wrong(f"{tasks_per_node}: entry {place} is {entry!r}, expected (host, variables)")
        for name, value in entry[1].items():
            if not isinstance(value, str):
                kind = type(value).__name__
                raise Wrong(f"{tasks_per_node}: {name} is {value!r}, of type {kind}; variables are strings")
    return processes


def expected_of(sizes: list[int], hosts: list[str]) -> Processes:
    """The processes of nodes of these sizes, by counting; without the port, which is the answer's choice."""
    processes: Processes = []
    for host, size in zip(hosts, sizes, strict=True):
        for local_rank in range(size):
            numbers = {"RANK": str(len(processes)), "LOCAL_RANK": str(local_rank)}
            processes.append((host, {**numbers, "WORLD_SIZE": str(sum(sizes)), "MASTER_ADDR": hosts[0]}))
    return processes


def compare(tasks_per_node: str, found: Processes, expected: Processes) -> None:
    """Raise ``Wrong`` unless all but the ports are as expected."""
    if len(found) != len(expected):
        raise Wrong(f"{tasks_per_node}: {len(found)} processes are listed, expected {len(expected)}")
    for place, ((host, variables), (right_host, right)) in enumerate(zip(found, expected, strict=True)):
        if host != right_host:
            raise Wrong(f"{tasks_per_node}: process {place} starts on {host!r}, expected {right_host!r}")
        for name, value in right.items():
            if name not in variables:
                raise Wrong(f"{tasks_per_node}: process {place} has no {name}")
            if variables[name] != value:
                raise Wrong(
                    f"{tasks_per_node}: process {place} has {name} {variables[name]!r}, expected {value!r}"
                )


def port_of(job: int, processes: Processes) -> int:
    """The one port of a job. Raises ``Wrong`` if it has none, or several."""
    ports = {variables.get("MASTER_PORT") for _, variables in processes}
    if len(ports) > 1:
        raise Wrong(f"the processes of job {job} get {len(ports)} different ports")
    (port,) = ports
    if port is None or not port.isdigit() or not 1024 <= int(port) <= 65535:
        raise Wrong(f"job {job} gets the port {port}, expected a number from 1024 to 65535")
    return int(port)


def compare_ports(job: int, port: int, group: Group) -> None:
    """Raise ``Wrong`` unless the answer gives all ranks of this run the same port for the same job."""
    ports = [0] * group.world_size
    dist.all_gather_object(ports, port)
    if len(set(ports)) > 1:
        raise Wrong(
            f"asked for job {job}, the ranks of this run got different ports, {ports}: nothing may depend on "
            "chance or on the process (Python salts the hashes of strings)"
        )


def meet(answer: ModuleType, group: Group) -> None:
    """The ranks of this run meet at the answer's address; rank 0 chooses a job whose port is free."""
    chosen = [0]
    if group.rank == 0:
        for job in range(1000, 2000):
            if not is_taken(port_of(job, ask(answer, str(group.world_size), [HERE], job))):
                chosen = [job]
                break
    dist.broadcast_object_list(chosen, src=0)
    _, mine = ask(answer, str(group.world_size), [HERE], chosen[0])[group.rank]
    address, port, n = mine["MASTER_ADDR"], int(mine["MASTER_PORT"]), int(mine["WORLD_SIZE"])
    store = dist.TCPStore(address, port, n, is_master=mine["RANK"] == "0", timeout=PATIENCE)
    store.set(mine["RANK"], "here")
    store.wait([str(rank) for rank in range(group.world_size)])
    dist.barrier()  # the store is rank 0's


def verify(answer: ModuleType, group: Group) -> str:
    count = 0
    for tasks_per_node, sizes in NODES.items():
        hosts = [f"node{number:02}" for number in range(7, 7 + len(sizes))]
        found = [ask(answer, tasks_per_node, hosts, job) for job in JOBS]
        compare(tasks_per_node, found[0], expected_of(sizes, hosts))
        ports = [port_of(job, processes) for job, processes in zip(JOBS, found, strict=True)]
        for earlier, later in ((0, 1), (0, 2), (1, 2)):
            if ports[earlier] == ports[later]:
                raise Wrong(
                    f"jobs {JOBS[earlier]} and {JOBS[later]} both get the port {ports[earlier]}: on one node "
                    "they would meet"
                )
        compare_ports(JOBS[0], ports[0], group)
        count += sum(sizes)
    meet(answer, group)
    return f"{count} processes of {len(NODES)} jobs, and the {group.world_size} of this run met. Well done."


if __name__ == "__main__":
    check_exercise("01_ranks", verify, ranks=2)
