"""Answers to exercise 01."""

from tests.planted import Right, Wrong

PORT = 'port = 20000 + int(slurm["SLURM_JOB_ID"]) % 9000'

ANSWERS = [
    Wrong(
        what="The formula for equal nodes.",
        old=("for host, size in zip(hosts, sizes, strict=True)", "str(len(processes))"),
        new=(
            "for node, (host, size) in enumerate(zip(hosts, sizes, strict=True))",
            "str(node * size + local_rank)",
        ),
        told="3,4: process 3 has RANK '4', expected '3'",
    ),
    Wrong(
        what="Does not know what (x2) means.",
        old=("int(times or 1)", "strict=True"),
        new=("1", "strict=False"),
        told="2(x2),1: 3 processes are listed, expected 5",
    ),
    Wrong(
        what="Numbers in place of texts: os.environ refuses them.",
        old="str(local_rank)",
        new="local_rank",
        told="3,4: LOCAL_RANK is 0, of type int; variables are strings",
    ),
    Wrong(
        what="Two ports by turns: the next job has another one, the one after it the same.",
        old=PORT,
        new='port = 20000 + int(slurm["SLURM_JOB_ID"]) % 2',
        told="jobs 4711 and 4713 both get the port 20001",
    ),
    Wrong(
        what="The hash of a text, which Python salts in each process.",
        old=PORT,
        new='port = 20000 + hash(slurm["SLURM_JOB_ID"]) % 9000',
        told="asked for job 4711, the ranks of this run got different ports",
    ),
    Wrong(
        what="The number of the job is the port.",
        old=PORT,
        new='port = slurm["SLURM_JOB_ID"]',
        told="job 12345678 gets the port 12345678, expected a number from 1024 to 65535",
    ),
    Wrong(
        what="Each process takes a port of its own.",
        old="str(port)",
        new="str(port + len(processes))",
        told="the processes of job 4711 get 7 different ports",
    ),
    Right(
        what="A list for each process in place of a tuple.",
        old="return processes",
        new="return [list(process) for process in processes]",
    ),
]
