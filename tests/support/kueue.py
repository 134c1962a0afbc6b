"""A small stand-in for Kueue: its kinds written as it writes them, with quota of one flavor a resource group member.

What it does as Kueue does: a Workload for each suspended Job with a queue label; quota reserved in order, only while
all its checks are Active; `status` applied under the field manager ``kueue-admission``, checks included;
checks made and reset to Pending; Admitted when all are Ready; the Job resumed with node labels and tolerations of its
flavors and all podSetUpdates, of which a contradiction is an error; evicted on Retry (with its delay) and Rejected
(deactivated); suspended and restored, and only when its pods are gone the quota given back.

It looks at everything again and again, so it can be stopped and started at any moment.
"""

import asyncio
import copy
import time
from datetime import UTC, datetime
from typing import Any, Self

from support.kueue_kinds import resource

from kube.client import Client
from kube.errors import BadRequest, Conflict, Forbidden, Invalid, KubeError, NotFound
from kube.resources import JOBS, PODS
from ungater.kueue.objects import GROUP

MANAGER = "kueue-admission"
QUEUE_NAME = f"{GROUP}/queue-name"
PRIORITY = f"{GROUP}/priority-class"  # a number here, where Kueue has the name of a WorkloadPriorityClass
PAUSE = 0.05
Json = dict[str, Any]


def now() -> str:
    return stamp(time.time())


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def true(workload: Json, kind: str) -> bool:
    conditions = workload.get("status", {}).get("conditions", [])
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def merge(ours: Json | None, others: Json | None, what: str) -> Json:
    """Both; what is in both must be the same, as Kueue's podset.Merge wants it."""
    ours, others = ours or {}, others or {}
    clash = {key for key in ours.keys() & others.keys() if ours[key] != others[key]}
    assert not clash, f"invalid admission check PodSetUpdate: conflict for {what}: {clash}"
    return {**others, **ours}


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
        checks = (await self.workload(job)).get("status", {}).get("admissionChecks", [])
        return next((check for check in checks if check["name"] == name), {})

    async def evict(self, job: str, reason: str = "Preempted") -> None:
        """Begin to evict, as a preemption does: the rest follows by itself."""
        while True:
            workload = await self.workload(job)
            try:
                await self._evict(workload, reason)
            except Conflict:
                continue
            return

    # --- one look at everything --------------------------------------------------------------------------------------

    async def step(self) -> None:
        jobs = await self.client.list(JOBS, self.namespace, label_selector=QUEUE_NAME)
        workloads = {
            ref["uid"]: found
            for found in await self.client.list(self.workload_kind, self.namespace)
            for ref in found["metadata"].get("ownerReferences", [])
        }
        queues = {q["metadata"]["name"]: q for q in await self.client.list(self.kinds["LocalQueue"], self.namespace)}
        clusters = {q["metadata"]["name"]: q for q in await self.client.list(self.kinds["ClusterQueue"])}
        for job in sorted(jobs, key=lambda job: (job["metadata"]["creationTimestamp"], job["metadata"]["name"])):
            workload = workloads.get(job["metadata"]["uid"])
            if workload is not None and true(workload, "Finished"):
                continue
            try:
                if workload is None:
                    await self._create(job)
                    continue
                queue = queues[workload["spec"]["queueName"]]
                cluster = clusters[queue["spec"]["clusterQueue"]]
                written = await self._look(job, workload, cluster, list(workloads.values()))
                if written is not None:
                    workloads[job["metadata"]["uid"]] = written
            except (Conflict, NotFound):
                continue

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
                "queueName": meta["labels"][QUEUE_NAME],
                "priority": int(meta["labels"].get(PRIORITY, 0)),
                "podSets": [{"name": "main", "count": job["spec"]["parallelism"], "template": template}],
            },
        }
        await self.client.create(self.workload_kind, body, self.namespace)

    async def _look(self, job: Json, workload: Json, cluster: Json, others: list[Json]) -> Json | None:
        """At most one write."""
        status = workload.get("status", {})
        if any(c["type"] in {"Complete", "Failed"} and c["status"] == "True" for c in _conditions(job)):
            return await self._apply(workload, {"Finished": (True, "Succeeded")})
        if not workload["spec"].get("active", True) and not true(workload, "Evicted"):
            return await self._evict(workload, "Deactivated")
        if true(workload, "Evicted") and status.get("admission"):
            return await self._stop(job, workload)
        if (checks := self._synced(workload, cluster)) is not None:
            body = {**workload, "status": {**status, "admissionChecks": checks}}
            return await self.client.replace(self.workload_kind, body, self.namespace, subresource="status")
        if status.get("admission"):
            return await self._check(job, workload)
        return await self._reserve(workload, cluster, others)

    async def _check(self, job: Json, workload: Json) -> Json | None:
        states = {check["state"]: check for check in workload["status"].get("admissionChecks", [])}
        if "Rejected" in states:
            body = {"spec": {"active": False}, "metadata": {"resourceVersion": workload["metadata"]["resourceVersion"]}}
            name = workload["metadata"]["name"]
            return await self.client.patch(self.workload_kind, name, self.namespace, body=body, type=dict)
        if "Retry" in states:
            return await self._evict(workload, "AdmissionCheck", states["Retry"].get("requeueAfterSeconds"))
        if not true(workload, "Admitted"):
            ready = set(states) <= {"Ready"}
            return await self._apply(workload, {"Admitted": (True, "Admitted")}) if ready else None
        if job["spec"].get("suspend"):
            await self._start(job, workload)
        return None

    # --- quota -------------------------------------------------------------------------------------------------------

    async def _reserve(self, workload: Json, cluster: Json, others: list[Json]) -> Json | None:
        again = workload.get("status", {}).get("requeueState", {}).get("requeueAt")
        if not workload["spec"].get("active", True) or (again and seconds(again) > time.time()):
            return None
        for name in _checks(cluster):
            check = await self.client.get(self.kinds["AdmissionCheck"], name)
            if not true(check, "Active"):
                return None
        (pod_set,) = workload["spec"]["podSets"]
        count, flavors, usage = pod_set["count"], {}, {}
        requests = pod_set["template"]["spec"]["containers"][0]["resources"].get("requests", {})
        for group in cluster["spec"]["resourceGroups"]:
            wanted = {name: int(requests.get(name, 0)) * count for name in group["coveredResources"]}
            for flavor in group["flavors"]:
                quota = {each["name"]: int(each["nominalQuota"]) for each in flavor["resources"]}
                used = {name: _used(others, cluster, flavor["name"], name) for name in wanted}
                if all(used[name] + amount <= quota[name] for name, amount in wanted.items()):
                    flavors |= dict.fromkeys(wanted, flavor["name"])
                    usage |= {name: str(amount) for name, amount in wanted.items()}
                    break
            else:
                return None
        assigned = {"name": "main", "flavors": flavors, "resourceUsage": usage, "count": count}
        if self.places_itself & set(flavors.values()):
            assigned["topologyAssignment"] = {"levels": ["kubernetes.io/hostname"], "slices": []}
        admission = {"clusterQueue": cluster["metadata"]["name"], "podSetAssignments": [assigned]}
        wanted = {"QuotaReserved": (True, "QuotaReserved")}
        if true(workload, "Evicted"):
            wanted["Evicted"] = (False, "QuotaReserved")
        return await self._apply(workload, wanted, admission=admission, requeue=None)

    def _synced(self, workload: Json, cluster: Json) -> list[Json] | None:
        """The checks that it should have, where they differ from those it has."""
        status = workload.get("status", {})
        before = {check["name"]: check for check in status.get("admissionChecks", [])}
        assigned = (status.get("admission") or {}).get("podSetAssignments", [])
        used = {flavor for each in assigned for flavor in each.get("flavors", {}).values()}
        names = [name for name, flavors in _checks(cluster).items() if not flavors or not used or used & set(flavors)]
        if set(names) == set(before):
            return None
        fresh = {"state": "Pending", "message": "", "lastTransitionTime": now()}
        return [before.get(name, {"name": name, **fresh}) for name in sorted(names)]

    # --- evicting, starting, stopping --------------------------------------------------------------------------------

    async def _evict(self, workload: Json, reason: str, delay: int | None = None) -> Json:
        checks = []
        requeue = workload["status"].get("requeueState")
        for check in workload["status"].get("admissionChecks", []):
            if check["state"] == "Pending":
                checks.append(check)
                continue
            message = f"Reset to Pending after eviction. Previously: {check['state']}"
            reset = {"name": check["name"], "state": "Pending", "message": message, "lastTransitionTime": now()}
            if check["state"] == "Retry" and delay is not None:
                reset["retryCount"] = check.get("retryCount", 0) + 1
            checks.append(reset)
        if delay is not None:
            requeue = {"requeueAt": stamp(time.time() + delay)}
        wanted = {"Evicted": (True, reason)}
        return await self._apply(workload, wanted, checks=checks, requeue=requeue)

    async def _start(self, job: Json, workload: Json) -> None:
        template = job["spec"]["template"]
        meta, spec = template["metadata"], template["spec"]
        assigned = workload["status"]["admission"]["podSetAssignments"][0]
        given: Json = {"labels": {f"{GROUP}/podset": "main"}, "annotations": {f"{GROUP}/workload": "w"}}
        given |= {"nodeSelector": {}, "tolerations": []}
        for name in sorted(set(assigned["flavors"].values())):
            flavor = (await self.client.get(self.kinds["ResourceFlavor"], name))["spec"]
            given["nodeSelector"] = {**flavor.get("nodeLabels", {}), **given["nodeSelector"]}
            given["tolerations"] += flavor.get("tolerations", [])
        for check in workload["status"].get("admissionChecks", []):
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

    async def _stop(self, job: Json, workload: Json) -> Json | None:
        if not job["spec"].get("suspend"):
            body = {"spec": {"suspend": True}, "metadata": {"resourceVersion": job["metadata"]["resourceVersion"]}}
            await self.client.patch(JOBS, job["metadata"]["name"], self.namespace, body=body)
            return None
        selector = f"batch.kubernetes.io/job-name={job['metadata']['name']}"
        if await self.client.list(PODS, self.namespace, label_selector=selector):
            return None
        if job.get("status", {}).get("startTime"):
            body = {"status": {"startTime": None}}
            await self.client.patch(JOBS, job["metadata"]["name"], self.namespace, body=body, subresource="status")
            return None
        (pod_set,) = workload["spec"]["podSets"]
        template = copy.deepcopy(pod_set["template"])
        kept = job["spec"]["template"]["metadata"].get("labels", {})
        own = {key: value for key, value in kept.items() if not key.startswith(GROUP)}
        template["metadata"]["labels"] = {**own, **template["metadata"].get("labels", {})}
        if job["spec"]["template"] != template:
            job["spec"]["template"] = template
            job["spec"]["parallelism"] = pod_set["count"]
            await self.client.replace(JOBS, job, self.namespace)
            return None
        wanted = {"QuotaReserved": (False, "Pending")}
        if true(workload, "Admitted"):
            wanted["Admitted"] = (False, "NoReservation")
        return await self._apply(workload, wanted, admission=None)

    async def _apply(
        self, workload: Json, wanted: dict[str, tuple[bool, str]], *, checks: list[Json] | None = None, **changes: Any
    ) -> Json:
        """Its status as Kueue applies it: everything it manages, for this version of the Workload."""
        status = workload.get("status", {})
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        for kind, (value, reason) in wanted.items():
            text = {"type": kind, "status": str(value), "reason": reason, "message": "", "lastTransitionTime": now()}
            conditions[kind] = text
        body = {
            "conditions": list(conditions.values()),
            "admissionChecks": status.get("admissionChecks", []) if checks is None else checks,
            "admission": changes.get("admission", status.get("admission")),
            "requeueState": changes.get("requeue", status.get("requeueState")),
        }
        meta = workload["metadata"]
        applied = {
            "apiVersion": self.workload_kind.api_version,
            "kind": "Workload",
            "metadata": {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion")},
            "status": {key: value for key, value in body.items() if value is not None},
        }
        return await self.client.apply(self.workload_kind, applied, field_manager=MANAGER, subresource="status")


def _conditions(obj: Json) -> list[Json]:
    return obj.get("status", {}).get("conditions", [])


def _checks(cluster: Json) -> dict[str, list[str]]:
    """Names of the checks, each with the flavors that it is for (none: all)."""
    rules = cluster["spec"].get("admissionChecksStrategy", {}).get("admissionChecks", [])
    return {rule["name"]: rule.get("onFlavors", []) for rule in rules}


def _used(workloads: list[Json], cluster: Json, flavor: str, name: str) -> int:
    used = 0
    for workload in workloads:
        admission = workload.get("status", {}).get("admission")
        if admission and admission["clusterQueue"] == cluster["metadata"]["name"] and not true(workload, "Finished"):
            for each in admission["podSetAssignments"]:
                if each["flavors"].get(name) == flavor:
                    used += int(each["resourceUsage"].get(name, 0))
    return used
