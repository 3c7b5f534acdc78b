"""``warm_torchrun.py TORCHRUN ARGUMENTS``: ask the server of tests/warm_notebooks.py, else be torchrun."""

import json
import os
import socket
import sys


def ask(arguments: list[str]) -> dict:
    question = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["RANK_BY_RANK_WARM"])
        connection.sendall((json.dumps(question) + "\n").encode())
        return json.loads(connection.makefile(encoding="utf-8").readline())


torchrun, *rest = sys.argv[1:]
answer = ask(rest)
if not answer["warm"]:
    os.execv(torchrun, [torchrun, *rest])
sys.stdout.write(answer["output"])
