"""Pods of our manifests, started out of the image: command, user, environment and volumes as they are written."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.image_root import Image
from support.ports import free_port

if TYPE_CHECKING:
    import subprocess

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
NODE = "b1-r1-h1"
Json = dict[str, Any]


class Pods:
    """Starts the containers of pods, and ends them. ``host``: folders of this machine in the place of a node's."""

    def __init__(
        self, image: Image, folder: Path, api: str, kubectl: Callable[..., str], host: Mapping[str, Path]
    ) -> None:
        self._image = image
        self._folder = folder
        self._api = api
        self._kubectl = kubectl
        self._host = host
        self._running: list[subprocess.Popen[bytes]] = []
        self.logs: dict[str, Path] = {}

    @contextmanager
    def run(self, owner: Json) -> Iterator[dict[str, str]]:
        """Run the containers of its pod: container -> the address that its readiness probe asks."""
        spec, metadata = owner["spec"]["template"]["spec"], owner["metadata"]
        fields = {"metadata.name": f"{metadata['name']}-0", "metadata.uid": "1", "spec.nodeName": NODE}
        folder = self._folder / metadata["name"]
        volumes = {
            volume["name"]: self._volume(volume, folder, metadata["namespace"], spec["serviceAccountName"])
            for volume in spec["volumes"]
        }
        if spec.get("automountServiceAccountToken", True):
            usual = {"name": "", "projected": {}}  # as the API server adds it to pods
            volumes[""] = self._volume(usual, folder, metadata["namespace"], spec["serviceAccountName"])
        probes = {}
        try:
            for container in spec["containers"]:
                probes[container["name"]] = self._start(container, spec, volumes, fields, folder)
            yield probes
        finally:
            for process in self._running:
                process.terminate()
            for process in self._running:
                process.wait(30)
            self._running.clear()

    def all_run(self) -> bool:
        return all(process.poll() is None for process in self._running)

    def _start(
        self, container: Json, spec: Json, volumes: Mapping[str, Path], fields: Mapping[str, str], folder: Path
    ) -> str:
        """Its ports are others than those that are written, as tests run beside each other."""
        ports = {port["name"]: str(free_port()) for port in container.get("ports", ())}
        ports.setdefault("metrics", "0")
        host, _, port = self._api.rpartition(":")
        environment = {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "TOPOGATE_BIND_ADDRESS": "127.0.0.1",
            **{f"TOPOGATE_{name.upper()}_PORT": value for name, value in ports.items()},
        }
        for variable in container.get("env", ()):
            found = variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            environment[variable["name"]] = found
        written = {
            f"--port={each['containerPort']}": f"--port={ports[each['name']]}" for each in container.get("ports", ())
        }
        written |= {"--health-port=8081": f"--health-port={ports.get('health')}"}
        arguments = [written.get(argument, argument) for argument in container.get("args", ())]
        mounts = [
            (mount["mountPath"], str(volumes[mount["name"]]), mount.get("readOnly", False))
            for mount in container["volumeMounts"]
        ]
        if "" in volumes:
            mounts.append((ACCOUNT, str(volumes[""]), True))
        self.logs[container["name"]] = folder / f"{container['name']}.log"
        context = spec["securityContext"]
        self._running.append(
            self._image.start(
                [*container.get("command", self._image.entry_point), *arguments],
                user=(context["runAsUser"], context["runAsGroup"]),
                environment=environment,
                log=self.logs[container["name"]],
                mounts=mounts,
            )
        )
        probe = container.get("readinessProbe", {}).get("httpGet", {})
        return f"http://127.0.0.1:{ports[probe['port']]}{probe['path']}" if probe else ""

    def _volume(self, volume: Json, folder: Path, namespace: str, account: str) -> Path:
        if "hostPath" in volume:
            return self._host[volume["hostPath"]["path"]]
        made = folder / "volumes" / (volume["name"] or "account")
        made.mkdir(parents=True)
        if "projected" in volume:
            (made / "token").write_text(self._kubectl("create", "token", account, "-n", namespace))
            authority = "jsonpath={.data.ca\\.crt}"
            (made / "ca.crt").write_text(
                self._kubectl("get", "cm", "kube-root-ca.crt", "-n", namespace, "-o", authority)
            )
            (made / "namespace").write_text(namespace)
        if "configMap" in volume:
            name, settings = volume["configMap"]["name"], "jsonpath={.data.config\\.yaml}"
            text = self._kubectl("get", "cm", name, "-n", namespace, "--ignore-not-found", "-o", settings)
            assert text or volume["configMap"].get("optional"), name
            if text:
                (made / "config.yaml").write_text(text)
        return made
