"""Topogate's components as processes on this machine: each under its own service account, with exactly its roles.

For the demo, benchmarks and end-to-end tests; in a cluster the Deployments of ``manifests/`` do this. A component dies
with the process that started it.
"""

import asyncio
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec
import yaml

from crds.constants import DEFAULT_DOMAIN, NAMESPACE
from kube.client import Client
from localcluster import LocalCluster
from localcluster.errors import NotReady
from localcluster.ports import Reservation
from localcluster.process import ControlPlaneProcess, log_tail, module_command, usage

TOKEN_SECONDS = 24 * 3600
READY_SECONDS = 90.0


class Components(msgspec.Struct):
    """The webhook and the ungater beside a local cluster. ``async with`` starts nothing: call ``start``."""

    cluster: LocalCluster
    client: Client  # an administrator's
    domain: str = DEFAULT_DOMAIN
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    python: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)  # component -> options of its interpreter
    _ports: Reservation | None = None
    _running: dict[str, ControlPlaneProcess] = msgspec.field(default_factory=dict)

    async def __aenter__(self) -> Self:
        # The webhook's URL goes into the installation before the webhook starts, so its port is held until then.
        self._ports = Reservation(3)
        return self

    async def __aexit__(self, *_: object) -> None:
        for component in self._running.values():
            # First a signal to all, then a wait for each: they end side by side.
            component.terminate()
        for component in self._running.values():
            await asyncio.to_thread(component.stop, 5.0)
        if self._ports is not None:
            self._ports.close()

    @property
    def webhook_url(self) -> str:
        """Where the API server reaches the webhook; known before it is started, for ``install``."""
        return f"https://127.0.0.1:{self._port(0)}"

    async def start(self, name: str) -> None:
        """Start ``webhook`` or ``ungater`` and wait until it is ready; again after ``kill``.

        Raises NotReady with the end of its log.
        """
        component = self._running.get(name) or await self._make(name)
        self._running[name] = component
        component.start()
        await self.wait_ready(name)

    async def kill(self, name: str) -> None:
        """SIGKILL."""
        await asyncio.to_thread(self._running[name].kill)

    def spawn(self, name: str) -> None:
        """Start a component that was killed, without waiting for it."""
        self._running[name].start()

    async def wait_ready(self, name: str) -> None:
        """Wait for ``/readyz``."""
        component = self._running[name]
        url = f"{self.address(name)}/readyz"
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not await asyncio.to_thread(_answers, url):
                    # A process that has died would be waited for until the timeout.
                    component.check()
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise NotReady(f"{name} was not ready within {READY_SECONDS:.0f} s:\n{log_tail(component.log)}") from error

    def address(self, name: str) -> str:
        """Where ``/healthz`` and ``/readyz`` are served, and ``/metrics`` of the ungater."""
        return f"http://127.0.0.1:{self._health_port(name)}"

    def pid(self, name: str) -> int:
        """The process id of a running component."""
        pid = self._running[name].pid
        if pid is None:
            raise ProcessLookupError(f"{name} is not running:\n{log_tail(self._running[name].log)}")
        return pid

    def cpu_seconds(self, name: str) -> float:
        """CPU time the running process has used since its start."""
        return usage(self.pid(name))[1]

    def log(self, name: str) -> Path:
        """The component's log."""
        return self.cluster.directory / "logs" / f"topogate-{name}.log"

    def _port(self, index: int) -> int:
        if self._ports is None:
            raise RuntimeError("Components is used outside of its `async with`")
        return self._ports.ports[index]

    def _health_port(self, name: str) -> int:
        return self._port(1 if name == "webhook" else 2)

    async def _make(self, name: str) -> ControlPlaneProcess:
        token = await self.client.request_token(f"topogate-{name}", NAMESPACE, TOKEN_SECONDS)
        admin = yaml.safe_load(self.cluster.kubeconfig.read_text())
        # Only the token: with the administrator's certificate beside it, a right that is missing would not show.
        config = {**admin, "users": [{"name": name, "user": {"token": token}}]}
        config["contexts"] = [
            {"name": name, "context": {"cluster": admin["clusters"][0]["name"], "user": name, "namespace": NAMESPACE}}
        ]
        config["current-context"] = name
        kubeconfig = self.cluster.directory / f"topogate-{name}.kubeconfig"
        # The mode before the token.
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(yaml.safe_dump(config))
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        env = {
            **os.environ,
            "TOPOGATE_DOMAIN": self.domain,
            "TOPOGATE_BIND_ADDRESS": "127.0.0.1",
            "TOPOGATE_HEALTH_PORT": str(self._health_port(name)),
            "TOPOGATE_METRICS_PORT": "0",
            "TOPOGATE_WEBHOOK_PORT": str(self._port(0)),
            "TOPOGATE_WEBHOOK_URL": self.webhook_url,
            "TOPOGATE_LOG_FORMAT": "json",
            **self.env,
        }
        under = self.python.get(name, ())
        command = module_command("cli.main", name, "--kubeconfig", str(kubeconfig), under=under)
        return ControlPlaneProcess(name, command, directory=Path.cwd(), log=self.log(name), env=env)


def _answers(url: str) -> bool:
    try:
        # A 503 raises HTTPError, which is a URLError: not ready.
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - a loopback URL built above
            return True
    except (urllib.error.URLError, OSError):
        return False
