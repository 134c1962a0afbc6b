"""Containers get 1, 2, 4 or 8 XPU cards on every node, be anything known of its inside or not."""

import pytest
from support.owned import make_job
from support.published import GI, nrt, nrt_zone
from support.world import FLAVOR, World, make_node

from crds.device_annotations import XPU_RESOURCE as XPU
from engine.reasons import Reason
from kube.informer import Event, EventKind
from ungater.numa.node_topologies import TopologyOptions

OTHER = "example.com/xpu"


def spec_of(*cards, resource=XPU):
    containers = [
        {"name": f"c{at}", "resources": {"limits": {resource: str(count)}, "requests": {resource: str(count)}}}
        for at, count in enumerate(cards)
    ]
    return {"containers": containers}


class CardWorld(World):
    """One node with 16 cards of two kinds that publishes nothing else; ``rules``: the resources with rules."""

    def __init__(self, rules=(XPU,)):
        self.rules = rules
        super().__init__()
        self.put("flavor", FLAVOR)
        node = make_node("r1", "h1")
        node.status.allocatable.update({XPU: "16", OTHER: "16"})
        self.put("node", node)

    def make(self, **options):
        return super().make(options=TopologyOptions(xpu_resources=self.rules), **options)

    def refusal(self, *cards, resource=XPU, **more):
        """Why a pod with containers of so many cards finds no place; None where it does."""
        job = make_job(parallelism=1, spec={**spec_of(*cards, resource=resource), **more})
        self.put("job", job)
        try:
            self.admit(job)
        except StopIteration:
            (record,) = self.memory.entries.values()
            return self.memory.queues.entries[record.key].refusal
        return None


@pytest.mark.parametrize("cards", [(1,), (2,), (4,), (8,), (8, 8), (1, 2, 4)])
def test_sizes_that_the_rules_allow_are_placed(cards):
    assert CardWorld().refusal(*cards) is None


@pytest.mark.parametrize("cards", [(3,), (5,), (6,), (7,), (9,), (16,), (4, 3)])
def test_other_sizes_never_fit_a_node_that_reports_nothing_else(cards):
    refusal = CardWorld().refusal(*cards)
    assert refusal.reason is Reason.NEVER_FITS
    assert (
        f"no node gives a pod what it asks for: asks for {max(cards, key=lambda n: n not in {1, 2, 4, 8})} of {XPU}"
        in refusal.message
    )
    assert "only 1, 2, 4 or 8 can be given" in refusal.message


def test_an_init_container_is_held_to_them_too():
    init = {"name": "i", "resources": {"limits": {XPU: "3"}, "requests": {XPU: "3"}}}
    assert CardWorld().refusal(4, initContainers=[init]).reason is Reason.NEVER_FITS


def test_a_report_of_zones_that_leaves_the_cards_out_changes_nothing():
    world = CardWorld()
    report = nrt([nrt_zone(0, {"cpu": 2, "memory": GI}), nrt_zone(1, {"cpu": 2, "memory": GI})], name="r1-h1")
    world.topologies["r1-h1"] = report
    world.memory.nodes.on_topology(Event(EventKind.ADDED, "r1-h1", None, report))
    assert world.memory.state.machines
    assert world.refusal(3).reason is Reason.NEVER_FITS
    assert world.refusal(4) is None


def test_which_resources_have_these_rules_is_a_setting():
    assert CardWorld().refusal(3, resource=OTHER) is None
    assert CardWorld(rules=(OTHER,)).refusal(3, resource=OTHER).reason is Reason.NEVER_FITS
    assert CardWorld(rules=(OTHER,)).refusal(3) is None
    assert CardWorld(rules=()).refusal(3) is None


def test_pods_without_cards_are_not_concerned():
    assert CardWorld().refusal(0) is None
