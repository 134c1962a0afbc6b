"""A stand-in for JobSet's controller: makes the Jobs of JobSets, with its labels, and suspends and resumes them."""

import asyncio
import contextlib
import copy
import hashlib
from datetime import UTC, datetime
from pathlib import Path

from support.jobs import GPU, KEYS, install_crd

from kube.client import Client
from kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from kube.resources import JOB_SETS, JOBS

CRD = Path(__file__).parents[1] / "data" / "others" / "jobset-crd.yaml"
PREFIX = "jobset.sigs.k8s.io"
EXCLUSIVE = f"alpha.{PREFIX}/exclusive-topology"


async def install(client: Client, path: Path = CRD) -> None:
    await install_crd(client, path)


def jobset(name, roles, *, queue="", annotations=None, gpus=4):
    """As the webhook stamps it. ``roles``: name -> (replicas, parallelism)."""
    resources = {"requests": {GPU: str(gpus), "cpu": "1"}, "limits": {GPU: str(gpus)}}
    replicated = []
    for role, (replicas, pods) in roles.items():
        template = {
            "metadata": {"annotations": {**(annotations or {}), KEYS.pod_set: role}},
            "spec": {
                "restartPolicy": "Never",
                "schedulingGates": [{"name": KEYS.gate}],
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "i", "resources": resources}],
            },
        }
        spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": template}
        replicated.append({"name": role, "replicas": replicas, "template": {"spec": spec}})
    labels = {KEYS.queue_name: queue} if queue else {}
    return {
        "apiVersion": JOB_SETS.api_version,
        "kind": "JobSet",
        "metadata": {"name": name, "labels": labels, "annotations": annotations or {}},
        "spec": {"suspend": bool(queue), "replicatedJobs": replicated},
    }


def alone(labels, level):
    """As the webhook writes it into the first pod of a Job."""
    key = f"{PREFIX}/job-key"
    own = [{"key": key, "operator": "In", "values": [labels[key]]}]
    others = [{"key": key, "operator": "Exists"}, {"key": key, "operator": "NotIn", "values": [labels[key]]}]

    def required(needs):
        term = {"labelSelector": {"matchExpressions": needs}, "topologyKey": level, "namespaceSelector": {}}
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}

    return {"podAffinity": required(own), "podAntiAffinity": required(others)}


def merged(child, template):
    """The pod template of a Job that is resumed, as JobSet 0.12.0 makes it (``resumeJob``): nothing is taken out of it.

    Maps are united, and what the JobSet says wins; of lists each item that is there already is added once more only
    where Go tells them apart, as it does tolerations with seconds, which are pointers.
    """
    found, (have, more) = dict(child), (child["spec"], template.get("spec", {}))
    metas = child.get("metadata") or {}, template.get("metadata") or {}
    found["metadata"] = {
        **metas[0],
        **{name: {**(metas[0].get(name) or {}), **(metas[1].get(name) or {})} for name in ("labels", "annotations")},
    }
    found["spec"] = {
        **have,
        "nodeSelector": {**(have.get("nodeSelector") or {}), **(more.get("nodeSelector") or {})},
        **{name: _united(have.get(name) or [], more.get(name) or []) for name in ("tolerations", "schedulingGates")},
    }
    return found


def _united(have, more):
    return [*have, *(one for one in more if one not in have or "tolerationSeconds" in one)]


class JobSets:
    """Run it beside a control plane; one namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self._task = None

    async def __aenter__(self):
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_):
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self):
        while True:
            for found in await self.client.list(JOB_SETS, self.namespace):
                with contextlib.suppress(Conflict, NotFound, AlreadyExists, Invalid):
                    await self._sync(found)
            await asyncio.sleep(0.1)

    async def _sync(self, jobset):
        meta, spec = jobset["metadata"], jobset["spec"]
        if meta.get("deletionTimestamp"):
            return
        suspend = spec.get("suspend", False)
        jobs = {
            job["metadata"]["name"]: job
            for job in await self.client.list(
                JOBS, self.namespace, label_selector=f"{PREFIX}/jobset-name={meta['name']}"
            )
        }
        done, total = 0, 0
        for role in spec["replicatedJobs"]:
            for index in range(role["replicas"]):
                job = jobs.get(f"{meta['name']}-{role['name']}-{index}")
                if job is None:
                    await self.client.create(JOBS, self._job(jobset, role, index, total), self.namespace)
                else:
                    await self._resume(job, role, suspend=suspend)
                    done += any(c["type"] == "Complete" for c in job.get("status", {}).get("conditions", []))
                total += 1
        await self._status(jobset, suspend=suspend, completed=done == total)

    def _job(self, jobset, role, index, number):
        meta, spec = jobset["metadata"], copy.deepcopy(role["template"]["spec"])
        labels = {
            f"{PREFIX}/jobset-name": meta["name"],
            f"{PREFIX}/jobset-uid": meta["uid"],
            f"{PREFIX}/replicatedjob-name": role["name"],
            f"{PREFIX}/replicatedjob-replicas": str(role["replicas"]),
            f"{PREFIX}/job-index": str(index),
            f"{PREFIX}/job-global-index": str(number),
            f"{PREFIX}/restart-attempt": "0",
        }
        name, own = f"{meta['name']}-{role['name']}-{index}", role["template"].get("metadata", {})
        labels[f"{PREFIX}/job-key"] = hashlib.sha1(f"{self.namespace}/{name}".encode()).hexdigest()
        pod = spec["template"].setdefault("metadata", {})
        pod["labels"] = {**pod.get("labels", {}), **labels}
        if level := meta.get("annotations", {}).get(EXCLUSIVE):
            spec["template"]["spec"]["affinity"] = alone(labels, level)
        owner = {
            "apiVersion": JOB_SETS.api_version,
            "kind": "JobSet",
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        labels = {**own.get("labels", {}), **labels}
        annotations = own.get("annotations", {})
        return {
            "metadata": {"name": name, "labels": labels, "annotations": annotations, "ownerReferences": [owner]},
            "spec": {**spec, "suspend": jobset["spec"].get("suspend", False)},
        }

    async def _resume(self, job, role, *, suspend):
        """What may change of a Job's template goes with the patch that resumes it, merged into what it has."""
        if job["spec"].get("suspend", False) == suspend:
            return
        change = {"suspend": suspend}
        if not suspend:
            change["template"] = merged(job["spec"]["template"], role["template"]["spec"]["template"])
            if job["status"].get("startTime"):
                await self.client.patch(
                    JOBS,
                    job["metadata"]["name"],
                    self.namespace,
                    body={"status": {"startTime": None}},
                    subresource="status",
                )
        await self.client.patch(JOBS, job["metadata"]["name"], self.namespace, body={"spec": change})

    async def _status(self, jobset, *, suspend, completed):
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        wanted = {"Suspended": suspend, "Completed": completed}
        before = {c["type"]: c for c in jobset.get("status", {}).get("conditions", [])}
        conditions = [
            before[type_]
            if type_ in before and before[type_]["status"] == str(value)
            else {"type": type_, "status": str(value), "reason": type_, "message": type_, "lastTransitionTime": now}
            for type_, value in wanted.items()
            if value or type_ in before
        ]
        if conditions != list(before.values()):
            body = {"status": {"conditions": conditions}}
            await self.client.patch(
                JOB_SETS, jobset["metadata"]["name"], self.namespace, body=body, subresource="status"
            )
