"""The page over HTTP: what is answered to whom, and changes as a stream."""

import asyncio
import gzip
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from support.web_cluster import items

from cli.cluster.dump import FoundObject
from cli.web.questions import ClusterQuestions, _check
from cli.web.snapshot import ClusterSnapshot
from clock import SYSTEM
from crds.settings import Settings
from web import server as served
from web.events import EventRow, EventsAnswer
from web.facts import BoundPod
from web.hub import Hub
from web.prometheus import Prometheus
from web.prometheus_api import PrometheusApi
from web.questions import QuestionError
from web.server import PageHandlers
from web.sight import EVERYTHING, Sight
from web.viewers.doors import LOCAL, Entrance
from web.viewers.rights import NO_TOKEN, ViewerVerdict


class Viewers:
    """Rights by token."""

    def __init__(self):
        self.seen = {
            "admin": ViewerVerdict("admin", EVERYTHING),
            "tenant": ViewerVerdict("tenant", Sight(True, False, frozenset({"speech"}))),
            "local": ViewerVerdict("local", Sight(False, False, frozenset({"speech"}))),
            "nobody": ViewerVerdict("nobody", Sight()),
        }

    async def sight_of_viewer(self, header, _namespaces):
        return self.seen.get((header or "").removeprefix("Bearer "), NO_TOKEN)

    async def no_events(self, header, namespace):
        return "" if header == "Bearer admin" else f"you may not list events in namespace {namespace}"


@pytest.fixture(scope="module")
def snapshot():
    bodies = items(4, 4, 8, machines=8)
    return ClusterSnapshot(
        (FoundObject("made", b"", 0, None, body, body["kind"]) for body in bodies), Settings(), "made"
    )


class Running:
    def __init__(self, session, base, hub, page, viewers):
        self.session, self.base, self.hub, self.page, self.viewers = session, base, hub, page, viewers

    async def get(self, path, token="admin", **more):
        headers = {"Authorization": f"Bearer {token}", **more.pop("headers", {})}
        return await self.session.get(self.base + path, headers=headers, **more)

    async def json(self, path, token="admin"):
        async with await self.get(path, token) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    @asynccontextmanager
    async def stream(self, since=None, token="admin"):
        since = self.hub.version if since is None else since
        path = f"/api/changes?since={since}&epoch={self.hub.epoch}"
        async with await self.get(path, token, timeout=aiohttp.ClientTimeout(total=20)) as answer:
            yield answer

    async def event(self, answer):
        lines = []
        async with asyncio.timeout(10):
            while line := (await answer.content.readline()).decode().strip():
                lines.append(line)
        return (lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))) if lines else None


@pytest.fixture
async def running(snapshot):
    from aiohttp import web

    hub, viewers = Hub(snapshot.board, SYSTEM, "made"), Viewers()
    hub.publish()
    questions = ClusterQuestions(snapshot.reading, Settings(), snapshot.clock(SYSTEM))
    asked = []

    async def events(key, subject):
        asked.append((key, subject))
        return EventsAnswer(
            (EventRow(1.0, "Normal", "Admitted", "Workload", subject.workload, 1, 1, "here", "topogate"),)
        )

    session = aiohttp.ClientSession()
    page = PageHandlers(
        hub,
        viewers,
        questions,
        inside=snapshot.inside_of_host,
        heard=lambda: 0.0,
        keyed=False,
        clock=SYSTEM,
        events=events,
        past=Prometheus(PrometheusApi(session, "http://127.0.0.1:9", {}), SYSTEM),
    )
    runner = web.AppRunner(page.application(LOCAL), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    entrance = Entrance(runner)
    await entrance.open("127.0.0.1", 0)
    async with session:
        made = Running(session, f"http://127.0.0.1:{entrance.port}", hub, page, viewers)
        made.asked = asked
        yield made
    await entrance.close()


PATHS = (
    "me",
    "picture",
    "changes",
    "host?name=b1-r1-h1",
    "workload?key=x",
    "events?key=x",
    "history",
    "queues",
    "explain?key=x",
)


@pytest.mark.parametrize("path", PATHS)
async def test_nothing_is_told_without_a_token_or_rights(running, path):
    for token, status in (("", 401), ("forged", 401), ("nobody", 403)):
        async with await running.get(f"/api/{path}", token) as answer:
            assert answer.status == status
            assert "b1-r1" not in await answer.text()
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")


async def test_a_token_in_the_address_opens_nothing(running):
    async with running.session.get(running.base + "/api/me?token=admin&access_token=admin") as answer:
        assert answer.status == 401


async def test_a_tenant_sees_nothing_of_others(running):
    board = running.hub.board
    foreign = [key for key in board.all_holders() if not key.startswith("speech/")]
    names = {board.find_holder(key).name for key in foreign} | {key.partition("/")[2] for key in foreign}
    texts = [json.dumps(await running.json("/api/picture", "tenant"))]
    texts += [json.dumps(await running.json(f"/api/host?name={name}", "tenant")) for name in list(board.hosts)[:12]]
    texts.append(json.dumps(await running.json("/api/queues", "tenant")))
    for key in [one for one in board.holders if one.startswith("speech/") and board.holders[one].reason]:
        texts.append(json.dumps(await running.json(f"/api/explain?key={key}", "tenant")))
    for text in texts:
        assert [name for name in names if f'"{name}"' in text or f"/{name}" in text] == []
    for key in foreign[:5]:
        for path in ("workload", "explain", "events"):
            async with await running.get(f"/api/{path}?key={key}", "tenant") as answer:
                assert answer.status == 404


async def test_events_are_for_who_may_list_them(running):
    board = running.hub.board
    key = next(one for one in board.holders if one.startswith("speech/") and board.pods_of_holder(one))
    told = await running.json(f"/api/events?key={key}")
    assert (told["rows"][0][2:5], told["why"]) == (["Admitted", "Workload", key.partition("/")[2]], "")
    ((asked, subject),) = running.asked
    assert (asked, subject.namespace, len(subject.pods)) == (key, "speech", len(board.pods_of_holder(key)))
    refused = await running.json(f"/api/events?key={key}", "tenant")
    assert refused == {"rows": [], "why": "you may not list events in namespace speech"}
    assert len(running.asked) == 1


async def test_where_prometheus_says_nothing_the_page_tells_what_it_saw(running):
    told = await running.json("/api/history")
    assert "Prometheus" in told["why"]
    assert set(running.hub.history.columns()) <= set(told)


async def test_who_may_not_list_nodes_asks_nothing_about_them(running):
    for path in ("/api/host?name=b1-r1-h1", "/api/history"):
        async with await running.get(path, "local") as answer:
            assert answer.status == 404
    async with running.session.post(
        running.base + "/api/whatif", headers={"Authorization": "Bearer local"}, data="{}"
    ) as answer:
        assert answer.status == 403


async def test_a_stranger_among_hosts_is_let_in_nowhere(running):
    for path in ("/", "/api/me", "/page.js"):
        async with await running.get(path, headers={"Host": "rebound.example"}) as answer:
            assert answer.status == 421
        async with await running.get(path, headers={"Origin": "http://evil.example"}) as answer:
            assert answer.status == 403


async def test_changes_come_as_a_stream_and_those_who_are_behind_take_a_whole(running):
    board = running.hub.board
    async with running.stream() as answer:
        assert await running.event(answer) == ("beat", {"heard": 0.0})
        board.set_pod(
            BoundPod("speech/new", "speech/Pod/new", ("Pod", "new"), "b2-r1-h1", 1, None, "Running", gated=False)
        )
        running.hub.publish()
        kind, found = await running.event(answer)
        assert (kind, found["version"]) == ("changes", running.hub.version)
        names = [name for grove in board.groves() for name in grove.hosts]
        assert [names[row[0]] for row in found["hosts"]] == ["b2-r1-h1"]
        board.hide_pod("speech/new")
        running.hub.publish()
        assert (await running.event(answer))[0] == "changes"
    for path in ("?since=0&epoch=other", "?since=-1", "?since=99999999", "?since=x&epoch=" + running.hub.epoch):
        async with await running.get("/api/changes" + path, timeout=aiohttp.ClientTimeout(total=10)) as answer:
            assert await running.event(answer) == ("beat", {"heard": 0.0})
            assert await running.event(answer) == ("whole", {})


async def test_who_loses_his_rights_loses_his_stream(running, monkeypatch):
    monkeypatch.setattr(served, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(served, "BEAT_SECONDS", 0.05)
    async with running.stream() as answer:
        await running.event(answer)
        running.viewers.seen["admin"] = ViewerVerdict("admin", Sight())
        async with asyncio.timeout(5):
            await answer.content.read()
    assert running.page.viewers == 0


async def test_so_many_streams_of_one_viewer_and_no_more(running, monkeypatch):
    monkeypatch.setattr(served, "MOST_OF_ONE", 2)
    async with running.stream(), running.stream(), running.stream() as third:
        assert third.status == 429
    async with running.stream(token="tenant") as other:
        assert other.status == 200


async def test_a_viewer_who_reads_nothing_is_let_go_and_costs_nothing(running, monkeypatch):
    monkeypatch.setattr(served, "SEND_SECONDS", 0.3)
    monkeypatch.setattr(served, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(served.Hub, "changes", lambda *_: b"x" * (1 << 20))
    _, writer = await asyncio.open_connection("127.0.0.1", int(running.base.rpartition(":")[2]), limit=1024)
    path = f"/api/changes?since={running.hub.version}&epoch={running.hub.epoch}"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer admin\r\n\r\n".encode())
    async with asyncio.timeout(15):
        while not running.page.viewers:
            await asyncio.sleep(0.01)
        while running.page.viewers:
            running.hub.board.changed_hosts.add("b1-r1-h1")
            running.hub.publish()
            await asyncio.sleep(0.01)
    writer.close()


async def test_those_who_see_the_same_share_one_encoding(running):
    one, other = running.hub.picture(EVERYTHING), running.hub.picture(Sight(True, True, None))
    assert one is other
    assert json.loads(gzip.decompress(one))["version"] == running.hub.version


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: ask, annotations: {kueue.x-k8s.io/require-topology: cloud-provider.com/topology-rack}}
spec:
  parallelism: PODS
  template: {spec: {restartPolicy: Never, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 8}}}]}}
"""


async def ask(running, text, token="admin"):
    headers = {"Authorization": f"Bearer {token}"}
    async with running.session.post(running.base + "/api/whatif", headers=headers, data=text) as answer:
        return answer.status, await answer.text()


async def test_where_a_job_would_go(running):
    status, text = await ask(running, JOB.replace("PODS", "1"))
    assert (status, json.loads(text)["answers"][0]["state"]) == (200, "Placed")
    status, text = await ask(running, JOB.replace("PODS", "64"))
    found = json.loads(text)["answers"][0]
    assert (status, found["state"]) == (200, "Waits")
    assert found["room"]


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)


ONE = JOB.replace("PODS", "1")
ODD = ["", "[", "a: b", BOMB, "[" * 5000, "{" * 5000, "---\n" * 99, "\x00", "kind: Job", '{"kind": "Job"}']
LARGE = [JOB.replace("PODS", "999999"), JOB.replace("PODS", "x"), f"{ONE}---{JOB.replace('PODS', '2000')}" * 40]


@pytest.mark.parametrize("text", [*ODD, *LARGE])
async def test_a_manifest_that_is_none_or_costs_too_much_is_refused_in_words(running, text):
    status, said = await ask(running, text)
    assert status == 422, said
    assert said
    assert "/tmp" not in said


async def test_a_manifest_that_is_too_large_is_refused(running):
    assert (await ask(running, "x" * 300_000))[0] == 413
    assert (await ask(running, b"\xff\xfe"))[0] == 422


def test_which_bound_a_manifest_exceeds_is_told():
    with pytest.raises(QuestionError, match="at most 32 objects"):
        _check("--- {}\n" * 33, "a")
    with pytest.raises(QuestionError, match="at most 50000 keys, values and lists"):
        _check("a: 1\n" * 30_000, "a")


def test_pods_that_multiply_are_counted():
    with pytest.raises(QuestionError, match="too many"):
        _check('{"kind": "LeaderWorkerSet", "spec": {"replicas": 300, "leaderWorkerTemplate": {"size": 300}}}', "a")
    _check(JOB.replace("PODS", "512"), "a")


async def test_an_explanation_says_what_would_free_room(running):
    board = running.hub.board
    waiting = next(key for key, one in board.holders.items() if one.reason)
    found = await running.json(f"/api/explain?key={waiting}")
    assert found["room"]
    assert found["queue"]["position"] >= 1
