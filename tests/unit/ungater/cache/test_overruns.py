"""Pods of an earlier admission that end slowly: what they take beyond what their workload has now is charged too."""

import msgspec
import pytest
from support.owned import KEYS, make_owner, make_pod, make_record
from support.queued_world import cluster_queue, entry_of, filled, queued
from support.world import World

from crds.admitted_quota import AdmittedQuota, encode
from crds.constants import ADMITTED_QUOTA
from kube.objects import Condition, ContainerStatus
from queueing.queues.held import Held
from queueing.queues.queues import Queues
from ungater.cache.charges.overruns import Overruns


@pytest.fixture
def world():
    return filled(World())


def running(world, job, name, cpu, *, queue="cq", ends=True):
    """A pod of the job that was let go by ``queue`` earlier, runs, and is told to end."""
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    owner = entry_of(world, job).job
    pod = make_pod(
        name, owner=owner, at=("b", "r2", "r2-h2"), node="r2-h2", phase="Running", spec={"containers": [container]}
    )
    annotations = {
        **pod.metadata.annotations,
        KEYS.pod_set: "main",
        ADMITTED_QUOTA: encode(AdmittedQuota(queue, {"cpu": "gpu"})),
    }
    ended = "2026-11-21T01:00:00Z" if ends else None
    meta = msgspec.structs.replace(pod.metadata, annotations=annotations, deletion_timestamp=ended)
    pod = msgspec.structs.replace(pod, metadata=meta)
    world.put("pod", pod)
    return pod


def used(world, queue="cq"):
    return world.memory.queues.quotas.used(queue, ("gpu", "cpu"))


def test_pods_that_are_larger_than_what_was_admitted_since_are_charged_with_what_is_more(world):
    """A tenant has pods of 3 CPUs that take an hour to end, and asks for a pod of one meanwhile."""
    job = queued(world, "train", 1)
    old = running(world, job, "old", "3")
    assert used(world) == 3000, "by itself, while its workload holds nothing"
    world.admit(job)
    assert used(world) == 3000, "1 by its workload, the rest beside it"
    again = world.restarted()
    assert again.queues.quotas.used("cq", ("gpu", "cpu")) == 3000
    world.drop("pod", old)
    assert used(world) == 1000


def test_more_pods_than_were_admitted_since_are_charged(world):
    job = queued(world, "train", 1)
    pods = [running(world, job, f"old-{number}", "1") for number in range(3)]
    world.admit(job)
    assert used(world) == 3000
    assert world.restarted().queues.quotas.used("cq", ("gpu", "cpu")) == 3000
    for left, pod in zip((2000, 1000, 1000), pods, strict=True):
        world.drop("pod", pod)
        assert used(world) == left


def test_what_a_workload_holds_covers_pods_that_end_as_it_covers_others(world):
    job = queued(world, "train", 2)
    for number in range(2):
        running(world, job, f"old-{number}", "1")
    world.admit(job)
    assert used(world) == 2000


def test_pods_that_run_by_another_queue_are_charged_there(world):
    body = msgspec.structs.replace(
        cluster_queue(4), metadata=msgspec.structs.replace(cluster_queue(4).metadata, name="other")
    )
    world.put("cluster_queue", body)
    job = queued(world, "train", 1)
    running(world, job, "old", "2", queue="other")
    world.admit(job)
    assert (used(world), used(world, "other")) == (1000, 2000)


def test_a_pod_that_was_resized_where_it_runs_is_charged_with_it(world):
    job = queued(world, "train", 1)
    world.admit(job)
    pod = running(world, job, "one", "1", ends=False)
    assert used(world) == 1000
    running(world, job, "one", "3", ends=False)
    assert used(world) == 3000
    running(world, job, "one", "1", ends=False)
    assert used(world) == 1000
    world.drop("pod", pod)
    assert used(world) == 1000


FORGED = (ContainerStatus(name="c", allocated_resources={"cpu": "9223372036854775807"}),)


@pytest.mark.parametrize(
    ("condition", "charged"), [("Ready", 1000), ("PodResizeInProgress", 2000), ("PodResizePending", 2000)]
)
def test_a_node_that_writes_what_a_pod_was_given_is_charged_no_further_than_the_pod_asked_or_the_node_has(
    world, condition, charged
):
    """Whoever has the credentials of a kubelet writes any amount into the status of a pod there; it has 2 CPUs."""
    job = queued(world, "train", 1)
    world.admit(job)
    pod = running(world, job, "one", "1", ends=False)
    conditions = (Condition(type=condition, status="True"),)
    status = msgspec.structs.replace(pod.status, container_statuses=FORGED, conditions=conditions)
    touched = msgspec.structs.replace(pod.metadata, labels={**(pod.metadata.labels or {}), "touch": "1"})
    world.put("pod", msgspec.structs.replace(pod, status=status, metadata=touched))
    assert used(world) == charged
    assert world.restarted().queues.quotas.used("cq", ("gpu", "cpu")) == charged


def test_nothing_stays_of_a_workload_that_is_gone(world, monkeypatch):
    made = []
    real = Overruns.begin_sum
    monkeypatch.setattr(Overruns, "begin_sum", lambda self, *rest: (made.append(self), real(self, *rest))[1])
    job = queued(world, "train", 1)
    pod = running(world, job, "old", "3")
    world.admit(job)
    record = entry_of(world, job)
    world.memory.admissions.release_job(record)
    assert used(world) == 3000
    world.drop("pod", pod)
    assert used(world) == 0
    (overruns,) = set(made)
    assert not overruns.follows(record)
    assert not overruns._of


@pytest.mark.parametrize("amounts", [{}, {("gpu", "cpu"): 0}])
def test_pods_that_take_nothing_of_a_queue_may_change(amounts):
    overruns, entry = Overruns(Queues()), make_record(make_owner())
    overruns.begin_sum(entry, [("a", Held("nosuch", amounts))])
    for _ in range(2):
        assert not overruns.record_taken(entry, "a", Held("nosuch", amounts))
    assert not overruns.forget_pod("a")


def test_no_sum_is_kept_of_pods_that_take_nothing_any_more():
    overruns, entry = Overruns(Queues()), make_record(make_owner())
    takes = Held("nosuch", {("gpu", "cpu"): 1})
    overruns.begin_sum(entry, [("a", takes), ("b", takes), ("c", None)])
    assert not overruns.record_taken(entry, "a", None)
    assert overruns.follows(entry)
    assert overruns.record_taken(entry, "b", None), "quota is free again"
    assert not overruns.follows(entry)
    assert not overruns.forget_pod("a")


def test_a_pod_that_its_new_owner_does_not_pay_for_is_not_in_the_sum_of_that_one(world):
    """A tenant has a pod name another Job as its owner: it runs by the old one, also while the new one runs over."""
    first, other = queued(world, "first", 1), queued(world, "other", 1)
    for job in (first, other):
        world.admit(job)
    moved = running(world, first, "moved", "2", ends=False)
    assert used(world) == 3000, "1 by each workload, 1 beside the first"
    refs = make_pod(owner=entry_of(world, other).job).metadata.owner_references
    moved = msgspec.structs.replace(moved, metadata=msgspec.structs.replace(moved.metadata, owner_references=refs))
    world.put("pod", moved)
    assert used(world) == 3000
    over = running(world, other, "over", "2", ends=False)
    assert used(world) == 4000
    world.drop("pod", over)
    world.drop("pod", moved)
    assert used(world) == 2000, "nothing is charged for whom there is no pod"


def test_a_pod_is_in_one_sum():
    overruns = Overruns(Queues())
    first, second = (make_record(make_owner(name)) for name in ("first", "second"))
    takes = Held("nosuch", {("gpu", "cpu"): 1})
    assert not overruns.begin_sum(first, [("a", takes)])
    assert not overruns.record_taken(first, "a", takes)
    assert overruns.begin_sum(second, [("a", takes)]), "quota is free again"
    assert not overruns.follows(first)
    assert not overruns.forget_pod("a"), "it took nothing beside what was settled"
    assert not overruns.follows(second)


@pytest.mark.parametrize(("node", "charged"), [("", 1000), ("r1-h1", 100_000)])
def test_a_pod_that_nobody_let_go_is_charged_once_a_node_has_it(world, node, charged):
    """A tenant makes pods that fit nowhere, and says that its Job owns them: a shared queue would be full for ever."""
    job = queued(world, "train", 1)
    world.admit(job)
    container = {"name": "c", "resources": {"requests": {"cpu": "100"}}}
    owner = entry_of(world, job).job
    world.put("pod", made := make_pod("forged", owner=owner, gated=False, spec={"containers": [container]}))
    assert used(world) == 1000
    world.put("pod", msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, node_name=node)))
    assert used(world) == charged
    assert world.restarted().queues.quotas.used("cq", ("gpu", "cpu")) == charged
