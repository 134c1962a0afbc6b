"""Which GPUs are free, as an annotation of the node says, for pods that need linked ones on a node without an agent."""

import json

import msgspec
import pytest
from support.numa_world import NumaWorld
from support.owned import KEYS, make_job, make_pod
from support.published import GI, GPU, nrt, nrt_zone

from engine.kubelet.device_manager import GPU_LINK
from kube.informer import Event, EventKind

DOMAIN = "gpu-topology.acme.com"
QUADS = [[int(one != other and one // 4 == other // 4) for other in range(8)] for one in range(8)]
ALL = [[int(one != other) for other in range(8)] for one in range(8)]


def states(*free):
    return json.dumps(["free" if gpu in free else "allocated" for gpu in range(8)])


def spec_of(gpus, cpus="1"):
    limits = {GPU: str(gpus), "cpu": cpus, "memory": "1Gi"}
    return {"containers": [{"name": "c", "resources": {"limits": limits, "requests": limits}}]}


class MeshWorld(NumaWorld):
    """One node with two cliques of four GPUs, described by its annotations alone."""

    def __init__(self):
        super().__init__()
        self.drop("node", self.stores["node"]["r1-h2"])

    def publish(self, name, zones=(), **options):
        """Without zones nothing but the node's annotations describe it."""
        if not zones:
            return
        old, new = self.topologies.get(name), nrt([nrt_zone(at, zone) for at, zone in enumerate(zones)], name=name)
        self.topologies[name] = new
        self.memory.nodes.on_topology(Event(EventKind.MODIFIED if old else EventKind.ADDED, name, old, new))

    def annotate(self, free=None, matrix=QUADS):
        node = self.stores["node"]["r1-h1"]
        found = {f"{DOMAIN}/nvlink-matrix": json.dumps(matrix)}
        if free is not None:
            found[f"{DOMAIN}/gpu-states"] = free if isinstance(free, str) else states(*free)
        meta = msgspec.structs.replace(node.metadata, annotations=found)
        self.put("node", msgspec.structs.replace(node, metadata=meta))

    def foreign(self, name, gpus):
        pod = make_pod(name, node="r1-h1", phase="Running", gated=False, spec=spec_of(gpus))
        meta = msgspec.structs.replace(pod.metadata, annotations={}, owner_references=())
        pod = msgspec.structs.replace(pod, metadata=meta)
        self.put("pod", pod)
        return pod

    def why_not(self, gpus, link="require"):
        """What a job of one pod is told; "" where it is placed."""
        request = {KEYS.required[0]: "rack", "topogate.dev/gpu-link": link}
        job = make_job("train", parallelism=1, spec=spec_of(gpus), request=request)
        self.put("job", job)
        try:
            self.admit(job)
        except StopIteration:
            record = next(iter(self.memory.entries.values()))
            return self.memory.queues.entries[record.key].refusal.message
        return ""


@pytest.fixture
def world():
    return MeshWorld()


def test_four_free_gpus_of_two_cliques_are_no_clique(world):
    world.annotate(free=(0, 1, 4, 5))
    world.foreign("a", 4)
    why = world.why_not(4)
    assert GPU_LINK in why
    assert "the largest one that the node reports as free has 2" in why


@pytest.mark.parametrize(("free", "gpus"), [((4, 5, 6, 7), 4), ((0, 1, 4, 5), 2), ((0, 1, 2, 3, 4, 5, 6, 7), 4)])
def test_a_free_clique_is_given(world, free, gpus):
    world.annotate(free=free)
    if len(free) < 8:
        world.foreign("a", 8 - len(free))
    assert world.why_not(gpus) == ""


def test_states_older_than_the_pods_that_came_since_are_sure_only_within_one_clique(world):
    world.annotate(free=range(8))
    world.foreign("a", 4)
    assert "it is not known which ones are free" in world.why_not(4)


def test_of_a_clique_any_that_is_left_will_do(world):
    world.annotate(free=(4, 5, 6, 7))
    world.foreign("a", 5)
    assert world.why_not(3) == ""


def test_states_that_are_old_refuse_nothing_where_every_gpu_is_linked_to_every_other(world):
    world.annotate(free=(), matrix=ALL)
    assert world.why_not(8) == ""


@pytest.mark.parametrize("link", ["prefer", ""])
def test_pods_that_require_no_links_go_by_numbers(world, link):
    world.annotate(free=(0, 4))
    assert world.why_not(4, link) == ""


@pytest.mark.parametrize("free", ["?", '["free"]', "[" * 100_000, json.dumps(["free"] * 9), '{"free": 1}', "[1,2]"])
def test_states_that_cannot_be_read_are_told_and_count_as_not_there(world, free):
    world.annotate(free=free)
    assert any("gpu-states" in text for text in world.memory.topologies.described["r1-h1"].problems)
    assert world.why_not(4) == ""


def test_the_same_beside_a_report_of_zones(world):
    zones = [{"cpu": 8, "memory": 64 * GI, GPU: (8, 8, 4)}, {"cpu": 8, "memory": 64 * GI}]
    world.annotate(free=(0, 1, 4, 5))
    world.publish("r1-h1", zones)
    world.foreign("a", 4)
    assert world.memory.topologies.described["r1-h1"].source == "NodeResourceTopology"
    assert "the largest one that the node reports as free has 2" in world.why_not(4)
    world.annotate(free=(4, 5, 6, 7))
    assert world.why_not(4) == ""


def test_who_waits_is_asked_again_when_other_gpus_are_free(world):
    world.annotate(free=(0, 1, 4, 5))
    world.foreign("a", 4)
    assert world.why_not(4)
    before = world.memory.generation
    world.annotate(free=(0, 1, 2, 3))
    assert world.memory.generation > before
    assert world.why_not(4) == ""
