"""The curve of fair share over time beside a real Kueue 0.19.2: the same workloads, each sample, and who goes first.

Example E at a thirtieth of its times: the half-life is 20 s and the sampling interval 10 s, which has the same ratios.
LocalQueue a has weight 2 and holds all 8 GPUs for 43 s; then b goes before a's more important workload, as b used
nothing; then a goes before b's more important one, as a used less for its weight. Kueue's numbers are in the status of
its LocalQueues; ours come of the same events, as they are seen of Kueue.

One difference is left, and ours is right there: as a workload is admitted Kueue counts it as held since the last sample
(updateAfsConsumedUsage in pkg/controller/core/workload_controller.go), and the penalty that stood for it besides. Where
its LocalQueue happens to be sampled between reservation and admission, as it may be while a check is waited for, it
counts the penalty alone, as ours always does. `Settled` is Kueue's rule written plainly.
"""

import asyncio
from contextlib import suppress

import msgspec
import pytest
from support.queue_factories import GPU, make_queue, make_workload

from benchmarks.harness import kueue
from clock import SYSTEM
from engine.cluster.state import ClusterState
from engine.quantity import parse_part
from kube.client import Client
from kube.errors import NotFound
from kube.resources import Resource
from localcluster import LocalCluster
from localcluster.errors import BinariesMissing
from queueing.cycle.cycle import cycle
from queueing.model import FlavorQuotas, LocalQueue, PlainFlavor, Quota, ResourceGroup, Rules, UseRules
from queueing.queues.queues import Queues

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# Ends lie between samples: one that meets a sample counts in it or not.
HALF_LIFE, SAMPLING, HELD = 20.0, 10.0, 43.0  # seconds
GPUS = 8
WEIGHTS = {"a": 2000, "b": 1000}
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload", namespaced=True)
LATE = 1.0  # seconds between what Kueue does and when it is seen here, at most
PENALTY = GPUS * (1 - 0.5 ** (SAMPLING / HALF_LIFE))
# How far a sample may be off: by as much as the curve moves in that time, and what Kueue rounds (thousandths).
NEAR = GPUS * (1 - 0.5 ** (LATE / HALF_LIFE)) + 0.001
FAIR = {"usageHalfLifeTime": f"{HALF_LIFE:g}s", "usageSamplingInterval": f"{SAMPLING:g}s"}
MODE = {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}


class Ours:
    """Topogate's queues, told of the same events at the same times. ``rules``: how use is counted."""

    def __init__(self, rules, now):
        self.queues, self.state = Queues(Rules(patience=1e9, hold=1e9, use=rules)), ClusterState()
        self.queues.pass_time(now)
        self.queues.set_namespace("ns", {})
        self.queues.set_flavor(PlainFlavor(name="plain"))
        quotas = FlavorQuotas(flavor="plain", resources={GPU: Quota(nominal=GPUS)})
        groups = (ResourceGroup(resources=(GPU,), flavors=(quotas,)),)
        self.queues.set_cluster_queue(msgspec.structs.replace(make_queue("q", by_use=True), groups=groups))

    def add_local_queue(self, name, now):
        self.queues.pass_time(now)
        queue = LocalQueue(namespace="ns", name=name, cluster_queue="q", weight=WEIGHTS[name])
        self.queues.set_local_queue(queue)

    def submit(self, name, queue, priority, now):
        workload = make_workload(name, queue, gpu=GPUS, level=None, priority=priority, created=now)
        self.queues.submit(workload, now)

    def admit(self, now):
        """Who is admitted by a cycle now."""
        found = [one.key for one in cycle(self.state, self.queues, now).admitted]
        for key in found:
            self.queues.settle_use(key, now)
        return found

    def end(self, name, now):
        self.queues.pass_time(now)
        self.queues.remove_workload(self.state, name)

    def consumed(self, queue, now):
        self.queues.pass_time(now)
        return self.queues.use.consumed_by(f"ns/{queue}").get(GPU, 0.0)


class Settled:
    """One LocalQueue by Kueue's own rule."""

    def __init__(self, now):
        self.at, self.consumed, self.used = now, 0.0, 0

    def sample(self, now):
        keep = 0.5 ** ((now - self.at) / HALF_LIFE)
        self.at, self.consumed = now, self.used + (self.consumed - self.used) * keep
        return self.consumed

    def admit(self, now):
        self.used += GPUS
        self.consumed = self.sample(now) + PENALTY

    def end(self):
        self.used -= GPUS


class Story:
    """Kueue as it is seen, and ours, told of the same. ``rows``: each number that a LocalQueue's status had, and ours.

    ``admitted``: whom Kueue admitted, in order; ``mine``: whom ours did at the same times, sampled and exact;
    ``settled``: by LocalQueue, what Kueue's rule comes to.
    """

    def __init__(self, client):
        self.client, self.began = client, SYSTEM.monotonic()
        rules = (UseRules(half_life=HALF_LIFE, sampling=sampling) for sampling in (SAMPLING, None))
        self.ours = [Ours(one, self.now()) for one in rules]
        self.settled, self.queue_of = {}, {}
        self.seen, self.rows, self.waiting, self.admitted, self.mine, self.started = {}, [], [], [], [], {}

    def now(self):
        return SYSTEM.monotonic() - self.began

    async def look(self):
        """What Kueue did since the last look, and the same of ours."""
        # Admissions first: a sample that is seen in the same look was taken after them.
        for name in list(self.waiting):
            status = (await self.client.get(WORKLOADS, name, "default")).get("status") or {}
            if any(one["type"] == "Admitted" and one["status"] == "True" for one in status.get("conditions") or ()):
                self.waiting.remove(name)
                self.admitted.append(name)
                self.started[name] = self.now()
                self.settled[self.queue_of[name]].admit(self.now())
                self.mine.append([one.admit(self.now()) for one in self.ours])
        for name in WEIGHTS:
            status = (await self.client.get(kueue.LOCAL_QUEUES, name, "default")).get("status") or {}
            found = (status.get("fairSharing") or {}).get("admissionFairSharingStatus")
            if found is None or found == self.seen.get(name):
                continue
            if name not in self.seen:  # Kueue counts from here on
                self.settled[name] = Settled(self.now())
                for one in self.ours:
                    one.add_local_queue(name, self.now())
            self.seen[name] = found
            amount = parse_part(GPU, (found.get("consumedResources") or {}).get(GPU, 0))
            ours = [one.consumed(name, self.now()) for one in self.ours]
            self.rows.append((name, self.now(), amount, self.settled[name].sample(self.now()), *ours))

    async def until(self, done):
        """Look until this is so."""
        deadline = self.now() + 60.0
        while not done():
            assert self.now() < deadline, (self.admitted, self.rows)
            await self.look()
            await asyncio.sleep(0.1)

    async def submit(self, name, queue, priority):
        """A workload of all GPUs, without a job."""
        requests = {part: {GPU: str(GPUS)} for part in ("requests", "limits")}
        containers = [{"name": "c", "image": "none", "resources": requests}]
        template = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": containers}}
        pod_sets = [{"name": "main", "count": 1, "template": template}]
        spec = {"queueName": queue, "priority": priority, "active": True, "podSets": pod_sets}
        body = {"apiVersion": WORKLOADS.api_version, "kind": "Workload", "metadata": {"name": name}, "spec": spec}
        await self.client.create(WORKLOADS, body, "default")
        self.waiting.append(name)
        self.queue_of[name] = queue
        for one in self.ours:
            one.submit(name, queue, priority, self.now())

    async def end(self, name):
        """It is gone; Kueue leaves the finalizer of one without a job to others."""
        await self.client.delete(WORKLOADS, name, "default")
        with suppress(NotFound):
            await self.client.patch(WORKLOADS, name, "default", body={"metadata": {"finalizers": None}})
        self.settled[self.queue_of[name]].end()
        for one in self.ours:
            one.end(name, self.now())

    async def tell(self):
        """All of it, in about 75 seconds."""
        await self.until(lambda: self.seen.keys() == WEIGHTS.keys())
        await self.submit("a-first", "a", 0)
        await self.until(lambda: self.admitted)
        await self.submit("a-second", "a", 2000)
        await self.submit("b-first", "b", 0)
        await self.hold(HELD)
        await self.submit("b-second", "b", 3000)
        await self.hold(12.0)
        await self.until(lambda: self.now() > self.started[self.admitted[-1]] + 12.0)

    async def hold(self, seconds):
        """The one that was admitted last holds what it has for so long, and the next one is admitted."""
        last = self.admitted[-1]
        await self.until(lambda: self.now() > self.started[last] + seconds)
        await self.end(last)
        await self.until(lambda: self.admitted[-1] != last)

    def table(self):
        """Both curves."""
        began = self.started[self.admitted[0]]
        yield "queue  seconds   Kueue  its rule  ours sampled  ours exact"
        for name, at, kueues, settled, sampled, exact in self.rows:
            yield f"{name:>5} {at - began:8.1f} {kueues:7.3f} {settled:9.3f} {sampled:13.3f} {exact:11.3f}"


@pytest.fixture(scope="module")
def program():
    try:
        return kueue.Kueue.find(print)
    except BinariesMissing as error:
        pytest.skip(f"Kueue {kueue.VERSION} cannot be built: {str(error)[-200:]}")


def queue_objects():
    quota = {"name": "plain", "resources": [{"name": GPU, "nominalQuota": GPUS}]}
    group = {"coveredResources": [GPU], "flavors": [quota]}
    for resource, name, spec in (
        (kueue.FLAVORS, "plain", {}),
        (kueue.CLUSTER_QUEUES, "q", {"namespaceSelector": {}, "resourceGroups": [group], **MODE}),
        *(
            (kueue.LOCAL_QUEUES, name, {"clusterQueue": "q", "fairSharing": {"weight": str(weight // 1000)}})
            for name, weight in WEIGHTS.items()
        ),
    ):
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec}
        yield resource, body


async def test_the_curve_and_the_order_are_those_of_a_real_kueue(program):
    with LocalCluster() as cluster:
        async with (
            await Client.connect(str(cluster.kubeconfig)) as client,
            kueue.installed(program, cluster, client, {"admissionFairSharing": FAIR}) as process,
        ):
            await kueue.start(process, client)
            for resource, body in queue_objects():
                await kueue.create_object(process, client, resource, body)
            story = Story(client)
            await story.tell()
            process.stop(5.0)
    print("\n".join(["", *story.table()]))
    assert story.admitted == ["a-first", "b-first", "a-second"], "what was used decides, and not priority"
    assert story.mine == [[[name], [name]] for name in story.admitted], "ours, sampled and exact, let in the same"
    assert len(story.rows) > 10, "there is something to compare"
    assert [row for row in story.rows if abs(row[2] - row[3]) > NEAR] == [], "Kueue follows its rule"
    # What is counted twice is less than a penalty for each one that is admitted, of which two were in a.
    assert [row for row in story.rows if abs(row[3] - row[4]) > 2 * PENALTY] == []
