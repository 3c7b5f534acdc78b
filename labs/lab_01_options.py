"""The options of torchrun that this course uses, with the spelling and defaults of the installed torch.

Run it:      python labs/lab_01_options.py
Written by:  notebooks/01_topology.ipynb
"""

import os

from torch.distributed.run import get_args_parser

from shared.runtime.errors import CourseError
from shared.runtime.run import run

MEANING = {
    "--nnodes": "number of nodes, or MIN:MAX (lesson 13)",
    "--nproc-per-node": "processes on this node: a number, or gpu, cpu, auto",
    "--standalone": "one node, a free port: no other rendezvous option is needed",
    "--node-rank": "group rank of this node; only with static rendezvous",
    "--master-addr": "address of node 0; only with static rendezvous",
    "--master-port": "port on node 0, on several nodes 29500 if not given; only with static rendezvous",
    "--rdzv-backend": "how the agents meet: static or c10d",
    "--rdzv-endpoint": "HOST:PORT where they meet with c10d",
    "--rdzv-id": "name of the job, the same for all its agents",
    "--local-addr": "this node's address, instead of its host name",
    "--max-restarts": "how often all ranks are started again after a failure (lesson 13)",
    "--monitor-interval": "seconds between two looks at the ranks",
    "--role": "a name for these ranks; ROLE_RANK counts within it",
    "--log-dir": "folder for the ranks' output, with --redirects or --tee",
    "--redirects": "3 sends both streams of every rank to files",
    "--tee": "3 does so and prints them too, marked with the local rank",
    "--local-ranks-filter": "only these local ranks print to the terminal",
}


def shown(default: object) -> str:
    """The default of an option, as the table shows it."""
    if default is None or default == "":
        return "-"
    if default is False:
        return "off"
    return str(default)


def processes_per_node(*arguments: str) -> str:
    """What torchrun would take for --nproc-per-node, given these arguments and the environment as it is."""
    return get_args_parser().parse_args([*arguments, "train.py"]).nproc_per_node


def main() -> None:
    for name in list(os.environ):
        if name.startswith("PET_"):
            del os.environ[name]  # torchrun takes defaults from these
    actions = {}
    for action in get_args_parser()._actions:
        for spelling in action.option_strings:
            actions[spelling] = action
    for option, meaning in MEANING.items():
        if option not in actions:
            raise CourseError(f"torchrun has no option {option} any more")
        underscores = "--" + option.removeprefix("--").replace("-", "_")
        if actions.get(underscores) is not actions[option]:
            raise CourseError(f"torchrun does not accept {underscores} for {option} any more")
        print(f"{option:21} {shown(actions[option].default):10} {meaning}")

    os.environ["PET_NPROC_PER_NODE"] = "4"
    if (processes_per_node(), processes_per_node("--nproc-per-node=2")) != ("4", "2"):
        raise CourseError("PET_NPROC_PER_NODE does not change the default of --nproc-per-node alone")
    print(f"{len(MEANING)} options; underscores are accepted too; PET_NPROC_PER_NODE=4 changes a default")


if __name__ == "__main__":
    run(main)
