"""What the agent publishes of a kubelet's state, the engine reads back whole: on the recorded kubelets' states."""

import gzip
import json

import msgspec
import pytest
from support.tree import DATA

from agent import graph, status, zones
from agent.kubelet.checkpoints import (
    CheckpointBlock,
    Config,
    Cpu,
    DeviceEntry,
    Devices,
    MemoryCheckpoint,
    MemoryNode,
    MemoryTable,
)
from agent.kubelet.held import KubeletPod, KubeletReading, merge
from agent.machine import cpuset
from agent.machine.gpus import Gpus
from agent.machine.hardware import Hardware, MachineCore, MachineZone
from agent.podresources.client import GrantedResources, PodResources
from cli.whatif.forms import PodForm
from cli.whatif.machines import pod_shape
from crds.kinds.flex_topo import FlexTopo as Kind
from engine.kubelet.admit import admit
from engine.kubelet.machine import MemoryCells
from kube.connection.answers import decode
from kube.patches import encode
from kube.topologies import FlexTopo as Wire
from kube.topologies import WholeFlexTopo
from ungater.numa.sources.checked import Problems
from ungater.numa.sources.flex_topo import machine_of

STEP = 10  # every tenth of 2,000 cases: a few seconds


def cases():
    with gzip.open(DATA / "numa.jsonl.gz") as file:
        return [json.loads(line) for at, line in enumerate(file) if at % STEP == 0]


def hardware_of(machine):
    ids = [zone["id"] for zone in machine["numa"]]
    return Hardware(
        zones=tuple(
            MachineZone(
                zone["id"],
                frozenset(cpu for core in zone["cores"] for cpu in core),
                zone["memory_bytes"],
                {"hugepages-1Gi": zone["hugepages_1gi"] << 30} if zone.get("hugepages_1gi") else {},
                dict(zip(ids, zone["distances"], strict=True)),
            )
            for zone in machine["numa"]
        ),
        cores=tuple(
            MachineCore(tuple(core), zone["id"], zone["socket"], cache)
            for zone in machine["numa"]
            for core, cache in zip(zone["cores"], zone.get("uncore") or [None] * len(zone["cores"]), strict=True)
        ),
    )


def reading_of(case, hardware):
    """The kubelet's files, as they would be for the state of the case."""
    machine, kubelet, state = case["machine"], case["kubelet"], case["state"]
    containers = [(pod["pod"], found) for pod in state["running"] for found in pod["containers"]]
    reserved = cpuset.parse(machine["reserved_cpus"])
    cpus, memory, entries = {}, {}, []
    for uid, found in containers:
        if found.get("cpuset"):
            cpus.setdefault(uid, {})[found["name"]] = cpuset.parse(found["cpuset"])
        blocks = tuple(
            CheckpointBlock(tuple(each["numa"]), each["type"], each["size"]) for each in found.get("memory") or ()
        )
        if blocks:
            memory.setdefault(uid, {})[found["name"]] = blocks
        for resource, ids in (found.get("devices") or {}).items():
            place = {each["id"]: each["numa"] or [-1] for each in machine["devices"][resource]}
            by_zone = {}
            for name in ids:
                for zone in place[name]:
                    by_zone.setdefault(zone, []).append(name)
            by_zone = {zone: tuple(names) for zone, names in by_zone.items()}
            entries.append(DeviceEntry(uid, found["name"], resource, by_zone))
    static = kubelet.get("cpu_manager_policy") == "static"
    whole = kubelet.get("memory_manager_policy") == "Static"
    healthy = {
        resource: {each["id"]: tuple(each["numa"] or ()) for each in devices if each["healthy"]}
        for resource, devices in machine["devices"].items()
    }
    return KubeletReading(
        config=Config(
            topology_manager_policy=kubelet["topology_manager_policy"],
            topology_manager_scope=kubelet["topology_manager_scope"],
            topology_manager_policy_options=kubelet.get("topology_manager_policy_options"),
            cpu_manager_policy=kubelet.get("cpu_manager_policy", "none"),
            cpu_manager_policy_options=kubelet.get("cpu_manager_policy_options"),
            memory_manager_policy=kubelet.get("memory_manager_policy", "None"),
        ),
        cpu=Cpu(
            "static" if static else "none", cpuset.parse(state["free_cpus"]) | reserved if static else frozenset(), cpus
        ),
        memory=MemoryCheckpoint("Static" if whole else "None", memory_zones(case) if whole else {}, memory),
        devices=Devices(tuple(entries), {resource: tuple(ids) for resource, ids in healthy.items()}),
        answer=PodResources({}, GrantedResources(hardware.cpus - reserved if static else frozenset(), (), healthy)),
        version="v1.36.3",
        capacity={resource: len(devices) for resource, devices in machine["devices"].items()},
    )


def memory_zones(case):
    reserved = {zone["id"]: zone["reserved_memory_bytes"] for zone in case["machine"]["numa"]}
    return {
        int(zone): MemoryNode(
            found["assignments"],
            {
                kind: MemoryTable(
                    each["allocatable"] + reserved[int(zone)],
                    reserved[int(zone)],
                    each["allocatable"],
                    each["allocatable"] - each["free"],
                    each["free"],
                )
                for kind, each in found["resources"].items()
            },
            tuple(found["cells"]),
        )
        for zone, found in case["state"]["memory"].items()
    }


def published(case):
    """The FlexTopo as it goes over the wire, and the merged state."""
    hardware = hardware_of(case["machine"])
    remembered = {
        resource: {each["id"]: tuple(each["numa"] or ()) for each in devices}
        for resource, devices in case["machine"]["devices"].items()
    }
    names = [KubeletPod(pod["pod"], "d", pod["pod"]) for pod in case["state"]["running"]]
    held = merge(reading_of(case, hardware), hardware, names, remembered=remembered)
    spec, found = graph.spec(hardware, Gpus(), 8), status.status(held, hardware, Gpus(), names, 8)
    made = encode({"metadata": {"name": case["id"]}, "spec": spec, "status": found})
    # What the kind says of every field holds, and what it fills in is what was left out.
    assert (
        decode(WholeFlexTopo, encode(Kind.from_wire(msgspec.json.decode(made)).to_wire()), "flextopo").status == found
    )
    return decode(Wire, made, "flextopo"), held, hardware


@pytest.mark.parametrize("part", range(4))
def test_the_engine_reads_the_kubelets_state_back(part):
    for case in cases()[part::4]:
        wire, held, _ = published(case)
        assert held.missing == (), case["id"]
        problems = Problems("FlexTopo")
        machine = machine_of(wire, problems, version=(1, 36))
        assert problems.texts == (), case["id"]
        layout, state = machine.layout, machine.state
        assert layout.exact, case["id"]
        numa, expected = case["machine"]["numa"], case["state"]
        assert [zone.id for zone in layout.zones] == [zone["id"] for zone in numa]
        for zone, recorded in zip(layout.zones, numa, strict=True):
            assert zone.cores == tuple(tuple(core) for core in recorded["cores"]), case["id"]
            assert zone.distances == (tuple(recorded["distances"]) if len(numa) > 1 else ()), case["id"]
            assert zone.uncore == tuple(recorded.get("uncore") or ()), case["id"]
        kubelet = layout.kubelet
        assert kubelet.policy == case["kubelet"]["topology_manager_policy"]
        assert kubelet.scope == case["kubelet"]["topology_manager_scope"]
        assert kubelet.full_pcpus_only is (
            (case["kubelet"].get("cpu_manager_policy_options") or {}).get("full-pcpus-only") == "true"
        )
        if kubelet.static_cpu:
            assert state.cpus == mask(cpuset.parse(expected["free_cpus"])), case["id"]
            assert layout.reserved_cpus == mask(cpuset.parse(case["machine"]["reserved_cpus"]))
        places = {zone.id: at for at, zone in enumerate(layout.zones)}
        if kubelet.static_memory:
            assert state.memory == tuple(
                MemoryCells(
                    cells=mask(places[cell] for cell in expected["memory"][str(zone.id)]["cells"]),
                    assignments=expected["memory"][str(zone.id)]["assignments"],
                )
                for zone in layout.zones
            ), case["id"]
            for at, zone in enumerate(layout.zones):
                for kind, amount in expected["memory"][str(zone.id)]["resources"].items():
                    assert state.free[at][layout.resources.index(kind)] == amount["free"], case["id"]
        for resource, ids in expected["free_devices"].items():
            at = layout.resources.index(resource)
            free = {name for i, name in enumerate(machine.device_ids[resource]) if state.devices[at] >> i & 1}
            assert free == set(ids), case["id"]
            assert {device.healthy for device in layout.devices[at]} == {
                each["healthy"] for each in case["machine"]["devices"][resource]
            }


@pytest.mark.parametrize("part", range(4))
def test_the_engine_predicts_the_kubelet_from_what_the_agent_publishes(part):
    """The next pod: verdict, reason and zones, by nothing but the FlexTopo."""
    admitted = 0
    for case in cases()[part::4]:
        wire, _, _ = published(case)
        machine = machine_of(wire, Problems("FlexTopo"), version=(1, 36))
        found = admit(machine.layout, machine.state, pod_shape(msgspec.convert(case["pod"], PodForm)))
        expected = case["expected"]
        assert found.admitted is expected["admitted"], (case["id"], found)
        if found.admitted:
            admitted += 1
            zones_ = [zone.id for at, zone in enumerate(machine.layout.zones) if found.zones >> at & 1]
            assert zones_ == expected["numa_nodes"], (case["id"], found)
        else:
            assert found.reason == expected["reason"], (case["id"], found)
    assert admitted


def mask(numbers):
    return sum(1 << number for number in numbers)


def test_the_topology_is_as_nfd_would_write_it():
    """But that init containers' CPUs are taken, and capacity counts unhealthy devices: podresources tells neither."""
    compared = 0
    for case in cases():
        _, held, hardware = published(case)
        ours = zones.topology("n", held, hardware, [])
        attributes = {each["name"]: each["value"] for each in ours["attributes"]}
        nfd = case["nrt"]
        assert attributes.items() >= nfd["attributes"].items(), case["id"]
        exact = case.get("nrt_exact", True)
        for zone, recorded in zip(ours["zones"], nfd["zones"], strict=True):
            assert (zone["name"], zone["type"]) == (recorded["name"], recorded["type"])
            assert {cost["name"]: cost["value"] for cost in zone["costs"]} == recorded["costs"]
            resources = {each["name"]: each for each in zone["resources"]}
            for name, amounts in recorded["resources"].items():
                if name not in resources:
                    assert not amounts["allocatable"], (case["id"], name)
                    continue
                if exact:
                    assert int(resources[name]["available"]) == amounts["available"], (case["id"], name)
                    compared += 1
                if name in {"cpu", "memory"}:
                    assert int(resources[name]["allocatable"]) == amounts["allocatable"], (case["id"], name)
                    assert int(resources[name]["capacity"]) == amounts["capacity"], (case["id"], name)
    assert compared > 500
