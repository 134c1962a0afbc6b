"""Jobs that Kueue (0.19.2) started, in a namespace that is served here by now: their pods run on, by what they have."""

import json
import random
from functools import partial

import msgspec
import pytest
from support.kueue_started import beside_kueue, kueue_pod, kueue_workload, run_by_kueue, started_job
from support.mutations import moved, removed, renamed, replaced, wrapped
from support.owned import KEYS, make_job, make_known, make_pod
from support.queued_world import cluster_queue, queued, read
from support.world import FLAVOR, Ticking, make_node, stored_workload

from clock import SYSTEM
from crds.admitted_quota import AdmittedQuota, encode
from crds.constants import ADMITTED_QUOTA, HOSTNAME_LABEL, KUEUE_POD_SET, KUEUE_WORKLOAD, SERVED
from crds.kueue.names import kueue_workload_name
from engine.reasons import Reason
from kube.objects import Condition, FlavorTopology, Namespace, ObjectMeta, ResourceFlavor
from queueing import model
from ungater.executor.start_stop import StartStop
from ungater.guard import Guard
from ungater.jobs.job import owner_of
from ungater.jobs.pod_template import restore
from ungater.model import actions as i
from ungater.model.conditions import HOLDING
from ungater.model.job_view import id_of
from ungater.model.kueue_objects import KueueWorkload
from ungater.model.workload_spec import KueueCopy, new_workload
from ungater.reconcile.reconcile import reconcile


def held(memory, job):
    """By host, the slots that a job holds; None where it holds nothing."""
    entry = memory.entries[id_of(job)]
    if entry.admission is None:
        return None
    return {slot.values[-1]: slot.count for slots in entry.slots_in.values() for slot in slots.slots}


def looked(memory, job, now=2000.0):
    """What a look at a job has done."""
    entry = memory.entries[id_of(job)]
    memory.count_pods(entry, now)
    return reconcile(entry, memory.rules, now, 1e9)


def named(actions):
    return [type(one).__name__ for one in actions]


def ends_pods(actions):
    return [one for one in actions if isinstance(one, i.Suspend | i.Evict | i.EvictPods | i.Delete | i.Release)]


def stored(memory, job, *, admission=None):
    """Our Workload of a job is there."""
    entry = memory.entries[id_of(job)]
    said = tuple(
        Condition(type=kind, status="True", reason="Adopted", last_transition_time="2026-11-21T00:00:00Z")
        for kind in (HOLDING if admission is not None else ())
    )
    entry.observe(make_known(entry.job, admission=admission, conditions=said))
    return entry


@pytest.fixture
def world():
    return beside_kueue()


def test_a_running_job_of_kueue_holds_what_its_workload_says(world):
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    memory = world.restarted()
    assert held(memory, job) == {"r2-h1": 1, "r2-h2": 1}
    entry = memory.entries[id_of(job)]
    assert (entry.admission.queue, entry.queue_before, entry.started, entry.unadopted) == ("cq", "team", True, "")
    assert entry.taken.workload == "job-train-00000"
    assert memory.queues.quotas.used("cq", ("gpu", "cpu")) == 2000
    assert memory.state.free_on_node("r2-h1")["cpu"] == 1000, "a pod and its slot count once"
    assert memory.state.free_on_node("r1-h1")["cpu"] == 2000


def test_its_workload_is_made_then_its_admission_stored_then_its_pods_are_marked(world):
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    memory = world.restarted()
    assert named(looked(memory, job)) == ["Create"]
    entry = stored(memory, job)
    assert named(looked(memory, job)) == ["RestoreAdmission"]
    stored(memory, job, admission=entry.admission)
    actions = looked(memory, job)
    assert [pod.metadata.name for pod in actions[0].pods] == ["train-0", "train-1"]
    assert not ends_pods(actions)
    assert not any(isinstance(one, i.Ungate | i.Start) for one in actions), "nothing of the Job or a gate is written"


def test_marks_that_are_seen_are_not_written_again(world):
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    memory = world.memory = world.restarted()
    entry = stored(memory, job, admission=memory.entries[id_of(job)].admission)
    for name, pod in tuple(world.stores["pod"].items()):
        annotations = {KEYS.workload: entry.job.workload, KEYS.pod_set: "main"}
        meta = msgspec.structs.replace(pod.metadata, annotations=annotations)
        world.put("pod", msgspec.structs.replace(pod, metadata=meta))
        assert name in world.stores["pod"]
    assert "MarkPods" not in named(looked(memory, job))
    assert entry.adopting == frozenset()
    assert memory.state.free_on_node("r2-h1")["cpu"] == 1000


def test_a_controller_that_dies_between_the_admission_and_the_marks_goes_on_with_them(world):
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    memory = world.restarted()
    entry = memory.entries[id_of(job)]
    world.stores["workload"][entry.key] = stored_workload(entry.job, entry.admission)
    again = world.restarted()
    assert held(again, job) == {"r2-h1": 1, "r2-h2": 1}
    assert len(again.entries[id_of(job)].adopting) == 2
    assert again.state.free_on_node("r2-h1")["cpu"] == 1000, "a pod and its slot count once"
    assert not ends_pods(looked(again, job))


def test_a_controller_that_dies_before_the_admission_is_stored_takes_it_over_again(world):
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    memory = world.restarted()
    entry = memory.entries[id_of(job)]
    bare = stored_workload(entry.job, entry.admission)
    bare = msgspec.structs.replace(bare, status=type(bare.status)())
    world.stores["workload"][entry.key] = bare
    again = world.restarted()
    assert held(again, job) == {"r2-h1": 1, "r2-h2": 1}
    assert named(looked(again, job)) == ["RestoreAdmission"]


def test_a_job_by_quota_alone_holds_its_quota(world):
    plain = read({"metadata": {"name": "spot"}, "spec": {"nodeLabels": {"pool": "gpu"}}}, ResourceFlavor)
    world.put("flavor", plain)
    world.put("cluster_queue", cluster_queue(4, "spot"))
    job = started_job(gated=False, request={})
    run_by_kueue(world, job, ["r2-h1", "r2-h2"], places=None, flavor="spot", count=2)
    memory = world.restarted()
    entry = memory.entries[id_of(job)]
    assert (entry.admission.queue, entry.admission.count, entry.slots_in) == ("cq", 2, {})
    assert memory.queues.quotas.used("cq", ("spot", "cpu")) == 2000
    stored(memory, job, admission=entry.admission)
    assert not ends_pods(looked(memory, job))


def test_a_pod_behind_the_gate_gets_the_slot_that_kueue_has_for_it(world):
    job = started_job(pods=3)
    run_by_kueue(world, job, ["r2-h1", "r2-h1"], places={"r2-h1": 2, "r1-h2": 1})
    gated = kueue_pod(job, "train-2", "", gated=True)
    world.stores["pod"]["ns/train-2"] = gated
    memory = world.restarted()
    assert held(memory, job) == {"r2-h1": 2, "r1-h2": 1}
    entry = stored(memory, job, admission=memory.entries[id_of(job)].admission)
    actions = looked(memory, job)
    (sent,) = [one for one in actions if isinstance(one, i.Ungate)]
    assert sent.pod.metadata.name == "train-2"
    assert entry.slots_in["main"].slots[sent.index].node == "r1-h2"
    assert not ends_pods(actions)


def test_where_others_have_the_room_of_a_missing_pod_the_rest_is_taken_over(world):
    job = started_job(pods=2)
    run_by_kueue(world, job, ["r2-h1"], places={"r2-h1": 1, "r1-h2": 1})
    for number in range(2):
        plain = make_pod(f"plain-{number}", owner=owner_of(make_job("plain"), KEYS), node="r1-h2", gated=False)
        world.stores["pod"][f"ns/plain-{number}"] = plain
    memory = world.restarted()
    assert held(memory, job) == {"r2-h1": 1}
    assert memory.entries[id_of(job)].growing == {"main": 2}


def test_a_node_that_is_gone_is_left_out_and_the_rest_taken_over(world):
    job = started_job(pods=2)
    run_by_kueue(world, job, ["r2-h1", "r9-h9"])
    memory = world.restarted()
    assert held(memory, job) == {"r2-h1": 1}


def test_a_pod_that_ends_keeps_its_slot_until_it_is_gone(world):
    job = started_job(pods=1)
    run_by_kueue(world, job, ["r2-h1"])
    world.stores["pod"]["ns/train-0"] = kueue_pod(job, "train-0", "r2-h1", phase="Running", terminating=True)
    world.stores["pod"]["ns/train-1"] = kueue_pod(job, "train-1", "", gated=True)
    memory = world.restarted()
    assert held(memory, job) == {"r2-h1": 1}
    stored(memory, job, admission=memory.entries[id_of(job)].admission)
    assert not any(isinstance(one, i.Ungate) for one in looked(memory, job))


def test_one_of_which_nothing_runs_and_that_has_no_room_waits_as_others_do(world):
    job = started_job(pods=1)
    run_by_kueue(world, job, [], places={"r9-h9": 1})
    world.stores["pod"]["ns/train-0"] = kueue_pod(job, "train-0", "", gated=True)
    memory = world.restarted()
    stored(memory, job)
    assert held(memory, job) is None
    assert [type(one) for one in ends_pods(looked(memory, job))] == [i.Suspend]


def test_pods_on_nodes_that_are_gone_for_a_moment_are_not_ended(world):
    job = started_job(pods=1)
    run_by_kueue(world, job, ["r9-h9"])
    assert "none of its nodes is there any more" in left(world, job)
    world.stores["node"]["r9-h9"] = make_node("r9", "h9")
    assert held(world.restarted(), job) == {"r9-h9": 1}


def test_quota_below_what_runs_is_no_reason_to_end_it(world):
    world.put("cluster_queue", cluster_queue(1))
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    memory = world.memory = world.restarted()
    assert held(memory, job) == {"r2-h1": 1, "r2-h2": 1}
    other = queued(world, "other", 1)
    assert world.refused(other).reason is Reason.PENDING or world.refused(other).message


def test_more_levels_of_a_node_than_kueue_names_are_read_off_it(world):
    job = started_job()
    run_by_kueue(world, job, ["r1-h1", "r1-h1"])
    entry = world.restarted().entries[id_of(job)]
    assert [slot.values for slot in entry.slots.slots] == [("b", "r1", "r1-h1")]


def test_it_was_admitted_for_as_long_as_kueue_says(world):
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"], accumulatedPastExecutionTimeSeconds=40)
    taken = world.restarted().entries[id_of(job)].taken
    assert taken.seconds_run(taken.admitted_at + 60) == 100


# --- what is left running ---------------------------------------------------------------------------------------------


def left(world, job):
    """What is said of a job that is left running, and that nothing ends its pods."""
    memory = world.restarted()
    entry = memory.entries[id_of(job)]
    assert entry.admission is None
    entry.observe(make_known(entry.job))
    actions = looked(memory, job)
    assert not ends_pods(actions)
    assert named(actions) == ["Dequeue", "WriteConditions", "EmitEvent", "RequeueAfter"]
    assert actions[1].wanted[0].reason is Reason.NOT_ADOPTED
    return entry.unadopted


CASES = [
    ({"flavor": "other"}, {}, "there is no ResourceFlavor other of topogate.dev"),
    ({"queue": "theirs"}, {}, "LocalQueue team leads to cq here, and to theirs in Kueue"),
    ({}, {"memory": "1Gi"}, "ClusterQueue cq has no quota of memory in flavor gpu"),
    ({}, {"cpu": "many"}, "resourceUsage of pod set main: "),
]


@pytest.mark.parametrize(("more", "usage", "text"), CASES, ids=[case[2] for case in CASES])
def test_what_cannot_be_held_leaves_it_running_and_is_told(world, more, usage, text):
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"], **more)
    if usage:
        kueue = world.kueue[id_of(job)]
        (part,) = kueue.status.admission.pod_set_assignments
        part = msgspec.structs.replace(part, resource_usage=usage, flavors=dict.fromkeys(usage, "gpu"))
        admission = msgspec.structs.replace(kueue.status.admission, pod_set_assignments=(part,))
        status = msgspec.structs.replace(kueue.status, admission=admission)
        world.kueue[id_of(job)] = msgspec.structs.replace(kueue, status=status)
    assert text in left(world, job)


def test_a_pod_on_a_node_that_no_slot_names_leaves_it_running(world):
    """Else the pod would stand in no slot, and be deleted for that."""
    racks = msgspec.structs.replace(FLAVOR.spec, topology=FlavorTopology(levels=("block", "rack")))
    world.put("flavor", msgspec.structs.replace(FLAVOR, spec=racks))
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    assert "names no domain of flavor gpu (block, rack)" in left(world, job)


def test_a_node_of_another_flavor_leaves_it_running(world):
    node = make_node("r2", "h1")
    labels = {**node.metadata.labels, "pool": "cpu"}
    world.put("node", msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels)))
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    assert "which flavor gpu does not have" in left(world, job)


def test_an_assignment_that_cannot_be_read_leaves_it_running(world):
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    kueue = world.kueue[id_of(job)]
    giant = {"domainCount": 1 << 40, "valuesPerLevel": [{"universal": "n"}], "podCounts": {"universal": 1}}
    (part,) = kueue.status.admission.pod_set_assignments
    part = msgspec.structs.replace(part, topology_assignment={"levels": [HOSTNAME_LABEL], "slices": [giant]})
    admission = msgspec.structs.replace(kueue.status.admission, pod_set_assignments=(part,))
    status = msgspec.structs.replace(kueue.status, admission=admission)
    world.kueue[id_of(job)] = msgspec.structs.replace(kueue, status=status)
    assert "topologyAssignment of pod set main cannot be read" in left(world, job)


def test_one_that_kueue_is_evicting_is_left_running(world):
    job = started_job()
    said = {"Admitted": "True", "QuotaReserved": "True", "Evicted": "True"}
    run_by_kueue(world, job, ["r2-h1", "r2-h2"], conditions=said)
    assert "Kueue was evicting it: suspend it" in left(world, job)


def test_where_kueues_workloads_cannot_be_read_nothing_ends_its_jobs(world):
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    world.known = False
    world.kueue.clear()
    assert "could not be read" in left(world, job)


def test_where_they_cannot_be_read_who_starts_a_job_later_has_it_suspended(world):
    """Kueue leaves the namespace out, so it has not started the job, whatever label its template has."""
    ran, later, resumed = (started_job(name) for name in ("ran", "later", "resumed"))
    run_by_kueue(world, ran, ["r2-h1", "r2-h2"])
    run_by_kueue(world, resumed, [])
    world.known = False
    clock = Ticking()
    world.memory = memory = world.restarted(clock=clock)
    clock.at += 59.0
    world.put("job", later)
    for job in (ran, later):
        stored(memory, job)
        assert not ends_pods(looked(memory, job)), "Kueue may have started it before it saw the label"
    paused = msgspec.structs.replace(resumed, spec=msgspec.structs.replace(resumed.spec, suspend=True))
    world.put("job", paused)
    stored(memory, resumed)
    looked(memory, resumed)
    world.put("job", resumed)
    clock.at += 3600.0
    for job, ends in ((ran, False), (later, True), (resumed, True)):
        stored(memory, job)
        assert any(isinstance(one, i.Suspend) for one in looked(memory, job)) is ends, job.metadata.name
    world.known = True
    memory.count_pods(memory.entries[id_of(ran)], 9e9)
    assert held(memory, ran) == {"r2-h1": 1, "r2-h2": 1}


def test_one_that_is_left_running_stays_so_when_kueues_workload_goes(world):
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"], queue="theirs")
    memory = world.restarted()
    entry = stored(memory, job)
    assert not ends_pods(looked(memory, job))
    world.kueue.clear()
    assert not ends_pods(looked(memory, job))
    assert "leads to cq here" in entry.unadopted


def test_each_look_tries_again(world):
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"], queue="theirs")
    memory = world.restarted()
    stored(memory, job)
    looked(memory, job)
    world.kueue[id_of(job)] = kueue_workload(job, {"r2-h1": 1, "r2-h2": 1}, count=2)
    assert named(looked(memory, job)) == ["RestoreAdmission"]
    assert held(memory, job) == {"r2-h1": 1, "r2-h2": 1}


# --- what is none of Kueue's ------------------------------------------------------------------------------------------


def test_a_job_that_kueue_has_not_admitted_has_a_moment_and_is_suspended_then(world):
    """Kueue would suspend it too (0.19.2, jobframework/reconciler.go: a job that runs without an admitted Workload)."""
    job = started_job()
    run_by_kueue(world, job, ["r2-h1"], conditions={"Admitted": "False"})
    clock = Ticking()
    memory = world.restarted(clock=clock)
    stored(memory, job)
    assert named(looked(memory, job)) == ["Dequeue", "RequeueAfter"], "nothing is said of it"
    clock.at += 10.0
    assert any(isinstance(one, i.Suspend) for one in looked(memory, job))


def test_who_resumes_a_job_by_hand_has_it_suspended_whatever_kueue_once_admitted(world):
    """A job that was put back here has lost Kueue's label; and a Workload that was admitted here says that it was."""
    plain = make_job("train", parallelism=2, labels={KEYS.queue_name: "team"})
    run_by_kueue(world, plain, [], places={"r2-h1": 2})
    memory = world.restarted()
    stored(memory, plain)
    assert any(isinstance(one, i.Suspend) for one in looked(memory, plain))

    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    memory = world.restarted()
    entry = stored(memory, job, admission=memory.entries[id_of(job)].admission)
    memory.admissions.release_and_requeue(entry)
    stored(memory, job)
    assert any(isinstance(one, i.Suspend) for one in looked(memory, job))


def test_a_job_of_nobody_is_suspended_though_it_has_kueues_label(world):
    job = started_job()
    run_by_kueue(world, job, [], places={"r2-h1": 2})
    world.kueue.clear()
    memory = world.restarted()
    stored(memory, job)
    assert any(isinstance(one, i.Suspend) for one in looked(memory, job))


def test_a_job_that_waits_in_kueue_waits_here(world):
    job = make_job("train", parallelism=2, labels={KEYS.queue_name: "team"}, suspend=True)
    world.stores["job"]["ns/train"] = job
    world.kueue[id_of(job)] = kueue_workload(
        job, {"r2-h1": 2}, count=2, conditions={"QuotaReserved": "False"}, active=False
    )
    memory = world.restarted()
    entry = memory.entries[id_of(job)]
    assert (entry.admission, entry.unadopted) == (None, "")
    assert memory.adopted.is_on_hold(entry)
    assert named(looked(memory, job)) == ["Create"]


# --- whom it serves ---------------------------------------------------------------------------------------------------


def test_nothing_is_served_without_the_label():
    world = beside_kueue(served=False)
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    gated = kueue_pod(job, "train-9", "", gated=True)
    world.stores["pod"]["ns/train-9"] = gated
    memory = world.memory = world.restarted()
    assert not memory.entries
    assert not memory.gated_orphans.pods, "the gate is Kueue's there"
    assert memory.state.free_on_node("r2-h1")["cpu"] == 1000, "its pods take their nodes all the same"
    world.put("job", job)
    world.put("pod", gated)
    assert not memory.entries


@pytest.mark.parametrize("value", ["false", "True", ""])
def test_no_other_value_has_a_namespace_served(value):
    world = beside_kueue(served=False)
    world.put("namespace", Namespace(metadata=ObjectMeta(name="ns", labels={SERVED: value})))
    assert world.restarts == 0


def test_a_label_that_changes_ends_the_term_and_changes_nothing_in_it():
    world = beside_kueue(served=False)
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    world.memory = world.restarted()
    world.put("namespace", Namespace(metadata=ObjectMeta(name="ns", labels={SERVED: "true"})))
    assert world.restarts == 1
    world.put("job", job)
    assert not world.memory.entries, "its jobs are looked at once all that Kueue has of them was read"
    world.memory = world.restarted()
    assert held(world.memory, job) == {"r2-h1": 1, "r2-h2": 1}
    world.put("namespace", Namespace(metadata=ObjectMeta(name="ns", labels={SERVED: "true", "more": "labels"})))
    assert world.restarts == 1
    world.put("namespace", Namespace(metadata=ObjectMeta(name="ns")))
    assert world.restarts == 2


def test_a_namespace_that_is_made_with_the_label_is_served_at_once():
    """Each pipeline may make one: a term that ends for it would read everything again."""
    world = beside_kueue()
    world.put("namespace", Namespace(metadata=ObjectMeta(name="new", labels={SERVED: "true"})))
    world.put("namespace", Namespace(metadata=ObjectMeta(name="other")))
    assert world.restarts == 0
    job = make_job("train", labels={KEYS.queue_name: "team"}, suspend=True)
    for name in ("new", "other"):
        meta = msgspec.structs.replace(job.metadata, namespace=name, uid=f"uid-{name}")
        world.put("job", msgspec.structs.replace(job, metadata=meta))
    assert [entry.job.namespace for entry in world.memory.entries.values()] == ["new"]


def test_pods_where_kueue_serves_are_nobodys_victims():
    world = beside_kueue(served=False)
    job = started_job()
    run_by_kueue(world, job, ["r2-h1"])
    memory = world.make(queueing=model.Rules(pods=True))
    stores = (world.stores[kind].values() for kind in ("node", "flavor", "class", "job", "pod"))
    for _ in memory.load(*stores, namespaces=world.stores["namespace"].values()):
        pass
    assert not memory.queues.holders.outside
    assert KUEUE_POD_SET in KEYS.read


# --- what is started here ----------------------------------------------------------------------------------------


def waiting_in_kueue(world, job):
    """Kueue's Workload of a job that was not admitted before its queue moved."""
    world.kueue[id_of(job)] = kueue_workload(job, {}, count=1, conditions={})


@pytest.mark.parametrize("waited", [True, False])
def test_what_is_started_here_names_the_workload_by_which_kueue_can_take_it_back(world, waited):
    """One that is there may have another name than Kueue gives today (gate ShortWorkloadNames)."""
    job = queued(world, "train")
    if waited:
        waiting_in_kueue(world, job)
    name = world.memory.adopted.name_in_kueue(world.memory.entries[id_of(job)])
    derived = kueue_workload_name("Job", "batch/v1", "train", job.metadata.uid)
    assert name == ("job-train-00000" if waited else derived)


async def test_the_start_of_a_job_says_it(world):
    job = queued(world, "train")
    world.admit(job)
    sent = []

    class Client:
        async def patch(self, *_args, body, **_options):
            sent.append(body)
            return job

    jobs = StartStop(Client(), world.memory, None, flavors={}, keys=KEYS, recorder=None)
    await jobs.start_job(world.memory.entries[id_of(job)])
    name = kueue_workload_name("Job", "batch/v1", "train", job.metadata.uid)
    (body,) = sent
    assert body["spec"]["template"]["metadata"]["labels"] == {KUEUE_POD_SET: "main"}
    assert body["spec"]["template"]["metadata"]["annotations"][KUEUE_WORKLOAD] == name


@pytest.mark.parametrize("waited", [True, False])
def test_a_job_that_was_started_here_is_held_as_one_of_ours_though_it_has_kueues_label(world, waited):
    job = make_job("train", parallelism=2, labels={KEYS.queue_name: "team"}, pod_labels={KUEUE_POD_SET: "main"})
    world.put("job", job)
    world.admit(job)
    before = held(world.memory, job)
    if waited:
        waiting_in_kueue(world, job)
    memory = world.restarted()
    entry = memory.entries[id_of(job)]
    actions = looked(memory, job)
    assert held(memory, job) == before
    assert (entry.taken, entry.unadopted, entry.adopting) == (None, "", frozenset())
    assert not ends_pods(actions)


def test_its_workload_is_deleted_meanwhile_and_what_its_pods_have_is_held_again(world):
    """Its pods have our marks, whatever Kueue's Workload says."""
    job = make_job("train", parallelism=2, labels={KEYS.queue_name: "team"}, pod_labels={KUEUE_POD_SET: "main"})
    world.put("job", job)
    waiting_in_kueue(world, job)
    quota = encode(AdmittedQuota("cq", {"cpu": "gpu"}))
    for number, host in enumerate(("r2-h1", "r2-h2")):
        pod = kueue_pod(job, f"train-{number}", host, phase="Running")
        marks = {KEYS.workload: owner_of(job, KEYS).workload, KEYS.pod_set: "main", ADMITTED_QUOTA: quota}
        meta = msgspec.structs.replace(pod.metadata, annotations=marks)
        selector = {FLAVOR.spec.topology.levels[0]: "b", FLAVOR.spec.topology.levels[1]: "r2", HOSTNAME_LABEL: host}
        spec = msgspec.structs.replace(pod.spec, node_selector=selector)
        world.put("pod", msgspec.structs.replace(pod, metadata=meta, spec=spec))
    memory = world.restarted()
    assert held(memory, job) == {"r2-h1": 1, "r2-h2": 1}
    assert memory.entries[id_of(job)].taken is None
    assert not ends_pods(looked(memory, job))


# --- the templates that are stored ------------------------------------------------------------------------------------


def test_evicted_later_the_template_is_as_its_user_wrote_it():
    """Kueue's copy is from before the start, without the labels that the API server writes (0.19.2, cleanLabels)."""
    managed = {
        "controller-uid": "u",
        "batch.kubernetes.io/controller-uid": "u",
        "batch.kubernetes.io/job-name": "train",
    }
    own = {"app": "x"}
    running = make_job(
        "train",
        parallelism=2,
        suspend=True,
        labels={KEYS.queue_name: "team"},
        pod_labels={**own, **managed, KUEUE_POD_SET: "main"},
        spec={"nodeSelector": {"pool": "gpu"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
    )
    owner = owner_of(running, KEYS)
    before = {"metadata": {"labels": own, "annotations": {KEYS.required[0]: "rack"}}, "spec": {"containers": []}}
    copy = KueueCopy(({"name": "main", "count": 2, "template": before},))
    made = new_workload(owner, 0, kueue=copy)
    stored = made["spec"]["podSets"]
    assert stored[0]["template"]["metadata"]["labels"] == {**own, **managed}
    patch = restore(owner, stored)["spec"]["template"]
    assert patch["metadata"]["labels"] == {**own, **managed, KUEUE_POD_SET: None}
    assert patch["spec"] == {"nodeSelector": None, "tolerations": None, "schedulingGates": None}
    assert "active" not in made["spec"]


def test_put_back_it_does_not_say_that_kueue_started_it_though_its_user_wrote_that():
    """Resumed by hand after its Workload was deleted, it would else be taken over again, whatever quota there is."""
    labels = {"app": "x", KUEUE_POD_SET: "main"}
    owner = owner_of(make_job("train", suspend=True, pod_labels=labels), KEYS)
    copy = KueueCopy(({"name": "main", "count": 1, "template": {"metadata": {"labels": labels}, "spec": {}}},))
    stored = new_workload(owner, 0, kueue=copy)["spec"]["podSets"]
    assert stored[0]["template"]["metadata"]["labels"] == {"app": "x"}
    assert restore(owner, stored)["spec"]["template"]["metadata"]["labels"] == {"app": "x", KUEUE_POD_SET: None}


def test_a_job_that_kueue_was_told_to_keep_waiting_waits_on():
    made = new_workload(owner_of(make_job(suspend=True), KEYS), 0, kueue=KueueCopy(active=False))
    assert made["spec"]["active"] is False


def test_a_job_that_runs_with_fewer_pods_keeps_the_count_that_it_asked_for():
    """Kueue writes the admitted count into spec.parallelism where the job has a least one (job_controller.go)."""
    job = make_job(parallelism=2, suspend=True)
    meta = msgspec.structs.replace(job.metadata, annotations={KEYS.min_parallelism: "1"})
    owner = owner_of(msgspec.structs.replace(job, metadata=meta), KEYS)
    copy = KueueCopy(({"name": "main", "count": 4, "template": {"spec": {}}},))
    (part,) = new_workload(owner, 0, kueue=copy)["spec"]["podSets"]
    assert (part["count"], part["minCount"]) == (4, 1)


@pytest.mark.parametrize("pod_sets", [(), ({"name": "other"},), ({"name": "main", "template": "text"},)])
def test_without_a_copy_the_template_is_the_jobs(pod_sets):
    owner = owner_of(make_job(suspend=True), KEYS)
    assert new_workload(owner, 0, kueue=KueueCopy(pod_sets)) == new_workload(owner, 0)


# --- what Kueue may have stored ---------------------------------------------------------------------------------------


def anything(dice):
    return dice.choice((None, True, -1, 1 << 62, 1.5, "", "x" * 300, "\u0000", [], {}, [[]], "1e400", "-1", {"a": {}}))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_kueues_workload_says_a_look_ends_no_pod_and_raises_nothing(world, seed):
    """Of one that is admitted still: Kueue would end the pods of any other."""
    job = started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    sound = json.loads(msgspec.json.encode(world.kueue[id_of(job)]))
    for number in range(25):
        dice = random.Random(f"{seed} {number}")
        body = json.loads(json.dumps(sound))
        for _ in range(dice.choice((1, 1, 2, 4))):
            change = dice.choice((moved, removed, wrapped, renamed, partial(replaced, anything=anything)))
            admission = change(body["status"]["admission"], dice)
            body["status"]["admission"] = admission if isinstance(admission, dict) else {}
        try:
            world.kueue[id_of(job)] = msgspec.json.decode(json.dumps(body), type=KueueWorkload)
        except msgspec.ValidationError:
            continue  # it is passed over, and logged
        memory = world.restarted(guard=Guard(SYSTEM, raised))
        entry = stored(memory, job)
        looked(memory, job)
        assert entry.admission is not None or entry.unadopted, body


def raised(kind):
    raise AssertionError(kind)
