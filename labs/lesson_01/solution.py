"""Exercise 01: who is who on the nodes that Slurm gave you."""


def processes_of(slurm: dict[str, str], hosts: list[str]) -> list[tuple[str, dict[str, str]]]:
    """Return (host, variables) of every process, in order of rank: where it starts, and what ``setup`` needs.

    Args:
        slurm: what a job script finds, such as {"SLURM_TASKS_PER_NODE": "3,4(x2)", "SLURM_JOB_ID": "4711"}.
            The first variable is the number of processes on each host; 4(x2) stands for 4,4.
        hosts: the hosts in Slurm's order, as ``scontrol show hostnames`` prints them.

    The variables are RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, all strings. Ranks count host
    by host. All processes meet at rank 0's host, at a port from 1024 to 65535 that the next job does not use.
    """
    # solution: begin
    sizes = []
    for part in slurm["SLURM_TASKS_PER_NODE"].split(","):
        size, _, times = part.rstrip(")").partition("(x")
        sizes += [int(size)] * int(times or 1)
    port = 20000 + int(slurm["SLURM_JOB_ID"]) % 9000
    processes = []
    for host, size in zip(hosts, sizes, strict=True):
        for local_rank in range(size):
            variables = {
                "RANK": str(len(processes)),
                "LOCAL_RANK": str(local_rank),
                "WORLD_SIZE": str(sum(sizes)),
                "MASTER_ADDR": hosts[0],
                "MASTER_PORT": str(port),
            }
            processes.append((host, variables))
    return processes
    # solution: end
