"""What is written of a flavor's nodes, and told to nodes that lack a label."""

from engine.unlabeled import Unlabeled
from kube.objects import FlavorTopology, ObjectMeta, ResourceFlavor, ResourceFlavorSpec
from ungater.flavor_status import changed, told

LACKING = tuple(Unlabeled(f"n{number}", ("rack",)) for number in range(5))
NOW = 1_700_000_000.0


def flavor(status=None):
    spec = ResourceFlavorSpec(topology=FlavorTopology(levels=("block", "rack")))
    return ResourceFlavor(metadata=ObjectMeta(name="tas", generation=3), spec=spec, status=status)


def test_a_status_is_written_once():
    first = changed(flavor(), 8, (), NOW)
    (active,) = first["conditions"]
    assert (first["nodes"], first["nodesMissingLabels"]) == (8, 0)
    assert (active["status"], active["reason"], active["message"]) == ("True", "Ready", "8 nodes can take pods")
    assert changed(flavor(first), 8, (), NOW + 60) == {}


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
    text = told("tas", ("block", "rack"))
    assert "ResourceFlavor tas" in text
    assert "labels block, rack" in text
