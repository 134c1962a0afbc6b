"""What the ungater's metrics say of queues: quota, use, waits, and for how long what is held was held."""

import math

import pytest
from support.queue_factories import GPU, make_cohort, make_queue, make_queues, make_state, make_workload, run, submit

from queueing.model import LocalQueue, Rules, UseRules
from queueing.status import standings
from ungater.metrics import ControllerMetrics
from ungater.queue_metrics import IDLE_SECONDS, MOST

Q = {"flavor": "tas", "resource": GPU}
LOCAL = {"cluster_queue": "q", "queue_namespace": "ns", "local_queue": "q"}
VALUE = {"label": "team", "cluster_queue": "q", "queue_namespace": "ns"}


class Ungater:
    """Queues, and their metrics as a sweep tells them. ``teams``: by workload, the value of label team."""

    def __init__(self, *queues, rules=None, labels=("team", "team")):
        self.metrics, self.state, self.queues = ControllerMetrics(), make_state(), make_queues(*queues, rules=rules)
        self.labels, self.teams = labels, {}

    def admit(self, *workloads, team=None):
        submit(self.queues, *workloads)
        self.teams |= {one.key: team for one in workloads if team is not None}
        return run(self.state, self.queues)

    def look(self, now):
        found = standings(self.queues, self.state.flavors)
        self.metrics.queues.look_at_queues(self.queues, found, self.labels, self.labels_of, now)

    def labels_of(self, key):
        return {"team": self.teams[key], "app": "x"} if key in self.teams else {}

    def value(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"topogate_{name}", labels)

    def series(self, name):
        every = (sample for family in self.metrics.registry.collect() for sample in family.samples)
        return {tuple(one.labels.values()): one.value for one in every if one.name == f"topogate_{name}"}


def test_quota_use_and_what_is_borrowed_are_told_by_cluster_queue_flavor_and_resource():
    ungater = Ungater(
        make_queue("q", 8, cohort="all", borrowing=16), make_queue("r", 16, cohort="all"), rules=Rules(fair=True)
    )
    ungater.admit(make_workload("a"), make_workload("b"), make_workload("c", count=4))
    ungater.look(0.0)
    told = {
        name: ungater.value(f"cluster_queue_{name}", cluster_queue="q", **Q)
        for name in ("nominal_quota", "borrowing_limit", "used", "borrowed")
    }
    assert told == {"nominal_quota": 8, "borrowing_limit": 16, "used": 16, "borrowed": 8}
    assert ungater.value("cluster_queue_borrowing_limit", cluster_queue="r", **Q) is None
    assert ungater.value("cluster_queue_weighted_share", cluster_queue="r") == 0
    assert ungater.value("cluster_queue_weighted_share", cluster_queue="q") == pytest.approx(8 / 24 * 1000, abs=1)
    for state, many in (("pending", 1), ("admitted", 2)):
        assert ungater.value("cluster_queue_workloads", cluster_queue="q", state=state) == many
        assert ungater.value("local_queue_workloads", state=state, **LOCAL) == many
    assert ungater.value("local_queue_used", **LOCAL, **Q) == 16


def tree(**rules):
    """q and r below team, and team below org, which has 4 of its own; other has no cohort."""
    queues = make_queue("q", 4, cohort="team", lending=2), make_queue("r", 4, cohort="team"), make_queue("other", 4)
    ungater = Ungater(*queues, rules=Rules(**rules))
    ungater.queues.set_cohort(make_cohort("org", 4))
    ungater.queues.set_cohort(make_cohort("team", 0, "org"))
    return ungater


def test_quota_and_use_of_cohorts_are_told_over_all_that_is_below_them():
    ungater = tree()
    ungater.admit(make_workload("a", "r", gpu=8), make_workload("b", gpu=2))
    ungater.look(0.0)
    told = {
        (cohort, name): ungater.value(f"cohort_{name}", cohort=cohort, **Q)
        for cohort in ("org", "team")
        for name in ("nominal_quota", "subtree_quota", "used", "borrowed")
    }
    assert told == {
        # q lends 2 of its 4, and uses no more than the 2 that it keeps.
        ("team", "nominal_quota"): 0,
        ("team", "subtree_quota"): 6,
        ("team", "used"): 10,
        ("team", "borrowed"): 2,
        ("org", "nominal_quota"): 4,
        ("org", "subtree_quota"): 10,
        ("org", "used"): 10,
        ("org", "borrowed"): 0,
    }
    assert ungater.series("cohort_weighted_share") == {}


def test_where_in_their_trees_queues_and_cohorts_are():
    ungater = tree()
    ungater.queues.set_cluster_queue(make_queue("flat", 4, cohort="nobody-made"))
    ungater.look(0.0)
    assert ungater.series("cohort_info") == {("org", "", ""): 1, ("team", "org", "org"): 1, ("nobody-made", "", ""): 1}
    assert ungater.series("cluster_queue_info") == {
        ("q", "team", "org"): 1,
        ("r", "team", "org"): 1,
        ("other", "", ""): 1,
        ("flat", "nobody-made", "nobody-made"): 1,
    }


def test_shares_of_cohorts_where_sharing_is_fair():
    ungater = tree(fair=True)
    ungater.admit(make_workload("a", "r", gpu=8))
    ungater.look(0.0)
    assert ungater.series("cohort_weighted_share") == {("team",): 200}, "2 of the 10 that org may use"
    ungater.queues.set_cohort(make_cohort("team", 0, "org", weight=0))
    ungater.look(1.0)
    assert ungater.series("cohort_weighted_share") == {("team",): math.inf}


def test_cohorts_of_a_circle_are_told_until_it_is_mended_or_somebody_else_leads():
    ungater = tree()
    ungater.look(0.0)
    assert ungater.series("cohort_cycle") == {}
    ungater.queues.set_cohort(make_cohort("org", 4, "team"))
    ungater.look(1.0)
    assert ungater.series("cohort_cycle") == {("org",): 1, ("team",): 1}
    ungater.queues.set_cohort(make_cohort("org", 4))
    ungater.look(2.0)
    assert ungater.series("cohort_cycle") == {}
    ungater.metrics.queues.end_leading()
    for name in ("cohort_used", "cohort_info", "cluster_queue_info"):
        assert ungater.series(name) == {}


def test_a_queue_of_weight_0_that_borrows_has_an_infinite_share():
    lender, borrower = make_queue("lender", 16, cohort="all"), make_queue("q", 0, cohort="all", weight=0)
    ungater = Ungater(lender, borrower, rules=Rules(fair=True))
    ungater.admit(make_workload("a"))
    ungater.look(0.0)
    assert ungater.value("cluster_queue_weighted_share", cluster_queue="q") == math.inf


def test_gpu_seconds_are_what_is_held_times_how_long_by_queue_and_by_value_of_a_label():
    ungater = Ungater(make_queue("q", 16))
    ungater.look(100.0)
    assert ungater.value("local_queue_resource_seconds_total", **LOCAL, **Q) == 0, "there before anything is held"
    ungater.admit(make_workload("a"), team="vision")
    ungater.admit(make_workload("b", gpu=4))
    ungater.look(102.0)
    ungater.look(105.0)
    assert ungater.value("local_queue_resource_seconds_total", **LOCAL, **Q) == (8 + 4) * 5
    assert ungater.value("label_resource_seconds_total", value="vision", **VALUE, **Q) == 8 * 5
    assert ungater.value("label_resource_seconds_total", value="", **VALUE, **Q) == 4 * 5
    ungater.queues.remove_workload(ungater.state, "a")
    ungater.look(115.0)
    assert ungater.value("label_resource_seconds_total", value="vision", **VALUE, **Q) == 8 * 5
    assert ungater.value("local_queue_resource_seconds_total", **LOCAL, **Q) == (8 + 4) * 5 + 4 * 10


def test_without_a_setting_nothing_is_told_by_label():
    ungater = Ungater(make_queue("q", 16), labels=())
    ungater.admit(make_workload("a"), team="vision")
    ungater.look(0.0)
    ungater.look(2.0)
    assert ungater.series("label_resource_seconds_total") == {}


def test_who_waits_holds_nothing():
    ungater = Ungater(make_queue("q", 8))
    ungater.admit(make_workload("a", count=9))
    ungater.look(0.0)
    ungater.look(2.0)
    assert ungater.value("local_queue_resource_seconds_total", **LOCAL, **Q) == 0


def test_what_others_counted_while_they_led_is_not_counted_again():
    ungater = Ungater(make_queue("q", 16))
    ungater.admit(make_workload("a"))
    ungater.look(0.0)
    ungater.look(2.0)
    ungater.metrics.end_leading()
    assert ungater.series("cluster_queue_used") == ungater.series("local_queue_workloads") == {}
    ungater.look(1000.0)
    ungater.look(1001.0)
    assert ungater.value("local_queue_resource_seconds_total", **LOCAL, **Q) == 8 * 3


def test_values_beyond_the_most_of_a_namespace_are_counted_together():
    ungater = Ungater(make_queue("q", 32))
    ungater.admit(make_workload("a"))
    ungater.look(0.0)
    for at in range(1, MOST + 11):
        ungater.teams["a"] = f"v{at}"
        ungater.look(float(at))
    told = ungater.series("label_resource_seconds_total")
    assert len(told) == MOST + 2  # and what had no label at first, and all others
    assert sum(told.values()) == 8 * (MOST + 10)
    assert ungater.value("label_resource_seconds_total", value="other", **VALUE, **Q) == 8 * 10


def test_a_value_that_held_nothing_for_a_day_makes_room():
    ungater = Ungater(make_queue("q", 32))
    ungater.admit(make_workload("a"))
    for at in range(MOST):
        ungater.teams["a"] = f"v{at}"
        ungater.look(float(at))
    ungater.teams["a"] = "late"
    ungater.look(MOST + IDLE_SECONDS)
    ungater.look(MOST + IDLE_SECONDS + 1)
    assert ungater.value("label_resource_seconds_total", value="late", **VALUE, **Q) == 8
    assert ungater.value("label_resource_seconds_total", value="v0", **VALUE, **Q) is None


def test_local_queues_beyond_the_most_of_a_namespace_are_told_together():
    ungater = Ungater(make_queue("q", 32))
    for rank in range(MOST + 5):
        ungater.queues.set_local_queue(LocalQueue(namespace="ns", name=f"l{rank}", cluster_queue="q"))
        ungater.queues.set_local_queue(LocalQueue(namespace="ns", name=f"m{rank}", cluster_queue=f"none{rank}"))
    ungater.look(0.0)
    assert len(ungater.series("local_queue_used")) == MOST + 1
    assert ("q", "ns", "other", "tas", GPU) in ungater.series("local_queue_used")


def test_the_wait_is_told_by_cluster_queue_until_that_is_no_more():
    ungater = Ungater(make_queue("q", 16))
    submit(ungater.queues, make_workload("a"), now=100.0)
    (admitted,) = run(ungater.state, ungater.queues, now=160.0).admitted
    ungater.metrics.queues.admitted(ungater.queues, admitted.key, admitted.grant, 160.5)
    assert ungater.value("cluster_queue_wait_seconds_sum", cluster_queue="q") == 60.5
    ungater.queues.remove_cluster_queue("q")
    ungater.look(0.0)
    assert ungater.value("cluster_queue_wait_seconds_sum", cluster_queue="q") is None


def test_the_score_of_each_local_queue_that_shares_over_time_is_told_and_of_no_other():
    ungater = Ungater(make_queue("q", by_use=True), make_queue("r"), rules=Rules(use=UseRules(half_life=600.0)))
    ungater.queues.set_local_queue(LocalQueue(namespace="ns", name="none", cluster_queue="q", weight=0))
    ungater.admit(make_workload("w"), make_workload("x", "r"))
    ungater.look(0.0)
    assert ungater.series("local_queue_fair_use") == {
        ("q", "ns", "q"): pytest.approx(8 * (1 - 0.5**0.5), abs=1e-6),
        ("q", "ns", "none"): math.inf,
    }
    ungater.metrics.queues.end_leading()
    assert ungater.series("local_queue_fair_use") == {}


def test_local_queues_without_a_series_of_their_own_share_the_least_score():
    ungater = Ungater(make_queue("q", by_use=True), rules=Rules(use=UseRules(half_life=600.0)))
    for number in range(MOST + 2):
        ungater.queues.set_local_queue(LocalQueue(namespace="ns", name=f"l{number}", cluster_queue="q"))
    for number in (MOST, MOST + 1):
        ungater.queues.use.restore_use(f"ns/l{number}", {GPU: float(number)}, 0.0)
    ungater.look(0.0)
    found = ungater.series("local_queue_fair_use")
    assert len(found) == MOST + 1
    assert found["q", "ns", "other"] < MOST


def test_shares_over_time_of_queues_and_cohorts_are_told_where_their_parent_goes_by_use():
    ungater = Ungater(
        make_queue("a", 0, cohort="c"),
        make_queue("none", 0, cohort="c", weight=0),
        make_queue("other", 8),
        rules=Rules(use=UseRules(half_life=600.0)),
    )
    ungater.queues.set_cohort(make_cohort("c", 16, "org", by_use=True))
    ungater.queues.set_cohort(make_cohort("org", 0, by_use=True))
    ungater.admit(make_workload("w", "a", gpu=8), make_workload("x", "none", gpu=4))
    ungater.look(0.0)
    # 8 of 16, as it will be 300 s from now.
    assert ungater.series("cluster_queue_fair_use") == {
        ("a",): pytest.approx(500 * (1 - 0.5**0.5)),
        ("none",): math.inf,
    }
    assert ungater.series("cohort_fair_use") == {("c",): 0}, "it uses what is its own"
    ungater.metrics.queues.end_leading()
    assert ungater.series("cluster_queue_fair_use") == ungater.series("cohort_fair_use") == {}
