"""`topogate migrate kueue --move`, `--back` and `--finish` on the real API server, from a Kueue that the test plays."""

import pytest
from support import kueue_kinds
from support.jobs import GPU, KEYS, Running, install_crds, until
from support.kueue_played import make_kueue_queue, play_installation, play_kueue, start_times, started_by_kueue
from support.queues import Queued

from cli.migrate.apply_objects import apply_report
from cli.migrate.check import check_cluster
from cli.migrate.migration import migrate_objects
from cli.migrate.moves.backup import read_backups
from cli.migrate.moves.finish import KueueRemoval
from cli.migrate.moves.handover import Handover
from cli.migrate.moves.phase_walk import MoveOptions
from cli.migrate.moves.take_back import TakeBack
from cli.migrate.source_objects import read_cluster
from cli.output import Failure
from crds.constants import HOSTNAME_LABEL, SERVED
from crds.kueue.assignment import decode
from kube.errors import NotFound
from kube.resources import (
    CLUSTER_QUEUES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    JOBS,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    RESOURCE_FLAVORS,
    WORKLOADS,
)
from ungater.model.kueue_objects import WORKLOADS as KUEUE_WORKLOADS

pytestmark = pytest.mark.cluster
QUEUES = kueue_kinds.resource("ClusterQueue", "v1beta2")


@pytest.fixture(scope="module")
def kinds(cluster):
    with kueue_kinds.installed(cluster):
        yield


@pytest.fixture
async def jobs(kinds, client, namespace, nodes):
    await install_crds(client)
    await nodes(blocks=1, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await play_kueue(client)
    await play_installation(client, namespace)
    await make_kueue_queue(client, namespace, cohort=f"{namespace}-all", nominal=3)
    yield Queued(client, namespace)
    await end_workloads(client, namespace)
    for resource, name in (
        (CLUSTER_QUEUES, f"{namespace}-team"),
        (RESOURCE_FLAVORS, namespace),
        (kueue_kinds.resource("LocalQueue", "v1beta2"), "team"),
        (QUEUES, f"{namespace}-team"),
        (kueue_kinds.resource("ResourceFlavor", "v1beta2"), namespace),
        (kueue_kinds.resource("Topology", "v1beta2"), namespace),
    ):
        try:
            await client.delete(resource, name, namespace if resource.namespaced else None)
        except NotFound:
            continue


async def end_workloads(client, namespace):
    """Delete Kueue's Workloads, whose finalizers nobody takes off here."""
    for one in await client.list(KUEUE_WORKLOADS[0], namespace):
        name = one["metadata"]["name"]
        await client.patch(KUEUE_WORKLOADS[0], name, namespace, body={"metadata": {"finalizers": []}})
        await client.delete(KUEUE_WORKLOADS[0], name, namespace)


async def moved(client, namespace, *queues, patience=60.0):
    """Move queues; what was told."""
    told = []
    await Handover(client, MoveOptions(namespace, "kueue-system", patience=patience), told.append).move_queues(queues)
    return told


async def host_of(client, namespace):
    names = [node["metadata"]["name"] for node in await client.list(NODES)]
    return min(name for name in names if name.startswith(f"{namespace}-"))


async def test_a_queue_moves_with_what_runs_and_what_waits(client, namespace, jobs):
    before = await started_by_kueue(client, namespace, jobs, "train", await host_of(client, namespace))
    as_made = await client.get(JOBS, "train", namespace)
    was = (await client.get(QUEUES, f"{namespace}-team"))["spec"]
    report = migrate_objects(await read_cluster(client))
    assert (await apply_report(client, report, namespace, skip_refused=False, overwrite=False)).left == 2
    assert f"{namespace}-team" not in [one["metadata"]["name"] for one in await client.list(CLUSTER_QUEUES)]
    async with Running(client, beside_kueue=True):
        await jobs.submit("waits", 1, gpus=1)
        await jobs.submit("waits-more", 1, gpus=1)
        told = await moved(client, namespace)
        assert f"namespace {namespace} is labelled {SERVED}=true" in told
        assert "1 running jobs are taken over" in told
        assert start_times(await jobs.running("train", 2)) == before
        assert (await client.get(JOBS, "train", namespace))["spec"] == as_made["spec"]
        # One GPU of its three is left, and one of the two that wait gets it.
        await until(lambda: some_run(jobs), "one of those that wait to run")
        ours = (await client.get(CLUSTER_QUEUES, f"{namespace}-team"))["spec"]
        assert (ours["stopPolicy"], ours["cohortName"]) == ("None", f"{namespace}-all")
        (amount, _) = ours["resourceGroups"][0]["flavors"][0]["resources"]
        assert (amount["nominalQuota"], amount["borrowingLimit"], amount["lendingLimit"]) == ("3", "4", "2")
        theirs = (await client.get(QUEUES, f"{namespace}-team"))["spec"]
        assert (theirs["stopPolicy"], theirs.get("cohortName")) == ("Hold", None)
        assert theirs["resourceGroups"][0]["flavors"][0]["resources"][0] == {"name": GPU, "nominalQuota": "3"}
        assert (await read_backups(client, namespace)).queues[f"{namespace}-team"].spec == was
        assert await check_cluster(client, namespace, "kueue-system") == []
        # Again: nothing is left to do.
        again = await moved(client, namespace, f"{namespace}-team")
        assert [text for text in again if "created" in text or "configured" in text or "labelled" in text] == []


async def test_and_back_with_what_each_of_the_two_started_and_what_waits(client, namespace, jobs):
    started = await started_by_kueue(client, namespace, jobs, "train", await host_of(client, namespace))
    was = (await client.get(QUEUES, f"{namespace}-team"))["spec"]
    (theirs,) = await client.list(KUEUE_WORKLOADS[0], namespace)
    async with Running(client, beside_kueue=True):
        await moved(client, namespace)
        await jobs.submit("ours", 1, gpus=1)
        started |= start_times(await jobs.running("ours", 1))
        await jobs.submit("waits", 1, gpus=1)
        await jobs.condition("waits", "QuotaReserved", "False")
        told = []
        await TakeBack(client, MoveOptions(namespace, "kueue-system"), told.append).take_back([f"{namespace}-team"])
        assert f"namespace {namespace} is not labelled {SERVED} any more" in told
        assert "Kueue has a Workload of each of 2 running jobs" in told
        pods = [*(await jobs.running("train", 2)), *(await jobs.running("ours", 1))]
        assert start_times(pods) == started
        found = {owner_of(one): one for one in await client.list(KUEUE_WORKLOADS[0], namespace)}
        assert found["train"]["metadata"]["uid"] == theirs["metadata"]["uid"], "it is the one that Kueue made"
        made = found["ours"]
        (part,) = made["status"]["admission"]["podSetAssignments"]
        assert (part["count"], part["flavors"][GPU], part["resourceUsage"][GPU]) == (1, namespace, "1")
        assert decode(part["topologyAssignment"]) == ((HOSTNAME_LABEL,), [((pods[2]["spec"]["nodeName"],), 1)])
        true = {one["type"] for one in made["status"]["conditions"] if one["status"] == "True"}
        assert true == {"QuotaReserved", "Admitted", "PodsReady"}
        template = (await client.get(JOBS, "ours", namespace))["spec"]["template"]["metadata"]
        assert made["metadata"]["name"] == template["annotations"]["kueue.x-k8s.io/workload"]
        assert made["spec"]["podSets"][0]["template"]["spec"].get("schedulingGates") is None
        # What waits is as its user wrote it, and Kueue makes its Workload.
        waits = await client.get(JOBS, "waits", namespace)
        assert waits["spec"]["suspend"] is True
        assert waits["spec"]["template"]["spec"].get("schedulingGates") is None
        assert KEYS.pod_set not in waits["spec"]["template"]["metadata"].get("annotations", {})
        assert "topogate.dev/woken" not in waits["metadata"].get("annotations", {})
        assert set(found) == {"train", "ours"}
        # Nothing of ours is left, and Kueue's queue is as it was.
        assert (await client.get(QUEUES, f"{namespace}-team"))["spec"] == was
        assert await client.list(WORKLOADS, namespace) == await client.list(LOCAL_QUEUES, namespace) == []
        assert (await read_backups(client, namespace)).queues == {}
        with pytest.raises(Failure, match="so none has moved"):
            await TakeBack(client, MoveOptions(namespace, "kueue-system"), told.append).take_back([])
        # And here once more: the Workload that was made for Kueue is what its job is taken over by.
        again = await moved(client, namespace)
        assert "2 running jobs are taken over" in again
        assert start_times([*(await jobs.running("train", 2)), *(await jobs.running("ours", 1))]) == started


def owner_of(workload):
    return workload["metadata"]["ownerReferences"][0]["name"]


async def some_run(jobs):
    return sum([len(await jobs.pods(name, phase="Running")) for name in ("waits", "waits-more")]) == 1


async def test_what_kueue_has_under_way_keeps_the_queue_there_and_it_goes_on(client, namespace, jobs):
    await started_by_kueue(client, namespace, jobs, "train", await host_of(client, namespace))
    await client.patch(JOBS, "train", namespace, body={"spec": {"suspend": True}})
    with pytest.raises(
        Failure, match=rf"(?s)its queues go on:\nJob {namespace}/train is admitted, and not started yet"
    ):
        await moved(client, namespace, patience=2.0)
    theirs = (await client.get(QUEUES, f"{namespace}-team"))["spec"]
    assert (theirs["stopPolicy"], theirs["cohortName"]) == ("None", f"{namespace}-all")
    assert SERVED not in (await client.get(NAMESPACES, namespace))["metadata"]["labels"]
    assert (await read_backups(client, namespace)).queues == {}
    with pytest.raises(NotFound):
        await client.get(LOCAL_QUEUES, "team", namespace)


async def test_nothing_is_written_before_kueue_leaves_served_namespaces_out(client, namespace, jobs):
    plain = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
    await play_kueue(client, plain)
    with pytest.raises(
        Failure, match=r"(?s)nothing was moved:\nKueue's Configuration does not leave out the namespaces"
    ):
        await moved(client, namespace)
    assert (await client.get(QUEUES, f"{namespace}-team"))["spec"]["stopPolicy"] == "None"


async def finished(client, namespace, *, agrees=True, keep=False):
    """Finish; what was told, and what was asked."""
    told, asked = [], []

    def confirm(question):
        asked.append(question)
        return agrees

    await KueueRemoval(client, MoveOptions(namespace, "kueue-system"), told.append, confirm).finish(keep=keep)
    return told, asked


async def test_in_the_end_what_is_kueues_is_deleted_and_nothing_else(client, namespace, jobs):
    started = await started_by_kueue(client, namespace, jobs, "train", await host_of(client, namespace))
    with pytest.raises(Failure, match=rf"(?s)nothing was deleted:\nnamespace {namespace} is Kueue's"):
        await finished(client, namespace)
    async with Running(client, beside_kueue=True):
        await moved(client, namespace)
        other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}, "data": {}}
        await client.create(CONFIG_MAPS, other, "kueue-system")
        told, asked = await finished(client, namespace, keep=True)
        assert asked == []
        assert f"to be deleted: 1 ClusterQueue: {namespace}-team" in told
        with pytest.raises(Failure, match="nothing was deleted"):
            await finished(client, namespace, agrees=False)
        assert await client.list(QUEUES)
        told, (question,) = await finished(client, namespace)
        assert question.endswith("objects of Kueue? There is no way back from it.")
        assert start_times(await jobs.running("train", 2)) == started
        crds = await client.list(CUSTOM_RESOURCE_DEFINITIONS)
        assert [one for one in crds if one["spec"]["group"] == "kueue.x-k8s.io"] == []
        with pytest.raises(NotFound):
            await client.get(DEPLOYMENTS, "kueue-controller-manager", "kueue-system")
        assert await client.get(CONFIG_MAPS, "other", "kueue-system")
        assert await client.get(CLUSTER_QUEUES, f"{namespace}-team")
        # And what is queued afterwards runs.
        await jobs.submit("later", 1, gpus=1)
        await jobs.running("later", 1)
        told, asked = await finished(client, namespace)
        assert told[0] == "nothing of Kueue is left"
        assert asked == []
    await client.delete(CONFIG_MAPS, "other", "kueue-system")
    await kueue_kinds.install(client)
