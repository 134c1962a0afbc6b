"""What the controller knows of the cluster: fed by events, rebuilt from lists, both with the same result."""

import random

import msgspec
import pytest
from support.owned import KEYS, make_job, make_owner, make_pod
from support.world import FLAVOR, NODES, World, make_node, stored_workload

from crds.settings import from_mapping
from engine.reasons import Reason
from engine.results import Refusal
from kube.objects import (
    ObjectMeta,
    PriorityClass,
)
from ungater.cache import workloads as workload_events
from ungater.jobs.job import owner_of
from ungater.model.job_view import id_of
from ungater.model.pod_slots import Expectation
from ungater.model.workload_spec import fingerprint, new_workload
from ungater.model.workload_status import observed_of
from ungater.numa.node_topologies import TopologyOptions
from ungater.reconcile.reconcile import why_not_placed
from ungater.scheduling.replacement import replace_lost_slots


@pytest.fixture
def world():
    made = World()
    made.put("flavor", FLAVOR)
    for node in NODES:
        made.put("node", node)
    return made


def free(memory):
    return {name: memory.state.free_on_node(name)["cpu"] for name in memory.state.nodes}


def test_its_engine_places_by_the_settings(world):
    settings = from_mapping({"nodesPerOpenedDomain": 2, "alignmentOverPacking": "Never"})
    state = world.make(options=TopologyOptions.from_settings(settings)).state
    assert (state.nodes_per_opened_domain, state.alignment_over_packing) == (2, "Never")


def test_a_pod_in_its_slot_takes_nothing_more_and_gives_nothing_back_when_it_goes(world):
    job = make_job(parallelism=2)
    world.put("job", job)
    slots = world.admit(job)
    owner = owner_of(job, KEYS)
    held = free(world.memory)
    assert sum(held.values()) == 6000
    pod = make_pod("p", owner=owner, at=slots.slots[0].values, node=slots.slots[0].node, phase="Running", spec=CPU)
    world.put("pod", pod)
    assert free(world.memory) == held
    world.drop("pod", pod)
    assert free(world.memory) == held
    stolen = make_pod("s", owner=owner, at=slots.slots[0].values, node="r1-h1", marked=False, spec=CPU)
    world.put("pod", stolen)
    assert sum(free(world.memory).values()) == 5000, "a pod that we never let go takes its own room"


CPU = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}


def test_a_pod_that_was_sent_to_a_node_that_went_meanwhile_is_looked_at_when_its_patch_shows(world):
    job = make_job(parallelism=2)
    world.put("job", job)
    slots, owner = world.admit(job), owner_of(job, KEYS)
    record = world.memory.entries[id_of(job)]
    values, name = slots.slots[0].values, slots.slots[0].node
    for number, lost in enumerate((False, True)):
        pod = make_pod(f"p{number}", owner=owner)
        world.put("pod", pod)
        record.expectations[pod.metadata.uid] = Expectation(values, deadline=1e9)
        if lost:
            world.drop("node", next(node for node in NODES if node.metadata.name == name))
        world.asked.clear()
        world.put("pod", make_pod(f"p{number}", owner=owner, at=values))
        assert record.expectations == {}
        assert world.asked == ([owner.id] if lost else [])


def test_a_pod_that_is_told_to_end_terminates_for_the_engine_too_and_takes_the_same(world):
    pod = make_pod("p", node="r1-h1", gated=False, phase="Running", spec=CPU)
    world.put("pod", pod)
    before = free(world.memory)
    ends = msgspec.structs.replace(pod.metadata, deletion_timestamp="2026-11-21T01:00:00Z")
    world.put("pod", msgspec.structs.replace(pod, metadata=ends))
    for memory in (world.memory, world.restarted()):
        assert [one.terminating for one in memory.state.pods.values()] == [True]
        assert free(memory) == before


def test_a_pod_of_another_job_cannot_claim_a_slot(world):
    job, thief = make_job("mine", parallelism=2), make_owner("thief")
    world.put("job", job)
    slots = world.admit(job)
    pod = make_pod("t", owner=thief, at=slots.slots[0].values, node=slots.slots[0].node, spec=CPU)
    world.put("pod", pod)
    assert sum(free(world.memory).values()) == 5000
    assert world.memory.entries[id_of(job)].pods == {}


def test_finished_pods_and_finished_jobs_give_back(world):
    foreign = make_pod("f", owner=make_owner("other"), node="r1-h1", phase="Running", gated=False, spec=CPU)
    world.put("pod", foreign)
    assert free(world.memory)["r1-h1"] == 1000
    generation = world.memory.generation
    world.put("pod", make_pod("f", owner=make_owner("other"), node="r1-h1", phase="Succeeded", gated=False, spec=CPU))
    assert free(world.memory)["r1-h1"] == 2000
    assert world.memory.generation > generation, "who waits is looked at again"


def test_everything_is_rebuilt_from_lists(world):
    jobs = [make_job(f"j{number}", parallelism=2) for number in range(3)]
    for number, job in enumerate(jobs):
        world.put("job", job)
        slots = world.admit(job)
        if number:
            slot = slots.slots[0]
            world.put(
                "pod", make_pod(f"p{number}", owner=owner_of(job, KEYS), at=slot.values, node=slot.node, spec=CPU)
            )
    world.put("pod", make_pod("waits", owner=owner_of(jobs[0], KEYS)))
    again = world.restarted()
    assert free(again) == free(world.memory)
    for uid, record in world.memory.entries.items():
        assert again.entries[uid].slots == record.slots
        assert [slot.node for slot in again.entries[uid].slots.slots] == [slot.node for slot in record.slots.slots]
        assert again.entries[uid].pods == record.pods
        assert again.entries[uid].observed == record.observed


def test_a_record_that_another_hand_wrote_is_taken_over_and_our_own_echo_is_not(world):
    job = make_job(parallelism=2)
    world.put("job", job)
    slots = world.admit(job)
    record = world.memory.entries[id_of(job)]
    world.asked.clear()
    world.put("workload", stored_workload(record.job, slots))
    assert world.asked == []
    other = slots.without_slots({0: 1})
    world.put("workload", stored_workload(record.job, other, version="8"))
    assert (record.slots, world.asked) == (other, [record.id])
    world.put("workload", stored_workload(record.job, slots, version="7"))
    assert record.slots == other, "an older version changes nothing"


def test_what_is_freed_while_a_job_goes_is_all_it_held(world):
    job = make_job(parallelism=2)
    world.put("job", job)
    world.admit(job)
    world.drop("job", job)
    assert set(free(world.memory).values()) == {2000}
    assert world.memory.entries == {}


def test_pods_of_a_lost_node_get_another_place_in_their_rack_and_the_rest_stays(world):
    job = make_job(parallelism=3)
    world.put("job", job)
    before = world.admit(job)
    rack = before.slots[0].values[1]
    record = world.memory.entries[id_of(job)]
    lost = next(i for i, slot in enumerate(before.slots) if slot.count == 1)
    name = before.slots[lost].values[-1]
    held = free(world.memory)
    world.put("node", make_node(*name.split("-"), ready=False))
    pod_set = record.job.pod_sets[0]
    assert world.memory.rules.lost(record, pod_set, before, range(len(before.slots))) == (lost,)
    record.lost = {"main": ((lost, 1),)}
    refused = replace_lost_slots(world.memory, record)
    assert isinstance(refused, Refusal), "the rack has no other room, and required stays required"
    world.put("node", make_node(rack, "h3"))
    (moved,) = replace_lost_slots(world.memory, record).assignments
    after = {part.values[-1]: part.count for part in moved.slices}
    assert after == {before.slots[1 - lost].values[-1]: 2, f"{rack}-h3": 1}
    assert {name: free(world.memory)[name] for name in held} == held, "asking changes nothing"


def test_gated_pods_that_nobody_serves_are_remembered_until_their_job_comes(world):
    job = make_job()
    pod = make_pod("p", owner=owner_of(job, KEYS))
    world.put("pod", pod)
    assert list(world.memory.gated_orphans.pods) == ["uid-p"]
    world.put("job", job)
    assert world.memory.gated_orphans.pods == {}
    assert list(world.memory.entries[id_of(job)].pods) == ["uid-p"]


def test_priorities_follow_the_classes(world):
    world.put("class", PriorityClass(metadata=ObjectMeta(name="high"), value=9))
    world.put("class", PriorityClass(metadata=ObjectMeta(name="base"), value=2, global_default=True))
    assert world.memory.priorities.priority_of_job(make_owner(spec={"priorityClassName": "high"})) == 9
    assert world.memory.priorities.priority_of_job(make_owner()) == 2


@pytest.mark.parametrize("seed", range(8))
def test_any_history_ends_where_its_lists_end(seed):
    """Events in any order give the state that a restart builds from what they left."""
    choose, world = random.Random(seed), World()
    owner = owner_of(make_job(parallelism=2), KEYS)
    steps = [("flavor", FLAVOR), ("job", make_job(parallelism=2)), *(("node", node) for node in NODES)]
    for number in range(6):
        name = choose.choice([node.metadata.name for node in NODES])
        steps += (
            ("pod", make_pod(f"p{number}", owner=owner, node=name, gated=False, phase=phase, spec=CPU))
            for phase in ("Running", choose.choice(["Running", "Succeeded"]))
        )
    choose.shuffle(steps)
    for kind, obj in steps:
        world.put(kind, obj)
        if choose.random() < 0.3 and world.stores["pod"]:
            world.drop("pod", choose.choice(list(world.stores["pod"].values())))
    again = world.restarted()
    assert free(world.memory) == free(again)
    assert {uid: record.pods for uid, record in world.memory.entries.items()} == {
        uid: record.pods for uid, record in again.entries.items()
    }


def named_flavor(**names):
    topology = msgspec.structs.replace(FLAVOR.spec.topology, names=names or None)
    return msgspec.structs.replace(FLAVOR, spec=msgspec.structs.replace(FLAVOR.spec, topology=topology))


def test_jobs_that_ask_by_a_name_mean_its_level_as_soon_as_a_flavor_says_so(world):
    job = make_job(parallelism=2, request={KEYS.required[0]: "row"})
    world.put("job", job)
    entry = world.memory.entries[id_of(job)]
    assert why_not_placed(entry, world.memory.rules)[0] is Reason.UNKNOWN_LEVEL
    before = fingerprint(entry.job)
    world.asked.clear()
    world.put("flavor", named_flavor(row="rack"))
    assert why_not_placed(entry, world.memory.rules) is None
    assert [one.topology.level for one in world.memory.pod_sets.wish(entry)] == ["rack"]
    assert entry.id in world.asked
    assert fingerprint(entry.job) == before, "its Workload says what the job says"
    assert new_workload(entry.job, 0)["spec"]["podSets"][0]["topologyRequest"]["level"] == "row"
    again = world.restarted().entries[id_of(job)]
    assert again.job == entry.job
    world.drop("flavor", named_flavor(row="rack"))
    assert entry.job.pod_sets[0].request.level == "rack", "what holds slots by it goes on to mean the same"


def test_the_echo_of_our_own_write_is_not_read(world, monkeypatch):
    """Its status may name thousands of nodes, and says what is known."""
    job = make_job("train", parallelism=2)
    world.put("job", job)
    world.admit(job)
    record = world.memory.entries[id_of(job)]
    stored, read = world.stores["workload"][record.key], []
    monkeypatch.setattr(workload_events, "observed_of", lambda workload: read.append(workload) or observed_of(workload))
    world.put("workload", stored)
    record.writes.begin_write()
    world.memory.workloads.written(record, record.observed)
    assert not read
    meta = msgspec.structs.replace(stored.metadata, resource_version=str(record.observed.version + 1))
    world.put("workload", msgspec.structs.replace(stored, metadata=meta))
    assert len(read) == 1
