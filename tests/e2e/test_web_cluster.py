"""The page of a real cluster, under its own account, seen by people of different rights; it stays and comes back."""

import asyncio
import json
import time

import aiohttp
import pytest
import pytest_asyncio
from support import chromium
from support.house import NAMESPACE, REQUIRED, house
from support.jobs import until
from support.prometheus_server import prometheus_server
from support.web_page import serving, violations

from kube.resources import EVENTS, NAMESPACES, SERVICE_ACCOUNTS, Resource
from localcluster import Fleet

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

GROUP = "rbac.authorization.k8s.io"
FLEET = Fleet(blocks=2, racks=2, hosts=2, gpus=8)
KINDS = {
    "ClusterRoleBinding": Resource(GROUP, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    "RoleBinding": Resource(GROUP, "v1", "rolebindings", "RoleBinding"),
    "ClusterRole": Resource(GROUP, "v1", "clusterroles", "ClusterRole", namespaced=False),
}


async def account(here, name, *bindings):
    """The token of a new service account with these (kind, role, namespace)."""
    await here.client.create(
        SERVICE_ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, "people"
    )
    for kind, role, namespace in bindings:
        body = {
            "apiVersion": f"{GROUP}/v1",
            "kind": kind,
            "metadata": {"name": f"{name}-{role}"},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "people"}],
        }
        await here.client.create(KINDS[kind], body, namespace)
    return await here.client.request_token(name, "people", 3600)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here():
    async with house(FLEET) as made:
        await made.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "people"}})
        rules = [
            {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
            {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        ]
        role = {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "topogate-web"},
            "rules": rules,
        }
        await made.client.create(KINDS["ClusterRole"], role)
        rules = [
            {"apiGroups": [group], "resources": [name], "verbs": ["list"]}
            for group, name in (("", "pods"), ("topogate.dev", "workloads"))
        ]
        await made.client.create(KINDS["ClusterRole"], role | {"metadata": {"name": "without-events"}, "rules": rules})
        everywhere = "ClusterRoleBinding"
        own = await account(made, "web", (everywhere, "topogate-web", None), (everywhere, "topogate-inspect", None))
        made.tokens = {
            "admin": await account(made, "admin", (everywhere, "topogate-inspect", None)),
            "tenant": await account(made, "tenant", ("RoleBinding", "view", NAMESPACE)),
            "reader": await account(made, "reader", ("RoleBinding", "without-events", NAMESPACE)),
            "nobody": await account(made, "nobody"),
        }
        config = made.cluster.token_kubeconfig(own, "web")
        options = ("--authentication", "kubernetes", "--kubeconfig", str(config))
        async with serving(*options) as (process, link):
            made.link, made.web = link, process
            yield made


async def asked(here, path, token):
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(here.link + path, headers=headers, ssl=False) as answer,
    ):
        return answer.status, await answer.text()


async def test_everybody_sees_what_his_token_may_list(here):
    await here.submit("seen", 2, REQUIRED, gpus=8)
    await until(lambda: _placed(here), "the job on the page of the administrator")
    status, text = await asked(here, "api/picture", here.tokens["tenant"])
    seen = json.loads(text)
    assert (status, seen["hosts"], seen["sees"]["namespaces"]) == (200, [], [NAMESPACE])
    assert [row[3] for row in seen["holders"]] == ["seen"]
    assert (await asked(here, "api/picture", here.tokens["nobody"]))[0] == 403
    for token in ("", "forged", here.tokens["admin"] + "x"):
        assert (await asked(here, "api/picture", token))[0] == 401


async def _placed(here):
    status, text = await asked(here, "api/picture", here.tokens["admin"])
    found = json.loads(text) if status == 200 else {"hosts": [], "holders": []}
    used = sum(row[at + 1] for row in found["hosts"] for at in range(4, len(row), 3))
    return used == 16 and [row[3] for row in found["holders"] if row[4]] == ["seen"]


@pytest.mark.skipif(chromium.found() is None, reason="no Chromium: apt-get install chromium")
async def test_a_person_logs_in_and_the_picture_goes_on_after_the_api_server_was_away(here):
    async with chromium.tab() as tab:
        await tab.open(here.link)
        await tab.until("document.activeElement?.id === 'token'")
        await tab.call("Input.insertText", text=here.tokens["admin"])
        await tab.key("Enter", text="\r")
        await tab.until("performance.getEntriesByName('paint').length > 0")
        await tab.until("/16 of \\d+ GPUs used/.test(document.querySelector('.line').innerText.replace(/\\s+/g, ' '))")
        assert here.tokens["admin"] not in await tab.js("location.href + JSON.stringify({...localStorage})")
        here.cluster.kill("kube-apiserver")
        await asyncio.sleep(3)
        assert await tab.js("document.querySelector('canvas') !== null")
        await asyncio.to_thread(here.cluster.start, "kube-apiserver")
        await here.submit("after", 1, REQUIRED, gpus=8)
        await tab.until("/24 of \\d+ GPUs used/.test(document.querySelector('.line').innerText.replace(/\\s+/g, ' '))")
        assert here.web.returncode is None


MARKUP = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"


async def runs(here, name, count):
    found = json.loads((await asked(here, "api/picture", here.tokens["admin"]))[1])
    return [row[11] for row in found["holders"] if row[3] == name] == [count]


async def placed_workload(here, name):
    """The key of the workload of a job."""
    found = json.loads((await asked(here, "api/picture", here.tokens["admin"]))[1])
    return next(f"{row[1]}/{row[4]}" for row in found["holders"] if row[3] == name)


async def events_of(here, key, who):
    status, text = await asked(here, f"api/events?key={key}", here.tokens[who])
    return status, json.loads(text) if status == 200 else None


async def test_events_of_a_workload_are_for_who_may_list_them(here):
    await here.submit("told", 2, REQUIRED, gpus=8)
    await until(lambda: runs(here, "told", 2), "the job runs")
    key = await placed_workload(here, "told")
    seen = {}

    async def told():
        seen["admin"] = (await events_of(here, key, "admin"))[1] or {"rows": []}  # the API server was away just now
        return {("SuccessfulCreate", "Job"), ("Scheduled", "Pod")} <= {tuple(row[2:4]) for row in seen["admin"]["rows"]}

    await until(told, "the events of the owner and its pods")
    scheduled = next(row for row in seen["admin"]["rows"] if row[2] == "Scheduled")
    assert scheduled[5] == 2
    assert (await events_of(here, key, "tenant"))[1] == seen["admin"]
    why = f"you may not list events in namespace {NAMESPACE}"
    assert await events_of(here, key, "reader") == (200, {"rows": [], "why": why})
    assert (await events_of(here, key, "nobody"))[0] == 403


@pytest.mark.skipif(chromium.found() is None, reason="no Chromium: apt-get install chromium")
async def test_what_an_event_says_is_text(here):
    await here.submit("hostile", 1, REQUIRED, gpus=8)
    await until(lambda: runs(here, "hostile", 1), "the job runs")
    key = await placed_workload(here, "hostile")
    body = {
        "metadata": {"name": "hostile"},
        "regarding": {"kind": "Workload", "name": key.partition("/")[2], "namespace": NAMESPACE},
        "eventTime": "2099-01-01T00:00:00.000000Z",
        "reason": MARKUP[:128],
        "note": MARKUP,
        "type": "Warning",
        "action": "Hack",
        "reportingController": f"x.example/{'y' * 20}",
        "reportingInstance": MARKUP[:64],
    }
    await here.client.create(EVENTS, {"apiVersion": "events.k8s.io/v1", "kind": "Event", **body}, NAMESPACE)
    async with chromium.tab() as tab:
        await tab.open(here.link + f"#/map?workload={key}")
        await tab.until("document.activeElement?.id === 'token'")
        await tab.call("Input.insertText", text=here.tokens["admin"])
        await tab.key("Enter", text="\r")
        await tab.until("/Warning: <img src=x/.test(document.querySelector('.events')?.innerText ?? '')")
        assert await tab.js("document.querySelectorAll('#page img, #page script').length") == 0
        assert await tab.js("window.hacked") is None
        assert await violations(tab) == []
        assert [error for error in tab.errors if "Content Security" in error] == []


def waves(low, high):
    return lambda at: str(low + (high - low) * (at // 3600 % 6) / 6)


@pytest.mark.skipif(chromium.found() is None, reason="no Chromium: apt-get install chromium")
async def test_history_is_of_prometheus_where_there_is_one(here):
    async with prometheus_server() as past, chromium.tab() as tab:
        past.series = {
            "flavor_allocatable": [({}, lambda _: "4096")],
            "flavor_free": [({}, waves(200, 1800))],
            "largest_free": [({"level": "x/block"}, waves(64, 512)), ({"level": MARKUP}, waves(8, 64))],
            "pending": [({}, lambda at: None if at // 3600 % 9 == 0 and at < time.time() - 7200 else "7")],
            "evicted": [({}, waves(0, 3))],
        }
        options = ("--kubeconfig", str(here.cluster.kubeconfig), "--prometheus", past.url)
        async with serving(*options) as (_, link):
            await tab.open(link)
            await tab.until("performance.getEntriesByName('paint').length > 0")
            await tab.js("location.hash = '#/history'")
            await tab.until("document.querySelectorAll('.history .chart canvas').length === 4")
            said = await tab.js("document.querySelector('.history').innerText")
            assert "7 jobs wait" in said
            assert "From Prometheus, one sample every 5 minutes" in said
            assert "by block" in said
            assert await tab.js("document.querySelectorAll('#page img').length") == 0
            assert await violations(tab) == []
            assert tab.errors == []
        past.answers = 422, json.dumps({"status": "error", "errorType": "execution", "error": MARKUP}).encode()
        async with serving(*options) as (_, link):
            await tab.open(link)
            await tab.until("performance.getEntriesByName('paint').length > 0")
            await tab.js("location.hash = '#/history'")
            await tab.until("/answers 422: <img src=x/.test(document.querySelector('.history')?.innerText ?? '')")
            assert "This is what the page saw itself" in await tab.js("document.querySelector('.history').innerText")
        assert await tab.js("window.hacked") is None


async def test_who_may_not_read_the_cluster_is_told_so_at_once(here):
    config = here.cluster.token_kubeconfig(here.tokens["nobody"], "nobody")
    done = await here.run("web", "--port", "0", "--kubeconfig", str(config))
    assert done.returncode == 1
    assert "may not" in done.stderr or "topogate-inspect" in done.stderr
    assert "Traceback" not in done.stderr
