"""What simulated kubelets publish, beside what the real exporters published in the recorded cases."""

import json

import pytest
from support.kubelets import cases, make_pod, replay

from crds.kinds.flex_topo import FlexTopoSpec, FlexTopoStatus
from crds.numa_placement import decode
from kube.connection.answers import decode as decode_object
from kube.objects import Node, ObjectMeta
from kube.patches import encode
from kube.topologies import FlexTopo
from localcluster.kubelets import publish
from localcluster.kubelets.fleet import _restore_holdings
from localcluster.kubelets.kubelet import PlayedKubelet
from ungater.numa.sources.describe import describe


@pytest.fixture(scope="module")
def recorded():
    return cases()[::12]


@pytest.fixture
def replayed(recorded):
    return [(case, replay(case)) for case in recorded]


# NFD reads podresources, which hide what init containers hold (``nrt_exact``) and unhealthy devices; it tells of CPUs
# in zones that have none, and counts a device of two zones in its own way.
NFD_DIFFERS = {"cpuless-numa", "unhealthy-device", "device-on-two-nodes"}


def plain(nrt):
    return {
        zone["name"]: {
            "costs": {cost["name"]: cost["value"] for cost in zone["costs"]},
            "resources": {
                r["name"]: {key: int(r[key]) for key in ("capacity", "allocatable", "available")}
                for r in zone["resources"]
            },
        }
        for zone in nrt["zones"]
    }


def test_node_resource_topology_is_what_nfd_published(replayed):
    for case, kubelet in replayed:
        if not case["nrt_exact"] or NFD_DIFFERS & set(case["tags"]):
            continue
        ours = plain(publish.node_resource_topology("n", kubelet))
        theirs = {
            zone["name"]: {"costs": zone["costs"], "resources": zone.get("resources") or {}}
            for zone in case["nrt"]["zones"]
        }
        assert ours == theirs, case["id"]


def flex_topo(kubelet):
    body = {
        "metadata": {"name": "n"},
        "spec": publish.flex_topo_spec(kubelet.hardware),
        "status": publish.flex_topo_status(kubelet, {}),
    }
    FlexTopoSpec.model_validate(body["spec"])
    FlexTopoStatus.model_validate({k: v for k, v in body["status"].items() if k != "observedAt"})
    return decode_object(FlexTopo, encode(body), "flextopo")


def test_flex_topo_says_all_that_the_kubelet_holds(replayed):
    node = Node(metadata=ObjectMeta(name="n"))
    for case, kubelet in replayed:
        found = describe(node, flex=flex_topo(kubelet))
        assert found.problems == (), case["id"]
        machine = found.machine
        assert machine.layout.exact, case["id"]
        if kubelet.settings.static_cpu:
            assert machine.state.cpus == kubelet.cpus.free_cpus, case["id"]
        for resource, ids in machine.device_ids.items():
            mask = machine.state.devices[machine.layout.resources.index(resource)]
            assert {ids[i] for i in range(len(ids)) if mask >> i & 1} == kubelet.devices.free_ids(resource), case["id"]
        if kubelet.settings.static_memory:
            assert [(zone.cells, zone.assignments) for zone in machine.state.memory] == [
                (zone.cells, zone.assignments) for zone in kubelet.memory.zones
            ], case["id"]


def test_records_name_what_each_pod_holds(replayed):
    told = 0
    for case, kubelet in replayed:
        pod = make_pod(case["pod"])
        if kubelet.admit_pod(pod).refusal is not None:
            assert publish.record(kubelet, pod.uid) == ""
            continue
        text = publish.record(kubelet, pod.uid)
        placement = decode(text)
        zones = [use.zone for use in placement.zones] if placement else []
        assert set(zones) <= set(case["expected"]["numa_nodes"]), case["id"]
        cpus = sum(use.amounts.get("cpu", 0) for use in placement.zones) if placement else 0
        taken = 0
        for container in kubelet.held_by_container(pod.uid).values():
            taken |= container.cpus
        assert cpus == taken.bit_count() * 1000, case["id"]
        sizes = sum(use.amounts.get("memory", 0) for use in placement.zones) if placement else 0
        held = kubelet.held_by_container(pod.uid).values()
        assert sizes == sum(b.size for c in held for b in c.memory if b.type == "memory"), case["id"]
        told += bool(zones)
    assert told > 80


def test_a_restarted_kubelet_takes_over_what_pods_hold(replayed):
    for case, kubelet in replayed:
        again = PlayedKubelet(kubelet.hardware, kubelet.settings)
        uids = [event["pod"]["name"] for event in case["history"] or () if event["op"] == "admit"]
        for order, uid in enumerate(dict.fromkeys(uids)):
            state = json.loads(publish.checkpoint(kubelet, uid, order))
            if state["held"]:
                again.restore_held(uid, _restore_holdings(state, kubelet.hardware))
        assert again.cpus.default == kubelet.cpus.default, case["id"]
        for resource in kubelet.devices.devices:
            assert again.devices.free_ids(resource) == kubelet.devices.free_ids(resource), case["id"]
        ours, theirs = kubelet.memory.zones, again.memory.zones
        assert [(z.cells, z.assignments) for z in ours] == [(z.cells, z.assignments) for z in theirs], case["id"]
        for mask in {zone.cells for zone in ours}:  # a group's memory is one amount

            def left(zones, mask=mask):
                return sum(zone.free["memory"] for position, zone in enumerate(zones) if mask >> position & 1)

            assert left(ours) == left(theirs), case["id"]
        for uid in dict.fromkeys(uids):
            kubelet.remove(uid)
            again.remove(uid)
        assert again.cpus.free_cpus == kubelet.cpus.free_cpus == kubelet.hardware.cpus & ~kubelet.hardware.reserved_cpus
        for zone in again.memory.zones:
            assert zone.free == zone.allocatable, case["id"]
