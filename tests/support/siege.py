"""A cluster under attack: a tenant with the stock role edit in one namespace, an honest one in another, and what holds.

One `Siege` serves many attacks: the controller with its policies, the tenants' policies, a queue for each of the two.
2 blocks x 2 racks x 2 hosts of 8 GPUs, of which honest jobs have two hosts from the beginning.
"""

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from support import jobsets
from support.accounts import HOME, PROBE, WAIT_SECONDS, give_role_edit, renamed
from support.accounts import _holds as holds
from support.jobs import GPU, KEYS, Running, install_crds, make_flavor, until
from support.queues import API, Queued, make_priorities, make_queue, queued
from support.webhook_installed import serving

from kube.client import Client
from kube.errors import Conflict, KubeTimeout, NotFound
from kube.resources import (
    CLUSTER_QUEUES,
    DEPLOYMENTS,
    EVENTS,
    JOB_SETS,
    JOBS,
    LEADER_WORKER_SETS,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    RESOURCE_FLAVORS,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    STATEFUL_SETS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    WORKLOADS,
    Resource,
    resource_of,
)
from localcluster import Fleet, LocalCluster, add_nodes, wait_ready
from manifests import render

Json = dict[str, Any]
FLEET = Fleet(blocks=2, racks=2, hosts=2)
HOSTS, GPUS = 8, 8
MEMORY = 1 << 30  # bytes; the tests' own are among them
QUOTA = 32  # GPUs of the attacker's queue
ANYWHERE = {KEYS.unconstrained: "true"}
SHORT: Mapping[str, Any] = {
    "ungate_batch_seconds": 0.05,
    "missing_pods_timeout_seconds": 2.0,
    "missing_pods_recovery_timeout_seconds": 6.0,
    "eviction_patience_seconds": 1.0,
}
_KINDS = {
    "ClusterRole",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
_OURS = {f"topogate-{name}" for name in ("pods", "workloads", "claims", "view", "edit", "admin", "priority")}
# Owners before what they own, so that nothing is made again; what keeps pods from being deleted first of all.
_CLEANED = (
    RESOURCE_QUOTAS,
    POD_DISRUPTION_BUDGETS,
    JOB_SETS,
    LEADER_WORKER_SETS,
    DEPLOYMENTS,
    STATEFUL_SETS,
    REPLICA_SETS,
    JOBS,
    PODS,
)
_names = itertools.count(1)


class Siege:
    """See the module. ``mine``: what the attacker's namespace shows; ``theirs``: the honest one's."""

    def __init__(self, admin: Client, tenant: Client, name: str, settings: Mapping[str, Any]) -> None:
        self.admin = admin
        self.tenant = tenant
        self.name = name
        self.mine = Queued(admin, f"{name}-mallory")
        self.theirs = Queued(admin, f"{name}-alice")
        self.controller = Running(admin, **{**SHORT, **settings})
        self.webhook: Any = None
        self._there: dict[str, str] = {}  # pods of honest jobs that ran from the beginning, by uid
        self.before: set[str] = set()  # uids of events and Workloads of attacks that are over

    @property
    def namespace(self) -> str:
        """The attacker's."""
        return self.mine.namespace

    # --- what the attacker does ----------------------------------------------------------------------------------

    async def submit(self, name: str, pods: int = 1, queue: str = "team", **options: Any) -> Json:
        """A queued Job of the attacker's, anywhere unless it says where; made by the attacker."""
        body = queued(name, pods, queue, **{"request": ANYWHERE, **options})
        return await self.tenant.create(JOBS, body, self.namespace)

    async def create(self, body: Json) -> Json:
        """Whatever it is, by the attacker."""
        return await self.tenant.create(resource_of(body), body, self.namespace)

    # --- what must hold ------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Honest jobs that run all the time: one in a queue, one without."""
        await self.theirs.submit("steady", 1)
        body = queued("lone", 1, request=ANYWHERE, spec={"suspend": False})
        body["metadata"]["labels"] = {}
        await self.theirs.create(body)
        for name in ("steady", "lone"):
            await self._keep(name, 1)

    async def hold(self, name: str, pods: int, queue: str) -> None:
        """One more honest job that runs all the time."""
        await self.theirs.submit(name, pods, queue, request=ANYWHERE)
        await self._keep(name, pods)

    async def _keep(self, name: str, pods: int) -> None:
        for found in await self.theirs.running(name, pods):
            self._there[found["metadata"]["uid"]] = name

    async def stands(self) -> None:
        """While the attack stands: the controller answers, honest pods run, and an honest job is placed and runs."""
        await self.answers()
        await self.untouched()
        name = f"probe-{next(_names)}"
        await self.theirs.submit(name, 1)
        try:
            await self.theirs.running(name, 1)
        finally:
            await self._gone(name)

    async def over(self) -> None:
        """After the attack, once what the attacker made is deleted, nothing is held for it: honest jobs get all."""
        await self.clean()
        await until(self._nothing_used, f"the queue of {self.namespace} to be empty")
        name = f"all-{next(_names)}"
        await self.theirs.submit(name, HOSTS - len(self._there), request=ANYWHERE)
        await self.theirs.running(name, HOSTS - len(self._there))
        await self._gone(name)
        await self.untouched()
        await self.answers()
        for resource in (EVENTS, WORKLOADS):
            self.before |= {obj["metadata"]["uid"] for obj in await self.admin.list(resource, self.namespace)}

    async def answers(self) -> None:
        """The controller leads, and no object led to an error that nobody had foreseen."""
        task = self.controller._task
        assert task is not None
        if task.done():
            task.result()
        url = f"http://127.0.0.1:{self.controller.port}"
        async with aiohttp.ClientSession() as session:

            async def answers(path: str) -> bool:
                async with session.get(f"{url}/{path}") as answer:
                    return answer.status == 200

            for path in ("healthz", "readyz"):  # one that was just started lists all kinds first
                await until(lambda path=path: answers(path), f"/{path} to answer 200")
            async with session.get(f"{url}/metrics") as answer:
                lines = (await answer.text()).splitlines()
        assert _memory() < MEMORY, f"{_memory() >> 20} MiB"
        poisoned = [line for line in lines if line.startswith("topogate_poisoned_objects_total{")]
        assert not [line for line in poisoned if not line.endswith(" 0.0")], poisoned

    async def untouched(self) -> None:
        """The honest pods that ran from the beginning still do, and nobody has asked them to go."""
        found = await self.admin.list(PODS, self.theirs.namespace)
        running = {
            pod["metadata"]["uid"]
            for pod in found
            if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        }
        lost = [name for uid, name in self._there.items() if uid not in running]
        assert not lost, f"pods of honest jobs {lost} were evicted or deleted"

    async def used(self) -> int:
        """GPUs that the attacker's queue says are used."""
        queue = await self.admin.get(CLUSTER_QUEUES, f"{self.namespace}-team")
        flavors = queue.get("status", {}).get("flavorsUsage") or []
        return sum(int(one["total"]) for flavor in flavors for one in flavor["resources"] if one["name"] == GPU)

    async def run_gpus(self) -> int:
        """GPUs that pods of the attacker's take on nodes."""
        found = await self.admin.list(PODS, self.namespace)
        return sum(
            int(container.get("resources", {}).get("requests", {}).get(GPU, 0))
            for pod in found
            if pod["spec"].get("nodeName") and pod["status"].get("phase") not in {"Succeeded", "Failed"}
            for container in pod["spec"]["containers"]
        )

    async def uses(self, gpus: int) -> bool:
        """Whether the attacker's queue is charged so many."""
        return await self.used() == gpus

    def is_over(self, obj: Json) -> bool:
        """Whether an event or Workload is of an attack that is over."""
        return obj["metadata"]["uid"] in self.before

    async def gone(self, resource: Resource, name: str) -> None:
        """Wait until there is no such object of the attacker's."""

        async def none() -> bool:
            return name not in {obj["metadata"]["name"] for obj in await self.admin.list(resource, self.namespace)}

        await until(none, f"{resource.kind} {name} to go")

    async def paid(self, gpus: int | None = None) -> None:
        """What runs is what the queue is charged for: so many GPUs, where that is said."""
        counts = 0, 0

        async def same() -> bool:
            nonlocal counts
            counts = await self.run_gpus(), await self.used()
            return counts[0] == counts[1] and gpus in {None, counts[0]}

        try:
            await until(same, "")
        except AssertionError:
            raise AssertionError(f"{counts[0]} GPUs run and {counts[1]} are charged; expected: {gpus}") from None

    async def covered(self) -> None:
        """What runs is charged, at least; pods of one workload are charged alike, so it may be more."""

        async def enough() -> bool:
            return await self.run_gpus() <= await self.used() <= QUOTA

        await until(enough, "what runs to be charged")

    async def reason(self, name: str, reason: str) -> str:
        """Wait until the attacked object is told so, on its Workload or by an event; the message."""

        async def told() -> str | None:
            return next((text for found, text in await self.told(name) if found == reason), None)

        try:
            return await until(told, f"{reason} of {name}", seconds=30)
        except AssertionError as error:
            found = [f"{reason}: {text[:200]}" for reason, text in await self.told(name)]
            raise AssertionError(f"{error}; told was {found}") from None

    async def told(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of all that is said of the attacked object: its Workload's conditions, and events."""
        found = []
        for workload in await self.admin.list(WORKLOADS, self.namespace):
            meta = workload["metadata"]
            owners = {one["name"] for one in meta.get("ownerReferences", [])}
            if meta["uid"] not in self.before and (name in owners or meta["name"].startswith(f"podgroup-{name}-")):
                conditions = workload.get("status", {}).get("conditions", [])
                found += [(one["reason"], f"{one['type']}={one['status']} {one['message']}") for one in conditions]
        for event in await self.admin.list(EVENTS, self.namespace):
            if event["metadata"]["uid"] not in self.before and event["regarding"].get("name") == name:
                found.append((event["reason"], event.get("note", "")))
        return found

    async def restart(self) -> None:
        """The controller dies and starts anew, with everything that the attacker made before it."""
        await self.controller.crash()
        await self.controller.start()

        async def ready() -> bool:
            with suppress(aiohttp.ClientError, AssertionError):
                await self.answers()
                return True
            return False

        await until(ready, "the controller to lead again")

    # --- cleaning ------------------------------------------------------------------------------------------------

    async def clean(self) -> None:
        """Delete whatever the attacker has, finalizers or not."""

        async def none() -> bool:
            left = [await self._delete(resource) for resource in _CLEANED]
            return not any(left)

        await until(none, f"namespace {self.namespace} to be empty")

    async def _delete(self, resource: Resource) -> int:
        """How many there were."""
        found = [obj["metadata"] for obj in await self.admin.list(resource, self.namespace)]
        for meta in found:
            if meta.get("deletionTimestamp") and "example.com/forever" in meta.get("finalizers", ()):
                with suppress(NotFound, Conflict):
                    body = {"metadata": {"finalizers": None}}
                    await self.admin.patch(resource, meta["name"], self.namespace, body=body)
        if resource is PODS or not all(meta.get("deletionTimestamp") for meta in found):
            options = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
            with suppress(KubeTimeout):  # many large ones take their time
                await self.admin.raw("DELETE", resource.path(self.namespace), body=json.dumps(options).encode())
        return len(found)

    async def _nothing_used(self) -> bool:
        return await self.used() == 0

    async def _gone(self, name: str) -> None:
        await self.theirs.delete(name)

        async def none() -> bool:
            return not await self.theirs.pods(name)

        await until(none, f"the pods of {name} to go")


def _memory() -> int:
    """Bytes that this process, and so the controller in it, has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def besieged(
    cluster: LocalCluster, admin: Client, name: str, settings: Mapping[str, Any], *, webhook: bool
) -> AsyncIterator[Siege]:
    """A siege on a cluster that others use too; all of it goes in the end."""
    async with AsyncExitStack() as stack:
        await install_crds(admin)
        await jobsets.install(admin)
        await jobsets.install(admin, jobsets.CRD.with_name("leaderworkerset-crd.yaml"))
        for namespace in (f"{name}-mallory", f"{name}-alice"):
            await _make_namespace(admin, namespace)
            stack.push_async_callback(admin.delete, NAMESPACES, namespace)
        await stack.enter_async_context(_policies(admin, f"{name}-mallory"))
        await give_role_edit(admin, f"{name}-mallory")
        await _give_operators(admin, f"{name}-mallory")
        token = await admin.request_token("user", f"{name}-mallory", 3600)
        kubeconfig = cluster.token_kubeconfig(token, f"{name}-mallory-user")
        tenant = await stack.enter_async_context(await Client.connect(str(kubeconfig)))
        fleet = Fleet(blocks=FLEET.blocks, racks=FLEET.racks, hosts=FLEET.hosts, prefix=f"{name}-", group=name)
        await add_nodes(admin, fleet)
        for node in fleet.node_names():
            stack.push_async_callback(admin.delete, NODES, node)
        await wait_ready(admin, fleet.node_names(), timeout=WAIT_SECONDS)
        await make_flavor(admin, name, name)
        stack.push_async_callback(admin.delete, RESOURCE_FLAVORS, name)
        await make_priorities(admin)
        made = Siege(admin, tenant, name, settings)
        preempts = {"preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}}
        for each, nominal in ((made.mine, QUOTA), (made.theirs, HOSTS * GPUS)):
            await make_queue(admin, each.namespace, "team", nominal, flavors=(name,), **preempts)
            stack.push_async_callback(admin.delete, CLUSTER_QUEUES, f"{each.namespace}-team")
        if webhook:
            made.webhook = await stack.enter_async_context(serving(cluster, admin, f"{name}-alice"))
        await stack.enter_async_context(made.controller)
        await made.begin()
        yield made
        for each in (made.mine, made.theirs):
            for resource in (*_CLEANED, LOCAL_QUEUES):
                for obj in await admin.list(resource, each.namespace):
                    with suppress(NotFound):
                        await admin.delete(resource, obj["metadata"]["name"], each.namespace, grace_period=0)


async def make_shared_queue(siege: Siege, name: str, gpus: int, *, local: str = "shared", **spec: Any) -> None:
    """A ClusterQueue that preempts, and the LocalQueue of each tenant that leads to it."""
    quotas = [{"name": GPU, "nominalQuota": gpus}, {"name": "cpu", "nominalQuota": 1000}]
    group = {"coveredResources": [GPU, "cpu"], "flavors": [{"name": siege.name, "resources": quotas}]}
    preemption = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    body = {"resourceGroups": [group], "namespaceSelector": {}, "preemption": preemption, **spec}
    made = {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": body}
    await siege.admin.create(CLUSTER_QUEUES, made)
    for namespace in (siege.namespace, siege.theirs.namespace):
        body = {"metadata": {"name": local}, "spec": {"clusterQueue": name}}
        await siege.admin.create(LOCAL_QUEUES, {"apiVersion": API, "kind": "LocalQueue", **body}, namespace)


async def _make_namespace(admin: Client, name: str) -> None:
    await admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    async def there() -> bool:
        with suppress(NotFound):
            await admin.get(SERVICE_ACCOUNTS, "default", name)
            return True
        return False

    await until(there, f"the service account of {name}")


async def _give_operators(admin: Client, namespace: str) -> None:
    """What clusters with JobSet and LeaderWorkerSet give their tenants beside the role edit."""
    kinds = {"apiGroups": [JOB_SETS.group, LEADER_WORKER_SETS.group], "resources": ["*"], "verbs": ["*"]}
    await admin.create(ROLES, {"metadata": {"name": "operators"}, "rules": [kinds]}, namespace)
    subject = {"kind": "ServiceAccount", "name": "user", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operators"}
    binding = {"metadata": {"name": "operators"}, "roleRef": role, "subjects": [subject]}
    await admin.create(ROLE_BINDINGS, binding, namespace)


@asynccontextmanager
async def _policies(admin: Client, namespace: str) -> AsyncIterator[None]:
    """What every installation has for tenants, in force while the block runs."""
    found = [
        renamed(obj, HOME)
        for obj in render.objects(render.InstallOptions(namespace=HOME))
        if obj["kind"] in _KINDS and obj["metadata"]["name"] in _OURS
    ]
    for obj in (*found, *PROBE):
        await admin.apply(resource_of(obj), obj, field_manager="test")
    async with asyncio.timeout(WAIT_SECONDS):
        while not await holds(admin, namespace):
            await asyncio.sleep(0.05)
    try:
        yield
    finally:
        for resource in (VALIDATING_ADMISSION_POLICY_BINDINGS, VALIDATING_ADMISSION_POLICIES):
            for obj in (*found, *PROBE):
                if obj["kind"] == resource.kind:
                    await admin.delete(resource, obj["metadata"]["name"])
        async with asyncio.timeout(WAIT_SECONDS):
            while await holds(admin, "default"):
                await asyncio.sleep(0.05)


def pod(
    name: str,
    gpus: int = 8,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] = ANYWHERE,
    owner: Json | None = None,
    gated: bool = True,
    **spec: Any,
) -> Json:
    """A pod as the webhook stamps it."""
    amounts = {GPU: str(gpus), "cpu": "1"} if gpus else {"cpu": "1"}
    resources = {"requests": amounts, "limits": amounts}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": dict(labels or {}),
            "annotations": {**annotations, **({KEYS.pod_set: "main"} if gated else {})},
            **({"ownerReferences": [owner]} if owner else {}),
        },
        "spec": {
            "schedulingGates": [{"name": KEYS.gate}] if gated else [],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i", "resources": resources}],
            **spec,
        },
    }


def replicated(kind: str, name: str, count: int, *, gpus: int = 8, queue: str = "", **spec: Any) -> Json:
    """A StatefulSet or Deployment, its pods as the webhook stamps them."""
    labels = {"app": name, **({KEYS.queue_name: queue} if queue else {})}
    made = pod(name, gpus, labels=labels)
    del made["metadata"]["name"]
    template = {"metadata": made["metadata"], "spec": made["spec"]}
    more = {"serviceName": name, "podManagementPolicy": "Parallel"} if kind == "StatefulSet" else {}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
            **more,
            **spec,
        },
    }
