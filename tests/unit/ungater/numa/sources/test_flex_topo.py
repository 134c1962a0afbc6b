"""Machines from FlexTopo: exact where the kubelet's state is whole, amounts where it is not."""

import pytest
from support.published import GI, GPU, flex, flex_body, node

from crds import graph
from engine.kubelet.admit import empty
from engine.kubelet.machine import DeviceLayout, MemoryCells, NumaPlacement, Scope, TopologyPolicy, ZoneUse
from ungater.numa.sources import describe


def described(body=None, **options):
    return describe(node(), flex=flex(body, **options))


@pytest.mark.parametrize(
    ("caches", "heard"),
    [
        ([0, 1, 2, 3], [(0, 1), (2, 3)]),  # a cache for each core
        ([0, 0, 2, 3], [(0, 0), (2, 3)]),  # all of the first zone: its socket is taken for it
        ([5, 5, 5, 5], [(5, 5), (5, 5)]),  # of both zones: more than one has
    ],
)
def test_a_cache_that_a_zone_shares_is_none_to_the_kubelet(caches, heard):
    """As real kubelets with prefer-align-cpus-by-uncorecache pick CPUs."""
    body = flex_body(zones=(0, 2), cores=2, threads=2)
    cores = [each for each in body["spec"]["nodes"] if each["type"] == "CPUCore"]
    for core, cache in zip(cores, caches, strict=True):
        core["attributes"]["l3"] = str(cache)
    assert [zone.uncore for zone in described(body).machine.layout.zones] == heard


def test_an_exact_machine_has_its_cpus_devices_and_memory_one_by_one():
    found = described(zones=(0, 2), cores=2, threads=2, gpus=1)
    machine, layout = found.machine, found.machine.layout
    assert found.problems == ()
    assert found.source == "FlexTopo"
    assert layout.exact
    assert [zone.id for zone in layout.zones] == [0, 2]
    assert layout.zones[1].cores == ((4, 5), (6, 7))
    assert layout.zones[1].uncore == (0, 0)  # the socket: of a cache that a whole zone shares the kubelet hears nothing
    assert layout.zones[1].distances == (20, 10)
    assert layout.resources == ("cpu", "memory", GPU)
    assert layout.capacity == ((4000, 64 * GI, 1), (4000, 64 * GI, 1))
    assert layout.allocatable == ((3000, 63 * GI, 1), (4000, 63 * GI, 1))
    assert layout.devices == ((), (), (DeviceLayout(zones=1), DeviceLayout(zones=2)))
    assert layout.reserved_cpus == 1
    assert (layout.kubelet.policy, layout.kubelet.scope) == (TopologyPolicy.RESTRICTED, Scope.CONTAINER)
    assert layout.kubelet.static_cpu
    assert layout.kubelet.static_memory
    assert machine.state.cpus == 0b11111110
    assert machine.state.devices == (0, 0, 0b11)
    assert machine.state.memory == (MemoryCells(cells=1), MemoryCells(cells=2))
    assert machine.state.free == layout.allocatable
    assert machine.device_ids == {GPU: ("GPU-0", "GPU-1")}
    assert machine.holds == {}


def held_body():
    """Pod ns/a holds CPUs 1-2 (reused from its init container) and memory; b a group of both zones and a GPU."""
    body = flex_body(cores=2, threads=2, gpus=2)
    status = body["status"]
    a = {"podUid": "uid-a", "namespace": "ns", "pod": "a"}
    status["cpus"] = {
        "defaultSet": "0,3-7",
        "assignments": [{**a, "container": "init", "cpus": "1-2"}, {**a, "container": "c", "cpus": "2"}],
    }
    zones = status["memory"]["zones"]
    zones[0] |= {"assignments": 2, "cells": [0, 1]}
    zones[1] |= {"assignments": 1, "cells": [0, 1]}
    zones[0]["amounts"][0] |= {"reserved": 63 * GI, "free": 0}
    zones[1]["amounts"][0] |= {"reserved": GI, "free": 62 * GI}
    status["memory"]["assignments"] = [
        {"podUid": "uid-b", "container": "c", "type": "memory", "zones": [0, 1], "size": 60 * GI},
        {**a, "container": "c", "type": "memory", "zones": [0], "size": 4 * GI},
    ]
    status["devices"][0]["devices"][3]["usedBy"] = {"podUid": "uid-b", "container": "c"}
    status["devices"][0]["devices"][2]["healthy"] = False
    return body


def test_what_is_held_is_gone_and_known_by_pod():
    found = described(held_body())
    machine = found.machine
    assert found.problems == ()
    assert machine.state.cpus == 0b11111000
    assert machine.state.devices == (0, 0, 0b0011)
    assert machine.state.memory == (MemoryCells(cells=3, assignments=2), MemoryCells(cells=3, assignments=1))
    assert machine.state.free == ((1000, 0, 2), (4000, 62 * GI, 0))
    assert machine.layout.capacity[1][2] == 2
    assert machine.layout.allocatable[1][2] == 1
    assert machine.holds == {
        "ns/a": NumaPlacement(zones=(ZoneUse(zone=0, amounts={"cpu": 2000, "memory": 4 * GI}),)),
        "uid-b": NumaPlacement(
            zones=(
                ZoneUse(zone=0, amounts={"memory": 59 * GI}),
                ZoneUse(zone=1, amounts={"memory": GI, GPU: 1}, devices={GPU: ("GPU-3",)}),
            )
        ),
    }


def test_the_graph_of_the_gpus_is_in_the_order_of_the_devices():
    body = flex_body(gpus=2)
    body["status"]["devices"][0]["devices"].reverse()
    layout = described(body).machine.layout
    links = layout.links[layout.resources.index(GPU)]
    assert links.neighbours == (0b10, 0b01, 0b1000, 0b0100)
    assert links.zones == (1, 1, 2, 2)


def test_xpus_are_chosen_by_their_wings():
    body = flex_body(gpus=0)
    ids = [f"xpu{number}" for number in range(12)]
    devices = [{"id": xpu, "zones": [at // 6]} for at, xpu in enumerate(ids)]
    body["status"]["devices"] = [{"resource": "kunlunxin.com/xpu", "devices": sorted(devices, key=lambda d: d["id"])}]
    machine = described(body).machine
    assert machine.device_ids["kunlunxin.com/xpu"] == tuple(ids)
    assert machine.layout.links[machine.layout.resources.index("kunlunxin.com/xpu")].wings == (0b111111, 0b111111 << 6)


def test_devices_without_topology_are_there_and_in_no_zone():
    body = flex_body(gpus=1)
    body["status"]["devices"].append({"resource": "example.com/nic", "devices": [{"id": "nic-0"}]})
    machine = described(body).machine
    at = machine.layout.resources.index("example.com/nic")
    assert [row[at] for row in machine.layout.capacity] == [-1, -1]
    assert machine.layout.devices[at] == (DeviceLayout(zones=0),)
    assert machine.state.devices[at] == 1


def test_without_the_static_managers_their_resources_are_not_aligned():
    body = flex_body()
    body["status"]["kubelet"] |= {"cpuManagerPolicy": "none", "memoryManagerPolicy": "None"}
    del body["status"]["cpus"], body["status"]["memory"]
    found = described(body)
    layout = found.machine.layout
    assert found.problems == ()
    assert layout.exact
    assert layout.resources == (GPU,)
    assert not layout.kubelet.static_cpu
    assert not layout.kubelet.static_memory


def _drop(*path):
    def bend(body):
        place = body["status"]
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return bend


def _not_ready(body):
    body["status"]["conditions"][0]["status"] = "False"


@pytest.mark.parametrize(
    ("bend", "said"),
    [
        (_drop("cpus"), "status.cpus.defaultSet: Required value"),
        (_drop("memory", "zones", 1), "status.memory.zones: Required value"),
        (_not_ready, ""),
    ],
)
def test_what_is_not_whole_is_amounts_alone(bend, said):
    body = flex_body()
    bend(body)
    found = described(body)
    assert found.machine is not None
    assert not found.machine.layout.exact
    assert found.machine.layout.devices == ()
    assert found.machine.holds is None
    assert found.machine.device_ids == {}
    assert (said in " ".join(found.problems)) if said else found.problems == ()


def _set(path, value):
    def bend(body):
        place = body
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return bend


@pytest.mark.parametrize(
    ("bend", "said"),
    [
        (_set(["status", "kubelet", "reservedCpus"], "0-"), 'status.kubelet.reservedCpus: Invalid value: "0-"'),
        (_set(["status", "kubelet", "onlineCpus"], "0-99"), 'status.kubelet.onlineCpus: Invalid value: "0-99"'),
        (_set(["status", "cpus", "defaultSet"], "0-16"), "status.cpus.defaultSet: Invalid value"),
        (_set(["status", "cpus", "defaultSet"], "0-4294967295"), "status.cpus.defaultSet: Invalid value"),
        (_set(["status", "memory", "zones", 0, "zone"], 7), 'status.memory.zones[0].zone: Invalid value: "7"'),
        (_set(["status", "memory", "zones", 0, "amounts", 0, "free"], 1 << 50), "amounts[memory].free: Invalid value"),
        (_set(["status", "devices", 0, "devices", 0, "zones"], [9]), "devices[0].zones: Invalid value"),
        (_set(["status", "kubelet", "topologyManagerPolicy"], "strict"), "topologyManagerPolicy: Invalid value"),
        (_set(["spec", "nodes", 0, "id"], "numa-x"), 'spec.nodes[0].id: Invalid value: "numa-x"'),
        (_set(["spec", "nodes", 0, "attributes", "cpus"], "a"), "spec.nodes[numa-0].attributes.cpus: Invalid value"),
        (_set(["spec", "edges", 0, "target"], "numa-9"), 'spec.edges[0]: Invalid value: "numa-9"'),
    ],
)
def test_what_is_wrong_is_named_and_nothing_fails(bend, said):
    body = flex_body()
    bend(body)
    found = described(body)
    assert any(said in problem and problem.startswith("FlexTopo n1: ") for problem in found.problems), found.problems


@pytest.mark.parametrize("cpus", ["", "x"])
def test_a_core_without_cpus_is_named_and_left_out(cpus):
    body = flex_body()
    cores = [edge["target"] for edge in body["spec"]["edges"] if edge["type"] == graph.CONTAIN]
    core = next(node for node in body["spec"]["nodes"] if node["id"] == cores[0])
    core["attributes"]["cpus"] = cpus
    found = described(body)
    assert any(f"spec.nodes[{cores[0]}].attributes.cpus: Required value" in one for one in found.problems)
    assert found.machine is not None
    assert empty(found.machine.layout) is not None


def test_a_graph_without_zones_is_no_machine():
    body = flex_body()
    body["spec"] = {}
    found = described(body)
    assert found.machine is None
    assert "NUMANode" in found.problems[0]


def test_the_version_is_the_agent_s_or_else_the_node_s():
    body = flex_body()
    assert described(body).machine.layout.kubelet.version == (1, 36)
    del body["status"]["kubelet"]["version"]
    assert describe(node(version="v1.33.0"), flex=flex(body)).machine.layout.kubelet.version == (1, 33)
