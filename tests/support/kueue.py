"""A small stand-in for Kueue 0.19.2, step by step as its sources do: quota of flavors, checks, evictions, its queues.

The functions that it follows (a method here names its own):

- pkg/controller/core/workload_controller.go: ``Create``, ``Update``, ``Delete`` (`Kueue._event`) move Workloads between
  queue and cache; ``Reconcile`` (`_reconcile`) waits for requeueAt before it looks at anything else, so a check that
  says Retry with requeueAfterSeconds keeps its quota until then; one that says Retry without it is evicted at once; one
  that says Rejected is deactivated (DeactivationTarget, then spec.active).
- pkg/workload/evict/evict.go: ``prepareForEviction`` (`_evict`) resets every check to Pending and counts its retries.
- pkg/controller/jobframework/reconciler.go: ``ReconcileGenericJob`` (`_reconcile_job`) stops and restores an evicted
  job, gives its quota back when no pod is active, and starts an admitted one with what flavors and podSetUpdates add.
- pkg/controller/jobs/job/job_controller.go: ``Stop``, ``RunWithPodSetsInfo``, ``RestorePodSetsInfo``.
- pkg/scheduler/scheduler.go: ``schedule`` (`_schedule`), ``nominate``, ``admit`` and ``requeueAndUpdate``; their writes
  name no version of the Workload.
- pkg/workload/patching/patching.go: ``PatchAdmissionStatus`` (`_patch`): the status is applied, by force, under the
  field manager ``kueue-admission``, all checks included; ``reconcileSyncAdmissionChecks`` alone updates it.
- pkg/cache/queue: `support.kueue_queue`.

What follows for a check is shown in tests/integration/test_kueue_stand_in.py: who is evicted by Retry gets its quota
back before anybody else is woken, unless its queue is StrictFIFO; a delay that is told after the eviction keeps it
away; and one that was deactivated by Rejected does not come back by ``spec.active: true``, since only the reason
``Deactivated`` makes it requeued.

With ``version="v1beta1"`` it is Kueue 0.14, the last one without requeueAfterSeconds: Retry evicts at once whatever
requeueState says, and waking has no delay.

It looks at everything again and again, so it can be stopped and started at any moment.
"""

import asyncio
import copy
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Self

from support.kueue_kinds import resource
from support.kueue_queue import BATCH, STRICT, Queue, condition, requeue_at, seconds, true

from kube.client import Client
from kube.errors import BadRequest, Conflict, Forbidden, Invalid, KubeError, NotFound
from kube.resources import JOBS
from ungater.model.kueue_objects import GROUP

MANAGER = "kueue-admission"
QUEUE_NAME = f"{GROUP}/queue-name"
PRIORITY = f"{GROUP}/priority-class"  # a number here, where Kueue has the name of a WorkloadPriorityClass
MANAGED = (  # admissionManagedConditions in patching.go, in its order
    "QuotaReserved",
    "Evicted",
    "Admitted",
    "Preempted",
    "Requeued",
    "DeactivationTarget",
    "Finished",
)
PAUSE = 0.05
Json = dict[str, Any]


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    return stamp(time.time())


def merge(ours: Json | None, others: Json | None, what: str) -> Json:
    """PodSetInfo.Merge: both; what is in both must be the same."""
    ours, others = ours or {}, others or {}
    clash = {key for key in ours.keys() & others.keys() if ours[key] != others[key]}
    assert not clash, f"invalid admission check PodSetUpdate: conflict for {what}: {clash}"
    return {**others, **ours}


def set_condition(workload: Json, kind: str, value: bool, reason: str, message: str = "") -> bool:
    """SetStatusCondition: whether anything changed."""
    conditions = workload.setdefault("status", {}).setdefault("conditions", [])
    old = condition(workload, kind)
    new = {"type": kind, "status": str(value), "reason": reason, "message": message[:32_768]}
    new["observedGeneration"] = workload["metadata"].get("generation", 0)
    kept = old.get("lastTransitionTime") if old.get("status") == str(value) else None
    new["lastTransitionTime"] = kept or now()
    if new == old:
        return False
    conditions[:] = [*(c for c in conditions if c["type"] != kind), new]
    return True


def status_of(workload: Json) -> str:
    """Status in pkg/workload/workload.go."""
    for kind in ("Finished", "Admitted", "QuotaReserved"):
        if true(workload, kind):
            return kind
    return "Pending"


def active(workload: Json) -> bool:
    return workload["spec"].get("active", True)


def states(workload: Json) -> list[Json]:
    return workload.get("status", {}).get("admissionChecks", [])


class Kueue:
    """``async with Kueue(client, namespace) as kueue``. ``broken`` is what went wrong inside of it."""

    def __init__(self, client: Client, namespace: str, version: str = "v1beta2") -> None:
        self.client, self.namespace = client, namespace
        self.kinds = {
            kind: resource(kind, version)
            for kind in ("AdmissionCheck", "ResourceFlavor", "Topology", "ClusterQueue", "LocalQueue", "Workload")
        }
        self.workload_kind = self.kinds["Workload"]
        self.broken: list[BaseException] = []
        self.places_itself: set[str] = set()  # flavors whose pods get a topologyAssignment
        self._delays = version != "v1beta1"
        self._queues: dict[str, Queue] = {}  # by name of a ClusterQueue
        self._held: dict[str, Json] = {}  # the cache: Workloads that have quota, by uid
        self._seen: dict[str, Json] = {}  # by uid, as they were seen last
        self._clusters: dict[str, Json] = {}
        self._of_local: dict[str, str] = {}  # ClusterQueues by LocalQueue
        self._stopped: set[str] = set()  # LocalQueues
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.step()
            except (Invalid, BadRequest, Forbidden, AssertionError) as error:
                self.broken.append(error)  # shown by the test
            except KubeError:
                pass  # it changed meanwhile, or the API server is busy: the next look sees how it is
            except Exception as error:  # noqa: BLE001 - a mistake in this file
                self.broken.append(error)
            await asyncio.sleep(PAUSE)

    # --- what tests ask and do ---------------------------------------------------------------------------------------

    async def make(self, kind: str, name: str, spec: Json) -> Json:
        found = self.kinds[kind]
        body = {"apiVersion": found.api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        return await self.client.create(found, body, self.namespace if found.namespaced else None)

    async def workload(self, job: str) -> Json:
        """The Workload of the Job; {} where there is none yet."""
        for found in await self.client.list(self.workload_kind, self.namespace):
            if any(ref["name"] == job for ref in found["metadata"].get("ownerReferences", [])):
                return found
        return {}

    async def check(self, job: str, name: str) -> Json:
        return next((check for check in states(await self.workload(job)) if check["name"] == name), {})

    async def evict(self, job: str, reason: str = "Preempted") -> None:
        """Begin to evict, as a preemption does: the rest follows by itself."""
        while True:
            workload = await self.workload(job)
            try:
                await self._evict(workload, reason, "")
            except Conflict:
                continue
            return

    # --- one look at everything --------------------------------------------------------------------------------------

    async def step(self) -> None:
        jobs = await self.client.list(JOBS, self.namespace, label_selector=QUEUE_NAME)
        locals_ = await self.client.list(self.kinds["LocalQueue"], self.namespace)
        self._of_local = {queue["metadata"]["name"]: queue["spec"]["clusterQueue"] for queue in locals_}
        self._stopped = {q["metadata"]["name"] for q in locals_ if q["spec"].get("stopPolicy", "None") != "None"}
        self._see_clusters({q["metadata"]["name"]: q for q in await self.client.list(self.kinds["ClusterQueue"])})
        # After the queues: a Workload whose queue goes on is seen as it is then, not as it was while the queue was
        # stopped, since what the scheduler writes over it names no version.
        found = await self.client.list(self.workload_kind, self.namespace)
        workloads = {ref["uid"]: each for each in found for ref in each["metadata"].get("ownerReferences", [])}
        self._see(found)
        for job in sorted(jobs, key=lambda job: (job["metadata"]["creationTimestamp"], job["metadata"]["name"])):
            try:
                workload = workloads.get(job["metadata"]["uid"])
                if workload is None:
                    await self._create(job)
                elif not true(workload, "Finished"):
                    await self._reconcile_job(job, workload) or await self._reconcile(workload)
            except (Conflict, NotFound):
                continue
        await self._schedule()

    def _see_clusters(self, clusters: dict[str, Json]) -> None:
        for name in set(self._of_local.values()) & clusters.keys():
            spec, batch = clusters[name]["spec"], BATCH if self._delays else 0.0
            queue = self._queues.setdefault(name, Queue(spec.get("queueingStrategy", ""), batch))
            if self._clusters.get(name, clusters[name])["spec"] != spec:
                queue.wake_later(time.time())  # UpdateClusterQueue in manager.go
        self._clusters = clusters

    def _queue(self, workload: Json) -> Queue | None:
        return self._queues.get(self._of_local.get(workload["spec"]["queueName"], ""))

    def _see(self, found: list[Json]) -> None:
        """The informer: what was created, changed and deleted since the last look."""
        at, listed = time.time(), {each["metadata"]["uid"]: each for each in found}
        for uid in self._seen.keys() - listed.keys():
            gone = self._seen.pop(uid)
            self._held.pop(uid, None)
            if (queue := self._queue(gone)) is not None:
                queue.wake_later(at)
                queue.delete(uid)
        for uid, new in listed.items():
            queue, old = self._queue(new), self._seen.get(uid)
            if queue is not None and (
                not old or old["metadata"]["resourceVersion"] != new["metadata"]["resourceVersion"]
            ):
                self._seen[uid] = new
                self._event(old, new, queue, at)
            if queue is not None and new["spec"]["queueName"] in self._stopped:  # DeleteLocalQueue in manager.go
                queue.delete(uid)
                self._seen.pop(uid)

    def _event(self, old: Json | None, new: Json, queue: Queue, at: float) -> None:
        """Create and Update of WorkloadReconciler."""
        uid, after = new["metadata"]["uid"], status_of(new)
        before = status_of(old) if old is not None else after
        if after == "Finished" or not active(new):
            queue.delete(uid)
            self._held.pop(uid, None)
            queue.wake_later(at)
        elif before == after == "Pending":
            queue.push(new, at)
        elif after != "Pending":
            queue.delete(uid)
            self._held[uid] = new
        else:
            self._held.pop(uid, None)
            queue.wake_later(at)
            if requeue_at(new) <= at:
                queue.push(new, at)

    # --- Workloads ---------------------------------------------------------------------------------------------------

    async def _reconcile(self, workload: Json) -> bool:
        """Reconcile of WorkloadReconciler: at most one write; whether there was one."""
        at, wanted = time.time(), copy.deepcopy(workload)
        if (until := _retry_time(workload)) > max(at, requeue_at(workload)) and self._delays:
            wanted["status"]["requeueState"] = {**wanted["status"].get("requeueState", {}), "requeueAt": stamp(until)}
            return await self._patch(wanted)
        done = await (self._requeued(wanted, at) if active(workload) else self._deactivated(wanted))
        return await self._admit(workload) if done is None else done

    async def _admit(self, workload: Json) -> bool:
        """The rest of Reconcile: checks that are missing, the condition Admitted, evictions by checks."""
        wanted = copy.deepcopy(workload)
        cluster = self._clusters[self._of_local[workload["spec"]["queueName"]]]
        if (checks := _synced(workload, cluster)) is not None:
            wanted["status"] = {**wanted.get("status", {}), "admissionChecks": checks}
            await self.client.replace(self.workload_kind, wanted, self.namespace, subresource="status")
            return True
        if not true(workload, "Admitted") and _sync_admitted(wanted):
            return await self._patch(wanted)
        if not true(workload, "QuotaReserved"):
            return False
        if await self._by_checks(wanted):
            return True
        if workload["spec"]["queueName"] not in self._stopped or true(workload, "Admitted"):
            return False
        _unset_quota(
            wanted, f"LocalQueue {workload['spec']['queueName']} is stopped"
        )  # reconcileOnLocalQueueActiveState
        return await self._patch(wanted)

    async def _requeued(self, wanted: Json, at: float) -> bool | None:
        """The part of Reconcile about requeueAt and the condition Requeued; None: it goes on to the rest."""
        state, until = wanted.get("status", {}).get("requeueState") or {}, requeue_at(wanted)
        if true(wanted, "DeactivationTarget"):
            wanted["spec"]["active"] = False
            return bool(await self.client.replace(self.workload_kind, wanted, self.namespace))
        if until > at and self._delays:
            return False
        if until and self._delays and status_of(wanted) == "Pending":
            del state["requeueAt"]
            if (queue := self._queue(wanted)) is not None:
                queue.push(wanted, at)
            return await self._patch(wanted)
        requeued = condition(wanted, "Requeued")
        why = requeued.get("reason") if requeued.get("status") == "False" else None
        if why == "Deactivated":  # and no other reason of that kind
            set_condition(wanted, "Requeued", True, "Reactivated", "The workload was reactivated")
        elif why in {"AdmissionCheck", "PodsReadyTimeout"} and until <= at:
            state.pop("requeueAt", None)
            set_condition(wanted, "Requeued", True, "BackoffFinished", "The workload backoff was finished")
        else:
            return False if why in {"AdmissionCheck", "PodsReadyTimeout"} else None
        return await self._patch(wanted)

    async def _deactivated(self, wanted: Json) -> bool | None:
        """The part of Reconcile about ``spec.active: false``; None: it goes on to the rest."""
        target, evicted = condition(wanted, "DeactivationTarget"), true(wanted, "Evicted")
        if evicted and not wanted["status"].get("requeueState"):
            return None
        status = wanted.setdefault("status", {})
        status.pop("requeueState", None)
        status["conditions"] = [c for c in status.get("conditions", []) if c["type"] != "DeactivationTarget"]
        if evicted:
            return await self._patch(wanted)
        reason = f"DeactivatedDueTo{target['reason']}" if target else "Deactivated"
        due = f" due to {target['message']}" if target else ""
        await self._evict(wanted, reason, f"The workload is deactivated{due}")
        return True

    async def _by_checks(self, wanted: Json) -> bool:
        """reconcileCheckBasedEviction."""
        if true(wanted, "Evicted"):
            return False
        for state in ("Rejected", "Retry"):
            found = sorted((c for c in states(wanted) if c["state"] == state), key=lambda check: check["name"])
            if not found:
                continue
            said = "; ".join(f'"{c["name"]}"' + (f" ({c['message']})" if c["message"] else "") for c in found)
            text = f"AdmissionCheck{'s' if len(found) > 1 else ''} in {state} state: {said}"
            if state == "Retry":
                await self._evict(wanted, "AdmissionCheck", f"Evicted due to {text}")
                return True
            return set_condition(wanted, "DeactivationTarget", True, "AdmissionCheck", text) and await self._patch(
                wanted
            )
        return False

    async def _evict(self, workload: Json, reason: str, message: str) -> None:
        """prepareForEviction; what a preemption adds is the condition Preempted."""
        wanted = copy.deepcopy(workload)
        set_condition(wanted, "Evicted", True, reason, message)
        if reason == "Preempted":
            set_condition(wanted, "Preempted", True, "InClusterQueue", message)
        for index, check in enumerate(states(wanted)):  # resetChecksOnEviction
            if check["state"] == "Pending":
                continue
            text = f"Reset to Pending after eviction. Previously: {check['state']}"
            reset = {"name": check["name"], "state": "Pending", "message": text, "lastTransitionTime": now()}
            if self._delays and "requeueAfterSeconds" in check:
                reset["requeueAfterSeconds"] = check["requeueAfterSeconds"]
            if self._delays and check["state"] == "Retry":
                reset["retryCount"] = check.get("retryCount", 0) + 1
            wanted["status"]["admissionChecks"][index] = reset
        await self._patch(wanted)

    async def _patch(self, wanted: Json, *, strict: bool = True) -> bool:
        """PatchAdmissionStatus. ``strict`` False: whatever became of the Workload meanwhile."""
        status = wanted.get("status", {})
        by_kind = {c["type"]: c for c in status.get("conditions", [])}
        body: Json = {"conditions": [by_kind[kind] for kind in MANAGED if kind in by_kind]}
        body["admissionChecks"] = status.get("admissionChecks", [])
        body |= {key: status[key] for key in ("admission", "requeueState") if status.get(key)}
        names = ("name", "namespace", "uid", *(("resourceVersion",) if strict else ()))
        applied = {
            "apiVersion": self.workload_kind.api_version,
            "kind": "Workload",
            "metadata": {key: wanted["metadata"][key] for key in names},
            "status": body,
        }
        await self.client.apply(self.workload_kind, applied, field_manager=MANAGER, subresource="status")
        return True

    # --- jobs --------------------------------------------------------------------------------------------------------

    async def _create(self, job: Json) -> None:
        if not job["spec"].get("suspend"):
            return  # its webhook would have suspended it
        meta = job["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        template = copy.deepcopy(job["spec"]["template"])
        body = {
            "apiVersion": self.workload_kind.api_version,
            "kind": "Workload",
            "metadata": {"name": f"job-{meta['name']}-{meta['uid'][:5]}", "ownerReferences": [owner]},
            "spec": {
                "active": True,
                "queueName": meta["labels"][QUEUE_NAME],
                "priority": int(meta["labels"].get(PRIORITY, 0)),
                "podSets": [{"name": "main", "count": job["spec"]["parallelism"], "template": template}],
            },
        }
        await self.client.create(self.workload_kind, body, self.namespace)

    async def _reconcile_job(self, job: Json, workload: Json) -> bool:
        """ReconcileGenericJob: at most one write; whether there was one."""
        wanted = copy.deepcopy(workload)
        if any(c["type"] in {"Complete", "Failed"} and c["status"] == "True" for c in _conditions(job)):
            set_condition(wanted, "Finished", True, "Succeeded")
            return await self._patch(wanted)
        if true(workload, "Evicted"):
            return await self._stop(job, workload) or await self._release(job, wanted)
        if job["spec"].get("suspend"):
            return true(workload, "Admitted") and await self._start(job, workload)
        return not true(workload, "Admitted") and await self._stop(job, workload)

    async def _release(self, job: Json, wanted: Json) -> bool:
        """The quota of an evicted job is given back when none of its pods is active; some may still terminate."""
        if not true(wanted, "QuotaReserved") or job.get("status", {}).get("active"):
            return False
        evicted = condition(wanted, "Evicted")
        set_condition(wanted, "Requeued", evicted["reason"] == "Preempted", evicted["reason"], evicted["message"])
        _unset_quota(wanted, evicted["message"])
        return await self._patch(wanted)

    async def _start(self, job: Json, workload: Json) -> bool:
        """RunWithPodSetsInfo with getPodSetsInfoFromStatus."""
        template = job["spec"]["template"]
        meta, spec = template["metadata"], template["spec"]
        assigned = workload["status"]["admission"]["podSetAssignments"][0]
        given: Json = {"labels": {f"{GROUP}/podset": "main"}}
        given |= {
            "annotations": {f"{GROUP}/workload": workload["metadata"]["name"]},
            "nodeSelector": {},
            "tolerations": [],
        }
        for name in sorted(set(assigned["flavors"].values())):
            flavor = (await self.client.get(self.kinds["ResourceFlavor"], name))["spec"]
            given["nodeSelector"] = {**flavor.get("nodeLabels", {}), **given["nodeSelector"]}
            given["tolerations"] += flavor.get("tolerations", [])
        for check in states(workload):
            for update in check.get("podSetUpdates", []):
                for part in ("labels", "annotations", "nodeSelector"):
                    given[part] = merge(given[part], update.get(part), part)
                given["tolerations"] += [t for t in update.get("tolerations", []) if t not in given["tolerations"]]
        meta["labels"] = merge(meta.get("labels"), given["labels"], "labels")
        meta["annotations"] = merge(meta.get("annotations"), given["annotations"], "annotations")
        spec["nodeSelector"] = merge(spec.get("nodeSelector"), given["nodeSelector"], "nodeSelector")
        own = spec.get("tolerations", [])
        spec["tolerations"] = own + [each for each in given["tolerations"] if each not in own]
        job["spec"] |= {"suspend": False, "parallelism": assigned["count"]}
        await self.client.replace(JOBS, job, self.namespace)
        return True

    async def _stop(self, job: Json, workload: Json) -> bool:
        """Stop, one write at a time."""
        if not job["spec"].get("suspend"):
            body = {"spec": {"suspend": True}, "metadata": {"resourceVersion": job["metadata"]["resourceVersion"]}}
            await self.client.patch(JOBS, job["metadata"]["name"], self.namespace, body=body)
            return True
        if job.get("status", {}).get("startTime"):
            body = {"status": {"startTime": None}}
            await self.client.patch(JOBS, job["metadata"]["name"], self.namespace, body=body, subresource="status")
            return True
        (pod_set,) = workload["spec"]["podSets"]
        template = copy.deepcopy(pod_set["template"])
        kept = job["spec"]["template"]["metadata"].get("labels", {})
        own = {key: value for key, value in kept.items() if not key.startswith(GROUP)}
        template["metadata"]["labels"] = {**own, **template["metadata"].get("labels", {})}
        if job["spec"]["template"] == template:
            return False
        job["spec"] |= {"template": template, "parallelism": pod_set["count"]}
        await self.client.replace(JOBS, job, self.namespace)
        return True

    # --- quota -------------------------------------------------------------------------------------------------------

    async def _schedule(self) -> None:
        """Cycles of the scheduler, until nothing more can be admitted."""
        for name, queue in self._queues.items():
            queue.wake(time.time())
            if not await self._is_active(self._clusters[name]):
                continue  # heads
            for _ in range(len(queue.heap)):
                if (head := queue.pop()) is None:
                    break
                if not await self._nominate(head, self._clusters[name], queue) and queue.strategy == STRICT:
                    break  # it is the head of the next cycle too

    async def _is_active(self, cluster: Json) -> bool:
        for name in _checks(cluster):
            if not true(await self.client.get(self.kinds["AdmissionCheck"], name), "Active"):
                return False
        return True

    async def _nominate(self, head: Json, cluster: Json, queue: Queue) -> bool:
        """Nominate, admit and requeueAndUpdate: whether it got its quota."""
        wanted, uid = copy.deepcopy(head), head["metadata"]["uid"]
        try:
            failed = bool({"Retry", "Rejected"} & {check["state"] for check in states(head)})
            admission = None if failed else self._fit(head, cluster)
            if admission is None:
                queue.requeue(head, time.time(), no_fit=not failed)
                why = "couldn't assign flavors to pod set main: insufficient unused quota"
                if _unset_quota(wanted, "The workload has failed admission checks" if failed else why):
                    await self._patch(wanted, strict=False)
                return False
            wanted.setdefault("status", {})["admission"] = admission
            set_condition(wanted, "QuotaReserved", True, "QuotaReserved")
            for kind in ("Evicted", "Preempted"):  # resetActiveCondition
                if true(wanted, kind):
                    set_condition(
                        wanted, kind, False, "QuotaReserved", "Previously: " + condition(head, kind)["message"]
                    )
            self._held[uid] = wanted  # assumed
            queue.admitted()
            await self._patch(wanted, strict=False)
        except NotFound:
            self._held.pop(uid, None)
            queue.delete(uid)
        except KubeError:
            self._held.pop(uid, None)
            queue.requeue(head, time.time(), failed=True)
        return True

    def _fit(self, workload: Json, cluster: Json) -> Json | None:
        """The admission, where there is quota."""
        (pod_set,) = workload["spec"]["podSets"]
        count, flavors, usage = pod_set["count"], {}, {}
        requests = pod_set["template"]["spec"]["containers"][0]["resources"].get("requests", {})
        if set(requests) - {name for group in cluster["spec"]["resourceGroups"] for name in group["coveredResources"]}:
            return None
        for group in cluster["spec"]["resourceGroups"]:
            wanted = {name: int(requests.get(name, 0)) * count for name in group["coveredResources"]}
            for flavor in group["flavors"]:
                quota = {each["name"]: int(each["nominalQuota"]) for each in flavor["resources"]}
                used = {name: _used(self._held, cluster, flavor["name"], name) for name in wanted}
                if all(used[name] + amount <= quota[name] for name, amount in wanted.items()):
                    flavors |= dict.fromkeys(wanted, flavor["name"])
                    usage |= {name: str(amount) for name, amount in wanted.items()}
                    break
            else:
                return None
        assigned = {"name": "main", "flavors": flavors, "resourceUsage": usage, "count": count}
        if self.places_itself & set(flavors.values()):
            assigned["topologyAssignment"] = {"levels": ["kubernetes.io/hostname"], "slices": []}
        return {"clusterQueue": cluster["metadata"]["name"], "podSetAssignments": [assigned]}


def _retry_time(workload: Json) -> float:
    """GetMaxRetryTime; 0 where no check says when."""
    return max(
        (
            seconds(check["lastTransitionTime"]) + check["requeueAfterSeconds"]
            for check in states(workload)
            if check["state"] == "Retry" and "requeueAfterSeconds" in check
        ),
        default=0.0,
    )


def _unset_quota(workload: Json, message: str) -> bool:
    """UnsetQuotaReservationWithCondition."""
    changed = set_condition(workload, "QuotaReserved", False, "Pending", message)
    changed = workload["status"].pop("admission", None) is not None or changed
    return _sync_admitted(workload) or changed


def _sync_admitted(workload: Json) -> bool:
    """SyncAdmittedCondition."""
    quota, ready = true(workload, "QuotaReserved"), all(check["state"] == "Ready" for check in states(workload))
    if true(workload, "Admitted") == (quota and ready):
        return False
    reason = "Admitted" if quota and ready else "UnsatisfiedChecks" if quota else "NoReservation"
    return set_condition(workload, "Admitted", quota and ready, reason)


def _synced(workload: Json, cluster: Json) -> list[Json] | None:
    """syncAdmissionCheckConditions: the checks that it should have, where they differ from those it has."""
    before = {check["name"]: check for check in states(workload)}
    assigned = (workload.get("status", {}).get("admission") or {}).get("podSetAssignments", [])
    used = {flavor for each in assigned for flavor in each.get("flavors", {}).values()}
    names = [name for name, flavors in _checks(cluster).items() if not flavors or not used or used & set(flavors)]
    if set(names) == set(before):
        return None
    fresh = {"state": "Pending", "message": "", "lastTransitionTime": now()}
    return [before.get(name, {"name": name, **fresh}) for name in sorted(names)]


def _conditions(obj: Json) -> list[Json]:
    return obj.get("status", {}).get("conditions", [])


def _checks(cluster: Json) -> dict[str, list[str]]:
    """Names of the checks, each with the flavors that it is for (none: all)."""
    rules = cluster["spec"].get("admissionChecksStrategy", {}).get("admissionChecks", [])
    return {rule["name"]: rule.get("onFlavors", []) for rule in rules}


def _used(held: Mapping[str, Json], cluster: Json, flavor: str, name: str) -> int:
    used = 0
    for workload in held.values():
        admission = workload["status"]["admission"]
        if admission["clusterQueue"] == cluster["metadata"]["name"]:
            for each in admission["podSetAssignments"]:
                if each["flavors"].get(name) == flavor:
                    used += int(each["resourceUsage"].get(name, 0))
    return used
