"""Labels of nodes, flavors and assignments that change while pods run by them: docs/changes.md, row by row.

2 blocks x 2 racks x 2 hosts of 8 GPUs, one controller in this process for each test.
"""

import json

import pytest
from support.changes import assignment, node_of, running, uids
from support.commands import topogate
from support.jobs import KEYS, LEVELS, RACK_LABEL, job, make_flavor, racks_of, until

from kube.resources import EVENTS, JOBS, RESOURCE_FLAVORS, WORKLOADS
from localcluster.nodes import BLOCK_LABEL, GROUP_LABEL, HOSTNAME_LABEL

pytestmark = pytest.mark.cluster


@pytest.fixture
async def jobs(client, namespace, nodes):
    """A running controller and its flavor; every test ends with the independent checker."""
    await nodes(blocks=2, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    async with running(client, namespace) as changed:
        yield changed


async def flavor_says(client, name, **wanted):
    """Wait until the flavor's status has these values; ``reason``: of its condition Active, which is returned."""

    async def there():
        status = (await client.get(RESOURCE_FLAVORS, name)).get("status", {})
        (active,) = status.get("conditions") or [{}]
        found = {**status, "reason": active.get("reason")}
        return active if all(found.get(key) == value for key, value in wanted.items()) else None

    return await until(there, f"status {wanted} of flavor {name}")


async def test_a_node_without_a_levels_label_is_told_counted_and_named_where_it_would_help(
    jobs, client, cluster, namespace
):
    node = f"{namespace}-b2-r2-h2"
    active = await flavor_says(client, namespace, nodes=8, nodesMissingLabels=0, reason="Ready")
    assert active["status"] == "True"
    await jobs.label(node, **{RACK_LABEL: None})
    active = await flavor_says(client, namespace, nodes=7, nodesMissingLabels=1, reason="MissingLevelLabel")
    assert f"{node} ({RACK_LABEL})" in active["message"]

    async def told():
        found = await client.list(EVENTS, "default")
        about = [one for one in found if one["regarding"]["name"] == node]
        return next((one["note"] for one in about if one["reason"] == "MissingLevelLabel"), None)

    note = await until(told, "an event on the node")
    assert RACK_LABEL in note
    assert namespace in note
    await jobs.create(job("big", 4, request={KEYS.required[0]: BLOCK_LABEL}))
    await jobs.running("big", 4)
    await jobs.create(job("waits", 4, request={KEYS.required[0]: BLOCK_LABEL}))
    condition = await jobs.condition("waits", "QuotaReserved", "False")
    assert f"1 node lacks the label of a level: {node} ({RACK_LABEL})" in condition["message"]
    arguments = ["explain", "waits", "-n", namespace, "-o", "json", "--kubeconfig", str(cluster.kubeconfig)]
    answer = json.loads(await topogate(*arguments))
    (named,) = [one for room in answer["room"] for one in room["unlabeled"]]
    assert named == {"node": node, "missing": [RACK_LABEL], "fits": 1}
    await jobs.label(node, **{RACK_LABEL: "r2"})
    await jobs.running("waits", 4)
    await flavor_says(client, namespace, nodes=8, nodesMissingLabels=0, reason="Ready")


async def test_labels_that_change_under_running_pods_move_nobody(jobs):
    await jobs.create(job("labels", 2, indexed=True))
    before = await jobs.running("labels", 2)
    stored = await assignment(jobs, "labels")
    await jobs.label(node_of(before[0]), **{RACK_LABEL: None})
    await jobs.label(node_of(before[1]), **{RACK_LABEL: "r9"})
    await jobs.create(job("other", 1))
    await jobs.running("other", 1)
    assert uids(await jobs.running("labels", 2)) == uids(before)
    assert await assignment(jobs, "labels") == stored
    for pod in before:  # the checker takes a node for what its labels say
        await jobs.label(node_of(pod), **{RACK_LABEL: pod["spec"]["nodeSelector"][RACK_LABEL]})
    await jobs.end(before[0])
    after = await jobs.sent("labels", 1, but=before)
    assert after[0]["spec"]["nodeSelector"] == before[0]["spec"]["nodeSelector"], "it is the same place again"


async def test_an_edited_flavor_moves_nobody_and_counts_for_whatever_is_placed_from_then_on(jobs, client, namespace):
    await jobs.create(job("edited", 2, indexed=True))
    before = await jobs.running("edited", 2)
    await client.patch(RESOURCE_FLAVORS, namespace, body={"spec": {"nodeLabels": {GROUP_LABEL: "nobody"}}})
    await flavor_says(client, namespace, nodes=0, reason="NoNodes")
    await jobs.create(job("later", 1))
    assert "no node has" in (await jobs.condition("later", "QuotaReserved", "False", "NoNodes"))["message"]
    await jobs.end(before[0])
    await jobs.condition("edited", "PodsReady", "False", "PartlyPlaced")
    assert uids(before[1:]) == uids(await jobs.running("edited", 1))
    await client.patch(RESOURCE_FLAVORS, namespace, body={"spec": {"nodeLabels": {GROUP_LABEL: namespace}}})
    after = await jobs.running("edited", 2)
    assert {node_of(pod) for pod in after} == {node_of(pod) for pod in before}
    await jobs.running("later", 1)


async def test_a_flavor_deleted_while_in_use_leaves_its_pods_and_their_slots(jobs, client, namespace):
    """Also over a restart; what wants more or another place waits until the flavor is there again."""
    await jobs.create(job("deleted", 2, gpus=4, indexed=True))
    before = await jobs.running("deleted", 2)
    stored = await assignment(jobs, "deleted")
    await client.delete(RESOURCE_FLAVORS, namespace)
    await jobs.create(job("later", 1))
    await jobs.condition("later", "QuotaReserved", "False", "UnknownLevel")
    await jobs.end(before[0])
    (again,) = await jobs.sent("deleted", 1, but=before)
    of_levels = {level: before[0]["spec"]["nodeSelector"][level] for level in LEVELS}
    assert again["spec"]["nodeSelector"] == of_levels, "its slot; of the flavor's own labels nobody knows any more"
    await jobs.running("deleted", 2)
    await jobs.edit("deleted", parallelism=4, completions=4)
    said = await jobs.condition("deleted", "PodsReady", "False", "PartlyPlaced")
    assert namespace in said["message"], "the flavor that is gone is named"
    kept = await jobs.running("deleted", 2)
    await make_flavor(client, namespace, namespace)
    after = await jobs.running("deleted", 4)
    assert uids(kept) <= uids(after)
    assert len(racks_of(after)) == 1
    await jobs.running("later", 1)
    grown = await assignment(jobs, "deleted")
    assert sum(one["count"] for one in grown["slices"]) == sum(one["count"] for one in stored["slices"]) + 2


async def test_a_flavor_made_again_with_other_levels_moves_nobody(jobs, client, namespace):
    await jobs.create(job("levels", 2, gpus=4, indexed=True))
    before = await jobs.running("levels", 2)
    await client.delete(RESOURCE_FLAVORS, namespace)
    await make_flavor(client, namespace, namespace, levels=LEVELS[1:])
    await jobs.end(before[0])
    (again,) = await jobs.sent("levels", 1, but=before)
    assert again["spec"]["nodeSelector"] == before[0]["spec"]["nodeSelector"]
    await jobs.running("levels", 2)
    await jobs.edit("levels", parallelism=3, completions=3)
    said = await jobs.condition("levels", "PodsReady", "False", "PartlyPlaced")
    assert "created again without the levels by which the pods were placed" in said["message"]
    await jobs.edit("levels", parallelism=2, completions=2)
    await jobs.condition("levels", "PodsReady", "True")


async def edit(jobs, name, change):
    """Change the topology assignment that the job's Workload stores, as a person with an editor does."""
    workload = await jobs.workload(name)
    admission = workload["status"]["admission"]
    change(admission["podSetAssignments"][0]["topologyAssignment"])
    body = {"status": {"admission": admission}}
    await jobs.client.patch(WORKLOADS, workload["metadata"]["name"], jobs.namespace, body=body, subresource="status")


async def test_an_assignment_edited_by_hand_is_followed_where_it_can_be_and_mended_where_not(jobs, client, namespace):
    await jobs.create(job("hand", 2, indexed=True, spec={"backoffLimit": 0}))
    before = await jobs.running("hand", 2)
    rack = racks_of(before).pop()

    def nowhere(stored):
        first = dict(stored["slices"][0]["nodeLabels"])
        stored["slices"][0]["nodeLabels"] = {**first, HOSTNAME_LABEL: "no-such-node"}

    await edit(jobs, "hand", nowhere)
    after = await jobs.running("hand", 2)

    async def mended():
        found = await assignment(jobs, "hand")
        names = {one["nodeLabels"][HOSTNAME_LABEL] for one in found["slices"]}
        return "no-such-node" not in names and names

    names = await until(mended, "slots on nodes that exist")
    after = await jobs.running("hand", 2)
    assert {node_of(pod) for pod in after} == names
    assert racks_of(after) == {rack}, "the required domain holds"
    assert before[1]["metadata"]["uid"] in uids(after)
    assert (await client.get(JOBS, "hand", namespace))["status"].get("failed", 0) == 0

    workload = await jobs.workload("hand")
    body = {"status": {"admission": None}}
    await client.patch(WORKLOADS, workload["metadata"]["name"], namespace, body=body, subresource="status")

    async def again():
        return "admission" in (await jobs.workload("hand"))["status"]

    await until(again, "the admission to be written again")
    assert uids(await jobs.running("hand", 2)) == uids(after), "no pod notices"
