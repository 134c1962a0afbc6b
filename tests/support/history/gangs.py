"""Gangs that end pod by pod, another one of their queue that waits for the whole of what they leave, and borrowers.

In a third of the histories the two queues are of one cohort, and each takes back what the other one borrows. A few
times a gang comes that wants all that is free of a rack; then another one as large, and single pods by the other queue.
Then the first one goes: its Job is deleted, it is told to go, or its pods are done one after the other.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from support.history.actors import Cluster, allocatable, usable
from support.history.server import GATE, NAMESPACE, QUEUE, Json, Server, container, make_object, owner_of

from kube import resources

REQUEST = {"kueue.x-k8s.io/require-topology": "rack"}
COHORT = {"cohortName": "all", "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}}
MOST = 6  # pods of a gang
ROUNDS = 4
LASTS = 60.0  # seconds in which these begin
SOON = 8.0  # seconds between what happens in one


class Gangs:
    """See the module's rules. Its chances are its own, so that histories without it stay what they are."""

    def __init__(self, server: Server, cluster: Cluster, seed: int, note: Callable[..., None]) -> None:
        self.server = server
        self.cluster = cluster
        self.rng = random.Random(f"gangs {seed}")
        self.note = note
        self.there = self.rng.random() < 1 / 3
        self._numbers = 0

    def begin(self) -> None:
        """The queues lend to each other from now on, and gangs come now and then."""
        if not self.there:
            return
        for queue in list(self.server.all("clusterqueues")):
            self.server.change(queue, lambda new: new["spec"].update(COHORT), "admin")
        for _ in range(ROUNDS):
            self.server.loop.call_later(self.rng.random() * LASTS, self._come)

    def rest(self) -> None:
        """No more of them come or go."""
        self.there = False

    def _soon(self, what: Callable[..., None], *args: Any) -> None:
        self.server.loop.call_later(self.rng.random() * SOON, self._unless_at_rest, what, *args)

    def _unless_at_rest(self, what: Callable[..., None], *args: Any) -> None:
        if self.there:
            what(*args)

    def _come(self) -> None:
        """A gang as large as what is free of a rack, and the quota of its queue is for that; the others follow."""
        free, used = dict[str, int](), self.cluster.used()
        for node in self.server.all("nodes"):
            name, rack = node["metadata"]["name"], node["metadata"]["labels"]["rack"]
            left = min(allocatable(node)[one] - used[name, one] for one in ("cpu", "pods"))
            free[rack] = free.get(rack, 0) + (left if usable(node) else 0)
        if not self.there or (size := min(MOST, max(free.values(), default=0))) < 2:
            return
        mine, other = self.rng.sample(("a", "b"), 2)
        self._set_quota(mine, size)
        self._set_quota(other, self.rng.choice((0, 1)))
        gang = self._submit(mine, size)
        self._soon(self._follow, gang, mine, other, size)

    def _set_quota(self, queue: str, cpu: int) -> None:
        found = self.server.get("clusterqueues", f"cq-{queue}")

        def mutate(new: Json) -> None:
            new["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = str(cpu)

        if found is not None:
            self.server.change(found, mutate, "admin")

    def _submit(self, queue: str, count: int) -> str:
        """A Job of so many pods in one rack; returns its name."""
        self._numbers += 1
        pods = {"containers": [container(1)], "schedulingGates": [{"name": GATE}], "restartPolicy": "Never"}
        spec = {
            "parallelism": count,
            "completions": count,
            "completionMode": "Indexed",
            "suspend": True,
            "template": {"metadata": {"annotations": REQUEST}, "spec": pods},
        }
        name = f"gang{self._numbers}"
        job = make_object(resources.JOBS, name, spec, labels={QUEUE: queue}, annotations={})
        job["metadata"]["namespace"] = NAMESPACE
        self.server.create("jobs", job, "user")
        return name

    def _follow(self, gang: str, mine: str, other: str, size: int) -> None:
        self._submit(mine, size)
        for _ in range(size):
            self._soon(partial(self._submit, other, 1))
        self._soon(self.rng.choice((self._delete, self._evict, self._end, self._end)), gang)

    def _delete(self, name: str) -> None:
        if job := self.server.get("jobs", name, NAMESPACE):
            self.server.delete(job, "user")

    def _evict(self, name: str) -> None:
        """Its Workload is made inactive: its pods are told to go."""
        job = self.server.get("jobs", name, NAMESPACE)
        for workload in list(self.server.within("workloads", NAMESPACE)):
            if job is not None and owner_of(workload) == job["metadata"]["uid"]:
                self.server.change(workload, lambda new: new["spec"].update(active=False), "user")

    def _end(self, name: str) -> None:
        """Its pods are done one after the other."""
        job, at = self.server.get("jobs", name, NAMESPACE), 0.0
        for pod in self.cluster.pods_of(job["metadata"]["uid"]) if job is not None else ():
            self.server.loop.call_later(at, self._done, pod["metadata"]["name"], pod["metadata"]["uid"])
            at += self.rng.random() * SOON / 2

    def _done(self, name: str, uid: str) -> None:
        pod = self.server.get("pods", name, NAMESPACE)
        if pod is not None and pod["metadata"]["uid"] == uid and pod["status"]["phase"] == "Running":
            self.server.store(pod, {**pod, "status": {"phase": "Succeeded"}}, "kubelet", "status")
