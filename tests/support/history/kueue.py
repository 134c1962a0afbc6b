"""Jobs that Kueue started, in a namespace that it hands over: what it left of them, and that nobody ends their pods.

In a quarter of the histories the controller stands beside Kueue. Some Jobs run when the first controller starts, as
Kueue 0.19.2 starts them: its labels, its gate and the flavor's node labels are in the template, pods name the host
alone, and Kueue's Workload says what they have. The namespace is served from the beginning or some seconds later.
Nobody plays Kueue: it leaves out a namespace that is labelled, and before that it is quiet.

- The controller suspends none of these jobs of which a pod runs, and deletes no pod of one, before it has taken the job
  over; a user who suspends or deletes one, or an administrator who deletes its Workload, may have what follows. One of
  which none runs may be left to wait as others do, and have pods behind their gate made anew.
- In the end, each that runs is taken over.
"""

import random
from collections import Counter
from collections.abc import Callable

from support.history.actors import Cluster, allocatable, usable
from support.history.server import (
    CONTROLLER,
    GATE,
    HOSTILE,
    NAMESPACE,
    QUEUE,
    TRACKING,
    Json,
    Key,
    Server,
    container,
    ended,
    gated,
    make_object,
    over,
    owner_of,
)
from support.history.stored import HOSTNAME, nominal_of

from crds.constants import KUEUE_POD_SET, SERVED
from crds.kueue.assignment import encode
from kube import resources
from ungater.model.kueue_objects import WORKLOADS

REQUESTS = (
    {"kueue.x-k8s.io/podset-required-topology": "rack"},
    {"kueue.x-k8s.io/podset-unconstrained-topology": "true"},
)
MOST = 3  # jobs
LATEST = 20.0  # seconds until the namespace is labelled
WHO = "kueue"


class KueueJobs:
    """See the module. Its chances are its own, so that histories without it stay what they are."""

    def __init__(self, server: Server, cluster: Cluster, seed: int, note: Callable[..., None]) -> None:
        self.server = server
        self.cluster = cluster
        self.rng = random.Random(f"kueue {seed}")
        self.note = note
        self.there = self.rng.random() < 1 / 4
        self.wrong: list[str] = []
        self._jobs: set[str] = set()  # uids of those that nobody else touched, until they are taken over
        self._started: set[str] = set()  # uids of all of them
        self._given: Counter[str] = Counter()  # cpu, by queue
        self.adopted = 0
        if self.there:
            server.serve("kueueworkloads", WORKLOADS[0])

    def begin(self) -> None:
        """The jobs are there, and run."""
        if not self.there:
            return
        self._label(HOSTILE)
        # Policies for pods are not bound where Kueue serves, so what it made is as it is.
        policies, self.server.policies = self.server.policies, False
        for number in range(self.rng.randint(1, MOST)):
            self._start(f"k{number}")
        self.server.policies = policies
        if self.rng.random() < 0.5:
            self._label(NAMESPACE)
        else:
            self.server.loop.call_later(self.rng.random() * LATEST, self._label, NAMESPACE)

    def _label(self, namespace: str) -> None:
        found = self.server.get("namespaces", namespace)
        assert found is not None
        self.note("namespace", namespace, "is served")
        self.server.change(found, lambda new: new["metadata"].update(labels={SERVED: "true"}), "admin")

    def _start(self, name: str) -> None:
        """One Job in what is free of a rack and of its queue."""
        queue = self.rng.choice(("a", "b"))
        used = self.cluster.used()
        racks: dict[str, list[str]] = {}
        for node in filter(usable, self.server.all("nodes")):
            host = node["metadata"]["name"]
            left = min(allocatable(node)[one] - used[host, one] for one in ("cpu", "pods"))
            racks.setdefault(node["metadata"]["labels"]["rack"], []).extend([host] * left)
        rack = self.rng.choice(sorted(racks)) if racks else ""
        cluster_queue = self.server.get("clusterqueues", f"cq-{queue}")
        assert cluster_queue is not None
        most = min(len(racks.get(rack, ())), nominal_of(cluster_queue) - self._given[queue], 4)
        if most < 1:
            return
        count = self.rng.randint(1, most)
        self._given[queue] += count
        hosts = sorted(self.rng.sample(racks[rack], count))
        job = self._job(name, queue, count)
        # One may be missing: its pod waits behind the gate that Kueue would have removed.
        missing = self.rng.random() < 0.3
        for number, host in enumerate(hosts[missing:]):
            self._pod(job, number, host)
        self._workload(job, queue, hosts)

    def _job(self, name: str, queue: str, count: int) -> Json:
        pods = {
            "containers": [container(1)],
            "schedulingGates": [{"name": GATE}],
            "nodeSelector": {"pool": "gpu"},
            "restartPolicy": "Never",
        }
        labels = {KUEUE_POD_SET: "main"}
        annotations = {**self.rng.choice(REQUESTS), "kueue.x-k8s.io/workload": f"job-{name}-00000"}
        spec = {
            "parallelism": count,
            "completions": count,
            "completionMode": "NonIndexed",
            "suspend": False,
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pods},
        }
        job = make_object(resources.JOBS, name, spec, labels={QUEUE: queue}, annotations={})
        job["metadata"]["namespace"] = NAMESPACE
        made = self.server.create("jobs", job, WHO)
        self._jobs.add(made["metadata"]["uid"])
        self._started.add(made["metadata"]["uid"])
        if self.rng.random() < 0.5:
            self.cluster.finishing.add(made["metadata"]["uid"])
        return made

    def _pod(self, job: Json, number: int, host: str) -> None:
        meta, template = job["metadata"], job["spec"]["template"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        spec = {**template["spec"], "nodeName": host, "nodeSelector": {"pool": "gpu", HOSTNAME: host}}
        del spec["schedulingGates"]
        pod = make_object(
            resources.PODS,
            f"{meta['name']}-k{number}",
            spec,
            namespace=NAMESPACE,
            labels=dict(template["metadata"]["labels"]),
            annotations=dict(template["metadata"]["annotations"]),
            ownerReferences=[owner],
            finalizers=[TRACKING],
        )
        self.server.create("pods", {**pod, "status": {"phase": "Running"}}, WHO)

    def _workload(self, job: Json, queue: str, hosts: list[str]) -> None:
        meta, count = job["metadata"], len(hosts)
        counts = {host: hosts.count(host) for host in hosts}
        given = {
            "name": "main",
            "count": count,
            "flavors": {"cpu": "gpu"},
            "resourceUsage": {"cpu": str(count)},
            "topologyAssignment": encode([HOSTNAME], [((host,), pods) for host, pods in counts.items()]),
        }
        before = {
            "metadata": {"annotations": dict(job["spec"]["template"]["metadata"]["annotations"])},
            "spec": {name: job["spec"]["template"]["spec"][name] for name in ("containers", "restartPolicy")},
        }
        del before["metadata"]["annotations"]["kueue.x-k8s.io/workload"]
        body = make_object(
            WORKLOADS[0],
            f"job-{meta['name']}-00000",
            {"queueName": queue, "podSets": [{"name": "main", "count": count, "template": before}]},
            namespace=NAMESPACE,
            ownerReferences=[
                {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
            ],
        )
        body["status"] = {
            "admission": {"clusterQueue": f"cq-{queue}", "podSetAssignments": [given]},
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": self.server.now(), "reason": kind, "message": ""}
                for kind in ("QuotaReserved", "Admitted")
            ],
        }
        self.server.create("kueueworkloads", body, WHO)

    # --- judging ---------------------------------------------------------------------------------------------------

    def saw(self, key: Key, old: Json | None, new: Json | None, who: str) -> None:
        """One change was made."""
        if not self._jobs:
            return
        found = new if new is not None else old
        if key[0] == "jobs" and found is not None and found["metadata"]["uid"] in self._jobs:
            suspended = new is not None and new["spec"].get("suspend")
            if who == CONTROLLER and suspended and self._runs(found["metadata"]["uid"]):
                self.wrong.append(f"job {key[2]} of Kueue was suspended before it was taken over")
            if new is None or suspended or over(new):
                self._jobs.discard(found["metadata"]["uid"])
        elif key[0] == "workloads" and found is not None and (uid := owner_of(found)) in self._jobs:
            if (found.get("status") or {}).get("admission") or (new is None and who != CONTROLLER):
                self.adopted += new is not None
                self._jobs.discard(uid)
        elif key[0] == "pods" and old is not None and owner_of(old) in self._jobs and _ends(new) and not _ends(old):
            # Behind its gate it never ran. Pods that differ from each other are made anew, as those of any Job that
            # waits; beside one that runs that would change what is about to be taken over.
            waits = gated(old) and not self._runs(owner_of(old))
            if who == CONTROLLER and not waits:
                self.wrong.append(f"pod {key[2]} of Kueue was ended before its job was taken over")

    def _runs(self, uid: str) -> bool:
        """Whether a pod of a job runs, on a node that is there."""
        bound = [pod["spec"].get("nodeName", "") for pod in self.cluster.pods_of(uid) if not ended(pod)]
        return any(self.server.get("nodes", node) for node in bound if node)

    def left(self) -> list[str]:
        """Those that run and were not taken over, once all has come to rest."""
        jobs = {job["metadata"]["uid"]: job["metadata"]["name"] for job in self.server.all("jobs") if not over(job)}
        return [f"job {jobs[uid]} of Kueue was not taken over" for uid in sorted(self._jobs) if uid in jobs]


def _ends(pod: Json | None) -> bool:
    """Whether a pod is gone, or told to go."""
    return pod is None or bool(pod["metadata"].get("deletionTimestamp"))
