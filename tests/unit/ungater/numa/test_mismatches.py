"""Pods that a kubelet refused or gave other zones: told once, with what follows for their node."""

import msgspec
import pytest
from support.owned import make_owner, make_pod, make_record, slot_map

from crds.constants import NUMA_PLACEMENT_OBSERVED, NUMA_PLACEMENT_PREDICTED
from ungater.numa.mismatches import PlacementMismatches, misalignment, refused_by_kubelet
from ungater.numa.node_backoff import LONG, SHORT

SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 2))
ZONE0 = '[{"zone":"node-0","amount":{"cpu":"4","nvidia.com/gpu":"1"}}]'
ZONE1 = '[{"zone":"node-1","amount":{"nvidia.com/gpu":"1"}}]'


class Heard:
    """Troubles with a clock of its own, and what they said."""

    def __init__(self):
        self.now = 100.0
        self.queued = []
        self.told = []
        self.unreported = ()
        self.mismatches = PlacementMismatches(
            lambda uid, after: self.queued.append((uid, after)),
            self.breaks,
            lambda _pod: self.unreported,
            lambda record, trouble: self.told.append((record.id, trouble)),
            lambda: self.now,
            refused=lambda *_: None,
        )

    def breaks(self, pod):
        return self.broken(pod)

    broken = staticmethod(lambda _pod: ())


@pytest.fixture
def heard():
    return Heard()


def on_node(name, *, phase="Running", reason="", message="", **annotations):
    pod = make_pod(name, at=("b", "r", "n1"), node="n1", phase=phase)
    meta = msgspec.structs.replace(pod.metadata, annotations={**pod.metadata.annotations, **annotations})
    status = msgspec.structs.replace(pod.status, reason=reason, message=message)
    return msgspec.structs.replace(pod, metadata=meta, status=status)


def test_a_refusal_is_told_once_and_its_node_left_out(heard):
    record = make_record(slots=SLOTS)
    bound = on_node("a", phase="Pending")
    failed = on_node("a", phase="Failed", reason="TopologyAffinityError", message="Resources cannot be allocated")
    heard.mismatches.compare_pod(record, None, bound)
    assert heard.told == []
    heard.mismatches.compare_pod(record, bound, failed)
    heard.mismatches.compare_pod(record, failed, failed)
    ((uid, trouble),) = heard.told
    assert uid == record.id
    assert trouble.refused
    assert (trouble.node, trouble.reason, trouble.seconds) == ("n1", "TopologyAffinityError", LONG)
    assert "the kubelet of n1 refused pod a: TopologyAffinityError (Resources cannot be allocated)" in trouble.message
    assert heard.queued == [(record.id, LONG)]
    assert heard.mismatches.nodes_to_avoid(record.job.pod_sets[0].shape) == {"n1"}
    assert "n1 (TopologyAffinityError, again in 15 s)" in heard.mismatches.describe_refusals(record)
    heard.now += LONG
    assert heard.mismatches.nodes_to_avoid(record.job.pod_sets[0].shape) == frozenset()
    assert heard.mismatches.has_expired()
    assert not heard.mismatches.has_expired()


def test_other_jobs_of_the_same_shape_keep_off_too_and_others_do_not(heard):
    record = make_record(slots=SLOTS)
    heard.mismatches.compare_pod(record, None, on_node("a", phase="Failed", reason="SMTAlignmentError"))
    alike = make_record(make_owner("other"))
    larger = make_record(
        make_owner("large", spec={"containers": [{"name": "c", "resources": {"requests": {"cpu": "9"}}}]})
    )
    assert heard.mismatches.nodes_to_avoid(alike.job.pod_sets[0].shape) == {"n1"}
    assert heard.mismatches.nodes_to_avoid(larger.job.pod_sets[0].shape) == frozenset()


def test_a_change_inside_the_node_brings_its_jobs_back_earlier(heard):
    record, other = make_record(slots=SLOTS), make_record(make_owner("other"))
    heard.mismatches.compare_pod(record, None, on_node("a", phase="Failed", reason="UnexpectedAdmissionError"))
    heard.queued.clear()
    heard.mismatches.shorten_backoff("n2", [record, other])
    assert heard.queued == []
    heard.mismatches.shorten_backoff("n1", [record, other])
    assert heard.queued == [(record.id, SHORT)]
    heard.now += SHORT
    assert heard.mismatches.nodes_to_avoid(record.job.pod_sets[0].shape) == frozenset()


def test_a_node_that_is_gone_is_left_out_no_more(heard):
    record = make_record(slots=SLOTS)
    heard.mismatches.leave_out(record, on_node("a", phase="Failed", reason="TopologyAffinityError"))
    heard.mismatches.forget_node("n1")
    assert heard.mismatches.nodes_to_avoid(record.job.pod_sets[0].shape) == frozenset()


@pytest.mark.parametrize(
    ("phase", "reason", "expected"),
    [
        ("Failed", "TopologyAffinityError", True),
        ("Failed", "SMTAlignmentError", True),
        ("Failed", "UnexpectedAdmissionError", True),
        ("Failed", "Evicted", False),
        ("Failed", "OutOfcpu", False),
        ("Failed", "", False),
        ("Running", "TopologyAffinityError", False),
    ],
)
def test_which_failures_are_refusals(phase, reason, expected):
    assert refused_by_kubelet(on_node("a", phase=phase, reason=reason)) is expected


def test_zones_other_than_predicted_are_told_when_they_are_seen(heard):
    record = make_record(slots=SLOTS)
    first = on_node("a", **{NUMA_PLACEMENT_PREDICTED: ZONE0})
    seen = on_node("a", **{NUMA_PLACEMENT_PREDICTED: ZONE0, NUMA_PLACEMENT_OBSERVED: ZONE1})
    heard.mismatches.compare_pod(record, None, first)
    heard.mismatches.compare_pod(record, first, seen)
    heard.mismatches.compare_pod(record, seen, seen)
    ((_, trouble),) = heard.told
    assert not trouble.refused
    assert trouble.message.endswith("got NUMA zones 1 instead of the predicted 0; from now on what it has counts")
    assert heard.mismatches.nodes_to_avoid(record.job.pod_sets[0].shape) == frozenset(), "the pod runs"
    assert heard.queued == []


@pytest.mark.parametrize(
    ("predicted", "observed"),
    [(ZONE0, ZONE0), ("", ZONE1), (ZONE0, ""), (ZONE0, "[]"), ("junk", ZONE1), (ZONE0, ZONE0.replace("4", "8"))],
)
def test_no_trouble_without_two_records_that_differ_in_zones(predicted, observed):
    given = {NUMA_PLACEMENT_PREDICTED: predicted, NUMA_PLACEMENT_OBSERVED: observed}
    assert misalignment(make_record(), on_node("a", **{key: text for key, text in given.items() if text})) is None


def test_devices_that_break_a_promise_are_told_once_where_the_zones_are_right(heard):
    record = make_record(slots=SLOTS)
    first = on_node("a", **{NUMA_PLACEMENT_PREDICTED: ZONE0})
    heard.broken = lambda pod: (
        ("2 of nvidia.com/gpu are not one NVLink clique",)
        if NUMA_PLACEMENT_OBSERVED in pod.metadata.annotations
        else ()
    )
    heard.mismatches.compare_pod(record, None, first)
    assert heard.told == []
    seen = on_node("a", **{NUMA_PLACEMENT_PREDICTED: ZONE0, NUMA_PLACEMENT_OBSERVED: ZONE0})
    heard.mismatches.compare_pod(record, first, seen)
    heard.mismatches.compare_pod(record, seen, seen)
    ((_, trouble),) = heard.told
    assert not trouble.refused
    assert trouble.message == (
        "pod a on n1 got devices that were not promised: 2 of nvidia.com/gpu are not one NVLink clique"
    )
