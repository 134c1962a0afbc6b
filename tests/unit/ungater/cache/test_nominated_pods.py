"""What the nomination of a gated pod changes, when it is heard of."""

import msgspec
import pytest
from support.owned import make_job, make_pod
from support.world import FLAVOR, NODES, World

from ungater.model.job_view import id_of
from ungater.model.nominated_node import NominatedNode

replace = msgspec.structs.replace


class Nominated(World):
    """A Job with one gated pod, for which the nomination to ``r1-h1`` was sent."""

    def __init__(self):
        super().__init__()
        self.put("flavor", FLAVOR)
        for node in NODES:
            self.put("node", node)
        job = make_job(parallelism=1)
        self.put("job", job)
        self.entry = self.memory.entries[id_of(job)]
        self.pod = make_pod("a", owner=self.entry.job)
        self.put("pod", self.pod)
        self.entry.nominated["uid-a"] = NominatedNode("r1-h1", 100.0)
        self.asked.clear()

    def says(self, node, *, gated=True):
        spec = self.pod.spec if gated else replace(self.pod.spec, scheduling_gates=None)
        self.put("pod", replace(self.pod, spec=spec, status=replace(self.pod.status, nominated_node_name=node)))
        asked = list(self.asked)
        self.asked.clear()
        return asked


@pytest.fixture
def world():
    return Nominated()


def test_what_was_sent_leads_to_no_look_and_anything_else_does(world):
    assert world.says("r1-h1") == []
    assert world.says("") == [world.entry.id], "kube-scheduler removed it"
    assert world.says("r2-h2") == [world.entry.id], "somebody else nominated it"
    world.entry.nominated.clear()
    assert world.says("") == [], "nothing was sent, and it says nothing"


def test_nothing_is_remembered_of_a_pod_that_goes_or_is_gone(world):
    world.says("r1-h1", gated=False)
    assert world.entry.nominated == {}
    world.entry.nominated["uid-a"] = NominatedNode("r1-h1", 100.0)
    world.drop("pod", world.pod)
    assert world.entry.nominated == {}
