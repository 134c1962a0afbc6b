"""Sizes: numbers and names that would fill memory or keep the controller from its work."""

import asyncio

import pytest
from support.jobs import KEYS, RACK_LABEL
from support.jobsets import jobset
from support.queues import queued
from support.siege import ANYWHERE, pod

from kube.errors import Forbidden
from kube.resources import JOB_SETS, JOBS, LEADER_WORKER_SETS, POD_DISRUPTION_BUDGETS, PODS

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

AT_ONCE = 16


async def flood(siege, resource, bodies):
    """Make them all, several at a time."""
    todo = iter(bodies)

    async def some():
        for body in todo:
            await siege.tenant.create(resource, body, siege.namespace)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())


def unqueued(name, **options):
    body = queued(name, **{"request": ANYWHERE, **options}, spec={"suspend": False})
    del body["metadata"]["labels"][KEYS.queue_name]
    return body


@pytest.mark.parametrize("queue", ["", "team"])
@pytest.mark.parametrize("replicas", [20_000_000, 2**31 - 1])
async def test_a_jobset_of_so_many_jobs(siege, replicas, queue):
    body = jobset("evil", {"workers": (replicas, 2**10)}, queue=queue, annotations=ANYWHERE)
    body["metadata"]["annotations"] = ANYWHERE
    await siege.tenant.create(JOB_SETS, body, siege.namespace)
    await siege.reason("evil", "InvalidRequest")
    await siege.restart()


async def test_a_jobset_of_five_hundred_replicated_jobs(siege):
    body = jobset("evil", {f"r{number}": (1000, 1000) for number in range(500)}, queue="team", annotations=ANYWHERE)
    await siege.tenant.create(JOB_SETS, body, siege.namespace)
    await siege.reason("evil", "WriteFailed")  # a Workload has no more than eight
    await siege.restart()


@pytest.mark.parametrize("field", ["replicas", "size"])
async def test_a_leader_worker_set_of_two_billion(siege, field):
    """Its first leader is made by the attacker, as its controller would."""
    template = {"metadata": {"annotations": ANYWHERE}, "spec": pod("x")["spec"]}
    shape = {"leaderTemplate": template, "workerTemplate": template, "size": 2}
    spec = {"replicas": 1, "leaderWorkerTemplate": shape}
    (spec if field == "replicas" else shape)[field] = 2**31 - 1
    body = {"apiVersion": LEADER_WORKER_SETS.api_version, "kind": "LeaderWorkerSet", "metadata": {"name": "evil"}}
    made = await siege.tenant.create(LEADER_WORKER_SETS, {**body, "spec": spec}, siege.namespace)
    owner = {key: made[key] for key in ("apiVersion", "kind")}
    owner |= {"name": "evil", "uid": made["metadata"]["uid"], "controller": True}
    prefix = "leaderworkerset.sigs.k8s.io"
    labels = {f"{prefix}/name": "evil", f"{prefix}/group-index": "2147483646", f"{prefix}/worker-index": "0"}
    await siege.create(pod("evil-0", labels=labels, owner=owner))
    await siege.restart()


def resources(count, prefix="r"):
    names = {f"example.com/{prefix}{number}": "1" for number in range(count)}
    return {
        "pod_spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": names, "limits": names}}]}
    }


def selecting(**spec):
    return {"pod_spec": spec}


def of_nodes(*expressions, terms=1):
    found = [{"matchExpressions": list(expressions)}] * terms
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": found}}
    return {"affinity": {"nodeAffinity": required}}


def of_pods(count):
    term = {"topologyKey": RACK_LABEL, "labelSelector": {"matchLabels": {"a": "b"}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term] * count}}}


def spread(count):
    each = {"maxSkew": 2**31 - 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}}
    return {"topologySpreadConstraints": [{**each, "topologyKey": f"example.com/k{number}"} for number in range(count)]}


TOO_LARGE = {
    "8,000 resource names": resources(8000),
    "5,000 keys in the node selector": selecting(nodeSelector={f"example.com/k{n}": "v" for n in range(5000)}),
    "3,000 terms of node affinity": selecting(**of_nodes({"key": "a", "operator": "In", "values": ["b"]}, terms=3000)),
    "50,000 values of one expression": selecting(
        **of_nodes({"key": "a", "operator": "NotIn", "values": [str(n) for n in range(50_000)]})
    ),
    "3,000 tolerations": selecting(
        tolerations=[{"key": f"k{n}", "operator": "Exists", "effect": "NoSchedule"} for n in range(3000)]
    ),
    "1,000 terms of anti-affinity": selecting(**of_pods(1000)),
    "1,000 spread constraints": selecting(**spread(1000)),
    "1,000 containers": selecting(
        containers=[{"name": f"c{n}", "image": "i", "resources": {"requests": {"cpu": "1m"}}} for n in range(1000)]
    ),
}


@pytest.mark.parametrize("what", TOO_LARGE)
async def test_a_job_with(siege, what):
    await siege.create(unqueued("evil", **TOO_LARGE[what]))
    await siege.reason("evil", "TooLarge")
    await siege.restart()


@pytest.mark.parametrize("what", ["8,000 resource names", "5,000 keys in the node selector"])
async def test_a_queued_job_with(siege, what):
    await siege.submit("evil", **TOO_LARGE[what])
    await siege.reason("evil", "TooLarge")


async def test_a_plain_bound_pod_with_8_000_resource_names(siege):
    """What a node does not have costs no column."""
    spec = resources(8000)["pod_spec"]
    spec |= {"nodeName": f"{siege.name}-b2-r2-h2"}
    await siege.create(pod("evil", annotations={}, gated=False, **spec))
    await siege.restart()


async def test_ten_jobs_of_170_kb_with_resource_names_of_their_own(siege):
    await flood(siege, JOBS, [unqueued(f"evil-{n}", **resources(3500, f"of-{n}-")) for n in range(10)])
    for number in range(10):
        await siege.reason(f"evil-{number}", "TooLarge")


async def test_thirty_jobs_with_sixty_resource_names_each(siege):
    """Each keeps the limit; together they would be 1,800 columns."""
    await flood(siege, JOBS, [unqueued(f"evil-{n}", **resources(60, f"of-{n}-")) for n in range(30)])
    await siege.reason("evil-29", "NeverFits")


async def test_thirty_jobs_with_selectors_of_their_own(siege):
    bodies = [
        unqueued(f"evil-{n}", pod_spec={"nodeSelector": {f"example.com/{n}-{k}": "v" * 60 for k in range(50)}})
        for n in range(30)
    ]
    await flood(siege, JOBS, bodies)
    await siege.reason("evil-29", "NeverFits")


async def test_a_hundred_pods_of_generated_names_that_never_fit(siege):
    body = pod("x", 512, labels={KEYS.queue_name: "team"})
    del body["metadata"]["name"]
    body["metadata"]["generateName"] = "evil-"
    await flood(siege, PODS, [body] * 100)


async def test_a_hundred_groups_that_are_never_complete(siege):
    annotations = {**ANYWHERE, KEYS.pod_group_total: "1000"}
    bodies = [
        pod(f"evil-{n}", labels={KEYS.pod_group: f"g{n}", KEYS.queue_name: f"q{n}"}, annotations=annotations)
        for n in range(100)
    ]
    await flood(siege, PODS, bodies)
    await siege.reason("evil-99", "NoQueue")


async def test_a_group_of_a_hundred_kinds_that_come_after_the_first_eight(siege):
    """Its Workload is made of those that there are at first, and has no room for the others."""
    bodies = [
        pod(
            f"evil-{n}",
            0,
            labels={KEYS.pod_group: "evil", KEYS.queue_name: "team"},
            annotations={**ANYWHERE, KEYS.pod_group_total: "100", KEYS.role_hash: f"kind-{n}"},
        )
        for n in range(100)
    ]
    for body in bodies[:8]:
        await siege.create(body)
    await siege.reason("evil", "Pending")
    await flood(siege, PODS, bodies[8:])
    await siege.reason("evil", "InvalidRequest")


async def test_annotations_of_250_kb_on_twenty_pods(siege):
    annotations = {**ANYWHERE, "example.com/large": "x" * 250_000}
    few = 0  # GPUs: without a queue they may take all the room that is free
    await flood(siege, PODS, [pod(f"evil-{n}", few, annotations=annotations) for n in range(20)])


async def test_a_thousand_labels_and_many_owners_on_a_pod(siege):
    body = pod("evil", labels={f"example.com/k{n}": "v" for n in range(1000)})
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": f"c{n}", "uid": f"u{n}"} for n in range(200)]
    with pytest.raises(Forbidden, match="Too many"):  # the policies look through 64 of them
        await siege.create({**body, "metadata": {**body["metadata"], "ownerReferences": owners}})
    await siege.create({**body, "metadata": {**body["metadata"], "ownerReferences": owners[:64]}})
    await siege.restart()


async def test_names_of_the_most_characters(siege):
    long = "e" * 63
    await siege.create(unqueued(long))
    await siege.reason(long, "Admitted")
    longest = ".".join(["e" * 60] * 4)
    await siege.create(pod(longest, 1))
    await siege.reason(longest, "Admitted")
    await siege.create(pod("grouped", 1, labels={KEYS.pod_group: long, KEYS.queue_name: "team"}))
    await siege.restart()


async def test_slices_of_a_million_pods_in_as_many_domains(siege):
    request = {KEYS.slice_level: RACK_LABEL, KEYS.slice_size: "1"}
    await siege.submit("evil", 2_000_000_000, request=request)
    await siege.reason("evil", "ExceedsQuota")


async def test_an_elastic_job_that_asks_for_two_billion_pods_later(siege):
    await siege.submit("evil", 1, spec={"completions": None})
    await siege.mine.running("evil", 1)
    await siege.mine.edit("evil", suspend=True)
    await siege.tenant.patch(JOBS, "evil", siege.namespace, body={"spec": {"parallelism": 2**31 - 1}})
    await siege.stands()
    await siege.paid()


async def test_three_hundred_budgets_of_a_thousand_expressions_that_change(siege):
    """All select its pods: whoever compares each of them with each pod anew does nothing else."""
    await siege.submit("evil", 4)
    await siege.mine.running("evil", 4)
    needs = [{"key": f"k{number}", "operator": "DoesNotExist"} for number in range(1000)]
    selector = {"matchExpressions": needs}
    bodies = [
        {"metadata": {"name": f"evil-{number}"}, "spec": {"selector": selector, "maxUnavailable": 1}}
        for number in range(300)
    ]
    await flood(siege, POD_DISRUPTION_BUDGETS, bodies)
    for number in range(50):
        spec = {"selector": {"matchExpressions": needs[number:]}}
        await siege.tenant.patch(POD_DISRUPTION_BUDGETS, f"evil-{number}", siege.namespace, body={"spec": spec})
    await siege.stands()
    await siege.restart()
