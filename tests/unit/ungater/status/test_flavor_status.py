"""What is written of a flavor's nodes, and told to nodes that lack a label."""

import msgspec
import pytest

from clock import SYSTEM
from engine.cluster.unlabeled import Unlabeled
from kube.errors import KubeError
from kube.objects import FlavorTopology, ObjectMeta, ResourceFlavor, ResourceFlavorSpec
from ungater.status.flavors import FlavorSource, FlavorStatus, changed, message_of

LACKING = tuple(Unlabeled(f"n{number}", ("rack",)) for number in range(5))
NOW = 1_700_000_000.0


def flavor(status=None, generation=3):
    spec = ResourceFlavorSpec(topology=FlavorTopology(levels=("block", "rack")))
    return ResourceFlavor(metadata=ObjectMeta(name="tas", generation=generation), spec=spec, status=status)


def test_a_status_is_written_once():
    first = changed(flavor(), 8, (), NOW)
    (active,) = first["conditions"]
    assert (first["nodes"], first["nodesMissingLabels"]) == (8, 0)
    assert (active["status"], active["reason"], active["message"]) == ("True", "Ready", "8 nodes can take pods")
    assert changed(flavor(first), 8, (), NOW + 60) == {}
    edited = changed(flavor(first, generation=4), 8, (), NOW + 60)
    assert edited == {"conditions": [{**active, "observedGeneration": 4}]}, "of an edited flavor it is said again"


def test_nodes_without_a_label_are_counted_and_some_of_them_named():
    before = changed(flavor(), 8, (), NOW)
    found = changed(flavor(before), 3, LACKING, NOW + 60)
    (active,) = found["conditions"]
    assert (found["nodes"], found["nodesMissingLabels"], active["reason"]) == (3, 5, "MissingLevelLabel")
    text = "3 nodes can take pods; 5 nodes lack the label of a level: n0 (rack), n1 (rack), n2 (rack) and 2 more"
    assert active["message"] == text
    assert active["lastTransitionTime"] == before["conditions"][0]["lastTransitionTime"], "it was True all the time"


def test_a_flavor_without_nodes_is_not_active():
    (active,) = changed(flavor(), 0, LACKING[:1], NOW)["conditions"]
    assert (active["status"], active["reason"]) == ("False", "NoNodes")
    assert "n0 (rack)" in active["message"]


def test_the_event_says_what_to_do():
    text = message_of("tas", ("block", "rack"))
    assert "ResourceFlavor tas" in text
    assert "labels block, rack" in text
    assert "it lacks the label block and says rack=no-topology, which names no domain" in message_of(
        "tas", ("block", "rack=no-topology")
    )


class Client:
    """Has one flavor; a patch takes effect, and its answer may be lost."""

    def __init__(self, status):
        self.there, self.version, self.fails, self.wrote = status, 7, False, []

    def flavor(self):
        found = flavor(self.there)
        return msgspec.structs.replace(
            found, metadata=ObjectMeta(name="tas", uid="u", resource_version=str(self.version))
        )

    async def patch(self, _resource, _name, *, body, **_options):
        if body:
            self.wrote.append(body["status"])
            self.there, self.version = {**self.there, **body["status"]}, self.version + 1
        if self.fails:
            raise KubeError(500, "InternalError", "no answer")
        return self.flavor()


class State:
    """A flavor with so many nodes."""

    def __init__(self):
        self.size, self.flavors = 0, {"tas": None}

    def tree(self, _name):
        return self


@pytest.mark.parametrize("lost", [False, True])
async def test_what_was_written_counts_though_its_event_is_late(monkeypatch, lost):
    """A node goes again before the event about the write with it comes: that is what is compared with."""
    monkeypatch.setattr("ungater.status.flavors.unlabeled", lambda *_: ())
    monkeypatch.setattr("ungater.status.flavors.troubles", lambda *_: ())
    state, layout = State(), iter(range(100))
    client = Client(changed(flavor(), 3, (), NOW))
    seen = client.flavor()
    source = FlavorSource(state, lambda: next(layout), lambda: [seen], lambda _: None)
    status = FlavorStatus(client, source, None, SYSTEM)
    state.size, client.fails = 4, lost
    await status.update()
    state.size, client.fails = 3, False
    await status.update()
    assert client.there["nodes"] == 3
    assert [one["nodes"] for one in client.wrote] == [4, 3]
    seen = client.flavor()
    await status.update()
    assert len(client.wrote) == 2
