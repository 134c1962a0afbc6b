"""One look of the agent while pods come, and what it writes where the API server refuses."""

import unittest.mock

import pytest
from support.kubelet import GIB, Kubelet
from support.tree import machine

from agent.cycle import NodeAgent
from agent.kubelet.held import Owner
from agent.machine import sysfs
from agent.metrics import AgentMetrics
from agent.pods import NodePod
from agent.publish import TopologyWriter
from clock import SYSTEM
from crds.settings import Settings
from kube.errors import Conflict, Forbidden, KubeError, NotFound
from kube.objects import ObjectMeta
from kube.topologies import WholeFlexTopo


class Server:
    """Has the node and nothing else, and takes every write."""

    async def get(self, _resource, name, *, type=None):  # noqa: A002 -- as in the client
        if type is None:
            raise NotFound(404)
        return type(metadata=ObjectMeta(name=name, uid="node"))

    async def create(self, *_args, **_options):
        return WholeFlexTopo(metadata=ObjectMeta(name="n"))

    patch = create


@pytest.fixture
def kubelet(tmp_path):
    return Kubelet(tmp_path / "kubelet", "0-4,6-31", {0: 64 * GIB, 2: 64 * GIB, 4: 128 * GIB}, reserved="0,16")


@pytest.fixture
def agent(tmp_path, kubelet):
    found = {"agent_kubelet_directory": str(kubelet.folder), "agent_publish_topology": "never"}
    settings = Settings(**found, agent_observe_pods=False)
    made = NodeAgent(
        settings, Server(), "n", nvml=None, metrics=AgentMetrics(), recorder=unittest.mock.Mock(), clock=SYSTEM
    )
    made._hardware = sysfs.read(machine("cxl-sparse", tmp_path / "sys"), tmp_path)
    made._pods._synced.set()
    yield made
    made._reader.close()


@pytest.mark.parametrize("when", ["_look_at_node", "_read"])
async def test_what_a_pod_holds_that_came_during_a_look_is_its_own(agent, kubelet, monkeypatch, when):
    """The files name it, and the list of pods that the look began with does not."""
    look = getattr(agent, when)

    async def looks(*args):
        agent._pods._set("d/new", NodePod(metadata=ObjectMeta(name="new", namespace="d", uid="u1")))
        return await look(*args)

    kubelet.hold("u1", namespace="d", pod="new", cpus="1-2")
    monkeypatch.setattr(agent, when, looks)
    with kubelet.serving():
        await agent._look_and_write()
    assert agent._held.cpus == {Owner("u1", "main"): {1, 2}}
    assert not agent._held.default & {1, 2}


async def test_what_a_pod_held_that_came_and_went_during_a_look_is_free(agent, kubelet, monkeypatch):
    look = agent._look_at_node

    async def looks(*args):
        agent._pods._set("d/new", NodePod(metadata=ObjectMeta(name="new", namespace="d", uid="u1")))
        agent._pods._remove("d/new", None)
        return await look(*args)

    kubelet.hold("u1", namespace="d", pod="new", cpus="1-2")
    monkeypatch.setattr(agent, "_look_at_node", looks)
    with kubelet.serving():
        await agent._look_and_write()
    assert agent._held.cpus == {}


class Refusing:
    """Has no NodeResourceTopology. The first write meets a conflict, each one after it another refusal."""

    def __init__(self):
        self.reads = 0
        self._refusals = [Conflict(409)]

    async def get(self, *_args, **_options):
        self.reads += 1
        raise NotFound(404)

    async def create(self, *_args, **_options):
        raise self._refusals.pop() if self._refusals else Forbidden(403)


async def test_a_write_that_is_refused_after_a_conflict_is_counted_and_what_is_there_is_read_again():
    server, metrics = Refusing(), AgentMetrics()
    writer = TopologyWriter(server, "n", "auto", metrics)
    for reads in (2, 3):
        with pytest.raises(KubeError):
            await writer.write({"metadata": {"name": "n"}, "zones": []}, {})
        assert server.reads == reads
    failed = metrics.registry.get_sample_value(
        "topogate_agent_writes_total", {"object": "noderesourcetopology", "outcome": "failed"}
    )
    assert failed == 2
