"""Pods that stay gated until others on their way to their node are there: who waits, for whom, and for how long."""

import json

import msgspec
import pytest
from support.numa_world import NumaWorld
from support.on_their_way import HERE, NODE, OnTheirWay
from support.owned import make_job, make_pod
from support.published import GPU

from crds.constants import NUMA_PLACEMENT_OBSERVED
from kube.objects import Condition, ContainerStatus
from ungater.model.actions import WriteConditions
from ungater.model.conditions import PODS_READY, QUOTA_RESERVED
from ungater.model.held_pods import HoldReason
from ungater.numa.in_flight import AGAIN, MOVE, PATIENCE, TURN, YOUNG
from ungater.reconcile.reconcile import reconcile

STAMP = "2020-01-01T00:00:00Z"
replace = msgspec.structs.replace


def container(name="c", cpu="", gpus=0, *, whole=True):
    amounts = {"cpu": cpu, "memory": "1Gi"} if cpu else {}
    limits = ({**amounts} if whole else {}) | ({GPU: str(gpus)} if gpus else {})
    return {"name": name, "resources": {"requests": amounts, "limits": limits}}


PLAIN = {"containers": [container(cpu="4", gpus=2)]}
STEPWISE = {"initContainers": [container("i", "4")], "containers": [container(cpu="4", gpus=2)]}
GPUS = {"containers": [container(cpu="1", gpus=4, whole=False)]}  # CPUs of no zone, all GPUs of one
CPUS = {"containers": [container(cpu="8")]}


class OneNode(OnTheirWay, NumaWorld):
    """Jobs whose pods all go to one node, whatever the engine would say to that."""

    def __init__(self, *, promises=False):
        self.later = []
        self.promises = promises  # whether slots count whose pods are still to come
        super().__init__()

    def make(self):
        memory = super().make()
        memory.in_flight._enqueue = lambda uid, after: self.later.append((uid, after))
        memory.in_flight._entry_of = lambda key: memory.entries.of_workload(key) if self.promises else None
        return memory

    def gated(self, name, spec):
        """(record, pod) of a new job whose pod waits behind its gate."""
        job = make_job(name, parallelism=1, spec=spec)
        self.put("job", job)
        self.admit(job)
        record = self.record(job)
        pod = make_pod(f"{name}-0", owner=record.job, rank=0, spec=spec)
        self.put("pod", pod)
        return record, pod

    def comes(self, one, zone=None, *, status=None, terminating=False):
        """The pod is on the node now; ``zone``: where it was seen to have its CPUs and devices."""
        record, pod = one
        spec = record.job.pod_sets[0].template.spec
        new = make_pod(
            pod.metadata.name,
            owner=record.job,
            rank=0,
            at=HERE,
            node=NODE,
            spec=to_spec(spec),
            terminating=terminating,
        )
        if zone is not None:
            annotations = {**new.metadata.annotations, NUMA_PLACEMENT_OBSERVED: observed(zone, pod)}
            new = replace(new, metadata=replace(new.metadata, annotations=annotations))
        if status is not None:
            new = replace(new, status=replace(new.status, **status))
        self.put("pod", new)

    def woken(self):
        """Who was to be looked at since this was asked last."""
        found = {uid for uid, _ in self.later}
        self.later.clear()
        return found


def to_spec(spec):
    return {
        "containers": msgspec.to_builtins(spec.containers),
        **({"initContainers": msgspec.to_builtins(spec.init_containers)} if spec.init_containers else {}),
    }


def observed(zone, pod):
    app = pod.spec.containers[0].resources
    amounts = {"cpu": "0"} if "cpu" not in (app.limits or {}) else {"cpu": app.limits["cpu"]}
    gpus = {GPU: app.limits[GPU]} if GPU in (app.limits or {}) else {}
    return json.dumps([{"zone": f"node-{zone}", "amount": amounts | gpus}])


@pytest.fixture
def world():
    return OneNode()


def test_a_pod_whose_containers_are_placed_one_by_one_waits_until_it_is_seen_what_another_got(world):
    first, second = world.gated("first", GPUS), world.gated("second", STEPWISE)
    assert world.may_go(first)
    assert world.may_go(second)
    world.go(first)
    assert not world.may_go(second)  # all GPUs of zone 0 may be gone, and its init container goes there all the same
    (held,) = second[0].held.values()
    assert (held.node, held.why) == (NODE, HoldReason.ORDER)
    world.woken()
    world.comes(first)
    assert world.woken() == {second[0].id}
    assert not world.may_go(second)
    world.comes(first, zone=1)
    assert second[0].id in world.woken()
    assert world.may_go(second)
    world.go(second)
    assert not second[0].held


def test_one_of_a_native_group_does_not_wait_for_others_as_kube_scheduler_would_hold_them_for_it(world):
    in_group = {"schedulingGroup": {"podGroupName": "ring"}}
    first, second = world.gated("first", {**GPUS, **in_group}), world.gated("second", {**STEPWISE, **in_group})
    world.go(first)
    assert world.may_go(second)


def test_one_that_could_spoil_another_on_its_way_waits_too(world):
    first, second = world.gated("first", STEPWISE), world.gated("second", GPUS)
    world.go(first)
    assert not world.may_go(second)
    world.comes(first, zone=0)
    assert world.may_go(second)


def test_pods_that_are_alike_and_placed_at_once_never_wait(world):
    pods = [world.gated(f"p{at}", PLAIN) for at in range(4)]
    for one in pods:
        world.go(one)


def test_where_nothing_is_known_of_the_node_or_its_kubelet_aligns_nothing_nobody_waits(world):
    first, second = world.gated("first", GPUS), world.gated("second", STEPWISE)
    world.go(first)
    assert world.may_go(second, "r9-h9")
    assert not world.may_go(second)
    world.publish(NODE, policy="best-effort")
    assert world.may_go(second)


def test_of_two_that_may_not_be_on_their_way_together_one_goes_and_then_the_other(world):
    one, other = world.gated("one", STEPWISE), world.gated("other", GPUS)
    third = world.gated("third", GPUS)
    world.go(third)
    assert [world.may_go(one), world.may_go(other)] == [False, True]  # who waits blocks nobody
    world.comes(third, zone=1)
    assert [world.may_go(one), world.may_go(other)] == [True, True]
    world.go(one)
    assert not world.may_go(other)
    world.comes(one, status={"phase": "Succeeded"})
    assert world.may_go(other)


def test_one_that_has_its_turn_is_not_overtaken(world):
    first, second, third = (world.gated(name, spec) for name, spec in (("a", GPUS), ("b", STEPWISE), ("c", GPUS)))
    world.go(first)
    assert not world.may_go(second)
    assert world.may_go(third)
    world.now += TURN
    assert not world.may_go(second)
    assert not world.may_go(third)
    world.comes(first, zone=1)
    assert not world.may_go(third)
    world.go(second)


def test_nobody_waits_for_one_that_never_arrives(world):
    first, second = world.gated("first", GPUS), world.gated("second", STEPWISE)
    world.go(first)
    assert not world.may_go(second)
    assert 0 < min(after for uid, after in world.later if uid == second[0].id) <= PATIENCE
    world.now += PATIENCE
    assert world.may_go(second)


@pytest.mark.parametrize("how", ["gone", "deleted", "finished", "unknown to the API server"])
def test_one_that_is_gone_is_waited_for_no_more(world, how):
    first, second = world.gated("first", GPUS), world.gated("second", STEPWISE)
    world.go(first)
    assert not world.may_go(second)
    world.woken()
    record, pod = first
    uid = pod.metadata.uid
    if how == "gone":
        world.drop("pod", pod)
        assert second[0].id in world.woken()
    elif how == "deleted":
        world.put("pod", make_pod(pod.metadata.name, owner=record.job, rank=0, at=HERE, terminating=True))
    elif how == "finished":
        world.comes(first, status={"phase": "Failed"})
        assert second[0].id in world.woken()
    else:
        record.expectations[uid] = replace(record.expectations[uid], gone=True)
    assert world.may_go(second)


def test_without_an_agent_a_pod_is_there_once_its_kubelet_has_admitted_it(world):
    first, second = world.gated("first", GPUS), world.gated("second", STEPWISE)
    world.go(first)
    world.comes(first)
    assert not world.may_go(second)
    assert [held.why for held in second[0].held.values()] == [HoldReason.ORDER]
    world.comes(first, status={"container_statuses": (ContainerStatus(name="c"),)})
    assert not world.may_go(second)
    assert [held.why for held in second[0].held.values()] == [HoldReason.REFUSED]  # it counts where it was predicted


def test_after_a_restart_what_is_on_its_way_is_seen_from_the_pods(world):
    first, second = world.gated("first", GPUS), world.gated("second", STEPWISE)
    world.go(first)
    world.comes(first)
    world.memory = world.restarted()
    second = world.memory.entries[second[0].id], second[1]
    assert not world.may_go(second)
    world.comes(first, zone=1)
    assert world.may_go(second)


def test_an_end_that_would_hurt_is_expected_of_young_pods_and_of_those_being_deleted(world):
    gpus, cpus, third = world.gated("gpus", GPUS), world.gated("cpus", CPUS), world.gated("third", STEPWISE)
    long_ago = {"conditions": (Condition(type="PodScheduled", status="True", last_transition_time=STAMP),)}
    world.comes(gpus, zone=0, status=long_ago)
    world.comes(cpus, zone=0)
    assert not world.may_go(third)  # without the CPUs of the one its init container goes to zone 0, which has no GPU
    assert [held.why for held in third[0].held.values()] == [HoldReason.ENDS]
    world.memory.in_flight.stop_all(third[0])
    world.now += YOUNG
    assert world.may_go(third)
    world.comes(cpus, zone=0, terminating=True)
    assert not world.may_go(third)
    world.drop("pod", world.stores["pod"]["ns/cpus-0"])
    assert not world.may_go(third)
    assert [held.why for held in third[0].held.values()] == [HoldReason.REFUSED]


def test_one_that_is_doubtful_for_long_goes_if_it_is_granted_as_things_stand(world):
    gpus, cpus, third = world.gated("gpus", GPUS), world.gated("cpus", CPUS), world.gated("third", STEPWISE)
    world.comes(gpus, zone=0)
    world.comes(cpus, zone=0)
    assert not world.may_go(third)
    world.now += PATIENCE
    assert world.may_go(third)


def test_one_that_would_be_refused_goes_elsewhere_after_a_moment(world):
    gpus, third = world.gated("gpus", GPUS), world.gated("third", STEPWISE)
    world.comes(gpus, zone=0)
    record, _ = third
    assert not world.may_go(third)
    assert world.memory.pod_sets.avoided_nodes(record, record.job.pod_sets[0]) == set()
    world.now += MOVE
    assert not world.may_go(third)
    assert world.memory.pod_sets.avoided_nodes(record, record.job.pod_sets[0]) == {NODE}
    world.woken()
    world.memory.in_flight.sweep()
    assert world.woken() == set()
    world.now += AGAIN
    assert world.memory.pod_sets.avoided_nodes(record, record.job.pod_sets[0]) == set()
    world.memory.in_flight.sweep()
    assert world.woken() == {record.id}
    assert not world.may_go(third)
    assert world.memory.pod_sets.avoided_nodes(record, record.job.pod_sets[0]) == {NODE}
    world.drop("pod", world.stores["pod"]["ns/gpus-0"])
    assert world.memory.pod_sets.avoided_nodes(record, record.job.pod_sets[0]) == set()
    assert world.may_go(third)


def test_a_job_whose_pods_wait_for_long_says_for_which_nodes(world):
    first, second = world.gated("first", GPUS), world.gated("second", STEPWISE)
    world.go(first)
    assert not world.may_go(second)
    record, pod = second
    world.now += 10
    assert not world.may_go(second)
    written = [one for one in reconcile(record, world.memory.rules, world.now) if isinstance(one, WriteConditions)]
    (wanted,) = (wanted for one in written for wanted in one.wanted if wanted.type == PODS_READY)
    assert f"1 gated pod waits for {NODE}: pods on their way there arrive first" in wanted.message
    world.drop("pod", pod)
    assert not record.held


def test_a_job_that_gives_its_slots_back_waits_no_more(world):
    first, second = world.gated("first", GPUS), world.gated("second", STEPWISE)
    world.go(first)
    assert not world.may_go(second)
    world.memory.admissions.release_job(second[0])
    world.woken()
    world.comes(first, zone=0)
    assert world.woken() == set()


def admitted(one, at, priority=0):
    """Have its workload be admitted at that second."""
    record, _ = one
    stamp = f"2026-11-21T00:00:{at:02}Z"
    found = Condition(type=QUOTA_RESERVED, status="True", last_transition_time=stamp)
    record.observed = msgspec.structs.replace(record.observed, conditions=(found,), priority=priority)


ZONE = {"containers": [container(cpu="8", gpus=4)]}  # all of a zone
HALF = {"containers": [container(cpu="4", gpus=2)]}


@pytest.fixture
def promising():
    """A node of which half a zone is taken; another whole one and half of this are free."""
    world = OneNode(promises=True)
    there = world.gated("there", HALF)
    world.go(there)
    world.comes(there, zone=1)
    return world


@pytest.mark.parametrize(("small_at", "priority", "goes"), [(5, 0, False), (3, 0, True), (4, 0, False), (4, 1, True)])
def test_the_zone_of_one_that_was_admitted_before_and_has_no_pods_yet_is_not_taken(promising, small_at, priority, goes):
    """A kubelet gives the small one zone 0, which it has no reason to keep; the large one would find none then."""
    large, small = promising.gated("large", ZONE), promising.gated("small", HALF)
    admitted(large, 4)
    admitted(small, small_at, priority)
    assert promising.may_go(small) is goes
    if not goes:
        (held,) = small[0].held.values()
        assert held.why is HoldReason.PROMISED
        assert promising.later[-1][1] <= AGAIN, "those may get other slots without a word"
        promising.go(large)
        assert not promising.may_go(small)
        promising.comes(large, zone=0)
        assert promising.may_go(small)


def small_waits(promising):
    """(a large one that was admitted first, a small one that waits for its pods)."""
    large, small = promising.gated("large", ZONE), promising.gated("small", HALF)
    admitted(large, 4)
    admitted(small, 5)
    assert not promising.may_go(small)
    return large, small


def test_nobody_waits_for_ever_for_pods_that_do_not_come(promising):
    _, small = small_waits(promising)
    promising.now += PATIENCE
    assert promising.may_go(small)


def test_one_whose_pods_are_still_to_come_does_not_wait_for_those_that_wait_for_it(promising):
    large, _ = small_waits(promising)
    promising.now += TURN
    assert promising.may_go(large)


# --- of a PodGroup of Kubernetes itself ------------------------------------------------------------------------------


def grouped(spec, name="ring"):
    return {**spec, "schedulingGroup": {"podGroupName": name}}


def test_who_names_a_group_takes_no_zone_of_one_that_was_admitted_before(promising):
    large, small = promising.gated("large", ZONE), promising.gated("small", grouped(HALF))
    admitted(large, 4)
    admitted(small, 5)
    assert not promising.may_go(small)
    promising.go(large)
    assert not promising.may_go(small)
    promising.comes(large, zone=0)
    assert promising.may_go(small)


@pytest.mark.parametrize("other", [GPUS, grouped(GPUS, "other")])
def test_who_names_a_group_waits_for_pods_of_others_on_their_way(world, other):
    first, second = world.gated("first", other), world.gated("second", grouped(STEPWISE))
    world.go(first)
    assert not world.may_go(second)
    world.comes(first, zone=1)
    assert world.may_go(second)


def test_and_overtakes_nobody(world):
    first, second = world.gated("first", GPUS), world.gated("second", STEPWISE)
    third = world.gated("third", grouped(GPUS))
    world.go(first)
    assert not world.may_go(second)
    world.now += TURN
    assert not world.may_go(third)


def test_pods_of_one_group_do_not_wait_for_each_other(world):
    """kube-scheduler lets none of them go while one is gated."""
    first, second = world.gated("first", grouped(GPUS)), world.gated("second", grouped(STEPWISE))
    world.go(first)
    assert world.may_go(second)
    world.comes(first)
    assert not world.may_go(second), "that one is on its node, and needs nobody to get there"
