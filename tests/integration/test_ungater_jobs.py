"""Jobs on the real control plane, with the controller in this process: 2 blocks x 2 racks x 2 hosts of 8 GPUs."""

import asyncio

import pytest
from support.cluster_checker import rank_order, snapshot, violations
from support.jobs import KEYS, RACK_LABEL, Running, Watched, install_crds, job, make_flavor, nodes_of, racks_of, until

from kube.errors import NotFound
from kube.resources import DAEMON_SETS, JOBS, NODES, PODS, RESOURCE_FLAVORS, WORKLOADS
from localcluster.nodes import GROUP_LABEL

pytestmark = pytest.mark.cluster


@pytest.fixture
async def jobs(client, namespace, nodes):
    """A running controller and its flavor; every test ends with the independent checker."""
    await install_crds(client)
    await nodes(blocks=2, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    watched = Watched(client, namespace)
    async with Running(client):
        yield watched
        assert violations(await snapshot(client, {namespace})) == []
    await client.delete(RESOURCE_FLAVORS, namespace)


async def test_required_lands_in_one_rack_and_the_workload_says_where(jobs):
    await jobs.create(job("one-rack", 4, gpus=4))
    pods = await jobs.running("one-rack", 4)
    assert len(racks_of(pods)) == 1
    admitted = await jobs.condition("one-rack", "Admitted", "True", "Admitted")
    assert "4 pods in b1/r1" in admitted["message"]
    await jobs.condition("one-rack", "PodsReady", "True")
    workload = await jobs.workload("one-rack")
    (reference,) = workload["metadata"]["ownerReferences"]
    assert reference["controller"]
    assert reference["blockOwnerDeletion"]
    assert all(pod["metadata"]["annotations"][KEYS.workload] == workload["metadata"]["name"] for pod in pods)


async def test_preferred_spills_over_as_few_racks_as_possible(jobs):
    await jobs.create(job("spill", 3, request={KEYS.preferred[0]: RACK_LABEL}))
    assert len(racks_of(await jobs.running("spill", 3))) == 2
    message = (await jobs.condition("spill", "Admitted", "True"))["message"]
    assert "over 2 domains" in message


async def test_auto_takes_the_narrowest_level(jobs):
    await jobs.create(job("auto", 2, gpus=4, request={KEYS.preferred[0]: "auto"}))
    assert len(set(nodes_of(await jobs.running("auto", 2)))) == 1


async def test_what_cannot_fit_waits_says_why_and_starts_when_room_is_made(jobs):
    await jobs.create(job("first", 1, gpus=8))
    (first,) = await jobs.running("first", 1)
    await jobs.event("first", "Admitted")
    for number in range(3):
        await jobs.create(
            job(f"other-{number}", 1, request={KEYS.required[0]: RACK_LABEL}, pod_spec=_beside(first, number))
        )
    for number in range(3):
        await jobs.running(f"other-{number}", 1)
    await jobs.create(job("waits", 2))
    condition = await jobs.condition("waits", "QuotaReserved", "False", "DoesNotFit")
    assert "takes 1 and lacks 8 nvidia.com/gpu" in condition["message"]
    await jobs.event("waits", "DoesNotFit")
    assert all(pod["spec"].get("schedulingGates") for pod in await jobs.pods("waits"))
    await jobs.delete("first")
    assert racks_of(await jobs.running("waits", 2)) == racks_of([first])
    await jobs.event("waits", "Admitted")  # who was told that it waits is told that this is over


def _beside(pod, number):
    """Node affinity that puts the pod of job ``number`` into the number-th rack other than that of ``pod``."""
    here = next(iter(racks_of([pod])))
    block, rack = [(b, r) for b in ("b1", "b2") for r in ("r1", "r2") if (b, r) != here][number]
    return {"nodeSelector": {"cloud-provider.com/topology-block": block, RACK_LABEL: rack}}


async def test_what_can_never_fit_says_so(jobs):
    await jobs.create(job("never", 3))
    message = (await jobs.condition("never", "QuotaReserved", "False", "NeverFits"))["message"]
    assert "has 16 nvidia.com/gpu in all; 24 are wanted" in message


async def test_ranks_sit_in_rank_order(jobs, client, namespace):
    await jobs.create(
        job("ranks", 8, gpus=4, indexed=True, request={KEYS.required[0]: "cloud-provider.com/topology-block"})
    )
    assert len(racks_of(await jobs.running("ranks", 8))) == 2
    assert rank_order(await snapshot(client, {namespace}), "ranks") == []


async def test_slices_share_a_rack_each_and_come_back_to_it(jobs, client, namespace):
    request = {
        KEYS.required[0]: "cloud-provider.com/topology-block",
        KEYS.slice_level: RACK_LABEL,
        KEYS.slice_size: "3",
    }
    await jobs.create(job("rings", 6, gpus=4, indexed=True, request=request))
    pods = await jobs.running("rings", 6)  # a rack takes four such pods, so one slice
    assert len(racks_of(pods)) == 2
    assert all(len(racks_of(of_slice)) == 1 for of_slice in slices_of(pods, 3))
    (pod_set,) = (await jobs.workload("rings"))["spec"]["podSets"]
    assert pod_set["topologyRequest"]["podSetSliceSize"] == 3
    for victim in (pods[0], pods[5]):
        await client.delete(PODS, victim["metadata"]["name"], namespace)
    after = await until(lambda: _replaced(jobs, "rings", 6, pods[5]), "the replacements")
    assert all(len(racks_of(of_slice)) == 1 for of_slice in slices_of(after, 3))
    await jobs.create(job("more", 9, gpus=4, indexed=True, request=request))
    message = (await jobs.condition("more", "QuotaReserved", "False", "NeverFits"))["message"]
    assert "the largest, b1, has 32 nvidia.com/gpu in all; 36 are wanted" in message


async def test_the_last_slice_of_a_job_may_be_a_part_of_one(jobs, client, namespace):
    """Kueue 0.19.2 leaves such pods behind their gate for ever (issue 15277); from 0.20 on it places them."""
    request = {
        KEYS.required[0]: "cloud-provider.com/topology-block",
        KEYS.slice_level: RACK_LABEL,
        KEYS.slice_size: "3",
    }
    await jobs.create(job("tail", 5, gpus=4, indexed=True, request=request))
    pods = await jobs.running("tail", 5)  # a rack takes four such pods
    whole, tail = slices_of(pods, 3)
    assert (len(racks_of(whole)), len(racks_of(tail)), len(tail)) == (1, 1, 2)
    assert racks_of(whole) != racks_of(tail)
    for victim in (whole[0], tail[1]):
        await client.delete(PODS, victim["metadata"]["name"], namespace)
    after = slices_of(await until(lambda: _replaced(jobs, "tail", 5, tail[1]), "the replacements"), 3)
    assert [racks_of(one) for one in after] == [racks_of(whole), racks_of(tail)]


def slices_of(pods, size):
    ranked = sorted(pods, key=lambda pod: int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]))
    return [ranked[at : at + size] for at in range(0, len(ranked), size)]


async def test_a_deleted_pod_comes_back_on_its_slot(jobs, client, namespace):
    await jobs.create(job("again", 4, gpus=4, indexed=True))
    before = await jobs.running("again", 4)
    victim = before[1]
    await client.delete(PODS, victim["metadata"]["name"], namespace)
    after = await until(lambda: _replaced(jobs, "again", 4, victim), "the replacement")
    assert nodes_of(after) == nodes_of(before)
    assert rank_order(await snapshot(client, {namespace}), "again") == []


async def _replaced(jobs, name, count, victim):
    found = await jobs.pods(name, phase="Running")
    uids = {pod["metadata"]["uid"] for pod in found}
    return found if len(found) == count and victim["metadata"]["uid"] not in uids else None


async def test_a_failed_pod_is_replaced_on_its_slot(jobs):
    await jobs.create(job("fails", 4, gpus=4))
    before = await jobs.running("fails", 4)
    await jobs.annotate(before[0], **{"fail-after-seconds": "0"})
    after = await until(lambda: _replaced(jobs, "fails", 4, before[0]), "the replacement", seconds=90)
    assert nodes_of(after) == nodes_of(before)


async def test_finished_pods_free_their_slots_for_others(jobs):
    await jobs.create(job("ends", 2))
    before = await jobs.running("ends", 2)
    await jobs.create(
        job(
            "next",
            1,
            request={KEYS.required[0]: RACK_LABEL},
            pod_spec={"nodeSelector": {"kubernetes.io/hostname": before[0]["spec"]["nodeName"]}},
        )
    )
    await jobs.condition("next", "QuotaReserved", "False")
    await jobs.annotate(before[0], **{"run-seconds": "0"})
    assert nodes_of(await jobs.running("next", 1)) == [before[0]["spec"]["nodeName"]]
    workload = await jobs.workload("ends")
    assert workload["status"]["reclaimablePods"] == [{"name": "main", "count": 1}]
    await jobs.annotate(before[1], **{"run-seconds": "0"})
    await jobs.condition("ends", "Finished", "True", "Succeeded")


async def test_more_completions_than_pods_reuse_the_slots(jobs):
    await jobs.create(job("waves", 2, completions=4, indexed=True, annotations={"topogate.dev/run-seconds": "1"}))
    await jobs.condition("waves", "Finished", "True", "Succeeded")
    ended = await jobs.pods("waves", phase="Succeeded")
    assert len(ended) == 4
    assert len(set(nodes_of(ended))) == 2


async def test_scaled_up_and_down(jobs):
    await jobs.create(job("scales", 2, gpus=4, indexed=True))
    before = nodes_of(await jobs.running("scales", 2))
    await jobs.edit("scales", parallelism=4, completions=4)
    after = await jobs.running("scales", 4)
    assert [node for node in nodes_of(after) if node in before][:2] == before
    assert len(racks_of(after)) == 1
    assert (await jobs.workload("scales"))["spec"]["podSets"][0]["count"] == 4
    await jobs.edit("scales", parallelism=1, completions=1)
    await jobs.running("scales", 1)
    await until(lambda: _admitted_count(jobs, "scales", 1), "the smaller admission")


async def _admitted_count(jobs, name, count):
    workload = await jobs.workload(name)
    return workload["status"]["admission"]["podSetAssignments"][0]["count"] == count


async def test_suspended_and_resumed(jobs):
    await jobs.create(job("pauses", 2))
    await jobs.running("pauses", 2)
    await jobs.edit("pauses", suspend=True)
    await jobs.condition("pauses", "Admitted", "False", "Suspended")
    assert "admission" not in (await jobs.workload("pauses"))["status"]
    await jobs.edit("pauses", suspend=False)
    await jobs.running("pauses", 2)
    await jobs.condition("pauses", "Admitted", "True")


async def test_a_pod_whose_slot_moved_is_replaced(jobs, client, namespace):
    await jobs.create(job("moves", 1, gpus=8, spec={"backoffLimit": 0}))
    (before,) = await jobs.running("moves", 1)
    workload = await jobs.workload("moves")
    admission = workload["status"]["admission"]
    names = [node["metadata"] for node in await client.list(NODES) if node["metadata"]["name"].startswith(namespace)]
    other = next(meta for meta in names if meta["name"] != before["spec"]["nodeName"])
    assignment = admission["podSetAssignments"][0]["topologyAssignment"]
    assignment["slices"] = [{"nodeLabels": {key: other["labels"][key] for key in assignment["levels"]}, "count": 1}]
    body = {"status": {"admission": admission}}
    await client.patch(WORKLOADS, workload["metadata"]["name"], namespace, body=body, subresource="status")
    after = await until(lambda: _replaced(jobs, "moves", 1, before), "the replacement")
    assert nodes_of(after) == [other["name"]]
    await jobs.event(before["metadata"]["name"], "SlotMoved")
    assert (await client.get(JOBS, "moves", namespace))["status"].get("failed", 0) == 0  # not the Job's fault


async def test_a_lost_workload_is_written_again_with_the_same_slots(jobs, client, namespace):
    await jobs.create(job("robust", 4, gpus=4))
    before = nodes_of(await jobs.running("robust", 4))
    workload = await jobs.workload("robust")
    await client.delete(WORKLOADS, workload["metadata"]["name"], namespace)
    await until(lambda: _another(jobs, "robust", workload), "another Workload")
    assert nodes_of(await jobs.running("robust", 4)) == before


async def _another(jobs, name, old):
    found = await jobs.workload(name)
    return found and found["metadata"]["uid"] != old["metadata"]["uid"] and "admission" in found.get("status", {})


async def test_a_deleted_job_leaves_nothing_behind(jobs, client, namespace):
    await jobs.create(job("goes", 2))
    await jobs.running("goes", 2)
    name = (await jobs.workload("goes"))["metadata"]["name"]
    await jobs.delete("goes")

    async def gone():
        try:
            await client.get(WORKLOADS, name, namespace)
        except NotFound:
            return True
        return False

    await until(gone, "the Workload to go with its job")
    await jobs.create(job("takes-over", 2))
    await jobs.running("takes-over", 2)


async def test_foreign_pods_count(jobs, client, namespace, nodes):
    pod = {
        "metadata": {"name": "foreign"},
        "spec": {
            "nodeName": f"{namespace}-b1-r1-h1",
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
    }
    await client.create(PODS, pod, namespace)
    await asyncio.sleep(0.2)
    await jobs.create(job("beside", 2, request={KEYS.required[0]: RACK_LABEL}))
    assert ("b1", "r1") not in racks_of(await jobs.running("beside", 2))


async def test_levels_nobody_has_are_named_with_those_that_exist(jobs):
    await jobs.create(job("wrong", 1, request={KEYS.required[0]: "example.com/row"}))
    condition = await jobs.condition("wrong", "QuotaReserved", "False", "UnknownLevel")
    assert RACK_LABEL in condition["message"]
    await jobs.event("wrong", "UnknownLevel")


async def test_pods_that_nobody_serves_say_why_they_stay_gated(jobs, client, namespace):
    template = {
        "metadata": {"labels": {"app": "each"}, "annotations": {KEYS.required[0]: RACK_LABEL}},
        "spec": {
            "schedulingGates": [{"name": KEYS.gate}],
            "nodeSelector": {GROUP_LABEL: namespace},
            "containers": [{"name": "c", "image": "i"}],
        },
    }
    spec = {"selector": {"matchLabels": {"app": "each"}}, "template": template}
    await client.create(DAEMON_SETS, {"metadata": {"name": "each"}, "spec": spec}, namespace)
    (first, *_) = await until(lambda: client.list(PODS, namespace, label_selector="app=each"), "a pod of the DaemonSet")
    note = (await jobs.event(first["metadata"]["name"], "UnsupportedOwner"))["note"]
    assert KEYS.gate in note
    assert "DaemonSet each" in note
    await client.delete(DAEMON_SETS, "each", namespace)
    await jobs.create(job("no-gate", 1, gated=False))
    await jobs.event("no-gate", "NotGated")


async def test_other_gates_and_affinity_survive(jobs, client, namespace):
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": RACK_LABEL, "operator": "In", "values": ["r2"]}]}]
            }
        }
    }
    gates = [{"name": KEYS.gate}, {"name": "example.com/later"}]
    await jobs.create(job("gates", 1, pod_spec={"affinity": affinity, "schedulingGates": gates}))

    async def only_the_other():
        pods = await jobs.pods("gates")
        return pods if pods and pods[0]["spec"]["schedulingGates"] == [{"name": "example.com/later"}] else None

    (pod,) = await until(only_the_other, "our gate to go")
    (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["values"] == ["r2"]
    assert term["matchFields"][0]["key"] == "metadata.name"
    await client.patch(PODS, pod["metadata"]["name"], namespace, body={"spec": {"schedulingGates": None}})
    assert {rack for _, rack in racks_of(await jobs.running("gates", 1))} == {"r2"}
