"""A port that nobody listens on. Taught in lesson 01."""

import socket


def free_port() -> int:
    """A TCP port of this machine that is free now, and that Linux hands to nobody else for a minute.

    A port that was merely found free may be given away before it is used. So we let one connection
    end on it: it then rests in TIME_WAIT, in which only a server that names it can take it (tcp(7)).
    """
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()  # the side that closes first is the one that waits
        return port
