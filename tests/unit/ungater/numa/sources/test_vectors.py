"""The machines of the published cases, as an agent and an exporter would publish them: the engine must then agree with
the kubelet, so nothing that decides may be lost on the way from the objects to the engine.
"""

import gzip
import json
from collections import defaultdict
from functools import cache
from pathlib import Path

import msgspec
from support.published import node

from engine.kubelet.admit import admit
from engine.kubelet.machine import Container, ContainerKind, PodShape, Qos
from engine.quantity import parse
from kube.objects import Condition
from kube.topologies import FlexTopo, FlexTopoStatus, NodeResourceTopology
from ungater.numa.sources import describe

FILE = Path(__file__).parents[4] / "data" / "numa.jsonl.gz"


@cache
def cases():
    with gzip.open(FILE, "rt") as lines:
        return [json.loads(line) for line in lines]


def shape_of(pod):
    def amounts(given):
        return tuple(sorted((name, parse(name, text)) for name, text in (given or {}).items()))

    containers = (
        Container(
            name=c["name"],
            kind=ContainerKind(c["kind"]),
            requests=amounts(c.get("requests")),
            limits=amounts(c.get("limits")),
        )
        for c in pod["containers"]
    )
    return PodShape(containers=tuple(containers), qos=Qos(pod["qos"]))


def cpu_set(cpus):
    return ",".join(map(str, sorted(cpus)))


def cpus_of(text):
    found = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return found


def flex_of(case):
    """The FlexTopo of a case: what the agent's documents say it publishes."""
    machine, kubelet, state = case["machine"], case["kubelet"], case["state"]
    nodes, edges, online = [], [], set()
    ids = [zone["id"] for zone in machine["numa"]]
    for zone in machine["numa"]:
        own = {cpu for core in zone["cores"] for cpu in core}
        online |= own
        attributes = {"cpus": cpu_set(own), **({"socket": str(zone["socket"])} if own else {})}
        nodes.append({"id": f"numa-{zone['id']}", "type": "NUMANode", "attributes": attributes})
        edges += [
            {
                "source": f"numa-{zone['id']}",
                "target": f"numa-{other}",
                "type": "distance",
                "attributes": {"distance": str(d)},
            }
            for other, d in zip(ids, zone["distances"], strict=True)
            if other != zone["id"]
        ]
        if own:
            group = f"group-{min(own)}"
            nodes.append({"id": group, "type": "CPUCoreGroup", "attributes": {"cpus": cpu_set(own)}})
            edges.append({"source": group, "target": f"numa-{zone['id']}", "type": "localized"})
        for at, core in enumerate(zone["cores"]):
            l3 = {"l3": str(zone["uncore"][at])} if zone.get("uncore") else {}
            nodes.append({"id": f"core-{min(core)}", "type": "CPUCore", "attributes": {"cpus": cpu_set(core), **l3}})
            edges.append({"source": group, "target": f"core-{min(core)}", "type": "contain"})
    config = {
        "topologyManagerPolicy": kubelet["topology_manager_policy"],
        "topologyManagerScope": kubelet["topology_manager_scope"],
        "topologyManagerPolicyOptions": kubelet.get("topology_manager_policy_options") or {},
        "cpuManagerPolicy": kubelet["cpu_manager_policy"],
        "cpuManagerPolicyOptions": kubelet.get("cpu_manager_policy_options") or {},
        "memoryManagerPolicy": kubelet["memory_manager_policy"],
        "onlineCpus": cpu_set(online),
        "reservedCpus": machine["reserved_cpus"],
    }
    status = {"kubelet": config, "devices": list(devices_of(machine, state))}
    if kubelet["cpu_manager_policy"] == "static":
        free = cpus_of(state["free_cpus"]) | cpus_of(machine["reserved_cpus"])
        status["cpus"] = {"defaultSet": cpu_set(free), "assignments": []}
    if kubelet["memory_manager_policy"] == "Static":
        status["memory"] = {"zones": [memory_of(int(zone), found) for zone, found in state["memory"].items()]}
    return decode({"metadata": {"name": "n1"}, "spec": {"nodes": nodes, "edges": edges}, "status": status}, FlexTopo)


def devices_of(machine, state):
    for resource, devices in machine["devices"].items():
        free = set(state["free_devices"].get(resource, ()))
        yield {
            "resource": resource,
            "devices": [
                {
                    "id": device["id"],
                    "zones": device["numa"] or None,
                    "healthy": device["healthy"],
                    **({} if device["id"] in free or not device["healthy"] else {"usedBy": {"podUid": "u"}}),
                }
                for device in devices
            ],
        }


def memory_of(zone, found):
    amounts = [{"type": kind, "total": each["allocatable"], **each} for kind, each in found["resources"].items()]
    return {"zone": zone, "assignments": found["assignments"], "cells": found["cells"], "amounts": amounts}


def nrt_of(case):
    """The NodeResourceTopology of a case, in the spelling of the API."""
    published = case["nrt"]
    zones = [
        {
            "name": zone["name"],
            "type": zone["type"],
            "costs": [{"name": name, "value": cost} for name, cost in zone["costs"].items()],
            "resources": [
                {"name": name, **{which: str(amount) for which, amount in three.items()}}
                for name, three in zone["resources"].items()
            ],
        }
        for zone in published["zones"]
    ]
    attributes = [{"name": name, "value": value} for name, value in published["attributes"].items()]
    body = {"metadata": {"name": "n1"}, "attributes": attributes, "zones": zones}
    return decode(body, NodeResourceTopology)


def decode(body, kind):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def test_from_flex_topo_every_verdict_and_every_zone_is_the_kubelet_s():
    wrong = []
    for case in cases():
        found = describe(node(), flex=flex_of(case))
        assert found.problems == (), (case["id"], found.problems)
        assert found.machine.layout.exact
        admission = admit(found.machine.layout, found.machine.state, shape_of(case["pod"]))
        zones = sorted(zone.id for at, zone in enumerate(found.machine.layout.zones) if admission.zones >> at & 1)
        expected = case["expected"]
        if (admission.admitted, admission.reason) != (expected["admitted"], expected.get("reason", "")):
            wrong.append((case["id"], case["tags"], admission.reason, expected.get("reason")))
        elif admission.admitted and zones != sorted(expected["numa_nodes"]):
            wrong.append((case["id"], case["tags"], zones, expected["numa_nodes"]))
    assert wrong == []


def verdicts(**about):
    """(right, all, tags of the wrong ones) from NodeResourceTopology, and what ``about`` makes of a case beside it."""
    right, total, tags = 0, 0, defaultdict(int)
    for case in cases():
        if "node-level-overcommit" in case["tags"]:
            continue  # the plain resource fit stops these
        found = describe(node(), topology=nrt_of(case), **{name: make(case) for name, make in about.items()})
        if found.machine is None:
            continue
        total += 1
        assert found.problems == (), (case["id"], found.problems)
        assert found.source == "NodeResourceTopology"
        layout, state = found.machine.layout, found.machine.state
        same = admit(layout, state, shape_of(case["pod"])).admitted == case["expected"]["admitted"]
        right += same
        for tag in () if same else case["tags"]:
            tags[tag] += 1
    assert total > 1000
    return right, total, dict(tags)


def settings_of(case):
    """A FlexTopo whose agent knows the kubelet's settings, but could not read its state."""
    whole = flex_of(case)
    threads = case["machine"]["threads_per_core"]
    kubelet = msgspec.structs.replace(whole.status.kubelet, threads_per_core=threads)
    unready = Condition(type="Ready", status="False", reason="StateIncomplete")
    return msgspec.structs.replace(whole, status=FlexTopoStatus(conditions=(unready,), kubelet=kubelet))


def test_from_node_resource_topology_and_the_kubelet_s_settings_nearly_every_verdict_is_the_kubelet_s():
    right, total, wrong = verdicts(flex=settings_of)
    assert right / total >= 0.985, (right, total, wrong)


def test_from_node_resource_topology_alone_only_whole_cores_are_not_foreseen():
    right, total, wrong = verdicts()
    assert right / total >= 0.96, (right, total, wrong)
    assert (total - right - wrong["full-pcpus-only"]) / total <= 0.015, "options of managers are not published"
