"""What is said of jobs that Kueue started, once their namespace is served by Topogate."""

import msgspec
from support.kueue_started import beside_kueue, kueue_pod, run_by_kueue, started_job
from support.owned import KEYS, make_known, make_pod
from support.queued_world import cluster_queue, read
from support.sentences.golden import Golden
from support.world import FLAVOR, make_node

from crds.constants import HOSTNAME_LABEL
from engine.reasons import Reason
from kube.objects import FlavorTopology, ResourceFlavor
from ungater.model.job_view import id_of
from ungater.reconcile.reconcile import not_adopted_in_words
from ungater.scheduling.admission_conditions import adopted_as

GOLDEN = Golden("adopting")
case = GOLDEN.case
HOSTS = ["r2-h1", "r2-h2"]


def left_running(change=lambda _world, _job: None, **more):
    """Why a job of Kueue's is left running."""
    world, job = beside_kueue(), started_job()
    run_by_kueue(world, job, HOSTS, **more)
    change(world, job)
    entry = world.restarted().entries[id_of(job)]
    assert entry.admission is None
    return Reason.NOT_ADOPTED, not_adopted_in_words(entry)


def given(world, job, **changes):
    """Kueue's Workload says something else of what it has assigned."""
    kueue = world.kueue[id_of(job)]
    (part,) = kueue.status.admission.pod_set_assignments
    part = msgspec.structs.replace(part, **changes)
    admission = msgspec.structs.replace(kueue.status.admission, pod_set_assignments=(part,))
    status = msgspec.structs.replace(kueue.status, admission=admission)
    world.kueue[id_of(job)] = msgspec.structs.replace(kueue, status=status)


def assigned(*slices):
    """An assignment of these slices of hosts."""
    return {"levels": [HOSTNAME_LABEL], "slices": list(slices)}


GOLDEN.section("a job of Kueue's is taken over")


@case
def its_pods_run_on():
    return adopted_as(None)[0]


GOLDEN.section("a job of Kueue's is left running")


@case
def kueue_cannot_be_read():
    def unread(world, _job):
        world.known = False

    return left_running(unread)


@case
def kueue_is_evicting_it():
    return left_running(conditions={"Admitted": "True", "QuotaReserved": "True", "Evicted": "True"})


@case
def kueue_has_resumed_it_just_now():
    return left_running(conditions={"Admitted": "False"})


@case
def a_pod_set_that_kueue_does_not_have():
    return left_running(lambda world, job: given(world, job, name="workers"))


@case
def no_local_queue():
    def gone(world, _job):
        world.stores["local_queue"].clear()

    return left_running(gone)


@case
def a_local_queue_that_leads_elsewhere():
    return left_running(queue="theirs")


@case
def no_cluster_queue():
    def gone(world, _job):
        world.stores["cluster_queue"].clear()

    return left_running(gone)


@case
def no_flavor():
    return left_running(lambda world, job: given(world, job, flavors={"cpu": "other"}))


@case
def no_quota_of_a_resource():
    return left_running(lambda world, job: given(world, job, flavors={"cpu": "gpu", "memory": "gpu"}))


@case
def two_flavors_with_a_topology():
    def second(world, job):
        other = msgspec.structs.replace(FLAVOR, metadata=msgspec.structs.replace(FLAVOR.metadata, name="second"))
        world.stores["flavor"]["second"] = other
        groups = [
            {"coveredResources": [res], "flavors": [{"name": name, "resources": [{"name": res, "nominalQuota": "9"}]}]}
            for res, name in (("cpu", "gpu"), ("memory", "second"))
        ]
        world.stores["cluster_queue"]["cq"] = cluster_queue(4, resourceGroups=groups)
        given(world, job, flavors={"cpu": "gpu", "memory": "second"})

    return left_running(second)


@case
def a_flavor_without_the_topology_that_kueue_has():
    def plain(world, _job):
        body = {"metadata": {"name": "gpu"}, "spec": {"nodeLabels": {"pool": "gpu"}}}
        world.stores["flavor"]["gpu"] = read(body, ResourceFlavor)

    return left_running(plain)


@case
def an_amount_that_is_none():
    return left_running(lambda world, job: given(world, job, resource_usage={"cpu": "many"}))


@case
def a_pod_in_no_domain_of_the_flavor():
    def racks(world, _job):
        spec = msgspec.structs.replace(FLAVOR.spec, topology=FlavorTopology(levels=("block", "rack")))
        world.stores["flavor"]["gpu"] = msgspec.structs.replace(FLAVOR, spec=spec)

    return left_running(racks)


@case
def a_pod_on_a_node_of_another_flavor():
    def relabelled(world, _job):
        node = make_node("r2", "h1")
        meta = msgspec.structs.replace(node.metadata, labels={**node.metadata.labels, "pool": "cpu"})
        world.stores["node"]["r2-h1"] = msgspec.structs.replace(node, metadata=meta)

    return left_running(relabelled)


@case
def nodes_that_are_gone():
    return left_running(lambda world, _job: world.stores["node"].clear())


@case
def an_assignment_of_too_many_domains():
    giant = {"domainCount": 1 << 40, "valuesPerLevel": [{"universal": "n"}], "podCounts": {"universal": 1}}
    return left_running(lambda world, job: given(world, job, topology_assignment=assigned(giant)))


@case
def an_assignment_that_lacks_a_level():
    short = {"domainCount": 1, "valuesPerLevel": [], "podCounts": {"universal": 1}}
    return left_running(lambda world, job: given(world, job, topology_assignment=assigned(short)))


@case
def pods_of_another_owner():
    world, job = beside_kueue(), started_job()
    waits = pod_of_set(make_pod("set-2"))
    ran = [pod_of_set(kueue_pod(job, f"set-{number}", host, phase="Running")) for number, host in enumerate(HOSTS)]
    for pod in (*ran, waits):
        world.stores["pod"][f"ns/{pod.metadata.name}"] = pod
    (entry,) = world.restarted().entries.values()
    entry.observe(make_known(entry.job))
    return Reason.NOT_ADOPTED, not_adopted_in_words(entry)


def pod_of_set(pod):
    """The same, of a ReplicaSet."""
    owner = msgspec.structs.replace(
        pod.metadata.owner_references[0], kind="ReplicaSet", api_version="apps/v1", name="set", uid="uid-set"
    )
    labels = {**(pod.metadata.labels or {}), KEYS.queue_name: "team"}
    annotations = {**(pod.metadata.annotations or {}), KEYS.required[0]: "rack"}
    meta = msgspec.structs.replace(pod.metadata, owner_references=(owner,), labels=labels, annotations=annotations)
    return msgspec.structs.replace(pod, metadata=meta)
