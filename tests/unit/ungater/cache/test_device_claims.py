"""Workloads whose pods ask for devices of resource claims, or of DeviceClasses: they wait, and say for what."""

import pytest
from support.claims_world import GPU, ONE, SET, Devices, a_class, a_pod, publishing, spec
from support.owned import make_job

from engine.reasons import Reason
from kube.informer import Event, EventKind
from kube.pods.device_claims import CLASS_PREFIX
from kube.pods.limits import MOST_CLAIMS
from ungater.cache.claims.claimed_devices import UNREAD
from ungater.cache.claims.device_claims import NOT_ALIKE
from ungater.model.actions import EmitEvent, Ungate, WriteConditions
from ungater.reconcile.reconcile import why_not_placed
from ungater.scheduling import relocation
from ungater.scheduling.replacement import refused_text

NOT_COUNTED = Reason.RESOURCE_CLAIMS_NOT_COUNTED
WHY = "it names neither a ResourceClaim nor a template"


@pytest.fixture
def world():
    return Devices()


@pytest.fixture
def older():
    """The API server does not serve all that tells of devices."""
    found = Devices()
    found.reads_devices = False
    return found


# -- resource claims ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "words", "why"),
    [
        (ONE, '"gpu" (of template "one-gpu")', 'ResourceClaimTemplate "one-gpu" does not exist'),
        (
            [{"name": "gpu", "resourceClaimName": "shared"}],
            '"gpu" (ResourceClaim "shared")',
            'ResourceClaim "shared" does not exist',
        ),
        (
            [*ONE, {"name": "nic", "resourceClaimName": "nic"}, {"name": "x"}],
            '"gpu" (of template "one-gpu") and 2 more',
            WHY,
        ),
        ([{"name": "any"}], '"any"', WHY),
        ([{}], '""', WHY),
        ([{"name": "\u0000\n" * 9}], '"' + "\u0000\n" * 9 + '"', WHY),
    ],
)
def test_a_job_whose_pods_have_claims_waits_and_names_them(world, claims, words, why):
    record = world.job(claims=claims)
    world.settle()
    assert record.admission is None
    assert world.why(record) == (NOT_COUNTED, f"the pods of pod set main have resource claim {words}: {why}")


def test_it_is_told_as_a_condition_and_as_an_event(world):
    record = world.job(claims=ONE)
    world.settle()
    steps = world.look(record)
    wanted = [one.wanted[0] for one in steps if isinstance(one, WriteConditions)]
    assert [(one.type, one.status, one.reason) for one in wanted] == [("QuotaReserved", False, NOT_COUNTED)]
    assert [(one.type, one.reason) for one in steps if isinstance(one, EmitEvent)] == [("Warning", NOT_COUNTED)]


def test_what_a_container_alone_names_counts_as_a_claim(world):
    """The API server refuses such a pod; a file may have one."""
    assert world.why(world.job(used=["gpu"])) == (
        NOT_COUNTED,
        f'the pods of pod set main have resource claim "gpu": {WHY}',
    )


@pytest.mark.parametrize("claims", [None, []])
def test_a_job_without_claims_is_placed(world, claims):
    record = world.job(claims=claims)
    world.settle()
    assert record.admission is not None


def test_others_are_placed_meanwhile(world):
    waits, goes = world.job("waits", claims=ONE), world.job("goes")
    world.settle()
    assert (waits.admission, goes.admission is not None) == (None, True)


def test_so_many_claims_are_too_many(world):
    many = [{"name": f"c{number}"} for number in range(MOST_CLAIMS)]
    assert world.why(world.job("at-most", claims=many))[1].startswith(
        f'the pods of pod set main have resource claim "c0" and {MOST_CLAIMS - 1} more: '
    )
    reason, message = world.why(world.job("more", claims=[*many, {"name": "one-more"}] * 100))
    assert (reason, "spec.resourceClaims: Too many: 12900 resource claims" in message) == (Reason.TOO_LARGE, True)


def test_a_pod_set_of_a_jobset_is_named(world):
    record = world.jobset(spec(claims=ONE))
    world.settle()
    assert world.why(record)[0] is NOT_COUNTED
    assert world.why(record)[1].startswith("the pods of pod set workers have")


def test_a_leader_waits_as_its_workers_have_claims(world):
    record = world.leaders(spec(claims=ONE))
    assert record.admission is None
    assert world.why(record)[1].startswith("the pods of pod set workers have")


@pytest.mark.parametrize(
    "owner",
    [
        SET,
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u-rs", "controller": True},
        {"apiVersion": "example.com/v1", "kind": "Thing", "name": "t", "uid": "u-t", "controller": True},
        None,
    ],
)
def test_pods_of_any_owner_and_of_none_wait(world, owner):
    record = world.group("p", owner, claims=ONE)
    assert (record.admission, world.why(record)[0]) == (None, NOT_COUNTED)
    assert world.let_go(record) == []


def test_one_pod_of_an_owner_is_enough(world):
    world.group("a", total=2, claims=ONE)
    record = world.group("b", total=2)
    assert record.admission is None
    assert world.why(record) == (
        NOT_COUNTED,
        f'its pods, such as a, have resource claim "gpu" (of template "one-gpu"): {NOT_ALIKE}',
    )


def test_a_restart_says_the_same(world):
    record = world.job(claims=ONE)
    world.settle()
    again = world.restarted().entries[record.id]
    assert why_not_placed(again, world.memory.rules) == world.why(record)


# -- pods that have claims of which their workload was not admitted with --------------------------------------------


def test_a_pod_of_a_workload_that_runs_stays_gated(world):
    record = world.group("db-0", labels={"apps.kubernetes.io/pod-index": "0"})
    assert world.let_go(record) == ["db-0"]
    record = world.group("db-1", labels={"apps.kubernetes.io/pod-index": "1"}, claims=ONE)
    assert (world.let_go(record), record.admission is not None) == ([], True)
    assert world.said(record) == (
        'ResourceClaimsNotCounted: pod db-1 stays gated: it has resource claim "gpu" (of template "one-gpu"), '
        "for which StatefulSet db was given no devices"
    )


def test_one_of_which_none_runs_gives_its_place_back_and_waits(world):
    record = world.group("db-0")
    assert record.admission is not None
    for pod in tuple(world.stores["pod"].values()):
        world.drop("pod", pod)
    world.put("pod", a_pod("db-0", owner=SET, claims=ONE))
    world.settle()
    (record,) = world.memory.entries.values()
    assert (record.admission, world.why(record)[0]) == (None, NOT_COUNTED)
    world.drop("pod", world.stores["pod"]["ns/db-0"])
    world.put("pod", a_pod("db-0", owner=SET))
    world.settle()
    (record,) = world.memory.entries.values()
    assert world.let_go(record) == ["db-0"]


def test_a_job_whose_pods_are_made_with_claims_gives_its_place_back_and_waits(world):
    record = world.job(count=1)
    world.settle()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": record.job.uid, "controller": True}
    world.put("pod", a_pod("train-x", owner=owner, claims=ONE))
    for _ in range(3):
        world.settle()
        assert (record.admission, world.why(record)[0]) == (None, NOT_COUNTED), "its template would be admitted again"
        assert not [one for one in world.look(record) if isinstance(one, Ungate)]


def test_a_leader_is_held_back_once_its_workers_are_to_have_claims(world):
    record = world.leaders(spec())
    assert record.admission is not None
    record = world.leaders(spec(claims=ONE))
    assert world.let_go(record) == []
    world.settle()
    assert (record.admission, world.why(record)[0]) == (None, NOT_COUNTED)


def test_one_with_claims_that_was_admitted_before_is_not_moved(world):
    record = world.job(count=1)
    world.settle()
    world.put("job", make_job(parallelism=1, spec=spec(claims=ONE)))
    assert record.admission is not None
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": record.job.uid, "controller": True}
    pod = a_pod("train-x", owner=owner, claims=ONE)
    world.put("pod", pod)
    world.run(record, pod, record.slots.slots[0])
    world.put("job", make_job(parallelism=1, spec=spec(claims=ONE), status={"ready": 1}))
    assert "devices of resource claims" in relocation.why_not_relocated(world.memory, record)


# -- extended resources for which a DeviceClass stands, on an older API server --------------------------------------


def test_a_resource_that_a_class_stands_for_is_waited_for_and_the_class_named(older):
    older.put("device_class", a_class("gpu.nvidia.com", GPU))
    record = older.job(amounts={GPU: "1"})
    older.settle()
    assert record.admission is None
    what = f'ask for {GPU}, which no node publishes and DeviceClass "gpu.nvidia.com" stands for'
    assert older.why(record) == (NOT_COUNTED, f"the pods of pod set main {what}: {UNREAD}")


def test_without_a_class_nothing_is_said_of_one(older):
    record = older.job(amounts={GPU: "1"})
    older.settle()
    assert (older.why(record), record.refused.reason) == (None, Reason.NEVER_FITS)
    assert "DeviceClass" not in refused_text(older.memory, record, record.refused)


@pytest.mark.parametrize("asks", [{GPU: "0"}, {"example.com/other": "0"}, {}])
def test_who_asks_for_none_of_it_is_placed(older, asks):
    older.put("device_class", a_class("gpu.nvidia.com", GPU))
    record = older.job(amounts=asks)
    older.settle()
    assert record.admission is not None


def test_the_implicit_name_of_a_class_counts_as_long_as_it_is_there(older):
    record = older.job(amounts={CLASS_PREFIX + "gpu": "2"})
    assert older.why(record) is None
    older.asked.clear()
    older.put("device_class", a_class("gpu", "example.com/x"))
    assert older.asked == [record.id]
    assert 'DeviceClass "gpu"' in older.why(record)[1]
    older.asked.clear()
    older.drop("device_class", a_class("gpu"))
    assert older.asked == [record.id]
    assert older.why(record) is None


def test_who_waits_is_looked_at_when_a_class_comes_or_goes_and_nobody_else(older):
    record, other = older.job("train", amounts={GPU: "1"}), older.job("other")
    older.settle()
    older.asked.clear()
    older.put("device_class", a_class("a", GPU))
    older.put("device_class", a_class("a", GPU))
    older.put("device_class", a_class("b"))
    assert older.asked == [record.id]
    assert other.id not in older.asked
    assert older.why(record)[0] is NOT_COUNTED
    older.asked.clear()
    older.put("device_class", a_class("a"))
    assert (older.asked, older.why(record)) == ([record.id], None)


def test_of_several_classes_the_newest_is_named_then_the_first_by_name(older):
    record = older.job(amounts={GPU: "1"})
    for name, made in (("old", "2026-01-01T00:00:00Z"), ("c", "2026-02-01T00:00:00Z"), ("b", "2026-02-01T00:00:00Z")):
        older.put("device_class", a_class(name, GPU, made))
    named = []
    for gone in ("b", "c", "old"):
        named.append(older.why(record)[1].split('"')[1])
        older.drop("device_class", a_class(gone))
    assert (named, older.why(record)) == (["b", "c", "old"], None)


def test_where_a_node_publishes_the_resource_nodes_count(older):
    older.put("device_class", a_class("gpu.nvidia.com", GPU))
    record = older.job(amounts={GPU: "2"})
    older.settle()
    older.asked.clear()
    older.put("node", publishing(older.nodes[0]))
    assert record.id in older.asked
    older.settle()
    assert {slot.node for slot in record.slots.slots} == {"r1-h1"}


def test_a_node_that_publishes_none_of_it_is_no_such_node(older):
    older.put("device_class", a_class("gpu.nvidia.com", GPU))
    record = older.job(amounts={GPU: "1"})
    older.settle()
    older.put("node", publishing(older.nodes[0], "0"))
    assert older.why(record)[0] is NOT_COUNTED
    older.put("node", publishing(older.nodes[0], "1"))
    older.put("node", publishing(older.nodes[1], "1"))
    assert older.why(record) is None
    older.put("node", publishing(older.nodes[0], "0"))
    assert older.why(record) is None
    older.asked.clear()
    older.drop("node", older.nodes[1])
    assert record.id in older.asked
    assert older.why(record)[0] is NOT_COUNTED


def test_who_does_not_fit_where_nodes_publish_it_is_told_that_classes_do_not_count(older):
    older.put("device_class", a_class("gpu.nvidia.com", GPU))
    older.put("node", publishing(older.nodes[0], "1"))
    record = older.job(amounts={GPU: "2"})
    older.settle()
    refusal = older.memory.queues.entries[record.key].refusal
    assert refusal.reason is Reason.NEVER_FITS
    told = f'; of {GPU} no devices of DeviceClass "gpu.nvidia.com" are counted'
    assert refused_text(older.memory, record, refusal).endswith(told)


def test_nodes_that_are_there_at_a_start_count(older):
    older.put("device_class", a_class("gpu.nvidia.com", GPU))
    older.put("node", publishing(older.nodes[0]))
    older.job(amounts={GPU: "1"})
    again = older.restarted()
    again.devices.on_class(Event(EventKind.ADDED, "gpu.nvidia.com", None, a_class("gpu.nvidia.com", GPU)))
    (record,) = again.entries.values()
    assert why_not_placed(record, again.rules) is None
    again.nodes.on_node(Event(EventKind.DELETED, "r1-h1", older.nodes[0], None))
    assert why_not_placed(record, again.rules)[0] is NOT_COUNTED


def test_pods_that_ask_for_it_beyond_their_template_wait_too(older):
    older.put("device_class", a_class("gpu.nvidia.com", GPU))
    record = older.job(count=1)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": record.job.uid, "controller": True}
    older.put("pod", a_pod("train-x", owner=owner, amounts={GPU: "1"}))
    assert older.why(record)[0] is NOT_COUNTED
    assert older.why(record)[1].startswith(f"its pods, such as train-x, ask for {GPU}")


@pytest.mark.parametrize("amount", ["9223372036854775807", "1E9999", 2**63, "1n"])
def test_amounts_of_any_size_are_amounts(older, amount):
    older.put("device_class", a_class("gpu.nvidia.com", GPU))
    assert older.why(older.job(amounts={GPU: amount}))[0] is NOT_COUNTED


@pytest.mark.parametrize(
    "name", ["", "/", CLASS_PREFIX, "x" * 5000, "\u0000", "cpu", "requests.cpu", "kubernetes.io/x"]
)
def test_names_that_no_api_server_takes_harm_nobody(older, name):
    older.put("device_class", a_class(name or "c", name))
    older.put("device_class", a_class("d", CLASS_PREFIX + name))
    record = older.job()
    older.settle()
    assert record.admission is not None


def test_a_job_that_is_gone_is_not_remembered(older):
    older.put("device_class", a_class("gpu.nvidia.com", GPU))
    record = older.job(amounts={GPU: "1"})
    older.settle()
    older.drop("job", older.stores["job"]["ns/train"])
    older.asked.clear()
    older.put("node", publishing(older.nodes[0]))
    assert record.id not in older.asked


# -- metrics ------------------------------------------------------------------------------------------------------


def test_waiting_workloads_are_counted_by_what_is_said_of_them(world):
    waits = world.job("waits", claims=ONE)
    world.job("large", count=100)
    world.settle()
    assert world.memory.pending() == {"Pending": 1, "NeverFits": 1}
    steps = [one for one in world.look(waits) if isinstance(one, WriteConditions)]
    world._store(waits, None, steps[0].wanted)
    assert world.memory.pending() == {"ResourceClaimsNotCounted": 1, "NeverFits": 1}
