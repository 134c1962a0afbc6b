"""Jobs and pods that ask for devices, in a `LookedAt` of two racks of two hosts."""

import msgspec
from support.looked_at import LookedAt
from support.owned import KEYS, make_job
from support.world import FLAVOR, make_node

from crds.constants import WORKER_INDEX
from kube.informer import Event, EventKind
from kube.objects import Pod, key
from kube.parents import JobSet, LeaderWorkerSet
from kube.pods.device_claims import DeviceClass
from ungater.jobs import leaderworkerset
from ungater.model.job_view import id_of
from ungater.reconcile.reconcile import why_not_placed

GPU = "nvidia.com/gpu"
ONE = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
SET = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u-db", "controller": True}


def read(kind, body):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def spec(amounts=None, claims=None, used=(), gated=True):
    """Of a pod (template) with one container."""
    resources = {"requests": {"cpu": "1", **(amounts or {})}}
    resources |= {"claims": [{"name": name} for name in used]} if used else {}
    found = {"containers": [{"name": "c", "resources": resources}]}
    found |= {"schedulingGates": [{"name": KEYS.gate}]} if gated else {}
    return found | ({"resourceClaims": claims} if claims is not None else {})


def a_pod(name="p", *, owner=None, labels=None, total=None, **asks):
    annotations = {KEYS.unconstrained: "true", **({KEYS.pod_group_total: str(total)} if total else {})}
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "labels": labels or {}, "annotations": annotations}
    meta |= {"ownerReferences": [owner]} if owner else {}
    meta |= {"creationTimestamp": "2026-11-21T00:00:00Z"}
    return read(Pod, {"metadata": meta, "spec": spec(**asks), "status": {"phase": "Pending"}})


def a_class(name, resource=None, made="2026-11-21T00:00:00Z", selector=""):
    selectors = [{"cel": {"expression": selector}}] if selector else []
    body = {"metadata": {"name": name, "creationTimestamp": made}, "spec": {"selectors": selectors}}
    return read(
        DeviceClass, {**body, "spec": {**body["spec"], **({"extendedResourceName": resource} if resource else {})}}
    )


def publishing(node, amount="4", resource=GPU):
    """The node, with what its device plugin has."""
    status = msgspec.structs.replace(node.status, allocatable={**node.status.allocatable, resource: amount})
    return msgspec.structs.replace(node, status=status)


class Devices(LookedAt):
    """Two racks of two hosts with 4 CPUs each."""

    def __init__(self):
        super().__init__()
        self.put("flavor", FLAVOR)
        self.nodes = [make_node(rack, host, cpu="4") for rack in ("r1", "r2") for host in ("h1", "h2")]
        for node in self.nodes:
            self.put("node", node)

    def job(self, name="train", count=2, **asks):
        self.put("job", made := make_job(name, parallelism=count, spec=spec(**asks)))
        return self.memory.entries[id_of(made)]

    def group(self, name, owner=SET, **asks):
        """The workload of a pod, with others of its owner."""
        self.put("pod", pod := a_pod(name, owner=owner, **asks))
        self.settle()
        return next(one for one in self.memory.entries.values() if pod.metadata.uid in one.pods)

    def jobset(self, workers, leader=None):
        template = {"metadata": {"annotations": {KEYS.required[0]: "rack"}}}
        roles = [
            {
                "name": name,
                "replicas": 1,
                "template": {"spec": {"parallelism": 1, "template": {**template, "spec": one}}},
            }
            for name, one in (("leader", leader or spec()), ("workers", workers))
        ]
        meta = {"name": "js", "namespace": "ns", "uid": "u-js", "creationTimestamp": "2026-11-21T00:00:00Z"}
        made = read(JobSet, {"metadata": meta, "spec": {"replicatedJobs": roles}})
        self.jobsets[key(made)] = made
        self.memory.jobs.on_jobset(Event(EventKind.ADDED, key(made), None, made))
        return self.memory.entries[id_of(made)]

    def leaders(self, workers):
        template = {"metadata": {"annotations": {KEYS.required[0]: "rack", KEYS.group: "all"}}}
        whole = {
            "size": 2,
            "leaderTemplate": {**template, "spec": spec()},
            "workerTemplate": {**template, "spec": workers},
        }
        meta = {"name": "l", "namespace": "ns", "uid": "u-l", "creationTimestamp": "2026-11-21T00:00:00Z"}
        made = read(LeaderWorkerSet, {"metadata": meta, "spec": {"replicas": 1, "leaderWorkerTemplate": whole}})
        old, self.leader_sets["ns/l"] = self.leader_sets.get("ns/l"), made
        self.memory.pod_groups.on_leaders(Event(EventKind.MODIFIED, "ns/l", old, made))
        labels = {leaderworkerset.NAME: "l", leaderworkerset.GROUP: "0", WORKER_INDEX: "0"}
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "l", "uid": "u-s", "controller": True}
        return self.group("l-0", owner, labels=labels)

    def why(self, record):
        return why_not_placed(record, self.memory.rules)
