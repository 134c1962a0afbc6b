"""A live cluster that moves: a real Kueue 0.19.2 with a tree of queues, Jobs that run and wait, and a witness.

The tree is that of example A of QUEUES-PARITY (shared/), with a third queue in each cohort: 60 GPUs that the running
Jobs fill, so that each Job that ends lets one go on that waits. Nobody preempts, so no pod ends but by its own Job.
"""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.etcd_events import STORING_JSON, Change, Events
from support.jobs import GPU, KEYS, until

from benchmarks.harness import kueue
from cli.install import installation, waiting
from cli.install.installation import Requested
from cli.migrate.moves.finish import KueueRemoval
from cli.migrate.moves.handover import Handover
from cli.migrate.moves.phase_walk import MoveOptions
from cli.migrate.moves.preflight import find_missing_here
from cli.migrate.moves.take_back import TakeBack
from cli.run.components import Components
from crds.constants import NAMESPACE, SERVED
from kube.client import Client
from kube.resources import CONFIG_MAPS, DEPLOYMENTS, JOBS, NAMESPACES, PODS, Resource
from localcluster import LocalCluster, Options
from localcluster.nodes import BLOCK_LABEL, GROUP_LABEL, HOSTNAME_LABEL, RACK_LABEL, Fleet, add_nodes, wait_ready
from localcluster.process import ControlPlaneProcess
from manifests import render
from ungater.model.kueue_objects import PRIORITY_CLASSES, WORKLOADS, versions_of

Json = dict[str, Any]

COHORTS = versions_of("cohorts", "Cohort")[0]
KUEUE_WORKLOADS = WORKLOADS[0]
SYSTEM_NAMESPACE = "kueue-system"
MANAGER = "kueue-controller-manager"
CONFIG = "kueue-manager-config"
LOCAL_QUEUE = "main"
FLEETS = (Fleet(blocks=2, racks=2, hosts=4), Fleet(blocks=1, racks=1, hosts=2, gpus=0, prefix="cpu-", group="cpu"))
PRIORITIES = {"low": 10, "middle": 100, "high": 1000}
# The labels of namespaces that Kueue leaves out: its release's, and those that Topogate serves.
NOT_SERVED = {
    "matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", SYSTEM_NAMESPACE]},
        {"key": SERVED, "operator": "DoesNotExist"},
    ]
}
SETTINGS: Json = {"managedJobsNamespaceSelector": NOT_SERVED}
ESTABLISHED_SECONDS = 60.0
GPUS, CPUS = "gpus", "cpus"  # what a Job asks for: two pods with a GPU each, or one with a CPU
_NEVER = {"reclaimWithinCohort": "Never", "withinClusterQueue": "Never", "borrowWithinCohort": {"policy": "Never"}}


@dataclass(frozen=True)
class TeamQueue:
    """A queue: its cohort, nominal GPUs and limits, and how many Jobs of each kind run and wait in it."""

    cohort: str
    gpus: int
    limits: dict[str, int]
    running: dict[str, int]
    waiting: dict[str, int]


COHORT_SPECS: dict[str, tuple[str, int, dict[str, int]]] = {
    "org": ("", 8, {}),
    "research": ("org", 4, {"borrowingLimit": 6, "lendingLimit": 10}),
    "product": ("org", 0, {}),
}
QUEUES = {
    "vision": TeamQueue("research", 12, {"lendingLimit": 8}, {GPUS: 8, CPUS: 2}, {GPUS: 6, CPUS: 2}),
    "speech": TeamQueue("research", 8, {"borrowingLimit": 4}, {GPUS: 5, CPUS: 2}, {GPUS: 5, CPUS: 2}),
    "audio": TeamQueue("research", 0, {}, {GPUS: 1, CPUS: 1}, {GPUS: 4, CPUS: 1}),
    "ads": TeamQueue("product", 16, {}, {GPUS: 9, CPUS: 2}, {GPUS: 7, CPUS: 2}),
    "maps": TeamQueue("product", 8, {}, {GPUS: 5, CPUS: 2}, {GPUS: 5, CPUS: 2}),
    "mail": TeamQueue("product", 4, {}, {GPUS: 2, CPUS: 1}, {GPUS: 3, CPUS: 1}),
}


def namespace_of(queue: str) -> str:
    """The namespace of the one LocalQueue of a queue."""
    return f"team-{queue}"


@dataclass(frozen=True)
class TeamJob:
    """A Job of the stream."""

    name: str
    queue: str
    kind: str
    priority: str
    request: dict[str, str]

    @property
    def key(self) -> str:
        """Its key, ``namespace/name``."""
        return f"{namespace_of(self.queue)}/{self.name}"

    @property
    def pods(self) -> int:
        """How many pods it has."""
        return 2 if self.kind == GPUS else 1

    def body(self) -> Json:
        """The Job, as a user of Kueue writes it."""
        resource = GPU if self.kind == GPUS else "cpu"
        container = {"name": "c", "image": "i", "resources": {"requests": {resource: "1"}, "limits": {resource: "1"}}}
        labels = {KEYS.queue_name: LOCAL_QUEUE, KEYS.priority_class: self.priority}
        return {
            "metadata": {"name": self.name, "namespace": namespace_of(self.queue), "labels": labels},
            "spec": {
                "suspend": True,
                "parallelism": self.pods,
                "completions": self.pods,
                "completionMode": "Indexed",
                "backoffLimit": 1000,
                "template": {
                    "metadata": {"annotations": self.request},
                    "spec": {"restartPolicy": "Never", "containers": [container]},
                },
            },
        }


def stream(part: str) -> list[TeamJob]:
    """The Jobs that run (``running``) or wait (``waiting``), 40 each, in the order in which they are made.

    The queues take turns, and so do priorities and requests: two of three Jobs with GPUs want one rack.
    """
    left = {(name, kind): getattr(queue, part)[kind] for name, queue in QUEUES.items() for kind in (GPUS, CPUS)}
    jobs: list[TeamJob] = []
    asked: Counter[str] = Counter()
    while any(left.values()):
        for name in QUEUES:
            kind = GPUS if left[name, GPUS] else CPUS
            if not left[name, kind]:
                continue
            left[name, kind] -= 1
            asked[kind] += 1
            request = {} if kind == CPUS else {KEYS.required[1]: RACK_LABEL}
            if kind == GPUS and asked[kind] % 3 == 0:
                request = {KEYS.unconstrained: "true"}
            priority = tuple(PRIORITIES)[len(jobs) * 7 // 3 % len(PRIORITIES)]
            jobs.append(TeamJob(f"{part}-{len(jobs)}", name, kind, priority, request))
    return jobs


def in_waves(jobs: Sequence[TeamJob]) -> list[list[TeamJob]]:
    """The same Jobs, at most one of each queue in a wave, in their order."""
    left, waves = list(jobs), []
    while left:
        wave = list({job.queue: job for job in reversed(left)}.values())
        left = [job for job in left if job not in wave]
        waves.append(wave)
    return waves


class Witness:
    """Sees each change of Jobs and pods in etcd's order, and keeps what must not be.

    ``ending``: keys of Jobs that the test ends; ``started``: keys of Jobs in the order in which they were resumed.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.ending: set[str] = set()
        self.started: list[str] = []
        self.jobs: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}

    def see(self, change: Change) -> None:
        """One change."""
        if change.kind == "jobs":
            self._see_job(change.key, change.new)
        elif change.kind == "pods" and change.key.startswith("team-"):
            self._see_pod(change.key, change.new)

    def _see_job(self, key: str, new: Json | None) -> None:
        old = self.jobs.get(key)
        if new is None:
            self.jobs.pop(key, None)
            return
        self.jobs[key] = new
        if new["spec"].get("suspend"):
            if old is not None and not old["spec"].get("suspend"):
                self.wrong.append(f"Job {key} was suspended while it ran")
        elif old is None or old["spec"].get("suspend"):
            self.started.append(key)

    def _see_pod(self, key: str, new: Json | None) -> None:
        old = self.pods.get(key)
        if new is None:
            self.pods.pop(key, None)
        else:
            self.pods[key] = new
        ran = old is not None and old["status"].get("phase") == "Running"
        gone = new is None or new["metadata"].get("deletionTimestamp") or new["status"].get("phase") != "Running"
        if old is None or not ran or not gone or job_of_pod(old) in self.ending:
            return
        self.wrong.append(f"pod {key} ran and ended")

    def running(self) -> dict[str, tuple[str, str]]:
        """Uid and start time of all pods that run, by key."""
        return {
            key: (pod["metadata"]["uid"], pod["status"].get("startTime", ""))
            for key, pod in self.pods.items()
            if pod["status"].get("phase") == "Running"
        }

    def runs(self, job: TeamJob) -> bool:
        """Whether all pods of a Job run."""
        pods = [pod for pod in self.pods.values() if job_of_pod(pod) == job.key]
        return len(pods) == job.pods and all(pod["status"].get("phase") == "Running" for pod in pods)

    def has_ended(self, job: TeamJob) -> bool:
        """Whether a Job is complete."""
        return bool(self.jobs[job.key]["status"].get("completionTime"))


def job_of_pod(pod: Json) -> str:
    """The key of the Job of a pod."""
    meta = pod["metadata"]
    return f"{meta['namespace']}/{meta.get('labels', {}).get('batch.kubernetes.io/job-name', '')}"


@dataclass
class MovingCluster:
    """A control plane with Kueue, and with Topogate beside it once ``install_topogate`` was called."""

    cluster: LocalCluster
    client: Client
    process: ControlPlaneProcess
    witness: Witness
    events: Events
    components: Components
    created: dict[str, str] = field(default_factory=dict)  # creation times of Jobs, by key

    async def submit(self, jobs: Sequence[TeamJob]) -> None:
        """Create Jobs at once."""
        made = await asyncio.gather(*(self.client.create(JOBS, job.body()) for job in jobs))
        for job, body in zip(jobs, made, strict=True):
            self.created[job.key] = body["metadata"]["creationTimestamp"]

    async def all_run(self, jobs: Sequence[TeamJob], *, seconds: float = 120) -> None:
        """Wait until all pods of these Jobs run."""

        async def done() -> bool:
            return all(map(self.witness.runs, jobs))

        try:
            await until(done, "Jobs to run", seconds=seconds)
        except AssertionError as error:
            raise AssertionError(
                f"{error}: {[self._state(job) for job in jobs if not self.witness.runs(job)]}"
            ) from None

    def _state(self, job: TeamJob) -> Json:
        pods = [
            (pod["metadata"]["name"], pod["metadata"].get("annotations"), pod["spec"], pod["status"])
            for pod in self.witness.pods.values()
            if job_of_pod(pod) == job.key
        ]
        return {"job": self.witness.jobs.get(job.key), "pods": pods}

    async def end_jobs(self, jobs: Sequence[TeamJob]) -> None:
        """Have all pods of these Jobs succeed, and wait until the Jobs are complete."""
        self.witness.ending |= {job.key for job in jobs}
        keys = {job.key for job in jobs}
        pods = [key.split("/") for key, pod in self.witness.pods.items() if job_of_pod(pod) in keys]
        soon = {"metadata": {"annotations": {"topogate.dev/run-seconds": "0"}}}
        await asyncio.gather(*(self.client.patch(PODS, name, namespace, body=soon) for namespace, name in pods))

        async def done() -> bool:
            return all(map(self.witness.has_ended, jobs))

        await until(done, f"{[job.key for job in jobs]} to end")

    async def fill(self, running: Sequence[TeamJob], waves: Sequence[Sequence[TeamJob]]) -> None:
        """Have Kueue start some Jobs, and keep others waiting, which are created wave by wave.

        Each wave has seconds of its own: by those Kueue and Topogate order what waits.
        """
        await self.submit(running)
        await self.all_run(running)
        for wave in waves:
            await asyncio.sleep(1.05)
            await self.submit(wave)
        jobs = {job.key for job in (*running, *(job for wave in waves for job in wave))}

        async def known() -> bool:
            return jobs <= (await self.workloads_of(KUEUE_WORKLOADS)).keys()

        await until(known, "Kueue to have all Jobs")

    async def end_in_waves(self, waves: Sequence[Sequence[TeamJob]]) -> list[set[str]]:
        """End Jobs wave by wave; returns who was started after each, as many as ended."""
        started: list[set[str]] = []
        for wave in waves:
            before = len(self.witness.started)
            await self.end_jobs(wave)

            # The room of one that ended may go to each queue of the tree, so they are counted together.
            async def as_many(many: int = before + len(wave)) -> bool:
                return len(self.witness.started) >= many

            await until(as_many, f"{len(wave)} Jobs to be started for {[job.key for job in wave]}")
            started.append(set(self.witness.started[before:]))
        return started

    async def install_topogate(self) -> None:
        """Install Topogate beside Kueue, as ``topogate install --beside-kueue`` does, and start it."""
        wish = Requested(webhook_url=self.components.webhook_url, beside=True)
        options = await installation.plan(self.client, wish)
        async for _ in installation.apply(self.client, render.objects(options)):
            pass
        await waiting.wait_established(self.client, ESTABLISHED_SECONDS)
        await asyncio.gather(self.components.start("webhook"), self.components.start("ungater"))

        async def is_led() -> bool:
            return not [text async for text in find_missing_here(self.client, NAMESPACE)]

        await until(is_led, "an ungater that leads")

    async def move(self, *queues: str) -> list[str]:
        """``topogate migrate kueue --move``; what it told, line by line."""
        told: list[str] = []
        await Handover(self.client, MoveOptions(NAMESPACE, SYSTEM_NAMESPACE), told.append).move_queues(queues)
        return told

    async def take_back(self, *queues: str) -> list[str]:
        """``topogate migrate kueue --back``; what it told, line by line."""
        told: list[str] = []
        await TakeBack(self.client, MoveOptions(NAMESPACE, SYSTEM_NAMESPACE), told.append).take_back(queues)
        return told

    async def finish(self) -> list[str]:
        """``topogate migrate kueue --finish --yes``; what it told, line by line."""
        told: list[str] = []
        removal = KueueRemoval(self.client, MoveOptions(NAMESPACE, SYSTEM_NAMESPACE), told.append, lambda _: True)
        await removal.finish()
        return told

    async def replace_pod(self, job: TeamJob) -> Json:
        """Delete a pod of a Job that runs, and wait until the one in its place runs, which is returned."""
        old = next(pod for pod in self.witness.pods.values() if job_of_pod(pod) == job.key)
        meta = old["metadata"]
        self.witness.ending.add(job.key)
        await self.client.delete(PODS, meta["name"], meta["namespace"])

        async def gone() -> bool:
            return f"{meta['namespace']}/{meta['name']}" not in self.witness.pods

        await until(gone, "the pod to be gone")
        await self.all_run([job])
        self.witness.ending.discard(job.key)
        index = "batch.kubernetes.io/job-completion-index"
        return next(
            pod
            for pod in self.witness.pods.values()
            if job_of_pod(pod) == job.key and pod["metadata"]["labels"][index] == meta["labels"][index]
        )

    async def workloads_of(self, resource: Resource) -> dict[str, Json]:
        """Workloads of Kueue's or of Topogate's by the key of their Job."""
        found = await self.client.list(resource)
        return {f"{one['metadata']['namespace']}/{one['metadata']['ownerReferences'][0]['name']}": one for one in found}


@contextlib.asynccontextmanager
async def moving_cluster(real: kueue.Kueue) -> AsyncIterator[MovingCluster]:
    """A control plane with nodes, a running Kueue, the tree and its namespaces; a witness sees all of it."""
    options = Options(extra_args=STORING_JSON)
    with LocalCluster(options=options) as cluster:
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(await Client.connect(str(cluster.kubeconfig)))
            process = await stack.enter_async_context(kueue.installed(real, cluster, client, SETTINGS))
            for fleet in FLEETS:
                await add_nodes(client, fleet)
            for fleet in FLEETS:
                await wait_ready(client, fleet.node_names(), timeout=120)
            await kueue.start(process, client)
            for resource, body in kueue_objects():
                await kueue.create_object(process, client, resource, body)
            await _as_deployed(client, (process.log.parent / "config.yaml").read_text())
            witness = Witness()
            events = await stack.enter_async_context(Events(cluster, witness.see))
            components = await stack.enter_async_context(Components(cluster, client))
            yield MovingCluster(cluster, client, process, witness, events, components)


def kueue_objects() -> Iterator[tuple[Resource, Json]]:
    """The tree, with its flavors and priorities, the namespaces and their LocalQueues."""
    levels = [{"nodeLabel": label} for label in (BLOCK_LABEL, RACK_LABEL, HOSTNAME_LABEL)]
    yield kueue.TOPOLOGIES, _object(kueue.TOPOLOGIES, "default", {"levels": levels})
    gpu = {"nodeLabels": {GROUP_LABEL: "tas"}, "topologyName": "default"}
    yield kueue.FLAVORS, _object(kueue.FLAVORS, "gpu", gpu)
    yield kueue.FLAVORS, _object(kueue.FLAVORS, "cpu", {"nodeLabels": {GROUP_LABEL: "cpu"}})
    for name, value in PRIORITIES.items():
        body = _object(PRIORITY_CLASSES[0], name, None)
        yield PRIORITY_CLASSES[0], {**body, "value": value}
    for name, (parent, gpus, limits) in COHORT_SPECS.items():
        spec = {"resourceGroups": [_group(GPU, "gpu", gpus, limits)], **({"parentName": parent} if parent else {})}
        yield COHORTS, _object(COHORTS, name, spec)
    for name, queue in QUEUES.items():
        cpus = queue.running[CPUS]
        groups = [_group(GPU, "gpu", queue.gpus, queue.limits), _group("cpu", "cpu", cpus, {})]
        spec = {"cohortName": queue.cohort, "namespaceSelector": {}, "preemption": _NEVER, "resourceGroups": groups}
        yield kueue.CLUSTER_QUEUES, _object(kueue.CLUSTER_QUEUES, name, spec)
        yield NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace_of(name)}}
        local = _object(kueue.LOCAL_QUEUES, LOCAL_QUEUE, {"clusterQueue": name})
        local["metadata"]["namespace"] = namespace_of(name)
        yield kueue.LOCAL_QUEUES, local


def _object(resource: Resource, name: str, spec: Json | None) -> Json:
    body: Json = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}
    return body if spec is None else {**body, "spec": spec}


def _group(resource: str, flavor: str, nominal: int, limits: dict[str, int]) -> Json:
    amounts = {"nominalQuota": nominal, **limits}
    flavors = [{"name": flavor, "resources": [{"name": resource, **amounts}]}]
    return {"coveredResources": [resource], "flavors": flavors}


async def _as_deployed(client: Client, config: str) -> None:
    """What tells of Kueue's process in a cluster where it is deployed: its ConfigMap, and a Deployment of one pod.

    KWOK plays the pod; the process itself runs beside the cluster.
    """
    data = {"controller_manager_config.yaml": config}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG, "namespace": SYSTEM_NAMESPACE}}
    await client.apply(CONFIG_MAPS, {**body, "data": data}, field_manager="test", force=True)
    labels = {"control-plane": "controller-manager"}
    volume = {"name": "manager-config", "configMap": {"name": CONFIG}}
    container = {"name": "manager", "image": f"registry.k8s.io/kueue/kueue:v{kueue.VERSION}"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": [volume]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pod}
    meta = {"name": MANAGER, "namespace": SYSTEM_NAMESPACE}
    await client.create(DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})

    async def available() -> bool:
        found = await client.get(DEPLOYMENTS, MANAGER, SYSTEM_NAMESPACE)
        return found.get("status", {}).get("availableReplicas") == 1

    await until(available, "Kueue's Deployment")


def expected_order(jobs: Sequence[TeamJob], created: dict[str, str]) -> dict[tuple[str, str], list[str]]:
    """In which order Kueue admits what waits in each queue, by what it asks for.

    By priority, then by the second in which it was made (0.19.2, pkg/cache/queue/cluster_queue.go, baseCompareFunc).
    """
    found: defaultdict[tuple[str, str], list[TeamJob]] = defaultdict(list)
    for job in jobs:
        found[job.queue, job.kind].append(job)
    order = {}
    for key, mine in found.items():
        by = {(-PRIORITIES[job.priority], created[job.key]): job.key for job in mine}
        assert len(by) == len(mine), "two Jobs of a queue were made in one second"
        order[key] = [by[rank] for rank in sorted(by)]
    return order


def out_of_order(started: Sequence[set[str]], order: dict[tuple[str, str], list[str]]) -> list[str]:
    """What was started before something that comes first in its queue; ``started``: at the same time, time by time."""
    wrong: list[str] = []
    for (queue, kind), wanted in order.items():
        left = list(wanted)
        for batch in started:
            mine = batch & set(wanted)
            if mine != set(left[: len(mine)]):
                wrong.append(f"{queue}, {kind}: {sorted(mine)} were started, next were {left[: len(mine)]}")
            left = [key for key in left if key not in mine]
    return wrong
