"""What is odd about the labels of a flavor's levels: events on it, once for each change, and in its condition."""

import pytest
from support.engine_factories import BLOCK, HOST, RACK, make_flavor, make_node, make_state

from clock import SYSTEM
from engine.reasons import Reason
from kube.objects import FlavorTopology, ObjectMeta, ResourceFlavor, ResourceFlavorSpec
from ungater.status.flavor_labels import troubles
from ungater.status.flavors import FlavorSource, FlavorStatus

TIER0, TIER1, LEAF = "fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1", "network.topology.nvidia.com/leaf"


def fabric(blocks, levels=(TIER1, TIER0, HOST), **more):
    """Racks of two nodes; ``blocks``: how many racks each has."""
    nodes = [
        make_node(f"b{b}r{r}h{h}", labels={TIER1: f"b{b}", TIER0: f"b{b}r{r}", **more})
        for b, racks in enumerate(blocks)
        for r in range(racks)
        for h in range(2)
    ]
    return make_state(nodes, make_flavor(levels=levels))


def told(state):
    return dict(troubles(state, "tas"))


@pytest.mark.parametrize(("blocks", "odd"), [([3, 1], True), ([4], False), ([3, 2], False), ([2, 2, 1], True)])
def test_a_dead_cable_divides_the_spines_unevenly(blocks, odd):
    """Topograph, four leaves and two spines of which one lost its cable to one leaf: 3 leaves and 1."""
    assert (Reason.UNEVEN_DOMAINS in told(fabric(blocks))) is odd


def test_blocks_that_people_name_may_be_of_any_size():
    nodes = [make_node(f"n{at}", "b1" if at else "b2", f"r{at}") for at in range(5)]
    assert told(make_state(nodes)) == {}


def test_labels_that_their_tool_gave_up():
    assert Reason.LABELS_SUPERSEDED in told(fabric([2], (LEAF, HOST), **{LEAF: "s1"}))
    old = [make_node(f"n{at}", labels={LEAF: "s1"}) for at in range(2)]
    assert told(make_state(old, make_flavor(levels=(LEAF, HOST)))) == {}, "nobody writes the new ones"


class Recorder:
    def __init__(self):
        self.told = []

    def event(self, regarding, _type, reason, _action, text):
        self.told.append((regarding.kind, regarding.name, reason, text))


class Client:
    """Takes every status."""

    def __init__(self):
        self.wrote = []

    async def patch(self, *_names, body, **_options):
        self.wrote.append(body["status"])
        return ResourceFlavor(metadata=ObjectMeta(name="tas"), status=body["status"])


async def test_a_lost_level_is_told_once_on_the_flavor_and_stays_in_its_condition():
    spec = ResourceFlavorSpec(topology=FlavorTopology(levels=(BLOCK, RACK, HOST)))
    seen = ResourceFlavor(metadata=ObjectMeta(name="tas"), spec=spec)
    state = make_state([make_node(f"n{at}") for at in range(2)])
    layout, recorder, client = iter(range(100)), Recorder(), Client()
    status = FlavorStatus(
        client, FlavorSource(state, lambda: next(layout), lambda: [seen], lambda _: None), recorder, SYSTEM
    )
    await status.update()
    assert recorder.told == []
    for at in range(2):
        state.set_node(make_node(f"n{at}", block=""))
    await status.update()
    await status.update()
    ((kind, name, reason, text),) = recorder.told
    assert (kind, name, reason) == ("ResourceFlavor", "tas", Reason.MISSING_LEVEL_LABEL)
    assert f"no node has the label {BLOCK}: jobs that require such a level wait" in text
    (active,) = client.wrote[-1]["conditions"]
    assert (active["status"], active["reason"]) == ("True", "MissingLevelLabel")
    assert active["message"].startswith(f"2 nodes can take pods; no node has the label {BLOCK}")
