"""Pods that come to their node in another order than foreseen exchange what was promised them."""

import pytest

from crds.constants import NUMA_PLACEMENT_OBSERVED, NUMA_PLACEMENT_PREDICTED
from crds.numa_placement import encode
from engine.cluster.state import ClusterState
from engine.kubelet.machine import NumaPlacement, ZoneUse
from kube.objects import ObjectMeta, Pod, PodSpec
from ungater.model.job_view import JobView
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa import placement_exchange


def placement(zone, cpu=8000):
    return NumaPlacement(zones=(ZoneUse(zone=zone, amounts={"cpu": cpu}),))


def make_pod(uid, predicted, observed=None):
    annotations = {NUMA_PLACEMENT_PREDICTED: encode(predicted)}
    if observed is not None:
        annotations[NUMA_PLACEMENT_OBSERVED] = encode(observed)
    return Pod(metadata=ObjectMeta(name=uid, uid=uid, annotations=annotations), spec=PodSpec(node_name="n"))


def make_record(name, *pods):
    owner = JobView("Job", "batch/v1", "default", name, name, "", (), None, gated=True)
    return WorkloadEntry(owner, pods={pod.metadata.uid: pod for pod in pods})


def settle(pod, *records):
    by_uid = {uid: record for record in records for uid in record.pods}
    beside = [each for record in records for each in record.pods.values()]
    record = by_uid[pod.metadata.uid]
    return placement_exchange.settle(ClusterState(), record, pod, beside, lambda each: by_uid.get(each.metadata.uid))


def test_a_pod_of_another_job_exchanges_where_it_was_promised_as_much():
    seen, waiting = make_pod("a", placement(4), placement(1)), make_pod("b", placement(1))
    first, second = make_record("first", seen), make_record("second", waiting)
    assert settle(seen, first, second) is waiting
    assert placement_exchange.promised(second, waiting) == placement(4)
    assert placement_exchange.promised(first, seen) == placement(1)


def test_a_chain_of_exchanges_leaves_every_zone_promised_once():
    pods = [make_pod("a", placement(4)), make_pod("b", placement(1)), make_pod("c", placement(3))]
    records = [make_record(pod.metadata.uid, pod) for pod in pods]
    for at, zone in ((0, 1), (1, 3), (2, 4)):  # each is seen where the next was expected
        pods[at] = make_pod(
            pods[at].metadata.uid, placement_exchange._read(pods[at], NUMA_PLACEMENT_PREDICTED), placement(zone)
        )
        records[at].pods = {pods[at].metadata.uid: pods[at]}
        settle(pods[at], *records)
        promises = [placement_exchange.promised(record, pod) for record, pod in zip(records, pods, strict=True)]
        assert sorted(promise.zones[0].zone for promise in promises) == [1, 3, 4]
    assert [placement_exchange.promised(r, p).zones[0].zone for r, p in zip(records, pods, strict=True)] == [1, 3, 4]


def test_a_pod_of_the_same_job_goes_first():
    seen, mate, other = (
        make_pod("a", placement(4), placement(1)),
        make_pod("z", placement(1)),
        make_pod("b", placement(1)),
    )
    assert settle(seen, make_record("second", other), make_record("first", seen, mate)) is mate


@pytest.mark.parametrize(
    "other",
    [make_pod("b", placement(1, cpu=4000)), make_pod("b", placement(2)), make_pod("b", placement(1), placement(1))],
    ids=["another amount", "another zone", "observed already"],
)
def test_who_does_not_exchange(other):
    seen = make_pod("a", placement(4), placement(1))
    first, second = make_record("first", seen), make_record("second", other)
    assert settle(seen, first, second) is None
    assert second.swaps == {}
