"""A story that is told to a witness: what happens to Jobs, Workloads and pods, one version after another."""

import copy

from support.cluster_checker import GATE, MARK
from support.etcd_events import Change
from support.preemptions import BY_EVICTION, OBSERVED
from support.stays import HOSTNAME, SCARCE
from support.witness import POD_SET, QUEUE, Witness

ASKS = "kueue.x-k8s.io/podset-required-topology"
RACK = "rack"


def condition(type_, status, reason="", message="because"):
    return {"type": type_, "status": status, "reason": reason, "message": message}


class Story:
    """Tells the witness what happens, one version of an object after another."""

    def __init__(self):
        self.witness = Witness()
        self.witness.preemptions.zone = 4
        self.revision = 0
        self.things = {}
        for name in ("n1", "n2"):
            labels = {HOSTNAME: name, RACK: "r1"}
            allocatable = {SCARCE: "8", "cpu": "16", "pods": "110"}
            self.tell(
                "nodes", name, {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}
            )
        resources = [{"name": SCARCE, "nominalQuota": "12"}]
        group = {"flavors": [{"name": "tas", "resources": resources}]}
        self.tell("queues", "team", {"metadata": {"name": "team"}, "spec": {"resourceGroups": [group]}})

    def tell(self, kind, key, new):
        self.revision += 1
        self.things[kind, key] = new
        self.witness.see(Change(self.revision, kind, key, copy.deepcopy(new)))

    def change(self, kind, name, **changes):
        """Merge into an object, to any depth; None removes."""
        key = f"ns/{name}"
        self.tell(kind, key, _merged(self.things[kind, key], changes))

    def gone(self, kind, name):
        self.tell(kind, f"ns/{name}", None)

    def job(self, name, pods=2, gpus=4, priority=0):
        meta = {"namespace": "ns", "name": name, "uid": f"{name}-job", "labels": {QUEUE: "team"}}
        self.tell(
            "jobs", f"ns/{name}", {"metadata": meta, "spec": {"suspend": True, "parallelism": pods}, "status": {}}
        )
        container = {"name": "c", "resources": {"limits": {SCARCE: str(gpus)}, "requests": {"cpu": "1"}}}
        template = {"spec": {"containers": [container]}}
        owner = [{"uid": f"{name}-job", "controller": True, "name": name}]
        body = {
            "metadata": {"namespace": "ns", "name": name, "uid": f"{name}-wl", "ownerReferences": owner},
            "spec": {"priority": priority, "podSets": [{"name": "main", "count": pods, "template": template}]},
            "status": {},
        }
        self.tell("workloads", f"ns/{name}", body)

    def admission(self, name, slots, gpus=4):
        count = sum(slots.values())
        slices = [{"nodeLabels": {RACK: "r1", HOSTNAME: node}, "count": n} for node, n in slots.items()]
        part = {
            "name": "main",
            "count": count,
            "flavors": {SCARCE: "tas"},
            "resourceUsage": {SCARCE: str(count * gpus)},
            "topologyAssignment": {"levels": [RACK, HOSTNAME], "slices": slices},
        }
        return {"clusterQueue": "team", "podSetAssignments": [part]}

    def admit(self, name, slots, gpus=4):
        self.change("workloads", name, status={"admission": self.admission(name, slots, gpus), "nomination": None})
        self.change("jobs", name, spec={"suspend": False})

    def born(self, name, job, gpus=4, gated=True):
        container = {"name": "c", "resources": {"limits": {SCARCE: str(gpus)}, "requests": {"cpu": "1"}}}
        owner = [{"uid": f"{job}-job", "controller": True}]
        annotations = {ASKS: RACK, POD_SET: "main"}
        meta = {"namespace": "ns", "name": name, "uid": f"{name}-{self.revision}", "labels": {"app": job}}
        spec = {"containers": [container], "schedulingGates": [{"name": GATE}] if gated else []}
        body = {**meta, "ownerReferences": owner, "annotations": annotations}
        self.tell("pods", f"ns/{name}", {"metadata": body, "spec": spec, "status": {"phase": "Pending"}})

    def ungate(self, name, job, node):
        spec = {"schedulingGates": [], "nodeSelector": {RACK: "r1", HOSTNAME: node}}
        self.change("pods", name, metadata={"annotations": {MARK: job}}, spec=spec)

    def run(self, name, node, zone="node-0", gpus=4):
        placed = f'[{{"zone": "{zone}", "amount": {{"{SCARCE}": "{gpus}"}}}}]'
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.change("pods", name, spec={"nodeName": node}, status=ready, metadata={"annotations": {OBSERVED: placed}})

    def pod(self, name, job, node, **options):
        self.born(name, job)
        self.ungate(name, job, node)
        self.run(name, node, **options)

    def evict(self, name):
        type_, reason = BY_EVICTION
        conditions = [condition("Ready", "True"), {"type": type_, "status": "True", "reason": reason}]
        self.change("pods", name, status={"conditions": conditions})
        self.change("pods", name, metadata={"deletionTimestamp": "now"})
        self.gone("pods", name)

    def low(self, slots=None):
        """A job of two pods of 4 GPUs that runs on n1, one pod a zone."""
        self.job("low")
        self.admit("low", slots or {"n1": 2})
        self.pod("low-0", "low", "n1", zone="node-0")
        self.pod("low-1", "low", "n1", zone="node-1")

    def plan(self, victims=("low",), slots=None):
        listed = [{"namespace": "ns", "name": name, "uid": f"{name}-wl"} for name in victims]
        nomination = {**self.admission("high", slots or {"n1": 1}), "victims": listed}
        self.change("workloads", "high", status={"nomination": nomination})

    def told(self, name="low", reason="Preempted"):
        conditions = [condition("Evicted", "True", reason), condition("Preempted", "True", "InClusterQueue")]
        self.change("workloads", name, status={"conditions": conditions})

    def back(self, name="low"):
        self.change("jobs", name, spec={"suspend": True})
        kept = self.things["workloads", f"ns/{name}"]["status"]["conditions"]
        waits = [condition("QuotaReserved", "False", "Pending"), condition("Requeued", "True", "Requeued")]
        self.change("workloads", name, status={"admission": None, "conditions": [*kept, *waits]})

    def wrong(self):
        return [text.partition(": ")[2] for text in self.witness.wrong]


def _merged(old, changes):
    merged = dict(old)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merged(merged.get(key, {}), value)
        else:
            merged[key] = value
    return merged
