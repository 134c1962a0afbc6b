"""The ValidatingAdmissionPolicy on the real API server, met by real accounts: a user with role edit, and ours.

The policy is applied for a domain of its own, so that it does not meet the pods of other tests.
"""

import asyncio
import json
import subprocess

import pytest
import yaml
from support import jobsets
from support.accounts import (
    CONTAINER,
    GATE,
    KEYS,
    OPTIONS,
    REMOVE_GATE,
    REQUEST,
    accounts,
    annotate,
    in_force,
    pod,
    refused,
    renamed,
)
from support.jobs import install_crds

from crds import constants
from kube.errors import NotFound
from kube.patches import PatchType
from kube.resources import JOBS, NODES, PODS, VALIDATING_ADMISSION_POLICIES
from manifests import render

pytestmark = pytest.mark.cluster

K = KEYS
POLICIES = [
    renamed(obj)["metadata"]["name"] for obj in render.objects(OPTIONS) if obj["kind"] == "ValidatingAdmissionPolicy"
]


@pytest.fixture(scope="module")
def policies(cluster):
    with in_force(cluster):
        yield


@pytest.fixture
async def users(policies, client, namespace, as_account):
    return await accounts(client, namespace, as_account)


async def test_policies_are_well_typed(users, client):
    """The controller manager checks expressions against the types of objects; a mistake would show as a warning."""
    await install_crds(client)
    await jobsets.install(client)
    for name in POLICIES:
        async with asyncio.timeout(30):
            while True:
                policy = await client.get(VALIDATING_ADMISSION_POLICIES, name)
                status = policy.get("status", {})
                if status.get("observedGeneration") == policy["metadata"]["generation"]:
                    break
                await asyncio.sleep(0.05)
        assert status.get("typeChecking", {}).get("expressionWarnings", []) == [], name


NOTHING: dict = {}


def job(name, *, of_job=NOTHING, of_template=NOTHING, requests=CONTAINER["resources"]):
    container = {"name": "c", "image": "i", "resources": requests}
    template = {"metadata": of_template, "spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, **of_job},
        "spec": {"template": template},
    }


def service(kind, name, *, of_object=NOTHING, of_template=NOTHING):
    labels = {"app": name, **of_template.get("labels", {})}
    template = {"metadata": {**of_template, "labels": labels}, "spec": {"containers": [CONTAINER]}}
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, **of_object}, "spec": spec}


def annotation(key):
    return {"annotations": {key: "rack"}}


NUMA, QUEUE, REQUIRED, PREFERRED = constants.NUMA_POLICY, K.queue_name, K.required[0], K.preferred[0]
KUEUE = "kueue.x-k8s.io"
MISTAKEN = [  # what somebody makes, and what is told
    (job("typo", of_job=annotation(f"{K.domain}/required-topology")), f"did you mean the annotation {REQUIRED}?"),
    (job("prefix", of_job=annotation("topogate.dev/require-topology")), f"did you mean the annotation {REQUIRED}?"),
    (job("kueue", of_job=annotation("kueue.x-k8s.io/require-topology")), f"did you mean the annotation {REQUIRED}?"),
    (job("bare", of_job=annotation("require-topology")), f"did you mean the annotation {REQUIRED}?"),
    (
        job("case", of_template=annotation(f"{K.domain}/Prefered_Topolgy")),
        f"the annotation {PREFERRED}?",
    ),
    (job("numa", of_template=annotation(f"{K.domain}/numa-policy")), f"did you mean the annotation {NUMA}?"),
    (job("queues", of_job={"labels": {"topogate.dev/queue-name": "q"}}), f"did you mean the label {QUEUE}?"),
    (job("label", of_job={"labels": {REQUIRED: "rack"}}), f"metadata.labels[{REQUIRED}] has no effect as a label"),
    (job("queue", of_job=annotation(QUEUE)), f"metadata.annotations[{QUEUE}] has no effect as an annotation"),
    (
        job("nothing", of_job=annotation(REQUIRED), requests={}),
        "the pods ask for no resources",
    ),
    (
        service("Deployment", "web", of_object=annotation(K.role_hash)),
        f"[{K.role_hash}] has no effect on a Deployment",
    ),
    (
        service("StatefulSet", "db", of_object={"labels": {K.pod_group: "g"}}),
        f"[{K.pod_group}] has no effect on a StatefulSet",
    ),
    (
        pod("pod", annotations=annotation(f"{K.domain}/reqiure-topology")["annotations"]),
        f"[{K.domain}/reqiure-topology]",
    ),
]
RIGHT = [
    job("plain"),
    job("placed", of_job=annotation(REQUIRED)),
    job("below", of_template=annotation(K.preferred[1])),
    job("other", of_job={"labels": {"topology.kubernetes.io/zone": "b", "queue": "x"}}),
    job("requires", of_job=annotation("example.com/require-type")),
    job(
        "of-kueue",
        of_job={**annotation("kueue.x-k8s.io/podset-required-topology"), "labels": {"kueue.x-k8s.io/queue-name": "q"}},
    ),
    job("claimed", of_job=annotation(REQUIRED), requests={"claims": [{"name": "gpu"}]}),
    service("Deployment", "served", of_object=annotation(REQUIRED)),  # which the webhook hands down
    pod("gated", annotations=REQUEST, gates=GATE),
]


def test_what_looks_like_ours_and_has_no_effect_is_told_at_creation(policies, cluster, namespace):
    """With Kubernetes 1.37: a policy that warns never refuses. Its warnings are all that kubectl says on stderr."""
    claims = [{"name": "gpu", "resourceClaimName": "gpu"}]
    RIGHT[6]["spec"]["template"]["spec"]["resourceClaims"] = claims

    def created(objects):
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        line = [
            cluster.kubectl,
            "--kubeconfig",
            cluster.kubeconfig,
            "create",
            "-n",
            namespace,
            "-f",
            "-",
            "--dry-run=server",
        ]
        done = subprocess.run(line, input=listed, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr.splitlines()

    said = created([obj for obj, _ in MISTAKEN])
    assert len(said) == len(MISTAKEN), said
    for (_, told), line in zip(MISTAKEN, said, strict=True):
        assert told in line
        assert ": nothing is refused, but " in line
    assert created(RIGHT) == []


async def test_a_pod_with_a_request_and_no_gate_is_refused(users, namespace):
    user = await users("user")
    for key in K.requests:
        value = "true" if key == K.unconstrained else "rack"
        await refused(user.create(PODS, pod("p", annotations={key: value}), namespace), key, K.gate, "webhook")
    bound = pod("p", annotations=REQUEST, nodeName="n1")
    await refused(user.create(PODS, bound, namespace), "spec.nodeName")


async def test_pods_of_others_and_gated_pods_pass(users, namespace):
    user = await users("user")
    for passing in (
        pod("plain"),
        pod("annotated", annotations={"a": "b"}),
        pod("other-gate", gates=[{"name": "example.com/wait"}]),
        pod("gated", annotations={**REQUEST, K.pod_set: "main"}, gates=GATE),
        pod("not-asked", annotations={K.unconstrained: "false"}),
    ):
        await user.create(PODS, passing, namespace, dry_run=True)


async def test_lists_that_the_policies_look_through_have_a_bound(users, namespace):
    """Kubernetes 1.37 estimates what an expression costs when a policy is made: a long list is slow all the same."""
    user = await users("user")
    gates = [{"name": f"example.com/wait-{number}"} for number in range(65)]
    await refused(user.create(PODS, pod("p", gates=gates), namespace), "spec.schedulingGates: Too many", "at most 64")
    gated = pod("p", annotations=REQUEST, gates=[*GATE, *gates[:63]])
    gated["metadata"]["finalizers"] = [f"example.com/keep-{number}" for number in range(64)]
    await user.create(PODS, gated, namespace, dry_run=True)
    gated["metadata"]["finalizers"].append("example.com/one-more")
    await refused(user.create(PODS, gated, namespace), "metadata.finalizers: Too many", "at most 64")
    gated["metadata"]["finalizers"].clear()
    await user.create(PODS, gated, namespace)
    more = {"metadata": {"finalizers": [f"example.com/keep-{number}" for number in range(65)]}}
    await refused(user.patch(PODS, "p", namespace, body=more), "metadata.finalizers: Too many", "at most 64")


async def test_a_mirror_pod_passes_only_from_a_node(users, client, namespace, kubectl):
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"mirror-{namespace}"}}
    made = await client.create(NODES, node)
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    mirror = pod("static", annotations={**REQUEST, "kubernetes.io/config.mirror": "hash"}, nodeName=name)
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": True}
    mirror["metadata"]["ownerReferences"] = [owner]
    await refused(client.create(PODS, mirror, namespace), K.gate)
    its = ("--as", f"system:node:{name}", "--as-group", "system:nodes", "--as-group", "system:masters")
    told = kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", *its, stdin=yaml.safe_dump(mirror))
    await client.delete(NODES, name)
    assert "static created" in told


async def test_only_the_ungater_removes_the_gate(users, client, namespace):
    gated = pod("p", annotations=REQUEST, gates=[*GATE, {"name": "example.com/wait"}])
    await client.create(PODS, gated, namespace)
    user, ungater, webhook = await users("user"), await users("ungater"), await users("webhook")
    for other in (user, client):
        await refused(other.patch(PODS, "p", namespace, **REMOVE_GATE), K.gate, "Workload", "alone")
    await refused(webhook.patch(PODS, "p", namespace, **REMOVE_GATE))
    other_gate = {"spec": {"schedulingGates": [{"$patch": "delete", "name": "example.com/wait"}]}}
    await user.patch(PODS, "p", namespace, body=other_gate, content_type=PatchType.STRATEGIC)
    await ungater.patch(PODS, "p", namespace, **REMOVE_GATE)
    assert "schedulingGates" not in (await client.get(PODS, "p", namespace))["spec"]


async def test_only_the_ungater_writes_the_annotations(users, client, namespace):
    user, ungater = await users("user"), await users("ungater")
    forged = {
        K.workload: "job-other",
        constants.ADMITTED_QUOTA: "{}",
        constants.NUMA_PLACEMENT_PREDICTED: "[]",
        constants.NUMA_PLACEMENT_OBSERVED: "[]",
    }
    for key, value in forged.items():
        made = pod("p", annotations={**REQUEST, key: value}, gates=GATE)
        await refused(user.create(PODS, made, namespace), key, "Topogate alone", "remove it")
    await user.create(PODS, pod("p", annotations={**REQUEST, K.pod_set: "main"}, gates=GATE), namespace)
    for key in (*forged, K.pod_set):
        await refused(user.patch(PODS, "p", namespace, **annotate({key: "forged"})), key, "leave it as it is")
    await refused(user.patch(PODS, "p", namespace, **annotate({K.pod_set: None})), K.pod_set)
    await user.patch(PODS, "p", namespace, **annotate({"mine": "yes"}))
    await ungater.patch(
        PODS, "p", namespace, **annotate({K.workload: "job-p", constants.NUMA_PLACEMENT_PREDICTED: "[]"})
    )
    for value in ("job-other", None):
        await refused(client.patch(PODS, "p", namespace, **annotate({K.workload: value})), K.workload)


async def test_a_plain_pod_cannot_claim_a_workload_later(users, client, namespace):
    user = await users("user")
    await user.create(PODS, pod("plain"), namespace)
    await refused(user.patch(PODS, "plain", namespace, **annotate({K.workload: "job-other"})), K.workload)


async def test_gated_pods_can_be_deleted_by_their_user(users, namespace):
    user = await users("user")
    await user.create(PODS, pod("p", annotations=REQUEST, gates=GATE), namespace)
    await user.delete(PODS, "p", namespace)
    with pytest.raises(NotFound):
        await user.get(PODS, "p", namespace)


async def test_a_job_whose_pods_are_refused_says_why(users, client, namespace, kubectl):
    """Without the webhook nothing runs in a wrong place; the Job's own events tell."""
    template = {"metadata": {"annotations": REQUEST}, "spec": {"restartPolicy": "Never", **pod("x")["spec"]}}
    del template["spec"]["schedulingGates"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}
    await client.create(JOBS, job, namespace)
    async with asyncio.timeout(30):
        while K.gate not in (events := kubectl("events", "-n", namespace, "--for", "job/j")):
            await asyncio.sleep(0.1)
    assert "FailedCreate" in events
    await client.delete(JOBS, "j", namespace, propagation="Background")


async def test_the_agent_alone_writes_what_it_observed(users, client, namespace):
    await client.create(PODS, pod("placed"), namespace)
    agent = await users("agent")
    await agent.patch(PODS, "placed", namespace, **annotate({constants.NUMA_PLACEMENT_OBSERVED: "[]"}))
    forged = annotate({constants.NUMA_PLACEMENT_PREDICTED: "[]"})
    # The policies of pods and of the agent both refuse it; the API server tells of whichever it asked first.
    await refused(agent.patch(PODS, "placed", namespace, **forged), "topogate.dev/numa-placement-")
    forged = annotate({constants.NUMA_PLACEMENT_OBSERVED: "[1]"})
    await refused((await users("user")).patch(PODS, "placed", namespace, **forged), "written by Topogate alone")
