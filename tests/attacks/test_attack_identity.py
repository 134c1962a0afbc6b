"""Identity: whose a pod or Job says it is costs nobody else anything, not even after a restart."""

import asyncio
from contextlib import suppress

import pytest
from support.accounts import refused
from support.jobs import KEYS
from support.jobsets import jobset
from support.queues import queued
from support.siege import ANYWHERE, GPUS, pod, replicated

from crds import constants
from kube.errors import NotFound
from kube.resources import JOB_SETS, JOBS, PODS, WORKLOADS

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

BATCH, MADE_UP = "batch/v1", "made.up/v1"


def owner(kind="Job", api_version=BATCH, name="steady", uid="0a1b", **more):
    return {"kind": kind, "apiVersion": api_version, "name": name, "uid": uid, "controller": True, **more}


async def honest(siege, resource=JOBS, name="steady"):
    return (await siege.admin.get(resource, name, siege.theirs.namespace))["metadata"]["uid"]


async def honest_workloads(siege):
    found = await siege.admin.list(WORKLOADS, siege.theirs.namespace)
    return {one["metadata"]["uid"] for one in found if one.get("status", {}).get("admission")}


async def outlast(siege):
    """The controller dies and lists everything anew: the honest Workloads are the same ones."""
    before = await honest_workloads(siege)
    await siege.restart()
    await siege.stands()
    assert before <= await honest_workloads(siege)


JOB_SET = JOB_SETS.api_version
FORGED = {
    "the honest Job": lambda uid: owner(uid=uid),
    "the honest Job as of a made-up group": lambda uid: owner(api_version=MADE_UP, uid=uid),
    "a StatefulSet of the honest Job's uid": lambda uid: owner("StatefulSet", "apps/v1", uid=uid),
    "a JobSet of the honest Job's uid": lambda uid: owner("JobSet", JOB_SET, uid=uid),
    "a Workload of the honest Job's uid": lambda uid: owner("Workload", "topogate.dev/v1alpha1", uid=uid),
    "a Job that does not exist": lambda _: owner(name="nobody", uid="no-uid"),
    "a uid with the honest namespace in it": lambda uid: owner("ConfigMap", "v1", uid=f"../siege-1-alice/{uid}"),
    "a uid that begins like a group": lambda uid: owner("ConfigMap", "v1", uid=f":group/{uid}"),
    "the Node": lambda _: owner("Node", "v1", name="n"),
    "a DaemonSet": lambda _: owner("DaemonSet", "apps/v1"),
    "a LeaderWorkerSet": lambda _: owner("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1"),
}
MADE_UP_KINDS = {
    "a Job of a made-up group": owner(api_version=MADE_UP, name="nobody"),
    "a kind in other letters": owner("J\u043eb\u202e", MADE_UP),
    "a kind of 5,000 letters": owner("K" * 5000, MADE_UP),
    "a name that is a path": owner("Thing", MADE_UP, name="../../../etc/passwd"),
    "a name of 5,000 letters": owner("Thing", MADE_UP, name="n" * 5000),
}


@pytest.mark.parametrize("whose", FORGED)
async def test_a_pod_says_to_be_of(siege, whose):
    forged = FORGED[whose](await honest(siege))
    labels = {"app": "evil", "batch.kubernetes.io/job-name": "steady", KEYS.queue_name: "team"}
    await siege.create(pod("evil", labels=labels, owner=forged))
    await outlast(siege)


async def test_pods_say_to_be_of_kinds_that_nobody_has(siege):
    """The garbage collector cannot look them up. Each is a workload of its own, and charged."""
    for number, (whose, forged) in enumerate(MADE_UP_KINDS.items()):
        labels = {"app": "evil", KEYS.queue_name: "team"}
        await siege.create(pod(f"evil-{number}", 1, labels=labels, owner={**forged, "uid": whose.replace(" ", "-")}))
    await outlast(siege)
    await siege.paid(len(MADE_UP_KINDS))


@pytest.mark.parametrize("whose", ["the honest Job", "a JobSet of the honest Job's uid", "a Job that does not exist"])
async def test_a_job_says_to_be_of(siege, whose):
    body = queued("evil", 2, request=ANYWHERE, spec={"suspend": False})
    body["metadata"]["ownerReferences"] = [FORGED[whose](await honest(siege))]
    body["metadata"]["labels"] |= {constants.JOB_SET_ROLE: "workers", constants.JOB_SET_INDEX: "0"}
    await siege.create(body)
    await outlast(siege)


async def test_a_job_says_to_be_of_a_jobset_of_its_tenant_that_makes_no_such_job(siege):
    """It would run beside the quota of that."""
    made = await siege.tenant.create(
        JOB_SETS, jobset("mine", {"workers": (1, 1)}, queue="team", annotations=ANYWHERE, gpus=1), siege.namespace
    )
    for number in range(6):
        body = queued(f"evil-{number}", 1, request=ANYWHERE, spec={"suspend": False})
        body["metadata"]["ownerReferences"] = [
            owner("JobSet", JOB_SETS.api_version, name="mine", uid=made["metadata"]["uid"])
        ]
        body["metadata"]["labels"] |= {constants.JOB_SET_ROLE: "workers", constants.JOB_SET_INDEX: str(number + 5)}
        await siege.create(body)
    await outlast(siege)
    assert await siege.run_gpus() <= 4 * GPUS
    await siege.paid()


async def test_a_group_has_the_name_of_an_honest_one(siege):
    labels = {KEYS.pod_group: "ring", KEYS.queue_name: "team"}
    theirs = {**ANYWHERE, KEYS.pod_group_total: "2"}
    for number in range(2):
        body = pod(f"ring-{number}", labels={**labels, "batch.kubernetes.io/job-name": "ring"}, annotations=theirs)
        await siege.admin.create(PODS, body, siege.theirs.namespace)
    await siege.theirs.running("ring", 2)
    mine = {**ANYWHERE, KEYS.pod_group_total: "3"}
    for number in range(3):
        await siege.create(pod(f"ring-{number}", labels=labels, annotations=mine))
    await outlast(siege)
    await siege.theirs.running("ring", 2)
    await siege.paid(3 * GPUS)
    for number in range(2):
        await siege.admin.delete(PODS, f"ring-{number}", siege.theirs.namespace, grace_period=0)


async def test_everything_has_the_name_of_the_honest_job(siege):
    """Job, StatefulSet, group and pod, each with its own Workload beside the honest one's."""
    await siege.submit("steady", 1)
    await siege.create(replicated("StatefulSet", "steady", 1, queue="team"))
    await siege.create(pod("steady", labels={KEYS.queue_name: "team"}))
    await siege.create(pod("in-group", labels={KEYS.queue_name: "team", KEYS.pod_group: "steady"}))
    await siege.paid(4 * GPUS)
    await outlast(siege)
    await siege.paid(4 * GPUS)


RANKS = {
    "the honest JobSet's": {constants.JOB_SET_ROLE: "workers", constants.JOB_SET_INDEX: "0"},
    "the honest LeaderWorkerSet's": {
        "leaderworkerset.sigs.k8s.io/name": "steady",
        "leaderworkerset.sigs.k8s.io/group-index": "0",
        "leaderworkerset.sigs.k8s.io/worker-index": "0",
    },
    "Ray's": {"ray.io/group": "headgroup", "ray.io/cluster": "steady", "ray.io/node-type": "head"},
    "Kubeflow's": {"training.kubeflow.org/replica-type": "master", "training.kubeflow.org/job-name": "steady"},
    "the honest Job's": {"batch.kubernetes.io/job-name": "steady", constants.JOB_INDEX_LABEL: "0"},
}


@pytest.mark.parametrize("whose", RANKS)
async def test_a_bare_pod_has_labels_like(siege, whose):
    await siege.create(pod("evil", labels={**RANKS[whose], KEYS.queue_name: "team"}))
    await outlast(siege)
    await siege.paid(GPUS)


async def test_all_pods_of_a_group_have_the_same_rank(siege):
    labels = {KEYS.pod_group: "evil", KEYS.queue_name: "team", constants.JOB_INDEX_LABEL: "0"}
    for number in range(3):
        await siege.create(pod(f"evil-{number}", labels=labels, annotations={**ANYWHERE, KEYS.pod_group_total: "3"}))
    await outlast(siege)
    await siege.paid()


async def test_a_job_is_deleted_while_the_controller_is_away_and_another_has_its_name(siege):
    await siege.submit("evil", 2)
    await siege.paid(2 * GPUS)
    await siege.controller.crash()
    await siege.tenant.delete(JOBS, "evil", siege.namespace, propagation="Foreground")
    await siege.gone(JOBS, "evil")
    await siege.submit("evil", 4)
    await siege.controller.start()
    await siege.mine.running("evil", 4)
    await siege.paid(4 * GPUS)


async def test_workloads_are_deleted_while_the_controller_is_away(siege):
    """Whoever may delete Workloads has nobody's pods end by it: what they hold is known from where they run."""
    await siege.submit("evil", 2)
    await siege.paid(2 * GPUS)
    before = {found["metadata"]["uid"] for found in await siege.mine.pods("evil")}
    await siege.controller.crash()
    for namespace in (siege.namespace, siege.theirs.namespace):
        for workload in await siege.admin.list(WORKLOADS, namespace):
            await siege.admin.delete(WORKLOADS, workload["metadata"]["name"], namespace)
    await siege.restart()
    await siege.stands()
    await siege.paid(2 * GPUS)
    assert {found["metadata"]["uid"] for found in await siege.mine.pods("evil")} == before


async def test_a_workload_is_deleted_as_fast_as_it_is_made_again(siege):
    """As the admin of a namespace may do. Its pods run on, and the controller writes less and less."""
    await siege.submit("evil", 2)
    await siege.paid(2 * GPUS)
    before = {found["metadata"]["uid"] for found in await siege.mine.pods("evil")}
    seen: set[str] = set()
    with suppress(TimeoutError):
        async with asyncio.timeout(15):
            while len(seen) < 12:
                for workload in await siege.admin.list(WORKLOADS, siege.namespace):
                    seen.add(workload["metadata"]["uid"])
                    with suppress(NotFound):
                        await siege.admin.delete(WORKLOADS, workload["metadata"]["name"], siege.namespace)
    assert len(seen) < 12, "it is made again at once each time"
    await siege.stands()
    await siege.paid(2 * GPUS)
    assert {found["metadata"]["uid"] for found in await siege.mine.pods("evil")} == before


async def test_a_pod_is_adopted_by_a_job_that_selects_it(siege):
    """The Job of another queue is made so that it matches the labels of pods that run in this one."""
    labels = {"app": "evil", KEYS.queue_name: "team"}
    for number in range(3):
        await siege.create(pod(f"evil-{number}", labels=labels, restartPolicy="Never"))
    await siege.paid(3 * GPUS)
    body = queued("adopts", 3, request=ANYWHERE)
    body["spec"] |= {"manualSelector": True, "selector": {"matchLabels": {"app": "evil"}}}
    body["spec"]["template"]["metadata"]["labels"] = {"app": "evil"}
    await siege.create(body)
    await outlast(siege)
    assert await siege.run_gpus() <= 4 * GPUS
    await siege.paid()


async def test_a_mark_names_the_honest_workload(siege):
    name = (await siege.theirs.workload("steady"))["metadata"]["name"]
    await refused(siege.create(pod("evil", annotations={KEYS.workload: name})), KEYS.workload)
    body = queued("evil", 1, request=ANYWHERE, annotations={KEYS.workload: name, KEYS.pod_set: "main"})
    await siege.create(body)
    await siege.stands()
    assert await siege.run_gpus() == 0


async def test_two_owners_have_workloads_of_one_name(siege):
    """Whoever makes pods finds two uids that share the 40 bits of the name in a second. What runs stays charged."""
    owners = [owner("Foo", MADE_UP, name="x", uid=uid) for uid in ("u18cec8", "u19e4fb")]
    for which, whose in enumerate(owners):
        for number in range(4):
            await siege.create(pod(f"evil-{which}-{number}", labels={KEYS.queue_name: "team"}, owner=whose))
        await siege.paid(4 * GPUS)
    await siege.reason("x", "InsufficientQuota")
    names = {one["metadata"]["name"] for one in await siege.admin.list(WORKLOADS, siege.namespace)}
    assert len([name for name in names if name.startswith("foo-x-")]) == 2, names
    await outlast(siege)
    await siege.paid(4 * GPUS)
    for number in range(4):
        await siege.tenant.delete(PODS, f"evil-1-{number}", siege.namespace, grace_period=0)
    await siege.submit("more", 4)
    await siege.reason("more", "InsufficientQuota")
    await siege.paid(4 * GPUS)
