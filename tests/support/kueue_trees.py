"""Streams of `support.tree_streams` given to a real Kueue: its own kinds on a real API server, its own process.

The workloads are bare Workload objects without jobs. What a job does for an evicted one is done here, as
``FinishEvictionForWorkloads`` of its own integration tests does it (0.19.2, test/util/util.go): the reservation goes,
and the workload waits again.
"""

import asyncio
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from support.kueue import condition, set_condition, true
from support.tree_streams import FLAVORS, NAMESPACE, Answer, Move, Seen, Stream, Submit, resolved

from benchmarks.harness import kueue
from clock import SYSTEM
from kube.client import Client
from kube.errors import Conflict
from kube.informer import Event, EventKind, Informer
from kube.objects import Object
from kube.resources import Resource
from localcluster.process import ControlPlaneProcess
from queueing.model import ClusterQueue, Cohort, ResourceGroup

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
COHORTS = Resource(GROUP, VERSION, "cohorts", "Cohort", namespaced=False)
WORKLOADS = Resource(GROUP, VERSION, "workloads", "Workload", namespaced=True)
# Of a tenth of a second at least, in which nothing changes: then everything is at rest. Those who are woken come back
# within a second (0.19.2, pkg/cache/queue: requeueBatchPeriod), or within two where the status of a queue wakes them
# (pkg/controller/core: UpdatesBatchPeriod, NotifyClusterQueueUpdate); on a loaded machine ticks are longer, as all else
# is. What comes later all the same is part of the next step (`support.kueue_rules.Event`).
QUIET_TICKS = 30
TICK_SECONDS = 0.1
PATIENCE_SECONDS = 300.0
ENDLESS = 6  # a workload that is evicted more often in one step is so without end
AT_ONCE = 16
COHORT_KNOWN = "Cohort is being created or updated"
Json = dict[str, Any]


class SeenWorkload(Object, frozen=True):
    """A Workload as its watch gives it."""

    status: dict[str, Any] = {}  # noqa: RUF012  (a struct copies it)


class KueueTrees:
    """Some streams at once on one API server with Kueue beside it, a process that runs already."""

    def __init__(self, process: ControlPlaneProcess, client: Client, streams: Sequence[Stream]) -> None:
        self._process, self._client, self._streams = process, client, streams
        self._informer = Informer(client, WORKLOADS, SeenWorkload, namespace=NAMESPACE, on_event=self._on_event)
        self._ticks = 0
        self._submitted: list[str] = []  # in this step
        self._changed: dict[str, int] = {}  # at which tick something was last seen to change, by stream
        self._endless: set[str] = set()  # streams in which workloads evicted each other without end
        self._moves: defaultdict[str, list[Move]] = defaultdict(list)
        self._names: dict[str, str] = {}  # of workloads, by uid
        self._pending: asyncio.Queue[str] = asyncio.Queue()
        self._room = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> list[Answer]:
        """The events of each stream, with the names of those that end ("": none could), and what Kueue makes of them.

        A stream in which workloads evict each other without end has no more steps: its evictions are left undone.
        """
        for resource, body in (*_flavors(), *chain.from_iterable(map(_objects, self._streams))):
            await kueue.create_object(self._process, self._client, resource, body)
        tasks = [asyncio.ensure_future(self._informer.run()), asyncio.ensure_future(self._finish_evictions())]
        made: list[Answer] = [[] for _ in self._streams]
        try:
            await self._informer.wait_synced()
            await self._wait_known()
            admitted = self._admitted()
            for at in range(max(len(stream.steps) for stream in self._streams)):
                self._moves.clear()
                self._submitted.clear()
                steps = {
                    i: resolved(stream.steps[at], admitted[stream.name])
                    for i, stream in enumerate(self._streams)
                    if at < len(stream.steps) and stream.name not in self._endless
                }
                await asyncio.gather(*(self._play(event) for event in steps.values()))
                await self._settle()
                admitted = self._admitted()
                for i, event in steps.items():
                    name = self._streams[i].name
                    if name not in self._endless:
                        made[i].append((event, Seen(frozenset(admitted[name]), tuple(self._moves[name]))))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return made

    async def _wait_known(self) -> None:
        """Until Kueue counts with all queues and cohorts: a workload that comes before is judged without their quota.

        Nothing in the API tells of a cohort (0.19.2, pkg/controller/core/cohort_controller.go: its status is written
        with fair sharing alone); the log does, at the level that `benchmarks.harness.kueue` asks for.
        """
        queues = {queue.name for stream in self._streams for queue in stream.queues}
        cohorts = {cohort.name for stream in self._streams for cohort in stream.cohorts}
        deadline = SYSTEM.monotonic() + PATIENCE_SECONDS
        while queues or cohorts:
            assert SYSTEM.monotonic() < deadline, f"Kueue does not know {sorted(queues | cohorts)}"
            await asyncio.sleep(TICK_SECONDS)
            lines = self._process.log.read_text().splitlines()
            cohorts -= {json.loads(line)["name"] for line in lines if COHORT_KNOWN in line}
            local = await self._client.list(kueue.LOCAL_QUEUES, NAMESPACE)
            queues -= {queue["metadata"]["name"] for queue in local if true(queue, "Active")}

    async def _play(self, event: Submit | str) -> None:
        async with self._room:
            if isinstance(event, Submit):
                await self._client.create(WORKLOADS, _workload(event))
                self._submitted.append(event.name)
            elif event:
                await self._change(event, _finish)

    async def _change(self, name: str, change: Callable[[Json], bool]) -> None:
        while True:
            workload = await self._client.get(WORKLOADS, name, NAMESPACE)
            if not change(workload):
                return
            # Kueue may have written its status meanwhile.
            with suppress(Conflict):
                await self._client.replace(WORKLOADS, workload, NAMESPACE, subresource="status")
                return

    async def _finish_evictions(self) -> None:
        while True:
            name = await self._pending.get()
            if name.rpartition("-")[0] in self._endless:
                continue
            await self._change(name, _unset_reservation)

    def _on_event(self, event: Event[SeenWorkload]) -> None:
        name = event.key.rpartition("/")[2]
        prefix = name.rpartition("-")[0]
        self._changed[prefix] = self._ticks
        if event.kind is EventKind.DELETED or event.new is None:
            return
        self._names[event.new.metadata.uid] = name
        old, new = {} if event.old is None else event.old.status, event.new.status
        # Several changes may come as one.
        if _holds(new) and not _holds(old):
            self._moves[prefix].append(Move(name, _flavor(new)))
        if _leaves(new) and not _leaves(old):
            preempted = condition({"status": new}, "Preempted")
            taker = re.search(r"\(UID: ([^,)]*)", preempted.get("message", ""))
            named = "" if taker is None else self._names.get(taker.group(1), "")
            self._moves[prefix].append(Move(name, preempted.get("reason", ""), named or "?"))
            self._pending.put_nowait(name)

    async def _settle(self) -> None:
        deadline = SYSTEM.monotonic() + PATIENCE_SECONDS
        for _ in range(QUIET_TICKS):
            await self._wait_tick()
        while restless := self._restless():
            if all(map(self._loops, restless)):
                self._endless |= restless
                return
            assert SYSTEM.monotonic() < deadline, f"no rest in {sorted(restless)}"
            await self._wait_tick()

    async def _wait_tick(self) -> None:
        await asyncio.sleep(TICK_SECONDS)
        self._ticks += 1

    def _loops(self, name: str) -> bool:
        evicted = Counter(move.name for move in self._moves[name] if move.taker)
        return max(evicted.values(), default=0) > ENDLESS

    def _restless(self) -> set[str]:
        found = {name for name, at in self._changed.items() if at > self._ticks - QUIET_TICKS}
        # One of which Kueue has said nothing yet was not looked at, however long nothing has changed.
        found |= {name.rpartition("-")[0] for name in self._submitted if not self._is_judged(name)}
        return found - self._endless

    def _is_judged(self, name: str) -> bool:
        known = self._informer.store.get(f"{NAMESPACE}/{name}")
        return known is not None and bool(condition({"status": known.status}, "QuotaReserved"))

    def _admitted(self) -> dict[str, set[tuple[str, str]]]:
        found: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        for each in self._informer.store.values():
            if _holds(each.status):
                found[each.metadata.name.rpartition("-")[0]].add((each.metadata.name, _flavor(each.status)))
        return found


def digest_of(stream: Stream) -> str:
    """Of all that Kueue is given of a stream."""
    bodies = [body for _, body in _objects(stream)]
    events = [_workload(event) if isinstance(event, Submit) else event.at for event in stream.steps]
    return hashlib.sha256(json.dumps([stream.fair, bodies, events]).encode()).hexdigest()[:12]


def _flavors() -> Iterator[tuple[Resource, Json]]:
    for flavor in FLAVORS:
        yield kueue.FLAVORS, _body(kueue.FLAVORS, flavor, {})


def _objects(stream: Stream) -> Iterator[tuple[Resource, Json]]:
    for cohort in stream.cohorts:
        yield COHORTS, _body(COHORTS, cohort.name, _cohort_spec(cohort))
    for queue in stream.queues:
        yield kueue.CLUSTER_QUEUES, _body(kueue.CLUSTER_QUEUES, queue.name, _queue_spec(queue))
        yield kueue.LOCAL_QUEUES, _body(kueue.LOCAL_QUEUES, queue.name, {"clusterQueue": queue.name})


def _leaves(status: Mapping[str, Any]) -> bool:
    wrapped = {"status": status}
    return true(wrapped, "Evicted") and true(wrapped, "QuotaReserved")


def _holds(status: Mapping[str, Any]) -> bool:
    wrapped = {"status": status}
    return true(wrapped, "QuotaReserved") and not true(wrapped, "Finished")


def _flavor(status: Mapping[str, Any]) -> str:
    (assigned,) = status["admission"]["podSetAssignments"]
    return next(iter(assigned["flavors"].values()))


def _finish(workload: Json) -> bool:
    return set_condition(workload, "Finished", True, "JobFinished", "it ended")


def _unset_reservation(workload: Json) -> bool:
    if not _leaves(workload["status"]):
        return False
    set_condition(workload, "QuotaReserved", False, "Pending", "by the test")
    set_condition(workload, "Admitted", False, "NoReservation", "The workload has no reservation")
    workload["status"].pop("admission", None)
    return True


def _body(resource: Resource, name: str, spec: Json) -> Json:
    metadata = {"name": name, **({"namespace": NAMESPACE} if resource.namespaced else {})}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}


def _workload(event: Submit) -> Json:
    requests = {key: str(amount) for key, amount in event.units.items()}
    container = {"name": "c", "image": "none", "resources": {"requests": requests, "limits": requests}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    pod_sets = [{"name": "main", "count": 1, "template": template}]
    return _body(WORKLOADS, event.name, {"queueName": event.queue, "priority": event.priority, "podSets": pod_sets})


def _cohort_spec(cohort: Cohort) -> Json:
    spec: Json = {"resourceGroups": _groups(cohort.groups), "fairSharing": _weight(cohort.weight)}
    return spec | ({"parentName": cohort.parent} if cohort.parent else {})


def _queue_spec(queue: ClusterQueue) -> Json:
    rules = queue.preemption
    borrowing: Json = {"policy": "LowerPriority" if rules.borrowing else "Never"}
    if rules.threshold is not None:
        borrowing["maxPriorityThreshold"] = rules.threshold
    return {
        "namespaceSelector": {},
        "cohortName": queue.cohort,
        "queueingStrategy": "BestEffortFIFO",
        "resourceGroups": _groups(queue.groups),
        "fairSharing": _weight(queue.weight),
        "flavorFungibility": {
            "whenCanBorrow": "MayStopSearch" if queue.borrow_first else "TryNextFlavor",
            "whenCanPreempt": "MayStopSearch" if queue.preempt_first else "TryNextFlavor",
        },
        "preemption": {
            "withinClusterQueue": rules.within.value,
            "reclaimWithinCohort": rules.reclaim.value,
            "borrowWithinCohort": borrowing,
        },
    }


def _weight(thousandths: int) -> Json:
    return {"weight": f"{thousandths}m"}


def _groups(groups: Sequence[ResourceGroup]) -> list[Json]:
    return [
        {
            "coveredResources": list(group.resources),
            "flavors": [
                {
                    "name": quotas.flavor,
                    "resources": [
                        {
                            "name": name,
                            "nominalQuota": str(quota.nominal),
                            **({} if quota.borrowing is None else {"borrowingLimit": str(quota.borrowing)}),
                            **({} if quota.lending is None else {"lendingLimit": str(quota.lending)}),
                        }
                        for name, quota in quotas.resources.items()
                    ],
                }
                for quotas in group.flavors
            ],
        }
        for group in groups
    ]
