"""The control plane as one object.

>>> with LocalCluster() as cluster:  # doctest: +SKIP
...     subprocess.run([cluster.kubectl, "--kubeconfig", cluster.kubeconfig, "get", "nodes"])

Order of start: etcd, then the API server, then everything else at once; of stop: the reverse. All calls block; from
asyncio use ``asyncio.to_thread``. Whatever ends this process ends the components too (``localcluster.process``).
"""

import base64
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from clock import SYSTEM, Clock
from localcluster import health, kwok, pki
from localcluster.commands import ClusterLayout, command
from localcluster.errors import NotReady
from localcluster.health import ComponentStatus
from localcluster.kubelets import service
from localcluster.kubelets.fleet import Publishing
from localcluster.options import (
    API_SERVER,
    COMPONENTS,
    CONTROLLER_MANAGER,
    ETCD,
    KUBELETS,
    KWOK,
    REAL_KINDS,
    SCHEDULER,
    Options,
    real_name,
)
from localcluster.ports import Reservation
from localcluster.process import ControlPlaneProcess
from localcluster.programs.binaries import Binaries
from localcluster.programs.build import KUBELET
from localcluster.real import service as real
from localcluster.real.layout import RealNode

PORTS_FILE = "ports.json"
PORT_NAMES = (*COMPONENTS, "etcd-peer")
START_SECONDS = 90.0
GRACE_SECONDS: Mapping[str, float] = {API_SERVER: 5.0}
DEFAULT_GRACE_SECONDS = 2.0
POLL_SECONDS = 0.03
GARBAGE_PERCENT = "200"  # GOGC of all components: an eighth of their CPU for memory; at 400 an API server came to 3 GB

Progress = Callable[[str], None]


class LocalCluster:
    """etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK on ports of the loopback interface.

    The folder holds certificates, logs, etcd's data and is private to its owner. A folder of a cluster that was stopped
    before is taken up again with all its objects; a temporary one (the default) is removed by ``stop``.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        options: Options | None = None,
        binaries: Binaries | None = None,
        progress: Progress | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Nothing starts before ``up``. ``progress`` is told what is being waited for."""
        self._temporary = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="topogate-local-")).absolute()
        self.options = options or Options()
        self._progress = progress or (lambda _: None)
        self._binaries = binaries
        self._clock = clock
        self._reservation: Reservation | None = None
        self._layout: ClusterLayout | None = None
        self._components: dict[str, ControlPlaneProcess] = {}

    @classmethod
    def launch(cls, directory: Path | str | None = None, *, timeout: float = START_SECONDS, **arguments: Any) -> Self:
        """Construct and bring up in one call; arguments as for the constructor."""
        cluster = cls(directory, **arguments)
        cluster.up(timeout)
        return cluster

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # What clients need

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of an administrator (group system:masters)."""
        return self._require_layout().kubeconfig("admin")

    @property
    def api_url(self) -> str:
        """URL of the API server."""
        return self._require_layout().api_url

    @property
    def ca_pem(self) -> bytes:
        """The authority that signed the API server's certificate."""
        return (self._require_layout().pki / "ca.crt").read_bytes()

    @property
    def kubectl(self) -> Path:
        """The kubectl of the same version."""
        return self._require_layout().programs["kubectl"]

    def token_kubeconfig(self, token: str, name: str) -> Path:
        """Write a kubeconfig for the bearer of ``token`` (a service account's, say) and return its path."""
        path = self._require_layout().pki / f"token-{name}.kubeconfig"
        config = pki.kubeconfig(self.api_url, self.ca_pem, token, name)
        pki.write_private(path, yaml.safe_dump(config, sort_keys=False).encode())
        return path

    def dead(self) -> list[str]:
        """Components that have ended by themselves or were killed."""
        return [name for name, component in self._components.items() if component.pid is None]

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the components that run."""
        return {name: c.pid for name, c in self._components.items() if c.pid is not None}

    # The whole

    def up(self, timeout: float = START_SECONDS) -> None:
        """Start everything and wait until pods can be created and scheduled; building does not count as waiting.

        Raises ComponentFailed (with the end of the log) where a component dies, NotReady at the deadline, and
        BinariesMissing. Whatever was started is stopped again then.
        """
        try:
            # Before the deadline is set: programs may have to be built first, which takes minutes.
            self._prepare()
            deadline = self._clock.monotonic() + timeout
            for group in ((ETCD,), (API_SERVER,), (CONTROLLER_MANAGER, SCHEDULER, KWOK)):
                self._progress(f"starting {', '.join(group)}")
                if KWOK in group:
                    # After the API server is ready and before KWOK starts: without its role KWOK's first requests are
                    # forbidden.
                    kwok.prepare(health.api(self._require_layout()))
                for name in group:
                    self._components[name].start()
                self._wait(group, deadline)
            self._wait_for_default_account(deadline)
        except BaseException:
            # Also after Ctrl-C: components in sessions of their own do not get it.
            self.stop()
            raise

    def stop(self, name: str | None = None) -> None:
        """Stop one component, or everything in reverse order; a temporary folder goes too. Gentle, then by force."""
        if name is not None:
            self._component(name).stop(GRACE_SECONDS.get(name, DEFAULT_GRACE_SECONDS))
            return
        # KWOK before the API server: a client that loses its server logs errors until it ends.
        for component in reversed(self._components.values()):
            if self._temporary:  # nobody will read its data again
                component.kill()
            else:
                component.stop(GRACE_SECONDS.get(component.name, DEFAULT_GRACE_SECONDS))
        if self._reservation is not None:
            self._reservation.close()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def is_ready(self) -> bool:
        """Whether every component runs and says that it is ready."""
        return bool(self._components) and all(status.state == "Ready" for status in self.status())

    def status(self) -> list[ComponentStatus]:
        """State, memory and CPU of every component."""
        return health.statuses(self._require_layout(), self.pids)

    def play_kubelets(self, publishing: Publishing | None = None, timeout: float = START_SECONDS) -> None:
        """Play the kubelets of all simulated machines (``Fleet.machine``), now and those to come.

        Returns when those that are there are taken over. Raises ComponentFailed where the process ends, or is not
        ready in time. Nothing happens where it runs already.
        """
        layout = self._require_layout()
        if (running := self._components.get(KUBELETS)) is not None and running.pid is not None:
            return
        publishing = publishing or Publishing()
        # Before the start: a supervisor that takes over the folder starts the same kubelets again.
        service.remember(self.directory, publishing)
        # Kubelets that publish a kind which is not there would try again each second.
        if publishing.nrt:
            service.install(health.api(layout))
        made = service.component(self.directory, layout.kubeconfig(KWOK), publishing, self._environment())
        self._components[KUBELETS] = made
        made.start()
        deadline = self._clock.monotonic() + timeout
        while not service.is_ready(self.directory):
            made.check()
            if self._clock.monotonic() > deadline:
                raise made.failure("did not become ready in time")
            time.sleep(POLL_SECONDS)

    def run_kubelets(self, nodes: Sequence[RealNode], timeout: float = START_SECONDS) -> None:
        """Have real kubelets run as these nodes and no others; returns when all nodes are ready.

        One that is there and described otherwise is made anew, one that is not wanted any more goes. Raises
        KubeletsRefused where the system or a name does not allow it, ComponentFailed, Refused, OSError, ValueError.
        """
        layout = self._require_layout()
        api = health.api(layout)
        # Before anything is removed: a refusal leaves the nodes as they are.
        real.check(api, nodes)
        # Nodes that go come first, because one that is described otherwise has the same folder and the same names.
        for node in real.existing(layout.root):
            if node not in nodes:
                for name in (real_name(kind, node.name) for kind in reversed(REAL_KINDS)):
                    if (component := self._components.pop(name, None)) is not None:
                        component.stop(DEFAULT_GRACE_SECONDS)
                real.forget(layout, api, node.name)
        new = [node for node in nodes if real_name(REAL_KINDS[0], node.name) not in self._components]
        binaries = Binaries.find([KUBELET], progress=self._progress) if new else Binaries({})
        for node in new:
            real.prepare(layout, node, self._clock)
        for component in real.components(layout, new, self._environment(), binaries):
            self._components[component.name] = component
        # After the programs are found, which may take minutes.
        deadline = self._clock.monotonic() + timeout
        # All runtimes before the first kubelet: a kubelet ends when it finds no runtime at its socket.
        for kind in REAL_KINDS:
            names = [real_name(kind, node.name) for node in nodes]
            for name in names:
                self._components[name].start()
            self._wait(names, deadline)

    # One component: stop(name) is above

    def kill(self, name: str) -> None:
        """SIGKILL one component; returns when the process is gone."""
        self._component(name).kill()

    def start(self, name: str, timeout: float = START_SECONDS) -> None:
        """Start one component that was stopped or killed, and wait until it is ready."""
        component = self._component(name)
        if name == KUBELETS:
            self.play_kubelets(service.wanted(self.directory), timeout)
            return
        # Only after a start before: a new KWOK has another identity, and would wait until the leases of the dead one
        # expire.
        if name == KWOK and component.pid is None and component.exit_status is not None:
            kwok.forget_leases(health.api(self._require_layout()))
        component.start()
        self._wait([name], self._clock.monotonic() + timeout)

    def restart(self, name: str, timeout: float = START_SECONDS) -> None:
        """Stop one component gently and start it again."""
        self.stop(name)
        self.start(name, timeout)

    def compact_etcd(self) -> int:
        """Throw away etcd's history up to now and return the revision (a resourceVersion) compacted to.

        The API server answers watches and lists of most resources from its own cache, which a compaction does not
        touch: to see 410, name the resource in ``Options.uncached``, or restart the API server.
        """
        etcd = health.etcd(self._require_layout())
        # A write of its own makes every revision that anybody has seen an old one, even where nothing else happens.
        mark = {"key": base64.b64encode(b"compact").decode(), "value": ""}
        revision = int(json.loads(etcd.request("POST", "/v3/kv/put", mark))["header"]["revision"])
        etcd.request("POST", "/v3/kv/compaction", {"revision": str(revision), "physical": True})
        return revision

    # How it is done

    def _prepare(self) -> None:
        """Folder, ports, certificates and command lines; takes up what an earlier run left."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A folder that was there may have other rights, and private keys go into it.
        self.directory.chmod(0o700)
        (self.directory / "logs").mkdir(exist_ok=True)
        binaries = self._binaries or Binaries.find(progress=self._progress)
        # Ports are reserved before the certificates and command lines that name them: those of the
        # time before, where they are still free, so that kubeconfigs in use stay right.
        known = self.directory / PORTS_FILE
        preferred = json.loads(known.read_text()).values() if known.exists() else ()
        self._reservation = Reservation(len(PORT_NAMES), preferred)
        ports = dict(zip(PORT_NAMES, self._reservation.ports, strict=True))
        # Written on each start, because a port that was taken meanwhile is replaced by another.
        known.write_text(json.dumps(ports))
        layout = self._layout = ClusterLayout(self.directory, binaries.paths, ports)
        complete = layout.pki / "complete"
        # The mark is written last: a folder whose certificates are complete keeps them, so that kubeconfigs in use stay
        # valid.
        if complete.exists():
            for user in pki.USERS:
                pki.rewrite_server(layout.kubeconfig(user), layout.api_url)
        else:
            pki.write_all(layout.pki, layout.api_url, self._clock.utc())
            complete.touch()
        self._components = {
            name: ControlPlaneProcess(
                name,
                command(name, layout, self.options),
                directory=self.directory,
                log=layout.log(name),
                env=self._environment(),
            )
            for name in COMPONENTS
        }

    def _environment(self) -> dict[str, str]:
        folder = str(self.directory)
        return {"HOME": folder, "PATH": "/usr/bin:/bin", "TMPDIR": folder, "GOGC": GARBAGE_PERCENT}

    def _wait(self, names: Sequence[str], deadline: float) -> None:
        layout = self._require_layout()
        pending = [self._component(name) for name in names]
        while pending:
            for component in pending:
                # A component that died fails the wait at once, with its log, and not as a missed deadline.
                component.check()
            pending = [component for component in pending if not health.is_ready(component.name, layout)]
            if pending and self._clock.monotonic() > deadline:
                raise pending[0].failure("did not become ready in time")
            time.sleep(POLL_SECONDS if pending else 0)

    def _wait_for_default_account(self, deadline: float) -> None:
        """Pods are refused before it exists."""
        api = health.api(self._require_layout())
        while not api.is_ok("/api/v1/namespaces/default/serviceaccounts/default"):
            if self._clock.monotonic() > deadline:
                raise NotReady("the controller manager made no default service account; see its log in the folder logs")
            time.sleep(POLL_SECONDS)

    def _component(self, name: str) -> ControlPlaneProcess:
        with suppress(KeyError):
            return self._components[name]
        self._require_layout()
        raise ValueError(f"no component {name!r}; there are {', '.join(COMPONENTS)}")

    def _require_layout(self) -> ClusterLayout:
        if self._layout is None:
            raise NotReady("the cluster is not up: call up() first")
        return self._layout
