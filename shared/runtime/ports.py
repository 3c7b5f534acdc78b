"""Ports of this machine: free ones, and whether one is taken. Taught in lesson 02."""

import socket

HERE = "127.0.0.1"


def free_port() -> int:
    """A TCP port of this machine that is free now, and that Linux hands to nobody else for a minute.

    A port that was merely found free may be given away before it is used. So we let one connection
    end on it: it then rests in TIME_WAIT, in which only a server that names it can take it (tcp(7)).
    """
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HERE, 0))
        server.listen(1)
        port = server.getsockname()[1]
        with socket.create_connection((HERE, port)):
            server.accept()[0].close()  # the side that closes first is the one that waits
        return port


def free_ports(count: int) -> list[int]:
    """Different ports, each as ``free_port`` gives it."""
    return [free_port() for _ in range(count)]


def is_taken(port: int) -> bool:
    """Whether a process listens on ``port``. It sees a connection that closes at once."""
    with socket.socket() as client:
        return client.connect_ex((HERE, port)) == 0
