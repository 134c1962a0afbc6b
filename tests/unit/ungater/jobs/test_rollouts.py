"""Rolling updates of LeaderWorkerSets to other requests.

Facts of leaderworkerset.x-k8s.io/v1: what is in ``leaderWorkerTemplate`` is kept as a ControllerRevision of the set,
and its hash is on all pods (``template-revision-hash``). An update deletes one group's leader after the other; its
workers go with it. The new leader comes alone: workers are made when it is there, or when it is ready, from the
revision that it was made from, whatever the LeaderWorkerSet says by then.
"""

import msgspec
import pytest
from support.looked_at import LookedAt
from support.owned import KEYS
from support.world import FLAVOR, make_node

from crds.constants import WORKER_INDEX
from kube.informer import Event, EventKind
from kube.objects import Namespace, ObjectMeta, Pod
from kube.parents import ControllerRevision, LeaderWorkerSet
from kube.queues import ClusterQueue, LocalQueue
from ungater.jobs import leaderworkerset
from ungater.model.actions import Delete, Dequeue, FreeCapacity, WriteConditions
from ungater.reconcile.as_made import LONGEST_PATIENCE

RACK = {KEYS.required[0]: "rack", KEYS.group: "all"}


def read(body, kind):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def template(cpu, queue=""):
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    labels = {KEYS.queue_name: queue} if queue else {}
    return {"metadata": {"annotations": RACK, "labels": labels}, "spec": {"containers": [container]}}


class Rollout(LookedAt):
    """A LeaderWorkerSet of one group of three, in two racks: one of 4 CPUs on two nodes, one of 6 on three."""

    def __init__(self):
        self.leader_sets = {}
        self.revisions = {}
        super().__init__()
        self.put("flavor", FLAVOR)
        for rack, hosts in (("r1", 2), ("r2", 3)):
            for host in range(hosts):
                self.put("node", make_node(rack, f"h{host}"))

    def make(self):
        memory = super().make()
        for name, one in self.revisions.items():
            memory.pod_groups.on_revision(Event(EventKind.ADDED, name, None, one))
        return memory

    def write(self, name, leader, workers, *, kept=True, queues=("", "", "")):
        """The LeaderWorkerSet is made, or edited; its controller keeps what it is as a revision.

        ``queues``: that it names itself, its leader template, and its worker template.
        """
        own, of_leader, of_workers = queues
        whole = {"size": 3, "leaderTemplate": template(leader, of_leader)}
        whole |= {"workerTemplate": template(workers, of_workers)}
        meta = {"name": "l", "namespace": "ns", "uid": "u-l", "creationTimestamp": "2026-11-21T00:00:00Z"}
        meta |= {"labels": {KEYS.queue_name: own} if own else {}}
        body = {"metadata": meta, "spec": {"replicas": 1, "leaderWorkerTemplate": whole}}
        old, self.leader_sets["ns/l"] = self.leader_sets.get("ns/l"), read(body, LeaderWorkerSet)
        self.memory.pod_groups.on_leaders(Event(EventKind.MODIFIED, "ns/l", old, self.leader_sets["ns/l"]))
        owner = {
            "apiVersion": leaderworkerset.API_VERSION,
            "kind": leaderworkerset.KIND,
            "name": "l",
            "uid": "u-l",
            "controller": True,
        }
        about = {"labels": {leaderworkerset.NAME: "l", leaderworkerset.REVISION: name}, "ownerReferences": [owner]}
        data = {"spec": {"$patch": "replace", "leaderWorkerTemplate": whole | {"$patch": "replace"}}}
        revision = {"metadata": {"name": f"l-{name}-1", "namespace": "ns", **about}, "data": data, "revision": 1}
        if kept:
            self.revisions[name] = read(revision, ControllerRevision)
            self.memory.pod_groups.on_revision(Event(EventKind.ADDED, name, None, self.revisions[name]))

    def pod(self, index, cpu, revision, *, at="00", queue=""):
        """One pod of the group, as its StatefulSet makes it and the webhooks leave it."""
        name = f"l-0-{index}" if index else "l-0"
        sets = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "l" if not index else "l-0", "uid": "u-s"}
        labels = {
            leaderworkerset.NAME: "l",
            leaderworkerset.GROUP: "0",
            WORKER_INDEX: str(index),
            leaderworkerset.REVISION: revision,
            **({KEYS.queue_name: queue} if queue else {}),
        }
        made = template(cpu)
        meta = {"name": name, "namespace": "ns", "uid": f"u-{name}-{revision}-{at}", "labels": labels}
        meta |= {"annotations": RACK, "ownerReferences": [sets | {"controller": True}]}
        spec = made["spec"] | {"schedulingGates": [{"name": KEYS.gate}]}
        meta |= {"creationTimestamp": f"2026-11-21T00:00:{at}Z"}
        self.put("pod", read({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}, Pod))

    def group(self, leader, workers, revision, at="00"):
        """All pods of the group come, each once the one before it went, and run."""
        went = []
        for index, cpu in enumerate((leader, workers, workers)):
            self.pod(index, cpu, revision, at=at)
            self.settle()
            went += self.let_go(self.record)
        return went

    def end(self):
        """The group's pods are deleted."""
        for pod in tuple(self.stores["pod"].values()):
            self.drop("pod", pod)
            self.settle()

    @property
    def record(self):
        (found,) = self.memory.entries.values()
        return found

    def racks(self):
        return {slot.values[1] for slots in self.record.slots_in.values() for slot in slots.slots}

    def granted(self):
        return {one.name: self.record.granted(one.name)["cpu"] for one in self.record.job.pod_sets}


@pytest.fixture
def world():
    made = Rollout()
    made.write("a", "1", "1")
    assert made.group("1", "1", "a") == ["l-0", "l-0-1", "l-0-2"]
    assert made.racks() == {"r1"}
    return made


@pytest.mark.parametrize("kept", [True, False])
def test_a_group_whose_workers_have_grown_is_placed_anew_before_its_leader_goes(world, kept):
    """The leader asks for what it did before, and would fit where it was; its workers would not."""
    world.write("b", "1", "2", kept=kept)
    world.end()
    assert world.group("1", "2", "b", at="30") == ["l-0", "l-0-1", "l-0-2"]
    assert world.racks() == {"r2"}
    assert world.granted() == {"leader": 1000, "workers": 2000}
    assert world.gated() == []


@pytest.mark.parametrize("kept", [True, False])
def test_a_group_that_has_grown_and_fits_where_it_was_stays_there(world, kept):
    world.write("b", "2", "1", kept=kept)
    world.end()
    assert world.group("2", "1", "b", at="30") == ["l-0", "l-0-1", "l-0-2"]
    assert world.racks() == {"r1"}
    assert world.granted() == {"leader": 2000, "workers": 1000}


def test_a_group_that_the_update_has_not_come_to_is_what_it_was(world):
    """One of its pods fails meanwhile, its controller makes the group anew as it was, and there is no room for more."""
    world.write("b", "2", "9")
    world.settle()
    assert not [one for one in world.look(world.record) if isinstance(one, WriteConditions) and one.wanted[0].status]
    world.end()
    assert world.group("1", "1", "a", at="30") == ["l-0", "l-0-1", "l-0-2"]
    assert world.racks() == {"r1"}
    assert world.granted() == {"leader": 1000, "workers": 1000}


def test_so_it_is_after_a_restart(world):
    world.write("b", "2", "9")
    world.memory = world.restarted()
    world.end()
    assert world.group("1", "1", "a", at="30") == ["l-0", "l-0-1", "l-0-2"]


def test_a_restart_in_the_middle_of_an_update_leaves_no_group_behind(world):
    world.write("b", "1", "2")
    world.end()
    world.pod(0, "1", "b", at="30")
    world.memory = world.restarted()
    world.settle()
    world.let_go(world.record)
    for index in (1, 2):
        world.pod(index, "2", "b", at="31")
        world.settle()
        world.let_go(world.record)
    assert world.gated() == []
    assert world.racks() == {"r2"}


def test_where_there_is_no_room_at_all_it_is_told_what_is_to_come(world):
    world.write("b", "1", "9")
    world.end()
    world.pod(0, "1", "b", at="30")
    world.settle()
    assert world.let_go(world.record) == []
    assert world.record.admission is None
    assert "NeverFits" in world.said(world.record)


def test_workers_that_differ_are_not_deleted_as_the_leader_that_runs_would_go_with_them(world):
    """leaderworkerset.x-k8s.io/v1 makes the whole group again once one of its pods is deleted."""
    for name in ("l-0-1", "l-0-2"):
        world.drop("pod", world.stores["pod"][f"ns/{name}"])
    world.settle()
    world.pod(1, "2", "a", at="40")
    world.pod(2, "3", "a", at="40")
    world.settle()
    world.now += LONGEST_PATIENCE
    assert "Delete the pods that are to be created again" in world.said(world.record)
    assert not [one for one in world.look(world.record) if isinstance(one, Delete)]


def test_a_revision_of_another_set_counts_for_nobody(world):
    """Anybody may label a ControllerRevision, if he may make one."""
    one = world.revisions["a"]
    forged = msgspec.structs.replace(
        one, metadata=msgspec.structs.replace(one.metadata, owner_references=()), data=msgspec.Raw(b'{"spec":7}')
    )
    world.memory.pod_groups.on_revision(Event(EventKind.MODIFIED, "a", one, forged))
    world.settle()
    assert [one.name for one in world.record.job.pod_sets] == ["leader", "workers"]


def test_a_revision_that_is_labelled_otherwise_is_not_kept_under_the_label_before(world):
    groups, one = world.memory.pod_groups, world.revisions["a"]
    labels = {**one.metadata.labels, leaderworkerset.REVISION: "z"}
    other = msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels=labels))
    groups.on_revision(Event(EventKind.MODIFIED, "a", one, other))
    groups.on_revision(Event(EventKind.DELETED, "a", other, None))
    assert ("ns/l", "a") not in groups._revisions
    assert ("ns/l", "z") not in groups._revisions


def test_pods_that_ask_for_more_than_their_template_are_placed_by_what_they_ask_for(world):
    """Somebody's webhook adds a container, or the revision is not known: else it would be placed and leave for ever."""
    world.end()
    world.pod(0, "1", "a", at="30")
    for index in (1, 2):
        world.pod(index, "2", "a", at="30")
    rounds = []
    for _ in range(3):
        world.settle()
        rounds.append((world.racks(), world.granted() if world.record.admission else None))
    assert rounds == [({"r2"}, {"leader": 1000, "workers": 2000})] * 3
    assert world.let_go(world.record) == ["l-0", "l-0-1", "l-0-2"]


def test_of_a_set_that_is_gone_no_workload_is_made_for_pods_that_it_left_behind(world):
    """Its Workload is collected with it: one that is made again would be too, and so on for ever."""
    gone = world.leader_sets.pop("ns/l")
    world.memory.pod_groups.on_leaders(Event(EventKind.DELETED, "ns/l", gone, None))
    record = world.record
    world.drop("workload", world.stores["workload"][record.key])
    assert {type(one) for one in world.look(record)} == {Dequeue, FreeCapacity}
    assert len(record.pods) == 3
    assert not world.restarted().entries


def test_what_a_group_gave_back_as_its_set_went_is_not_held_again_when_its_pods_go(world):
    """Somebody else may have it by then; its Workload, which still names it, goes with the set."""
    gone = world.leader_sets.pop("ns/l")
    world.memory.pod_groups.on_leaders(Event(EventKind.DELETED, "ns/l", gone, None))
    record = world.record
    assert {type(one) for one in world.look(record)} == {Dequeue, FreeCapacity}
    for pod in tuple(world.stores["pod"].values()):
        world.drop("pod", pod)
    assert {type(one) for one in world.look(record)} == {Dequeue, FreeCapacity}
    assert record.job.over == "Deleted"


# --- queues ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def queued():
    made = Rollout()
    nominal = {"name": "gpu", "resources": [{"name": "cpu", "nominalQuota": "9"}]}
    groups = [{"coveredResources": ["cpu"], "flavors": [nominal]}]
    made.put("namespace", Namespace(metadata=ObjectMeta(name="ns")))
    body = {"metadata": {"name": "cq"}, "spec": {"resourceGroups": groups, "namespaceSelector": {}}}
    made.put("cluster_queue", read(body, ClusterQueue))
    for name in ("team", "other"):
        body = {"metadata": {"name": name, "namespace": "ns"}, "spec": {"clusterQueue": "cq"}}
        made.put("local_queue", read(body, LocalQueue))
    return made


@pytest.mark.parametrize("queues", [("team", "other", "other"), ("", "team", "other"), ("team", "", "other")])
def test_one_whose_templates_name_several_queues_waits_and_is_told(queued, queues):
    """Admitted in one of them, its pods would be barred by the other: it would come and go for ever."""
    queued.write("a", "1", "1", queues=queues)
    queued.group("1", "1", "a")
    assert queued.record.admission is None
    assert queued.said(queued.record) == (
        "InvalidRequest: metadata.labels[kueue.x-k8s.io/queue-name]: the pods of one workload name queues other and "
        "team: use one"
    )


@pytest.mark.parametrize("own", ["", "team"])
def test_so_does_one_of_whose_pods_somebody_relabels_one(queued, own):
    queued.write("a", "1", "1", queues=(own, "", ""))
    for index, queue in enumerate(("team", "other", "")):
        queued.pod(index, "1", "a", queue=queue)
    queued.settle()
    assert queued.record.admission is None
    assert "name queues other and team" in queued.said(queued.record)
    queued.drop("pod", queued.stores["pod"]["ns/l-0-1"])
    queued.pod(1, "1", "a", queue="team", at="30")
    queued.settle()
    assert queued.record.admission is not None
    assert queued.let_go(queued.record) == ["l-0", "l-0-1", "l-0-2"]


def test_one_that_is_relabelled_once_it_is_admitted_does_not_come_and_go(queued):
    queued.write("a", "1", "1", queues=("team", "", ""))
    for index in range(3):
        queued.pod(index, "1", "a")
    queued.settle()
    assert queued.record.admission is not None
    queued.drop("pod", queued.stores["pod"]["ns/l-0-2"])
    queued.pod(2, "1", "a", queue="other", at="30")
    seen = []
    for _ in range(4):
        queued.settle()
        seen.append(queued.record.admission is not None)
    assert seen == [False] * 4
    assert "name queues other and team" in queued.said(queued.record)


@pytest.mark.parametrize("amount", ['"500m"', "", "lots"])
def test_one_whose_amounts_cannot_be_read_is_told_which(amount):
    """Its own schema is to refuse that, and an older one may not."""
    world = Rollout()
    world.write("b", "1", amount)
    world.pod(0, "1", "b")
    world.settle()
    assert world.record.admission is None
    assert world.said(world.record).startswith("InvalidRequest: spec.leaderWorkerTemplate.workerTemplate.spec: cpu: ")
