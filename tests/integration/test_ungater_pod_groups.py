"""PodGroups of Kubernetes itself on the real control plane, with its feature gates and its API on.

kube-scheduler is the stock one, with its gang and topology plugins. 2 blocks x 2 racks x 2 hosts of 8 GPUs.
"""

import asyncio

import pytest
from support.jobs import KEYS, RACK_LABEL, Watched, followed, job, racks_of, until

from kube.errors import Invalid
from kube.resources import JOBS, POD_GROUPS, PODS, WORKLOADS
from localcluster import LocalCluster, Options
from localcluster.nodes import BLOCK_LABEL
from localcluster.options import API_SERVER

pytestmark = pytest.mark.cluster

GATES = {"GenericWorkload": True, "TopologyAwareWorkloadScheduling": True, "WorkloadWithJob": True}
ANYWHERE = {KEYS.unconstrained: "true"}
HELD = 4.0  # replacementTimeout
MOST = 2**31 - 1
TOGETHER = {"all": {}}


def says(*, level=RACK_LABEL, least=None, gang=True, mode=None):
    """A Job's spec.scheduling, or the spec of a PodGroup."""
    policy = {"gang": {} if least is None else {"minCount": least}} if gang else {"basic": {}}
    constraints = {"schedulingConstraints": {"topology": [{"key": level}]}} if level else {}
    return {"schedulingPolicy": policy, **constraints, **({"disruptionMode": mode} if mode else {})}


class Grouped(Watched):
    """Jobs with spec.scheduling, and pods that name a PodGroup."""

    async def gang(self, name, count, *, request=ANYWHERE, spec=None, **said):
        await self.create(job(name, count, request=request, spec={"scheduling": says(**said), **(spec or {})}))

    async def group(self, name, **said):
        await self.client.create(POD_GROUPS, {"metadata": {"name": name}, "spec": says(**said)}, self.namespace)

    async def of_group(self, name, count, group, *, request=ANYWHERE, spec=None, gpus=8):
        """A Job whose pod template names a PodGroup that is the user's own."""
        named = {"schedulingGroup": {"podGroupName": group}}
        await self.create(job(name, count, request=request, spec=spec, pod_spec=named, gpus=gpus))

    async def bare(self, name, group):
        """A pod without a controller, as the webhook stamps it."""
        body = job("x", 1)["spec"]["template"]
        body["metadata"] = {"name": name, "annotations": ANYWHERE}
        body["spec"]["schedulingGroup"] = {"podGroupName": group}
        await self.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **body}, self.namespace)

    async def least(self, group, count):
        spec = {"schedulingPolicy": {"gang": {"minCount": count}}}
        await self.client.patch(POD_GROUPS, group, self.namespace, body={"spec": spec})

    async def waits(self, name, reason):
        return (await self.condition(name, "QuotaReserved", "False", reason))["message"]

    async def gated(self, name, count):
        """Wait until all pods are gated, and are so many."""

        async def all_are():
            pods = await self.pods(name)
            return len(pods) == count and all(pod["spec"].get("schedulingGates") for pod in pods)

        await until(all_are, f"{count} gated pods of job {name}, and no others")


@pytest.fixture(scope="module")
def cluster():
    arguments = {API_SERVER: ["--runtime-config=scheduling.k8s.io/v1beta1=true"]}
    with LocalCluster(options=Options(feature_gates=GATES, extra_args=arguments)) as running:
        yield running


@pytest.fixture
async def groups(client, namespace, nodes):
    more = {"replacement_timeout_seconds": HELD, "requeuing_backoff_base_seconds": 1.0}
    async with followed(Grouped, client, namespace, nodes, **more) as watched:
        yield watched


async def test_a_job_is_placed_by_what_it_says_of_its_pod_group(groups, client, namespace):
    """One host of each rack is taken, so that two pods fit anywhere, and not in one rack."""
    others = [f"{namespace}-b{block}-r{rack}-h1" for block in (1, 2) for rack in (1, 2)]
    for at, host in enumerate(others):
        pinned = {"nodeSelector": {"kubernetes.io/hostname": host}}
        await groups.create(job(f"other-{at}", 1, request=ANYWHERE, pod_spec=pinned))
        await groups.running(f"other-{at}", 1)
    await groups.gang("train", 2, mode=TOGETHER)
    await groups.waits("train", "DoesNotFit")
    await groups.gated("train", 2)
    await groups.delete("other-3")
    pods = await groups.running("train", 2)
    assert len(racks_of(pods)) == 1
    (named,) = {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods}
    found = await client.get(POD_GROUPS, named, namespace)
    assert found["spec"]["schedulingPolicy"]["gang"]["minCount"] == 2

    async def scheduled():
        told = (await client.get(POD_GROUPS, named, namespace)).get("status", {}).get("conditions", [])
        return any((one["type"], one["status"]) == ("PodGroupInitiallyScheduled", "True") for one in told)

    await until(scheduled, "kube-scheduler to have scheduled the PodGroup")
    asked = (await groups.workload("train"))["spec"]["podSets"][0]["topologyRequest"]
    assert asked == {"policy": "Required", "level": RACK_LABEL}


async def test_pods_without_a_controller_are_placed_with_their_gang(groups, client, namespace):
    await groups.bare("a", "ring")

    async def told(text):
        found = [one for one in await client.list(WORKLOADS, namespace) if text in str(one.get("status", {}))]
        return found[0] if found else None

    await until(lambda: told("PodGroup ring does not exist"), "the PodGroup to be missed")
    await groups.group("ring", least=2)
    await until(lambda: told("1 of 2 pods are there"), "the gang to be waited for")
    await groups.bare("b", "ring")

    async def running():
        pods = await client.list(PODS, namespace)
        return pods if [pod["status"].get("phase") for pod in pods] == ["Running", "Running"] else None

    pods = await until(running, "both pods to run")
    assert len(racks_of(pods)) == 1


async def test_two_that_contradict_each_other_are_refused(groups):
    await groups.gang("levels", 2, request={KEYS.required[0]: BLOCK_LABEL})
    told = await groups.waits("levels", "ContradictingRequests")
    assert (
        f'[{KEYS.required[0]}]: "{BLOCK_LABEL}" contradicts spec.scheduling.schedulingConstraints.topology[0]' in told
    )
    assert (await groups.event("levels", "ContradictingRequests"))["note"] == told
    await groups.group("ring", least=3, level="")
    await groups.of_group("counts", 2, "ring")
    told = await groups.waits("counts", "ContradictingRequests")
    assert told.startswith("spec.parallelism: 2 contradicts PodGroup ring: spec.schedulingPolicy.gang.minCount: 3")
    await groups.gated("levels", 2)
    await groups.gated("counts", 2)
    await groups.least("ring", 2)
    await groups.running("counts", 2)
    with pytest.raises(Invalid):  # of a Job's own the API server sees to it
        await groups.gang("few", 2, least=3)


async def test_what_waits_to_grow_does_not_block_its_group(groups, client, namespace):
    """Two pods fit in a rack, and two more wait. Whichever gets the slot of one that goes waits for the others."""
    await groups.group("ring", gang=False)
    await groups.of_group("train", 2, "ring", spec={"completions": None})
    before = await groups.running("train", 2)
    await groups.edit("train", parallelism=4)
    await groups.condition("train", "PodsReady", "False", "PartlyPlaced")
    assert len(await groups.running("train", 2)) == 2, "those that run are not concerned"
    assert len(await groups.pods("train")) == 4

    gone = before[0]["metadata"]["name"]
    await client.delete(PODS, gone, namespace)
    told = (await groups.condition("train", "Evicted", "True", "PodGroupHeld"))["message"]
    assert "of PodGroup ring, which has none" in told
    await groups.waits("train", "NeverFits")
    await groups.gated("train", 4)
    await groups.edit("train", parallelism=2)
    assert len(racks_of(await groups.running("train", 2))) == 1


async def test_what_kube_scheduler_does_with_gated_pods_of_a_group(groups, client, namespace):
    """Why all pods of a group are let go at once: one that is gated holds all, and its end wakes nobody."""

    async def make(name, group, gates=()):
        spec = {"schedulingGates": [{"name": gate} for gate in gates], "schedulingGroup": {"podGroupName": group}}
        spec |= {"containers": [{"name": "c", "image": "i"}], "tolerations": [{"operator": "Exists"}]}
        await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace)

    async def node(name):
        return (await client.get(PODS, name, namespace))["spec"].get("nodeName")

    for group in ("lifted", "deleted"):
        await groups.group(group, gang=False, level="")
        await make(f"{group}-gated", group, ["example.com/gate"])
        await make(f"{group}-free", group)
    await asyncio.sleep(3)
    assert not await node("lifted-free")
    assert not await node("deleted-free")
    await client.patch(PODS, "lifted-gated", namespace, body={"spec": {"schedulingGates": []}})
    await client.delete(PODS, "deleted-gated", namespace)
    await until(lambda: node("lifted-free"), "the group whose gate is lifted to go")
    await until(lambda: node("lifted-gated"), "the whole group to go")
    await asyncio.sleep(3)
    assert not await node("deleted-free")


async def test_a_group_grows_where_there_is_room(groups):
    await groups.group("ring", least=2, level=BLOCK_LABEL)
    await groups.of_group("train", 2, "ring", spec={"completions": None})
    await groups.running("train", 2)
    await groups.edit("train", parallelism=4)
    pods = await groups.running("train", 4)
    assert len({block for block, _ in racks_of(pods)}) == 1


async def test_what_a_tenant_does_to_a_group_costs_that_tenants_workload_alone(groups, client, namespace):
    await groups.group("huge", least=MOST)
    await groups.group("odd", level="made.up/level", least=2)
    await groups.group("ring", least=2)
    await groups.of_group("huge", 2, "huge")
    await groups.of_group("odd", 2, "odd")
    await groups.of_group("train", 2, "ring")
    assert str(MOST) in await groups.waits("huge", "ContradictingRequests")
    assert "made.up/level" in await groups.waits("odd", "UnknownLevel")
    pods = await groups.running("train", 2)

    await groups.least("ring", MOST)
    await groups.create(job("honest", 2))
    await groups.running("honest", 2)
    await client.delete(POD_GROUPS, "ring", namespace)
    await groups.gang("another", 2)
    await groups.running("another", 2)
    again = await groups.running("train", 2)
    assert {pod["metadata"]["uid"] for pod in again} == {pod["metadata"]["uid"] for pod in pods}


async def test_two_workloads_of_one_group_are_told_of_each_other(groups, client, namespace):
    await groups.group("ring", gang=False)
    await groups.of_group("one", 9, "ring", gpus=8)
    await groups.waits("one", "NeverFits")
    await groups.of_group("other", 1, "ring")
    assert "is also that of Job one," in await groups.waits("other", "InvalidRequest")
    assert "is also that of Job other," in await groups.waits("one", "InvalidRequest")
    await client.delete(JOBS, "one", namespace, propagation="Background")
    await groups.running("other", 1)
