"""What a stolen token of Topogate's is good for, on the real API server: no more than docs/security.md says."""

import asyncio
import base64
import copy
import itertools

import pytest
import yaml
from msgspec.structs import replace
from support import jobsets
from support.accounts import (
    GATE,
    KEYS,
    NAMESPACE,
    OPTIONS,
    REMOVE_GATE,
    REQUEST,
    accounts,
    allowed_soon,
    annotate,
    in_force,
    label,
    metadata,
    pod,
    refused,
    refused_soon,
    renamed,
    token_on,
)
from support.jobs import install_crds

from crds import constants
from kube.errors import Forbidden
from kube.patches import PatchType
from kube.resources import (
    CLUSTER_ROLES,
    CONFIG_MAPS,
    EVENTS,
    FLEX_TOPOS,
    JOB_SETS,
    JOBS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    VALIDATING_ADMISSION_POLICIES,
    WORKLOADS,
    Resource,
    resource_of,
)
from manifests import render
from serving.live_settings import CONFIG_MAP, LAST_GOOD

pytestmark = pytest.mark.cluster

K = KEYS
AGENT_NAMESPACE = render.agent_namespace(NAMESPACE)
TRACKING = "batch.kubernetes.io/job-tracking"


@pytest.fixture(scope="module")
def policies(cluster):
    with in_force(cluster):
        yield


@pytest.fixture
async def users(policies, client, namespace, as_account):
    return await accounts(client, namespace, as_account)


@pytest.fixture
async def ungater(users):
    return await users("ungater")


def strategic(body):
    return {"body": body, "content_type": PatchType.STRATEGIC}


# --- the ungater: settings -------------------------------------------------------------------------------------------


async def test_of_the_settings_the_ungater_keeps_the_last_good_ones_and_changes_nothing_else(users, ungater, client):
    name = renamed({"metadata": {"name": CONFIG_MAP}})["metadata"]["name"]
    stored = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"config.yaml": "a: b"}}
    await client.create(CONFIG_MAPS, stored, NAMESPACE)
    await ungater.patch(CONFIG_MAPS, name, NAMESPACE, body={"data": {LAST_GOOD: "a: b"}})
    for body in (
        {"data": {"config.yaml": "domain: evil.example.com"}},
        {"data": {"config.yaml": None}},
        {"data": {"other.yaml": "x"}},
        {"binaryData": {"config.yaml": "eA=="}, "data": {"config.yaml": None}},
        {"metadata": {"labels": {"a": "b"}}},
        {"immutable": True},
    ):
        await refused(ungater.patch(CONFIG_MAPS, name, NAMESPACE, body=body), "last-good.yaml")
    await client.delete(CONFIG_MAPS, name, NAMESPACE)


# --- the ungater: pods -----------------------------------------------------------------------------------------------


@pytest.fixture
async def pods(users, client, namespace):
    """``gated``, ``placed`` and ``plain``."""
    asked = {**REQUEST, K.pod_set: "main"}
    for name in ("gated", "placed"):
        gates = [*GATE, {"name": "example.com/other"}]
        await client.create(PODS, pod(name, annotations=asked, gates=gates, labels={"app": "x"}), namespace)
    body = {"metadata": {"annotations": {K.workload: "job-x"}}}
    await (await users("ungater")).patch(PODS, "placed", namespace, **strategic(body))
    await (await users("ungater")).patch(PODS, "placed", namespace, **REMOVE_GATE)
    await client.create(PODS, pod("plain"), namespace)


async def test_the_ungater_lets_a_pod_go_as_it_does(pods, ungater, client, namespace):
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    said = {
        K.workload: "job-x",
        K.pod_set: "main",
        constants.ADMITTED_QUOTA: "{}",
        constants.NUMA_PLACEMENT_PREDICTED: "[]",
        constants.XPU_INDEXES: "0,1",
    }
    spec = {"nodeSelector": {"rack": "r1"}, "affinity": affinity, "schedulingGates": [{"name": "example.com/other"}]}
    await ungater.patch(PODS, "gated", namespace, body={"metadata": {"annotations": said}, "spec": spec})
    found = await client.get(PODS, "gated", namespace)
    assert found["spec"]["nodeSelector"] == {"rack": "r1"}
    await ungater.delete(PODS, "gated", namespace)
    await ungater.delete(PODS, "placed", namespace)


async def test_the_ungater_touches_no_pod_without_gate_and_mark(pods, ungater, namespace):
    for change in (
        label({"a": "b"}),
        annotate({K.workload: "job-x"}),
        annotate({"a": "b"}),
        metadata(finalizers=[TRACKING]),
        metadata(finalizers=["example.com/x"]),
        strategic({"spec": {"containers": [{"name": "c", "image": "evil"}]}}),
        strategic({"spec": {"activeDeadlineSeconds": 1}}),
    ):
        await refused(ungater.patch(PODS, "plain", namespace, **change), "changes and deletes no pod but")
    await refused(ungater.delete(PODS, "plain", namespace), "changes and deletes no pod but")
    await refused(ungater.delete(PODS, "plain", namespace, grace_period=0), "changes and deletes no pod but")


async def test_the_ungater_marks_pods_that_kueue_started_where_the_namespace_is_served(ungater, client, namespace):
    """Beside Kueue; and no pod of a Job without Kueue's label, nor one of another owner, nor more than its marks."""
    started = f"{KEYS.domain}/podset"
    # Owners that are there, or the garbage collector takes the pods; and no controller of Jobs that ends them.
    template = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
    body = {"metadata": {"name": "j"}, "spec": {"managedBy": "example.com/nobody", "template": template}}
    made = await client.create(JOBS, body, namespace)
    await client.create(PODS, pod("owner"), namespace)
    holder = await client.get(PODS, "owner", namespace)
    job, others = (
        {
            "apiVersion": api,
            "kind": kind,
            "name": one["metadata"]["name"],
            "uid": one["metadata"]["uid"],
            "controller": True,
        }
        for api, kind, one in (("batch/v1", "Job", made), ("v1", "Pod", holder))
    )
    for name, owner, labels in (("k", job, {started: "main"}), ("j", job, {}), ("r", others, {started: "main"})):
        await client.create(PODS, pod(name, owners=[owner], labels=labels), namespace)
    marks = annotate({K.workload: "job-x", K.pod_set: "main", constants.ADMITTED_QUOTA: "{}"})
    for name in ("k", "j", "r"):
        await refused(ungater.patch(PODS, name, namespace, **marks), "the ungater changes")
    await client.patch(NAMESPACES, namespace, body={"metadata": {"labels": {constants.SERVED: "true"}}})
    for name in ("j", "r"):
        await refused(ungater.patch(PODS, name, namespace, **marks))
    await refused(ungater.delete(PODS, "k", namespace), "the ungater changes and deletes no pod but")
    for change in (
        annotate({"a": "b"}),
        label({"a": "b"}),
        strategic({"spec": {"containers": [{"name": "c", "image": "evil"}]}}),
    ):
        await refused(ungater.patch(PODS, "k", namespace, **change))
    await allowed_soon(lambda: ungater.patch(PODS, "k", namespace, **marks))


async def let_patch(client, namespace, group, resource):
    """Let the ServiceAccount ``user`` of a namespace patch this resource there."""
    rule = {"apiGroups": [group], "resources": [resource], "verbs": ["get", "patch"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "patches", "namespace": namespace}}
    subject = {"kind": "ServiceAccount", "name": "user", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "patches"}
    await client.create(ROLES, {**role, "kind": "Role", "rules": [rule]})
    await client.create(ROLE_BINDINGS, {**role, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]})


async def test_who_serves_a_namespace_is_for_those_who_may_patch_all_of_them(users, client, namespace):
    """A platform may let the administrators of a namespace label it."""
    await let_patch(client, namespace, "", "namespaces")
    user = await users("user")

    def labelled(by, **labels):
        return by.patch(NAMESPACES, namespace, body={"metadata": {"labels": labels}})

    await allowed_soon(lambda: labelled(user, team="a"))
    beside = replace(OPTIONS, domain="kueue.x-k8s.io", beside=True)
    policy = [renamed(obj) for obj in render.objects(beside) if obj["metadata"]["name"] == "topogate-served"]
    for obj in policy:
        await client.apply(resource_of(obj), obj, field_manager="test")
    values = map(str, itertools.count())  # what was written once before the policy holds is no change
    try:
        await refused_soon(lambda: labelled(user, **{constants.SERVED: next(values)}))
        await labelled(user, team="b")
        await labelled(client, **{constants.SERVED: "true"})
        await refused(labelled(user, **{constants.SERVED: None}), "metadata.labels[topogate.dev/served]")
    finally:
        for obj in policy:
            await client.delete(resource_of(obj), obj["metadata"]["name"])


async def test_nobody_but_a_controller_says_that_kueue_started_a_job(users, client, namespace):
    """A job that runs with Kueue's label in its template is taken over, whatever quota there is."""
    await let_patch(client, namespace, "batch", "jobs")
    await client.patch(NAMESPACES, namespace, body={"metadata": {"labels": {constants.SERVED: "true"}}})
    template = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
    spec = {"managedBy": "example.com/nobody", "suspend": True, "template": template}
    await client.create(JOBS, {"metadata": {"name": "j"}, "spec": spec}, namespace)
    user = await users("user")

    def labelled(by, **labels):
        return by.patch(JOBS, "j", namespace, body={"spec": {"template": {"metadata": {"labels": labels}}}})

    started = {"kueue.x-k8s.io/podset": "main"}
    await allowed_soon(lambda: labelled(user, app="a"))
    beside = replace(OPTIONS, domain="kueue.x-k8s.io", beside=True)
    policy = [renamed(obj) for obj in render.objects(beside) if obj["metadata"]["name"] == "topogate-started"]
    for obj in policy:
        await client.apply(resource_of(obj), obj, field_manager="test")
    values = map(str, itertools.count())
    try:
        # What has the label already may have another value of it, so it is taken away again each time.
        async def marked():
            await labelled(client, **dict.fromkeys(started))
            await labelled(user, **dict.fromkeys(started, f"m{next(values)}"))

        await refused_soon(marked)
        await labelled(user, app="b")
        await refused(labelled(user, **started), "it says that Kueue started the job")
        await labelled(client, **started)
        await labelled(user, app="c")
    finally:
        for obj in policy:
            await client.delete(resource_of(obj), obj["metadata"]["name"])


async def test_the_ungater_changes_no_more_of_its_pods_than_it_must(pods, ungater, namespace):
    tolerated = [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}]
    for name in ("gated", "placed"):
        for change, said in (
            (strategic({"spec": {"containers": [{"name": "c", "image": "evil"}]}}), "spec.containers"),
            (strategic({"spec": {"activeDeadlineSeconds": 1}}), "spec.activeDeadlineSeconds"),
            ({"body": tolerated, "content_type": PatchType.JSON}, "spec.tolerations"),
            (label({"app": "y"}), "metadata"),
            (label({"a": "b"}), "metadata"),
            (metadata(finalizers=["example.com/x"]), "metadata"),
            (annotate({"cdi.k8s.io/gpus": "nvidia.com/gpu=all"}), "cdi.k8s.io/gpus"),
            (annotate({"a": "b"}), "metadata.annotations[a]"),
            (annotate({next(iter(REQUEST)): "other"}), "metadata.annotations"),
            (annotate({constants.NUMA_PLACEMENT_OBSERVED: "[]"}), "metadata.annotations"),
        ):
            await refused(ungater.patch(PODS, name, namespace, **change), said, "the ungater")
        one = {"spec": {"schedulingGates": [{"$patch": "delete", "name": "example.com/other"}]}}
        await refused(ungater.patch(PODS, name, namespace, **strategic(one)), "no other gate")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "plain", "uid": "1"}
        await refused(ungater.patch(PODS, name, namespace, **metadata(ownerReferences=[owner])), "metadata")


async def test_the_ungater_writes_device_annotations_that_the_settings_name(pods, ungater, client, namespace):
    key = "nvidia.com/use-gpuuuid"
    await refused(ungater.patch(PODS, "gated", namespace, **annotate({key: "x"})), key, "deviceAnnotations")
    config = yaml.safe_dump({"deviceAnnotations": [{"resource": "nvidia.com/gpu", "key": key, "value": "id"}]})
    try:
        await apply_device_policy(client, replace(OPTIONS, config=config))
        await allowed_soon(lambda: ungater.patch(PODS, "gated", namespace, **annotate({key: "x"})))
        for other in (constants.XPU_INDEXES, "nvidia.com/use-gpu"):
            await refused(ungater.patch(PODS, "gated", namespace, **annotate({other: "x"})), other)
    finally:
        await apply_device_policy(client, OPTIONS)
    values = map(str, itertools.count())  # what was written once before the policy held again is no change
    await refused_soon(lambda: ungater.patch(PODS, "gated", namespace, **annotate({key: next(values)})))


async def apply_device_policy(client, options):
    for obj in render.objects(options):
        if obj["metadata"]["name"] == render.DEVICE_POLICY and obj["kind"] == "ValidatingAdmissionPolicy":
            await client.apply(VALIDATING_ADMISSION_POLICIES, renamed(obj), field_manager="test")


async def test_the_ungater_nominates_pods_behind_the_gate_alone_where_the_settings_say_so(
    pods, ungater, client, namespace
):
    def patch(name, **body):
        return ungater.patch(PODS, name, namespace, body=body, subresource="status")

    async def apply_role(options):
        for obj in render.objects(options):
            if (obj["kind"], obj["metadata"]["name"]) == ("ClusterRole", render.UNGATER):
                await client.apply(CLUSTER_ROLES, renamed(obj), field_manager="test")

    node = {"nominatedNodeName": "n1"}
    await refused(patch("gated", status=node), "cannot patch")
    try:
        await apply_role(replace(OPTIONS, config=yaml.safe_dump({"nominateGatedPods": True})))
        await allowed_soon(lambda: patch("gated", status=node))
        assert (await client.get(PODS, "gated", namespace))["status"]["nominatedNodeName"] == "n1"
        alone = "writes nominatedNodeName alone"
        for name in ("placed", "plain"):
            await refused(patch(name, status=node), alone)
        for body, said in (
            ({"status": {"phase": "Failed"}}, alone),
            ({"status": {"podIP": "10.0.0.1"}}, alone),
            ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, alone),
            ({"metadata": {"labels": {"a": "b"}}}, "metadata"),
            ({"metadata": {"annotations": {"a": "b"}}}, "metadata.annotations[a]"),
            ({"metadata": {"finalizers": ["example.com/x"]}}, "metadata"),
        ):
            await refused(patch("gated", **body), said)
        await patch("gated", status={"nominatedNodeName": None})
        assert "nominatedNodeName" not in (await client.get(PODS, "gated", namespace))["status"]
    finally:
        await apply_role(OPTIONS)
    await refused_soon(lambda: patch("gated", status={}))


async def test_of_pods_that_a_job_counts_the_ungater_changes_that_alone(users, ungater, client, namespace):
    """Pods of a Job with quota alone carry no mark, and are evicted without being a failure of it."""
    spec = {"template": {"spec": {**pod("x")["spec"], "restartPolicy": "Never"}}}
    await client.create(JOBS, {"metadata": {"name": "j"}, "spec": spec}, namespace)
    async with asyncio.timeout(30):
        while not (found := await client.list(PODS, namespace)):
            await asyncio.sleep(0.05)
    name = found[0]["metadata"]["name"]
    assert found[0]["metadata"]["finalizers"] == [TRACKING]
    for change in (
        label({"a": "b"}),
        annotate({"a": "b"}),
        metadata(finalizers=[TRACKING, "example.com/x"]),
        metadata(ownerReferences=None),
        strategic({"spec": {"activeDeadlineSeconds": 1}}),
        annotate({K.workload: "job-x"}),
    ):
        await refused(ungater.patch(PODS, name, namespace, **change), "the ungater")
    await refused(ungater.delete(PODS, name, namespace), "changes and deletes no pod but")
    key = "$deleteFromPrimitiveList/finalizers"
    await ungater.patch(PODS, name, namespace, **strategic({"metadata": {key: [TRACKING]}}))


async def test_the_ungater_deletes_pods_of_jobs_that_have_quota_and_no_slots(users, ungater, client, namespace):
    """Where nominal quota is taken back from who borrows it, whatever its budgets say."""
    metadata = {"annotations": {K.pod_set: "main"}}
    spec = {"template": {"metadata": metadata, "spec": {**pod("x")["spec"], "restartPolicy": "Never"}}}
    await client.create(JOBS, {"metadata": {"name": "j"}, "spec": spec}, namespace)
    async with asyncio.timeout(30):
        while not (found := await client.list(PODS, namespace)):
            await asyncio.sleep(0.05)
    await ungater.delete(PODS, found[0]["metadata"]["name"], namespace)


# --- the ungater: jobs -----------------------------------------------------------------------------------------------


def job(name, *, labels=None, annotations=None, **spec):
    template = {"metadata": {"labels": {"x": "y"}}, "spec": {**pod("x")["spec"], "restartPolicy": "Never"}}
    meta = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": template, **spec}}


def of(**fields):
    return {"body": {"spec": fields}, "content_type": PatchType.MERGE}


def of_template(**fields):
    return of(template=fields)


async def test_the_ungater_starts_and_stops_jobs_with_a_queue(users, ungater, client, namespace):
    await client.create(JOBS, job("j", labels={K.queue_name: "a"}, suspend=True, parallelism=3), namespace)
    added = {
        "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
        "spec": {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}], "schedulingGates": GATE},
    }
    await ungater.patch(JOBS, "j", namespace, **of(suspend=False, parallelism=2, template=added))
    await ungater.patch(JOBS, "j", namespace, **of(suspend=True))
    body = {"status": {"startTime": None}}
    await ungater.patch(JOBS, "j", namespace, body=body, subresource="status", dry_run=True)


async def test_the_ungater_leaves_other_jobs_alone(users, ungater, client, namespace):
    await client.create(JOBS, job("plain", suspend=True), namespace)
    for change in (of(suspend=False), of(parallelism=0), of_template(spec={"nodeSelector": {"a": "b"}})):
        await refused(ungater.patch(JOBS, "plain", namespace, **change), "changes no Job but")
    body = {"status": {"startTime": None}}
    await refused(ungater.patch(JOBS, "plain", namespace, body=body, subresource="status"), "changes no Job but")


async def test_the_ungater_changes_no_more_of_its_jobs_than_it_must(users, ungater, client, namespace):
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "plain", "uid": "1"}
    asked = {"annotations": {K.required[0]: "rack"}}
    await client.create(JOBS, job("queued", labels={K.queue_name: "a"}, suspend=True), namespace)
    await client.create(JOBS, job("asks", suspend=True, **asked), namespace)
    evil = {"containers": [{**pod("x")["spec"]["containers"][0], "image": "evil"}]}
    status = {"status": {"startTime": None, "succeeded": 5}}
    for name in ("queued", "asks"):
        for change, said in (
            (of(backoffLimit=0), "spec.backoffLimit"),
            (of(ttlSecondsAfterFinished=0), "spec.ttlSecondsAfterFinished"),
            (of(activeDeadlineSeconds=1), "spec.activeDeadlineSeconds"),
            (of_template(spec=evil), "spec.template.spec.containers"),
            (of_template(spec={"serviceAccountName": "admin"}), "spec.template.spec.serviceAccountName"),
            (of_template(metadata={"finalizers": ["example.com/x"]}), "spec.template.metadata.finalizers"),
            (label({"a": "b"}), "metadata.labels"),
            (annotate({"a": "b"}), "metadata.annotations"),
            (metadata(finalizers=["example.com/x"]), "metadata.finalizers"),
            (metadata(ownerReferences=[owner]), "metadata.ownerReferences"),
            ({"body": status, "subresource": "status"}, "status.succeeded"),
        ):
            with pytest.raises(Exception, match=r"403|422") as error:
                await ungater.patch(JOBS, name, namespace, **change)
            assert "422" in str(error.value) or said in str(error.value), error.value
        await refused(ungater.delete(JOBS, name, namespace), "cannot delete")


async def test_the_ungater_changes_no_more_of_jobsets_than_it_must(users, ungater, client, namespace):
    await jobsets.install(client)
    made = jobsets.jobset("set", {"a": (1, 1), "b": (1, 1)}, queue="x")
    made["metadata"]["labels"] = {K.queue_name: "x"}
    plain = copy.deepcopy(made)
    plain["metadata"] = {"name": "plain"}
    for one in plain["spec"]["replicatedJobs"]:
        del one["template"]["spec"]["template"]["spec"]["schedulingGates"]
    for body in (made, plain):
        await client.create(JOB_SETS, body, namespace)

    async def patch(name, *operations):
        body = [dict(zip(("op", "path", "value"), one, strict=True)) for one in operations]
        await ungater.patch(JOB_SETS, name, namespace, body=body, content_type=PatchType.JSON)

    at = "/spec/replicatedJobs/0"
    below = f"{at}/template/spec/template"
    async with asyncio.timeout(30):
        while True:
            try:
                await patch(
                    "set",
                    ("add", "/spec/suspend", False),
                    ("add", f"{below}/spec/nodeSelector", {"a": "b"}),
                    ("add", f"{below}/spec/tolerations", [{"operator": "Exists"}]),
                    ("add", f"{below}/spec/schedulingGates", []),
                    ("add", f"{below}/metadata/labels", {"a": "b"}),
                )
                break
            except Forbidden:  # the policies have not seen the kind yet
                await asyncio.sleep(0.1)
    await refused(patch("plain", ("add", "/spec/suspend", False)), "changes no JobSet but")
    for change, said in (
        (("add", "/spec/ttlSecondsAfterFinished", 0), "spec.ttlSecondsAfterFinished"),
        (("add", f"{at}/replicas", 5), "spec.replicatedJobs[a]"),
        (("add", f"{at}/template/metadata", {"labels": {"a": "b"}}), "spec.replicatedJobs[a]"),
        (("add", f"{at}/template/spec/parallelism", 5), "spec.replicatedJobs[a]"),
        (("add", f"{below}/spec/containers/0/image", "evil"), "spec.replicatedJobs[a]"),
        (("add", f"{below}/spec/serviceAccountName", "admin"), "spec.replicatedJobs[a]"),
        (("add", f"{below}/metadata/finalizers", ["example.com/x"]), "spec.replicatedJobs[a]"),
        (("replace", f"{at}/name", "c"), "spec.replicatedJobs[c]"),
        (("add", "/metadata/labels/a", "b"), "metadata.labels"),
    ):
        with pytest.raises(Exception, match=r"403|422") as error:
            await patch("set", change)
        assert "422" in str(error.value) or said in str(error.value), error.value


async def test_the_ungater_has_no_other_right(users, ungater, client, namespace):
    """What would make a token of one component the cluster."""
    await client.create(PODS, pod("plain"), namespace)
    account = Resource("", "v1", "serviceaccounts", "ServiceAccount")
    for call in (
        ungater.list(SECRETS, namespace),
        ungater.list(CONFIG_MAPS, namespace),
        ungater.create(PODS, pod("mine"), namespace),
        ungater.create(JOBS, job("mine"), namespace),
        ungater.request_token("user", namespace),
        ungater.list(account, namespace),
        ungater.raw("POST", PODS.path(namespace, "plain", "exec"), params={"command": "sh"}),
        ungater.raw("POST", PODS.path(namespace, "plain", "binding"), body=b"{}"),
        ungater.patch(PODS, "plain", namespace, body={"status": {}}, subresource="status"),
        ungater.patch(PODS, "plain", namespace, body={"spec": {}}, subresource="resize"),
        ungater.patch(NODES, "n", body={"spec": {"unschedulable": True}}),
        ungater.patch(MUTATING_WEBHOOKS, "topogate-webhook", body={}),
        ungater.raw("DELETE", PODS.path(namespace)),
    ):
        await refused(call, "cannot")


async def test_the_ungater_speaks_in_its_own_name(users, ungater, client, namespace):
    await ungater.create(EVENTS, event("ours", "topogate.dev/topogate-ungater", namespace), namespace)
    await refused(ungater.create(EVENTS, event("forged", "kubelet", namespace), namespace), "in its own name")
    await client.create(EVENTS, event("theirs", "kubelet", namespace), namespace)
    await refused(ungater.patch(EVENTS, "theirs", namespace, body=COUNTED), "in its own name")
    await ungater.patch(EVENTS, "ours", namespace, body=COUNTED)


MOMENT = "2026-01-01T00:00:00.000000Z"
COUNTED = {"series": {"count": 2, "lastObservedTime": MOMENT}}


def event(name, controller, namespace, *, kind="Pod", about="p"):
    regarding = {"kind": kind, "name": about, "apiVersion": "v1"}
    if kind == "Pod":
        regarding["namespace"] = namespace
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "eventTime": MOMENT,
        "type": "Normal",
        "reason": "X",
        "action": "X",
        "note": "x",
        "regarding": regarding,
        "reportingController": controller,
        "reportingInstance": "x",
    }


# --- the agent -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def two(client, nodes, namespace):
    """Two nodes."""
    await install_crds(client)
    return await nodes(blocks=1, racks=1, hosts=2, prefix=f"{namespace}-", ready=False)


@pytest.fixture
async def agent(users, client, two, cluster, make_client):
    """The agent's client on one node, by a token that names it; and the names of that node and of another."""
    own, other = two
    token = await token_on(client, AGENT_NAMESPACE, f"{NAMESPACE}-agent", own)
    return await make_client(cluster.token_kubeconfig(token, own)), own, other


async def test_the_agent_speaks_about_its_own_node(agent, client):
    account, own, other = agent
    name = f"{own}.1"
    await account.create(EVENTS, event(name, "topogate.dev/topogate-agent", "default", kind="Node", about=own))
    for forged in (
        event("f", "topogate.dev/topogate-agent", "default", kind="Node", about=other),
        event("f", "kubelet", "default", kind="Node", about=own),
        event("f", "topogate.dev/topogate-agent", "default", kind="Pod", about=own),
    ):
        await refused(account.create(EVENTS, forged, "default"), "its own node alone")
    theirs = event(f"{other}.1", "kubelet", "default", kind="Node", about=other)
    await client.create(EVENTS, theirs)
    await refused(account.patch(EVENTS, f"{other}.1", "default", body=COUNTED), "its own node alone")
    await account.patch(EVENTS, name, "default", body=COUNTED)


async def test_the_agent_writes_about_its_own_node_and_pods(agent, client, namespace):
    account, own, other = agent
    await account.create(FLEX_TOPOS, flex_topo(own))
    await refused(account.create(FLEX_TOPOS, flex_topo(other)), other)
    await client.create(PODS, pod("here", nodeName=own), namespace)
    await client.create(PODS, pod("there", nodeName=other), namespace)
    observed = annotate({constants.NUMA_PLACEMENT_OBSERVED: "[]"})
    await account.patch(PODS, "here", namespace, **observed)
    await refused(account.patch(PODS, "there", namespace, **observed), other)
    await refused(account.patch(PODS, "here", namespace, **annotate({"a": "b"})), "no annotation")
    image = strategic({"spec": {"containers": [{"name": "c", "image": "evil"}]}})
    await refused(account.patch(PODS, "here", namespace, **image), "nothing of a pod but")
    for call in (
        account.delete(PODS, "here", namespace),
        account.list(SECRETS, namespace),
        account.patch(NODES, own, body={"metadata": {"labels": {"a": "b"}}}),
        account.list(WORKLOADS, namespace),
        account.evict("here", namespace),
    ):
        await refused(call, "cannot")
    await client.delete(FLEX_TOPOS, own)


def flex_topo(name):
    return {"apiVersion": "topogate.dev/v1alpha1", "kind": "FlexTopo", "metadata": {"name": name}, "spec": {}}


# --- the webhook -----------------------------------------------------------------------------------------------------


async def test_the_webhook_has_its_certificates_and_its_configuration(users, client, namespace):
    webhook = await users("webhook")
    await client.create(SECRETS, {"metadata": {"name": "other"}}, NAMESPACE)
    await client.create(PODS, pod("plain"), namespace)
    for call in (
        webhook.get(SECRETS, "other", NAMESPACE),
        webhook.list(SECRETS, NAMESPACE),
        webhook.create(SECRETS, {"metadata": {"name": "token"}}, NAMESPACE),
        webhook.get(PODS, "plain", namespace),
        webhook.list(PODS, NAMESPACE),
        webhook.list(MUTATING_WEBHOOKS),
        webhook.patch(MUTATING_WEBHOOKS, "someone-elses", body={}),
        webhook.create(EVENTS, event("e", "topogate-webhook", namespace), namespace),
        webhook.list(JOBS, namespace),
    ):
        await refused(call, "cannot")
    await client.delete(SECRETS, "other", NAMESPACE)


async def test_the_webhook_changes_nothing_of_its_configuration_but_the_authorities(users, client, cluster):
    """Else whoever had its token could send every object of the cluster to a server of his, and change it there."""
    name = f"{NAMESPACE}-webhook"
    (found,) = [renamed(obj) for obj in render.objects(OPTIONS) if obj["kind"] == "MutatingWebhookConfiguration"]
    for hook in found["webhooks"]:  # of objects that there are none of
        hook["rules"] = [{**hook["rules"][0], "apiGroups": ["example.com"]}]
    await client.create(MUTATING_WEBHOOKS, found)
    webhook = await users("webhook")
    hook, bundle = found["webhooks"][0]["name"], base64.b64encode(cluster.ca_pem).decode()

    def of_hook(**fields):
        return strategic({"webhooks": [{"name": hook, **fields}]})

    try:
        await allowed_soon(lambda: webhook.patch(MUTATING_WEBHOOKS, name, **of_hook(clientConfig={"caBundle": bundle})))
        everything = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
        more = {**found["webhooks"][0], "name": "more.example.com"}
        for change in (
            of_hook(rules=[everything]),
            of_hook(clientConfig={"service": None, "url": "https://evil.example.com"}),
            of_hook(clientConfig={"service": {"name": "evil", "namespace": "default"}}),
            of_hook(matchConditions=[{"name": "all", "expression": "true"}]),
            of_hook(namespaceSelector=None),
            of_hook(failurePolicy="Ignore"),
            of_hook(timeoutSeconds=30),
            strategic({"webhooks": [more]}),
            strategic({"webhooks": [{"$patch": "delete", "name": hook}]}),
            {"body": {"webhooks": []}},
            annotate({"cert-manager.io/inject-ca-from": "evil/evil"}),
            label({"a": "b"}),
        ):
            await refused(webhook.patch(MUTATING_WEBHOOKS, name, **change), "caBundle of its configuration")
        await refused(webhook.delete(MUTATING_WEBHOOKS, name), "cannot delete")
        await refused(webhook.create(MUTATING_WEBHOOKS, {**found, "metadata": {"name": "mine"}}), "cannot create")
    finally:
        await client.delete(MUTATING_WEBHOOKS, name)
