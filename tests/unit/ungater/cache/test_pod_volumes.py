"""Workloads whose pods have volumes: where they go, what they wait for, and who is looked at when volumes change."""

import msgspec
import pytest
from msgspec.structs import replace
from support.owned import KEYS, LEVELS, make_job, make_known
from support.owned import make_pod as job_pod
from support.world import FLAVOR, World, make_node

from engine.cluster.unusable_slots import SlotNodes
from engine.model import HOSTNAME_LABEL, NO_LIMIT, local_volumes_of, volumes_of
from engine.reasons import Reason
from kube.objects import Pod, PodSpec
from kube.pods.limits import MOST_CLAIMS
from kube.volumes.objects import (
    BIND_COMPLETED,
    SELECTED_NODE,
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from queueing.cycle.cycle import cycle
from ungater.cache.claims.pod_volumes import MOST_NOTED
from ungater.jobs.pod_group import owner_key
from ungater.model.actions import Enqueue, Ungate, WriteConditions
from ungater.model.job_view import id_of
from ungater.model.pod_slots import PodSetSlots, Slot
from ungater.model.workload_entry import Refused
from ungater.reconcile.reconcile import reconcile, why_not_placed
from ungater.scheduling.replacement import replace_lost_slots

LIMIT = volumes_of("ebs")
LOCAL = local_volumes_of("local")
STATEFUL_SET = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u-db", "controller": True}


def read(kind, body):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def a_claim(name, volume="", *, uid="", mode="ReadWriteOnce", storage_class="slow", owner=None, **meta):
    annotations = {BIND_COMPLETED: "yes"} if volume else {}
    owners = (
        [{"kind": "Pod", "apiVersion": "v1", "name": owner, "uid": f"u-{owner}", "controller": True}] if owner else []
    )
    meta = {"name": name, "namespace": "ns", "uid": uid or name, "annotations": annotations, **meta}
    spec = {"volumeName": volume, "accessModes": [mode], "storageClassName": storage_class}
    return read(PersistentVolumeClaim, {"metadata": {**meta, "ownerReferences": owners}, "spec": spec})


def a_volume(name, rack="", claim="", *, driver="ebs", storage_class="slow", phase=None):
    spec = {"csi": {"driver": driver}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    if rack:
        need = {"key": "rack", "operator": "In", "values": [rack]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [need]}]}}
    if claim:
        spec["claimRef"] = {"namespace": "ns", "name": claim, "uid": claim}
    status = {"phase": phase or ("Bound" if claim else "Available")}
    return read(PersistentVolume, {"metadata": {"name": name, "uid": name}, "spec": spec, "status": status})


def a_disk(name, host, claim=""):
    """A volume of one host."""
    need = {"key": HOSTNAME_LABEL, "operator": "In", "values": [host]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [need]}]}}
    found = a_volume(name, claim=claim, storage_class="local")
    affinity = msgspec.convert(affinity, type(a_volume("x", "r1").spec.node_affinity))
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, node_affinity=affinity))


def a_class(name="slow", *, rack="", provisioner="ebs", waits=True):
    body = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate"}
    if rack:
        body["allowedTopologies"] = [{"matchLabelExpressions": [{"key": "rack", "values": [rack]}]}]
    return read(StorageClass, {**body, "metadata": {"name": name}})


def csi_node(name, count):
    drivers = [{"name": "ebs", "allocatable": {"count": count}}]
    return read(CsiNode, {"metadata": {"name": name}, "spec": {"drivers": drivers}})


def claims(*names):
    return {"volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]}


def ephemeral(name="scratch", storage_class="slow"):
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}}
    return {"volumes": [{"name": name, "ephemeral": {"volumeClaimTemplate": template}}]}


def member(name, index, *, claim="", request=None, node="", gated=True, **more):
    """A pod of a StatefulSet."""
    spec = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        **({"schedulingGates": [{"name": KEYS.gate}]} if gated else {}),
        **({"nodeName": node} if node else {}),
        **(claims(claim) if claim else {}),
        **more.pop("spec", {}),
    }
    meta = {
        "name": name,
        "namespace": "ns",
        "uid": f"u-{name}",
        "labels": {"apps.kubernetes.io/pod-index": str(index)},
        "annotations": request or {KEYS.unconstrained: "true"},
        "ownerReferences": [STATEFUL_SET],
        "creationTimestamp": f"2026-11-21T00:00:0{index}Z",
        **more.pop("meta", {}),
    }
    return read(Pod, {"metadata": meta, "spec": spec, "status": {"phase": more.pop("phase", "Pending")}})


class Volumes(World):
    """Two racks of two hosts, which take four pods each, and a class that waits for a pod."""

    def __init__(self):
        super().__init__()
        self.put("flavor", FLAVOR)
        for rack in ("r1", "r2"):
            for host in ("h1", "h2"):
                self.put("node", make_node(rack, host, cpu="4"))
        self.put("storage_class", a_class())

    def bind(self, name, rack, **more):
        """A claim and its volume in a rack."""
        self.put("volume", a_volume(f"pv-{name}", rack, name, **more))
        self.put("claim", a_claim(name, f"pv-{name}"))

    def entry(self, job):
        found = self.memory.entries[id_of(job) if not isinstance(job, Pod) else owner_key(job, KEYS)]
        self.memory.pod_groups.regroup(found)
        found.observed = found.observed or make_known(found.job)
        return found

    def why(self, job):
        return why_not_placed(self.entry(job), self.memory.rules)

    def place(self, job):
        """Wait, be admitted by a cycle, store and admit: racks, or hosts, with how many pods."""
        entry = self.entry(job)
        self.memory.admissions.enqueue_entry(entry)
        made = next((one for one in cycle(self.memory.state, self.memory.queues, 0.0).admitted), None)
        if made is None:
            return self.memory.queues.entries[entry.key].refusal
        self.admitted(entry, made.grant)
        return {slot.node: slot.count for slot in entry.slots.slots}

    def admitted(self, entry, grant):
        """A grant is stored."""
        admission = self.memory.reservations.admission_of(entry, grant)
        self.memory.admissions.store_admission(entry, admission, grant)
        entry.observed = replace(entry.observed, admission=admission)

    def look(self, pod):
        """What a look at a StatefulSet says: pods that go, by name, and the rest."""
        entry = self.entry(pod)
        steps = reconcile(entry, self.memory.rules, 100.0, 100.0)
        going = {one.pod.metadata.name: entry.slots.slots[one.index].node for one in steps if isinstance(one, Ungate)}
        return going, steps

    def free(self, name):
        return self.memory.state.free_on_node(name)[LIMIT]


@pytest.fixture
def world():
    return Volumes()


def said(steps):
    """The reason and message of the last condition."""
    return [(one.wanted[0].reason, one.wanted[0].message) for one in steps if isinstance(one, WriteConditions)][-1]


# -- jobs ---------------------------------------------------------------------------------------------------------


def test_a_job_goes_to_the_rack_that_its_volume_reaches(world):
    world.bind("data", "r2")
    world.put("job", job := make_job(spec=claims("data")))
    assert world.place(job) == {"r2-h1": 4}


def test_a_job_whose_volumes_share_no_node_waits_and_says_why(world):
    world.bind("one", "r1")
    world.bind("two", "r2")
    world.put("job", job := make_job(spec=claims("one", "two")))
    refusal = world.place(job)
    assert (refusal.reason, "no node is reached by all volumes of the pods" in refusal.message) == (
        Reason.NEVER_FITS,
        True,
    )


def test_a_job_goes_where_the_class_of_its_unbound_claim_makes_volumes(world):
    world.put("storage_class", a_class("zonal", rack="r2"))
    world.put("claim", a_claim("data", storage_class="zonal"))
    world.put("job", job := make_job(spec=claims("data")))
    assert world.place(job) == {"r2-h1": 4}


def test_ephemeral_volumes_go_where_their_class_makes_them(world):
    world.put("storage_class", a_class("zonal", rack="r2"))
    world.put("job", job := make_job(spec=ephemeral(storage_class="zonal")))
    assert world.place(job) == {"r2-h1": 4}


def test_local_volumes_that_are_free_say_where_pods_may_go(world):
    world.put("storage_class", a_class("local", provisioner="kubernetes.io/no-provisioner"))
    world.put("volume", a_volume("disk", "r2", storage_class="local"))
    world.put("claim", a_claim("data", storage_class="local"))
    world.put("job", job := make_job(spec=claims("data")))
    assert world.place(job) == {"r2-h1": 4}


def test_a_workload_waits_for_a_claim_and_is_looked_at_when_it_comes(world):
    world.put("job", job := make_job(spec=claims("data")))
    assert world.why(job) == (
        Reason.VOLUME_NOT_READY,
        'it waits for its volumes: persistentvolumeclaim "data" not found',
    )
    world.asked.clear()
    world.put("claim", a_claim("data", storage_class="fast"))
    assert world.asked == [id_of(job)]
    assert 'storageclass "fast", which is not there' in world.why(job)[1]
    world.asked.clear()
    world.put("storage_class", a_class("fast", rack="r2"))
    assert world.asked == [id_of(job)]
    assert world.why(job) is None
    assert world.place(job) == {"r2-h1": 4}


def test_a_workload_whose_claim_goes_waits_again(world):
    world.bind("data", "r2")
    world.put("job", job := make_job(spec=claims("data")))
    assert world.why(job) is None
    world.put("claim", a_claim("data", "pv-data", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert "is being deleted" in world.why(job)[1]
    world.drop("claim", a_claim("data"))
    world.bind("data", "r1")
    assert world.why(job) is None
    assert world.place(job) == {"r1-h1": 4}


def test_a_workload_is_looked_at_when_a_volume_that_it_may_have_comes_or_goes(world):
    world.put("storage_class", a_class("local", provisioner="kubernetes.io/no-provisioner"))
    world.put("claim", a_claim("data", storage_class="local"))
    world.put("job", job := make_job(spec=claims("data")))
    assert "no available persistentvolume" in world.why(job)[1]
    for change in (
        a_volume("disk", "r2", storage_class="local"),
        a_volume("disk", "r2", "other", storage_class="local"),
    ):
        world.asked.clear()
        world.put("volume", change)
        assert world.asked == [id_of(job)]
    world.asked.clear()
    world.put("volume", a_volume("elsewhere", "r2", storage_class="slow"))
    assert world.asked == []


def test_what_changes_of_a_claim_without_meaning_has_nobody_looked_at(world):
    world.bind("data", "r2")
    world.put("job", job := make_job(spec=claims("data")))
    world.why(job)
    world.asked.clear()
    world.put("claim", a_claim("data", "pv-data", labels={"a": "b"}, resourceVersion="9"))
    assert world.asked == []


def test_nothing_is_remembered_of_a_job_that_is_gone(world):
    world.put("job", job := make_job(spec=claims("data")))
    world.why(job)
    assert world.memory.pod_volumes.concerned("ns/data") == (id_of(job),)
    world.drop("job", job)
    assert world.memory.pod_volumes.concerned("ns/data") == ()


def test_one_pod_alone_may_have_a_claim(world):
    world.bind("data", "r1")
    world.put("claim", a_claim("data", "pv-data", mode="ReadWriteOncePod"))
    other = member("other", 0, claim="data", node="r1-h1", gated=False, meta={"ownerReferences": []})
    world.put("pod", other)
    world.put("job", job := make_job(spec=claims("data"), parallelism=2))
    assert world.why(job)[1].endswith('"data" is ReadWriteOncePod, and pod other has it')
    world.asked.clear()
    world.drop("pod", other)
    assert id_of(job) in world.asked
    assert world.why(job) is None


# -- what is attached ---------------------------------------------------------------------------------------------


def test_a_node_takes_as_many_volumes_as_it_attaches(world):
    for name in ("r1-h1", "r1-h2"):
        world.put("csi_node", csi_node(name, 1))
    world.put("csi_node", csi_node("r2-h1", 3))
    world.put("job", job := make_job(spec=ephemeral()))
    assert world.place(job) == {"r2-h2": 4}  # that names no limit
    world.put("csi_node", csi_node("r2-h2", 5))
    world.put("job", other := make_job("other", spec=ephemeral(), parallelism=3))
    assert world.place(other) == {"r2-h1": 3}
    assert (world.free("r2-h2"), world.free("r2-h1")) == (1, 0)


def test_a_node_that_attaches_more_has_those_who_wait_looked_at(world):
    for rack in ("r1", "r2"):
        for host in ("h1", "h2"):
            world.put("csi_node", csi_node(f"{rack}-{host}", 1))
    world.put("job", job := make_job(spec=ephemeral()))
    assert LIMIT in world.place(job).message
    world.put("csi_node", csi_node("r2-h2", 3))
    assert world.place(job) == {"r2-h1": 1, "r2-h2": 3}


def test_a_claim_that_all_pods_have_counts_once_on_a_node(world):
    for name in ("r1-h1", "r1-h2", "r2-h1", "r2-h2"):
        world.put("csi_node", csi_node(name, 1))
    world.bind("data", "r2")
    world.put("job", job := make_job(spec=claims("data")))
    assert world.place(job) == {"r2-h1": 4}
    assert (world.free("r2-h1"), world.free("r2-h2")) == (0, 1)


def test_volumes_of_all_pods_on_a_node_count_whoever_made_them(world):
    world.put("csi_node", csi_node("r1-h1", 5))
    assert world.free("r2-h1") == NO_LIMIT
    for number, claim in enumerate(("data", "data", "other", "unbound")):
        world.put("pod", job_pod(f"p{number}", node="r1-h1", gated=False, spec=claims(claim, "nosuch")))
    assert world.free("r1-h1") == 5
    world.bind("data", "r1")
    assert world.free("r1-h1") == 4
    world.bind("other", "r1", driver="nfs")
    world.put("claim", a_claim("unbound"))
    assert world.free("r1-h1") == 3
    assert world.restarted().state.free_on_node("r1-h1") == world.memory.state.free_on_node("r1-h1")
    world.drop("csi_node", csi_node("r1-h1", 5))
    assert world.free("r1-h1") == NO_LIMIT - 2


def test_what_is_held_after_a_restart_counts_its_volumes(world):
    world.put("csi_node", csi_node("r1-h1", 9))
    world.put("job", job := make_job(spec=ephemeral()))
    world.admit(job)
    held = {name: world.free(name) for name in ("r1-h1", "r2-h1")}
    again = world.restarted()
    assert {name: again.state.free_on_node(name)[LIMIT] for name in held} == held


def test_a_node_takes_as_many_pods_as_it_has_disks_for_them(world):
    world.put("storage_class", a_class("local", provisioner="kubernetes.io/no-provisioner"))
    world.put("job", job := make_job(spec=ephemeral(storage_class="local"), request={KEYS.unconstrained: "true"}))
    assert "no available persistentvolume" in world.why(job)[1]
    for number, host in enumerate(("r1-h1", "r1-h2", "r2-h1")):
        world.put("volume", a_disk(f"d{number}", host))
    assert world.why(job) is None
    assert LOCAL in world.place(job).message
    world.put("volume", a_disk("d3", "r1-h2"))
    assert world.place(job) == {"r1-h1": 1, "r1-h2": 2, "r2-h1": 1}
    world.put("job", other := make_job("other", spec=ephemeral(storage_class="local"), parallelism=1))
    assert world.place(other).reason is Reason.DOES_NOT_FIT


def test_a_disk_that_is_taken_counts_no_more_and_one_that_is_free_again_does(world):
    world.put("storage_class", a_class("local", provisioner="kubernetes.io/no-provisioner"))
    for name in ("a", "b"):
        world.put("volume", a_disk(name, "r1-h1"))
    assert world.memory.state.free_on_node("r1-h1")[LOCAL] == 2
    world.put("volume", a_disk("a", "r1-h1", claim="data"))
    assert world.memory.state.free_on_node("r1-h1")[LOCAL] == 1
    world.drop("volume", a_disk("a", "r1-h1"))
    world.put("volume", a_disk("a", "r1-h1"))
    assert world.memory.state.free_on_node("r1-h1")[LOCAL] == 2
    assert world.restarted().state.free_on_node("r1-h1") == world.memory.state.free_on_node("r1-h1")


# -- pods with claims of their own ----------------------------------------------------------------------------------


def test_pods_with_disks_and_pods_that_are_to_get_one_are_placed_together(world):
    world.put("storage_class", a_class("local", provisioner="kubernetes.io/no-provisioner"))
    world.put("volume", a_disk("d0", "r2-h2", claim="data-db-0"))
    world.put("claim", a_claim("data-db-0", "d0", storage_class="local"))
    for number, host in ((1, "r1-h1"), (2, "r1-h2")):
        world.put("volume", a_disk(f"d{number}", host))
        world.put("claim", a_claim(f"data-db-{number}", storage_class="local"))
    pods = [member(f"db-{index}", index, claim=f"data-db-{index}") for index in range(3)]
    for pod in pods:
        world.put("pod", pod)
    assert world.place(pods[0]) == {"r1-h1": 1, "r1-h2": 1, "r2-h2": 1}
    going, _ = world.look(pods[0])
    assert (going["db-0"], {going["db-1"], going["db-2"]}) == ("r2-h2", {"r1-h1", "r1-h2"})


def stateful(world, *racks, **more):
    """The pods of a StatefulSet, each with a claim whose volume is in a rack."""
    pods = []
    for index, rack in enumerate(racks):
        if rack:
            world.bind(f"data-db-{index}", rack)
        pods.append(member(f"db-{index}", index, claim=f"data-db-{index}" if rack else "", **more))
        world.put("pod", pods[-1])
    return pods


def test_each_pod_goes_to_a_slot_that_its_own_volume_reaches(world):
    pods = stateful(world, "r2", "r1", "r2", "r1")
    placed = world.place(pods[0])
    assert {name[:2]: count for name, count in placed.items()} == {"r1": 2, "r2": 2}
    going, _ = world.look(pods[0])
    assert {name: node[:2] for name, node in going.items()} == {"db-0": "r2", "db-1": "r1", "db-2": "r2", "db-3": "r1"}


def test_pods_without_volumes_take_the_slots_that_the_others_leave(world):
    pods = stateful(world, "", "r2", "", "r1")
    assert sum(world.place(pods[0]).values()) == 4
    going, _ = world.look(pods[0])
    assert len(going) == 4
    assert (going["db-1"][:2], going["db-3"][:2]) == ("r2", "r1")


def test_a_rack_that_is_required_is_the_one_that_all_volumes_reach(world):
    request = {KEYS.required[0]: "rack"}
    pods = stateful(world, "r2", "r2", request=request)
    assert world.place(pods[0]) == {"r2-h1": 2}
    other = Volumes()
    pods = stateful(other, "r1", "r2", request=request)
    assert other.place(pods[0]).reason is Reason.NEVER_FITS


def test_a_workload_waits_for_the_claims_of_its_pods(world):
    pods = stateful(world, "r1", "r1")
    world.drop("claim", a_claim("data-db-1"))
    assert world.why(pods[0])[1].endswith('pod db-1: persistentvolumeclaim "data-db-1" not found')
    world.asked.clear()
    world.bind("data-db-1", "r1")
    assert world.memory.entries[owner_key(pods[0], KEYS)].id in world.asked
    assert world.why(pods[0]) is None


def test_the_claims_of_ephemeral_volumes_are_waited_for_once_there_are_pods(world):
    pod = member("db-0", 0, spec=ephemeral())
    world.put("pod", pod)
    assert "waiting for the ephemeral volume controller" in world.why(pod)[1]
    world.put("claim", a_claim("db-0-scratch"))
    assert "was not made for pod db-0" in world.why(pod)[1]
    world.put("claim", a_claim("db-0-scratch", owner="db-0", uid="other"))
    assert world.why(pod) is None


def test_a_pod_is_not_let_go_before_its_claim_is_ready(world):
    pods = stateful(world, "r1", "r1")
    world.place(pods[0])
    world.put("claim", a_claim("data-db-1", storage_class=""))
    going, steps = world.look(pods[0])
    assert list(going) == ["db-0"]
    reason, message = said(steps)
    assert (reason, "pod db-1 waits for its volumes" in message) == (Reason.VOLUME_NOT_READY, True)


def test_a_pod_whose_volume_reaches_none_of_the_slots_stays_and_gets_another(world):
    pods = stateful(world, "r1", "r1")
    assert {name[:2] for name in world.place(pods[0])} == {"r1"}
    world.drop("claim", a_claim("data-db-1"))
    world.bind("data-db-1", "r2")
    going, steps = world.look(pods[0])
    assert list(going) == ["db-0"]
    (moves,) = [one.lost for one in steps if isinstance(one, Enqueue)]
    assert sum(count for _, count in moves["main"]) == 1
    assert said(steps)[0] == Reason.VOLUME_NODE_AFFINITY
    entry = world.entry(pods[0])
    entry.lost = moves
    found = replace_lost_slots(world.memory, entry)
    assert {part.values[1]: part.count for one in found.assignments for part in one.slices} == {"r1": 1, "r2": 1}
    world.memory.reservations.replace(entry, found)
    world.admitted(entry, found)
    going, _ = world.look(pods[0])
    assert {name: node[:2] for name, node in going.items()} == {"db-0": "r1", "db-1": "r2"}


def test_a_pod_that_finds_no_slot_for_its_volume_says_what_is_missing(world):
    request = {KEYS.required[0]: "rack"}
    pods = stateful(world, "r1", "r1", request=request)
    world.place(pods[0])
    world.drop("claim", a_claim("data-db-1"))
    world.bind("data-db-1", "r2")
    entry = world.entry(pods[0])
    entry.refused = Refused(Reason.DOES_NOT_FIT, "short of something")
    reason, message = said(world.look(pods[0])[1])
    assert (reason, message) == (
        Reason.VOLUME_NODE_AFFINITY,
        "the volumes of pod db-1 reach none of the free slots; there is no other place: short of something",
    )


def test_a_slot_that_a_pod_is_about_to_leave_is_waited_for(world):
    pods = stateful(world, "r1", "r2")
    world.place(pods[0])
    entry = world.entry(pods[0])
    slot = next(one for one in entry.slots.slots if one.node.startswith("r1"))
    selector = dict(zip(entry.slots.levels, slot.values, strict=True))
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z", "uid": "u-old"}
    marked = {KEYS.unconstrained: "true", KEYS.workload: entry.job.workload}
    old = member(
        "db-0-old", 0, claim="data-db-0", gated=False, node=slot.node, request=marked, meta=gone, phase="Running"
    )
    world.put("pod", msgspec.structs.replace(old, spec=msgspec.structs.replace(old.spec, node_selector=selector)))
    going, steps = world.look(pods[0])
    assert list(going) == ["db-1"]
    assert not any(one.lost for one in steps if isinstance(one, Enqueue))


def test_pods_with_one_claim_for_one_pod_go_one_by_one(world):
    world.bind("data", "r1")
    world.put("claim", a_claim("data", "pv-data", mode="ReadWriteOncePod"))
    pods = [member(f"db-{index}", index, claim="data") for index in range(2)]
    for pod in pods:
        world.put("pod", pod)
    world.place(pods[0])
    going, steps = world.look(pods[0])
    assert (list(going), "ReadWriteOncePod" in said(steps)[1]) == (["db-0"], True)
    entry = world.entry(pods[0])
    running = msgspec.structs.replace(
        pods[0], spec=PodSpec(node_name="r1-h1", volumes=pods[0].spec.volumes, containers=pods[0].spec.containers)
    )
    world.put("pod", running)
    going, steps = world.look(pods[0])
    assert (list(going), "and pod db-0 has it" in said(steps)[1]) == ([], True)
    world.asked.clear()
    world.put(
        "pod", msgspec.structs.replace(running, status=msgspec.structs.replace(running.status, phase="Succeeded"))
    )
    assert entry.id in world.asked


# -- what it costs ----------------------------------------------------------------------------------------------------


def pods_looked_for(world, monkeypatch):
    """The claims whose pods are looked for, from here on."""
    asked, volumes = [], world.memory.pod_volumes
    known = replace(volumes._known, pods_with=lambda key: asked.append(key) or world.pods_with(key))
    monkeypatch.setattr(volumes, "_known", known)
    return asked


def test_whoever_has_a_claim_of_one_pod_is_looked_for_once(world, monkeypatch):
    world.bind("data", "r1")
    world.put("claim", a_claim("data", "pv-data", mode="ReadWriteOncePod"))
    pods = [member(f"db-{index}", index, claim="data") for index in range(9)]
    for pod in pods:
        world.put("pod", pod)
    world.put("pod", member("other", 0, claim="data", node="r1-h1", gated=False, meta={"ownerReferences": []}))
    entry, asked = world.entry(pods[0]), pods_looked_for(world, monkeypatch)
    slots = PodSetSlots(LEVELS, [Slot(("b", "r1", "r1-h1"), 9, "r1-h1")], "gpu")
    found = world.memory.pod_volumes.choices(entry, slots, pods)
    assert {len(found), *(choice.why for choice in found.values())} == {
        9,
        'persistentvolumeclaim "data" is ReadWriteOncePod, and pod other has it',
    }
    assert asked == ["ns/data"]


def test_slots_are_compared_once_for_pods_whose_volumes_reach_the_same(world, monkeypatch):
    pods = stateful(world, *["r1", "r2"] * 5)
    asked, reached = [], SlotNodes.reached
    monkeypatch.setattr(SlotNodes, "reached", lambda self, nodes: asked.append(nodes) or reached(self, nodes))
    slots = PodSetSlots(LEVELS, [Slot(("b", rack, f"{rack}-h1"), 5, f"{rack}-h1") for rack in ("r1", "r2")], "gpu")
    found = world.memory.pod_volumes.choices(world.entry(pods[0]), slots, pods)
    assert [found[f"u-db-{index}"].slots for index in range(10)] == [{0}, {1}] * 5
    assert len(asked) == 2


def test_the_end_of_a_pod_has_nobody_looked_for_but_who_waits_for_a_claim_of_it_alone(world):
    world.bind("data", "r1")
    world.bind("single", "r1")
    world.put("claim", a_claim("single", "pv-single", mode="ReadWriteOncePod"))
    jobs = [make_job(f"job-{name}", spec=claims(name)) for name in ("data", "single")]
    for job in jobs:
        world.put("job", job)
        world.why(job)
    for name, gated, expected in (("data", False, []), ("single", True, []), ("single", False, [id_of(jobs[1])])):
        node = "" if gated else "r1-h1"
        world.put("pod", pod := member("p", 0, claim=name, node=node, gated=gated, meta={"ownerReferences": []}))
        world.asked.clear()
        world.drop("pod", pod)
        assert [uid for uid in world.asked if uid in map(id_of, jobs)] == expected


def test_pods_are_charged_anew_only_where_their_volume_counts_otherwise(world, monkeypatch):
    world.put("claim", a_claim("data"))
    world.put("job", job := make_job(spec=claims("data"), parallelism=9))
    world.put("pod", job_pod("p", node="r1-h1", gated=False, spec=claims("data")))
    charged, charges = [], world.memory.volumes._charges
    monkeypatch.setattr(charges, "charge_pod", charged.append)
    world.asked.clear()
    world.put("claim", a_claim("data", annotations={SELECTED_NODE: "r1-h1"}))
    assert (len(charged), world.asked != []) == (0, True)
    world.put("volume", a_volume("pv-data", "r1", "data"))
    world.put("claim", a_claim("data", "pv-data"))
    assert len(charged) == 2
    assert {wait for uid, wait in world.waits[-1:]} == {world.memory.pods.delay(world.entry(job))} != {0.0}


def test_a_volume_that_changes_in_nothing_that_is_read_has_nobody_looked_at(world):
    world.bind("data", "r1")
    world.put("pod", job_pod("p", spec=claims("data")))
    world.put("job", make_job(spec=claims("data")))
    again = a_volume("pv-data", "r1", "data")
    world.asked.clear()
    meta = msgspec.structs.replace(again.metadata, resource_version="9", annotations={"a": "b"})
    world.put("volume", msgspec.structs.replace(again, metadata=meta))
    assert world.asked == []
    world.put("volume", a_volume("pv-data", "r2", "data"))
    assert world.asked != []


def test_claims_that_many_pods_share_are_not_counted_without_end(world):
    names = [f"c{number}" for number in range(MOST_CLAIMS + 4)]
    for name in names:
        world.put("claim", a_claim(name))
    halves = [names[:2] + names[2::2], names[:2] + names[3::2]]
    pods = [member(f"db-{index}", index, spec=claims(*halves[index % 2])) for index in range(4)]
    for pod in pods[:2]:
        world.put("pod", pod)
    (attached,) = [one.attached for one in world.memory.pod_sets.wish(world.entry(pods[0]))]
    assert (len(attached.shared), attached.own) == (2, {LIMIT: len(halves[0]) - 2})
    for pod in pods[2:]:
        world.put("pod", pod)
    (attached,) = [one.attached for one in world.memory.pod_sets.wish(world.entry(pods[0]))]
    assert (attached.shared, attached.own) == ((), {LIMIT: len(halves[0])})


def test_for_so_many_classes_and_no_more_a_job_is_looked_at_again(world):
    volumes = world.memory.pod_volumes
    for number in range(MOST_NOTED + 5):
        volumes._record_wanted("u", f"class-{number}")
        volumes._record_wanted("u", "class-1")
    assert (len(volumes._named["u"]), len(volumes._concerned)) == (MOST_NOTED, MOST_NOTED)
    assert [bool(volumes.concerned(f"class-{number}")) for number in (0, 1, 2, 6, MOST_NOTED + 4)] == [
        False,
        True,
        False,
        True,
        True,
    ]
    volumes.forget_job_volumes("u")
    assert (volumes._named, volumes._concerned) == ({}, {})


def capacity(rack, size):
    body = {"metadata": {"name": f"slow-{rack}", "namespace": "kube-system"}, "storageClassName": "slow"}
    return read(CsiStorageCapacity, body | {"capacity": size, "nodeTopology": {"matchLabels": {"rack": rack}}})


def waiting_for_storage(world):
    """A pod with a claim of 1 GiB of a driver that tells what it has left."""
    world.put("csi_driver", read(CsiDriver, {"metadata": {"name": "ebs"}, "spec": {"storageCapacity": True}}))
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "slow", "resources": {"requests": {"storage": "1Gi"}}}
    world.put("claim", read(PersistentVolumeClaim, {"metadata": {"name": "data", "namespace": "ns"}, "spec": spec}))
    world.put("pod", member("db-0", 0, claim="data"))
    (record,) = world.memory.entries.values()
    return record


def test_who_waits_for_storage_of_a_driver_is_looked_at_when_there_is_more(world):
    record = waiting_for_storage(world)
    assert "has no storage left for it on any node" in world.memory.pod_volumes.volume_hindrance(record)
    world.put("capacity", capacity("r2", "100Mi"))
    world.asked.clear()
    world.put("capacity", capacity("r2", "2Gi"))
    assert world.asked == [record.id]
    assert world.memory.pod_volumes.volume_hindrance(record) is None
    world.asked.clear()
    world.put("capacity", capacity("r2", "1Gi"))
    assert world.asked == [], "less than before helps nobody"
    world.put("csi_driver", read(CsiDriver, {"metadata": {"name": "ebs"}, "spec": {"storageCapacity": False}}))
    assert world.asked == [record.id]


def test_pods_go_to_the_rack_in_which_their_driver_has_storage_left(world):
    world.put("capacity", capacity("r2", "2Gi"))
    record = waiting_for_storage(world)
    slots = world.admit_entry(record)
    assert [slot.values[1] for slot in slots.slots] == ["r2"]
