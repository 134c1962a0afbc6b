"""For how long nodes are left out after a refusal, and what ends it."""

import pytest

from engine.kubelet.machine import Container, PodShape, Qos
from ungater.numa.node_backoff import FORGET, LONG, LONG_AT_MOST, SHORT, SHORT_AT_MOST, Refusals, listed


def shape(cpu=4000):
    return PodShape(containers=(Container(name="c", requests=(("cpu", cpu),)),), qos=Qos.GUARANTEED)


def names(refusals, now, of=None):
    return [each.node for each in refusals.nodes_to_avoid(of or shape(), now)]


def test_a_node_is_left_out_for_pods_of_that_shape_until_its_time():
    refusals = Refusals()
    assert not refusals
    assert refusals.record_refusal(shape(), "n1", "TopologyAffinityError", 100.0) == LONG
    assert names(refusals, 100.0) == ["n1"]
    assert names(refusals, 100.0 + LONG - 0.1) == ["n1"]
    assert names(refusals, 100.0 + LONG) == []
    assert names(refusals, 100.0, shape(8000)) == []
    assert refusals.nodes_to_avoid(None, 100.0) == ()


def test_each_refusal_in_a_row_doubles_the_time_up_to_a_limit():
    refusals, now, waits = Refusals(), 0.0, []
    for _ in range(9):
        waits.append(refusals.record_refusal(shape(), "n1", "SMTAlignmentError", now))
        now += waits[-1]
    assert waits[:3] == [LONG, 2 * LONG, 4 * LONG]
    assert waits[-1] == LONG_AT_MOST
    assert refusals.record_refusal(shape(), "n1", "SMTAlignmentError", now + FORGET) == LONG


def test_a_change_inside_brings_the_next_try_forward_but_never_to_at_once():
    refusals, now, waits = Refusals(), 0.0, []
    for _ in range(9):
        refusals.record_refusal(shape(), "n1", "TopologyAffinityError", now)
        assert refusals.hasten_retry("n1")
        assert not refusals.hasten_retry("n1"), "once for each refusal"
        (avoided,) = refusals.nodes_to_avoid(shape(), now)
        waits.append(avoided.until - now)
        now = avoided.until
    assert waits[:3] == [SHORT, 2 * SHORT, 4 * SHORT]
    assert waits[-1] == SHORT_AT_MOST
    assert not refusals.hasten_retry("n2")


def test_what_ended_is_told_once_and_what_is_old_is_forgotten():
    refusals = Refusals()
    refusals.record_refusal(shape(), "n1", "TopologyAffinityError", 0.0)
    assert not refusals.expired_between(0.0, LONG - 1)
    assert refusals.expired_between(LONG - 1, LONG + 1)
    assert not refusals.expired_between(LONG + 1, LONG + 3)
    refusals.expired_between(LONG + 3, FORGET)
    assert not refusals


def test_a_node_that_is_gone_is_forgotten():
    refusals = Refusals()
    for cpu in (1000, 2000):
        refusals.record_refusal(shape(cpu), "n1", "TopologyAffinityError", 0.0)
    refusals.record_refusal(shape(), "n2", "TopologyAffinityError", 0.0)
    refusals.forget_node("n1")
    refusals.forget_node("n1")
    assert names(refusals, 1.0, shape(1000)) == []
    assert names(refusals, 1.0) == ["n2"]


@pytest.mark.parametrize(("count", "more"), [(1, ""), (5, " and 2 more")])
def test_messages_name_the_first_to_come_back(count, more):
    refusals = Refusals()
    for number in range(count):
        refusals.record_refusal(shape(), f"n{number}", "TopologyAffinityError", float(number))
    text = listed(refusals.nodes_to_avoid(shape(), 5.0), 5.0)
    assert text.startswith("n0 (TopologyAffinityError, again in 10 s)")
    assert text.endswith(more or "s)")
    assert listed((), 5.0) == ""
