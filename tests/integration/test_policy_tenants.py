"""What a tenant with the stock role edit in one namespace may not do to pods and Workloads: the policies, attacked.

Whatever Kubernetes' own controllers and operators do for a tenant goes on.
"""

import re

import pytest
from support.accounts import (
    GATE,
    KEYS,
    NAMESPACE,
    REQUEST,
    accounts,
    allowed_soon,
    annotate,
    give_role_edit,
    in_force,
    label,
    metadata,
    pod,
    refused,
)
from support.jobs import install_crds, until

from crds import constants
from crds.request import WISHES
from kube.errors import NotFound
from kube.objects import Object
from kube.patches import PatchType
from kube.resources import (
    CLUSTER_ROLES,
    CONFIG_MAPS,
    JOBS,
    PODS,
    REPLICA_SETS,
    ROLE_BINDINGS,
    STATEFUL_SETS,
    WORKLOADS,
    resource_of,
)
from manifests import render
from ungater.jobs import leaderworkerset
from ungater.jobs.kinds import RULES

pytestmark = pytest.mark.cluster

K = KEYS
CLAIMS = (K.queue_name, K.priority_class, K.max_execution, K.pod_group, f"{K.domain}/{constants.POD_GROUP_INDEX}")
RANKS = (
    *constants.RANK_LABELS,
    constants.JOB_SET_ROLE,
    constants.JOB_SET_INDEX,
    "batch.kubernetes.io/job-name",
    leaderworkerset.NAME,
    leaderworkerset.GROUP,
    *(label for rule in RULES for label in (rule.pod_set, rule.else_by) if label),  # of services all pods are alike
)
ASKED = (*K.requests, K.pod_group, K.pod_group_total, K.role_hash, *WISHES)


@pytest.fixture(scope="module")
def policies(cluster):
    with in_force(cluster):
        yield


@pytest.fixture
async def users(policies, client, namespace, as_account):
    return await accounts(client, namespace, as_account)


@pytest.fixture
async def user(users):
    return await users("user")


@pytest.fixture
async def held(users, client, namespace):
    """A pod behind the gate, and one that was let go and is bound, as the ungater leaves it: their names."""
    told = {**dict.fromkeys((*CLAIMS, *RANKS), "1"), "app": "mine"}
    asked = {**REQUEST, K.pod_set: "main", constants.EVICT_BY: "workload"}
    await client.create(PODS, pod("gated", annotations=asked, labels=told, gates=GATE), namespace)
    await client.create(PODS, pod("placed", annotations=asked, labels=told, gates=GATE), namespace)
    body = {"metadata": {"annotations": {K.workload: "job-x"}}, "spec": {"schedulingGates": None}}
    await (await users("ungater")).patch(PODS, "placed", namespace, body=body)
    return "gated", "placed"


async def config_map(client, namespace, name="owner"):
    """An object that owns, as a reference to it."""
    found = await client.create(CONFIG_MAPS, {"metadata": {"name": name}}, namespace)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": found["metadata"]["uid"]}
    return {**reference, "controller": True}


def binding(user, role, namespace, kind="RoleBinding", name="more"):
    subject = {"kind": "ServiceAccount", "name": user, "namespace": namespace}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name} | ({"namespace": namespace} if kind == "RoleBinding" else {}),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }


# --- pods ------------------------------------------------------------------------------------------------------------


def test_the_policy_names_every_key_that_the_controller_reads():
    (policy,) = [
        obj
        for obj in render.objects()
        if obj["kind"] == "ValidatingAdmissionPolicy" and obj["metadata"]["name"] == "topogate-pods"
    ]
    variables = {one["name"]: one["expression"] for one in policy["spec"]["variables"]}
    default = constants.Keys()
    for name, keys in (("claims", CLAIMS), ("ranks", RANKS), ("wishes", ASKED)):
        wanted = {key.replace(K.domain, default.domain) for key in keys}
        named = variables[name].replace("variables.asks", variables["asks"])
        assert wanted <= set(re.findall(r"'([^']+/[^']+)'", named)), name


async def test_labels_by_which_a_pod_is_counted_cannot_be_changed(held, user, namespace):
    for name in held:
        for key in (*CLAIMS, *RANKS):
            for value in ("other", None):
                await refused(user.patch(PODS, name, namespace, **label({key: value})), key, "make the pod anew")


async def test_labels_by_which_a_pod_is_counted_cannot_be_added(users, user, client, namespace):
    await client.create(PODS, pod("bare", annotations={**REQUEST, K.pod_set: "main"}, gates=GATE), namespace)
    for key in (*CLAIMS, *RANKS):
        await refused(user.patch(PODS, "bare", namespace, **label({key: "1"})), key)


async def test_pods_of_a_job_with_quota_and_no_slots_are_guarded_too(users, user, client, namespace):
    """They have neither gate nor mark. Without its Job's label one would be orphaned, and run on beside its quota."""
    owner = await config_map(client, namespace)
    told = {"batch.kubernetes.io/controller-uid": "1", "batch.kubernetes.io/job-name": "j"}
    made = pod("quota-only", annotations={K.pod_set: "main"}, labels=told, owners=[owner])
    await client.create(PODS, made, namespace)
    for key in told:
        await refused(user.patch(PODS, "quota-only", namespace, **label({key: None})), key)
    await refused(user.patch(PODS, "quota-only", namespace, **metadata(ownerReferences=None)), "ownerReferences")
    await refused(user.patch(PODS, "quota-only", namespace, **annotate({K.pod_set: None})), K.pod_set)


async def test_no_form_of_writing_gets_around_it(held, user, namespace):
    whole = await user.get(PODS, "placed", namespace)
    whole["metadata"]["labels"][K.queue_name] = "other"
    del whole["metadata"]["resourceVersion"]  # kube-scheduler writes why the pod waits at the same time
    await refused(user.replace(PODS, whole, namespace), K.queue_name)
    path = f"/metadata/labels/{K.queue_name.replace('/', '~1')}"
    one = [{"op": "replace", "path": path, "value": "other"}]
    await refused(user.patch(PODS, "placed", namespace, body=one, content_type=PatchType.JSON), K.queue_name)
    for strategic in ({"$patch": "replace", "app": "mine"}, {"$retainKeys": ["app"], "app": "mine"}):
        body = {"metadata": {"labels": strategic}}
        await refused(user.patch(PODS, "placed", namespace, body=body, content_type=PatchType.STRATEGIC), "by it")
    applied = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "placed", "labels": {K.queue_name: "other"}}}
    await refused(user.apply(PODS, applied, namespace, field_manager="mine"), K.queue_name)


async def test_what_a_pod_asked_for_cannot_be_changed(held, user, namespace):
    for name in held:
        for key in ASKED:
            await refused(user.patch(PODS, name, namespace, **annotate({key: "other"})), key)
        for key in (*REQUEST, constants.EVICT_BY):
            await refused(user.patch(PODS, name, namespace, **annotate({key: None})), key, "make the pod anew")


async def test_who_holds_a_pod_back_comes_with_it_and_only_goes(users, user, client, namespace):
    by = K.gated_by
    asked = {**REQUEST, by: "a.b/c, a.b/d"}
    await client.create(PODS, pod("gated-by", annotations=asked, gates=GATE), namespace)
    await client.create(PODS, pod("gated-by-none", annotations=REQUEST, gates=GATE), namespace)
    for name, text in (("gated-by", "a.b/c,a.b/e"), ("gated-by", f"a.b/{'e' * 200}"), ("gated-by-none", "a.b/c")):
        await refused(user.patch(PODS, name, namespace, **annotate({by: text})), by, "can only be removed")
    many = ",".join(f"a.b/{n}" for n in range(20_000))
    await refused(user.patch(PODS, "gated-by", namespace, **annotate({by: many})), by, "can only be removed")
    for text in ("a.b/d,a.b/c", "a.b/d", "", None):
        await user.patch(PODS, "gated-by", namespace, **annotate({by: text}))


async def test_what_does_not_concern_topogate_can_be_changed(held, user, namespace):
    for name in held:
        await user.patch(PODS, name, namespace, **label({"app": "other", "mine": "yes"}))
        await user.patch(PODS, name, namespace, **annotate({"mine": "yes"}))
        await user.patch(PODS, name, namespace, **metadata(finalizers=["example.com/mine"]))
        await user.patch(PODS, name, namespace, **metadata(finalizers=None))


async def test_pods_without_gate_and_mark_are_their_users(users, user, client, namespace):
    owner = await config_map(client, namespace)
    await client.create(PODS, pod("plain", labels={K.queue_name: "a"}, owners=[owner]), namespace)
    await user.patch(PODS, "plain", namespace, **label({K.queue_name: "other"}))
    await user.patch(PODS, "plain", namespace, **metadata(ownerReferences=None))
    await user.patch(PODS, "plain", namespace, **annotate({constants.EVICT_BY: "slice"}))


async def test_a_pod_cannot_be_orphaned_or_given_an_owner_by_hand(users, user, client, namespace):
    owner = await config_map(client, namespace)
    asked = {**REQUEST, K.pod_set: "main"}
    await client.create(PODS, pod("owned", annotations=asked, gates=GATE, owners=[owner]), namespace)
    await client.create(PODS, pod("bare", annotations=asked, gates=GATE), namespace)
    await refused(user.patch(PODS, "owned", namespace, **metadata(ownerReferences=None)), "--cascade=orphan")
    await refused(user.patch(PODS, "bare", namespace, **metadata(ownerReferences=[owner])), "ownerReferences")
    for change in ({"controller": False}, {"uid": "2"}, {"kind": "Job", "apiVersion": "batch/v1"}):
        body = metadata(ownerReferences=[{**owner, **change}])
        await refused(user.patch(PODS, "owned", namespace, **body), "ownerReferences")


async def test_an_operator_of_the_whole_cluster_adopts_and_numbers_its_pods(held, users, client, namespace):
    """One that is bound in its namespace alone counts as a tenant."""
    await give_role_edit(client, namespace, "operator")
    owner = await config_map(client, namespace)
    role = binding("operator", "edit", namespace, "ClusterRoleBinding", f"{namespace}-operator")
    await client.create(resource_of(role), role)
    body = {"metadata": {"ownerReferences": [owner], "labels": {constants.WORKER_INDEX: "7"}}}
    operator = await users("user", account="operator")
    made = await allowed_soon(lambda: operator.patch(PODS, "placed", namespace, body=body, type=Object))
    assert made.metadata.labels[constants.WORKER_INDEX] == "7"
    await refused(operator.patch(PODS, "placed", namespace, **label({K.queue_name: "other"})), K.queue_name)
    await client.delete(resource_of(role), role["metadata"]["name"])


async def test_a_placed_pod_cannot_be_resized(held, user, client, namespace):
    """Not by role edit, and not by who was given the right to resize pods."""
    body = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "64"}}}]}}
    resize = {"body": body, "content_type": PatchType.STRATEGIC, "subresource": "resize"}
    await refused(user.patch(PODS, "placed", namespace, **resize), "cannot patch")
    rule = {"apiGroups": [""], "resources": ["pods/resize"], "verbs": ["patch"]}
    await client.create(CLUSTER_ROLES, {"metadata": {"name": f"{namespace}-resize"}, "rules": [rule]})
    await client.create(ROLE_BINDINGS, binding("user", f"{namespace}-resize", namespace), namespace)
    await client.create(PODS, pod("plain"), namespace)
    await allowed_soon(lambda: user.patch(PODS, "plain", namespace, **resize, dry_run=True))
    for name in held:
        await refused(user.patch(PODS, name, namespace, **resize), "make the pod anew")
    await client.delete(CLUSTER_ROLES, f"{namespace}-resize")


def template(name, annotations=None):
    made = pod(
        name, annotations={**REQUEST, K.pod_set: "main", **(annotations or {})}, labels={"app": name}, gates=GATE
    )
    return {"metadata": made["metadata"], "spec": {**made["spec"], "terminationGracePeriodSeconds": 0}}


def replicated(kind, name, replicas):
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template(name)}
    more = {"serviceName": name} if kind == "StatefulSet" else {}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {**spec, **more}}


@pytest.mark.parametrize("resource", [REPLICA_SETS, STATEFUL_SETS], ids=lambda resource: resource.kind)
async def test_pods_are_orphaned_by_the_garbage_collector_and_adopted_again(users, user, client, namespace, resource):
    """`kubectl delete --cascade=orphan` ends, and an owner made again takes its pods back."""
    await user.create(resource, replicated(resource.kind, "set", 1), namespace)

    async def pods():
        found = await client.list(PODS, namespace, label_selector="app=set", type=Object)
        return {one.metadata.name: one for one in found}

    (name,) = await until(pods, "a pod")
    body = {"metadata": {"annotations": {K.workload: "x"}}, "spec": {"schedulingGates": None}}
    await (await users("ungater")).patch(PODS, name, namespace, body=body)
    await user.delete(resource, "set", namespace, propagation="Orphan")

    async def owners(count):
        found = await pods()
        return len(found[name].metadata.owner_references or ()) == count and len(found) == 1

    async def gone():
        return not await client.list(resource, namespace, type=Object)

    await until(gone, "the owner to go")
    await until(lambda: owners(0), "the pod to be orphaned")
    await user.create(resource, replicated(resource.kind, "set", 1), namespace)
    await until(lambda: owners(1), "the pod to be adopted")


async def test_a_replica_set_releases_a_pod_whose_labels_do_not_match_any_more(users, user, client, namespace):
    """Labels of a selector are the user's. Such a pod keeps its mark, so it is counted until it ends."""
    await user.create(REPLICA_SETS, replicated("ReplicaSet", "set", 1), namespace)

    async def pods():
        return await client.list(PODS, namespace, type=Object)

    (made,) = await until(pods, "a pod")
    body = {"metadata": {"annotations": {K.workload: "x"}}, "spec": {"schedulingGates": None}}
    await (await users("ungater")).patch(PODS, made.metadata.name, namespace, body=body)
    await user.patch(PODS, made.metadata.name, namespace, **label({"app": "debug"}))

    async def released():
        found = await client.get(PODS, made.metadata.name, namespace, type=Object)
        return found if not found.metadata.owner_references else None

    found = await until(released, "the pod to be released")
    assert found.metadata.annotations[K.workload] == "x"
    await refused(user.patch(PODS, made.metadata.name, namespace, **annotate({K.workload: None})), "Topogate alone")


async def test_a_job_counts_and_ends_its_placed_pods_as_ever(users, user, client, namespace):
    """Its controller takes its finalizer from pods that carry our mark."""
    made = {**template("job"), "spec": {**template("job")["spec"], "restartPolicy": "Never"}}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": {"template": made}}
    await user.create(JOBS, body, namespace)

    async def pods():
        return await client.list(PODS, namespace, type=Object)

    (found,) = await until(pods, "a pod")
    name = found.metadata.name
    mark = {"metadata": {"annotations": {K.workload: "x"}}, "spec": {"schedulingGates": None}}
    await (await users("ungater")).patch(PODS, name, namespace, body=mark)
    status = {"status": {"phase": "Succeeded", "conditions": [], "containerStatuses": []}}
    await client.patch(PODS, name, namespace, body=status, subresource="status")

    async def complete():
        job = await client.get(JOBS, "job", namespace)
        return job["status"].get("succeeded") == 1

    await until(complete, "the Job to count its pod")
    await user.delete(JOBS, "job", namespace, propagation="Foreground")

    async def gone():
        return not await client.list(JOBS, namespace, type=Object) and not await pods()

    await until(gone, "the Job to go")


# --- Workloads -------------------------------------------------------------------------------------------------------


def workload(name="job-x", owner=None, **spec):
    containers = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    body = {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": name, "annotations": {constants.COPY_OF: "1"}},
        "spec": {
            "podSets": [{"name": "main", "count": 2, "template": containers}],
            "queueName": "mine",
            "priority": 1,
            **spec,
        },
    }
    if owner is not None:
        body["metadata"]["ownerReferences"] = [owner]
    return body


@pytest.fixture
async def made(users, client, namespace):
    """The Workload ``job-x`` of a Job ``j``, as the ungater makes it."""
    await install_crds(client)
    job = {"spec": {"suspend": True, "template": {"spec": {**pod("x")["spec"], "restartPolicy": "Never"}}}}
    job = await client.create(JOBS, {"metadata": {"name": "j"}, **job}, namespace)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job["metadata"]["uid"], "controller": True}
    ungater = await users("ungater")
    return await allowed_soon(lambda: ungater.create(WORKLOADS, workload(owner=owner), namespace))


def spec(**fields):
    return {"body": {"spec": fields}, "content_type": PatchType.MERGE}


async def test_a_tenant_may_make_a_workload_inactive_and_active_again(made, user, namespace):
    for active in (False, True):
        found = await user.patch(WORKLOADS, "job-x", namespace, **spec(active=active), type=dict)
        assert found["spec"]["active"] is active
    await user.patch(WORKLOADS, "job-x", namespace, **label({"mine": "yes"}))


async def test_a_tenant_may_not_change_the_priority(made, user, namespace):
    for value in (1_000_000_000, 0, None):
        await refused(
            user.patch(WORKLOADS, "job-x", namespace, **spec(priority=value)), "set-priority", "administrator"
        )
    whole = await user.get(WORKLOADS, "job-x", namespace)
    whole["spec"]["priority"] = 1000
    await refused(user.replace(WORKLOADS, whole, namespace), "spec.priority")
    del whole["metadata"]["managedFields"]
    await refused(user.apply(WORKLOADS, whole, namespace, field_manager="mine"), "spec.priority")


async def test_a_tenant_may_change_nothing_else_of_a_workload(made, user, namespace):
    pod_sets = [{**made["spec"]["podSets"][0], "count": 100}]
    changes = {
        "podSets": pod_sets,
        "queueName": "other",
        "priorityClassName": "system-node-critical",
        "maximumExecutionTimeSeconds": 1,
    }
    for field, value in changes.items():
        await refused(user.patch(WORKLOADS, "job-x", namespace, **spec(**{field: value})), f"spec.{field}", "the job")
        await refused(user.patch(WORKLOADS, "job-x", namespace, **spec(**{field: value, "active": False})), field)
    for change in (
        annotate({constants.COPY_OF: "2"}),
        annotate({constants.COPY_OF: None}),
        annotate({constants.HELD: '{"podSetAssignments":[{"name":"main","count":2}]}'}),
        annotate({f"{K.domain}/x": "1"}),
        annotate({f"mine-{number}": "" for number in range(513)}),  # the policy looks through them
        metadata(ownerReferences=None),
        metadata(ownerReferences=[*made["metadata"]["ownerReferences"], {**OTHER}]),
        metadata(finalizers=["example.com/forever"]),
    ):
        await refused(user.patch(WORKLOADS, "job-x", namespace, **change), "metadata.")


OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "1"}


async def test_a_tenant_may_not_write_what_was_decided(made, user, namespace):
    status = {"status": {"admission": {"clusterQueue": "q", "podSetAssignments": [{"name": "main", "count": 2}]}}}
    await refused(user.patch(WORKLOADS, "job-x", namespace, body=status, subresource="status"), "workloads/status")
    found = await user.patch(WORKLOADS, "job-x", namespace, body=status, type=dict)
    assert "admission" not in found.get("status", {})


async def test_workloads_are_made_by_the_ungater_alone(made, user, client, namespace):
    await refused(user.create(WORKLOADS, workload("other"), namespace), "cannot create")
    await refused(client.create(WORKLOADS, workload("other"), namespace), "make the job")
    await refused(user.delete(WORKLOADS, "job-x", namespace), "cannot delete")


async def test_who_has_the_verb_sets_the_priority_and_nothing_else(made, user, client, namespace):
    role = binding("user", f"{NAMESPACE}-priority", namespace)
    await client.create(ROLE_BINDINGS, role, namespace)
    found = await allowed_soon(lambda: user.patch(WORKLOADS, "job-x", namespace, **spec(priority=7), type=dict))
    assert found["spec"]["priority"] == 7
    await refused(user.patch(WORKLOADS, "job-x", namespace, **spec(priority=8, queueName="b")), "spec.queueName")
    await client.patch(WORKLOADS, "job-x", namespace, **spec(priority=9))  # an administrator has every verb
    await refused(client.patch(WORKLOADS, "job-x", namespace, **spec(queueName="b")), "spec.queueName")


async def test_who_has_the_verb_has_workloads_moved_and_changes_nothing_else(made, user, client, namespace):
    wish = annotate({constants.MOVE_TO: "{}"})
    for change in (wish, annotate({constants.MOVE_TO: None, constants.COPY_OF: "2"})):
        await refused(user.patch(WORKLOADS, "job-x", namespace, **change), "metadata.annotations")
    await client.patch(WORKLOADS, "job-x", namespace, **wish)  # an administrator has every verb
    await refused(
        user.patch(WORKLOADS, "job-x", namespace, **annotate({constants.MOVE_TO: None})), "takes the verb move"
    )
    await client.create(ROLE_BINDINGS, binding("user", f"{NAMESPACE}-move", namespace), namespace)
    await allowed_soon(
        lambda: user.patch(WORKLOADS, "job-x", namespace, **annotate({constants.MOVE_TO: None}), type=dict)
    )
    await refused(
        user.patch(WORKLOADS, "job-x", namespace, **annotate({constants.COPY_OF: "2"})), "metadata.annotations"
    )
    await refused(user.patch(WORKLOADS, "job-x", namespace, **spec(priority=7)), "set-priority")


async def until_collected(users, client, namespace):
    """Wait until the garbage collector knows Workloads; it looks for new kinds now and then."""
    owner, ungater = await config_map(client, namespace, "canary"), await users("ungater")
    await ungater.create(WORKLOADS, workload("canary", owner), namespace)
    await client.delete(CONFIG_MAPS, "canary", namespace)

    async def gone():
        return "canary" not in {one.metadata.name for one in await client.list(WORKLOADS, namespace, type=Object)}

    await until(gone, "the garbage collector to know Workloads")


async def test_the_admin_of_a_namespace_cannot_give_the_verb(made, users, client, namespace):
    """Kubernetes lets nobody give rights that he does not have."""
    await give_role_edit(client, namespace, "admin")
    role = binding("admin", "admin", namespace, name="is-admin")
    await client.create(ROLE_BINDINGS, role, namespace)
    admin = await users("user", account="admin")
    await allowed_soon(lambda: admin.list(ROLE_BINDINGS, namespace))
    await refused(
        admin.create(ROLE_BINDINGS, binding("admin", f"{NAMESPACE}-priority", namespace), namespace), "set-priority"
    )
    await refused(admin.patch(WORKLOADS, "job-x", namespace, **spec(priority=7)), "set-priority")


@pytest.mark.parametrize("propagation", ["Orphan", "Background", "Foreground"])
async def test_the_garbage_collector_frees_or_removes_the_workload_of_a_deleted_job(
    made, users, client, namespace, propagation
):
    await until_collected(users, client, namespace)
    await (await users("user")).delete(JOBS, "j", namespace, propagation=propagation)

    async def gone():
        return not await client.list(JOBS, namespace, type=Object)

    await until(gone, "the Job to go")

    async def settled():
        try:
            found = await client.get(WORKLOADS, "job-x", namespace, type=Object)
        except NotFound:
            return propagation != "Orphan"
        return propagation == "Orphan" and not found.metadata.owner_references

    await until(settled, "the Workload to follow")


async def test_the_garbage_collector_takes_lost_owners_from_the_workload_of_a_group(made, users, client, namespace):
    for name in ("a", "b"):
        await client.create(PODS, pod(name), namespace)
    pods = [await client.get(PODS, name, namespace) for name in ("a", "b")]
    owners = [
        {"apiVersion": "v1", "kind": "Pod", "name": one["metadata"]["name"], "uid": one["metadata"]["uid"]}
        for one in pods
    ]
    body = workload("podgroup-x")
    body["metadata"]["ownerReferences"] = owners
    await (await users("ungater")).create(WORKLOADS, body, namespace)
    await client.delete(PODS, "a", namespace, grace_period=0)

    async def left():
        found = await client.get(WORKLOADS, "podgroup-x", namespace, type=Object)
        return [one.name for one in found.metadata.owner_references or ()] == ["b"]

    await until(left, "the lost owner to be taken away")


@pytest.mark.parametrize(("verb", "role"), [("set-priority", "topogate-priority"), ("move", "topogate-move")])
def test_nobody_has_the_verb_unless_bound(verb, role):
    roles = {obj["metadata"]["name"]: obj for obj in render.objects() if obj["kind"] == "ClusterRole"}
    able = [name for name, one in roles.items() if any(verb in rule["verbs"] for rule in one["rules"])]
    assert able == [role]
    assert not [name for name in roles[role]["metadata"]["labels"] if "aggregate" in name]
