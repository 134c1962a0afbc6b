"""Owners that tell how many pods they make of each kind.

Facts: the MPI operator (kubeflow.org/v2beta1) makes the workers itself, with the label
``training.kubeflow.org/job-role``, and has a Job make the launcher, ``NAME-launcher``; at once, or with
``launcherCreationPolicy: WaitForWorkersReady`` when all workers are ready. The training operator (kubeflow.org/v1)
makes all pods itself, with ``replica-type`` and ``replica-index``. KubeRay keeps as many
workers of a group as ``replicas``, within its bounds, times ``numOfHosts``.
"""

import msgspec
import pytest
from support.looked_at import LookedAt
from support.owned import KEYS
from support.world import FLAVOR, NODES

from clock import SYSTEM, Clock
from crds.names import workload_name
from kube.informer import Event, EventKind
from kube.objects import Job, Pod
from kube.replicas import MPI_JOBS, RAY_CLUSTERS, REPLICATED, ReplicatedObject, replicas_of
from ungater.jobs.replica_counts import ReplicaCounts
from ungater.model.job_view import id_of

TORCH = next(one for one, _ in REPLICATED if one.kind == "PyTorchJob")
ASKS = {"metadata": {"annotations": {KEYS.unconstrained: "true"}}}
LABEL = "training.kubeflow.org"


def read(body, kind):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def owner(name, spec, **more):
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "creationTimestamp": "2026-11-21T00:00:00Z"}
    return read({"metadata": meta, "spec": spec, **more}, ReplicatedObject)


def template(cpu="1", annotations=None):
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    asks = {KEYS.unconstrained: "true"} if annotations is None else annotations
    return {"metadata": {"annotations": asks}, "spec": {"containers": [container]}}


def torch(workers, *, master=True, **more):
    specs = {"Worker": {"replicas": workers, "template": template()}}
    specs |= {"Master": {"template": template("2")}} if master else {}
    return owner("bert", {"pytorchReplicaSpecs": specs}, **more)


def mpi(workers=2, policy="WaitForWorkersReady", launcher=None):
    specs = {
        "Launcher": {"replicas": 1, "template": template("500m", launcher)},
        "Worker": {"replicas": workers, "template": template("2")},
    }
    return owner("pi", {"launcherCreationPolicy": policy, "mpiReplicaSpecs": specs})


class Owned(LookedAt):
    """Four nodes of 2 CPUs; owners come and go, and a start has them before the pods."""

    def __init__(self):
        self.owners = {}
        self.seconds = 0.0
        super().__init__()
        self.reads = True
        self.put("flavor", FLAVOR)
        for node in NODES:
            self.put("node", node)

    def make(self):
        memory = super().make(clock=Clock(SYSTEM.now, lambda: self.seconds))
        for resource, one in self.owners.values():
            memory.pod_groups.on_replicated(resource, Event(EventKind.ADDED, one.metadata.name, None, one))
        return memory

    def see(self, resource, one):
        self.owners[one.metadata.name] = (resource, one)
        self.memory.pod_groups.on_replicated(resource, Event(EventKind.ADDED, f"ns/{one.metadata.name}", None, one))

    def gone(self, resource, one):
        del self.owners[one.metadata.name]
        self.memory.pod_groups.on_replicated(resource, Event(EventKind.DELETED, f"ns/{one.metadata.name}", one, None))

    def pod(self, name, cpu, labels, resource=None, maker="", *, phase="Pending"):
        api, kind = (resource.api_version, resource.kind) if resource else ("batch/v1", "Job")
        reference = {"apiVersion": api, "kind": kind, "name": maker, "uid": f"u-{maker}", "controller": True}
        meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "labels": labels, "ownerReferences": [reference]}
        made = template(cpu)
        spec = made["spec"] | {"schedulingGates": [{"name": KEYS.gate}]}
        meta |= made["metadata"] | {"creationTimestamp": "2026-11-21T00:00:00Z"}
        self.put("pod", read({"metadata": meta, "spec": spec, "status": {"phase": phase}}, Pod))
        self.settle()

    def torch_pod(self, kind, number):
        labels = {f"{LABEL}/replica-type": kind, f"{LABEL}/replica-index": str(number), f"{LABEL}/job-role": "master"}
        self.pod(f"{kind}-{number}", "2" if kind == "master" else "1", labels, TORCH, "bert")

    def worker(self, number):
        labels = {f"{LABEL}/job-role": "worker", f"{LABEL}/replica-index": str(number)}
        self.pod(f"pi-worker-{number}", "2", labels, MPI_JOBS, "pi")

    def launcher(self, *, gated=True):
        """The Job of the launcher, as the webhook leaves it, and then its pod."""
        made = template("500m", None if gated else {})
        made["spec"] |= {"schedulingGates": [{"name": KEYS.gate}]} if gated else {}
        reference = {"apiVersion": MPI_JOBS.api_version, "kind": "MPIJob", "name": "pi", "uid": "u-pi"}
        meta = {"name": "pi-launcher", "namespace": "ns", "uid": "u-pi-launcher", "labels": {"app": "pi"}}
        meta |= {"ownerReferences": [reference | {"controller": True}], "creationTimestamp": "2026-11-21T00:00:01Z"}
        spec = {"parallelism": 1, "completions": 1, "template": made}
        self.put("job", read({"metadata": meta, "spec": spec, "status": {}}, Job))
        self.settle()
        if gated:
            self.pod("pi-launcher-x", "500m", {f"{LABEL}/job-role": "launcher"}, None, "pi-launcher")

    @property
    def record(self):
        (found,) = self.memory.entries.values()
        return found

    def parts(self):
        return {one.name: one.count for one in self.record.admission.parts} if self.record.admission else {}


@pytest.fixture
def world():
    return Owned()


def all_go(world):
    """All pods of the only workload that wait, and are let go."""
    return world.let_go(world.record)


def test_kinds_of_pods_are_one_workload_as_many_as_their_owner_tells(world):
    world.see(TORCH, torch(3))
    for number in range(3):
        world.torch_pod("worker", number)
    assert world.parts() == {}
    assert world.said(world.record) == "Pending: 3 of 4 pods are there; they are placed together when all are"
    world.torch_pod("master", 0)
    assert world.parts() == {"master": 1, "worker": 3}
    assert all_go(world) == ["master-0", "worker-0", "worker-1", "worker-2"]
    assert {name: world.record.granted(name) for name in world.parts()} == {
        "master": {"cpu": 2000},
        "worker": {"cpu": 1000},
    }


def test_pods_that_the_watch_tells_of_before_their_owner_wait_for_it(world):
    world.torch_pod("master", 0)
    assert world.memory.entries == {}
    assert not world.memory.gated_orphans.pods, "nobody is told that nothing will come of it"
    world.torch_pod("worker", 0)
    world.see(TORCH, torch(1))
    world.settle()
    assert world.parts() == {"master": 1, "worker": 1}


def test_one_whose_owner_nobody_sees_is_what_its_pods_tell(world):
    """Anybody may name an owner that is not there."""
    world.torch_pod("worker", 0)
    world.seconds = 60.0
    world.memory.pod_groups.judge_unseen()
    world.settle()
    assert world.record.id == "ns/u-bert@PyTorchJob.kubeflow.org/worker"
    assert world.record.admission is not None


@pytest.mark.parametrize("read", [True, False])
def test_where_owners_cannot_be_read_each_kind_is_a_workload(world, read):
    world.reads = read
    if read:
        world.see(TORCH, owner("bert", {"pytorchReplicaSpecs": {"Worker": {"replicas": "many"}}}))
        world.torch_pod("worker", 0)
        world.seconds = 60.0
        world.memory.pod_groups.judge_unseen()
    else:
        world.torch_pod("worker", 0)
    world.settle()
    assert world.record.id == "ns/u-bert@PyTorchJob.kubeflow.org/worker"


def test_pods_that_were_placed_by_kind_stay_so(world):
    """As they were under an earlier version, or before somebody installed the kind."""
    world.reads = False
    world.torch_pod("worker", 0)
    assert all_go(world) == ["worker-0"]
    world.see(TORCH, torch(1))
    world.torch_pod("master", 0)
    held = {record.id: record.admission is not None for record in world.memory.entries.values()}
    assert held == {"ns/u-bert@PyTorchJob.kubeflow.org/worker": True, "ns/u-bert@PyTorchJob.kubeflow.org/master": True}
    world.memory = world.restarted()
    assert set(world.memory.entries) == set(held)


def test_pods_that_0_1_0_placed_by_kind_keep_their_workload_which_it_called_by_the_uid_alone(world):
    world.reads = False
    world.torch_pod("worker", 0)
    assert all_go(world) == ["worker-0"]
    name = workload_name("PyTorchJob", "bert-worker", "u-bert/worker")
    stored, pod = world.stores["workload"].pop(world.record.key), world.stores["pod"]["ns/worker-0"]
    meta = msgspec.structs.replace(stored.metadata, name=name, annotations={})
    world.stores["workload"][f"ns/{name}"] = msgspec.structs.replace(stored, metadata=meta)
    said = {**pod.metadata.annotations, KEYS.workload: name}
    meta = msgspec.structs.replace(pod.metadata, annotations=said)
    world.stores["pod"]["ns/worker-0"] = msgspec.structs.replace(pod, metadata=meta)
    world.owners["bert"] = (TORCH, torch(1))
    world.memory = world.restarted()
    assert world.record.id == "ns/u-bert@PyTorchJob.kubeflow.org/worker"
    assert world.record.job.workload == name
    assert world.record.admission is not None


def test_more_workers_get_slots_beside_the_others_and_fewer_give_theirs_back(world):
    world.see(TORCH, torch(1, master=False))
    world.torch_pod("worker", 0)
    assert all_go(world) == ["worker-0"]
    world.see(TORCH, torch(2, master=False))
    world.torch_pod("worker", 1)
    assert all_go(world) == ["worker-1"]
    assert world.parts() == {"worker": 2}


@pytest.mark.parametrize("gone", ["master", "worker"])
def test_after_a_restart_it_is_the_same_also_where_some_pods_are_not_there(world, gone):
    world.see(TORCH, torch(1))
    world.torch_pod("worker", 0)
    world.torch_pod("master", 0)
    all_go(world)
    world.drop("pod", world.stores["pod"][f"ns/{gone}-0"])
    world.memory = world.restarted()
    world.settle()
    assert world.parts() == {"master": 1, "worker": 1}
    world.torch_pod(gone, 0)
    assert all_go(world) == [f"{gone}-0"]


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("gone", ["master", "worker"])
def test_what_is_stored_while_no_pod_of_a_kind_is_there_has_its_slots_too(world, gone, restarts):
    world.see(TORCH, torch(1))
    world.torch_pod("worker", 0)
    world.torch_pod("master", 0)
    all_go(world)
    held = world.record.admission
    world.drop("pod", world.stores["pod"][f"ns/{gone}-0"])
    world.memory = world.restarted() if restarts else world.memory
    world.settle()
    entry = world.record
    assert [(one.name, one.count, one.full) for one in entry.job.pod_sets] == [("master", 1, 1), ("worker", 1, 1)]
    assert world.memory.reservations.admission_of(entry, entry.grant).same_grant(held)
    world.see(TORCH, torch(1, master=False))
    if gone == "master":
        world.memory.pod_groups.regroup(entry)
        assert [one.name for one in entry.job.pod_sets] == ["worker"], "its owner makes none of the kind any more"


def test_one_that_has_ended_gives_all_back(world):
    world.see(TORCH, torch(1, master=False))
    world.torch_pod("worker", 0)
    all_go(world)
    status = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    world.see(TORCH, torch(1, master=False, status=status))
    world.memory.pod_groups.regroup(world.record)
    assert world.record.job.over == "Complete"


def test_one_that_was_deleted_holds_nothing_while_its_pods_go(world):
    one = torch(1)
    world.see(TORCH, one)
    world.torch_pod("worker", 0)
    world.torch_pod("master", 0)
    all_go(world)
    world.gone(TORCH, one)
    world.memory.pod_groups.regroup(world.record)
    assert (world.record.job.over, len(world.record.job.pod_sets)) == ("Deleted", 2)


@pytest.mark.parametrize("policy", ["AtStartup", "WaitForWorkersReady"])
def test_the_launcher_belongs_to_the_workload_of_its_workers(world, policy):
    """Its slot is kept for it while its workers start: else they would hold what it needs, and wait for it."""
    world.see(MPI_JOBS, mpi(policy=policy))
    world.worker(0)
    assert world.parts() == {}
    world.worker(1)
    assert world.parts() == {"launcher": 1, "worker": 2}
    assert world.record.granted("launcher") == {"cpu": 500}
    assert world.record.job.in_order == (policy == "WaitForWorkersReady")
    assert all_go(world) == ["pi-worker-0", "pi-worker-1"]
    world.launcher()
    assert all_go(world) == ["pi-launcher-x"]
    world.memory = world.restarted()
    world.settle()
    assert world.gated() == []
    assert world.parts() == {"launcher": 1, "worker": 2}


def test_a_launcher_that_comes_first_is_its_workers_too(world):
    world.see(MPI_JOBS, mpi(policy="AtStartup"))
    world.launcher()
    assert world.memory.entries == {}
    world.worker(0)
    world.worker(1)
    assert all_go(world) == ["pi-launcher-x", "pi-worker-0", "pi-worker-1"]


def test_a_launcher_that_asks_for_no_topology_goes_anywhere_by_itself(world):
    world.see(MPI_JOBS, mpi(launcher={}))
    world.worker(0)
    world.worker(1)
    assert world.parts() == {"worker": 2}
    world.launcher(gated=False)
    assert [record.id for record in world.memory.entries.values()] == ["ns/u-pi@MPIJob.kubeflow.org"]


@pytest.mark.parametrize(("version", "by_a_job"), [("v2beta1", True), ("v1", False)])
def test_an_mpi_job_is_read_in_the_version_that_its_cluster_serves(world, version, by_a_job):
    """The training operator's v1 makes the launcher's pod itself; a controller watches what is served, by one row."""
    world.see(MPI_JOBS, msgspec.structs.replace(mpi(), api_version=f"kubeflow.org/{version}"))
    told = world.memory.entries.owners.wholes.told["ns/u-pi@MPIJob.kubeflow.org"]
    assert (told.launcher is not None) == by_a_job


def test_a_job_that_says_to_be_the_launcher_of_another_is_none(world):
    world.see(MPI_JOBS, mpi())
    world.launcher()
    job = world.stores["job"]["ns/pi-launcher"]
    told = world.memory.entries.owners.wholes.told["ns/u-pi@MPIJob.kubeflow.org"]
    other = msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, namespace="thief"))
    named = msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, name="pi-launcher-2"))
    assert [told.makes(one, KEYS) for one in (job, other, named)] == [True, False, False]
    world.put("job", other)
    assert id_of(other) in world.memory.entries


def group(name, replicas=None, least=0, most=9, **more):
    found = {"groupName": name, "minReplicas": least, "maxReplicas": most, "template": ASKS, **more}
    return found | ({} if replicas is None else {"replicas": replicas})


@pytest.mark.parametrize(
    ("groups", "counts"),
    [
        ([group("Small_1", 3)], {"small-1": 3}),
        ([group("a", 3, most=2), group("b", 1, least=2), group("c")], {"a": 2, "b": 2, "c": 0}),
        ([group("a", 3, numOfHosts=4)], {"a": 12}),
        ([group("a", 3, suspend=True)], {"a": 0}),
        ([], {}),
    ],
)
def test_how_many_pods_a_ray_cluster_has(groups, counts):
    spec = {"headGroupSpec": {"template": ASKS}, "workerGroupSpecs": groups}
    assert replicas_of(owner("ray", spec), RAY_CLUSTERS.api_version).counts == {"headgroup": 1, **counts}


@pytest.mark.parametrize(
    "spec",
    [
        {"pytorchReplicaSpecs": {"Worker": {"replicas": -1}}},
        {"pytorchReplicaSpecs": {"Worker": {"replicas": 1 << 40}}},
        {"pytorchReplicaSpecs": {"Worker": {"replicas": True}}},
        {"pytorchReplicaSpecs": {"Worker": {"replicas": 1.5}}},
        {"pytorchReplicaSpecs": {"Worker": 7}},
        {"pytorchReplicaSpecs": [7]},
        {"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": {"metadata": {"annotations": 7}}}}},
        {"pytorchReplicaSpecs": {f"Worker{number}": {"replicas": 1} for number in range(9)}},
        {"pytorchReplicaSpecs": {f"Worker{number}": {"replicas": 2147483647} for number in range(8)}},
        {"pytorchReplicaSpecs": {"Worker": {"replicas": 0}}},
        {"pytorchReplicaSpecs": None},
        {},
        7,
        None,
    ],
)
def test_what_cannot_be_read_tells_nothing_and_costs_nobody_anything(world, spec):
    one = owner("bert", spec)
    assert ReplicaCounts.read_counts(one, TORCH, KEYS) is None
    world.see(TORCH, one)
    assert world.memory.entries.owners.wholes.told == {}


def test_so_many_pods_as_nobody_has_are_waited_for_in_no_time(world):
    world.see(TORCH, torch(2147483646))
    world.torch_pod("worker", 0)
    assert world.said(world.record).startswith("Pending: 1 of 2147483647 pods are there")


def test_a_pod_of_a_kind_that_its_owner_does_not_tell_of_is_let_go_to_no_slot_of_the_others(world):
    """Whoever makes pods may name an owner and any kind."""
    world.see(TORCH, torch(1, master=False))
    world.torch_pod("worker", 0)
    world.torch_pod("other", 0)
    assert all_go(world) == ["worker-0"]
    world.settle()
    assert world.gated() == ["other-0"]
    assert "pod other-0 is of kind other, and PyTorchJob bert" in world.said(world.record)
    world.drop("pod", world.stores["pod"]["ns/worker-0"])
    world.settle()
    assert world.gated() == ["other-0"]
    world.torch_pod("worker", 0)
    assert all_go(world) == ["worker-0"]
