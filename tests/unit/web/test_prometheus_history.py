"""The last day as a Prometheus tells it, by a server on loopback that answers as the real API does."""

import json

import aiohttp
import pytest
from support.ports import free_port
from support.prometheus_server import prometheus_server

from clock import Clock
from web import prometheus_api
from web.prometheus import KEPT_SECONDS, SPAN, STEP, Prometheus
from web.prometheus_api import LONGEST, PrometheusApi, PrometheusError

NOW = 1_795_000_123.0
END = int(NOW) // STEP * STEP
GPU, LEVELS = "nvidia.com/gpu", ("block", "rack")


def always(value):
    return lambda _: value


@pytest.fixture
async def made():
    async with prometheus_server() as server, aiohttp.ClientSession() as session:
        server.series = {
            "flavor_allocatable": [({}, always("64"))],
            "flavor_free": [({}, lambda at: "24" if at < END else "16.5")],
            "largest_free": [({"level": "rack"}, always("8")), ({"level": "block"}, always("16"))],
            "pending": [({}, lambda at: "3" if at == END else None)],
            "evicted": [({}, lambda at: "1.0034" if at == END - STEP else "0")],
        }
        server.now, server.ticks = NOW, 0.0
        clock = Clock(lambda: server.now, lambda: server.ticks)
        server.asks = Prometheus(PrometheusApi(session, server.url, {"cluster": 'ea"st'}), clock)
        yield server


async def test_a_day_is_told_column_by_column(made):
    told = await made.asks.columns(GPU, LEVELS)
    many = SPAN // STEP + 1
    assert (len(told["at"]), told["at"][0], told["at"][-1]) == (many, END - SPAN, END)
    assert (told["amount"], told["used"][:1], told["used"][-1]) == ([64.0] * many, [40.0], 47.5)
    assert (told["waiting"][0], told["waiting"][-1], told["evictions"][-2:]) == (0.0, 3.0, [1, 0])
    assert (told["levels"], [column[0] for column in told["largest"]]) == (["block", "rack"], [16.0, 8.0])


async def test_only_what_is_this_clusters_is_asked_for(made):
    await made.asks.columns('a"}) or vector(1', LEVELS)
    assert len(made.asked) == 5
    for one in made.asked:
        assert 'cluster="ea\\"st"' in one["query"]
        assert (int(one["start"]), int(one["end"]), int(one["step"])) == (END - SPAN, END, STEP)
    assert 'resource="a\\"}) or vector(1"' in made.asked[0]["query"]


async def test_one_answer_serves_everybody_for_a_while(made):
    first = await made.asks.columns(GPU, LEVELS)
    made.ticks = KEPT_SECONDS - 1
    assert await made.asks.columns(GPU, LEVELS) is first
    made.ticks = KEPT_SECONDS
    assert await made.asks.columns(GPU, LEVELS) is not first
    assert len(made.asked) == 10


async def test_holes_and_what_is_no_number_are_holes(made):
    texts = {END: "NaN", END - STEP: "+Inf", END - 2 * STEP: "many", END - 3 * STEP: None}
    made.series["flavor_allocatable"] = [({}, lambda at: texts.get(at, "64"))]
    told = await made.asks.columns(GPU, LEVELS)
    assert (told["amount"][-5:], told["used"][-5:]) == ([64.0] + [None] * 4, [40.0] + [None] * 4)
    assert told["waiting"][-5:] == [0.0, None, None, None, 3.0]


MATRIX = '{"status": "success", "data": {"resultType": "matrix", "result": [%s]}}'
ERROR = json.dumps({"status": "error", "errorType": "bad_data", "error": "<img src=x>" + "y" * 1000})


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, ERROR, "Prometheus answers 400: <img src=x>yyy"),
        (503, json.dumps({"status": "error", "errorType": "timeout", "error": ""}), "503: it does not say why"),
        (200, ERROR, "Prometheus answers 200: "),
        (200, "<html>a proxy's log-in</html>", "does not speak the API"),
        (401, "", "(HTTP 401) does not speak"),
        (200, '{"status": "success", "data": 7}', "does not speak"),
        (200, MATRIX % '{"metric": {}, "values": [[1]]}', "does not speak"),
        (200, "[" * 100_000, "does not speak"),
        (200, '{"status": "success", "data": {"resultType": "vector", "result": []}}', "another question"),
        (200, MATRIX % "", "none of the ungater's metrics"),
        (200, " " * 5_000_000, "too long"),
    ],
    ids=lambda value: str(value)[:24],
)  # fmt: skip
async def test_what_goes_wrong_is_said_in_a_line(made, status, body, said):
    made.answers = status, body.encode()
    with pytest.raises(PrometheusError) as error:
        await made.asks.columns(GPU, LEVELS)
    assert said in str(error.value)
    assert len(str(error.value)) < LONGEST + 100


async def test_a_failure_is_not_asked_for_again_at_once_and_ends(made):
    made.answers = 503, b""
    for _ in range(3):
        with pytest.raises(PrometheusError):
            await made.asks.columns(GPU, LEVELS)
    assert len(made.asked) <= 5
    made.answers, made.ticks = None, KEPT_SECONDS
    assert (await made.asks.columns(GPU, LEVELS))["amount"][0] == 64.0


async def test_a_slow_one_has_its_time(made, monkeypatch):
    monkeypatch.setattr(prometheus_api, "SECONDS", 0.2)
    made.silent = 30.0
    with pytest.raises(PrometheusError, match="no answer within"):
        await made.asks.columns(GPU, LEVELS)


async def test_it_is_not_sent_elsewhere(made):
    made.moved = made.url + "/api/v1/query_range"
    with pytest.raises(PrometheusError, match=r"HTTP 302"):
        await made.asks.columns(GPU, LEVELS)
    assert len(made.asked) <= 5


async def test_one_that_is_not_there(made):
    async with aiohttp.ClientSession() as session:
        asks = Prometheus(
            PrometheusApi(session, f"http://127.0.0.1:{free_port()}", {}), Clock(lambda: NOW, lambda: 0.0)
        )
        with pytest.raises(PrometheusError, match="cannot be reached"):
            await asks.columns(GPU, LEVELS)
