"""The options of torchrun that this course uses, with the spelling and defaults of the installed torch.

Run it:      python labs/lab_01_options.py
Written by:  notebooks/01_topology.ipynb
"""

import os

from torch.distributed.run import get_args_parser

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


def main() -> None:
    for name in [name for name in os.environ if name.startswith("PET_")]:
        del os.environ[name]  # torchrun takes defaults from these
    parser = get_args_parser()
    actions = {spelling: action for action in parser._actions for spelling in action.option_strings}
    for option, meaning in MEANING.items():
        default = actions[option].default  # KeyError: torchrun has no such option any more
        shown = "-" if default is None or default == "" else "off" if default is False else default
        print(f"{option:21} {shown!s:10} {meaning}")
        underscores = "--" + option[2:].replace("-", "_")
        assert actions[underscores] is actions[option], f"{underscores} is no longer accepted"

    os.environ["PET_NPROC_PER_NODE"] = "4"
    assert get_args_parser().parse_args(["train.py"]).nproc_per_node == "4"
    assert get_args_parser().parse_args(["--nproc-per-node=2", "train.py"]).nproc_per_node == "2"
    print(f"{len(MEANING)} options; underscores are accepted too; PET_NPROC_PER_NODE=4 changes a default")


if __name__ == "__main__":
    main()
