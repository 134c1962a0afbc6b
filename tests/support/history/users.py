"""What people do to a cluster: submit, delete, scale and suspend what makes pods, edit queues, take nodes away."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from support.history.actors import RESIZED, Cluster, asked_first
from support.history.hostile import Tenant
from support.history.jobsets import drop
from support.history.server import (
    CLASS,
    CONTROLLER,
    GATE,
    GROUP,
    HOSTILE,
    LEADER_GROUP,
    MARK,
    NAMESPACE,
    POD_GROUPS,
    QUEUE,
    Json,
    Key,
    Server,
    container,
    describe,
    ended,
    is_group,
    is_hostile,
    is_jobset,
    is_led,
    is_set,
    make_object,
    over,
    owner_of,
    owners,
    parent_of,
    plural_of,
)

from crds.settings import Settings
from kube import resources

COUNTS = (1, 1, 2, 2, 3, 4)
LEVELS = ["block", "rack", "kubernetes.io/hostname"]
REQUESTS = (
    {"kueue.x-k8s.io/require-topology": "rack"},
    {"kueue.x-k8s.io/require-topology": "block"},
    {"kueue.x-k8s.io/require-topology": "kubernetes.io/hostname"},
    {"kueue.x-k8s.io/prefer-topology": "rack"},
)
KINDS = (
    (resources.STATEFUL_SETS,),
    (resources.LEADER_WORKER_SETS,),
    (POD_GROUPS,),
    (resources.STATEFUL_SETS, resources.LEADER_WORKER_SETS, POD_GROUPS),
)
LIKE = {resource.kind: resource for resource in KINDS[-1]} | {LEADER_GROUP: resources.LEADER_WORKER_SETS}
ANYWHERE = {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}


BOOST = "kueue.x-k8s.io/priority-boost"


class Users:
    """Whoever has kubectl. ``note`` is told what they do; ``by_use``: LocalQueues take turns by what they used.

    ``boosts``: somebody changes the boosts of priorities.
    """

    def __init__(
        self,
        server: Server,
        cluster: Cluster,
        rng: random.Random,
        note: Callable[..., None],
        *,
        by_use: bool,
        boosts: bool,
    ) -> None:
        self.by_use = by_use
        self.server = server
        self.cluster = cluster
        self.rng = rng
        self.note = note
        server.policies = rng.random() < 0.5
        self.tenant = Tenant(self)
        self.strict = rng.random() < 0.25
        self.cohort = rng.random() < 0.3
        self.preempts = rng.random() < 0.5
        self.sets = rng.choice((0.0, 0.0, 0.3, 0.8))  # share of what is submitted that is no Job
        self.jobsets = rng.choice((0.0, 0.0, 0.3, 0.8))  # share of JobSets in what is; the others are Jobs
        self.kinds = rng.choice(KINDS)  # of those
        self.replaces_failed = rng.choice((0.0, 0.5))  # share of Jobs whose pods are replaced once they have ended
        self.meddles = rng.choice((0.0, 0.1, 0.4))  # share of the controller's writes after which somebody acts at once
        if self.tenant.share:  # most ways to ask for more, or to be another's, are those of pods that no Job makes
            self.sets, self.meddles = rng.choice((self.sets, 0.5)), max(self.meddles, 0.1)
        self.queues: tuple[str, ...] = ("a", "a", "b", "")  # LocalQueues of what is submitted, "" for none
        self.counts = COUNTS  # pods of a Job
        self.most_quota = 8  # that somebody gives a queue
        self.busy = True
        self._numbers = 0
        self._class = ""  # the PriorityClass of what is being submitted
        self._gone: list[Json] = []  # nodes that were deleted
        self._actions = (
            *(self._submit,) * 7,
            self.delete,
            self._again,
            *(self.scale,) * 2,
            self._roll,
            self.suspend,
            self._resume,
            self._quota,
            self._stop,
            self._cordon,
            self._lose,
            self._remove_node,
            *(self._node_back,) * 2,
            *(self.delete_pod,) * 2,
            self._protect,
            self._deactivate,
            self._forge,
            self._fail,
            self._drop_job,
            *(self._resize,) * 2,
            *(self._outrank,) * (6 if self.preempts else 1),
            *(self._boost,) * (20 if boosts else 0),
        )

    def begin(self) -> None:
        """A cluster with one flavor, some nodes, two queues, and pods that were always there."""
        create, rng = self.server.create, self.rng
        for name in (NAMESPACE, HOSTILE):
            create("namespaces", make_object(resources.NAMESPACES, name), "admin")
        spec = {"nodeLabels": {"pool": "gpu"}, "topology": {"levels": LEVELS}}
        create("resourceflavors", make_object(resources.RESOURCE_FLAVORS, "gpu", spec), "admin")
        for name, value in (("low", 10), ("high", 1000)):
            create("priorityclasses", {**make_object(resources.PRIORITY_CLASSES, name), "value": value}, "admin")
        for rack in range(rng.randint(1, 3)):
            for host in range(rng.randint(1, 3)):
                self._add_node(f"r{rack}", f"r{rack}h{host}", rng.choice((1, 2, 4)))
        nodes = [node["metadata"]["name"] for node in self.server.all("nodes")]
        for number, node in enumerate(nodes):
            if rng.random() < 0.3:
                self._pod(f"always-{number}", {"labels": {"always": "yes"}}, node)
        for name in ("a", "b"):
            self._add_queue(name)
        if self.cohort and self.by_use:
            scope = {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}
            self.server.create("cohorts", make_object(resources.COHORTS, "all", scope), "admin")

    def _add_node(self, rack: str, name: str, cpu: int) -> None:
        labels = {"pool": "gpu", "block": f"b{int(rack[1:]) // 2}", "rack": rack, LEVELS[2]: name}
        node = {
            **make_object(resources.NODES, name, {}, labels=labels),
            "status": {
                "allocatable": {"cpu": str(cpu), "pods": "9"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        self.server.create("nodes", node, "admin")

    def _pod(self, name: str, metadata: Json, node: str, spec: Json | None = None) -> None:
        pod = make_object(
            resources.PODS, name, {"containers": [container(1)], "nodeName": node, **(spec or {})}, **metadata
        )
        pod["metadata"]["namespace"] = NAMESPACE
        self.server.create("pods", {**pod, "status": {"phase": "Running"}}, "admin")

    def _add_queue(self, name: str) -> None:
        spec: Json = {
            "resourceGroups": [_quota(self.rng.randint(2, 8))],
            "namespaceSelector": {},
            "queueingStrategy": "StrictFIFO" if self.strict else "BestEffortFIFO",
        }
        if self.cohort:
            spec["cohortName"] = "all"
        if self.by_use:
            spec["admissionScope"] = {"admissionMode": "UsageBasedAdmissionFairSharing"}
        if self.preempts:
            spec["preemption"] = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
        self.server.create("clusterqueues", make_object(resources.CLUSTER_QUEUES, f"cq-{name}", spec), "admin")
        for namespace in (NAMESPACE, HOSTILE):
            local = make_object(resources.LOCAL_QUEUES, name, {"clusterQueue": f"cq-{name}"})
            local["metadata"]["namespace"] = namespace
            self.server.create("localqueues", local, "admin")

    # --- acting --------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Something, where it can be done now."""
        if self.rng.random() < self.tenant.share:
            self.tenant.act()
        else:
            self.rng.choice(self._actions)()

    def saw(self, key: Key, who: str) -> None:
        """The controller wrote something about a job: somebody may do something to that job in the same moment."""
        if who != CONTROLLER or key[0] not in {"workloads", "jobs", "jobsets"} or not self.busy:
            return
        if self.rng.random() < self.meddles:
            meddle = self.tenant.meddle if key[1] == HOSTILE else self._meddle
            self.server.loop.call_later(self.rng.random() * 0.1, meddle, key)

    def _meddle(self, key: Key) -> None:
        owner = self._owner_of(key[2]) if key[0] == "workloads" else self.server.get(key[0], key[2], NAMESPACE)
        if owner is not None and self.busy:
            self.rng.choice((self.delete, self._again, self.scale, self.suspend, self.delete_pod))(owner)

    def _owner_of(self, workload: str) -> Json | None:
        found = self.server.get("workloads", workload, NAMESPACE)
        uid = owner_of(found) if found is not None else ""
        return next((owner for owner in owners(self.server) if owner["metadata"]["uid"] == uid), None)

    def rest(self) -> None:
        """Nobody does anything any more; nodes that are there work, and nothing forbids evictions."""
        self.note("users rest")
        self.busy = False
        self.server.budgets -= {uid for uid in self.server.budgets if not is_hostile(uid)}
        self.cluster.finishing.clear()
        self.tenant.rest()
        for pod in list(self.server.all("pods")):
            if "forged" in (pod["metadata"].get("labels") or {}):
                self.server.delete(pod, "admin", grace=0)
        for node in list(self.server.all("nodes")):
            self._set_ready(node, "True")
            self._set_unschedulable(self.server.get("nodes", node["metadata"]["name"]), value=False)
        for queue in list(self.server.all("clusterqueues")):
            self.server.change(queue, lambda new: new["spec"].update(stopPolicy="None"), "admin")

    def open_all(self) -> None:
        """Whatever somebody held up may go on, and all nodes are back."""
        self.note("users let everything go on")
        self.tenant.leave()
        while self._gone:
            self._node_back()
        for workload in list(self.server.all("workloads")):
            self.server.change(workload, lambda new: new["spec"].update(active=True), "user")
        for job in list(owners(self.server)):
            if "by-hand" in job["metadata"].get("annotations", {}):
                self._resumed(job)

    def delete_all(self) -> None:
        """Nobody wants anything any more."""
        for owner in list(owners(self.server)):
            self._gone_for(owner)

    def plain(self, settings: Settings) -> bool:
        """Whether nobody waits for another reason than room and quota."""
        return not self.strict and settings.queue_patience_seconds > 1000

    def _any(self, plural: str, wanted: Callable[[Json], Any] = lambda _: True) -> Json | None:
        found = [obj for obj in self.server.all(plural) if wanted(obj)]
        return self.rng.choice(found) if found else None

    def _any_owner(self) -> Json | None:
        found = list(owners(self.server))
        return self.rng.choice(found) if found else None

    def _submit(self, like: Json | None = None) -> None:
        self.submit(NAMESPACE, like)

    def submit(self, namespace: str, like: Json | None = None, **more: Any) -> Json:
        """Somebody wants pods; ``like``: under the name, and of the kind, of one that was there; ``more``: of a Job."""
        rng = self.rng
        self._numbers += 1
        count = rng.choice(self.counts)
        queue = rng.choice(self.queues)
        labels = {QUEUE: queue} if queue else {}
        if queue and rng.random() < 0.5:
            labels[CLASS] = rng.choice(("low", "high"))
        self._class = labels.get(CLASS, "")
        if is_set(like) if like is not None else rng.random() < self.sets:
            return self._submit_set(namespace, like, count, labels, self.template(REQUESTS))
        jobset = is_jobset(like) if like is not None else rng.random() < self.jobsets
        spec = self._replicated() if jobset else {**self._job_spec(count, self.template(REQUESTS)), **more}
        resource = resources.JOB_SETS if jobset else resources.JOBS
        name = like["metadata"]["name"] if like else f"{'w' if jobset else 'j'}{self._numbers}"
        job = make_object(resource, name, {**spec, "suspend": bool(queue)}, labels=labels, annotations={})
        job["metadata"]["namespace"] = namespace
        made = self.server.create(resource.plural, job, "user")
        if rng.random() < 0.5:
            self.cluster.finishing.add(made["metadata"]["uid"])
        return made

    def _outrank(self) -> None:
        """A Job as large as another one in its queue, and more important."""

        def lower(job: Json) -> bool:
            labels = job["metadata"].get("labels") or {}
            return QUEUE in labels and labels.get(CLASS) != "high" and not parent_of(job) and not over(job)

        found = [job for job in self.server.within("jobs", NAMESPACE) if lower(job)]
        if not found:
            return
        job = self.rng.choice(found)
        self._numbers += 1
        self._class = "high"
        spec = {**self._job_spec(job["spec"]["parallelism"], self.template(REQUESTS)), "suspend": True}
        labels = {QUEUE: job["metadata"]["labels"][QUEUE], CLASS: "high"}
        other = make_object(resources.JOBS, f"h{self._numbers}", spec, labels=labels, annotations={})
        other["metadata"]["namespace"] = NAMESPACE
        self.server.create("jobs", other, "user")

    def _boost(self) -> None:
        """A Workload gets another boost, text that is none, or none."""
        if found := self._any("workloads", lambda one: one["spec"].get("queueName")):
            text = self.rng.choice(("2000", "2000", "50", "-50", "-2000", "0", "no number", None))
            notes = {**(found["metadata"].get("annotations") or {}), BOOST: text}
            kept = {key: value for key, value in notes.items() if value is not None}
            self.server.change(found, lambda new: new["metadata"].update(annotations=kept), "admin")

    def template(self, requests: Sequence[Json]) -> Json:
        """Of pods that ask for something of ``requests``, of the class of what is submitted: a label alone is none."""
        return {
            "metadata": {"annotations": dict(self.rng.choice(requests))},
            "spec": {
                **({"priorityClassName": self._class} if self._class else {}),
                "containers": [container(self.rng.choice((1, 1, 2)))],
                "schedulingGates": [{"name": GATE}],
                "restartPolicy": "Never",
            },
        }

    def _job_spec(self, count: int, template: Json) -> Json:
        mode = self.rng.choice(("Indexed", "NonIndexed"))
        spec = {"parallelism": count, "completions": count, "completionMode": mode, "template": template}
        return spec | ({"podReplacementPolicy": "Failed"} if self.rng.random() < self.replaces_failed else {})

    def _replicated(self) -> Json:
        """A JobSet's: one to three replicated jobs, of which some go anywhere."""
        rng = self.rng
        jobs = [
            {
                "name": name,
                "replicas": rng.choice((1, 1, 2)),
                "template": {"metadata": {}, "spec": self._job_spec(rng.choice((1, 1, 2)), template)},
            }
            for name, template in zip(
                "abc", [self.template((*REQUESTS, ANYWHERE)) for _ in range(rng.choice((1, 2, 2, 3)))], strict=False
            )
        ]
        return {"replicatedJobs": jobs, "failurePolicy": {"maxRestarts": rng.choice((0, 1, 2))}}

    def _submit_set(self, namespace: str, like: Json | None, count: int, labels: Json, template: Json) -> Json:
        """Its pods name the queue, and it is never suspended."""
        template["metadata"]["labels"] = labels
        template["spec"]["restartPolicy"] = "Always"
        resource = self.rng.choice(self.kinds) if like is None else LIKE[like["kind"]]
        name = f"{resource.kind[0].lower()}{self._numbers}"
        if like is not None:
            name = self.whole(like)["metadata"]["name"]
        spec: Json = {"replicas": count, "podManagementPolicy": "Parallel", "template": template}
        if resource == resources.LEADER_WORKER_SETS:
            spec = self._led(min(count, 3), template)
        ends = resource == POD_GROUPS and self.rng.random() < 0.5
        owner = make_object(resource, name, spec | ({"ends": True} if ends else {}))
        owner["metadata"]["namespace"] = namespace
        made = self.server.create(resource.plural, owner, "user")
        if ends and self.rng.random() < 0.5:
            self.cluster.finishing.add(made["metadata"]["uid"])
        return made

    def _led(self, size: int, template: Json) -> Json:
        """The spec of a LeaderWorkerSet, whose leader may be another pod than its workers."""
        rng = self.rng
        templates: Json = {"size": size, "workerTemplate": template}
        if rng.random() < 0.5:
            leader = self.template((*REQUESTS, ANYWHERE))
            leader["metadata"]["labels"] = template["metadata"]["labels"]
            templates["leaderTemplate"] = leader
        for each in (template, templates.get("leaderTemplate", template)):
            each["spec"].pop("schedulingGates", None)  # the webhook gates the pods
        ways = {"recreate": rng.random() < 0.5, "waits": rng.random() < 0.3}
        return {"replicas": rng.choice((1, 1, 2)), **ways, "leaderWorkerTemplate": templates}

    def whole(self, owner: Json) -> Json:
        """The object that somebody sees: of a group of a LeaderWorkerSet, that."""
        if not is_led(owner):
            return owner
        return {
            **owner,
            **describe(resources.LEADER_WORKER_SETS),
            "metadata": {**owner["metadata"], "name": owner["metadata"]["name"].rpartition("-")[0]},
        }

    def delete(self, owner: Json | None = None) -> None:
        """One is deleted, whichever where none is named."""
        if owner := owner or self._any_owner():
            self._gone_for(owner)

    def _gone_for(self, owner: Json) -> bool:
        meta = self.whole(owner)["metadata"]
        found = self.server.get(plural_of(self.whole(owner)), meta["name"], meta["namespace"])
        if found is not None:
            self.server.delete(found, "user")
        return found is not None

    def _again(self, owner: Json | None = None) -> None:
        """One deleted and made again under its name."""
        owner = owner or self._any_owner()
        if owner is not None and self._gone_for(owner) and not is_group(owner):  # its pods would be the same group's
            self._submit(owner)

    def scale(self, owner: Json | None = None) -> None:
        """One gets more pods, or fewer."""
        owner = owner or self._any_owner()
        if owner is None or over(owner) or is_group(owner) or is_jobset(owner):
            return
        if is_led(owner):
            self._scale_led(owner)
            return
        count = self.rng.choice((0, 1, 2, 3, 4)) if self.rng.random() < 0.3 else self.rng.choice((1, 2, 3, 4))
        if is_set(owner):
            self.server.change(owner, lambda new: new["spec"].update(replicas=count), "user")
        elif owner["spec"]["completionMode"] == "Indexed":
            self.server.change(owner, lambda new: new["spec"].update(parallelism=count, completions=count), "user")

    def _scale_led(self, owner: Json) -> None:
        whole = self.server.get(
            "leaderworkersets", self.whole(owner)["metadata"]["name"], owner["metadata"]["namespace"]
        )
        if whole is not None:
            count = self.rng.choice((0, 1, 2))
            self.server.change(whole, lambda new: new["spec"].update(replicas=count), "user")

    def _roll(self) -> None:
        """Other requests for the pods of a LeaderWorkerSet: its controller makes one group after the other anew."""

        def mutate(new: Json) -> None:
            templates = new["spec"]["leaderWorkerTemplate"]
            template = templates.get(self.rng.choice(("leaderTemplate", "workerTemplate")), templates["workerTemplate"])
            template["spec"]["containers"] = [container(self.rng.choice((1, 2, 3)))]

        if whole := self._any("leaderworkersets"):
            self.server.change(whole, mutate, "user")

    def suspend(self, job: Json | None = None) -> None:
        """One is suspended by hand."""
        job = job or self._any_owner()
        if job is not None and not is_set(job) and not over(job) and not job["spec"].get("suspend"):
            self.server.change(job, _suspended, "user")

    def _resume(self) -> None:
        held = [job for job in owners(self.server) if "by-hand" in job["metadata"].get("annotations", {})]
        if held:
            self._resumed(self.rng.choice(held))

    def _resumed(self, job: Json) -> None:
        def mutate(new: Json) -> None:
            del new["metadata"]["annotations"]["by-hand"]
            if QUEUE not in new["metadata"].get("labels", {}):
                new["spec"]["suspend"] = False

        self.server.change(job, mutate, "user")

    def _fail(self) -> None:
        """A Job is given up by its controller, as one whose deadline passed is."""
        job = self._any("jobs", lambda job: not over(job) and (job.get("status") or {}).get("startTime"))
        if job is None:
            return
        status = self.server.with_condition(job["status"], "Failed", "True")
        self.server.store(job, {**job, "status": status}, "job controller", "status")

    def _drop_job(self) -> None:
        """One of a JobSet's Jobs is deleted: another is made."""
        job = self._any("jobs", lambda job: parent_of(job) and not job["metadata"].get("deletionTimestamp"))
        if job is not None:
            drop(self.server, job, "user")

    def _quota(self) -> None:
        queue, amount = self._any("clusterqueues"), self.rng.randint(1, self.most_quota)
        self.server.change(queue, lambda new: new["spec"].update(resourceGroups=[_quota(amount)]), "admin")

    def _stop(self) -> None:
        queue, policy = self._any("clusterqueues"), self.rng.choice(("None", "None", "Hold", "HoldAndDrain"))
        self.server.change(queue, lambda new: new["spec"].update(stopPolicy=policy), "admin")

    def _set_ready(self, node: Json, value: str) -> None:
        status = {**node["status"], "conditions": [{"type": "Ready", "status": value}]}
        self.server.store(node, {**node, "status": status}, "kubelet", "status")

    def _set_unschedulable(self, node: Json, *, value: bool) -> None:
        self.server.change(node, lambda new: new["spec"].update(unschedulable=value), "admin")

    def _cordon(self) -> None:
        if node := self._any("nodes"):
            self._set_unschedulable(node, value=not node["spec"].get("unschedulable"))

    def _lose(self) -> None:
        """Not ready; its pods are asked to go, and nobody confirms it."""
        if node := self._any("nodes"):
            self._set_ready(node, "False")
            for pod in list(self.server.all("pods")):
                there = pod["spec"].get("nodeName") == node["metadata"]["name"] and not ended(pod)
                if there and "always" not in pod["metadata"].get("labels", {}) and self.rng.random() < 0.7:
                    self.server.delete(pod, "taint manager")

    def _remove_node(self) -> None:
        node = self._any("nodes", lambda node: not self._always_on(node["metadata"]["name"]))
        if node is not None:
            self.server.delete(node, "admin")
            self._gone.append(node)

    def _always_on(self, name: str) -> bool:
        return any(
            pod["spec"].get("nodeName") == name and "always" in pod["metadata"].get("labels", {})
            for pod in self.server.all("pods")
        )

    def _node_back(self) -> None:
        if self._gone and self.rng.random() < 0.5:
            node = self._gone.pop()
            labels = node["metadata"]["labels"]
            self._add_node(labels["rack"], node["metadata"]["name"], int(node["status"]["allocatable"]["cpu"]))
            return
        node = self._any("nodes", lambda node: node["status"]["conditions"][0]["status"] != "True")
        if node is not None:
            self._set_ready(node, "True")

    def delete_pod(self, owner: Json | None = None) -> None:
        """A pod is deleted, of this owner or of any."""
        uid = owner["metadata"]["uid"] if owner is not None else ""
        pod = self._any("pods", lambda pod: _may_go(pod) and owner_of(pod).startswith(uid))
        if pod is not None:
            self.server.delete(pod, "user")

    def _resize(self) -> None:
        """A pod that runs is to have more where it runs, less, or more than any node has."""

        def mutate(new: Json) -> None:
            new["metadata"]["annotations"] = {RESIZED: str(first), **(new["metadata"].get("annotations") or {})}
            new["spec"]["containers"] = [container(cpu)]

        ours = self.server.within("pods", NAMESPACE)
        running = [pod for pod in ours if pod["status"]["phase"] == "Running" and pod["status"].get("conditions")]
        if running:
            pod = self.rng.choice(running)
            first, cpu = asked_first(pod), self.rng.choice((1, 1, 2, 3, 100))
            self.server.change(pod, mutate, "user")

    def _protect(self) -> None:
        if owner := self._any_owner():
            self.server.budgets ^= {owner["metadata"]["uid"]}

    def _deactivate(self) -> None:
        if workload := self._any("workloads"):
            active = not workload["spec"].get("active", True)
            self.server.change(workload, lambda new: new["spec"].update(active=active), "user")

    def _forge(self) -> None:
        """A pod that says it is another's, where no policy forbids that."""
        if self.server.policies:
            return
        workload, node = self._any("workloads"), self._any("nodes")
        if workload is None or node is None:
            return
        name, labels = node["metadata"]["name"], node["metadata"]["labels"]
        wanted = self.cluster.used()[name, "cpu"] + 1
        if wanted > int(node["status"]["allocatable"]["cpu"]):
            return
        self._numbers += 1
        metadata = {"annotations": {MARK: workload["metadata"]["name"]}, "labels": {"forged": "yes"}}
        self._pod(f"forged-{self._numbers}", metadata, name, {"nodeSelector": {key: labels[key] for key in LEVELS}})


def _may_go(pod: Json) -> bool:
    """Whether somebody deletes a pod: not one that was always there, nor one of a group that did its work."""
    labels = pod["metadata"].get("labels") or {}
    return "always" not in labels and not (ended(pod) and GROUP in labels)


def _quota(cpu: int) -> Json:
    flavor = {"name": "gpu", "resources": [{"name": "cpu", "nominalQuota": str(cpu)}]}
    return {"coveredResources": ["cpu"], "flavors": [flavor]}


def _suspended(new: Json) -> None:
    new["spec"]["suspend"] = True
    new["metadata"].setdefault("annotations", {})["by-hand"] = "yes"
