"""``topogate usage``: hours that queues, users and teams held, as a Prometheus on loopback tells them."""

import io

import aiohttp
import pytest
from rich.console import Console
from support.prometheus_server import prometheus_server

from cli.output import Failure
from cli.usage import NO_LABEL, NONE, HeldHours, render, seconds_of, usage
from clock import Clock
from web.prometheus_api import PrometheusApi, PrometheusError

NOW, GPU = 1_795_000_123.5, "nvidia.com/gpu"


def always(value):
    return lambda _: value


def queue(cluster, namespace, local, hours, resource=GPU):
    names = {"cluster_queue": cluster, "queue_namespace": namespace, "local_queue": local, "resource": resource}
    return {name: one for name, one in names.items() if one}, always(hours)  # Prometheus leaves out what is empty


@pytest.fixture
async def asked():
    async with prometheus_server() as server, aiohttp.ClientSession() as session:
        server.series["local_queue"] = [
            queue("gpu", "team-a", "main", "10.5"),
            queue("gpu", "team-b", "main", "20"),
            queue("", "team-b", "", "1"),
            queue("gpu", "team-b", "old", "0"),
            queue("gpu", "team-b", "odd", "NaN"),
        ]

        async def ask(namespace="", resource="", labels=None, since="7d"):
            api = PrometheusApi(session, server.url, labels or {})
            clock = Clock(lambda: NOW, lambda: 0.0)
            return await usage(api, since, seconds_of(since), namespace, resource, clock)

        server.ask = ask
        yield server


def shown(found):
    console = Console(file=io.StringIO(), width=80)
    console.print(render(found))
    return console.file.getvalue()


async def test_hours_are_told_by_cluster_queue_and_local_queue_most_first(asked):
    found = await asked.ask()
    assert found.cluster_queues == (HeldHours("gpu", GPU, 30.5), HeldHours(NONE, GPU, 1.0))
    assert [(one.name, one.hours) for one in found.local_queues] == [
        ("team-b/main", 20.0),
        ("team-a/main", 10.5),
        (f"team-b/{NONE}", 1.0),
    ]
    assert NO_LABEL[:40] in shown(found)


async def test_hours_are_told_by_the_values_of_each_label(asked):
    asked.series["label_resource"] = [
        ({"label": "user", "value": "[red]eve", "resource": GPU}, always("3")),
        ({"label": "team", "value": "vision", "resource": GPU}, always("4")),
        ({"label": "team", "resource": GPU}, always("5")),
    ]
    found = await asked.ask()
    assert [*found.labels] == ["team", "user"]
    assert found.labels["team"] == (HeldHours(NONE, GPU, 5.0), HeldHours("vision", GPU, 4.0))
    assert "[red]eve" in shown(found), "what others wrote is no markup"


async def test_only_what_was_asked_for_is_summed(asked):
    await asked.ask(namespace='team"a', resource="cpu", labels={"cluster": "east"}, since="12h")
    one = min(one["query"] for one in asked.asked)  # that by queue
    assert one == (
        "sum by (cluster_queue, queue_namespace, local_queue, resource) "
        '(increase(topogate_local_queue_resource_seconds_total{resource="cpu",queue_namespace="team\\"a",'
        'cluster="east"}[43200s])) / 3600'
    )
    assert {(one["start"], one["end"]) for one in asked.asked} == {(str(int(NOW)), str(int(NOW)))}


async def test_a_prometheus_without_our_metrics_is_told_with_what_to_do(asked):
    asked.series.clear()
    with pytest.raises(Failure, match="does it scrape the ungater"):
        await asked.ask()


async def test_what_goes_wrong_with_prometheus_is_said(asked):
    asked.answers = 503, b"<html>"
    with pytest.raises(PrometheusError, match="does not speak the API"):
        await asked.ask()


@pytest.mark.parametrize(("text", "seconds"), [("12h", 43_200), ("7d", 604_800), ("4w", 2_419_200)])
def test_times_are_hours_days_or_weeks(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "0d", "1m", "7d]", "-1d", "999999w", "\u0667d"])  # the last: an Arabic 7
def test_another_time_is_refused_in_words(text):
    with pytest.raises(Failure, match="12h, 7d, 4w"):
        seconds_of(text)
