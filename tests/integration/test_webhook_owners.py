"""Whose a Job or a pod says it is: real children cost no call, and nobody gets past the gate by a claim."""

import asyncio
import copy
import json
from contextlib import suppress

import pytest
from support import jobsets
from support.reviews import (
    GATE,
    POD_SET,
    QUEUE,
    RACK,
    REQUIRE,
    UNCONSTRAINED,
    make_job,
    make_jobset,
    make_pod,
    pod_spec,
)
from support.webhook_installed import kubectl, queued, refused, serving, until

from kube.errors import NotFound
from kube.patches import PatchType
from kube.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    JOB_SETS,
    JOBS,
    PODS,
    STATEFUL_SETS,
    Resource,
    resource_of,
)
from manifests.render import InstallOptions, objects

pytestmark = pytest.mark.cluster

JOB_SET = ("JobSet", "jobset.x-k8s.io/v1alpha2")
GATED = [{"name": GATE}]
TOTAL = "kueue.x-k8s.io/pod-group-total-count"
SETTLED_SECONDS = 0.5
TRAIN_JOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
ANY_MAP = {"type": "object", "additionalProperties": {"type": "string"}}
ANY_LIST = {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}


@pytest.fixture
async def webhook(cluster, client, namespace):
    async with serving(cluster, client, namespace) as running:
        yield running


@pytest.fixture
async def strict(cluster, client, namespace):
    """One that requires a queue."""
    async with serving(cluster, client, namespace, require_queue=True) as running:
        yield running


def crd_of(group, plural, kind, properties, version="v1"):
    """A kind that somebody installed; ``properties``: those of its spec, where nothing else is kept."""
    spec = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    versions = [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": spec}}]
    about = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    body = {"group": group, "names": names, "scope": "Namespaced", "versions": versions}
    return {**about, "metadata": {"name": f"{plural}.{group}"}, "spec": body}


def owned(obj, kind, api_version, *, controller=True):
    owner = {"apiVersion": api_version, "kind": kind, "name": "made-up", "uid": "0a1b", "controller": controller}
    obj = copy.deepcopy(obj)
    obj["metadata"]["ownerReferences"] = [owner]
    return obj


def template_of(job):
    template = job["spec"]["template"]
    return template["metadata"].get("annotations", {}), template["spec"].get("schedulingGates")


# --- Jobs of JobSets -------------------------------------------------------------------------------------------------


async def test_what_a_jobset_makes_costs_no_call_and_is_never_suspended_here(webhook, client, namespace):
    """Its Jobs may carry the queue's label too, which JobSet copies from their template."""
    await jobsets.install(client)
    body = make_jobset(labels={QUEUE: "team-a"})
    body["metadata"]["namespace"] = namespace
    for job in body["spec"]["replicatedJobs"]:
        job["template"]["metadata"] = {"labels": {QUEUE: "team-a"}}

    async def stamped():
        made = await client.create(JOB_SETS, body, namespace, dry_run=True)
        return made["spec"].get("suspend") is True

    await until(stamped, "the API server to call the webhook for JobSets")
    await client.create(JOB_SETS, body, namespace)
    before = webhook.calls("/mutate-job"), webhook.calls("/mutate-pod")
    async with jobsets.JobSets(client, namespace):

        async def there(suspended):
            jobs = await client.list(JOBS, namespace)
            return len(jobs) == 4 and all(job["spec"]["suspend"] is suspended for job in jobs)

        await until(lambda: there(suspended=True), "the JobSet's Jobs")
        await client.patch(JOB_SETS, "js", namespace, body={"spec": {"suspend": False}}, content_type=PatchType.MERGE)
        await until(lambda: there(suspended=False), "the Jobs to be resumed")
        await client.delete(JOBS, "js-workers-1", namespace)  # as for a restart: it is made again, and not suspended

        async def born():
            return len(await client.list(PODS, namespace)) >= 8 and await there(suspended=False)

        await until(born, "the Jobs' pods")
    for job in await client.list(JOBS, namespace):
        assert job["metadata"]["labels"][QUEUE] == "team-a"
        annotations, gates = template_of(job)
        assert (annotations[UNCONSTRAINED], gates) == ("true", GATED)
        assert annotations[POD_SET] == job["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"]
    for pod in await client.list(PODS, namespace):
        assert pod["spec"]["schedulingGates"] == GATED
    assert (webhook.calls("/mutate-job"), webhook.calls("/mutate-pod")) == before


NOT_STAMPED = {
    "nothing": (None, ()),
    "the gate alone": (None, (GATE,)),
    "the gate and a pod set": ({POD_SET: "main"}, (GATE,)),
    "the gate and what is no request": ({POD_SET: "main", UNCONSTRAINED: "false"}, (GATE,)),
    "a request without the gate": ({POD_SET: "main", REQUIRE: RACK}, ()),
    "a request without a pod set": ({REQUIRE: RACK}, (GATE,)),
}


@pytest.mark.parametrize("claim", [JOB_SET, ("JobSet", "jobset.x-k8s.io/v9")])
@pytest.mark.parametrize("what", NOT_STAMPED)
async def test_a_job_that_only_says_to_be_of_a_jobset_is_suspended_and_gated(webhook, client, namespace, what, claim):
    annotations, gates = NOT_STAMPED[what]
    job = owned(make_job(template=annotations, labels={QUEUE: "team-a"}, gates=gates), *claim)
    made = await client.create(JOBS, job, namespace, dry_run=True)
    found, gates = template_of(made)
    assert made["spec"]["suspend"] is True
    assert gates == GATED
    assert found[POD_SET] == "main"
    assert REQUIRE in found or found[UNCONSTRAINED] == "true"


@pytest.mark.parametrize(
    "claim", [("JobSet", "made.up/v1"), ("JobSet", "x.jobset.x-k8s.io/v1alpha2"), ("Ring", "a/v1")]
)
async def test_a_job_of_anything_else_is_reviewed_also_where_it_looks_stamped(webhook, client, namespace, claim):
    stamped = make_job(template={POD_SET: "main", REQUIRE: RACK}, labels={QUEUE: "team-a"}, gates=[GATE])
    made = await client.create(JOBS, owned(stamped, *claim), namespace, dry_run=True)
    assert made["spec"]["suspend"] is True
    made = await client.create(JOBS, owned(stamped, *JOB_SET, controller=False), namespace, dry_run=True)
    assert made["spec"]["suspend"] is True, "an owner that does not control it"


async def test_whatever_a_stamped_claim_becomes_its_pods_are_gated(webhook, client, namespace):
    """Nobody reviews it: so no change of it may let its pods go. It claims a JobSet of the tenant's own."""
    await jobsets.install(client)
    mine = make_jobset()
    mine["metadata"]["namespace"] = namespace
    mine = await client.create(JOB_SETS, mine, namespace)
    job = owned(make_job(template={POD_SET: "main", REQUIRE: RACK}, gates=[GATE], suspend=True), *JOB_SET)
    job["metadata"]["labels"] = {QUEUE: "team-a"}
    job["metadata"]["ownerReferences"][0] |= {"name": "js", "uid": mine["metadata"]["uid"]}
    before = webhook.calls("/mutate-job")
    await client.create(JOBS, job, namespace)
    assert webhook.calls("/mutate-job") == before

    def change(path, **operation):
        body = [{"path": path, **operation}]
        return client.patch(JOBS, "j", namespace, body=body, content_type=PatchType.JSON, type=dict)

    after = await change("/spec/template/spec/schedulingGates", op="remove")
    assert template_of(after)[1] == GATED, "it is not stamped any more, and so reviewed"
    request = REQUIRE.replace("/", "~1")
    after = await change(f"/spec/template/metadata/annotations/{request}", op="remove")
    assert template_of(after)[0][UNCONSTRAINED] == "true"
    assert template_of(after)[1] == GATED


async def test_a_suspended_job_cannot_lose_its_gate_alone(webhook, client, namespace):
    await client.create(JOBS, make_job({REQUIRE: RACK}, suspend=True), namespace)
    body = [{"op": "remove", "path": "/spec/template/spec/schedulingGates"}]
    after = await client.patch(JOBS, "j", namespace, body=body, content_type=PatchType.JSON, type=dict)
    assert template_of(after)[1] == GATED


async def test_a_suspended_jobset_cannot_lose_its_gates_alone(webhook, client, namespace):
    await jobsets.install(client)
    body = make_jobset({REQUIRE: RACK}, suspend=True)
    body["metadata"]["namespace"] = namespace

    async def stamped():
        made = await client.create(JOB_SETS, body, namespace, dry_run=True)
        return template_of(made["spec"]["replicatedJobs"][0]["template"])[1] == GATED

    await until(stamped, "the API server to call the webhook for JobSets")
    await client.create(JOB_SETS, body, namespace)
    before = webhook.calls("/mutate-jobset")
    for path, value in (("/metadata/labels", {}), ("/spec/ttlSecondsAfterFinished", 9), ("/spec/suspend", True)):
        change = [{"op": "add", "path": path, "value": value}]
        await client.patch(JOB_SETS, "js", namespace, body=change, content_type=PatchType.JSON)
    assert webhook.calls("/mutate-jobset") == before, "nothing that matters changed"
    path = "/spec/replicatedJobs/1/template/spec/template/spec/schedulingGates"
    change = [{"op": "remove", "path": path}]
    after = await client.patch(JOB_SETS, "js", namespace, body=change, content_type=PatchType.JSON, type=dict)
    assert [template_of(job["template"])[1] for job in after["spec"]["replicatedJobs"]] == [GATED, GATED]


async def test_a_queue_on_a_job_template_alone_is_refused(webhook, client, namespace):
    await jobsets.install(client)
    body = make_jobset()
    body["metadata"]["namespace"] = namespace
    body["spec"]["replicatedJobs"][1]["template"]["metadata"] = {"labels": {QUEUE: "team-a"}}

    async def told():
        _, said = await kubectl(webhook.cluster, "create", "--dry-run=server", "-n", namespace, obj=body)
        return f"spec.replicatedJobs[1].template.metadata.labels[{QUEUE}]: Forbidden" in said

    await until(told, "the refusal")


# --- pods ----------------------------------------------------------------------------------------------------------


def queued_pod(**more):
    pod = make_pod(**more)
    pod["metadata"]["labels"] = {QUEUE: "team-a"}
    return pod


@pytest.mark.parametrize(
    "claim",
    [
        ("Job", "made.up/v1"),
        ("Job", "batch/v2"),
        ("Job", "x.batch/v1"),
        ("DaemonSet", "made.up/v1"),
        ("Node", "made.up/v1"),
        ("v1/Job", "batch"),
        ("StatefulSet", "apps/v1"),
    ],
)
async def test_a_queued_pod_of_something_that_is_called_job_is_gated_like_any(webhook, client, namespace, claim):
    pod = await client.create(PODS, owned(queued_pod(), *claim), namespace, dry_run=True)
    assert pod["spec"]["schedulingGates"] == GATED
    pod = await client.create(PODS, owned(queued_pod(), "Job", "batch/v1", controller=False), namespace, dry_run=True)
    assert pod["spec"]["schedulingGates"] == GATED


@pytest.mark.parametrize("owner", [("Job", "batch/v1"), ("DaemonSet", "apps/v1"), ("Node", "v1")])
async def test_pods_that_get_no_quota_of_their_own_cost_no_call(webhook, client, namespace, owner):
    before = webhook.calls("/mutate-pod")
    pod = await client.create(PODS, owned(queued_pod(), *owner), namespace, dry_run=True)
    assert "schedulingGates" not in pod["spec"]
    assert webhook.calls("/mutate-pod") == before
    asks = owned(make_pod({REQUIRE: RACK}), *owner)
    pod = await client.create(PODS, asks, namespace, dry_run=True)
    assert pod["spec"]["schedulingGates"] == GATED, "who asks for a topology is gated, whosever it is"


async def test_a_pod_that_gated_itself_is_reviewed(webhook, client, namespace):
    error = await refused(client.create(PODS, make_pod({REQUIRE: "no.such/level"}, gates=[GATE]), namespace))
    assert "no topology level" in error.message
    before = webhook.calls("/mutate-pod")
    of_job = owned(make_pod({REQUIRE: RACK}, gates=[GATE]), "Job", "batch/v1")
    await client.create(PODS, of_job, namespace, dry_run=True)
    assert webhook.calls("/mutate-pod") == before


async def test_a_total_on_a_lone_pod_is_told_to_mean_nothing(webhook, cluster, namespace):
    create = ("create", "--dry-run=server", "-n", namespace)
    _, said = await kubectl(cluster, *create, obj=make_pod({REQUIRE: RACK, TOTAL: "16"}))
    assert f"metadata.annotations[{TOTAL}] has no effect" in said
    _, said = await kubectl(cluster, *create, obj=owned(make_pod({REQUIRE: RACK, TOTAL: "16"}), "Ring", "a/v1"))
    assert "no effect" not in said


# --- owners that make pods of a template -----------------------------------------------------------------------------


def service(kind, labels=None, **spec):
    body = {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "s"}},
        "template": {"metadata": {"labels": {"app": "s"}}, "spec": pod_spec()},
        **({"serviceName": "s", "podManagementPolicy": "Parallel"} if kind == "StatefulSet" else {}),
        **spec,
    }
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "s", "labels": labels or {}}, "spec": body}


@pytest.mark.parametrize("resource", [DEPLOYMENTS, STATEFUL_SETS], ids=str)
async def test_a_queue_on_a_service_gates_its_pods(webhook, client, namespace, resource):
    async with queued(client, namespace) as queue:
        made = await client.create(resource, service(resource.kind, {QUEUE: queue}), namespace)
        assert made["spec"]["template"]["metadata"]["labels"] == {"app": "s", QUEUE: queue}

        async def pods():
            return await client.list(PODS, namespace, label_selector=f"{QUEUE}={queue}")

        async def born():
            return len(await pods()) == 2

        await until(born, f"the pods of the {resource.kind}")
        assert all(pod["spec"]["schedulingGates"] == GATED for pod in await pods())
        before = webhook.calls("/mutate-owner")
        await asyncio.sleep(SETTLED_SECONDS)
        assert webhook.calls("/mutate-owner") == before, "its controller's writes cost no call"
        scale = {"spec": {"replicas": 3}}
        await client.patch(resource, "s", namespace, subresource="scale", body=scale)
        assert webhook.calls("/mutate-owner") == before
        body = {"metadata": {"labels": {QUEUE: None}}}
        after = await client.patch(resource, "s", namespace, body=body, content_type=PatchType.MERGE, type=dict)
        assert after["spec"]["template"]["metadata"]["labels"] == {"app": "s"}


async def test_an_unlabelled_service_costs_no_call_and_no_outage_touches_it(webhook, client, namespace):
    before = webhook.calls("/mutate-owner")
    for resource in (DEPLOYMENTS, STATEFUL_SETS):
        await client.create(resource, service(resource.kind, {"a": "b"}), namespace, dry_run=True)
    assert webhook.calls("/mutate-owner") == before
    await client.create(DEPLOYMENTS, service("Deployment", {QUEUE: "q"}), namespace, dry_run=True)
    assert webhook.calls("/mutate-owner") == before + 1
    await webhook.stop()
    try:
        for resource in (DEPLOYMENTS, STATEFUL_SETS):
            await client.create(resource, service(resource.kind), namespace, dry_run=True)
            error = await refused(
                client.create(resource, service(resource.kind, {QUEUE: "q"}), namespace, dry_run=True)
            )
            assert "owner.topogate.dev" in error.message
    finally:
        await webhook.start()


async def test_what_is_wrong_with_an_owner_is_said_to_its_author(webhook, cluster, namespace):
    create = ("create", "--dry-run=server", "-n", namespace)
    body = service("Deployment", {QUEUE: "none"})
    status, said = await kubectl(cluster, *create, obj=body)
    assert status == 0
    assert "has no such LocalQueue: its pods wait behind the gate until it has" in said
    body["metadata"]["annotations"] = {REQUIRE: "no.such/level"}
    status, said = await kubectl(cluster, *create, obj=body)
    assert status != 0
    assert "no topology level" in said


@pytest.mark.parametrize("known", ["labels", "runtimePatches"])
async def test_a_trainjob_keeps_what_its_version_knows(webhook, client, namespace, known):
    """The CRD prunes the place that it does not have: Trainer up to 2.1 has one, and 2.2 the other."""
    parts = {"labels": {"labels": ANY_MAP, "annotations": ANY_MAP}, "runtimePatches": {"runtimePatches": ANY_LIST}}
    crd = crd_of(TRAIN_JOBS.group, "trainjobs", "TrainJob", parts[known], TRAIN_JOBS.version)
    await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
    try:
        head = {"apiVersion": TRAIN_JOBS.api_version, "kind": "TrainJob", "metadata": {"name": "t"}}
        head["metadata"]["annotations"] = {REQUIRE: RACK}
        found = []

        async def made():
            with suppress(NotFound):
                found[:] = [await client.create(TRAIN_JOBS, {**head, "spec": {}}, namespace, dry_run=True)]
                return found[0].get("spec") not in (None, {})
            return False

        await until(made, "the API server to call the webhook for TrainJobs")
        said = {"annotations": {REQUIRE: RACK}}
        entry = {"manager": "topogate.dev/webhook", "trainingRuntimeSpec": {"template": {"metadata": said}}}
        assert found[0]["spec"] == (said if known == "labels" else {"runtimePatches": [entry]})
    finally:
        await client.delete(CUSTOM_RESOURCE_DEFINITIONS, crd["metadata"]["name"])


CRON_JOB = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": make_job()["spec"]}}
LABELLED = {"metadata": {"labels": {"app": "s", QUEUE: "q"}}, "spec": pod_spec()}
HANDED_TO_NOBODY = {  # API version, kind, spec, and what is said of a queue on it
    "CronJob": ("batch/v1", CRON_JOB, "put it into spec.jobTemplate.metadata.labels"),
    "DaemonSet": ("apps/v1", {}, "its pods have their nodes already and are never queued"),
    "ReplicaSet": ("apps/v1", {"replicas": 0}, "put it into spec.template.metadata.labels"),
    "Ring": ("rings.example.com/v1", {}, "pods that it makes are queued only if they have this label themselves"),
}


async def test_a_queue_on_a_kind_that_hands_it_to_nobody_is_told(cluster, client, namespace):
    """Of a kind that somebody installed too; not of what a controller made, nor where the template has it."""
    policies = [obj for obj in objects(InstallOptions()) if obj["metadata"]["name"] == "topogate-unread"]
    for obj in policies:
        await client.apply(resource_of(obj), obj, field_manager="test")
    crd = crd_of("rings.example.com", "rings", "Ring", {})
    await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd)

    async def said(kind, api_version, spec, **metadata):
        body = {"apiVersion": api_version, "kind": kind, "spec": spec}
        body["metadata"] = {"name": "s", "labels": {QUEUE: "q"}, **metadata}
        if kind in {"DaemonSet", "ReplicaSet"}:
            template = {"metadata": {"labels": {"app": "s"}}, "spec": pod_spec()}
            body["spec"] = {"selector": {"matchLabels": {"app": "s"}}, "template": template, **spec}
        status, told = await kubectl(cluster, "create", "--dry-run=server", "-n", namespace, obj=body)
        return status == 0, told

    try:
        for kind, (version, spec, text) in HANDED_TO_NOBODY.items():

            async def told(kind=kind, version=version, spec=spec, text=text):
                created, warning = await said(kind, version, spec)
                return created and f"metadata.labels[{QUEUE}] has no effect on a {kind}: {text}" in warning

            await until(told, f"the warning of a {kind}")
        assert await said("ReplicaSet", "apps/v1", {"template": LABELLED}) == (True, "")
        labelled = {**CRON_JOB, "jobTemplate": {**CRON_JOB["jobTemplate"], "metadata": {"labels": {QUEUE: "q"}}}}
        assert await said("CronJob", "batch/v1", labelled) == (True, "")
        made = {"apiVersion": "a/v1", "kind": "A", "name": "a", "uid": "0a1b", "controller": True}
        assert await said("Ring", "rings.example.com/v1", {}, ownerReferences=[made]) == (True, "")
        for kind, version, spec in (
            ("Service", "v1", {"ports": [{"port": 1}]}),
            ("Job", "batch/v1", make_job()["spec"]),
        ):
            assert await said(kind, version, spec) == (True, "")
        assert await said("Ring", "rings.example.com/v1", {}, labels={"a": "b"}) == (True, "")
    finally:
        await client.delete(CUSTOM_RESOURCE_DEFINITIONS, "rings.rings.example.com")
        for obj in policies:
            await client.delete(resource_of(obj), "topogate-unread")


# --- a queue is compulsory -------------------------------------------------------------------------------------------


async def test_where_a_queue_is_required_nobody_asks_without(strict, client, namespace):
    await jobsets.install(client)
    jobset = make_jobset({REQUIRE: RACK})
    jobset["metadata"]["namespace"] = namespace
    objects = [
        (JOBS, make_job({REQUIRE: RACK})),
        (JOBS, make_job(template={UNCONSTRAINED: "true"})),
        (PODS, make_pod({REQUIRE: RACK})),
        (PODS, make_pod({REQUIRE: RACK, POD_SET: "main"}, gates=[GATE])),  # it gated itself
        (PODS, owned(make_pod({REQUIRE: RACK}, gates=[GATE]), "Job", "made.up/v1")),
        (JOB_SETS, jobset),
    ]
    for resource, body in objects:

        async def told(resource=resource, body=body):
            error = await refused(client.create(resource, body, namespace, dry_run=True))
            assert error.status == 403
            return f"metadata.labels[{QUEUE}]: Required value" in error.message and "requireQueue" in error.message

        await until(told, f"the refusal of {json.dumps(body)}")
        asks = copy.deepcopy(body)
        asks["metadata"]["labels"] = {QUEUE: "team-a"}
        await client.create(resource, asks, namespace, dry_run=True)
    await client.create(JOBS, make_job(), namespace, dry_run=True)
    await client.create(PODS, make_pod(), namespace, dry_run=True)


async def test_where_a_queue_is_required_controllers_go_on_whose_pods_name_one(strict, client, namespace):
    async with queued(client, namespace) as queue:
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "d"}},
                "template": {
                    "metadata": {"labels": {"app": "d", QUEUE: queue}, "annotations": {REQUIRE: RACK}},
                    "spec": pod_spec(),
                },
            },
        }
        await client.create(DEPLOYMENTS, deployment, namespace)

        async def born():
            return len(await client.list(PODS, namespace, label_selector="app=d")) == 2

        await until(born, "the Deployment's pods")
        job = await client.create(JOBS, make_job({REQUIRE: RACK}, labels={QUEUE: queue}), namespace)
        assert job["spec"]["suspend"] is True
        before = strict.calls("/mutate-pod")
        await client.patch(JOBS, "j", namespace, body={"spec": {"suspend": False}}, content_type=PatchType.MERGE)

        async def made():
            return len(await client.list(PODS, namespace, label_selector="job-name=j")) == 2

        await until(made, "the Job's pods, which name no queue themselves")
        assert strict.calls("/mutate-pod") == before


# --- those of others -------------------------------------------------------------------------------------------------


async def test_a_job_that_another_controller_manages_is_left_to_it(webhook, client, cluster, namespace):
    job = make_job({REQUIRE: RACK}, labels={QUEUE: "team-a"}, managedBy="example.com/other")
    _, said = await kubectl(cluster, "create", "-n", namespace, obj=job)
    assert 'spec.managedBy: "example.com/other": the Job is that controller\'s' in said
    made = await client.get(JOBS, "j", namespace)
    assert made["spec"]["suspend"] is False
    assert template_of(made) == ({}, None)
    await asyncio.sleep(SETTLED_SECONDS)
    assert not await client.list(PODS, namespace), "nobody makes its pods here"


async def test_a_jobset_that_another_controller_manages_is_left_to_it(webhook, client, cluster, namespace):
    await jobsets.install(client)
    body = make_jobset({REQUIRE: RACK}, labels={QUEUE: "team-a"})
    body["metadata"]["namespace"] = namespace
    body["spec"]["managedBy"] = "example.com/other"

    async def told():
        _, said = await kubectl(cluster, "create", "--dry-run=server", "-n", namespace, obj=body)
        return 'spec.managedBy: "example.com/other": the JobSet is that' in said

    await until(told, "the warning")
    made = await client.create(JOB_SETS, body, namespace)
    assert "suspend" not in made["spec"]
    body = {"spec": {"managedBy": None}}
    error = await refused(client.patch(JOB_SETS, "js", namespace, body=body, content_type=PatchType.MERGE))
    assert "spec.managedBy: Forbidden" in error.message


async def test_a_wish_by_itself_is_told_to_have_no_effect(webhook, cluster, namespace):
    for key, value in (("topogate.dev/evict-by", "slice"), ("topogate.dev/topology-qos", "guaranteed")):
        status, said = await kubectl(cluster, "create", "--dry-run=server", "-n", namespace, obj=make_job({key: value}))
        assert status == 0
        assert f"metadata.annotations[{key}] has no effect without a topology request" in said
