"""Listening sockets as our servers need them."""

import socket


def listen(host: str, port: int) -> socket.socket:
    """Answers leave at once. asyncio sees to that only for sockets that name their protocol, which
    Python's own `create_server` does not: each answer would wait 40 ms for an acknowledgement."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener
