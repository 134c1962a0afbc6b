"""Pods that were let go and say of themselves what suits their tenant: refused, nominated, failed, never ready.

`edit` does not let a tenant write the status of pods; kubelets may, and whoever was given `pods/status`.
"""

import msgspec
import pytest
from support.owned import context, make_job, make_pod
from support.world import FLAVOR, Ticking, live_world, make_node, without_hosts

from engine.kubelet.admit import ALIGNED
from engine.results import Refusal
from kube.objects import Condition
from ungater.let_go.node_refusals import SEVERAL
from ungater.model.job_view import id_of
from ungater.model.unscheduled import MOST_WORDS
from ungater.reconcile import let_go
from ungater.reconcile.let_go import NOMINATED
from ungater.scheduling.replacement import replace_lost_slots

PATIENCE = 10.0


@pytest.fixture
def clock():
    return Ticking()


@pytest.fixture
def world(clock):
    return live_world(clock)


def admitted(world, name, **more):
    job = make_job(name, parallelism=1, **more)
    world.put("job", job)
    world.admit(job)
    return world.memory.entries[id_of(job)]


def says(world, record, *, refused=True, nominated="", name="pod"):
    """A pod of the workload in its slot, and what its status says."""
    pod = make_pod(name, owner=record.job, at=record.slots.slots[0].values)
    status, reason = ("False", "Unschedulable") if refused else ("True", "")
    said = Condition(type="PodScheduled", status=status, reason=reason, message="0/4 nodes are available: no")
    status = msgspec.structs.replace(pod.status, conditions=(said,), nominated_node_name=nominated)
    world.put("pod", msgspec.structs.replace(pod, status=status))
    return world.stores["pod"][f"ns/{name}"]


def late(record, now):
    return let_go.late_pods(record, context(patience=PATIENCE), now)


def test_a_condition_that_flips_all_the_time_holds_a_slot_no_longer(world, clock):
    record = admitted(world, "train")
    for second in range(int(PATIENCE)):
        assert not late(record, clock.at)
        says(world, record, refused=second % 2 == 0)
        clock.at += 1
    assert late(record, clock.at)


def test_a_forged_nomination_holds_a_slot_for_a_minute_and_not_for_ever(world, clock):
    record = admitted(world, "train")
    for second in range(int(NOMINATED)):
        says(world, record, nominated=f"node-{second}" if second % 7 else "")
        clock.at += 1
    assert late(record, clock.at)


def test_pods_that_are_refused_on_purpose_move_into_room_that_is_free_and_have_nobody_evicted(world):
    """They flip between refused and not, on each place that they get."""
    victims = [admitted(world, f"victim-{number}") for number in range(6)]
    record = admitted(world, "mallory")
    for number in range(10):
        pod = says(world, record, name=f"pod-{number}")
        world.memory.refusals.leave_out(record, [pod])
        record.lost = {"main": ((0, 1),)}
        found = replace_lost_slots(world.memory, record)
        if isinstance(found, Refusal):
            break
        world.memory.reservations.replace(record, found)
        world.memory.reservations.replaced(record)
        admission = world.memory.reservations.admission_of(record, found)
        world.memory.admissions.store_admission(record, admission, found)
        world.drop("pod", pod)
    assert isinstance(found, Refusal), "what refuses it everywhere leaves it no place"
    assert not world.memory.queues.holders.evicting
    assert all(victim.grant is not None for victim in victims)


def test_what_one_namespace_has_refused_keeps_no_others_pods_off_though_they_are_alike_to_the_letter(world):
    record = admitted(world, "train")
    world.memory.refusals.leave_out(record, [says(world, record)])
    assert world.memory.pod_sets.avoided_nodes(record, record.job.pod_sets[0])
    theirs = make_job("train", parallelism=1)
    theirs = msgspec.structs.replace(theirs, metadata=msgspec.structs.replace(theirs.metadata, namespace="honest"))
    world.put("job", theirs)
    honest = world.memory.entries[id_of(theirs)]
    assert honest.job.pod_sets[0].filter_key == record.job.pod_sets[0].filter_key
    assert not world.memory.pod_sets.avoided_nodes(honest, honest.job.pod_sets[0])


@pytest.mark.parametrize("marked", [True, False])
def test_failed_pods_that_were_never_let_go_close_no_node_when_a_controller_starts(world, marked):
    """A tenant makes them with a node's name, so that its kubelet refuses them, and keeps them."""
    for number in range(SEVERAL):
        record = admitted(world, f"mallory-{number}")
        slot = record.slots.slots[0].values
        pod = make_pod(f"pod-{number}", owner=record.job, at=slot, node="r1-h1", phase="Failed", marked=marked)
        status = msgspec.structs.replace(pod.status, reason=ALIGNED)
        world.put("pod", msgspec.structs.replace(pod, status=status))
    assert world.restarted().node_refusals.avoided_names() == (frozenset({"r1-h1"}) if marked else frozenset())


def test_thousands_of_refused_pods_in_one_wide_slot_cost_one_look_at_the_nodes(world, monkeypatch):
    world.put("flavor", without_hosts(FLAVOR))
    for number in range(20):
        world.put("node", make_node("r1", f"n{number}"))
    record = admitted(world, "mallory")
    values, looks = record.slots.slots[0].values, []
    pods = []
    for number in range(500):
        pod = make_pod(f"pod-{number}", owner=record.job, at=(*values, ""))
        selector = dict(zip(record.slots.levels, values, strict=True))
        said = Condition(type="PodScheduled", status="False", reason="Unschedulable", message="no")
        status = msgspec.structs.replace(pod.status, conditions=(said,))
        spec = msgspec.structs.replace(pod.spec, node_selector=selector)
        pods.append(msgspec.structs.replace(pod, spec=spec, status=status))
        world.memory.coming.record_arrival(record, pods[-1])
    refusals, nodes = world.memory.refusals, world.memory.refusals._nodes
    monkeypatch.setattr(refusals, "_nodes", lambda: looks.append(1) or nodes())
    refusals.leave_out(record, pods)
    assert len(looks) == 1
    assert all(one.counted_until for one in record.unscheduled.values())
    rack = {name for name, node in world.stores["node"].items() if node.metadata.labels["rack"] == values[-1]}
    assert world.memory.pod_sets.avoided_nodes(record, record.job.pod_sets[0]) == rack


def test_of_words_of_a_megabyte_that_say_why_a_pod_is_refused_a_line_is_kept(world):
    record = admitted(world, "mallory")
    pod = says(world, record)
    for words in ("x" * 10**6, "no, " * 250_000, "1 node(s) didn't match Pod's node affinity/selector, " * 20_000):
        long = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=words)
        status = msgspec.structs.replace(pod.status, conditions=(long,))
        world.put("pod", pod := msgspec.structs.replace(pod, status=status))
        world.memory.refusals.leave_out(record, [pod])
        (seen,) = record.unscheduled.values()
        assert len(seen.words) <= MOST_WORDS
    kept = world.memory.refusals._refusals["ns"]
    assert all(len(one.reason) < 2 * MOST_WORDS for found in kept._by_shape.values() for one in found.values())
