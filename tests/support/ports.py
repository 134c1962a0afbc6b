"""Free ports of the loopback interface."""

import socket


def free_port():
    """One that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
