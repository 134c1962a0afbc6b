"""Nodes that only NodeResourceTopology of NFD describes, with pods on them of which nobody wrote down the zones."""

import msgspec
import pytest
from support.numa_world import NumaWorld, machine_node, sent
from support.owned import make_job, make_pod
from support.published import GI, nrt, nrt_zone

from crds.constants import NUMA_PLACEMENT_OBSERVED
from crds.numa_placement import decode, encode
from engine.reasons import Reason
from kube.informer import Event, EventKind

FOUR = 4


def spec_of(cpus, memory="1Gi"):
    amounts = {"cpu": str(cpus), "memory": memory}
    return {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]}


class PlainWorld(NumaWorld):
    """One node of two zones of 4 CPUs under single-numa-node, of which NFD alone tells."""

    def __init__(self):
        super().__init__()
        self.drop("node", self.stores["node"]["r1-h2"])
        self.put("node", machine_node("h1", cpu=str(2 * FOUR)))

    def publish(self, name, available=(FOUR, FOUR), **options):
        zones = [
            nrt_zone(at, {"cpu": (FOUR, FOUR, left), "memory": (64 * GI, 64 * GI, 64 * GI)})
            for at, left in enumerate(available)
        ]
        old, new = self.topologies.get(name), nrt(zones, name=name, policy="single-numa-node", **options)
        self.topologies[name] = new
        self.memory.nodes.on_topology(Event(EventKind.MODIFIED if old else EventKind.ADDED, name, old, new))

    def foreign(self, name, cpus, *, annotations=None, **options):
        """A running pod of somebody who knows nothing of Topogate."""
        pod = make_pod(name, node="r1-h1", phase="Running", gated=False, spec=spec_of(cpus), **options)
        meta = msgspec.structs.replace(pod.metadata, annotations=annotations or {}, owner_references=())
        status = msgspec.structs.replace(pod.status, qos_class="Guaranteed")
        pod = msgspec.structs.replace(pod, metadata=meta, status=status)
        self.put("pod", pod)
        return pod

    def cpus(self, memory=None):
        """Free CPUs of each zone."""
        memory = memory or self.memory
        at = memory.state.machines["r1-h1"].layout.resources.index("cpu")
        return [row[at] // 1000 for row in memory.state.state_inside("r1-h1").free]

    def ask(self, cpus, pods=1, name="train"):
        job = make_job(name, parallelism=pods, spec=spec_of(cpus))
        self.put("job", job)
        return job

    def bind(self, job, rank, zone, slot, **options):
        placement = decode(f'[{{"zone":"node-{zone}","amount":{{"cpu":"1"}}}}]')
        observed = encode(placement) if options.get("phase") == "Running" else None
        pod = sent(self, job, rank, slot, placement, node="r1-h1", spec=spec_of(1), observed=observed, **options)
        self.put("pod", pod)
        return pod


@pytest.fixture
def world():
    return PlainWorld()


def test_two_pods_without_a_record_leave_no_zone_for_a_third(world):
    world.foreign("a", 3)
    world.foreign("b", 3)
    world.publish("r1-h1", available=(1, 1))
    assert world.cpus() == [1, 1]
    job = world.ask(2)
    assert world.refused(job).reason is Reason.NUMA_ALIGNMENT
    assert world.cpus(world.restarted()) == [1, 1]


def test_the_order_in_which_pods_and_reports_are_seen_does_not_matter(world):
    world.publish("r1-h1", available=(1, 1))
    assert world.cpus() == [4, 4], "nobody is known to be there"
    world.foreign("a", 3)
    world.foreign("b", 3)
    assert world.cpus() == [1, 1]


def test_what_is_available_is_not_read_while_every_pod_has_a_record(world):
    here = '[{"zone":"node-0","amount":{"cpu":"3"}}]'
    world.foreign("a", 3, annotations={NUMA_PLACEMENT_OBSERVED: here})
    world.publish("r1-h1", available=(0, 0))
    assert world.cpus() == [1, 4]


def test_pods_that_take_nothing_of_a_zone_need_no_record(world):
    pod = make_pod("a", node="r1-h1", phase="Running", gated=False)  # 1 CPU, not Guaranteed
    world.put("pod", msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, qos_class="Burstable")))
    world.publish("r1-h1", available=(0, 0))
    assert world.cpus() == [4, 4]
    assert world.memory.topologies.unrecorded() == {"NodeResourceTopology": 0}


def test_once_the_last_pod_has_a_record_or_is_gone_its_node_is_rebuilt_again_and_who_waits_is_asked(world):
    pod = world.foreign("a", 3)
    world.publish("r1-h1", available=(1, 1))
    assert world.memory.topologies.unrecorded() == {"NodeResourceTopology": 1}
    generation = world.memory.generation
    world.foreign("a", 3, annotations={NUMA_PLACEMENT_OBSERVED: '[{"zone":"node-1","amount":{"cpu":"3"}}]'})
    assert world.cpus() == [4, 1]
    assert world.memory.generation > generation
    assert world.memory.topologies.unrecorded() == {"NodeResourceTopology": 0}
    world.foreign("a", 3)
    assert world.cpus() == [1, 1]
    world.drop("pod", pod)
    assert world.cpus() == [4, 4], "though the report still says otherwise"


def test_a_report_takes_no_more_of_a_zone_than_those_without_a_record_ask_for(world):
    world.foreign("a", 1)
    world.publish("r1-h1", available=(0, 0))
    assert world.cpus() == [3, 3]
    world.publish("r1-h1", available=("-7", "many"))
    assert world.cpus() == [3, 3], "a bad amount is nothing, and even then a pod of 1 CPU hides 1"
    world.publish("r1-h1", available=("9" * 40, 3))
    assert world.cpus() == [4, 3], "more than there is counts as all there is"


def test_more_available_than_can_be_gives_nothing_back(world):
    world.foreign("a", 1)
    world.publish("r1-h1", available=(99, 99))
    assert world.cpus() == [4, 4]


def test_a_pod_that_the_report_counts_is_not_counted_twice(world):
    job = world.ask(1, pods=2)
    (slot,) = world.admit(job).slots
    world.bind(job, 0, 0, slot, phase="Running")
    world.bind(job, 1, 1, slot, phase="Running")
    world.foreign("a", 2)
    world.publish("r1-h1", available=(3, 1))
    assert world.cpus() == [3, 1]
    assert world.cpus(world.restarted()) == [3, 1]


def test_a_pod_that_came_after_the_report_is_charged_beside_it(world):
    job = world.ask(1, pods=2)
    (slot,) = world.admit(job).slots
    world.foreign("a", 2)
    world.publish("r1-h1", available=(2, 4))
    assert world.cpus() == [0, 4], "both slots will be in zone 0, beside what the foreign pod holds there"
    world.bind(job, 0, 0, slot)
    world.bind(job, 1, 0, slot)
    assert world.cpus() == [0, 4]
    world.publish("r1-h1", available=(1, 4))  # looked at before the second one came
    assert world.cpus() == [0, 4]
    world.publish("r1-h1", available=(0, 4))
    assert world.cpus() == [0, 4]


def test_a_pod_that_is_gone_gives_back_at_once_what_the_report_still_counts(world):
    job = world.ask(1, pods=2)
    (slot,) = world.admit(job).slots
    pods = [world.bind(job, rank, rank, slot, phase="Running") for rank in (0, 1)]
    world.foreign("a", 2)
    world.publish("r1-h1", available=(3, 1))
    world.drop("job", job)
    for pod in pods:
        world.drop("pod", pod)
    assert world.cpus() == [4, 2]
    world.publish("r1-h1", available=(4, 2))
    assert world.cpus() == [4, 2]


def test_a_report_that_is_never_renewed_locks_no_zone_for_ever(world):
    world.foreign("a", 3)
    world.publish("r1-h1", available=(1, 4))
    for number in range(40):
        here = '[{"zone":"node-1","amount":{"cpu":"4"}}]'
        world.drop("pod", world.foreign(f"b{number}", 4, annotations={NUMA_PLACEMENT_OBSERVED: here}))
    assert world.cpus() == [1, 4]


def test_a_simulated_eviction_leaves_no_trace(world):
    job = world.ask(1, pods=2)
    (slot,) = world.admit(job).slots
    for rank in (0, 1):
        world.bind(job, rank, rank, slot, phase="Running")
    world.foreign("a", 2)
    world.publish("r1-h1", available=(3, 1))
    state = world.memory.state
    checkpoint = state.begin()
    state.remove_pod("ns/train-1")
    state.release_workload(world.record(job).key)
    assert world.cpus() == [3, 2]
    state.remove_pod("ns/a")
    assert world.cpus() == [3, 4]
    state.rollback(checkpoint)
    assert world.cpus() == [3, 1]
    world.publish("r1-h1", available=(3, 1))
    assert world.cpus() == [3, 1]


def test_pods_without_a_record_are_counted_by_source(world):
    world.foreign("a", 1)
    world.foreign("b", 1)
    world.foreign("c", 1, annotations={NUMA_PLACEMENT_OBSERVED: '[{"zone":"node-7","amount":{"cpu":"1"}}]'})
    assert world.memory.topologies.unrecorded() == {"NodeResourceTopology": 3}, "a zone that is not there says nothing"
