"""Nodes on which pod after pod does not run: left out for everybody, for a while, and never too many of them."""

import pytest

from ungater.let_go.node_refusals import SEVERAL, WINDOW, NodeRefusals
from ungater.numa.node_backoff import LONG


class Heard:
    """Refusals of a cluster of so many nodes, with a clock of their own, and what was told."""

    def __init__(self, nodes=40):
        self.now = 100.0
        self.nodes = nodes
        self.told = []
        self.refusals = NodeRefusals(lambda: self.nodes, lambda *news: self.told.append(news), lambda: self.now)

    def refuse(self, node="n1", workloads=SEVERAL):
        for number in range(workloads):
            self.refusals.note_unready(node, f"ns-{number}/job", "FailedMount: no path")


@pytest.fixture
def heard():
    return Heard()


def test_pods_of_several_workloads_close_a_node_and_it_is_named_with_the_last_ones_words(heard):
    heard.refuse(workloads=SEVERAL - 1)
    heard.refuse(workloads=1)
    assert heard.refusals.avoided_names() == frozenset(), "one workload counts once, however many pods it has"
    heard.refuse()
    assert heard.refusals.avoided_names() == {"n1"}
    assert heard.told == [("n1", "FailedMount: no path", LONG)]
    assert heard.refusals.describe_refusals() == "n1 (FailedMount: no path, again in 15 s)"


def test_the_next_refusal_doubles_the_time_and_it_ends(heard):
    heard.refuse()
    heard.now += LONG
    assert heard.refusals.avoided_names() == frozenset()
    assert heard.refusals.has_expired()
    assert not heard.refusals.has_expired()
    heard.refuse(workloads=1)
    heard.now += 2 * LONG - 1
    assert heard.refusals.avoided_names() == {"n1"}


def test_a_pod_that_starts_there_ends_it(heard):
    heard.refuse()
    heard.refusals.started("n1")
    assert heard.refusals.avoided_names() == frozenset()
    heard.refuse(workloads=1)
    assert heard.refusals.avoided_names() == frozenset(), "what went before is over"


def test_refusals_that_lie_far_apart_are_no_row(heard):
    for number in range(SEVERAL):
        heard.refusals.note_unready("n1", f"ns-{number}/job", "x")
        heard.now += WINDOW / 2
    assert heard.refusals.avoided_names() == frozenset()


def test_no_more_than_a_share_of_the_nodes_is_left_out_at_a_time(heard):
    """Whoever makes pods that nobody could start is not to close a cluster with them."""
    for node in ("n1", "n2", "n3", "n4"):
        heard.refuse(node)
    assert heard.refusals.avoided_names() == {"n1", "n2"}
    small = Heard(nodes=3)
    small.refuse("n1")
    small.refuse("n2")
    assert small.refusals.avoided_names() == {"n1"}


def test_a_node_that_is_gone_is_forgotten(heard):
    heard.refuse()
    heard.refusals.forget_node("n1")
    assert heard.refusals.avoided_names() == frozenset()


def test_nothing_is_kept_of_a_node_that_refused_nobody_for_long(heard):
    """Nor of one that is not there: whoever writes pods may name any."""
    heard.refuse("made-up", workloads=1)
    heard.now += WINDOW
    heard.refusals.has_expired()
    assert heard.refusals._seen == {}


def test_of_one_node_no_more_workloads_are_kept_than_count(heard):
    heard.refuse(workloads=500)
    assert len(heard.refusals._seen["n1"]) == SEVERAL


def test_pods_of_one_namespace_that_do_not_get_ready_close_no_node(heard):
    """They may name a ConfigMap that is not there."""
    for number in range(10):
        heard.refusals.note_unready("n1", f"mallory/{number}", 'configmap "x" not found')
    assert heard.refusals.avoided_names() == frozenset()
    assert len(heard.refusals._seen["n1"]) == SEVERAL
    heard.refusals.note_unready("n1", "alice/train", "FailedMount: no path")
    assert heard.refusals.avoided_names() == {"n1"}


def test_kubelets_refusals_close_a_node_whoevers_pods_they_are(heard):
    for number in range(SEVERAL):
        heard.refusals.note_refused("n1", f"ns/{number}", "UnexpectedAdmissionError")
    assert heard.refusals.avoided_names() == {"n1"}


def test_the_only_node_is_never_left_out():
    alone = Heard(nodes=1)
    alone.refuse()
    assert alone.refusals.avoided_names() == frozenset()
