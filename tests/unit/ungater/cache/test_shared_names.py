"""Owners whose Workloads have one usual name: each has a Workload of its own, and what runs by it is charged."""

import msgspec
import pytest
from support.owned import KEYS, make_known, make_owner, slot_map
from support.queued_world import filled
from support.world import World, stored_workload

from crds.constants import ADMITTED_QUOTA, HOSTNAME_LABEL, OWNER
from crds.names import MAX_NAME, longer_name, owner_digest, workload_name
from engine.reasons import Reason
from kube.objects import Pod
from queueing.cycle.cycle import cycle
from ungater.model.workload_spec import belongs

CPU = ("gpu", "cpu")
# Two uids, and two names of groups, whose Workloads have one usual name: a second's work with sha256.
UIDS = "u18cec8", "u19e4fb"
LONG = "a-group-whose-name-is-so-long-that-the-workl"
GROUPS = f"{LONG}-aa316", f"{LONG}-f3f4a"


def pod(name, meta, *, cpu=1, sent_to="", workload="", flavors='{"cpu":"gpu"}'):
    """A pod with this metadata, behind the gate or let go for a Workload; its node is ``sent_to``."""
    said = {KEYS.workload: workload, KEYS.pod_set: "main"} if workload else {}
    said |= {ADMITTED_QUOTA: f'{{"clusterQueue":"cq","flavors":{flavors}}}'} if workload else {}
    labels = {KEYS.queue_name: "team", **meta.get("labels", {})}
    body = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-21T00:00:01Z",
            **meta,
            "labels": labels,
            "annotations": {KEYS.unconstrained: "true", **said},
        },
        "spec": {
            "schedulingGates": [] if workload else [{"name": KEYS.gate}],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}],
            **({"nodeName": sent_to, "nodeSelector": slot(sent_to)} if sent_to else {}),
        },
        "status": {"phase": "Running" if sent_to else "Pending"},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Pod)


def slot(node):
    return {"pool": "gpu", "block": "b", "rack": node.partition("-")[0], HOSTNAME_LABEL: node}


def of_foo(uid):
    return {
        "ownerReferences": [{"apiVersion": "made.up/v1", "kind": "Foo", "name": "x", "uid": uid, "controller": True}]
    }


def of_group(name):
    return {"labels": {KEYS.pod_group: name}}


COLLIDING = {
    "owners that nobody has": tuple((of_foo(uid), f"ns/{uid}@Foo.made.up") for uid in UIDS),
    "groups": tuple((of_group(name), f":group/ns/{name}") for name in GROUPS),
}


@pytest.fixture(params=COLLIDING)
def both(request):
    return COLLIDING[request.param]


@pytest.fixture
def world():
    return filled(World())


def used(memory):
    return memory.queues.quotas.used("cq", CPU)


def come(world, which, one):
    """Two pods of two CPUs, which take the quota of the queue; its entry."""
    meta, owner = one
    for number in range(2):
        world.put("pod", pod(f"{which}-{number}", meta, cpu=2))
    return world.memory.entries[owner]


def run(world, which, one, entry, node):
    """Both are admitted, let go and run."""
    world.admit_entry(entry)
    for number in range(2):
        at = f"{node}-h{number + 1}"
        world.put("pod", pod(f"{which}-{number}", one[0], cpu=2, sent_to=at, workload=entry.job.workload))
    return entry


def test_the_usual_names_are_one():
    usual = {workload_name("Foo", "x", f"{uid}@Foo.made.up") for uid in UIDS}
    assert usual == {"foo-x-5c70ba0fc9"}
    assert len({workload_name("PodGroup", name, f"group/ns/{name}") for name in GROUPS}) == 1


def test_the_second_owner_gets_a_longer_name_and_the_first_keeps_what_it_holds(world, both):
    """What of the second goes gives nothing of the first back: another job waits for quota."""
    first = run(world, "a", both[0], come(world, "a", both[0]), "r1")
    assert used(world.memory) == 4000
    second = come(world, "b", both[1])
    assert second.job.workload == longer_name(first.job.workload, second.job.owner) != first.job.workload
    assert len(second.job.workload) <= MAX_NAME
    world.memory.admissions.release_job(second)
    for number in range(2):
        world.drop("pod", pod(f"b-{number}", both[1][0]))
    world.memory.views.drop(second.id)
    assert used(world.memory) == 4000
    assert world.memory.entries.of_workload(first.key) is first
    third = come(world, "c", (of_foo("u-c"), "ns/u-c@Foo.made.up"))
    third.observe(make_known(third.job))
    world.memory.admissions.enqueue_entry(third)
    assert not cycle(world.memory.state, world.memory.queues, 0.0).admitted
    assert world.memory.queues.entries[third.key].refusal.reason is Reason.INSUFFICIENT_QUOTA
    assert used(world.memory) == 4000


def test_both_are_found_again_after_a_restart_whichever_is_listed_first(both):
    world = filled(World(), cpus=8)
    first = run(world, "a", both[0], come(world, "a", both[0]), "r1")
    second = run(world, "b", both[1], come(world, "b", both[1]), "r2")
    names = {one.id: one.job.workload for one in (first, second)}
    assert used(world.memory) == 8000
    for order in (1, -1):
        world.stores["pod"] = dict(list(world.stores["pod"].items())[::order])
        again = world.restarted()
        assert {one.id: one.job.workload for one in again.entries.values()} == names
        assert used(again) == 8000
        assert all(len(again.entries[uid].pods) == 2 for uid in names)


def test_a_longer_name_is_kept_by_its_pods_where_its_workload_and_the_other_owner_are_gone(both):
    world = filled(World(), cpus=8)
    first = come(world, "a", both[0])
    second = run(world, "b", both[1], come(world, "b", both[1]), "r2")
    for number in range(2):
        world.drop("pod", pod(f"a-{number}", both[0][0]))
    world.drop("workload", world.stores["workload"][second.key])
    again = world.restarted()
    assert first.id not in again.entries
    assert again.entries[second.id].job.workload == second.job.workload
    assert used(again) == 4000, "it runs on"


def test_a_workload_of_an_earlier_version_which_does_not_say_whose_it_is_is_taken_over(world, both):
    entry = run(world, "a", both[0], come(world, "a", both[0]), "r1")
    stored = world.stores["workload"][entry.key]
    meta = msgspec.structs.replace(stored.metadata, annotations={})
    world.stores["workload"][entry.key] = msgspec.structs.replace(stored, metadata=meta)
    again = world.restarted()
    assert again.entries[entry.id].admission is not None
    assert again.entries[entry.id].job.workload == entry.job.workload


@pytest.fixture
def of_0_1_0(world):
    """The world after an owner of a made-up kind ran there under 0.1.0: its Workload is called by the uid alone.

    Neither the Workload says whose it is, nor the pods by which quota they run.
    """
    entry = run(
        world, "a", (of_foo("u-a"), "ns/u-a@Foo.made.up"), come(world, "a", (of_foo("u-a"), "ns/u-a@Foo.made.up")), "r1"
    )
    stored = world.stores["workload"].pop(entry.key)
    name = workload_name("Foo", "x", "u-a")
    meta = msgspec.structs.replace(stored.metadata, name=name, annotations={})
    world.stores["workload"][f"ns/{name}"] = msgspec.structs.replace(stored, metadata=meta)
    for one in tuple(world.stores["pod"].values()):
        said = {KEYS.workload: name, KEYS.pod_set: "main", KEYS.unconstrained: "true"}
        meta = msgspec.structs.replace(one.metadata, annotations=said)
        world.stores["pod"][f"ns/{one.metadata.name}"] = msgspec.structs.replace(one, metadata=meta)
    return world, name


def test_what_an_owner_held_under_0_1_0_is_held_by_the_same_workload(of_0_1_0):
    world, name = of_0_1_0
    again = world.restarted()
    entry = again.entries["ns/u-a@Foo.made.up"]
    assert entry.job.workload == name != workload_name("Foo", "x", "u-a@Foo.made.up")
    assert entry.admission is not None
    assert used(again) == 4000
    assert again.pod_groups.serves(f"ns/{name}"), "it is not removed"


def test_an_owner_of_another_kind_with_that_uid_gets_nothing_of_it(of_0_1_0):
    """Its pods say to have been let go for the Workload, which is another's."""
    world, name = of_0_1_0
    forged = {"ownerReferences": [{**of_foo("u-a")["ownerReferences"][0], "apiVersion": "other.example/v1"}]}
    world.put("pod", pod("b-0", forged, cpu=2))
    world.put("pod", pod("b-1", forged, cpu=2, sent_to="r2-h1", workload=name))
    again = world.restarted()
    assert again.entries["ns/u-a@Foo.other.example"].job.workload != name
    assert again.entries["ns/u-a@Foo.made.up"].job.workload == name


def test_a_workload_of_its_name_that_says_to_be_anothers_is_not_taken_over(world, both):
    entry = come(world, "a", both[0])
    other = stored_workload(entry.job, slot_map(("b/r1/r1-h1", 2)))
    said = {**other.metadata.annotations, OWNER: owner_digest("ns/somebody", "")}
    forged = msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, annotations=said))
    assert belongs(other, entry.job)
    assert not belongs(forged, entry.job)


def test_a_job_whose_uid_a_made_up_kind_names_shares_nothing_with_it():
    """The uid of the controlling owner alone does not tell whose a Workload is."""
    job = make_owner("train")
    workload = stored_workload(job, slot_map(("b/r1/r1-h1", 4)))
    forged = [msgspec.structs.replace(one, api_version="made.up/v1") for one in workload.metadata.owner_references]
    meta = msgspec.structs.replace(workload.metadata, owner_references=tuple(forged), annotations={})
    assert not belongs(msgspec.structs.replace(workload, metadata=meta), job)


def test_a_name_that_is_found_taken_when_the_workload_is_made_ends_in_the_longer_one(world, both):
    """Somebody made one by hand, which no watch told of yet."""
    entry = come(world, "a", both[0])
    usual = entry.job.workload
    assert world.memory.views.rename(entry)
    assert entry.job.workload == longer_name(usual, entry.job.owner)
    assert world.memory.entries.of_workload(entry.key) is entry
    assert not world.memory.entries.knows_workload(f"ns/{usual}")
    assert not world.memory.views.rename(entry), "there is no third name"
    world.memory.pod_groups.regroup(entry)
    assert entry.job.workload == longer_name(usual, entry.job.owner)


def test_one_that_holds_something_keeps_the_name_by_which_it_is_held(world, both):
    entry = run(world, "a", both[0], come(world, "a", both[0]), "r1")
    assert not world.memory.views.rename(entry)


def test_names_of_ordinary_jobs_stay_as_they_are_stored():
    assert workload_name("Job", "train", "3f0e") == "job-train-1486e8a148"
    assert longer_name("foo-x-5c70ba0fc9", "z" * 26) == "foo-x-" + "z" * 26
