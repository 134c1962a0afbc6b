"""A `World` beside a Kueue of the same domain, with Jobs that Kueue started: its marks on templates and pods, and none
of ours.
"""

import json

import msgspec
from support.owned import KEYS, make_job, make_pod
from support.queued_world import filled
from support.world import World

from crds.constants import HOSTNAME_LABEL, KUEUE_POD_SET, SERVED
from crds.kueue.assignment import encode
from kube.objects import Namespace, ObjectMeta
from ungater.cache.served import BesideKueue
from ungater.jobs.job import owner_of
from ungater.model.job_view import id_of
from ungater.model.kueue_objects import KueueWorkload

CPU = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
ADMITTED_AT = "2026-11-21T00:00:00Z"
MARKS = (KEYS.workload, KEYS.pod_set)


class KueueWorld(World):
    """``kueue``: Kueue's Workloads by the id of their job; ``known``: whether they could be read."""

    def __init__(self):
        self.kueue = {}
        self.known = True
        self.restarts = 0
        super().__init__()

    def make(self, **options):
        beside = BesideKueue(self.kueue.get, lambda: self.known, lambda _: self._restart())
        return super().make(beside=beside, **options)

    def _restart(self):
        self.restarts += 1


def beside_kueue(cpus=4, *, served=True, **spec):
    """Four nodes, a queue of ``cpus`` CPUs, and namespace ``ns``, that is ``served`` when the controller begins."""
    world = filled(KueueWorld(), cpus, **spec)
    labels = {"team": "a", **({SERVED: "true"} if served else {})}
    world.stores["namespace"]["ns"] = Namespace(metadata=ObjectMeta(name="ns", labels=labels))
    world.memory = world.restarted()
    return world


def kueue_workload(job, places, *, count, queue="cq", flavor="gpu", levels=(HOSTNAME_LABEL,), conditions=None, **more):
    """Kueue's Workload of a job, admitted unless ``conditions`` say otherwise; ``places``: pods by host, or None."""
    status = {"Admitted": "True", "QuotaReserved": "True"} if conditions is None else conditions
    part = {"name": "main", "flavors": {"cpu": flavor}, "resourceUsage": {"cpu": str(count)}, "count": count}
    if places is not None:
        part["topologyAssignment"] = encode(levels, [((host,), pods) for host, pods in places.items()])
    body = {
        "metadata": {"name": f"job-{job.metadata.name}-00000", "namespace": "ns", "uid": f"kueue-{job.metadata.uid}"},
        "spec": {"queueName": "team", "active": more.pop("active", True)},
        "status": {
            "admission": {"clusterQueue": queue, "podSetAssignments": [part]},
            "conditions": [
                {"type": kind, "status": said, "lastTransitionTime": ADMITTED_AT, "reason": kind, "message": ""}
                for kind, said in status.items()
            ],
            **more,
        },
    }
    return msgspec.json.decode(json.dumps(body), type=KueueWorkload)


def started_job(name="train", pods=2, *, gated=True, **more):
    """A Job as Kueue starts it: its template has Kueue's label, the flavor's labels, and the gate if it is placed."""
    return make_job(
        name,
        parallelism=pods,
        labels={KEYS.queue_name: "team"},
        gated=gated,
        pod_labels={KUEUE_POD_SET: "main"},
        spec={"nodeSelector": {"pool": "gpu"}},
        **more,
    )


def kueue_pod(job, name, host, *, node=None, gated=False, **more):
    """A pod that Kueue sent to a host: its selector names that alone, and it has no mark of ours."""
    pod = make_pod(name, owner=owner_of(job, KEYS), gated=gated, node=host if node is None else node, spec=CPU, **more)
    labels = {**(pod.metadata.labels or {}), KUEUE_POD_SET: "main"}
    annotations = {key: text for key, text in (pod.metadata.annotations or {}).items() if key not in MARKS}
    meta = msgspec.structs.replace(pod.metadata, labels=labels, annotations=annotations)
    selector = {"pool": "gpu", **({HOSTNAME_LABEL: host} if host and not gated else {})}
    return msgspec.structs.replace(pod, metadata=meta, spec=msgspec.structs.replace(pod.spec, node_selector=selector))


def run_by_kueue(world, job, hosts, *, places="as they are", **more):
    """Store a Job, Kueue's Workload of it, and a pod on each of these hosts, without telling the controller."""
    world.stores["job"][f"ns/{job.metadata.name}"] = job
    counts = {host: hosts.count(host) for host in dict.fromkeys(hosts)} if places == "as they are" else places
    count = more.pop("count", sum(counts.values()) if counts is not None else len(hosts))
    world.kueue[id_of(job)] = kueue_workload(job, counts, count=count, **more)
    for number, host in enumerate(hosts):
        pod = kueue_pod(job, f"{job.metadata.name}-{number}", host, phase="Running")
        world.stores["pod"][f"ns/{pod.metadata.name}"] = pod
