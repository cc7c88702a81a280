"""Ports for servers that a test or a measurement starts, stops and starts again."""

import os
import socket
from itertools import count

# Below the ports that the system hands out (from 32768): by the time a server is up, one of those may be another's.
_FIRST, _PORTS = 20_000, 12_000
_numbers = count(os.getpid() * 97)  # processes side by side begin far from each other


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens at."""
    while True:
        port = _FIRST + next(_numbers) % _PORTS
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
