"""The webhook in front of a real API server, under its own service account, called as the manifests say."""

import asyncio
import base64
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from support import jobsets
from support.reviews import (
    BLOCK,
    DOMAIN,
    GATE,
    HOST,
    POD_SET,
    PREFER,
    QUEUE,
    RACK,
    REQUIRE,
    UNCONSTRAINED,
    make_job,
    make_jobset,
    make_pod,
    pod_spec,
)
from support.webhook_installed import delete, flavor, kubectl, queued, refused, serving, until

from certs.authority import Lifetimes, create
from kube.errors import ApiError
from kube.patches import PatchType
from kube.resources import (
    CLUSTER_QUEUES,
    DEPLOYMENTS,
    JOB_SETS,
    JOBS,
    MUTATING_WEBHOOKS,
    PODS,
    RESOURCE_FLAVORS,
)

pytestmark = pytest.mark.cluster


@pytest.fixture
async def webhook(cluster, client, namespace):
    async with serving(cluster, client, namespace) as running:
        yield running


@pytest.fixture
async def queue(client, namespace):
    async with queued(client, namespace) as name:
        yield name


async def test_a_job_is_stamped_and_stays_as_it_is(webhook, client, namespace):
    job = await client.create(JOBS, make_job({REQUIRE: RACK}), namespace)
    template = job["spec"]["template"]
    assert template["metadata"]["annotations"] == {REQUIRE: RACK, POD_SET: "main"}
    assert template["spec"]["schedulingGates"] == [{"name": GATE}]

    async def born():
        return len(await client.list(PODS, namespace)) == 2

    await until(born, "the Job's pods")
    for pod in await client.list(PODS, namespace):
        assert pod["spec"]["schedulingGates"] == [{"name": GATE}]
        assert pod["metadata"]["annotations"][POD_SET] == "main"
    for change in ({"labels": {"a": "b"}}, {"annotations": {REQUIRE: RACK}}):
        body = {"metadata": change}
        after = await client.patch(JOBS, "j", namespace, body=body, content_type=PatchType.MERGE, type=dict)
        assert after["spec"]["template"] == template
    body = {"metadata": {"annotations": {REQUIRE: BLOCK}}}
    error = await refused(client.patch(JOBS, "j", namespace, body=body, content_type=PatchType.MERGE))
    assert "delete the Job and create it again" in error.message
    await client.create(JOBS, make_job({REQUIRE: RACK}, name="suspended", suspend=True), namespace)
    after = await client.patch(JOBS, "suspended", namespace, body=body, content_type=PatchType.MERGE, type=dict)
    assert after["spec"]["template"]["metadata"]["annotations"] == {REQUIRE: BLOCK, POD_SET: "main"}


async def test_a_jobset_is_stamped_refused_and_suspended(webhook, client, namespace, queue):
    """Its kind is a custom one, which the API server learns of long after the webhook was registered."""
    await jobsets.install(client)

    def create(name, request, **more):
        body = make_jobset({REQUIRE: request}, **more)
        body["metadata"] |= {"name": name, "namespace": namespace}
        return client.create(JOB_SETS, body, namespace, dry_run=name == "dry")

    async def stamped():
        found = await create("dry", RACK)
        template = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        return POD_SET in template.get("metadata", {}).get("annotations", {})

    await until(stamped, "the API server to call the webhook for JobSets")
    made = await create("js", RACK)
    assert not made["spec"].get("suspend")
    for job in made["spec"]["replicatedJobs"]:
        template = job["template"]["spec"]["template"]
        assert template["metadata"]["annotations"][POD_SET] == job["name"]
        assert template["spec"]["schedulingGates"] == [{"name": GATE}]
    error = await refused(create("wrong", "no.such/level"))
    assert f'metadata.annotations[{REQUIRE}]: Unsupported value: "no.such/level"' in error.message
    assert (await create("waits", RACK, labels={QUEUE: queue}))["spec"]["suspend"] is True
    body = {"metadata": {"annotations": {REQUIRE: BLOCK}}}
    after = await client.patch(JOB_SETS, "waits", namespace, body=body, content_type=PatchType.MERGE, type=dict)
    for job in after["spec"]["replicatedJobs"]:
        assert job["template"]["spec"]["template"]["metadata"]["annotations"][REQUIRE] == BLOCK


async def test_wishes_for_the_inside_of_nodes_are_copied_refused_or_told(webhook, client, cluster, namespace):
    policy = "topogate.dev/numa-policy"
    job = await client.create(JOBS, make_job({REQUIRE: RACK, policy: "restricted"}), namespace, dry_run=True)
    assert job["spec"]["template"]["metadata"]["annotations"][policy] == "restricted"
    error = await refused(client.create(JOBS, make_job({REQUIRE: RACK, policy: "tight"}), namespace))
    assert f'metadata.annotations[{policy}]: Unsupported value: "tight"' in error.message
    code, said = await kubectl(cluster, "create", "-n", namespace, obj=make_job({policy: "restricted"}, name="lone"))
    assert code == 0
    assert f"metadata.annotations[{policy}] has no effect without a topology request" in said
    assert "schedulingGates" not in (await client.get(JOBS, "lone", namespace))["spec"]["template"]["spec"]
    body = {"metadata": {"annotations": {policy: "none"}}}
    await client.create(JOBS, make_job({REQUIRE: RACK, policy: "restricted"}, name="kept", suspend=True), namespace)
    after = await client.patch(JOBS, "kept", namespace, body=body, content_type=PatchType.MERGE, type=dict)
    assert after["spec"]["template"]["metadata"]["annotations"][policy] == "none"


async def test_the_api_server_speaks_as_the_short_way_expects(webhook, client, namespace):
    for name in ("a", "b"):
        await client.create(JOBS, make_job({REQUIRE: RACK}, name=name), namespace, dry_run=True)
    connections = webhook.server._listeners[0][1].connections
    assert connections
    assert not any(connection._handed_over for connection in connections)


async def test_a_queued_job_is_suspended_and_asked_about_its_queues_levels(webhook, client, cluster, namespace, queue):
    job = await client.create(JOBS, make_job({REQUIRE: RACK}, labels={QUEUE: queue}), namespace)
    assert job["spec"]["suspend"] is True
    assert not await client.list(PODS, namespace)
    await client.create(RESOURCE_FLAVORS, flavor("other", "cloud.example/zone"))

    async def told():
        job = make_job({REQUIRE: "cloud.example/zone"}, labels={QUEUE: queue}, name="z")
        error = await refused(client.create(JOBS, job, namespace))
        return f'any ResourceFlavor of ClusterQueue gpu; allowed are "{BLOCK}", "{RACK}", "{HOST}"' in error.message

    await until(told, "the webhook to know the queue")
    await client.create(JOBS, make_job({REQUIRE: "cloud.example/zone"}, name="no-queue"), namespace, dry_run=True)
    await delete(client, RESOURCE_FLAVORS, "other")


async def test_a_queued_job_without_a_request_is_gated_too(webhook, client, cluster, namespace, queue):
    job = await client.create(JOBS, make_job(labels={QUEUE: queue}), namespace)
    template = job["spec"]["template"]
    assert job["spec"]["suspend"] is True
    assert template["metadata"]["annotations"] == {UNCONSTRAINED: "true", POD_SET: "main"}
    assert template["spec"]["schedulingGates"] == [{"name": GATE}]


async def test_a_queue_that_is_missing_or_on_hold_is_told(webhook, client, cluster, namespace, queue):
    async def warned(text, name):
        job = make_job({REQUIRE: RACK}, labels={QUEUE: name})
        status, shown = await kubectl(cluster, "create", "--dry-run=server", "-n", namespace, obj=job)
        assert status == 0, shown
        return text in shown

    text = f'metadata.labels[{QUEUE}]: "none": namespace {namespace} has no such LocalQueue'
    await until(lambda: warned(text, "none"), "the warning that there is no such queue")
    body = {"spec": {"stopPolicy": "Hold"}}
    await client.patch(CLUSTER_QUEUES, "gpu", body=body, content_type=PatchType.MERGE)
    text = "its ClusterQueue gpu is on hold (stopPolicy Hold)"
    await until(lambda: warned(text, queue), "the warning that the queue is on hold")


async def test_the_queue_of_a_job_changes_only_while_it_is_suspended(webhook, client, cluster, namespace, queue):
    def change(body):
        return client.patch(JOBS, "j", namespace, body=body, content_type=PatchType.MERGE, type=dict)

    label = {"metadata": {"labels": {QUEUE: queue}}}
    await client.create(JOBS, make_job(), namespace)
    for body in (label, {**label, "spec": {"suspend": True}}):
        error = await refused(change(body))
        assert "a Job that is not suspended keeps its queue" in error.message
    await change({"spec": {"suspend": True}})

    async def stopped():
        return "startTime" not in (await client.get(JOBS, "j", namespace))["status"]

    await until(stopped, "the Job to be suspended")
    job = await change(label)
    assert job["spec"]["template"]["spec"]["schedulingGates"] == [{"name": GATE}]
    await change({"spec": {"suspend": False}})
    error = await refused(change({"metadata": {"labels": {QUEUE: None}}}))
    assert f'("{queue}")' in error.message


async def test_kubectl_shows_what_is_wrong_and_what_is_right(webhook, cluster, namespace):
    create = ("create", "-n", namespace)
    status, shown = await kubectl(cluster, *create, obj=make_job({REQUIRE: "cloud.example/row"}))
    print(shown)
    assert status == 1
    assert 'admission webhook "job.topogate.dev" denied the request' in shown
    for part in ("cloud.example/row", BLOCK, RACK, HOST):
        assert f'"{part}"' in shown
    contradiction = make_job({REQUIRE: RACK}, template={PREFER: RACK})
    status, shown = await kubectl(cluster, *create, obj=contradiction)
    print(shown)
    assert status == 1
    assert f"metadata.annotations[{REQUIRE}]" in shown
    assert f"spec.template.metadata.annotations[{PREFER}]" in shown
    status, shown = await kubectl(cluster, *create, obj=make_job({REQUIRE: HOST}, parallelism=3))
    print(shown)
    assert status == 0
    assert "Warning: metadata.annotations" in shown


async def test_a_server_side_dry_run_leaves_nothing(webhook, client, namespace):
    job = await client.create(JOBS, make_job({REQUIRE: RACK}), namespace, dry_run=True)
    assert job["spec"]["template"]["spec"]["schedulingGates"] == [{"name": GATE}]
    assert await client.list(JOBS, namespace) == []
    error = await refused(client.create(JOBS, make_job({REQUIRE: "cloud.example/row"}), namespace, dry_run=True))
    assert error.status == 422


async def test_pods_that_come_without_the_gate_get_it(webhook, client, namespace):
    pod = await client.create(PODS, make_pod({PREFER: "auto"}), namespace)
    assert pod["spec"]["schedulingGates"] == [{"name": GATE}]
    assert pod["metadata"]["annotations"][POD_SET] == "main"
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "d"}},
            "template": {"metadata": {"labels": {"app": "d"}, "annotations": {REQUIRE: RACK}}, "spec": pod_spec()},
        },
    }
    await client.create(DEPLOYMENTS, deployment, namespace)

    async def born():
        return len(await client.list(PODS, namespace, label_selector="app=d")) == 2

    await until(born, "the Deployment's pods")
    for replica in await client.list(PODS, namespace, label_selector="app=d"):
        assert replica["spec"]["schedulingGates"] == [{"name": GATE}]
    sliced = {f"{DOMAIN}/podset-slice-required-topology": RACK, f"{DOMAIN}/podset-slice-size": "2"}
    pod = await client.create(PODS, make_pod(sliced, name="sliced"), namespace)
    assert pod["spec"]["schedulingGates"] == [{"name": GATE}]
    queued = make_pod(name="queued")
    queued["metadata"]["labels"] = {QUEUE: "team-a"}
    pod = await client.create(PODS, queued, namespace)
    assert pod["spec"]["schedulingGates"] == [{"name": GATE}]
    error = await refused(client.create(PODS, make_pod({REQUIRE: RACK}, name="bound", nodeName="n"), namespace))
    assert error.status == 403
    assert "spec.nodeName: Forbidden" in error.message


async def test_an_outage_touches_nothing_but_what_carries_a_request_or_a_queue(webhook, client, namespace):
    await webhook.stop()
    try:
        await client.create(PODS, make_pod(name="plain"), namespace)
        await client.create(JOBS, make_job(name="plain"), namespace)
        for call in (
            client.create(JOBS, make_job({REQUIRE: RACK}), namespace),
            client.create(JOBS, make_job(labels={QUEUE: "team-a"}), namespace),
            client.create(PODS, make_pod({REQUIRE: RACK}), namespace),
        ):
            error = await refused(call)
            assert "failed calling webhook" in error.message
    finally:
        await webhook.start()
    await client.create(JOBS, make_job({REQUIRE: RACK}), namespace)


async def test_a_flavor_that_comes_brings_its_levels_and_one_that_goes_takes_them(webhook, client, namespace):
    job = make_job({REQUIRE: "cloud.example/row"})
    assert "cloud.example/row" in (await refused(client.create(JOBS, job, namespace, dry_run=True))).message

    async def accepted():
        with suppress(ApiError):
            await client.create(JOBS, job, namespace, dry_run=True)
            return True
        return False

    await client.create(RESOURCE_FLAVORS, flavor("rows", "cloud.example/row", HOST))
    try:
        await until(accepted, "the new level to be accepted")
    finally:
        await client.delete(RESOURCE_FLAVORS, "rows")
    await client.delete(RESOURCE_FLAVORS, "tas")

    async def none_left():
        return "create one first" in (await refused(client.create(JOBS, job, namespace, dry_run=True))).message

    await until(none_left, "the message that there is no flavor")


async def test_the_ca_bundle_is_repaired_where_manifests_are_applied_again(webhook, client, namespace):
    before = await client.get(MUTATING_WEBHOOKS, "topogate-webhook")
    body = {"webhooks": [{"name": hook["name"], "clientConfig": {"caBundle": None}} for hook in before["webhooks"]]}
    await client.patch(MUTATING_WEBHOOKS, "topogate-webhook", body=body, content_type=PatchType.STRATEGIC)

    async def repaired():
        now = await client.get(MUTATING_WEBHOOKS, "topogate-webhook")
        return all(hook["clientConfig"].get("caBundle") for hook in now["webhooks"])

    await until(repaired, "the caBundle to come back")
    await webhook.until_called(namespace)


async def test_the_ca_is_rotated_under_load_and_no_request_fails(webhook, client, namespace):
    """A CA that is past two thirds of its life gives way to a new one while the API server asks all the time."""
    await webhook.stop()
    long = Lifetimes(ca=timedelta(days=3650), leaf=timedelta(days=3650))
    old = create(["127.0.0.1"], datetime.now(UTC) - timedelta(days=2500), long)
    await webhook.store(old)
    await client.patch(
        MUTATING_WEBHOOKS,
        "topogate-webhook",
        body={
            "webhooks": [
                {"name": name, "clientConfig": {"caBundle": base64.b64encode(old.ca_pem).decode()}}
                for name in (f"{kind}.topogate.dev" for kind in ("job", "jobset", "pod", "owner", "settings"))
            ]
        },
        content_type=PatchType.STRATEGIC,
    )
    await webhook.start()
    await webhook.until_called(namespace)
    webhook.server._draining = True  # each answer closes its connection, so each request meets the current certificate
    seen, over = [], asyncio.Event()

    async def load():
        while not over.is_set():
            job = await client.create(JOBS, make_job({REQUIRE: RACK}), namespace, dry_run=True)
            assert job["spec"]["template"]["spec"]["schedulingGates"] == [{"name": GATE}]
            seen.append(1)

    async def switched():
        now = await webhook.stored()
        return now.authorities[0] != old.authorities[0] and len(now.authorities) == 1  # the old one is over

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(load())
        await until(switched, "the new CA to take over")
        before = len(seen)
        while len(seen) < before + 20:
            await asyncio.sleep(0.01)
        over.set()
    final = await webhook.stored()
    assert final.issuer == final.authorities[0]
