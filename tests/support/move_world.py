"""A cluster in memory that moves from Kueue to Topogate and back: both controllers are played, by what they rely on.

- Kueue (0.19.2) looks at a job when the job or its Workload changes, not when the label of the namespace does. It
  leaves out namespaces that have the label, of which it hears late. It suspends a job that runs without an admitted
  Workload, starts one that is admitted, and admits by priority, then by creation, in queues that are not on hold.
- Topogate looks at all jobs of namespaces that are labelled, and hears late of a label that is gone. It takes over what
  runs by Kueue's admission, suspends what runs otherwise, and admits in the same order.
- What must never be is noted in `MoveWorld.wrong` with each change: a pod that ran and ended, a queue that goes on in
  both or is in a cohort of both, and a job that one starts in a namespace that both or none of them serve.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from copy import deepcopy
from typing import Any

from support.history.loop import Loop
from support.kueue_played import CONFIGURATION
from support.move_store import Json, Key, Killed, MoveStore, StoreClient

from cli.migrate.moves.backup import NAME as BACKUPS
from cli.migrate.moves.finish import KueueRemoval
from cli.migrate.moves.handover import KUEUE_FINALIZER, Handover
from cli.migrate.moves.kueue_workloads import IN_USE
from cli.migrate.moves.phase_walk import MoveOptions
from cli.migrate.moves.quiet import OUR_GATE, has_ended
from cli.migrate.moves.take_back import TakeBack
from cli.migrate.source_objects import DEPLOYMENT, NAMESPACE
from crds.constants import KUEUE_POD_SET, SERVED, Keys
from crds.kueue.names import kueue_workload_name
from crds.settings import CONFIG_KEY, CONFIG_MAP
from kube import resources
from kube.resources import Resource
from manifests.render import WEBHOOK_CONFIGURATION
from ungater.model.kueue_objects import GROUP, WORKLOADS

KEYS = Keys()
HOME = "topogate"
OPTIONS = MoveOptions(HOME, NAMESPACE)
THEIRS = WORKLOADS[0]
KINDS = {
    kind: Resource(GROUP, "v1beta2", plural, kind, namespaced)
    for kind, plural, namespaced in (
        ("ClusterQueue", "clusterqueues", False),
        ("Cohort", "cohorts", False),
        ("LocalQueue", "localqueues", True),
        ("ResourceFlavor", "resourceflavors", False),
        ("Workload", "workloads", True),
        ("WorkloadPriorityClass", "workloadpriorityclasses", False),
    )
}
PRIORITIES = {"low": 1, "high": 9}
KUEUE_HEARS, TOPOGATE_HEARS = 3.0, 9.0  # seconds until a label that changed counts, at most
AWAY = 30.0  # seconds until another controller leads after one was killed
STEP = 0.5  # seconds between looks of the controllers
_RUNNING = {"phase": "Running"}
_OF_THE_MOMENT = {"resourceVersion", "creationTimestamp", "lastTransitionTime"}


class MoveWorld:
    """See the module. ``started``: names of jobs in the order in which they were started."""

    def __init__(self, store: MoveStore) -> None:
        self.store = store
        store.judge = self._judge
        self.wrong: list[str] = []
        self.started: list[str] = []
        self.kueue_seen: dict[str, Any] = {}
        self.labels: dict[str, list[tuple[float, dict[str, str]]]] = defaultdict(list)
        self.ending: set[str] = set()  # keys of jobs whose pods end by themselves
        self.topogate_writes = 0
        self.topogate_dies_after: int | None = None
        self.topogate_starts = 0.0  # when it is there (again)

    def copy(self) -> "MoveWorld":
        """Another one that is the same."""
        found = MoveWorld(self.store.copy())
        found.started, found.kueue_seen = list(self.started), dict(self.kueue_seen)
        found.labels, found.ending = deepcopy(self.labels), set(self.ending)
        found.topogate_writes, found.topogate_starts = self.topogate_writes, self.topogate_starts
        return found

    # --- commands ----------------------------------------------------------------------------------------------------

    def run(self, way: str, *queues: str, dies_after: int | None = None, after: float = 60.0) -> StoreClient | None:
        """A command, then some time without one. None where it was killed. Raises Failure; judges itself."""
        client = StoreClient(self.store, dies_after)

        async def work(loop: Loop) -> None:
            if way == "--move":
                await Handover(client, OPTIONS, _ignore, loop.clock).move_queues(queues)
            elif way == "--back":
                await TakeBack(client, OPTIONS, _ignore, loop.clock).take_back(queues)
            else:
                await KueueRemoval(client, OPTIONS, _ignore, lambda _: True).finish()

        try:
            self.play(work)
        except Killed:
            client = None
        finally:
            self.play(lambda _: asyncio.sleep(after))
        assert self.wrong == []
        return client

    def play(self, work: Callable[[Loop], Coroutine[Any, Any, None]]) -> None:
        """Let both controllers go on while somebody works."""
        loop = Loop(None)
        loop.now = self.store.now

        async def whole() -> None:
            others = asyncio.create_task(self._controllers(loop))
            try:
                await work(loop)
            finally:
                others.cancel()

        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(whole())
        finally:
            self.store.now = loop.now
            loop.close()
            asyncio.set_event_loop(None)

    async def _controllers(self, loop: Loop) -> None:
        seen = -1
        while True:
            self.store.now = loop.now
            self._hear_labels()
            # What was heard late is looked at though nothing changes at that moment.
            late = any(loop.now - changes[-1][0] <= TOPOGATE_HEARS + 2 * STEP for changes in self.labels.values())
            late = late or 0 <= loop.now - self.topogate_starts <= 2 * STEP
            if self.store.version != seen or late:
                seen = self.store.version
                PlayedKueue(self).look()
                self._look_by_topogate()
            await asyncio.sleep(STEP)

    def _look_by_topogate(self) -> None:
        if self.store.now < self.topogate_starts:
            return
        try:
            PlayedTopogate(self).look()
        except Killed:
            self.topogate_starts = self.store.now + AWAY

    def _hear_labels(self) -> None:
        for one in self.store.within(resources.NAMESPACES):
            labels, changes = one["metadata"].get("labels") or {}, self.labels[one["metadata"]["name"]]
            if not changes or changes[-1][1] != labels:
                changes.append((self.store.now, labels))

    def heard(self, namespace: str, late: float) -> dict[str, str]:
        """The labels of a namespace as one sees them who hears of a change so much later."""
        changes = self.labels[namespace]
        return next((labels for at, labels in reversed(changes) if at + late <= self.store.now), changes[0][1])

    # --- what is there -----------------------------------------------------------------------------------------------

    def jobs(self) -> list[Json]:
        """Jobs in the order in which they were made."""
        return sorted(
            self.store.within(resources.JOBS), key=lambda one: (one["metadata"]["creationTimestamp"], key_of(one))
        )

    def namespace_of(self, name: str) -> str:
        """That of a job by its name."""
        return next(one["metadata"]["namespace"] for one in self.jobs() if one["metadata"]["name"] == name)

    def owned(self, resource: Resource, job: Json) -> list[Json]:
        """What is of a job."""
        every = self.store.within(resource, job["metadata"]["namespace"])
        return [one for one in every if owner_of(one) == job["metadata"]["uid"]]

    def queue_of(self, resource: Resource, job: Json) -> str:
        """The ClusterQueue of a job by the LocalQueues of one group; "" where it has none."""
        meta = job["metadata"]
        local = self.store.find(resource, meta["labels"][KEYS.queue_name], meta["namespace"])
        return local["spec"]["clusterQueue"] if local is not None else ""

    def start(self, job: Json, labels: Json, annotations: Json) -> None:
        """Resume a job, whose pods run at once."""
        meta = job["metadata"]
        template = {"metadata": {"labels": labels, "annotations": annotations}}
        body = {"spec": {"suspend": False, "template": template}}
        made = self.store.patch(resources.JOBS, meta["name"], meta["namespace"], body)
        self.started.append(meta["name"])
        for number in range(made["spec"]["parallelism"]):
            pod = {
                "metadata": {
                    "name": f"{meta['name']}-{number}",
                    "labels": labels,
                    "ownerReferences": [reference(made)],
                },
                "spec": {"nodeName": "n", "containers": made["spec"]["template"]["spec"]["containers"]},
                "status": _RUNNING,
            }
            self.store.create(resources.PODS, pod, meta["namespace"], status=True)

    def suspend(self, job: Json, who: str) -> None:
        """What nobody may do here: the pods of the job end."""
        self.wrong.append(f"{who} suspended {key_of(job)}, which runs")
        meta = job["metadata"]
        self.store.patch(resources.JOBS, meta["name"], meta["namespace"], {"spec": {"suspend": True}})

    def end(self, name: str) -> None:
        """Have a job succeed, and both controllers see it."""
        (job,) = (one for one in self.jobs() if one["metadata"]["name"] == name)
        self.ending.add(key_of(job))
        for pod in self.owned(resources.PODS, job):
            self.store.delete(resources.PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
        done = {"status": {"conditions": [condition("Complete", self.store.time())]}}
        self.store.patch(resources.JOBS, name, job["metadata"]["namespace"], done, "status")
        self.play(lambda _: asyncio.sleep(5))

    def digest(self) -> dict[str, Json]:
        """All objects as they are, without what differs between two clusters that are the same."""
        found = {}
        for key, body in self.store.objects.items():
            plain = _plain(body, made_again=key[1] == "workloads")
            if key[3].startswith(BACKUPS):
                plain["data"] = {name: json.loads(text) for name, text in plain.get("data", {}).items()}
            found["/".join(key)] = plain
        return found

    # --- what may never be -------------------------------------------------------------------------------------------

    def _judge(self, key: Key, old: Json | None, new: Json | None) -> None:
        _, plural, namespace, name = key
        if plural == "pods" and new is None and old is not None and old["status"] == _RUNNING:
            owners = {f"{namespace}/{one['name']}" for one in old["metadata"].get("ownerReferences") or ()}
            if not owners & self.ending:
                self.wrong.append(f"pod {namespace}/{name} ran and ended")
        if plural == "clusterqueues" and new is not None:
            both = [self.store.objects.get((one, plural, "", name), {}).get("spec") for one in (GROUP, "topogate.dev")]
            if all(both) and all(one.get("cohortName") for one in both):
                self.wrong.append(f"the quota of {name} is lent twice")
            if all(both) and not any(one.get("stopPolicy", "None") != "None" for one in both):
                self.wrong.append(f"{name} goes on in both")


class PlayedKueue:
    """One look of Kueue's at all that changed."""

    def __init__(self, world: MoveWorld) -> None:
        self.world = world
        self.store = world.store

    def look(self) -> None:
        """At jobs, then at queues."""
        if self.store.find(resources.DEPLOYMENTS, DEPLOYMENT, NAMESPACE) is None or not [*self.store.kinds()]:
            return
        if {one["kind"] for one in self.store.kinds()} < KINDS.keys():
            return
        for job in self.world.jobs():
            if KEYS.queue_name not in (job["metadata"].get("labels") or {}):
                continue
            if self._changed(job) and SERVED not in self.world.heard(job["metadata"]["namespace"], KUEUE_HEARS):
                self._look_at(job)
        for queue in self.store.within(KINDS["ClusterQueue"]):
            if queue["spec"].get("stopPolicy", "None") == "None":
                self._admit(queue)

    def _changed(self, job: Json) -> bool:
        there = (job, *self.world.owned(THEIRS, job))
        now = tuple(one["metadata"]["resourceVersion"] for one in there)
        before, self.world.kueue_seen[key_of(job)] = self.world.kueue_seen.get(key_of(job)), now
        return now != before

    def _look_at(self, job: Json) -> None:
        meta, theirs = job["metadata"], []
        for one in self.world.owned(THEIRS, job):
            if one["metadata"].get("deletionTimestamp"):
                self.store.patch(THEIRS, one["metadata"]["name"], meta["namespace"], {"metadata": {"finalizers": None}})
            else:
                theirs.append(one)
        if has_ended(job):
            for one in theirs:
                said = [*one["status"].get("conditions", ()), condition("Finished", self.store.time())]
                body = {"status": {"conditions": said}}
                if "Finished" not in types_of(one):
                    self.store.patch(THEIRS, one["metadata"]["name"], meta["namespace"], body, "status")
            return
        admitted = [one for one in theirs if {"Admitted"} <= types_of(one)]
        if not job["spec"]["suspend"] and not admitted:
            self.world.suspend(job, "Kueue")
        if not theirs:
            self.store.create(THEIRS, self._workload(job), meta["namespace"])
        elif len(theirs) > 1:
            self.world.wrong.append(f"Kueue has {len(theirs)} Workloads of {key_of(job)}")
        elif admitted and job["spec"]["suspend"]:
            self.world.start(job, {KUEUE_POD_SET: "main"}, {})

    def _workload(self, job: Json) -> Json:
        meta = job["metadata"]
        kept = {**job["spec"]["template"]}
        pod_set = {"name": "main", "count": job["spec"]["parallelism"], "template": kept}
        return {
            "metadata": {
                "name": kueue_workload_name("Job", "batch/v1", meta["name"], meta["uid"]),
                "finalizers": [IN_USE],
                "ownerReferences": [reference(job)],
            },
            "spec": {
                "queueName": meta["labels"][KEYS.queue_name],
                "podSets": [pod_set],
                "priority": priority_of(job),
                "active": True,
            },
            "status": {},
        }

    def _admit(self, queue: Json) -> None:
        name, by_uid = queue["metadata"]["name"], {job["metadata"]["uid"]: job for job in self.world.jobs()}
        mine = [
            (one, by_uid[owner_of(one)])
            for one in self.store.within(THEIRS)
            if owner_of(one) in by_uid and self.world.queue_of(KINDS["LocalQueue"], by_uid[owner_of(one)]) == name
        ]
        live = [(one, job) for one, job in mine if "Finished" not in types_of(one)]
        left = nominal_of(queue) - sum(job["spec"]["parallelism"] for one, job in live if "Admitted" in types_of(one))
        for one, job in in_order((one, job) for one, job in live if "Admitted" not in types_of(one)):
            if (count := job["spec"]["parallelism"]) > left:
                return
            left -= count
            meta = one["metadata"]
            if SERVED in (self.store.find(resources.NAMESPACES, meta["namespace"])["metadata"].get("labels") or {}):
                self.world.wrong.append(f"Kueue admitted {key_of(job)} in a namespace of Topogate's")
            status = admitted(job, name, self.store.time(), "Admitted")
            self.store.patch(THEIRS, meta["name"], meta["namespace"], {"status": status}, "status")


class PlayedTopogate:
    """One look of Topogate's at all that it serves. Killed is raised after the write after which it dies."""

    def __init__(self, world: MoveWorld) -> None:
        self.world = world
        self.store = world.store

    def _write(self, do: Callable[..., object], *what: Any) -> None:
        do(*what)
        self.world.topogate_writes += 1
        if self.world.topogate_writes == self.world.topogate_dies_after:
            raise Killed

    def look(self) -> None:
        """At jobs, then at queues."""
        for job in self.world.jobs():
            namespace = job["metadata"]["namespace"]
            # A label that comes counts at once.
            labels = self.store.find(resources.NAMESPACES, namespace)["metadata"].get("labels") or {}
            late = self.world.heard(namespace, TOPOGATE_HEARS)
            if KEYS.queue_name in (job["metadata"].get("labels") or {}) and "true" in {
                labels.get(SERVED),
                late.get(SERVED),
            }:
                self._look_at(job)
        for queue in self.store.within(resources.CLUSTER_QUEUES):
            if queue["spec"].get("stopPolicy", "None") == "None":
                self._admit(queue)

    def _look_at(self, job: Json) -> None:
        meta, mine = job["metadata"], self.world.owned(resources.WORKLOADS, job)
        if has_ended(job):
            for one in mine:
                self._write(self.store.delete, resources.WORKLOADS, one["metadata"]["name"], meta["namespace"])
            return
        # Its queues are gone: the way back is nearly through, and nobody is served by them.
        if not self.world.queue_of(resources.LOCAL_QUEUES, job):
            return
        if not mine:
            self._take_up(job)
        elif job["spec"]["suspend"] and "Admitted" in types_of(mine[0]):
            annotations = {"kueue.x-k8s.io/workload": f"late-{meta['name']}"}
            self._write(self.world.start, job, {KUEUE_POD_SET: "main"}, annotations)
        elif job["spec"]["suspend"] and not is_stamped(job):
            self._stamp(job)
        elif not job["spec"]["suspend"] and "Admitted" not in types_of(mine[0]):
            self._adopt(job, mine[0])

    def _take_up(self, job: Json) -> None:
        meta = job["metadata"]
        theirs = self._admitted_by_kueue(job)
        template = theirs[0]["spec"]["podSets"][0]["template"] if theirs else job["spec"]["template"]
        count = job["spec"]["parallelism"]
        body = {
            "metadata": {"name": f"job-{meta['name']}", "ownerReferences": [reference(job)]},
            "spec": {
                "queueName": meta["labels"][KEYS.queue_name],
                "podSets": [{"name": "main", "count": count, "template": template}],
                "priority": priority_of(job),
            },
        }
        self._write(self.store.create, resources.WORKLOADS, body, meta["namespace"])

    def _adopt(self, job: Json, mine: Json) -> None:
        if not self._admitted_by_kueue(job):
            self.world.suspend(job, "Topogate")
            return
        queue = self.world.queue_of(resources.LOCAL_QUEUES, job)
        self._admit_one(mine, admitted(job, queue, self.store.time(), "Adopted"))

    def _admitted_by_kueue(self, job: Json) -> list[Json]:
        served = any(one["kind"] == "Workload" for one in self.store.kinds())
        return [one for one in self.world.owned(THEIRS, job) if "Admitted" in types_of(one)] if served else []

    def _admit_one(self, mine: Json, status: Json) -> None:
        meta = mine["metadata"]
        body = {"status": status}
        self._write(self.store.patch, resources.WORKLOADS, meta["name"], meta["namespace"], body, "status")

    def _stamp(self, job: Json) -> None:
        annotations = {KEYS.pod_set: "main", KEYS.unconstrained: "true"}
        template = {"metadata": {"annotations": annotations}, "spec": {"schedulingGates": [{"name": OUR_GATE}]}}
        meta = job["metadata"]
        body = {"spec": {"template": template}}
        self._write(self.store.patch, resources.JOBS, meta["name"], meta["namespace"], body)

    def _admit(self, queue: Json) -> None:
        name = queue["metadata"]["name"]
        mine = []
        for job in self.world.jobs():
            if self.world.queue_of(resources.LOCAL_QUEUES, job) == name and not has_ended(job):
                mine += [(one, job) for one in self.world.owned(resources.WORKLOADS, job)]
        left = nominal_of(queue) - sum(job["spec"]["parallelism"] for one, job in mine if "Admitted" in types_of(one))
        for one, job in in_order((one, job) for one, job in mine if "Admitted" not in types_of(one)):
            if (count := job["spec"]["parallelism"]) > left:
                return
            left -= count
            self._admit_one(one, admitted(job, name, self.store.time(), "Admitted"))


# --- objects ---------------------------------------------------------------------------------------------------------


def make_world() -> MoveWorld:
    """Queues a (namespace x) and b (x and y) of a cohort, in which two jobs run and five wait; Kueue serves all."""
    store = MoveStore()
    world = MoveWorld(store)
    for name in ("x", "y", NAMESPACE, HOME):
        store.create(resources.NAMESPACES, {"metadata": {"name": name}})
    for kind, resource in KINDS.items():
        scope = "Namespaced" if resource.namespaced else "Cluster"
        spec = {"group": GROUP, "names": {"plural": resource.plural, "kind": kind}, "scope": scope}
        body = {"metadata": {"name": f"{resource.plural}.{GROUP}"}, "spec": spec}
        store.create(resources.CUSTOM_RESOURCE_DEFINITIONS, body)
    _install(store)
    for name, value in PRIORITIES.items():
        store.create(KINDS["WorkloadPriorityClass"], {"metadata": {"name": name}, "value": value})
    store.create(KINDS["ResourceFlavor"], {"metadata": {"name": "f"}, "spec": {}})
    store.create(KINDS["Cohort"], {"metadata": {"name": "all"}, "spec": {}})
    for name, nominal in (("a", 3), ("b", 2)):
        amount = {"name": "cpu", "nominalQuota": str(nominal), "lendingLimit": "0"}
        flavors = [{"name": "f", "resources": [amount]}]
        groups = [{"coveredResources": ["cpu"], "flavors": flavors}]
        spec = {"cohortName": "all", "namespaceSelector": {}, "resourceGroups": groups}
        store.create(KINDS["ClusterQueue"], {"metadata": {"name": name}, "spec": spec})
    for namespace, name in (("x", "a"), ("x", "b"), ("y", "b")):
        store.create(KINDS["LocalQueue"], {"metadata": {"name": name}, "spec": {"clusterQueue": name}}, namespace)
    for namespace, queue, name, priority in (
        ("x", "a", "a-runs", "low"),
        ("y", "b", "b-runs", "low"),
        ("x", "a", "a-waits", "low"),
        ("x", "a", "a-waits-more", "low"),
        ("x", "a", "a-first", "high"),
        ("x", "b", "b-waits", "low"),
        ("y", "b", "b-first", "high"),
    ):
        make_job(store, namespace, queue, name, priority)
        world.play(lambda _: asyncio.sleep(2))
    # Kueue's plain pods, whose finalizer nobody would take off.
    meta = {"name": "plain", "labels": {KUEUE_POD_SET: "main"}, "finalizers": [KUEUE_FINALIZER]}
    body = {"metadata": meta, "spec": {"nodeName": "n", "containers": []}, "status": _RUNNING}
    store.create(resources.PODS, body, "x", status=True)
    assert (world.started, world.wrong) == (["a-runs", "b-runs"], [])
    return world


def _install(store: MoveStore) -> None:
    """What tells of Kueue's process, and of Topogate beside it."""
    text = "besideKueue: true\nleaderElection: false\n"
    store.create(resources.CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: text}}, HOME)
    store.create(resources.MUTATING_WEBHOOKS, {"metadata": {"name": WEBHOOK_CONFIGURATION}, "webhooks": []})
    data = {"controller_manager_config.yaml": CONFIGURATION}
    store.create(resources.CONFIG_MAPS, {"metadata": {"name": "config"}, "data": data}, NAMESPACE)
    volumes = [{"name": "config", "configMap": {"name": "config"}}]
    spec = {"selector": {"matchLabels": {}}, "template": {"spec": {"volumes": volumes, "containers": []}}}
    body = {"metadata": {"name": DEPLOYMENT}, "spec": spec, "status": {"availableReplicas": 1}}
    store.create(resources.DEPLOYMENTS, body, NAMESPACE, status=True)
    service = {"service": {"namespace": NAMESPACE, "name": "kueue-webhook-service"}}
    hooks = [{"clientConfig": service, "rules": [{"apiGroups": [GROUP]}]}]
    store.create(resources.VALIDATING_WEBHOOKS, {"metadata": {"name": "kueue"}, "webhooks": hooks})


def make_job(store: MoveStore, namespace: str, queue: str, name: str, priority: str) -> None:
    """A Job of two pods, as a user of Kueue writes it."""
    labels = {KEYS.queue_name: queue, KEYS.priority_class: priority}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    template = {"metadata": {}, "spec": {"containers": [container], "restartPolicy": "Never"}}
    spec = {"suspend": True, "parallelism": 2, "completions": 2, "template": template}
    store.create(resources.JOBS, {"metadata": {"name": name, "labels": labels}, "spec": spec}, namespace)


def key_of(obj: Json) -> str:
    """``namespace/name``."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def reference(job: Json) -> Json:
    """By which an object names its job."""
    meta = job["metadata"]
    return {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}


def owner_of(obj: Json) -> str:
    """The uid of the job of an object."""
    return next((one["uid"] for one in obj["metadata"].get("ownerReferences") or ()), "")


def types_of(workload: Json) -> set[str]:
    """The conditions that hold."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return {one["type"] for one in conditions if one["status"] == "True"}


def is_stamped(job: Json) -> bool:
    """Whether the template has our gate."""
    return bool(job["spec"]["template"]["spec"].get("schedulingGates"))


def priority_of(job: Json) -> int:
    """What its class says."""
    return PRIORITIES[job["metadata"]["labels"][KEYS.priority_class]]


def nominal_of(queue: Json) -> int:
    """How many pods of a cpu a queue takes."""
    return int(queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"])


def in_order(pairs: Iterator[tuple[Json, Json]]) -> list[tuple[Json, Json]]:
    """Workloads with their jobs by priority, then by when the job was made."""
    return sorted(
        pairs, key=lambda one: (-priority_of(one[1]), one[1]["metadata"]["creationTimestamp"], key_of(one[1]))
    )


def condition(kind: str, when: str, reason: str = "") -> Json:
    """One that holds."""
    return {"type": kind, "status": "True", "reason": reason or kind, "message": "", "lastTransitionTime": when}


def admitted(job: Json, queue: str, when: str, reason: str) -> Json:
    """The status of a Workload by which a job runs."""
    count = job["spec"]["parallelism"]
    part = {"name": "main", "count": count, "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": str(count)}}
    return {
        "admission": {"clusterQueue": queue, "podSetAssignments": [part]},
        "conditions": [condition("QuotaReserved", when), condition("Admitted", when, reason)],
    }


def _plain(body: Any, *, made_again: bool) -> Any:
    if isinstance(body, list):
        return [_plain(one, made_again=False) for one in body]
    if not isinstance(body, dict):
        return body
    found = {name: _plain(value, made_again=made_again) for name, value in body.items() if name not in _OF_THE_MOMENT}
    if made_again:
        found.pop("uid", None)
    return {name: value for name, value in found.items() if value not in ({}, [])}


def _ignore(_: str) -> None:
    """Nobody reads along."""
