"""Pods that are made otherwise than their template says: by the API server, by webhooks, by whoever may change them."""

import msgspec
import pytest
from support.looked_at import LookedAt
from support.owned import make_job, make_pod
from support.queued_world import filled, queued

from engine.reasons import Reason
from kube.objects import LimitRange, RuntimeClass
from ungater.model.actions import Delete, Evict, TakePods, Ungate
from ungater.model.job_view import id_of
from ungater.model.workload_entry import DIFFERING_END
from ungater.reconcile.as_made import FIRST_PATIENCE, LONGEST_PATIENCE
from ungater.reconcile.reconcile import why_not_placed

CPU = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
MORE = [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]
RACK_2 = {"rack": "r2"}


@pytest.fixture
def world():
    return filled(LookedAt())


def record_of(world, job):
    return world.memory.entries[id_of(job)]


def placed(world, name="train", *, parallelism=2, **more):
    """A job without a queue that was admitted before its pods were made."""
    job = make_job(name, parallelism=parallelism, **more)
    world.put("job", job)
    world.settle()
    record = record_of(world, job)
    assert record.admission is not None
    return record


def made(world, record, *names, **spec):
    """Its pods, as somebody changed them."""
    for name in names:
        world.put("pod", make_pod(name, owner=record.own, spec=spec))


def racks(record):
    return {slot.values[1] for slot in record.slots.slots}


# --- what the API server is known to add ----------------------------------------------------------------------------


def test_a_default_request_of_the_namespace_counts_before_there_are_pods(world):
    """Case limitrange-default: 8 cpu of a quota of 4 wait with ExceedsQuota, and hold nothing."""
    limit = {"type": "Container", "defaultRequest": {"cpu": "4"}, "default": {"cpu": "4"}}
    ranges = {"metadata": {"name": "d", "namespace": "ns"}, "spec": {"limits": [limit]}}
    world.put("limit_range", msgspec.convert(ranges, LimitRange))
    job = queued(world, "train", spec={"containers": [{"name": "c"}]})
    world.settle()
    record = record_of(world, job)
    assert (record.admission, record.refused.reason) == (None, Reason.EXCEEDS_QUOTA)
    world.drop("limit_range", world.stores["limit_range"]["ns/d"])
    world.settle()
    assert record.admission is not None, "pods that are made now ask for less"


def sandboxed(world):
    body = {
        "metadata": {"name": "gvisor"},
        "scheduling": {"nodeSelector": RACK_2},
        "overhead": {"podFixed": {"cpu": "1"}},
    }
    world.put("runtime_class", msgspec.convert(body, RuntimeClass))


def test_a_job_goes_where_its_runtime_class_says_before_there_are_pods(world):
    """Case runtimeclass-scheduling."""
    sandboxed(world)
    record = placed(world, spec={"runtimeClassName": "gvisor", "containers": CPU})
    assert racks(record) == {"r2"}
    assert record.granted("main") == {"cpu": 2000}, "with its overhead"


def test_what_a_runtime_class_says_by_now_counts_for_who_waits(world):
    job = make_job("train", parallelism=2, suspend=True, spec={"runtimeClassName": "gvisor", "containers": CPU})
    world.put("job", job)
    sandboxed(world)
    assert record_of(world, job).job.pod_sets[0].template.spec.node_selector == RACK_2


# --- pods that are made otherwise -----------------------------------------------------------------------------------


def test_pods_that_were_changed_and_may_go_to_their_slots_go(world):
    record = placed(world)
    made(world, record, "a", "b", tolerations=[{"key": "x", "operator": "Exists"}])
    before = record.slots
    world.settle()
    assert record.job.pod_sets[0].as_made
    assert record.slots == before
    assert world.let_go(record) == ["a", "b"]


def test_a_gang_whose_pods_may_not_go_where_it_was_decided_is_decided_again_from_its_pods(world):
    record = placed(world)
    assert racks(record) == {"r1"}
    made(world, record, "a", "b", nodeSelector=RACK_2)
    assert world.let_go(record) == []
    world.settle()
    assert racks(record) == {"r2"}
    assert world.let_go(record) == ["a", "b"]


@pytest.mark.parametrize(
    "more",
    [
        {"hostNetwork": True, "containers": [{**CPU[0], "ports": [{"containerPort": 80, "protocol": "TCP"}]}]},
        {
            "topologySpreadConstraints": [
                {"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
            ]
        },
    ],
)
def test_what_other_pods_decide_is_decided_again_too(world, more):
    record = placed(world)
    first = record.grant
    made(world, record, "a", "b", **more)
    assert world.let_go(record) == []
    world.settle()
    assert record.admission is not None
    assert record.grant is not first
    assert world.let_go(record) == ["a", "b"]


def test_pods_that_ask_for_more_than_there_is_hold_nothing(world):
    record = placed(world)
    made(world, record, "a", "b", containers=[{"name": "c", "resources": {"requests": {"cpu": "3"}}}])
    world.settle()
    assert record.admission is None
    assert record.refused.reason is Reason.NEVER_FITS
    assert world.gated() == ["a", "b"]


def test_nothing_is_looked_at_twice_that_was_taken(world):
    record = placed(world)
    made(world, record, "a", "b", nodeSelector=RACK_2)
    world.settle()
    assert not [one for one in world.look(record) if isinstance(one, TakePods)]
    assert record.made["main"].changes == 0


def test_what_pods_turned_out_to_be_is_forgotten_with_the_template_they_were_made_from(world):
    record = placed(world)
    made(world, record, "a", "b", nodeSelector=RACK_2)
    world.settle()
    world.put("job", make_job("train", parallelism=2, spec={"containers": MORE}))
    assert not record.job.pod_sets[0].as_made


def test_pods_that_run_are_not_compared_and_one_that_is_made_otherwise_beside_them_goes_by_what_it_is(world):
    record = placed(world)
    made(world, record, "a", "b")
    world.settle()
    assert world.let_go(record) == ["a", "b"]
    world.drop("pod", world.stores["pod"]["ns/b"])
    made(world, record, "c", nodeSelector=RACK_2)
    world.settle()
    assert racks(record) == {"r1"}, "its domain is where the other runs"
    assert world.let_go(record) == []


# --- pods that differ from each other -------------------------------------------------------------------------------


def test_pods_that_differ_from_each_other_wait_with_the_reason_and_hold_nothing(world):
    record = placed(world)
    made(world, record, "a", nodeSelector=RACK_2)
    made(world, record, "b", nodeSelector={"rack": "r1"})
    for _ in range(3):
        world.settle()
        assert record.admission is None
        assert world.said(record).startswith("PodsChange: pod a (and 1 more) differs from other pods of Job ")
    world.drop("pod", world.stores["pod"]["ns/b"])
    made(world, record, "c", nodeSelector=RACK_2)
    world.settle()
    assert world.let_go(record) == ["a", "c"]


def differing(world, record, *names):
    """Pods of a workload, of which each second one is made otherwise; they are looked at."""
    made(world, record, *names[::2])
    made(world, record, *names[1::2], nodeSelector=RACK_2)
    world.settle()


def deleted(world, record):
    return sorted(one.pod.metadata.name for one in world.look(record) if isinstance(one, Delete))


def test_pods_that_stay_different_are_made_again_all_of_them_as_nobody_knows_what_the_next_are_like(world):
    record = placed(world)
    differing(world, record, "a", "b")
    world.now += FIRST_PATIENCE - 1
    assert deleted(world, record) == []
    world.now += 1
    assert deleted(world, record) == ["a", "b"]
    world.settle()
    made(world, record, "c", "d", nodeSelector=RACK_2)
    world.settle()
    assert world.let_go(record) == ["c", "d"]


def test_pods_that_somebody_changes_one_after_the_other_have_their_time_from_the_last_change_on(world):
    record = placed(world, parallelism=3)
    differing(world, record, "a", "b", "c")
    world.now += FIRST_PATIENCE - 1
    made(world, record, "c", nodeSelector=RACK_2)
    world.settle()
    world.now += FIRST_PATIENCE - 1
    assert deleted(world, record) == []


def test_each_time_that_pods_are_made_different_they_are_left_for_longer(world):
    record = placed(world)
    for at in range(9):
        differing(world, record, f"a{at}", f"b{at}")
        patience = min(FIRST_PATIENCE * 2**at, LONGEST_PATIENCE)
        world.now += patience - 1
        assert deleted(world, record) == []
        world.now += 1
        assert deleted(world, record) == [f"a{at}", f"b{at}"]
        world.settle()
    world.now += DIFFERING_END
    differing(world, record, "a", "b")
    world.now += FIRST_PATIENCE
    assert deleted(world, record) == ["a", "b"]


def test_pods_that_nobody_would_make_again_are_left_as_they_are(world):
    record = placed(world)
    for name, spec in (("a", {}), ("b", {"nodeSelector": RACK_2})):
        pod = make_pod(name, owner=record.own, spec=spec)
        owners = tuple(msgspec.structs.replace(one, controller=False) for one in pod.metadata.owner_references)
        meta = msgspec.structs.replace(pod.metadata, owner_references=owners)
        world.put("pod", msgspec.structs.replace(pod, metadata=meta))
    world.settle()
    world.now += FIRST_PATIENCE
    assert deleted(world, record) == []


def test_beside_pods_that_run_only_those_are_made_again_that_differ(world):
    record = placed(world, parallelism=4)
    made(world, record, "a", "b")
    world.settle()
    assert world.let_go(record) == ["a", "b"]
    made(world, record, "c", nodeSelector=RACK_2)
    made(world, record, "d", nodeSelector={"rack": "r3"})
    world.settle()
    world.now += FIRST_PATIENCE
    assert deleted(world, record) == ["c", "d"]
    world.settle()
    made(world, record, "e", "f")
    world.settle()
    assert world.let_go(record) == ["e", "f"]


def test_each_of_any_number_of_pods_that_differ_costs_no_more_than_a_look(world):
    job = make_job("train", parallelism=2000)
    world.put("job", job)
    record = record_of(world, job)
    made(world, record, *(f"p{at}" for at in range(3)))
    for at in range(300):
        made(world, record, f"x{at}", nodeSelector={"n": str(at)})
    world.settle()
    assert record.admission is None
    assert why_not_placed(record, world.memory.rules) is None
    assert world.said(record).startswith("PodsChange")


# --- in a queue -----------------------------------------------------------------------------------------------------


def started(world, name="train"):
    """A queued job that was admitted and unsuspended."""
    job = queued(world, name, spec={"containers": CPU})
    world.settle()
    record = record_of(world, job)
    assert record.admission is not None
    meta = msgspec.structs.replace(job.metadata, resource_version="9")
    world.put("job", msgspec.structs.replace(job, metadata=meta, spec=msgspec.structs.replace(job.spec, suspend=False)))
    world.settle()
    return record


def evictions(world, record):
    return [(one.reason, one.message) for one in world.look(record) if isinstance(one, Evict)]


def test_a_queued_job_is_put_back_at_once_and_decided_again_for_the_pods_as_they_were_made(world):
    record = started(world)
    assert racks(record) == {"r1"}
    made(world, record, "a", "b", nodeSelector=RACK_2)
    world.settle()
    ((reason, message),) = evictions(world, record)
    assert reason is Reason.PODS_DIFFER
    assert "differ from its template in what decides" in message
    for one in ("a", "b"):
        world.drop("pod", world.stores["pod"][f"ns/{one}"])
    assert record.job.pod_sets[0].template.spec.node_selector == RACK_2, "though no pod is there to say so"


def test_a_queued_job_whose_pods_ask_for_more_than_its_queue_has_gives_all_back(world):
    record = started(world)
    made(world, record, "a", "b", containers=[{"name": "c", "resources": {"requests": {"cpu": "3"}}}])
    world.settle()
    assert [reason for reason, _ in evictions(world, record)] == [Reason.ASKS_FOR_MORE]


def test_one_whose_pods_are_made_otherwise_each_time_backs_off(world):
    record = started(world)
    made(world, record, "a", "b", nodeSelector=RACK_2)
    world.settle()
    for one in ("a", "b"):
        world.drop("pod", world.stores["pod"][f"ns/{one}"])
    made(world, record, "c", "d", nodeSelector={"rack": "r3"})
    world.settle()
    assert [reason for reason, _ in evictions(world, record)] == [Reason.PODS_CHANGE]


def test_a_queued_job_whose_pods_differ_from_each_other_backs_off(world):
    record = started(world)
    made(world, record, "a", nodeSelector=RACK_2)
    made(world, record, "b")
    assert [reason for reason, _ in evictions(world, record)] == [Reason.PODS_CHANGE]
    assert not [one for one in world.look(record) if isinstance(one, Ungate)]
