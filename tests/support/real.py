"""A supervised local cluster with real kubelets, what their own files say, and ``topogate agent`` beside one."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from support.agents import ACCOUNT, FAST, NAMESPACE
from support.jobs import until
from support.ports import free_port

from kube.client import Client
from kube.errors import NotFound
from kube.resources import FLEX_TOPOS, NODE_RESOURCE_TOPOLOGIES, PODS
from localcluster import Options, pki, supervisor
from localcluster.commands import ClusterLayout
from localcluster.kubelets.hardware import parse_cpu_list
from localcluster.kubelets.specs import build, parse_machine
from localcluster.options import real_name
from localcluster.real.layout import NodeFolder, node_folder

START_SECONDS = 120.0
FINISHED = ("Succeeded", "Failed")
# Written by somebody else all the time.
VOLATILE = ("kernel/random", "kernel/ns_last_pid", "kernel/pty", "fs/")
Json = dict[str, Any]


@contextmanager
def supervised(folder: Path) -> Iterator[Path]:
    """A cluster that its supervisor keeps up, as ``topogate local up`` leaves it."""
    supervisor.start(folder, Options(), progress=lambda _: None, timeout=START_SECONDS)
    try:
        yield folder
    finally:
        supervisor.stop(folder)


def layout(folder: Path) -> ClusterLayout:
    return supervisor.layout(folder)


def pid(folder: Path, kind: str, node: str) -> int | None:
    """The process id of a node's runtime or kubelet."""
    state = supervisor.running(folder)
    return state.pids.get(real_name(kind, node)) if state else None


def host() -> dict[str, str]:
    """Kernel settings and mounts of this machine, and whether it has a kubelet's folders."""
    found = {"mounts": Path("/proc/self/mountinfo").read_text()}
    for file in sorted(Path("/proc/sys").rglob("*")):
        name = str(file.relative_to("/proc/sys"))
        if not name.startswith(VOLATILE) and file.is_file():
            try:
                found[name] = file.read_text()
            except OSError:  # those that may only be written
                continue
    for path in ("/var/lib/kubelet", "/var/log/containers", "/var/log/pods", "/etc/kubernetes"):
        found[path] = str(sorted(map(str, Path(path).rglob("*"))) if Path(path).exists() else None)
    return found


def held(folder: NodeFolder) -> Json:
    """What the kubelet's own files say that containers hold: CPUs, memory, devices; and what is free of CPUs."""
    return _held(folder, lambda _: True)


def _held(folder: NodeFolder, alive: Callable[[str], bool]) -> Json:
    """Of the pods that are ``alive``: the kubelet drops what others held only before it admits the next one."""
    cpu = json.loads((folder.kubelet / "cpu_manager_state").read_text())
    memory = json.loads((folder.kubelet / "memory_manager_state").read_text())
    checkpoint = json.loads((folder.device_plugins / "kubelet_internal_checkpoint").read_text())
    blocks = {
        (pod, name, block["type"]): (block["numaAffinity"], block["size"])
        for pod, each in (memory.get("entries") or {}).items()
        for name, found in each.items()
        for block in found
    }
    return {
        "free": cpu["defaultCpuSet"],
        "cpus": {
            (pod, name): cpus
            for pod, each in (cpu.get("entries") or {}).items()
            for name, cpus in each.items()
            if alive(pod)
        },
        "memory": {each: block for each, block in blocks.items() if alive(each[0])},
        "zones": {
            int(zone): _zone(int(zone), state, [block for each, block in blocks.items() if not alive(each[0])])
            for zone, state in memory["machineState"].items()
        },
        "devices": {
            device: (entry["PodUID"], int(zone))  # an init container's may be the next container's too
            for entry in checkpoint["Data"]["PodDeviceEntries"] or ()
            for zone, devices in entry["DeviceIDs"].items()
            for device in devices
            if alive(entry["PodUID"])
        },
    }


def _zone(zone: int, state: Json, dropped: list[tuple[list[int], int]]) -> tuple[int, list[int], int]:
    """How many hold memory of the zone, of what group it is, and what is free, without what is dropped."""
    own = [size for zones, size in dropped if zones == [zone]]
    assert len(own) == len([zones for zones, _ in dropped if zone in zones]), "of one zone each, in these tests"
    return (
        state["numberOfAssignments"] - len(own),
        sorted(state["cells"]),
        state["memoryMap"]["memory"]["free"] + sum(own),
    )


def told(flex_topo: Json) -> Json:
    """The same of a FlexTopo."""
    status = flex_topo.get("status", {})
    cpus, memory = status.get("cpus", {}), status.get("memory", {})
    return {
        "free": cpus.get("defaultSet"),
        "cpus": {(each["podUid"], each["container"]): each["cpus"] for each in cpus.get("assignments", ())},
        "memory": {
            (each["podUid"], each["container"], each["type"]): (each["zones"], each["size"])
            for each in memory.get("assignments", ())
        },
        "zones": {
            each["zone"]: (
                each.get("assignments", 0),
                each["cells"],
                *(amount["free"] for amount in each["amounts"] if amount["type"] == "memory"),
            )
            for each in memory.get("zones", ())
        },
        "devices": {
            device["id"]: (device["usedBy"]["podUid"], *device["zones"])
            for resource in status.get("devices", ())
            for device in resource["devices"]
            if "usedBy" in device
        },
    }


def left(folder: NodeFolder, files: Json) -> dict[str, dict[str, str]]:
    """What each zone has left by the kubelet's files, as a NodeResourceTopology tells it."""
    node = folder.node()
    hardware = build(parse_machine(node.machine), node.name)
    free = parse_cpu_list(files["free"]) & ~hardware.reserved_cpus
    return {
        f"node-{zone.id}": {
            "cpu": str((free & cpus).bit_count()),
            "memory": str(files["zones"][zone.id][2]),
            **{
                resource: str(sum(zone.id in each.zones and each.id not in files["devices"] for each in devices))
                for resource, devices in hardware.devices.items()
            },
        }
        for zone, cpus in zip(hardware.zones, hardware.zone_cpus, strict=True)
    }


async def _available(client: Client, node: str) -> dict[str, dict[str, str]]:
    zones = (await client.get(NODE_RESOURCE_TOPOLOGIES, node))["zones"]
    return {zone["name"]: {each["name"]: each["available"] for each in zone["resources"]} for zone in zones}


async def agrees(client: Client, folder: NodeFolder, what: str) -> Json:
    """Wait until the node's FlexTopo is ready, and it and NodeResourceTopology say what the kubelet's files say.

    Returns that.
    """
    conditions: list[Json] = []
    found: Json = {}

    async def equal() -> bool:
        found.clear()
        try:
            flex_topo = await client.get(FLEX_TOPOS, folder.root.name)
            available = await _available(client, folder.root.name)
        except NotFound:
            return False
        pods = await client.list(PODS, field_selector=f"spec.nodeName={folder.root.name}")
        alive = {pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") not in FINISHED}
        files = _held(folder, alive.__contains__)
        found.update(told(flex_topo) | {"left": available}, files=files | {"left": left(folder, files)})
        conditions[:] = flex_topo.get("status", {}).get("conditions", ())
        ready = any(each["status"] == "True" for each in conditions)
        return ready and {key: value for key, value in found.items() if key != "files"} == found["files"]

    try:
        await until(equal, f"what is published to be what the kubelet holds, {what}")
    except AssertionError as error:
        log = (folder.root.parents[1] / "logs" / f"agent-{folder.root.name}.log").read_text()[-2000:]
        raise AssertionError(f"{error}: {found}, {conditions}\n{log}") from None
    files: Json = found["files"]
    return files


@asynccontextmanager
async def agent_beside(cluster: Path, client: Client, node: str, **settings: Any):
    """``topogate agent`` over the real kubelet's files, with nothing but its service account's token."""
    folder = node_folder(cluster, node)
    token = await client.request_token(ACCOUNT, NAMESPACE, 3600)
    environment = {
        **os.environ,
        "KUBECONFIG": "",
        "TOPOGATE_AGENT_SYSFS": str(folder.sysfs),
        "TOPOGATE_AGENT_PROC": str(folder.procfs),
        "TOPOGATE_AGENT_KUBELET_DIRECTORY": str(folder.kubelet),
        "TOPOGATE_BIND_ADDRESS": "127.0.0.1",
        **{f"TOPOGATE_{name.upper()}": str(value) for name, value in (FAST | settings).items()},
    }
    kubeconfig = write_token(cluster, token, node)
    options = ("--node", node, "--kubeconfig", str(kubeconfig), "--health-port", str(free_port()))
    command = (sys.executable, "-m", "cli.main", "agent", *options)
    with (cluster / "logs" / f"agent-{node}.log").open("ab") as log:
        made = await asyncio.create_subprocess_exec(*command, env=environment, stderr=log, stdout=log)
    try:
        yield made
    finally:
        if made.returncode is None:
            made.kill()
        await made.wait()


def write_token(cluster: Path, token: str, name: str) -> Path:
    found = layout(cluster)
    config = pki.kubeconfig(found.api_url, (found.pki / "ca.crt").read_bytes(), token, name)
    path = cluster / f"token-{name}.kubeconfig"
    path.write_text(json.dumps(config))
    return path
