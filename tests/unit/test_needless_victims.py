"""The witness of the chaos runs knows a victim whose room nobody needed from one that was needed."""

import pytest
from support.stays import tight
from support.story import Story


class Crowd(Story):
    """Jobs of one pod each, on two nodes with two zones of 4 GPUs each."""

    def __init__(self):
        super().__init__()
        self.at = {}

    def comes(self, name, node, gpus, priority=0):
        """It is admitted; its pod is still to come."""
        if name not in self.at:
            self.job(name, 1, gpus, priority)
        self.at[name] = node, gpus
        self.admit(name, {node: 1}, gpus)

    def lands(self, name, zone):
        node, gpus = self.at[name]
        self.born(f"{name}-0", name, gpus)
        self.ungate(f"{name}-0", name, node)
        self.run(f"{name}-0", node, f"node-{zone}", gpus)

    def there(self, name, node, zone, gpus, priority=0):
        self.comes(name, node, gpus, priority)
        self.lands(name, zone)

    def goes(self, *names):
        for name in names:
            self.told(name)
            self.evict(f"{name}-0")
            self.back(name)

    def moves(self, name, node, zone, gpus):
        """It made room for another one and came back, there."""
        self.plans(f"for-{name}", "n1", 1, [name])
        self.goes(name)
        self.change("workloads", f"for-{name}", status={"nomination": None})
        self.there(name, node, zone, gpus)

    def plans(self, name, node, gpus, victims):
        self.job(name, 1, gpus, priority=9)
        self.at[name] = node, gpus
        listed = [{"namespace": "ns", "name": victim, "uid": f"{victim}-wl"} for victim in victims]
        nomination = {**self.admission(name, {node: 1}, gpus), "victims": listed}
        self.change("workloads", name, status={"nomination": nomination})

    def preempts(self, name, node, zone, gpus, victims):
        """All of it, to the end."""
        self.plans(name, node, gpus, victims)
        self.goes(*victims)
        self.admit(name, {node: 1}, gpus)
        self.lands(name, zone)

    def in_vain(self):
        """Victims of ``p`` that nobody needed."""
        assert self.wrong() == []
        return sorted(text.split()[0] for text in self.witness.preemptions.in_vain() if " went for ns/p," in text)


@pytest.fixture
def crowd():
    return Crowd()


def test_a_victim_without_whom_there_is_too_little_room_was_needed(crowd):
    crowd.there("v", "n1", 0, 2)
    crowd.there("a", "n1", 0, 2)
    crowd.there("b", "n1", 1, 3)
    crowd.preempts("p", "n1", 0, 2, ["v"])
    assert crowd.in_vain() == []


def test_a_victim_beside_whom_there_was_room_went_in_vain(crowd):
    crowd.there("v", "n1", 0, 2)
    crowd.there("b", "n1", 1, 4)
    crowd.preempts("p", "n1", 0, 2, ["v"])
    assert crowd.in_vain() == ["ns/v"]


def test_of_two_victims_in_one_zone_that_would_each_have_done_both_are_named(crowd):
    crowd.there("v", "n1", 0, 2)
    crowd.there("w", "n1", 0, 2)
    crowd.there("b", "n1", 1, 4)
    crowd.preempts("p", "n1", 0, 2, ["v", "w"])
    assert crowd.in_vain() == ["ns/v", "ns/w"]


def test_who_came_back_is_where_it_was_promised_to_be_not_where_it_was_first(crowd):
    """There is room for ``back``, which is on its way, or for ``p``: v was needed, which came back itself."""
    crowd.there("a", "n1", 0, 2)
    crowd.there("b", "n1", 1, 4)
    crowd.there("v", "n2", 0, 1)
    crowd.there("back", "n2", 1, 1)
    crowd.moves("v", "n1", 0, 1)
    crowd.plans("for-back", "n2", 1, ["back"])
    crowd.goes("back")
    crowd.change("workloads", "for-back", status={"nomination": None})
    crowd.comes("back", "n1", 1)
    crowd.plans("p", "n1", 1, ["v"])
    crowd.goes("v")
    crowd.admit("p", {"n1": 1}, 1)
    crowd.lands("back", 0)
    crowd.lands("p", 0)
    assert crowd.in_vain() == []


def test_what_who_came_back_had_before_is_free(crowd):
    crowd.there("b", "n1", 1, 4)
    crowd.there("v", "n1", 0, 2)
    crowd.there("back", "n1", 0, 2)
    crowd.moves("back", "n2", 0, 2)
    crowd.preempts("p", "n1", 0, 2, ["v"])
    assert crowd.in_vain() == ["ns/v"]


@pytest.mark.parametrize(("victims", "vain"), [(["v"], []), (["v", "w"], ["ns/v", "ns/w"])])
def test_room_of_a_victim_of_another_is_not_needed_twice(crowd, victims, vain):
    """``q`` waits for the room of ``u``, in the other zone; while u is there the node holds more than it has."""
    crowd.there("u", "n1", 0, 3)
    crowd.there("a", "n1", 0, 1)
    crowd.there("v", "n1", 1, 2)
    crowd.there("w", "n1", 1, 2)
    crowd.plans("q", "n1", 2, ["u"])
    crowd.preempts("p", "n1", 1, 2, victims)
    crowd.goes("u")
    crowd.admit("q", {"n1": 1}, 2)
    crowd.lands("q", 0)
    assert crowd.in_vain() == vain


def test_who_needs_a_whole_zone_needs_it_wherever_a_kubelet_puts_those_before_it(crowd):
    """With v there, u's room in the other zone would do for ``q``; once both are gone q may be put beside v."""
    crowd.there("u", "n1", 0, 4)
    crowd.there("v", "n1", 1, 1)
    crowd.plans("q", "n1", 2, ["u"])
    crowd.preempts("p", "n1", 1, 4, ["v"])
    crowd.goes("u")
    crowd.admit("q", {"n1": 1}, 2)
    crowd.lands("q", 0)
    assert crowd.in_vain() == []


def test_quota_that_is_promised_to_others_is_no_reason_to_spare_a_victim(crowd):
    """There is room on n2, and quota for two of the three."""
    crowd.witness.preemptions.quota = 8
    crowd.there("v", "n1", 0, 4)
    crowd.there("u", "n1", 1, 4)
    crowd.plans("q", "n2", 4, ["u"])
    crowd.preempts("p", "n2", 0, 4, ["v"])
    assert crowd.in_vain() == []


@pytest.mark.parametrize(
    ("free", "items", "found"),
    [
        ((4.0,), (4.0,), False),
        ((2.0, 2.0), (4.0,), True),
        ((2.0, 4.0), (2.0, 4.0), True),
        ((3.0, 3.0), (2.0, 2.0), False),
        ((3.0, 3.0), (2.0, 1.0, 2.0, 1.0), True),
        ((), (), False),
    ],
)
def test_room_is_tight_where_some_order_leaves_one_without_a_zone(free, items, found):
    assert tight(free, items) is found
