"""The queue of one ClusterQueue as Kueue 0.19.2 keeps it in memory: plain data, ``now`` is an argument (epoch seconds).

Each method names the function it follows, of pkg/cache/queue/cluster_queue.go where nothing else is said. Left out:
cohorts, fair sharing, preemptors that stay in front (``preemptorWorkload``), and flavors that are still to be tried.

What matters to a check: one that was evicted comes back by itself, at once, while those that found no quota lie in
``inadmissible`` until they are woken, `BATCH` seconds after quota was given back. With StrictFIFO nobody lies there;
and one of the same shape as one that found no quota waits with it.
"""

import json
from datetime import datetime
from typing import Any

BATCH = 1.0  # requeueBatchPeriod in inadmissible_workloads.go
STRICT = "StrictFIFO"
Json = dict[str, Any]


def seconds(text: str) -> float:
    """Epoch seconds of a time as the API writes it."""
    return datetime.fromisoformat(text).timestamp()


def condition(obj: Json, kind: str) -> Json:
    """The condition; {} where it is not there."""
    return next((c for c in obj.get("status", {}).get("conditions", []) if c["type"] == kind), {})


def true(obj: Json, kind: str) -> bool:
    return condition(obj, kind).get("status") == "True"


def requeue_at(workload: Json) -> float:
    """When it may come back; 0 where nothing is said."""
    at = (workload.get("status", {}).get("requeueState") or {}).get("requeueAt")
    return seconds(at) if at else 0.0


def order(workload: Json) -> tuple[int, float, str]:
    """baseCompareFunc, with GetQueueOrderTimestamp of pkg/workload/workload.go."""
    evicted, at = condition(workload, "Evicted"), workload["metadata"]["creationTimestamp"]
    if evicted.get("status") == "True" and evicted["reason"] in {"AdmissionCheck", "PodsReadyTimeout"}:
        at = evicted["lastTransitionTime"]
    return -workload["spec"].get("priority", 0), seconds(at), workload["metadata"]["uid"]


def shape(workload: Json) -> str:
    """computeSchedulingHash of pkg/workload/workload.go: what is alike for the scheduler."""
    pod_sets = [
        {**pod_set, "template": pod_set.get("template", {}).get("spec")}
        for pod_set in workload["spec"].get("podSets", [])
    ]
    return json.dumps([workload["spec"].get("priority", 0), pod_sets], sort_keys=True)


def backoff_over(workload: Json, now: float) -> bool:
    """backoffWaitingTimeExpired."""
    return condition(workload, "Requeued").get("status") != "False" and requeue_at(workload) <= now


class Queue:
    """Workloads by uid: in ``heap``, in ``inadmissible``, or (`inflight`) being looked at by the scheduler."""

    def __init__(self, strategy: str = "BestEffortFIFO", batch: float = BATCH) -> None:
        self.strategy, self._batch = strategy, batch
        self.heap: dict[str, Json] = {}
        self.inadmissible: dict[str, Json] = {}
        self.inflight: str | None = None
        self._woken_at: float | None = None
        self._pops, self._woken_in = 0, -1  # popCycle, queueInadmissibleCycle
        self._moved: set[str] = set()  # hashToBulkMoveReason: shapes of which one found no quota since the last waking

    def push(self, workload: Json, now: float) -> None:
        """PushOrUpdate."""
        uid = workload["metadata"]["uid"]
        if uid == self.inflight:
            return
        if (old := self.inadmissible.get(uid)) is not None:
            same = all(condition(old, kind) == condition(workload, kind) for kind in ("Evicted", "Requeued"))
            if same and old["spec"] == workload["spec"]:
                self.inadmissible[uid] = workload
                return
            del self.inadmissible[uid]
        if uid not in self.heap and (not backoff_over(workload, now) or shape(workload) in self._moved):
            self.inadmissible[uid] = workload
        else:
            self.heap[uid] = workload

    def pop(self) -> Json | None:
        """Pop."""
        self._pops += 1
        if not self.heap:
            return None
        self.inflight = min(self.heap, key=lambda uid: order(self.heap[uid]))
        return self.heap.pop(self.inflight)

    def requeue(self, workload: Json, now: float, *, no_fit: bool = True, failed: bool = False) -> None:
        """RequeueIfNotPresent: one that was not admitted. ``no_fit``: for lack of quota; ``failed``: in the write."""
        uid, self.inflight = workload["metadata"]["uid"], None
        immediate = failed or self.strategy == STRICT
        if backoff_over(workload, now) and (immediate or self._woken_in >= self._pops):
            self.heap[uid] = self.inadmissible.pop(uid, workload)
        elif uid not in self.heap and uid not in self.inadmissible:
            self.inadmissible[uid] = workload
            if no_fit and self.strategy != STRICT:
                self._move(shape(workload))

    def _move(self, alike: str) -> None:
        """handleInadmissibleHash."""
        self._moved.add(alike)
        for uid in [uid for uid, each in self.heap.items() if shape(each) == alike]:
            self.inadmissible[uid] = self.heap.pop(uid)

    def admitted(self) -> None:
        """The one that is being looked at has its quota: it is in the cache from now on."""
        self.inflight = None

    def delete(self, uid: str) -> None:
        """Delete."""
        self.heap.pop(uid, None)
        self.inadmissible.pop(uid, None)
        self.inflight = None if self.inflight == uid else self.inflight

    def wake_later(self, now: float) -> None:
        """NotifyRetryInadmissible: the first one counts, as in the delaying queue of workqueueRequeuer."""
        if self._woken_at is None:
            self._woken_at = now + self._batch

    def wake(self, now: float) -> None:
        """queueInadmissibleWorkloads, where it is time."""
        if self._woken_at is None or now < self._woken_at:
            return
        self._woken_at, self._woken_in, self._moved = None, self._pops, set()
        for uid, workload in tuple(self.inadmissible.items()):
            if backoff_over(workload, now):
                self.heap[uid] = self.inadmissible.pop(uid)
