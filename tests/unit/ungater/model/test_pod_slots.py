"""Which pod holds which slot, and which slot a gated pod gets."""

import hypothesis.strategies as st
from hypothesis import given
from support.owned import KEYS, make_owner, make_pod, slot_map

from ungater.model.pod_slots import Expectation, PodSetSlots, Slot, assign, surplus, tally

OWNER = make_owner()
TWO = slot_map(("b/r/n1", 2), ("b/r/n2", 2))


def count(slots, pods, expectations=None, now=0.0):
    marks = {"gate": KEYS.gate, "mark": KEYS.workload, "workload": OWNER.workload}
    return tally(slots, pods, expectations or {}, **marks, now=now, dead=lambda _node: False)


def natural(rank):
    return rank


def places(slots, pods, position=natural, expectations=None):
    counted = count(slots, pods, expectations)
    return {
        pod.metadata.name: index for pod, index in assign(counted.waiting, counted.free_slots(slots), slots, position)
    }


def test_ranks_fill_the_slices_in_order_whatever_order_the_pods_come_in():
    pods = [make_pod(f"p{rank}", rank=rank) for rank in (3, 0, 2, 1)]
    assert places(TWO, pods) == {"p0": 0, "p1": 0, "p2": 1, "p3": 1}


def test_pods_without_a_rank_take_free_slots_by_name():
    pods = [make_pod(name) for name in ("c", "a", "b")]
    assert places(TWO, pods) == {"a": 0, "b": 0, "c": 1}


def test_only_a_rank_out_of_range_or_given_twice_loses_its_place():
    pods = [make_pod("p0", rank=0), make_pod("p2", rank=2), make_pod("p2-twin", rank=2), make_pod("p9", rank=9)]
    found = places(TWO, pods)
    assert (found["p0"], found["p2"]) == (0, 1)
    assert sorted(found.values()) == [0, 0, 1, 1]


def test_where_a_rank_has_one_pod_its_twin_waits_and_takes_nobody_elses_slot():
    def sent(pods):
        counted = count(TWO, pods)
        found = assign(counted.waiting, counted.free_slots(TWO), TWO, natural, counted.ranks)
        return {pod.metadata.name: index for pod, index in found}

    first = make_pod("p1", at=("b", "r", "n1"), rank=1)
    assert sent([first, make_pod("twin", rank=1)]) == {}
    assert sent([first, make_pod("twin", rank=1), make_pod("p3", rank=3)]) == {"p3": 1}
    assert sent([make_pod("a", rank=2), make_pod("b", rank=2)]) == {"a": 1}
    leaving = make_pod("p1", at=("b", "r", "n1"), node="n1", rank=1, terminating=True)
    assert sent([leaving, make_pod("next", rank=1)]) == {}, "it is sent to the same place when the first is gone"
    assert sent([make_pod("next", rank=1)]) == {"next": 0}


def test_a_rank_beyond_the_slots_takes_the_slot_that_was_freed():
    running = [make_pod(at=("b", "r", "n1"), node="n1"), make_pod(at=("b", "r", "n2"), node="n2", rank=2)]
    done = make_pod(at=("b", "r", "n1"), node="n1", phase="Succeeded", rank=0)
    assert places(TWO, [*running, done, make_pod("next", rank=4)]) == {"next": 0}


def test_a_used_slot_is_never_given_again():
    pods = [make_pod(at=("b", "r", "n1"), rank=rank) for rank in (0, 1)]
    assert places(TWO, [*pods, make_pod("late", rank=0)]) == {"late": 1}
    full = [*pods, *(make_pod(at=("b", "r", "n2"), rank=rank) for rank in (2, 3))]
    assert places(TWO, [*full, make_pod("late", rank=0)]) == {}


def test_a_pod_that_terminates_holds_its_slot_only_while_it_is_bound():
    bound = make_pod(at=("b", "r", "n1"), node="n1", terminating=True)
    unbound = make_pod(at=("b", "r", "n1"), terminating=True)
    assert count(TWO, [bound]).used == [1, 0]
    assert count(TWO, [unbound]).used == [0, 0]


def test_failed_and_succeeded_pods_hold_nothing():
    pods = [make_pod(at=("b", "r", "n1"), node="n1", phase=phase) for phase in ("Failed", "Succeeded")]
    counted = count(TWO, pods)
    assert counted.used == [0, 0]
    assert counted.succeeded == [1, 0]


def test_a_pod_whose_patch_failed_and_whose_slot_moved_gets_another_slot():
    """Should the patch have been made after all, the next one is refused: a gate that is gone pins the selector."""
    pod = make_pod("p")
    expectations = {pod.metadata.uid: Expectation(("b", "r", "gone"), deadline=10.0)}
    assert count(TWO, [pod], expectations, now=5.0).waiting == []
    assert count(TWO, [pod], expectations, now=10.0).waiting == [pod]


def test_an_intent_holds_its_slot_and_keeps_it_when_it_is_sent_again():
    pod = make_pod("p", rank=3)
    expectations = {pod.metadata.uid: Expectation(("b", "r", "n1"), deadline=10.0)}
    assert count(TWO, [pod], expectations, now=5.0).used == [1, 0]
    assert count(TWO, [pod], expectations, now=5.0).resend == []
    late = count(TWO, [pod], expectations, now=10.0)
    assert [(sent.metadata.name, index) for sent, index in late.resend] == [("p", 0)]
    assert late.waiting == []
    assert late.used == [1, 0]


def test_a_pod_that_the_api_server_does_not_know_holds_nothing():
    pod = make_pod("p")
    expectations = {pod.metadata.uid: Expectation(("b", "r", "n1"), deadline=10.0, gone=True)}
    counted = count(TWO, [pod], expectations)
    assert (counted.used, counted.waiting) == ([0, 0], [])


def test_a_pod_where_there_is_no_slot_has_moved_and_one_we_never_ungated_is_a_stranger():
    moved, stranger = make_pod(at=("b", "r", "n9")), make_pod(at=("b", "r", "n1"), marked=False)
    counted = count(TWO, [moved, stranger])
    assert counted.moved == [moved]
    assert counted.strangers == [stranger]
    assert counted.used == [0, 0]


def test_of_too_many_pods_in_a_slice_the_youngest_has_to_go():
    pods = [make_pod(f"p{i}", at=("b", "r", "n1"), created=f"2026-11-21T00:00:0{i}Z") for i in range(3)]
    assert [pod.metadata.name for pod in count(TWO, pods).moved] == ["p2"]


def test_slots_of_succeeded_pods_are_given_back_first_then_those_at_the_end():
    running = [make_pod(at=("b", "r", "n2"), node="n2"), make_pod(at=("b", "r", "n1"), node="n1")]
    done = make_pod(at=("b", "r", "n1"), node="n1", phase="Succeeded")
    counted = count(TWO, [*running, done])
    assert surplus(TWO, counted, 3) == {0: 1}
    assert surplus(TWO, counted, 2) == {0: 1, 1: 1}
    assert surplus(TWO, counted, 0) == {0: 1, 1: 1}, "slots in use are kept"
    assert [(slot.values[-1], slot.count) for slot in TWO.without_slots({0: 2}).slots] == [("n2", 2)]


POD = st.tuples(
    st.sampled_from(["gated", "n1", "n2", "n3", "intent", "terminating", "succeeded"]),
    st.one_of(st.none(), st.integers(0, 8)),
)


@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    shapes=st.lists(POD, max_size=12),
    shift=st.integers(0, 3),
)
def test_no_slice_ever_gets_more_pods_than_its_count(counts, shapes, shift):
    slots = slot_map(*((f"b/r/n{i + 1}", size) for i, size in enumerate(counts)))
    pods, expectations = [], {}
    for number, (shape, rank) in enumerate(shapes):
        name = f"p{number:02}"
        if shape in {"gated", "intent"}:
            pods.append(make_pod(name, rank=rank))
            if shape == "intent":
                expectations[f"uid-{name}"] = Expectation(("b", "r", "n1"), 100.0)
        else:
            values = ("b", "r", shape if shape.startswith("n") else "n1")
            pods.append(
                make_pod(
                    name,
                    rank=rank,
                    at=values,
                    node=values[-1],
                    terminating=shape == "terminating",
                    phase="Succeeded" if shape == "succeeded" else "Running",
                )
            )
    counted = count(slots, pods, expectations)
    given_out = assign(counted.waiting, counted.free_slots(slots), slots, lambda rank: rank - shift)
    after = list(counted.used)
    for _, index in given_out:
        after[index] += 1
    for slot, before, now in zip(slots.slots, counted.used, after, strict=True):
        assert now <= max(slot.count, before)
    waiting = len(counted.waiting)
    assert len(given_out) == min(waiting, sum(counted.free_slots(slots))), (
        "a free slot is never refused to a pod that waits"
    )
    assert len({pod.metadata.uid for pod, _ in given_out}) == len(given_out)


def test_a_selector_of_the_host_alone_names_the_slot_of_that_host():
    """As Kueue 0.19.2 writes it: its assignments leave out the levels above the host."""
    host = "kubernetes.io/hostname"
    slots = PodSetSlots(("rack", host), (Slot(("r1", "n1"), 1), Slot(("r2", "n2"), 2)))
    assert slots.of_selector({host: "n2"}) == 1
    assert slots.of_selector({host: "n2", "pool": "gpu"}) == 1
    assert slots.of_selector({host: "n2", "rack": "r2"}) == 1
    assert slots.of_selector({host: "n2", "rack": "r1"}) is None, "it says another rack"
    assert slots.of_selector({host: "n3"}) is None
    assert slots.of_selector({"rack": "r2"}) is None
    twice = PodSetSlots(("rack", host), (Slot(("r1", "n1"), 1), Slot(("r2", "n1"), 2)))
    assert twice.of_selector({host: "n1"}) is None, "two slots have that name"
    wider = PodSetSlots(("block", "rack"), (Slot(("b", "n1"), 1),))
    assert wider.of_selector({host: "n1"}) is None, "a rack is no host"
