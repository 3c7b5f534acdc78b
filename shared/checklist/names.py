"""What names say of values that are not seen: ranks, sizes, the main process."""

from .conditions import Condition, Leaf


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ROLES = {
    name: role
    for role, names in {
        "rank": "rank global_rank world_rank dist_rank ddp_rank my_rank myrank process_rank proc_rank "
        "rank_id process_index",
        "local rank": "local_rank localrank ddp_local_rank local_process_index local_process_rank "
        "rank_in_node",
        "node": "node_rank machine_rank",
        "world": "world_size worldsize num_processes ddp_world_size n_ranks num_ranks",
        "local world": "ngpus_per_node n_gpus_per_node num_gpus_per_node gpus_per_node nproc_per_node "
        "local_world_size",
    }.items()
    for name in names.split()
}
FIRST = words("""
    is_main_process is_main main_process is_master is_master_process master_process is_rank_zero
    is_rank0 is_rank_0 is_global_zero is_world_process_zero is_world_master is_primary is_chief is_root
    is_first_rank is_global_main_process is_global_primary on_main_process is_first_worker
    is_local_main_process is_local_master is_local_primary is_local_process_zero is_local_zero
    is_master_ordinal is_coordinator is_leader is_logger_process first_rank is_master_rank is_main_rank
    is_rank_one is_head rank_zero is_zero_rank is_main_proc is_lead
    """)
TOGETHER = words("""
    distributed is_distributed use_distributed use_ddp ddp is_ddp multi_gpu multigpu distributed_run
    is_dist use_dist dist_run multiprocessing_distributed is_multi_gpu is_dist_avail_and_initialized
    dist_available is_dist_initialized is_parallel ddp_enabled enable_ddp distributed_training
    is_distributed_training is_ddp_initialized is_ddp_requested
    """)
RANK_CALLS = {
    "get_rank": "rank",
    "get_local_rank": "local rank",
    "get_world_size": "world",
    "get_global_rank": "rank",
}


def bare(name: str) -> str:
    return name.lower().strip("_")


def role_of_name(name: str) -> str:
    return ROLES.get(bare(name), "")


def who_of_name(name: str) -> Condition | None:
    """The truth of what bears this name, if the name tells it."""
    name = bare(name)
    if name in FIRST:
        return Leaf("local one" if "local" in name else "one", 0)
    return True if name in TOGETHER else None


def role_of_call(name: str) -> str:
    """Of a function that is not read."""
    return RANK_CALLS.get(bare(name), "")
