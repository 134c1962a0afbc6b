"""Pods that name a ResourceClaim: they go where its devices are reached from, and while it has none it is for one."""

import msgspec
import pytest
from support.claims_world import ONE, Devices, a_pod, read, spec
from support.equipped import DRIVER, META, Equipped, claim, gpus, on, request_of, told

from engine.reasons import Reason
from kube.pods.devices import ResourceClaim
from ungater.cache.claims.known_claims import MOST_USERS
from ungater.scheduling.replacement import replace_lost_slots

NAMED = [{"name": "gpu", "resourceClaimName": "mine"}]
NOT_COUNTED = Reason.RESOURCE_CLAIMS_NOT_COUNTED


def named(node="", *, name="mine", count=1, users=(), zone="", **meta):
    """A claim, with one device of a node where that is given; ``zone``: it is reached from many nodes."""
    status = {}
    if node:
        results = [{"request": "gpu", "driver": DRIVER, "pool": node, "device": "gpu-0"}]
        need = {"key": "zone", "operator": "In", "values": [zone]}
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        term = {"matchExpressions": [need]} if zone else {"matchFields": [field]}
        selector = {} if zone == "*" else {"nodeSelector": {"nodeSelectorTerms": [term]}}
        status = {"allocation": {"devices": {"results": results}, **selector}}
    if users:
        status["reservedFor"] = [{"resource": "pods", "name": uid, "uid": uid} for uid in users]
    spec = {"devices": {"requests": [request_of(count)]}}
    return read(ResourceClaim, {"metadata": {"name": name, **META, **meta}, "spec": spec, "status": status})


@pytest.fixture
def world():
    return Equipped()


def pod_of(world, record, name, claims=NAMED):
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": record.job.name, "uid": record.job.uid}
    pod = a_pod(name, owner={**owner, "controller": True}, claims=claims)
    world.put("pod", pod)
    return pod


# -- (a) a claim that has devices -----------------------------------------------------------------------------------


def test_pods_go_where_the_devices_of_their_claim_are(world):
    world.put("resource_claim", named("r2-h1"))
    assert on(world.placed(count=3, claims=NAMED)) == {"r2-h1": 3}
    assert on(world.placed("others", 3)) == {"r2-h1": 1, "r2-h2": 2}


def test_its_devices_are_taken_once_whoever_uses_them(world):
    world.put("resource_claim", named("r2-h1"))
    world.placed(count=3, claims=NAMED)
    assert on(world.placed("rest", 3)) == {"r2-h1": 1, "r2-h2": 2}
    assert set(on(world.placed("more", 4))) == {"r1-h1", "r1-h2"}


def test_who_does_not_fit_where_they_are_is_told(world):
    world.put("resource_claim", named("r2-h1"))
    reason, text = told(world, world.placed(count=5, claims=NAMED))
    assert reason is Reason.NEVER_FITS
    assert "cpu" in text


def test_devices_that_are_reached_from_nowhere_take_nobody(world):
    world.put("resource_claim", named("r2-h1", zone="none"))
    reason, text = told(world, world.placed(count=1, claims=NAMED))
    assert (reason, "no node is reached by the devices of the pods" in text) == (Reason.NEVER_FITS, True)


def test_devices_that_are_reached_from_everywhere_keep_nobody(world):
    world.put("resource_claim", named("r2-h1", zone="*"))
    assert sum(on(world.placed(count=5, claims=NAMED)).values()) == 5


def test_a_claim_beside_one_of_a_template(world):
    world.put("resource_claim", named("r2-h1"))
    assert on(world.placed(count=1, claims=[*ONE, {**NAMED[0], "name": "other"}])) == {"r2-h1": 1}
    assert on(world.placed("two", 2, claims=[*ONE, {**NAMED[0], "name": "other"}])) is None


def test_no_more_than_256_pods_use_a_claim(world):
    users = [f"u{number}" for number in range(MOST_USERS - 1)]
    world.put("resource_claim", named("r2-h1", users=users))
    record = world.job(claims=NAMED)
    told_so = 'ResourceClaim "mine" takes 256 pods, of which 1 may still come: 2 name it'
    assert world.why(record) == (
        NOT_COUNTED,
        f'the pods of pod set main have resource claim "gpu" (ResourceClaim "mine"): {told_so}',
    )
    world.asked.clear()
    world.put("resource_claim", named("r2-h1", users=users[1:]))
    assert (world.asked, world.why(record)) == ([record.id], None)


def test_a_pod_goes_only_to_a_slot_that_its_claim_reaches(world):
    """The claim was given back and is given again, somewhere else."""
    world.put("resource_claim", named("r1-h1"))
    record = world.placed(count=1, claims=NAMED)
    assert on(record) == {"r1-h1": 1}
    world.put("resource_claim", named("r2-h1"))
    pod_of(world, record, "train-x")
    assert world.let_go(record) == []
    told_so = "ClaimNodeAffinity: the devices of the claims of pod train-x reach none of the free slots"
    assert world.said(record).startswith(told_so)
    world.put("resource_claim", named("r1-h2"))
    world.settle()
    (part,) = replace_lost_slots(world.memory, record).assignments
    assert [one.nodes for one in part.slices] == [(("r1-h2", 1),)]


def test_what_was_admitted_on_devices_that_are_gone_again_stays_gated(world):
    world.put("resource_claim", named("r1-h1"))
    record = world.placed(count=1, claims=NAMED)
    world.put("resource_claim", named())
    pod_of(world, record, "train-x")
    assert world.let_go(record) == []
    assert "for which Job train was given no devices" in world.said(record)
    world.put("resource_claim", named("r1-h1"))
    assert world.let_go(record) == ["train-x"]


# -- (b) a claim without devices ------------------------------------------------------------------------------------


def test_a_claim_without_devices_is_counted_for_one_pod():
    world = Equipped(["r1-h1"])
    world.put("resource_claim", named(count=2))
    record = world.placed(count=1, claims=NAMED)
    assert on(record) == {"r1-h1": 1}
    assert world.placed("other", 1).admission is None
    pod_of(world, record, "train-x")
    assert world.let_go(record) == ["train-x"]


def test_once_it_has_devices_these_are_taken_and_nothing_is_promised():
    world = Equipped(["r1-h1"])
    world.put("resource_claim", named())
    record = world.placed(count=1, claims=NAMED)
    world.put("resource_claim", named("r1-h1"))
    assert on(world.placed("other", 1)) == {"r1-h1": 1}
    pod_of(world, record, "train-x")
    assert world.let_go(record) == ["train-x"]
    assert world.placed("third", 1).admission is None


def test_a_restart_keeps_what_was_promised(world):
    world.put("resource_claim", named(count=2))
    record = world.placed(count=1, claims=NAMED)
    again = world.restarted()
    asks = again.entries[record.id].grant.assignments[0].devices
    assert asks == record.grant.assignments[0].devices
    pod_ask = world.placed("other", 1).grant.assignments[0].devices
    assert sorted(again.state.cluster.devices.count_by_node(pod_ask).tolist()) == [0, 2, 2, 2]


def test_it_waits_for_a_claim_that_is_not_there(world):
    record = world.job(count=1, claims=NAMED)
    assert world.why(record)[1].endswith(': ResourceClaim "mine" does not exist')
    world.asked.clear()
    world.put("resource_claim", named())
    assert (world.asked, world.why(record)) == ([record.id], None)
    world.asked.clear()
    world.drop("resource_claim", named())
    assert world.asked == [record.id]
    assert world.why(record)[1].endswith(': ResourceClaim "mine" does not exist')


def test_a_claim_that_is_being_deleted_is_for_nobody(world):
    world.put("resource_claim", named("r1-h1", deletionTimestamp="2026-11-21T00:00:00Z"))
    assert world.why(world.job(count=1, claims=NAMED))[1].endswith(': ResourceClaim "mine" is being deleted')


def test_a_claim_that_is_made_for_a_pod_is_that_pods_until_it_has_devices(world):
    made = claim("p", "")
    world.put("resource_claim", made)
    claims = [{"name": "gpu", "resourceClaimName": made.metadata.name}]
    record = world.job(count=1, claims=claims)
    assert world.why(record)[1].endswith("is made for pod p, and has no devices yet")
    world.put("resource_claim", claim("p", "r2-h1", 0))
    assert world.why(record) is None


def test_a_claim_that_is_deleted_in_use_lets_nobody_go(world):
    world.put("resource_claim", named("r1-h1"))
    record = world.placed(count=1, claims=NAMED)
    world.drop("resource_claim", named())
    pod_of(world, record, "train-x")
    assert world.let_go(record) == []
    assert on(world.placed("others", 4)) is not None


def test_a_claim_without_devices_is_one_workloads(world):
    world.put("resource_claim", named())
    first, second = world.job("first", 1, claims=NAMED), world.job("second", 1, claims=NAMED)
    assert world.why(first) is None
    assert "and Job first is" in world.why(second)[1]
    assert world.why(second)[1].endswith("is to have it first")
    world.settle()
    assert (first.admission is not None, second.admission) == (True, None)
    world.asked.clear()
    world.put("resource_claim", named(next(iter(on(first)))))
    assert second.id in world.asked
    world.settle()
    assert on(second) == on(first)


def test_who_waited_behind_another_is_looked_at_when_that_is_gone(world):
    world.put("resource_claim", named())
    first, second = world.job("first", 1, claims=NAMED), world.job("second", 1, claims=NAMED)
    world.settle()
    assert (first.admission is not None, second.admission) == (True, None)
    world.asked.clear()
    world.drop("job", world.stores["job"]["ns/first"])
    assert second.id in world.asked
    world.settle()
    assert second.admission is not None


def test_who_is_over_has_it_no_more(world):
    world.put("resource_claim", named())
    world.job("first", 1, claims=NAMED)
    second = world.job("second", 1, claims=NAMED)
    world.settle()
    world.asked.clear()
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    job = world.stores["job"]["ns/first"]
    status = msgspec.convert(done, type(job.status))
    world.put("job", msgspec.structs.replace(job, status=status))
    assert second.id in world.asked
    world.settle()
    assert second.admission is not None


def test_ten_thousand_claims_that_others_name_cost_nobody_anything():
    world = Devices()
    record = world.job(count=1, claims=NAMED)
    world.asked.clear()
    for number in range(10_000):
        world.put("resource_claim", named(name=f"c{number}"))
    assert world.asked == []
    world.put("resource_claim", named())
    assert world.asked == [record.id]


# -- (c) several pods of one claim without devices ------------------------------------------------------------------


def test_pods_that_share_a_claim_without_devices_go_onto_one_node_that_has_them():
    world = Equipped(["r2-h1"])
    world.put("resource_claim", named(count=2))
    record = world.placed(count=3, claims=NAMED)
    assert on(record) == {"r2-h1": 3}
    for name in "abc":
        pod_of(world, record, f"train-{name}")
    assert world.let_go(record) == ["train-a"]
    assert "train-a is to get them" in world.said(record)
    world.put("resource_claim", named("r2-h1"))
    assert world.let_go(record) == ["train-b", "train-c"]


def test_others_follow_once_the_first_is_on_its_node():
    """Until then kube-scheduler takes the claim for one that it is allocating, and finds no node for them."""
    world = Equipped(["r2-h1"])
    world.put("resource_claim", named(count=2))
    record = world.placed(count=2, claims=NAMED)
    for name in "ab":
        pod_of(world, record, f"train-{name}")
    assert world.let_go(record) == ["train-a"]
    bound = world.stores["pod"]["ns/train-a"]
    world.put("pod", msgspec.structs.replace(bound, spec=msgspec.structs.replace(bound.spec, node_name=None)))
    world.put("resource_claim", named("r2-h1", users=["u-train-a"]))
    assert world.let_go(record) == []
    assert "is just being given to pod train-a" in world.said(record)
    world.asked.clear()
    world.put("pod", bound)
    assert record.id in world.asked
    assert world.let_go(record) == ["train-b"]


def test_what_they_share_counts_once_on_their_node():
    world = Equipped(["r2-h1"])
    world.put("resource_claim", named())
    assert on(world.placed(count=3, claims=NAMED)) == {"r2-h1": 3}
    assert on(world.placed("other", 1)) == {"r2-h1": 1}
    assert world.placed("third", 1).admission is None


def test_once_it_has_devices_nothing_is_kept_beside_them():
    world = Equipped(["r2-h1"])
    world.put("resource_claim", named())
    record = world.placed(count=3, claims=NAMED)
    assert on(record) == {"r2-h1": 3}
    world.put("resource_claim", named("r2-h1"))
    assert on(world.placed("other", 1)) == {"r2-h1": 1}


def test_no_node_takes_more_than_its_amounts_for_that(world):
    world.put("resource_claim", named())
    reason, text = told(world, world.placed(count=5, claims=NAMED))
    assert reason is Reason.NEVER_FITS
    assert "5 pods do not fit one node" in text


def test_where_its_devices_are_nowhere_it_is_told(world):
    world.put("resource_claim", named(count=3))
    reason, text = told(world, world.placed(count=2, claims=NAMED))
    assert reason is Reason.NEVER_FITS
    assert 'request "gpu" (3 of DeviceClass "gpu"): 2 fit' in text


def test_two_workloads_share_one_claim_one_after_the_other(world):
    world.put("resource_claim", named())
    first, second = world.job("first", 2, claims=NAMED), world.job("second", 2, claims=NAMED)
    world.settle()
    assert (first.admission is not None, second.admission) == (True, None)
    world.put("resource_claim", named(next(iter(on(first)))))
    world.settle()
    assert on(second) == on(first)


def test_a_workload_that_shares_a_claim_grows_on_its_node():
    world = Equipped(["r2-h1"])
    world.put("resource_claim", named())
    record = world.placed(count=2, claims=NAMED)
    world.put("resource_claim", named("r2-h1"))
    job = world.stores["job"]["ns/train"]
    world.put("job", msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, parallelism=3, completions=3)))
    world.settle()
    assert on(record) == {"r2-h1": 3}


def test_a_restart_keeps_those_that_share_a_claim_where_they_are():
    world = Equipped(["r2-h1"])
    world.put("resource_claim", named())
    record = world.placed(count=3, claims=NAMED)
    again = world.restarted()
    asks = again.entries[record.id].grant.assignments[0].devices
    assert (asks, asks.shared) == (record.grant.assignments[0].devices, True)
    waits = world.placed("other", 2)
    assert waits.admission is None
    ask = world.placed("third", 1).grant.assignments[0].devices
    for memory in (world.memory, again):
        found = memory.state.cluster.devices.count_by_node(ask)
        assert int(found.max()) == (0 if memory is world.memory else 1)


@pytest.mark.parametrize("claims", [[*ONE, {"name": "x", "resourceClaimName": "mine"}]])
def test_pods_that_share_a_claim_and_have_others_wait_until_it_has_devices(world, claims):
    world.put("resource_claim", named())
    record = world.job(count=2, claims=claims)
    assert world.why(record)[0] is NOT_COUNTED
    assert world.why(record)[1].endswith("a shared domain can share it: they have other devices too")
    world.put("resource_claim", named("r1-h2"))
    world.settle()
    assert world.why(record) is None


def test_pod_sets_that_share_a_claim_wait_until_it_has_devices(world):
    world.put("resource_claim", named())
    record = world.jobset(spec(claims=NAMED), spec(claims=NAMED))
    assert world.why(record)[1].endswith("pod sets leader and workers share it")


def test_of_pods_that_come_to_share_it_one_goes_ahead_and_the_others_follow(world):
    """A Job of one pod grows before its claim has devices."""
    world.put("resource_claim", named())
    record = world.placed(count=1, claims=NAMED)
    pod_of(world, record, "train-a")
    pod_of(world, record, "train-b")
    assert world.let_go(record) == ["train-a"]
    assert world.let_go(record) == []


# -- (d) devices that several nodes reach ---------------------------------------------------------------------------


def fabric(rack="r1", count=2):
    """Devices that all nodes of a rack reach."""
    need = {"key": "rack", "operator": "In", "values": [rack]}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [need]}]}
    return gpus(rack, count, nodeName=None, nodeSelector=selector)


def rack_wide():
    world = Equipped([])
    world.put("resource_slice", fabric())
    return world


def in_rack(device_of="r1", **fields):
    """The claim with one device of a rack."""
    made = named(device_of, zone="z", **fields)
    need = {"key": "rack", "operator": "In", "values": [device_of]}
    term = {"matchExpressions": [need]}
    results = [{"request": "gpu", "driver": DRIVER, "pool": device_of, "device": "gpu-0"}]
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    body = msgspec.to_builtins(made)
    body["status"]["allocation"] = allocation
    return read(ResourceClaim, body)


def test_pods_that_share_a_claim_stand_on_all_nodes_that_reach_its_devices():
    world = rack_wide()
    world.put("resource_claim", named())
    record = world.placed(count=6, claims=NAMED)
    assert on(record) == {"r1-h1": 4, "r1-h2": 2}
    for name in "abcdef":
        pod_of(world, record, f"train-{name}")
    assert world.let_go(record) == ["train-a"]
    assert "train-a is to get them" in world.said(record)
    world.put("resource_claim", in_rack())
    assert world.let_go(record) == [f"train-{name}" for name in "bcdef"]


def test_it_counts_once_for_all_the_nodes_of_its_pods():
    world = rack_wide()
    world.put("resource_claim", named())
    assert sum(on(world.placed(count=6, claims=NAMED)).values()) == 6
    assert on(world.placed("other", 1)) == {"r1-h2": 1}
    assert world.placed("third", 1).admission is None
    world.put("resource_claim", in_rack())
    assert world.placed("fourth", 1).admission is None


def test_they_go_no_further_than_their_workload_asks():
    world = rack_wide()
    world.put("resource_claim", named())
    record = world.placed(count=9, claims=NAMED)
    reason, _ = told(world, record)
    assert reason is Reason.NEVER_FITS


def test_a_workload_that_shares_a_claim_grows_where_its_devices_reach():
    world = rack_wide()
    world.put("resource_claim", named())
    record = world.placed(count=4, claims=NAMED)
    assert len(on(record)) == 1
    for there in (named(), in_rack()):
        world.put("resource_claim", there)
        job = world.stores["job"]["ns/train"]
        size = job.spec.parallelism + 2
        grown = msgspec.structs.replace(job.spec, parallelism=size, completions=size)
        world.put("job", msgspec.structs.replace(job, spec=grown))
        world.settle()
        assert sum(on(record).values()) == size
        assert set(on(record)) == {"r1-h1", "r1-h2"}


def test_pods_of_templates_are_counted_over_the_nodes_that_reach_their_devices():
    world = rack_wide()
    assert sum(on(world.placed(count=2)).values()) == 2
    reason, text = told(world, world.placed("more", 1))
    assert reason is Reason.DOES_NOT_FIT
    assert "of 2 devices that nodes share, 0 held and 2 kept for pods on these nodes" in text
