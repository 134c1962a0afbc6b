"""Nodes whose kubelets refuse pods for NUMA zones that nothing published tells of: told, and counted."""

import pytest
from support.numa_world import NumaWorld, sent
from support.owned import make_job
from support.published import GI, GPU, nrt, nrt_zone

from crds.numa_placement import decode
from engine.reasons import Reason
from kube.informer import Event, EventKind
from ungater.executor.notices import NodeNotices
from ungater.metrics import ControllerMetrics

CORES = {"cpu": 8, "memory": 64 * GI}
PLACE = decode('[{"zone":"node-0","amount":{"cpu":"4"}}]')


class Recorder:
    """Events as they are told: (name of the object, reason, text)."""

    def __init__(self):
        self.told = []

    def event(self, regarding, _type, reason, _action, message):
        self.told.append((regarding.name, reason, message))


class RefusingWorld(NumaWorld):
    """Two nodes; what each publishes is a test's to say."""

    def __init__(self, zones, policy="single-numa-node"):
        self.zones, self.policy = zones, policy
        self.metrics, self.recorder = ControllerMetrics(), Recorder()
        super().__init__()
        self.notices = NodeNotices(self.recorder, self.metrics, self.stores["node"].get)

    def publish(self, name, **options):
        if self.zones:
            old = self.topologies.get(name)
            zones = [nrt_zone(at, zone) for at, zone in enumerate(self.zones)]
            self.topologies[name] = new = nrt(zones, name=name, policy=self.policy)
            self.memory.nodes.on_topology(Event(EventKind.MODIFIED if old else EventKind.ADDED, name, old, new))

    def mismatch(self, record, mismatch):
        self.notices.mismatch(record, mismatch)
        super().mismatch(record, mismatch)

    def refuse(self, reason="TopologyAffinityError"):
        """A pod of a job is let go and its kubelet refuses it; the event on its node, None where there is none."""
        job = make_job(parallelism=1, spec=self.spec())
        self.put("job", job)
        (slot,) = self.admit(job).slots
        bound = sent(self, job, 0, slot, PLACE, node=slot.node, spec=self.spec())
        self.put("pod", bound)
        self.put(
            "pod", sent(self, job, 0, slot, PLACE, node=slot.node, phase="Failed", reason=reason, spec=self.spec())
        )
        (found,) = self.mismatches
        assert found.refused
        of_node = [told for told in self.recorder.told if told[0] == slot.node]
        assert len(of_node) <= 1
        return of_node[0] if of_node else None

    @staticmethod
    def spec():
        amounts = {"cpu": "4", "memory": "4Gi", GPU: "2"}
        return {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]}

    @property
    def counted(self):
        return self.metrics.registry.get_sample_value("topogate_unforeseen_refusals_total")


def test_a_node_that_tells_no_zones_of_its_devices_and_refuses_for_them_is_told_and_counted():
    world = RefusingWorld((CORES, CORES))
    _, reason, text = world.refuse()
    assert reason is Reason.ZONES_UNREPORTED
    assert f"tells the zones of {GPU}: run the agent there" in text
    assert world.counted == 1
    unknown = f"; the node publishes no NUMA zones of {GPU}, so this could not be predicted"
    assert world.mismatches[0].message.endswith(unknown), "its job is told too"


def test_a_node_that_publishes_nothing_is_told_of_all_that_a_kubelet_aligns():
    world = RefusingWorld(())
    _, reason, text = world.refuse()
    assert reason is Reason.ZONES_UNREPORTED
    assert f"tells the zones of cpu, memory, {GPU}: " in text
    assert world.counted == 1


@pytest.mark.parametrize("zones", [(CORES | {GPU: 4}, CORES | {GPU: 4}), (CORES | {GPU: 8}, CORES)])
def test_a_refusal_that_could_be_foreseen_is_an_ordinary_one(zones):
    world = RefusingWorld(zones)
    assert world.refuse() is None
    assert world.counted == 0


@pytest.mark.parametrize("reason", ["SMTAlignmentError", "UnexpectedAdmissionError"])
def test_so_is_one_that_is_not_for_want_of_zones(reason):
    world = RefusingWorld((CORES, CORES))
    assert world.refuse(reason) is None
    assert world.counted == 0


def test_a_policy_of_none_that_is_told_beside_a_refusal_is_not_believed_of_cores():
    world = RefusingWorld(({GPU: 4}, {GPU: 4}), policy="none")
    _, _, text = world.refuse()
    assert "tells the zones of cpu, memory: " in text
