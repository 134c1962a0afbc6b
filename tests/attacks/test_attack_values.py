"""Values: whatever the API server stores is read, or refused as one object's error, and again after a restart."""

import pytest
from support.jobs import GPU, KEYS, RACK_LABEL
from support.queues import queued
from support.siege import ANYWHERE, pod, replicated

from crds import constants
from kube.resources import JOBS

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

MOST = "9223372036854775807"  # 2^63-1
LONG = "1" * 5000  # more digits than Python reads
DEEP = "[" * 100_000
FLOOD = "{" + '"a":{' * 20_000


def containers(*amounts):
    return [
        {"name": f"c{at}", "image": "i", "resources": {"requests": one, "limits": one}}
        for at, one in enumerate(amounts)
    ]


def asks(*amounts, **more):
    return {"pod_spec": {"containers": containers(*amounts), **more}}


def says(annotations):
    return {"request": {**ANYWHERE, **annotations}}


def where(key, value):
    return {"request": {key: value}}


def terms(*expressions):
    required = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


# What the Job is, and what it is told.
OF_JOBS = {
    "two containers ask for 2^63-1 bytes each": (asks({"memory": MOST}, {"memory": MOST}), "NeverFits"),
    "two containers ask for 9223372036854775 CPUs each": (asks(*[{"cpu": "9223372036854775"}] * 2), "NeverFits"),
    "it asks for 1E9999 bytes": (asks({"memory": "1E9999"}), "NeverFits"),
    "it asks for 2^63-1 GPUs": (asks({GPU: MOST}), "NeverFits"),
    "a hundred containers ask for 2^62 of everything": (
        asks(*[{"memory": str(2**62), "cpu": str(2**50), GPU: str(2**62)}] * 100),
        "NeverFits",
    ),
    "a sidecar asks for 2^63-1 bytes beside one that does": (
        asks(
            {"memory": MOST},
            initContainers=[{**containers({"memory": MOST})[0], "name": "side", "restartPolicy": "Always"}],
        ),
        "NeverFits",
    ),
    "it asks for a billionth of a CPU and of a byte": (asks({"cpu": "1n", "memory": "1n"}), "Admitted"),
    "the fewest pods are a number of 5000 digits": (says({KEYS.min_parallelism: LONG}), "InvalidRequest"),
    "the fewest pods are less than none": (says({KEYS.min_parallelism: "-1"}), "InvalidRequest"),
    "slices have a size of 5000 digits": (
        {"request": {KEYS.slice_level: RACK_LABEL, KEYS.slice_size: LONG}},
        "InvalidRequest",
    ),
    "slices have a size in other digits": (
        {"request": {KEYS.slice_level: RACK_LABEL, KEYS.slice_size: "\u0663\u00b2"}},
        "InvalidRequest",
    ),
    "slices have no size": ({"request": {KEYS.slice_level: RACK_LABEL, KEYS.slice_size: "0"}}, "InvalidRequest"),
    "constraints of slices are nested 100,000 deep": (
        says({KEYS.slice_layers: DEEP}),
        "InvalidRequest",
    ),
    "constraints of slices are objects in objects": (
        says({KEYS.slice_layers: FLOOD}),
        "InvalidRequest",
    ),
    "NUMA resources are nested 100,000 deep": (says({constants.NUMA_RESOURCES: DEEP}), "InvalidRequest"),
    "the NUMA policy is no word": (says({constants.NUMA_POLICY: "\u202e\U0001f4a9\x7f"}), "InvalidRequest"),
    "the GPU link is 200 kB long": (says({constants.GPU_LINK: "NVLink" * 33_000}), "InvalidRequest"),
    "it is evicted by a word of its own": (says({constants.EVICT_BY: "cluster"}), "InvalidRequest"),
    "the level is 200 kB long": (where(KEYS.required[0], "x" * 200_000), "InvalidRequest"),
    "the level turns its text around": (where(KEYS.required[0], "\u202e\u2066rack"), "InvalidRequest"),
    "it runs for a number of 63 digits of seconds": (
        {"labels": {KEYS.max_execution: "9" * 63}},
        "InvalidRequest",
    ),
    "a label of its node is more than 2^63-1": (
        asks({"cpu": "1"}, **terms({"key": "x", "operator": "Gt", "values": [MOST]})),
        "NeverFits",
    ),
    "a label of its node is nothing": (
        asks({"cpu": "1"}, **terms({"key": RACK_LABEL, "operator": "In", "values": [""]})),
        "NeverFits",
    ),
    "pods take 2^63-1 seconds to stop": (asks({"cpu": "1"}, terminationGracePeriodSeconds=int(MOST)), "Admitted"),
    "a toleration lasts -2^63 seconds": (
        asks(
            {"cpu": "1"},
            tolerations=[{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -(2**63)}],
        ),
        "Admitted",
    ),
}


@pytest.mark.parametrize("what", OF_JOBS)
async def test_a_job_without_a_queue(siege, what):
    options, reason = OF_JOBS[what]
    body = queued("evil", **{"request": ANYWHERE, **options}, spec={"suspend": False})
    del body["metadata"]["labels"][KEYS.queue_name]
    await siege.create(body)
    await siege.reason("evil", reason)
    await siege.restart()
    await siege.reason("evil", reason)


@pytest.mark.parametrize(
    "what", ["two containers ask for 2^63-1 bytes each", "the fewest pods are a number of 5000 digits"]
)
async def test_a_job_with_a_queue(siege, what):
    options, _ = OF_JOBS[what]
    await siege.submit("evil", **options)
    await siege.reason("evil", "NoQuota" if "bytes" in what else "InvalidRequest")
    await siege.restart()


async def test_a_plain_suspended_job_whose_fewest_pods_are_a_number_of_5000_digits(siege):
    """It asks for nothing and names no queue, and is read at each start."""
    body = queued("evil", request={}, gated=False)
    body["metadata"] = {"name": "evil", "annotations": {KEYS.min_parallelism: LONG}}
    await siege.create(body)
    await siege.restart()


# Pods that are bound already, or are told so: what they are.
OF_PODS = {
    "twice 2^63-1 bytes on a node that does not exist": (asks({"memory": MOST}, {"memory": MOST}), "no-such-node"),
    "1E9999 bytes on a node that exists": (asks({"memory": "1E9999"}), ""),
    "2^63-1 of a thousand resources on a node that exists": (
        asks({f"example.com/r{number}": MOST for number in range(1000)}),
        "",
    ),
    "a port of the host and 2^63-1 CPUs in an init container": (
        asks(
            {"cpu": "1"},
            initContainers=containers({"cpu": str(2**62)}, {"cpu": str(2**62)}),
            hostNetwork=True,
        ),
        "",
    ),
}


@pytest.mark.parametrize("what", OF_PODS)
async def test_a_plain_pod_that_is_bound_by_its_name(siege, what):
    options, node = OF_PODS[what]
    spec = {**options["pod_spec"], "nodeName": node or f"{siege.name}-b2-r2-h2"}
    spec["initContainers"] = [{**one, "name": f"i{at}"} for at, one in enumerate(spec.get("initContainers", []))]
    await siege.create(pod("evil", 0, annotations={}, gated=False, **spec))
    await siege.restart()


async def test_a_group_whose_total_is_a_number_of_5000_digits(siege):
    labels, annotations = {KEYS.pod_group: "evil"}, {**ANYWHERE, KEYS.pod_group_total: LONG}
    await siege.create(pod("evil", labels=labels, annotations=annotations))
    await siege.reason("evil", "InvalidRequest")
    await siege.restart()


@pytest.mark.parametrize("total", ["0", "-1", "1.5", "1e3", "\u0664", "", "999999999999"])
async def test_a_group_whose_total_is_no_number_of_pods(siege, total):
    labels, annotations = {KEYS.pod_group: "evil"}, {**ANYWHERE, KEYS.pod_group_total: total}
    await siege.create(pod("evil", labels=labels, annotations=annotations))
    await siege.reason("evil", "InvalidRequest")


async def test_a_pod_whose_rank_is_a_number_of_63_digits(siege):
    ranks = {constants.JOB_INDEX_LABEL: "9" * 63, "apps.kubernetes.io/pod-index": "9" * 63}
    await siege.create(pod("evil", labels=ranks))
    await siege.restart()


async def test_a_stateful_set_whose_pods_begin_at_rank_two_billion(siege):
    await siege.create(replicated("StatefulSet", "evil", 2, ordinals={"start": 2**31 - 3}))
    await siege.restart()


async def test_a_job_of_2_31_minus_1_pods_that_is_suspended(siege):
    body = queued("evil", 2**31 - 1, request=ANYWHERE)
    await siege.tenant.create(JOBS, body, siege.namespace)
    await siege.reason("evil", "ExceedsQuota")
    await siege.restart()
