"""Verbs, patches, preconditions, eviction, tokens and paging against the real API server."""

import asyncio

import pytest
from support.faults import is_watch, proxied, watching

from kube.client import Client
from kube.connection import config
from kube.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Fenced,
    Forbidden,
    Invalid,
    KubeTimeout,
    NotFound,
    RetriesExhausted,
    TooManyRequests,
    Unauthorized,
)
from kube.objects import Object, Pod
from kube.patches import PatchType, guard, retry_on_conflict
from kube.resources import CONFIG_MAPS, LEASES, NAMESPACES, POD_DISRUPTION_BUDGETS, PODS

pytestmark = pytest.mark.cluster


def config_map(name: str = "one", **data: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str, **extra) -> dict:
    spec = {"containers": [{"name": "main", "image": "none", "resources": {"limits": {"cpu": "1"}}}], **extra}
    return {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec}


async def test_create_get_replace_and_delete(client, namespace):
    made = await client.create(CONFIG_MAPS, config_map(x="1"), namespace)
    assert (await client.get(CONFIG_MAPS, "one", namespace, type=Object)).metadata.uid == made["metadata"]["uid"]
    made["data"]["x"] = "2"
    assert (await client.replace(CONFIG_MAPS, made))["data"] == {"x": "2"}
    with pytest.raises(Conflict, match=rf"PUT configmaps {namespace}/one: 409 Conflict: .*modified"):
        await client.replace(CONFIG_MAPS, made)
    await client.delete(CONFIG_MAPS, "one", namespace)
    with pytest.raises(NotFound, match=rf'GET configmaps {namespace}/one: 404 NotFound: configmaps "one" not found'):
        await client.get(CONFIG_MAPS, "one", namespace)


async def test_refusals_carry_the_reason_and_the_fields(client, namespace):
    await client.create(CONFIG_MAPS, config_map(), namespace)
    with pytest.raises(AlreadyExists):
        await client.create(CONFIG_MAPS, config_map(), namespace)
    with pytest.raises(Invalid) as refused:
        await client.create(CONFIG_MAPS, config_map("No_Good"), namespace)
    assert [cause.field for cause in refused.value.details.causes] == ["metadata.name"]


async def test_dry_run_changes_nothing(client, namespace):
    await client.create(CONFIG_MAPS, config_map("dry"), namespace, dry_run=True)
    await client.create(CONFIG_MAPS, config_map(), namespace)
    await client.delete(CONFIG_MAPS, "one", namespace, dry_run=True)
    names = [item.metadata.name for item in await client.list(CONFIG_MAPS, namespace, type=Object)]
    assert "one" in names
    assert "dry" not in names


async def test_the_four_kinds_of_patch(client, namespace):
    await client.create(PODS, pod("web"), namespace)
    add = [{"op": "add", "path": "/metadata/labels/json", "value": "1"}]
    await client.patch(PODS, "web", namespace, body=add, content_type=PatchType.JSON)
    await client.patch(PODS, "web", namespace, body={"metadata": {"labels": {"merge": "1"}}})
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    await client.patch(PODS, "web", namespace, body=image, content_type=PatchType.STRATEGIC)
    applied = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"apply": "1"}}}
    await client.apply(PODS, applied, namespace, field_manager="test")
    result = await client.get(PODS, "web", namespace)
    assert set(result["metadata"]["labels"]) == {"app", "json", "merge", "apply"}
    assert result["spec"]["containers"][0]["image"] == "other"
    assert result["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}


async def test_a_patch_without_type_still_raises(client, namespace):
    with pytest.raises(NotFound):
        await client.patch(CONFIG_MAPS, "none", namespace, body={})
    await client.create(CONFIG_MAPS, config_map(), namespace)
    with pytest.raises(BadRequest):
        await client.patch(CONFIG_MAPS, "one", namespace, body=b"{")
    failing = [{"op": "test", "path": "/metadata/name", "value": "other"}]
    with pytest.raises(Invalid):
        await client.patch(CONFIG_MAPS, "one", namespace, body=failing, content_type=PatchType.JSON)


async def test_apply_finds_who_owns_a_field(client, namespace):
    await client.apply(CONFIG_MAPS, config_map(x="1"), namespace, field_manager="first")
    with pytest.raises(Conflict, match='conflict with "first"'):
        await client.apply(CONFIG_MAPS, config_map(x="2"), namespace, field_manager="second", force=False)
    forced = await client.apply(CONFIG_MAPS, config_map(x="2"), namespace, field_manager="second")
    assert forced["data"] == {"x": "2"}


async def test_preconditions_by_uid_and_version(client, namespace):
    made = await client.create(CONFIG_MAPS, config_map(x="1"), namespace, type=Object)
    version = made.metadata.resource_version
    await client.patch(CONFIG_MAPS, "one", namespace, body=guard({"data": {"x": "2"}}, uid=made.metadata.uid))
    with pytest.raises(Conflict):
        await client.patch(CONFIG_MAPS, "one", namespace, body=guard({"data": {}}, resource_version=version))
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, "one", namespace, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, "one", namespace, resource_version=version)
    await client.delete(CONFIG_MAPS, "one", namespace, uid=made.metadata.uid)


async def test_concurrent_read_modify_write_loses_no_update(client, namespace):
    await client.create(CONFIG_MAPS, config_map(n="0"), namespace)

    async def increment() -> None:
        found = await client.get(CONFIG_MAPS, "one", namespace)
        found["data"]["n"] = str(int(found["data"]["n"]) + 1)
        await client.replace(CONFIG_MAPS, found)

    await asyncio.gather(*[retry_on_conflict(increment, attempts=20) for _ in range(6)])
    assert (await client.get(CONFIG_MAPS, "one", namespace))["data"]["n"] == "6"


async def test_a_conflict_that_does_not_end_is_reported(client, namespace):
    stale = await client.create(CONFIG_MAPS, config_map(), namespace)
    await client.patch(CONFIG_MAPS, "one", namespace, body={"data": {"x": "1"}})
    with pytest.raises(RetriesExhausted, match="3 conflicts in a row"):
        await retry_on_conflict(lambda: client.replace(CONFIG_MAPS, stale), attempts=3)


async def test_a_list_of_1200_comes_in_pages(cluster, client, namespace):
    for begin in range(0, 1200, 50):
        names = [f"map-{number:04}" for number in range(begin, begin + 50)]
        await asyncio.gather(*[client.create(CONFIG_MAPS, config_map(name), namespace, type=Object) for name in names])
    async with watching(cluster.kubeconfig, client, namespace) as w:
        lists = [path for method, path in w.proxy.calls if not is_watch(method, path)]
        assert len(lists) == 3
        assert all("limit=500" in path for path in lists)
        await w.converge()
        assert sum("map-" in key for key in w.informer.store) == 1200
    selected = await client.list(CONFIG_MAPS, namespace, field_selector="metadata.name=map-0007", type=Object)
    assert [item.metadata.name for item in selected] == ["map-0007"]


async def test_eviction_respects_disruption_budgets(client, namespace):
    await client.create(PODS, pod("web"), namespace)
    await client.patch(
        PODS,
        "web",
        namespace,
        body={"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}},
        subresource="status",
    )
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    await client.create(POD_DISRUPTION_BUDGETS, {"metadata": {"name": "web"}, "spec": budget}, namespace)
    with pytest.raises(TooManyRequests, match=f"POST pods/eviction {namespace}/web: 429"):
        await client.evict("web", namespace, timeout=5)
    await client.delete(POD_DISRUPTION_BUDGETS, "web", namespace)
    with pytest.raises(Conflict):
        await client.evict("web", namespace, uid="00000000-0000-0000-0000-000000000000")
    await client.evict("web", namespace, dry_run=True)
    found = await client.get(PODS, "web", namespace, type=Pod)
    await client.evict("web", namespace, uid=found.metadata.uid, grace_period=0)


async def test_a_service_account_token_is_good_for_what_rbac_grants(client, namespace):
    token = await client.request_token("default", namespace)
    connection = config.Connection(
        client.connection.url, tls=without_certificate(client), credentials=config.Static(f"Bearer {token}")
    )
    async with Client(connection) as account:
        assert (await account.server_version()).startswith("v1.")
        with pytest.raises(Forbidden, match=f"system:serviceaccount:{namespace}:default"):
            await account.list(PODS, namespace)


async def test_a_rotated_token_is_read_again_after_a_401(client, namespace, tmp_path):
    file = tmp_path / "token"
    file.write_text("expired")
    tls = without_certificate(client)
    connection = config.Connection(client.connection.url, tls=tls, credentials=config.TokenFile(file))
    async with Client(connection) as account:
        with pytest.raises(Unauthorized):
            await account.list(LEASES, namespace)
        file.write_text(await client.request_token("default", namespace) + "\n")
        with pytest.raises(Forbidden):
            await account.list(LEASES, namespace)


def without_certificate(client: Client):
    tls = config.client_tls(None, verify=True)
    tls.load_verify_locations(cadata=ca_of(client))
    return tls


def ca_of(client: Client) -> bytes:
    (ca,) = client.connection.tls.get_ca_certs(binary_form=True)
    return ca


async def test_no_answer_ends_by_the_deadline(cluster):
    async with proxied(cluster.kubeconfig) as proxy, Client(config.Connection(proxy.url), timeout=0.3) as through:
        proxy.freeze()
        with pytest.raises(KubeTimeout, match=r"GET namespaces default: no answer within 0\.3 s"):
            await through.get(NAMESPACES, "default")


async def test_names_that_need_escaping_stay_one_path_segment(client):
    with pytest.raises(NotFound):
        await client.get(NAMESPACES, "a/../default")


async def test_behind_a_fence_reads_pass_and_writes_are_not_sent(client, namespace):
    """It is asked for each write, right before that is sent; the client it was made from is not behind it."""
    asked = []
    open_ = [True, False, False]

    def fence():
        asked.append(1)
        return open_[len(asked) - 1]

    fenced = client.fenced(fence)
    made = await fenced.create(CONFIG_MAPS, config_map(x="1"), namespace)
    with pytest.raises(Fenced, match="was not sent"):
        await fenced.patch(CONFIG_MAPS, "one", namespace, body={"data": {"x": "2"}})
    with pytest.raises(Fenced):
        await fenced.delete(CONFIG_MAPS, "one", namespace)
    assert await fenced.get(CONFIG_MAPS, "one", namespace) == made
    assert len(asked) == 3
    await client.delete(CONFIG_MAPS, "one", namespace)
