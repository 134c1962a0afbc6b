"""What nodes publish, taken into the engine: what counts as a change, and what a pod holds there."""

import json

import msgspec
import pytest
from support.owned import make_owner, make_pod
from support.published import GI, GPU, flex, flex_body, node, nrt, nrt_zone

from crds.constants import GPU_LINK, NUMA_PLACEMENT_OBSERVED, NUMA_PLACEMENT_PREDICTED
from crds.device_settings import DeviceAnnotation
from crds.numa_placement import decode
from engine.cluster.state import ClusterState
from engine.kubelet.machine import Qos, TopologyPolicy
from ungater.numa.node_topologies import NOTHING, NodeChanges, NodeTopologies, Sources, TopologyOptions, worth_a_look

ZONE = {"cpu": 16, "memory": 64 * GI, GPU: 4}
HERE = '[{"zone":"node-1","amount":{"nvidia.com/gpu":"2"}}]'


class World:
    def __init__(self, **options):
        self.nodes, self.topologies, self.flexes, self.told = {"n1": node()}, {}, {}, []
        self.state = ClusterState(reconstruct_available=options.get("reconstruct_available", True))
        sources = Sources(self.nodes.get, self.topologies.get, self.flexes.get)
        self.inside = NodeTopologies(self.state, TopologyOptions(**options), sources, self.tell)

    def tell(self, *news):
        self.told.append(news)

    def look(self):
        return self.inside.reread_node("n1")


@pytest.fixture
def world():
    return World()


def pod(**annotations):
    made = make_pod("p", at=("b", "r", "n1"), node="n1")
    meta = msgspec.structs.replace(made.metadata, annotations={**made.metadata.annotations, **annotations})
    return msgspec.structs.replace(made, metadata=meta)


def test_a_machine_comes_changes_and_goes(world):
    assert world.look() == NodeChanges()
    assert world.inside.described == {}
    world.topologies["n1"] = nrt([nrt_zone(0, ZONE), nrt_zone(1, ZONE)])
    assert world.look() == NodeChanges(True, True, True)
    assert world.state.machines["n1"].layout.kubelet.policy is TopologyPolicy.RESTRICTED
    assert world.look() == NodeChanges()
    world.topologies["n1"] = nrt([nrt_zone(0, ZONE), nrt_zone(1, ZONE)], policy="single-numa-node")
    assert world.look() == NodeChanges(True, False, True)
    world.topologies["n1"] = nrt([nrt_zone(0, ZONE), nrt_zone(2, ZONE)])
    assert world.look() == NodeChanges(True, True, True)
    del world.topologies["n1"]
    assert world.look() == NodeChanges(True, True, True)
    assert "n1" not in world.state.machines
    assert world.inside.described == {}


def test_what_is_said_to_be_available_is_no_change_unless_it_is_trusted():
    less = ZONE | {GPU: (4, 4, 1)}
    for options, changed in (({}, False), ({"reconstruct_available": False}, True)):
        world = World(**options)
        world.topologies["n1"] = nrt([nrt_zone(0, ZONE)])
        world.look()
        world.topologies["n1"] = nrt([nrt_zone(0, less)])
        assert world.look() == NodeChanges(changed, False, False)
        world.topologies["n1"] = nrt([nrt_zone(0, ZONE)])
        assert world.look() == NodeChanges(changed, False, changed)


def test_only_what_is_more_than_before_wakes_those_who_wait(world):
    world.flexes["n1"] = flex()
    world.look()
    body = flex_body()
    body["status"]["cpus"]["defaultSet"] = "0,4-15"
    world.flexes["n1"] = flex(body)
    assert world.look() == NodeChanges(True, False, False)
    world.flexes["n1"] = flex()
    assert world.look() == NodeChanges(True, False, True)


def test_what_is_wrong_is_told_once_for_each_change(world):
    world.topologies["n1"] = nrt([nrt_zone(0, ZONE | {"cpu": "many"})])
    world.look()
    world.look()
    ((name, before, now),) = world.told
    assert (name, before) == ("n1", NOTHING)
    assert any("many" in problem for problem in now.problems)
    world.flexes["n1"] = flex(policy="single-numa-node")
    world.look()
    assert len(world.told) == 2
    assert world.told[1][2].disagreements
    world.topologies["n1"] = nrt([nrt_zone(0, ZONE)])
    world.flexes.clear()
    world.look()
    assert world.told[2][2].problems == ()
    assert len(world.told) == 3


def test_a_pod_holds_what_was_observed_else_what_is_in_flight_else_what_was_predicted(world):
    world.topologies["n1"] = nrt([nrt_zone(0, ZONE), nrt_zone(1, ZONE)])
    assert world.inside.placement_of_pod(pod(**{NUMA_PLACEMENT_OBSERVED: HERE})) == (None, None), (
        "the inside is not known yet"
    )
    world.look()
    zero, nine = HERE.replace("node-1", "node-0"), HERE.replace("node-1", "node-9")
    shape, placement = world.inside.placement_of_pod(
        pod(**{NUMA_PLACEMENT_OBSERVED: HERE, NUMA_PLACEMENT_PREDICTED: zero})
    )
    assert placement == decode(HERE)
    assert shape.qos is Qos.BURSTABLE
    assert world.inside.placement_of_pod(pod(**{NUMA_PLACEMENT_PREDICTED: zero}))[1] == decode(zero)
    assert world.inside.placement_of_pod(pod(**{NUMA_PLACEMENT_PREDICTED: zero}), decode(HERE))[1] == decode(HERE)
    assert world.inside.placement_of_pod(pod(**{NUMA_PLACEMENT_OBSERVED: nine, NUMA_PLACEMENT_PREDICTED: zero}))[
        1
    ] == decode(zero)
    assert world.inside.placement_of_pod(pod(**{NUMA_PLACEMENT_OBSERVED: nine}))[1] is None
    assert world.inside.placement_of_pod(pod())[1] is None
    assert world.inside.observed(pod(**{NUMA_PLACEMENT_OBSERVED: HERE}))
    assert not world.inside.observed(pod(**{NUMA_PLACEMENT_OBSERVED: nine, NUMA_PLACEMENT_PREDICTED: zero}))
    assert not world.inside.observed(pod())


def test_the_annotations_of_a_pod_are_its_zones_and_devices():
    world = World(device_annotations=(DeviceAnnotation(resource=GPU, key="nvidia.com/use-gpuuuid", value="id"),))
    world.flexes["n1"] = flex()
    world.look()
    text = '[{"zone":"node-0","amount":{"nvidia.com/gpu":"2"},"devices":{"nvidia.com/gpu":["GPU-1","GPU-0"]}}]'
    found = world.inside.annotations("n1", decode(text))
    assert decode(found[NUMA_PLACEMENT_PREDICTED]) == decode(text)
    assert found["nvidia.com/use-gpuuuid"] == "GPU-0,GPU-1"
    assert world.inside.annotations("n1", None) == {}
    assert world.inside.annotations("n2", decode(text)) == {}


def test_without_known_zones_nothing_is_predicted(world):
    matrix = json.dumps([[0, 1], [1, 0]])
    world.nodes["n1"] = node(annotations={"gpu-topology.acme.com/nvlink-matrix": matrix})
    assert world.look() == NodeChanges(True, True, True)
    assert not world.inside.predictable("n1")
    assert world.inside.annotations("n1", decode(HERE)) == {}
    assert world.inside.placement_of_pod(pod(**{NUMA_PLACEMENT_PREDICTED: HERE}))[1] is None


def test_machines_and_troubles_are_counted(world):
    world.topologies["n1"] = nrt([nrt_zone(0, ZONE | {"cpu": "many"})])
    world.look()
    assert world.inside.count_sources() == ({"NodeResourceTopology": 1}, {"problem": 1, "disagreement": 0})


def test_a_heartbeat_is_not_worth_a_look():
    before = node(annotations={"a": "b"})
    assert not worth_a_look(before, node(annotations={"a": "c"}))
    assert worth_a_look(before, node(version="v1.35.0"))
    assert worth_a_look(before, node(annotations={"gpu-topology.acme.com/gpu-states": "[]"}))
    assert worth_a_look(before, node(**{GPU: "8"}))


def test_a_pod_s_wishes_are_in_its_shape(world):
    world.topologies["n1"] = nrt([nrt_zone(0, ZONE)])
    world.look()
    shape, _ = world.inside.placement_of_pod(
        pod(**{"topogate.dev/numa-policy": "single-numa-node", "topogate.dev/gpu-link": "prefer"})
    )
    assert (shape.wish, shape.gpu_link) == (TopologyPolicy.SINGLE, "prefer")
    bad, _ = world.inside.placement_of_pod(pod(**{"topogate.dev/numa-policy": "x", "topogate.dev/gpu-link": "prefer"}))
    assert (bad.wish, bad.gpu_link) == (TopologyPolicy.NONE, "")
    assert (
        make_owner(request={"kueue.x-k8s.io/require-topology": "rack", "topogate.dev/gpu-link": "require"})
        .pod_sets[0]
        .shape.gpu_link
        == "require"
    )


def test_gpus_that_are_not_linked_break_the_promise_of_a_pod_that_requires_links(world):
    def observed(*ids, link="require", **more):
        record = [{"zone": "node-0", "amount": {GPU: str(len(ids))}, "devices": {GPU: ids}}]
        return pod(**{GPU_LINK: link, NUMA_PLACEMENT_OBSERVED: json.dumps(record), **more})

    assert world.inside.broken(observed("GPU-0", "GPU-2")) == (), "its node publishes nothing"
    world.flexes["n1"] = flex()
    world.look()
    assert world.inside.broken(observed("GPU-0", "GPU-2")) == (
        "2 of nvidia.com/gpu are not one NVLink clique; the largest among them has 1: GPU-0, GPU-2",
    )
    assert world.inside.broken(observed("GPU-0", "GPU-1")) == ()
    assert world.inside.broken(observed("GPU-0", "GPU-2", link="prefer")) == ()
    assert world.inside.broken(pod(**{GPU_LINK: "require"})) == ()
    assert world.inside.broken(observed("GPU-0", "GPU-2", **{NUMA_PLACEMENT_OBSERVED: "?"})) == ()
