"""The judge of Kueue's jobs in histories knows which of their pods nobody may end before they are taken over."""

import random

import pytest
from support.history.actors import Cluster
from support.history.filters import HiddenFilter
from support.history.kueue import WHO, KueueJobs
from support.history.loop import Loop
from support.history.server import CONTROLLER, GATE, NAMESPACE, Server, make_object, owner_of

from kube import resources


class Beside(KueueJobs):
    """Kueue's job ``k0``, with a pod that runs on node ``n`` and one behind the gate, on a wire without faults."""

    def __init__(self, server):
        quiet = lambda *_: None  # noqa: E731
        cluster = Cluster(server, random.Random(0), HiddenFilter(0), lambda _: [])
        super().__init__(server, cluster, 0, quiet)
        server.judge = self.saw
        server.create("nodes", make_object(resources.NODES, "n", {}), "admin")
        job = self._job("k0", "a", 2)
        self._pod(job, 0, "n")
        self.runs = self.pod("k0-k0")
        spec = {**self.runs["spec"], "schedulingGates": [{"name": GATE}]}
        del spec["nodeName"]
        waits = make_object(resources.PODS, "k0-1", spec, ownerReferences=self.runs["metadata"]["ownerReferences"])
        waits["metadata"]["namespace"] = NAMESPACE
        server.create("pods", waits, "job controller")
        assert owner_of(self.pod("k0-1")) == owner_of(self.runs)

    def pod(self, name):
        return self.server.get("pods", name, NAMESPACE)


@pytest.fixture(name="server")
def fixture_server():
    loop = Loop(None)
    yield Server(loop)
    loop.close()


@pytest.mark.parametrize("name", ["k0-k0", "k0-1"])
def test_no_pod_of_a_job_that_runs_is_ended(server, name):
    kueue = Beside(server)
    server.delete(kueue.pod(name), CONTROLLER)
    assert kueue.wrong == [f"pod {name} of Kueue was ended before its job was taken over"]


def test_anybody_else_may_end_them(server):
    kueue = Beside(server)
    for name in ("k0-k0", "k0-1"):
        server.delete(kueue.pod(name), WHO)
    assert kueue.wrong == []


def test_pods_behind_the_gate_of_a_job_of_which_none_runs_may_be_made_anew(server):
    kueue = Beside(server)
    server.store(kueue.runs, {**kueue.runs, "status": {"phase": "Failed"}}, "kubelet", "status")
    server.delete(kueue.pod("k0-1"), CONTROLLER)
    assert kueue.wrong == []
