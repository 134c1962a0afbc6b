"""Which queues and namespaces move together, and what is said of a step."""

import time

import pytest

from cli.migrate.moves.steps import LinkedQueue, MoveStep, QueueLinks, choose_step, find_notes, group_queues, root_of
from cli.output import Failure


def spec(*flavors, cohort="", quota=4):
    amounts = [{"name": one, "resources": [{"name": "cpu", "nominalQuota": quota}]} for one in flavors or ("f",)]
    groups = [{"coveredResources": ["cpu"], "flavors": amounts}]
    return {"resourceGroups": groups} | ({"cohortName": cohort} if cohort else {})


def view(links, *, specs=None, parents=None, topologies=(), moved=()):
    """``links``: (namespace, queue); each queue is there, in no cohort, unless ``specs`` says more."""
    queues = {queue: spec() for _, queue in links} | (specs or {})
    locals_ = [LinkedQueue(namespace, f"of-{queue}", queue) for namespace, queue in links]
    return QueueLinks(queues, locals_, parents or {}, frozenset(topologies), frozenset(moved))


def test_queues_that_share_a_namespace_move_together():
    seen = view([("x", "a"), ("x", "b"), ("y", "b"), ("z", "c")])
    assert group_queues(seen) == [MoveStep(("a", "b"), ("x", "y")), MoveStep(("c",), ("z",))]
    assert choose_step(seen, ["a"]) == MoveStep(("a", "b"), ("x", "y"))
    assert choose_step(seen, ["c"]) == MoveStep(("c",), ("z",))
    assert choose_step(seen, []) == MoveStep(("a", "b", "c"), ("x", "y", "z"))


def test_a_queue_without_a_namespace_moves_alone_and_a_link_to_nowhere_joins_nobody():
    seen = view([("x", "a")], specs={"lone": spec()})
    gone = [*seen.local_queues, LinkedQueue("x", "l", "gone"), LinkedQueue("w", "l", "gone")]
    seen = QueueLinks(seen.specs, gone, {}, frozenset())
    assert group_queues(seen) == [MoveStep(("a",), ("x",)), MoveStep(("lone",), ())]


def test_a_namespace_of_the_name_of_a_queue_is_not_that_queue():
    assert group_queues(view([("b", "a"), ("x", "b")])) == [MoveStep(("a",), ("b",)), MoveStep(("b",), ("x",))]


def test_a_queue_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(Failure, match="Kueue has no ClusterQueue c: it has a, b"):
        choose_step(view([("x", "a"), ("y", "b")]), ["a", "c"])


def test_ten_thousand_queues_in_a_chain_are_grouped_in_a_moment():
    links = [(f"n{at // 2}", f"q{(at + 1) // 2}") for at in range(20_000)]
    start = time.process_time()
    (one,) = group_queues(view(links))
    assert len(one.queues) == 10_001
    assert time.process_time() - start < 2


def told(seen, wanted, used=None):
    return [(one.text, one.flag) for one in find_notes(seen, choose_step(seen, wanted), used or {})]


def test_a_flavor_with_a_topology_is_not_divided_without_the_flag():
    links = [("x", "a"), ("y", "b")]
    ((text, flag),) = told(view(links, topologies={"f"}), ["a"])
    assert flag == "--shared-nodes"
    assert text.startswith("flavor f has a topology, and ClusterQueue b of it stays in Kueue")
    assert told(view(links, topologies={"f"}, moved={"b"}), ["a"]) == []
    assert told(view(links, topologies={"f"}), []) == []
    assert told(view(links), ["a"]) == []


def test_a_divided_tree_is_told_with_what_borrowed():
    parents = {"left": "root", "right": "root"}
    specs = {"a": spec(cohort="left"), "b": spec(cohort="right"), "c": spec(cohort="other")}
    seen = view([("x", "a"), ("y", "b"), ("z", "c")], specs=specs, parents=parents)
    used = {"a": {("f", "cpu"): 5500}, "c": {("f", "cpu"): 9000}}
    texts = [text for text, _ in told(seen, ["a"], used)]
    assert texts[0].startswith("cohort root is divided: until ClusterQueue b has moved too")
    (borrowed,) = texts[1:]
    assert borrowed == (
        "ClusterQueue a holds 1500m cpu of flavor f more than its own quota; nothing that needs more is admitted until "
        "it holds less"
    )
    assert told(seen, ["c"], used) == [], "all of its tree moves, so it goes on borrowing"
    assert told(seen, ["a", "b"], used) == []


def test_the_root_of_a_circle_is_the_same_from_everywhere():
    parents = {"a": "b", "b": "c", "c": "b", "d": "c"}
    assert {root_of(name, parents) for name in "abcd"} == {"b"}
    assert root_of("lone", parents) == "lone"
