"""``python -m localcluster.real FOLDER``: the container runtime and the device plugins of one node with a real kubelet.

FOLDER is the node's (``layout``). Devices whose ids its file ``unhealthy`` names, one a line, are told as unhealthy.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import grpc
import structlog

from clock import SYSTEM, Clock
from localcluster.kubelets.specs import build, parse_machine
from localcluster.real.containers import Runtime
from localcluster.real.layout import NodeFolder
from localcluster.real.serving import DevicePlugin, serve_runtime

LOOK_SECONDS = 0.25
TOLD_SECONDS = 5.0
log = structlog.get_logger()


class Plugins:
    """Registers every plugin with each kubelet that starts, and tells it which devices are sick."""

    def __init__(self, folder: NodeFolder) -> None:
        node = folder.node()
        self._folder = folder
        devices = build(parse_machine(node.machine), node.name).devices
        self._plugins = [DevicePlugin(name, each, folder.device_plugins) for name, each in devices.items()]
        self._known = ""
        folder.registered.unlink(missing_ok=True)

    def register_sockets(self) -> None:
        """Once: a kubelet makes its socket anew when it starts, and clears the plugins' away."""
        sick: frozenset[str] = frozenset()
        with suppress(FileNotFoundError):
            sick = frozenset(self._folder.unhealthy.read_text().split())
        for each in self._plugins:
            each.set_sick(sick)
        # "" is a kubelet that has not started yet.
        if (found := self._folder.life()) in {"", self._known}:
            return
        try:
            for each in self._plugins:
                # Before it registers: the kubelet connects to this socket as soon as it has the registration.
                each.serve()
                each.register()
        except grpc.RpcError as error:  # it has gone again, or does not listen yet
            log.info("the kubelet does not take device plugins yet", error=str(error))
            return
        # Only then the devices count. A kubelet that took the registration may still end before it asks for them.
        if all(each.wait_told(TOLD_SECONDS) for each in self._plugins):
            self._folder.registered.write_text(found)
            # Last: a start that did not get all plugins is tried again at the next look.
            self._known = found

    def close(self) -> None:
        """Stop them all."""
        for each in self._plugins:
            each.close()


def main(clock: Clock = SYSTEM) -> None:
    """Exit status 0 after SIGTERM."""
    os.chdir(sys.argv[1])
    folder = NodeFolder(Path())  # sockets' paths are short from here, wherever the folder is
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    plugins = Plugins(folder)
    server = serve_runtime(Runtime(folder.records, clock), folder.runtime_socket)
    while not ended.wait(LOOK_SECONDS):
        plugins.register_sockets()
    plugins.close()
    server.stop(None).wait()


if __name__ == "__main__":
    main()
