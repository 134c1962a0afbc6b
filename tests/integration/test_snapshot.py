"""A live cluster in one file: what was written is planned on and simulated as the cluster itself."""

import asyncio
import json

import pytest
import yaml
from support.commands import topogate
from support.jobs import Running, Watched, install_crds, job, make_flavor, nodes_of

from kube.resources import JOBS, RESOURCE_FLAVORS

pytestmark = pytest.mark.cluster


@pytest.fixture
async def jobs(client, namespace, nodes):
    """A running controller and its flavor."""
    await install_crds(client)
    await nodes(blocks=1, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    async with Running(client):
        yield Watched(client, namespace)
    await client.delete(RESOURCE_FLAVORS, namespace)


async def test_a_snapshot_is_planned_on_and_simulated(jobs, cluster, client, namespace, tmp_path):
    secret = {"env": [{"name": "TOKEN", "value": "hush"}], "args": ["--password=hush"]}
    for name in ("first", "stays", "moves"):  # one host each: the first two fill a rack
        body = job(name, 1)
        body["spec"]["template"]["spec"]["containers"][0] |= secret
        await jobs.create(body)
        await jobs.running(name, 1)
    on = {name: nodes_of(await jobs.running(name, 1))[0] for name in ("first", "stays", "moves")}
    await client.delete(JOBS, "first", namespace, propagation="Foreground")

    async def gone():
        return not await jobs.pods("first")

    for _ in range(200):
        if await gone():
            break
        await asyncio.sleep(0.1)
    file = tmp_path / "live.yaml"
    live = ("--kubeconfig", cluster.kubeconfig)
    await topogate("snapshot", "--out", file, *live)
    text = file.read_text()
    assert "hush" not in text
    assert "managedFields" not in text
    content = yaml.safe_load(text)
    kinds = {item["kind"] for item in content["items"]}
    assert {"Node", "Pod", "Job", "Workload", "ResourceFlavor", "Namespace"} <= kinds

    args = ("defrag", "--dry-run", "--flavor", namespace, "-o", "json")
    plan = json.loads(await topogate(*args, "-f", file))
    assert json.loads(await topogate(*args, *live)) == plan
    assert (plan["domains"], plan["wholeNow"], plan["wholeThen"]) == (2, 0, 1)
    (step,) = plan["steps"]
    (move,) = step["moves"]
    assert move["before"] in ({on["stays"]: 1}, {on["moves"]: 1})

    mine = tmp_path / "mine.yaml"  # not what other tests left: where there are LocalQueues, a job has to name one
    content["items"] = [one for one in content["items"] if one["kind"] not in {"LocalQueue", "ClusterQueue"}]
    mine.write_text(yaml.safe_dump(content))
    trace = tmp_path / "t.csv"
    trace.write_text("arrival,duration,pods,gpu,topology\n0,60,2,8,required=rack\n0,60,1,8,\n")
    simulate = ("simulate", "run", "-f", mine, "-j", trace, "-p", "topology", "-o", "json")
    (found,) = json.loads(await topogate(*simulate))
    assert found["finished"] + found["unfinished"] == 2
    (empty,) = json.loads(await topogate(*simulate, "--empty"))
    assert (empty["finished"], empty["aligned"]) == (2, 1)
