"""Free ports of this machine. Taught in lesson 02."""

import socket

HERE = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Different ports that nobody holds at this moment. Somebody else may take one before you do."""
    servers = [socket.create_server((HERE, 0)) for _ in range(count)]  # for port 0 the kernel chooses one
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def is_taken(port: int) -> bool:
    """Whether a process listens on ``port``. It sees a connection that closes at once."""
    with socket.socket() as client:
        return client.connect_ex((HERE, port)) == 0
