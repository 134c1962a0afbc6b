"""Who else lives in a cluster: controllers of Jobs and sets, kube-scheduler, kubelets, collectors; a step at a time.

Each looks at the server as it is and makes one change, or a few that belong together. They keep no state, so nothing of
theirs is lost when they are slow.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from support.history.filters import HiddenFilter
from support.history.jobsets import FOREGROUND, JobSets
from support.history.leaders import LeaderSets
from support.history.server import (
    GRACE,
    GROUP,
    NAMESPACE,
    POD_GROUPS,
    TRACKING,
    Json,
    Refused,
    Server,
    ended,
    is_group,
    is_true,
    named_by,
    over,
    owner_of,
    parent_of,
)

from crds.constants import WORKER_INDEX

ORDINAL = "apps.kubernetes.io/pod-index"
POD_INDEX = "kueue.x-k8s.io/pod-group-pod-index"
TOTAL = "kueue.x-k8s.io/pod-group-total-count"
RANK = "batch.kubernetes.io/job-completion-index"
ENDS = "simulated/ends"  # on pods of a group each of which ends by itself
RESIZED = "simulated/asked-first"  # on pods that were resized in place
UNKNOWN = "MadeUp"  # a kind that no API has
RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


class Cluster:
    """The parts of a cluster that are not ours. ``finishing``: uids of jobs whose pods end by themselves.

    ``kept_from``: pods that count as if they ran on a node already, beside the one that kube-scheduler looks at.
    """

    def __init__(
        self,
        server: Server,
        rng: random.Random,
        hidden: HiddenFilter,
        kept_from: Callable[[Json], list[tuple[str, Json]]],
    ) -> None:
        self.server = server
        self.rng = rng
        self.hidden = hidden
        self._kept_from = kept_from
        self.finishing: set[str] = set()
        self.everything_ends = False
        self._jobsets = JobSets(server, rng)
        self._leaders = LeaderSets(server, rng)
        self._numbers = 0

    def step(self) -> bool:
        """One change somewhere; False where nobody has anything to do."""
        parts = [self._jobs, self._jobsets.step, self._led, self._sets, self._schedule, self._kubelets, self._collect]
        self.rng.shuffle(parts)
        return any(part() for part in parts)

    def pods_of(self, uid: str) -> list[Json]:
        return [pod for pod in self.server.all("pods") if owner_of(pod) == uid]

    # --- the Job controller ----------------------------------------------------------------------------------------

    def _jobs(self) -> bool:
        jobs = list(self.server.all("jobs"))
        self.rng.shuffle(jobs)
        return self._orphans() or any(self._job(job) for job in jobs)

    def _orphans(self) -> bool:
        jobs = self.server.all("jobs")
        uids = {job["metadata"]["uid"] for job in jobs if not job["metadata"].get("deletionTimestamp")}
        for pod in self.server.all("pods"):
            if TRACKING in pod["metadata"].get("finalizers", ()) and parent_of(pod) not in uids:
                self._untrack(pod)
                return True
        return False

    def _untrack(self, pod: Json) -> None:
        def mutate(new: Json) -> None:
            new["metadata"]["finalizers"] = [name for name in new["metadata"]["finalizers"] if name != TRACKING]

        self.server.change(pod, mutate, "job controller")

    def _job(self, job: Json) -> bool:  # noqa: C901, PLR0911, PLR0912 -- one branch a rule, as manageJob has them
        uid, spec = job["metadata"]["uid"], job["spec"]
        if job["metadata"].get("deletionTimestamp") or "managedBy" in spec:
            return False
        status = dict(job.get("status") or {})
        pods = [pod for pod in self.server.all("pods") if parent_of(pod) == uid]
        failed_only = spec.get("podReplacementPolicy") == "Failed"
        counted = ended if failed_only else _counts
        done = [pod for pod in pods if TRACKING in pod["metadata"].get("finalizers", ()) and counted(pod)]
        leaving = [pod for pod in pods if failed_only and not ended(pod) and pod["metadata"].get("deletionTimestamp")]
        live = [pod for pod in pods if not ended(pod) and not pod["metadata"].get("deletionTimestamp")]
        indexed = spec.get("completionMode") == "Indexed"
        if done:
            pod = self.rng.choice(done)
            if pod["status"]["phase"] == "Succeeded":
                if indexed:
                    ranks = _ranks(status.get("completedIndexes", "")) | ({_rank(pod)} - {-1})
                    status["completedIndexes"] = ",".join(str(rank) for rank in sorted(ranks))
                    status["succeeded"] = len(ranks)
                else:
                    status["succeeded"] = status.get("succeeded", 0) + 1
            else:
                status["failed"] = status.get("failed", 0) + 1
            self._set_status(job, self._counted(status, pods))
            self._untrack(pod)
            return True
        if over(job):
            return self._remove(live)
        if spec.get("suspend"):
            if self._remove(live):
                return True
            status.pop("startTime", None)
            return self._set_status(job, self._counted(self.server.with_condition(status, "Suspended", "True"), pods))
        if is_true(status, "Suspended"):
            status = self.server.with_condition(status, "Suspended", "False")
        if "startTime" not in status:
            status["startTime"] = self.server.now()
        wanted = max(0, min(spec["parallelism"], spec["completions"] - status.get("succeeded", 0)))
        if status.get("succeeded", 0) >= spec["completions"]:
            return self._set_status(job, self._counted(self.server.with_condition(status, "Complete", "True"), pods))
        excess = live[wanted:] if not indexed else _not_needed(live, spec["completions"])
        if self._remove(excess):
            return True
        there = live + leaving
        if len(there) < wanted and self._make_pod(job, there, status, indexed=indexed):
            return True
        return self._set_status(job, self._counted(status, pods))

    def _make_pod(self, job: Json, live: list[Json], status: Json, *, indexed: bool) -> bool:
        meta, template = job["metadata"], job["spec"]["template"]
        self._numbers += 1
        labels = dict(template["metadata"].get("labels") or {})
        if indexed:
            taken = {_rank(pod) for pod in live} | _ranks(status.get("completedIndexes", ""))
            labels[RANK] = str(next(rank for rank in range(job["spec"]["completions"]) if rank not in taken))
        reference = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{meta['name']}-{self._numbers}",
                "namespace": meta["namespace"],
                "labels": labels,
                "annotations": dict(template["metadata"].get("annotations", {})),
                "ownerReferences": [reference],
                "finalizers": [TRACKING],
            },
            "spec": dict(template["spec"]),
            "status": {"phase": "Pending"},
        }
        return make(self.server, pod, "job controller")

    def _remove(self, pods: list[Json]) -> bool:
        if not pods:
            return False
        pod = self.rng.choice(pods)
        if TRACKING in pod["metadata"].get("finalizers", ()):
            self._untrack(pod)
            pod = self.server.get("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
        self.server.delete(pod, "job controller")
        return True

    def _counted(self, status: Json, pods: list[Json]) -> Json:
        there = [pod for pod in pods if not ended(pod)]
        live = [pod for pod in there if not pod["metadata"].get("deletionTimestamp")]
        ready = sum(pod["status"]["phase"] == "Running" for pod in live)
        return {**status, "active": len(live), "ready": ready, "terminating": len(there) - len(live)}

    def _set_status(self, job: Json, status: Json) -> bool:
        job = self.server.get("jobs", job["metadata"]["name"], job["metadata"]["namespace"])
        if job is None or (job.get("status") or {}) == status:
            return False
        self.server.store(job, {**job, "status": status}, "job controller", "status")
        return True

    # --- the StatefulSet controller, and somebody who makes the pods of groups ---------------------------------------

    def _sets(self) -> bool:
        found = [*self.server.all("statefulsets"), *self.server.all(POD_GROUPS.plural)]
        self.rng.shuffle(found)
        return any(self._set(each) for each in found)

    def _led(self) -> bool:
        return self._leaders.step(all_end=self.everything_ends)

    def _set(self, owner: Json) -> bool:
        """podManagementPolicy Parallel: pods that are missing are made, and those that ended made again.

        Of a pod group whose pods end by themselves, those that failed.
        """
        pods = {pod["metadata"]["name"]: pod for pod in self.pods_of(owner["metadata"]["uid"])}
        names = [f"{owner['metadata']['name']}-{ordinal}" for ordinal in range(owner["spec"]["replicas"])]
        ends = bool(owner["spec"].get("ends"))
        if self.everything_ends and not ends and any(pod["status"]["phase"] == "Running" for pod in pods.values()):
            self.server.delete(owner, "user")
            return True
        if ends and self._count_succeeded(owner, list(pods.values())):
            return True
        there = [pod for pod in pods.values() if not pod["metadata"].get("deletionTimestamp")]
        again = {"Failed"} if ends else {"Failed", "Succeeded"}
        unwanted = [pod for pod in there if pod["status"]["phase"] in again or pod["metadata"]["name"] not in names]
        if unwanted:
            self.server.delete(self.rng.choice(unwanted), "set controller")
            return True
        missing = [name for name in names if self.server.get("pods", name, owner["metadata"]["namespace"]) is None]
        # Nobody runs again what is done, though the node of a pod that succeeded is deleted, and the pod with it.
        if missing and not over(owner):
            return self._make_replica(owner, missing[0])
        return not is_group(owner) and self._roll(owner, there)

    def _count_succeeded(self, owner: Json, pods: list[Json]) -> bool:
        """Note how many pods of a group are done; True where that changed."""
        done = sum(pod["status"]["phase"] == "Succeeded" for pod in pods)
        status = {**(owner.get("status") or {}), "succeeded": done}
        if done >= owner["spec"]["replicas"]:
            status = self.server.with_condition(status, "Complete", "True")
        if over(owner) or status == owner.get("status", {"succeeded": 0}):
            return False
        self.server.store(owner, {**owner, "status": status}, "user")
        return True

    def _roll(self, owner: Json, pods: list[Json]) -> bool:
        """A rolling update: from the highest ordinal down, pods of an older template go; each waits for the last."""
        for pod in sorted(pods, key=lambda pod: pod["metadata"]["name"], reverse=True):
            if stale(pod, owner["spec"]["template"]):
                self.server.delete(pod, "set controller")
                return True
            if pod["status"]["phase"] != "Running":
                return False
        return False

    def _make_replica(self, owner: Json, name: str) -> bool:
        meta, template, ordinal = owner["metadata"], owner["spec"]["template"], name.rpartition("-")[2]
        reference = {"apiVersion": "apps/v1", "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
        labels, annotations = {**template["metadata"]["labels"], ORDINAL: ordinal}, template["metadata"]["annotations"]
        references = [{**reference, "controller": True}]
        if is_group(owner):
            labels = {**template["metadata"]["labels"], GROUP: meta["name"], POD_INDEX: ordinal}
            annotations, references = {**annotations, TOTAL: str(owner["spec"]["replicas"])}, []
            annotations |= {ENDS: "yes"} if owner["spec"].get("ends") else {}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": labels,
                "annotations": dict(annotations),
                "ownerReferences": references,
            },
            "spec": dict(template["spec"]),
            "status": {"phase": "Pending"},
        }
        return make(self.server, pod, "set controller")

    # --- kube-scheduler ----------------------------------------------------------------------------------------------

    def _schedule(self) -> bool:
        waiting = [
            pod
            for pod in self.server.all("pods")
            if not pod["spec"].get("nodeName")
            and not pod["spec"].get("schedulingGates")
            and not pod["metadata"].get("deletionTimestamp")
        ]
        self.rng.shuffle(waiting)
        return any(self._bind(pod) for pod in waiting)

    def _bind(self, pod: Json) -> bool:
        used = self.used()
        for node, other in self._kept_from(pod):
            for name, amount in takes(other).items():
                used[node, name] += amount
        wanted = takes(pod)
        fitting = [
            node["metadata"]["name"]
            for node in self.server.all("nodes")
            if usable(node)
            and _selected(pod, node)
            and self.hidden.takes(pod, node["metadata"]["name"])
            and all(
                used[node["metadata"]["name"], name] + amount <= allocatable(node).get(name, 0)
                for name, amount in wanted.items()
            )
        ]
        if not fitting:
            return self.hidden.on and self._refuse(pod)
        name = self.rng.choice(fitting)

        def bind(new: Json) -> None:
            new["spec"].update(nodeName=name)
            new["status"].pop("nominatedNodeName", None)

        self.server.change(pod, bind, "scheduler")
        return True

    def _refuse(self, pod: Json) -> bool:
        """Say that there is no node for a pod, once."""
        said = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/9 nodes are available: 1 node(s) were refused by a filter that nobody knows",
        }
        conditions = pod["status"].get("conditions") or []
        if any(one["type"] == said["type"] and one["reason"] == said["reason"] for one in conditions):
            return False
        status = {**pod["status"], "conditions": [said | {"lastTransitionTime": self.server.now()}]}
        status.pop("nominatedNodeName", None)  # nobody goes for it
        self.server.store(pod, {**pod, "status": status}, "scheduler", "status")
        return True

    def used(self) -> Counter:
        """What pods on nodes take, by node and resource."""
        used: Counter = Counter()
        for pod in self.server.all("pods"):
            if pod["spec"].get("nodeName") and not ended(pod):
                for name, amount in takes(pod).items():
                    used[pod["spec"]["nodeName"], name] += amount
        return used

    # --- kubelets ----------------------------------------------------------------------------------------------------

    def _kubelets(self) -> bool:
        nodes = {node["metadata"]["name"]: node for node in self.server.all("nodes")}
        bound = [pod for pod in self.server.all("pods") if pod["spec"].get("nodeName")]
        self.rng.shuffle(bound)
        return any(self._kubelet(pod, nodes.get(pod["spec"]["nodeName"])) for pod in bound)

    def _kubelet(self, pod: Json, node: Json | None) -> bool:  # noqa: PLR0911
        phase, meta = pod["status"]["phase"], pod["metadata"]
        if meta.get("deletionTimestamp") and meta.get("deletionGracePeriodSeconds") == 0 and ended(pod):
            return False  # a finalizer keeps it
        if node is None:
            self._end(pod, phase if ended(pod) else "Failed")  # the pod garbage collector
            return True
        if not ready(node):
            return False
        if meta.get("deletionTimestamp"):
            if meta["deletionGracePeriodSeconds"] > GRACE and meta["deletionTimestamp"] > self.server.now():
                return False  # it takes all the time that it has
            self._end(pod, phase if ended(pod) else "Failed")
            return True
        if phase == "Pending":
            started = {**RUNNING, **_reported(pod, asked_first(pod))}
            self.server.store(pod, {**pod, "status": started}, "kubelet", "status")
            return True
        runs_on = {ORDINAL, POD_INDEX, WORKER_INDEX} & meta.get("labels", {}).keys() and ENDS not in (
            meta.get("annotations") or {}
        )
        all_end = self.everything_ends and not runs_on
        ends = owner_of(pod) and (all_end or owner_of(pod) in self.finishing)
        if phase == "Running" and ends and (all_end or self.rng.random() < 0.05):
            fails = not self.everything_ends and self.rng.random() < 0.1
            self.server.store(
                pod, {**pod, "status": {"phase": "Failed" if fails else "Succeeded"}}, "kubelet", "status"
            )
            owner = self.server.get(POD_GROUPS.plural, (meta.get("labels") or {}).get(GROUP, ""), meta["namespace"])
            if owner is not None and owner["spec"].get("ends"):  # at once, or it would want a pod that is done
                self._count_succeeded(owner, self.pods_of(owner["metadata"]["uid"]))
            return True
        return phase == "Running" and resized(pod) and self._resize(pod, node)

    def _resize(self, pod: Json, node: Json) -> bool:
        """Give a pod what it asks for now, where its node has that much; say why not where it has not."""
        wanted, has, name = requests(pod["spec"])["cpu"], given(pod), node["metadata"]["name"]
        why, rest = "", [one for one in pod["status"]["conditions"] if one["type"] != "PodResizePending"]
        if wanted > allocatable(node)["cpu"]:
            why = "Infeasible"
        elif wanted - has > allocatable(node)["cpu"] - self._given_on(name):
            why = "Deferred"
        status = {**pod["status"], "conditions": rest}
        if why:
            status["conditions"] = [*rest, {"type": "PodResizePending", "status": "True", "reason": why}]
        status |= _reported(pod, has if why else wanted)
        if status == pod["status"]:
            return False
        self.server.store(pod, {**pod, "status": status}, "kubelet", "status")
        return True

    def _given_on(self, node: str) -> int:
        on = (pod for pod in self.server.all("pods") if pod["spec"].get("nodeName") == node and not ended(pod))
        return sum(given(pod) for pod in on)

    def _end(self, pod: Json, phase: str) -> None:
        pod = self.server.store(pod, {**pod, "status": {"phase": phase}}, "kubelet", "status")
        self.server.delete(pod, "kubelet", grace=0)

    # --- the garbage collector ------------------------------------------------------------------------------------

    @staticmethod
    def _of_group(obj: Json) -> list[str]:
        """Whoever deletes a pod group deletes its pods."""
        uid = owner_of(obj)
        return [uid] if obj["kind"] == "Pod" and uid.startswith(f"group-{NAMESPACE}/") else []

    def _fail_unscheduled(self) -> bool:
        """A pod that is deleted and is on no node never ends by itself: the pod garbage collector says that it failed.

        So `podReplacementPolicy: Failed` does not wait for it for ever.
        """
        for pod in self.server.all("pods"):
            meta = pod["metadata"]
            if meta.get("deletionTimestamp") and not pod["spec"].get("nodeName") and not ended(pod):
                self.server.store(pod, {**pod, "status": {"phase": "Failed"}}, "pod garbage collector", "status")
                return True
        return False

    def _collect(self) -> bool:
        if self._fail_unscheduled():
            return True
        leaving = {
            job["metadata"]["uid"]: job
            for job in self.server.all("jobs")
            if FOREGROUND in job["metadata"].get("finalizers", ())
        }
        uids = {obj["metadata"]["uid"] for obj in self.server.objects.values()} - set(leaving)
        for plural in ("jobs", "pods", "workloads"):
            for obj in self.server.all(plural):
                if any(ref.get("kind") == UNKNOWN for ref in obj["metadata"].get("ownerReferences") or ()):
                    continue  # nobody can tell whether that one exists
                leaving.pop(parent_of(obj), None)
                named = named_by(obj) or self._of_group(obj)
                if named and not uids & set(named) and not obj["metadata"].get("deletionTimestamp"):
                    self.server.delete(obj, "garbage collector")
                    return True
        for job in leaving.values():  # nothing depends on it any more
            self.server.change(job, lambda new: new["metadata"].update(finalizers=[]), "garbage collector")
            return True
        return False


def make(server: Server, pod: Json, who: str) -> bool:
    """Make a pod; False where it is refused."""
    try:
        server.create("pods", pod, who)
    except Refused:
        return False
    return True


def stale(pod: Json, template: Json) -> bool:
    """Whether a pod asks for something else than the template that it was made from does by now."""
    return asked_first(pod) != requests(template["spec"])["cpu"]


def asked_first(pod: Json) -> int:
    """The cpu that a pod asked for when it was made: it may have been resized in place since."""
    first = (pod["metadata"].get("annotations") or {}).get(RESIZED)
    return int(first) if first is not None else requests(pod["spec"])["cpu"]


def _reported(pod: Json, cpu: int) -> Json:
    """The status of a pod that its kubelet gave so much, resized or not (1.34 and later).

    The generation tells a resize that the kubelet has not seen yet; without it nobody knows of one before it is done.
    """
    amounts = {"cpu": str(cpu)}
    container = {"name": "c", "allocatedResources": amounts, "resources": {"requests": amounts}}
    return {"observedGeneration": pod["metadata"]["generation"], "containerStatuses": [container]}


def given(pod: Json) -> int:
    """The cpu that its kubelet gave a pod."""
    found = pod["status"].get("containerStatuses")
    return int(found[0]["allocatedResources"]["cpu"]) if found else asked_first(pod)


def takes(pod: Json) -> dict[str, int]:
    """What a pod takes of its node, as kube-scheduler counts it while a resize is under way."""
    wanted, has = requests(pod["spec"])["cpu"], given(pod)
    pending = [one for one in pod["status"].get("conditions") or () if one["type"] == "PodResizePending"]
    infeasible = any(one["reason"] == "Infeasible" for one in pending)
    return {"cpu": has if infeasible else max(wanted, has), "pods": 1}


def resized(pod: Json) -> bool:
    """Whether somebody resized a pod where it runs."""
    return RESIZED in (pod["metadata"].get("annotations") or {})


def requests(spec: Json) -> dict[str, int]:
    """What a pod takes: thousandths of cpu, and itself."""
    cpu = sum(int(one.get("resources", {}).get("requests", {}).get("cpu", 0)) for one in spec["containers"])
    return {"cpu": cpu, "pods": 1}


def allocatable(node: Json) -> dict[str, int]:
    return {name: int(amount) for name, amount in node["status"]["allocatable"].items()}


def ready(node: Json) -> bool:
    return any(found["type"] == "Ready" and found["status"] == "True" for found in node["status"]["conditions"])


def usable(node: Json) -> bool:
    return ready(node) and not node["spec"].get("unschedulable")


def _selected(pod: Json, node: Json) -> bool:
    labels, spec = node["metadata"]["labels"], pod["spec"]
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = (
        (spec.get("affinity") or {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    )
    terms: list[Any] = required["nodeSelectorTerms"] if required else []
    return not terms or any(
        all(node["metadata"]["name"] in field["values"] for field in term.get("matchFields") or ()) for term in terms
    )


def _counts(pod: Json) -> bool:
    """Whether the Job controller counts it as ended: it is, or it went before it ran."""
    meta = pod["metadata"]
    return ended(pod) or bool(meta.get("deletionTimestamp") and meta.get("deletionGracePeriodSeconds") == 0)


def _rank(pod: Json) -> int:
    """Its index; one that has none, as somebody took it away, is nobody's."""
    return int((pod["metadata"].get("labels") or {}).get(RANK, -1))


def _ranks(text: str) -> set[int]:
    return {int(part) for part in text.split(",") if part}


def _not_needed(live: list[Json], completions: int) -> list[Json]:
    """Pods of ranks that are out of range, or that another pod has."""
    seen: set[int] = set()
    found = []
    for pod in live:
        rank = _rank(pod)
        if not 0 <= rank < completions or rank in seen:
            found.append(pod)
        seen.add(rank)
    return found
