"""The JobSet controller of the simulated cluster: one change a step, as the others of `actors` do it.

Facts of jobset.x-k8s.io: Jobs are named after JobSet, replicated job and index, and carry these as labels, which their
pods have too. A suspended JobSet suspends its Jobs; one that goes on merges its pod templates into theirs first, and
takes nothing out of them (`support.jobsets.merged`). A Job that failed has all made anew, as often as `maxRestarts`
says; the old ones go in the foreground. All complete: it is over.
"""

import random
from collections.abc import Iterator

from support.history.server import ROLE, SET_UID, Json, Server, is_true, over, parent_of
from support.jobsets import merged

from crds.constants import JOB_SET_INDEX

ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
FOREGROUND = "foregroundDeletion"


class JobSets:
    """See the module's rules."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        self.server = server
        self.rng = rng

    def step(self) -> bool:
        """One change of a JobSet or of its Jobs; False where there is none to make."""
        found = list(self.server.all("jobsets"))
        self.rng.shuffle(found)
        return any(self._jobset(each) for each in found)

    def _jobset(self, owner: Json) -> bool:  # noqa: PLR0911 -- one return a rule
        status = dict(owner.get("status") or {})
        jobs = [job for job in self.server.all("jobs") if parent_of(job) == owner["metadata"]["uid"]]
        if over(owner):
            return self._drop([job for job in jobs if not over(job)])
        attempt = status.get("restarts", 0)
        now = [job for job in jobs if job["metadata"]["labels"][ATTEMPT] == str(attempt)]
        if self._drop([job for job in jobs if job not in now]):
            return True
        if any(is_true(job.get("status"), "Failed") for job in now):
            if attempt < owner["spec"]["failurePolicy"]["maxRestarts"]:
                return self._tell(owner, {**status, "restarts": attempt + 1})
            return self._tell(owner, self.server.with_condition(status, "Failed", "True"))
        wanted = dict(_named(owner))
        if all(any(job["metadata"]["name"] == name and over(job) for job in now) for name in wanted):
            return self._tell(owner, self.server.with_condition(status, "Completed", "True"))
        if owner["spec"].get("suspend"):
            return self._suspend(owner, status, now)
        return self._go_on(owner, status, now) or self._make(owner, wanted, attempt)

    def _suspend(self, owner: Json, status: Json, jobs: list[Json]) -> bool:
        for job in jobs:
            if not over(job) and not job["spec"].get("suspend"):
                self.server.change(job, lambda new: new["spec"].update(suspend=True), "jobset controller")
                return True
        return self._tell(owner, self.server.with_condition(status, "Suspended", "True"))

    def _go_on(self, owner: Json, status: Json, jobs: list[Json]) -> bool:
        """The Jobs that are suspended get what the pod templates of today add, and go on."""
        templates = {each["name"]: each["template"]["spec"]["template"] for each in owner["spec"]["replicatedJobs"]}
        for job in jobs:
            if over(job) or not job["spec"].get("suspend"):
                continue
            if (job.get("status") or {}).get("startTime"):
                kept = {key: value for key, value in job["status"].items() if key != "startTime"}
                job = self.server.store(job, {**job, "status": kept}, "jobset controller", "status")  # noqa: PLW2901
            labels = job["metadata"]["labels"]
            template = merged(job["spec"]["template"], templates[labels[ROLE]])
            spec = {**job["spec"], "suspend": False, "template": template}
            self.server.store(job, {**job, "metadata": dict(job["metadata"]), "spec": spec}, "jobset controller")
            return True
        return is_true(status, "Suspended") and self._tell(
            owner, self.server.with_condition(status, "Suspended", "False")
        )

    def _make(self, owner: Json, wanted: Json, attempt: int) -> bool:
        namespace = owner["metadata"]["namespace"]
        missing = [name for name in wanted if self.server.get("jobs", name, namespace) is None]
        if not missing:
            return False
        name, meta = missing[0], owner["metadata"]
        replicated, index = wanted[name]
        reference = {"apiVersion": owner["apiVersion"], "kind": "JobSet", "name": meta["name"], "uid": meta["uid"]}
        labels = {
            ROLE: replicated["name"],
            JOB_SET_INDEX: str(index),
            ATTEMPT: str(attempt),
            SET_UID: meta["uid"],
        }
        spec = replicated["template"]["spec"]
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": labels,
                "ownerReferences": [{**reference, "controller": True}],
            },
            "spec": {**spec, "suspend": False, "template": _labelled(spec["template"], labels)},
        }
        self.server.create("jobs", job, "jobset controller")
        return True

    def _drop(self, jobs: list[Json]) -> bool:
        """Delete one of these Jobs, which stays until its pods are gone."""
        there = [job for job in jobs if not job["metadata"].get("deletionTimestamp")]
        if not there:
            return False
        drop(self.server, self.rng.choice(there), "jobset controller")
        return True

    def _tell(self, owner: Json, status: Json) -> bool:
        if (owner.get("status") or {}) == status:
            return False
        self.server.store(owner, {**owner, "status": status}, "jobset controller", "status")
        return True


def drop(server: Server, job: Json, who: str) -> None:
    """Delete a Job in the foreground."""
    marked = server.change(job, lambda new: new["metadata"].update(finalizers=[FOREGROUND]), who)
    server.delete(marked, who)


def _named(owner: Json) -> Iterator[tuple[str, tuple[Json, int]]]:
    """The Jobs that it is to have, by name: their replicated job and index."""
    for each in owner["spec"]["replicatedJobs"]:
        for index in range(each["replicas"]):
            yield f"{owner['metadata']['name']}-{each['name']}-{index}", (each, index)


def _labelled(template: Json, labels: Json) -> Json:
    meta = template["metadata"]
    return {**template, "metadata": {**meta, "labels": {**(meta.get("labels") or {}), **labels}}}
