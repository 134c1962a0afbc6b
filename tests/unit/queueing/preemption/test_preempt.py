"""Victims: who may be taken, that a plan holds, that nobody is taken in vain, and what it costs at least."""

import random
from itertools import combinations

import msgspec
import pytest
from support.queue_factories import (
    GPU,
    HOST,
    RACK,
    keys,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from engine.cluster.assignment import Assignment, Slice
from engine.model import Pod
from engine.reasons import Reason
from engine.results import Refusal
from queueing.cycle.cycle import cycle
from queueing.cycle.elastic import resize
from queueing.model import Preemption, Reclaim, Rules, Within
from queueing.preemption.search import plan
from queueing.queues.entry import Phase
from queueing.queues.flavor_assigner import put

LOWER = Preemption(within=Within.LOWER)
RECLAIM = Preemption(reclaim=Reclaim.ANY)


def victims(decisions):
    return {one.key: {victim.key: victim.reason for victim in one.victims} for one in decisions.preempting}


def test_lower_priority_in_the_same_queue_the_least_and_newest_first():
    state, queues = make_state(2, 2), make_queues(make_queue("q", 32, preemption=LOWER))
    submit(queues, *(make_workload(f"w{i}", created=float(i), priority=i % 2) for i in range(4)))
    run(state, queues)
    submit(queues, make_workload("high", priority=5, created=9.0))
    found = run(state, queues)
    assert victims(found) == {"high": {"w2": Reason.IN_CLUSTER_QUEUE}}
    assert "w2" in found.preempting[0].message
    assert "high" in found.preempting[0].message_to(found.preempting[0].victims[0])


def test_who_waited_for_a_preemptor_looks_at_it_once_it_is_admitted():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8, preemption=LOWER))
    submit(queues, make_workload("low"))
    run(state, queues)
    submit(queues, make_workload("high", priority=5, created=1.0))
    assert victims(run(state, queues)) == {"high": {"low": Reason.IN_CLUSTER_QUEUE}}
    submit(queues, make_workload("top", priority=9, created=2.0))
    assert not run(state, queues).preempting
    queues.remove_workload(state, "low")
    found = run(state, queues)
    assert (keys(found), victims(found)) == (["high"], {"top": {"high": Reason.IN_CLUSTER_QUEUE}})


def test_room_that_was_made_is_taken_once_the_quota_of_all_who_leave_suffices():
    """It was planned with the quota of one more who was on its way out, for another, and may stay longer."""
    state, queues = make_state(2, 4), make_queues(make_queue("q", 40, preemption=LOWER))
    submit(queues, make_workload("slow", count=3), make_workload("quick", count=2, priority=1, created=1.0))
    run(state, queues)
    submit(queues, make_workload("small", count=1, priority=5, created=2.0))
    assert victims(run(state, queues)) == {"small": {"slow": Reason.IN_CLUSTER_QUEUE}}
    queues.holders.mark_leaving("slow")
    submit(queues, make_workload("large", count=3, priority=5, created=3.0))
    assert victims(run(state, queues)) == {"large": {"quick": Reason.IN_CLUSTER_QUEUE}}
    queues.remove_workload(state, "quick")
    found = run(state, queues)
    assert (keys(found), found.given_up) == ([], [])
    assert queues.entries["large"].phase is Phase.NOMINATED
    queues.remove_workload(state, "slow")
    assert keys(run(state, queues)) == ["small", "large"]


def test_nobody_is_a_victim_while_its_admission_is_being_stored():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8, preemption=LOWER))
    submit(queues, make_workload("low"))
    assert keys(run(state, queues)) == ["low"]
    queues.stores("low")
    submit(queues, make_workload("high", priority=5, created=9.0))
    assert not run(state, queues).preempting
    assert not run(state, queues).more
    assert queues.stored("low")
    assert victims(run(state, queues)) == {"high": {"low": Reason.IN_CLUSTER_QUEUE}}
    assert not queues.stored("low"), "nobody waits for that any more"


@pytest.mark.parametrize(
    ("within", "priority", "created", "planned"),
    [
        (Within.NEVER, 9, 0.0, False),
        (Within.LOWER, 1, 0.0, True),
        (Within.LOWER, 0, 0.0, False),
        (Within.LOWER_OR_NEWER, 0, 0.0, True),
        (Within.LOWER_OR_NEWER, 0, 9.0, False),
    ],
)
def test_policies_within_the_queue(within, priority, created, planned):
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8, preemption=Preemption(within=within)))
    submit(queues, make_workload("w", created=5.0))
    run(state, queues)
    submit(queues, make_workload("late", priority=priority, created=created))
    assert bool(run(state, queues).preempting) is planned


@pytest.mark.parametrize(
    ("reclaim", "priority", "planned"),
    [(Reclaim.NEVER, 9, False), (Reclaim.LOWER, 0, False), (Reclaim.LOWER, 1, True), (Reclaim.ANY, -5, True)],
)
def test_reclaiming_nominal_quota_from_a_queue_that_borrows(reclaim, priority, planned):
    state = make_state(1, 2)
    preemption = Preemption(reclaim=reclaim)
    queues = make_queues(
        make_queue("a", 8, cohort="c", preemption=preemption), make_queue("b", 8, cohort="c", preemption=preemption)
    )
    submit(queues, make_workload("b0", "b"), make_workload("b1", "b", created=1.0))
    assert keys(run(state, queues)) == ["b0", "b1"]
    submit(queues, make_workload("mine", "a", priority=priority, created=2.0))
    assert victims(run(state, queues)) == ({"mine": {"b1": Reason.RECLAIMED}} if planned else {})


def test_a_queue_within_its_nominal_quota_loses_nothing():
    state = make_state(1, 2)
    queues = make_queues(make_queue("a", 8, cohort="c", preemption=RECLAIM), make_queue("b", 8, cohort="c"))
    submit(queues, make_workload("b0", "b"), make_workload("a0", "a"))
    run(state, queues)
    submit(queues, make_workload("more", "a", priority=9))
    assert victims(run(state, queues)) == {}


def test_a_queue_is_taken_from_only_as_long_as_it_borrows():
    state = make_state(1, 3)
    queues = make_queues(make_queue("a", 16, cohort="c", preemption=RECLAIM), make_queue("b", 8, cohort="c"))
    submit(queues, *(make_workload(f"b{i}", "b", created=float(i)) for i in range(3)))
    run(state, queues)
    submit(queues, make_workload("large", "a", count=2, created=9.0))
    assert victims(run(state, queues)) == {"large": {"b1": Reason.RECLAIMED, "b2": Reason.RECLAIMED}}


def test_who_waits_takes_back_what_somebody_borrows_by_growing():
    state = make_state(2, 2)
    queues = make_queues(make_queue("a", 16, cohort="c", preemption=RECLAIM), make_queue("b", 16, cohort="c"))
    submit(queues, make_workload("v", "b", count=2, level=RACK), make_workload("w", "b", level=RACK, created=1.0))
    run(state, queues)
    resize(state, queues, "v", {"main": 1})
    submit(queues, make_workload("large", "a", count=2, level=RACK, created=2.0))
    assert victims(run(state, queues)) == {}  # a host of each rack is free, and nobody borrows
    resize(state, queues, "w", {"main": 2})
    assert victims(run(state, queues)) == {"large": {"v": Reason.RECLAIMED}}


def test_preempting_while_borrowing_up_to_a_threshold():
    for threshold, planned in ((None, True), (0, True), (-1, False)):
        state = make_state(1, 2)
        preemption = Preemption(reclaim=Reclaim.ANY, borrowing=True, threshold=threshold)
        queues = make_queues(
            make_queue("a", 0, cohort="c", preemption=preemption),
            make_queue("b", 8, cohort="c"),
            make_queue("lender", 8, cohort="c"),
        )
        submit(queues, make_workload("b0", "b"), make_workload("b1", "b", created=1.0))
        run(state, queues)
        submit(queues, make_workload("mine", "a", priority=1, created=2.0))
        found = victims(run(state, queues))
        assert found == ({"mine": {"b1": Reason.RECLAIMED_WHILE_BORROWING}} if planned else {})


def test_a_gang_takes_the_rack_with_the_fewest_victims_and_leaves_the_rest_alone():
    state, queues = make_state(3, 2), make_queues(make_queue("q", 48, preemption=LOWER))
    small = [make_workload(f"s{i}", gpu=4, created=float(i)) for i in range(4)]
    submit(queues, *small)  # they fill the first rack
    submit(queues, make_workload("pair", count=2, created=5.0), make_workload("one", created=6.0))
    assert len(keys(run(state, queues))) == 6
    submit(queues, make_workload("gang", count=2, priority=1, created=9.0))
    assert victims(run(state, queues)) == {"gang": {"one": Reason.IN_CLUSTER_QUEUE}}
    submit(queues, make_workload("next", count=2, priority=1, created=10.0))
    assert victims(run(state, queues)) == {"next": {"pair": Reason.IN_CLUSTER_QUEUE}}


def test_the_room_is_kept_until_the_victims_are_gone_and_then_used():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8, preemption=LOWER))
    submit(queues, make_workload("low"))
    (low,) = run(state, queues).admitted
    name = low.grant.assignments[0].slices[0].nodes[0][0]
    state.set_pod(Pod(key="ns/low-0", node=name, requests={GPU: 8}, claim=("low", "main")))
    queues.bind("ns/low-0", "low")
    submit(queues, make_workload("high", priority=1, created=1.0), make_workload("other", created=2.0))
    found = run(state, queues)
    assert victims(found) == {"high": {"low": Reason.IN_CLUSTER_QUEUE}}
    assert queues.entries["high"].phase is Phase.NOMINATED
    assert keys(run(state, queues, now=2.0)) == []
    state.remove_pod("ns/low-0")
    queues.release_and_requeue(state, "low", 3.0)
    found = run(state, queues, now=3.0)
    assert keys(found) == ["high"]
    assert found.admitted[0].preempted
    assert queues.entries["low"].phase is Phase.WAITING


def test_a_preemptor_that_gives_up_leaves_its_victims_alone():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8, preemption=LOWER))
    submit(queues, make_workload("low"))
    run(state, queues)
    submit(queues, make_workload("high", priority=1, created=1.0))
    run(state, queues)
    assert list(queues.holders.evicting) == ["low"]
    queues.remove_workload(state, "high")
    assert not queues.holders.evicting
    assert not queues.quotas.held["low"].leaving
    submit(queues, make_workload("again", priority=1, created=2.0))
    assert victims(run(state, queues)) == {"again": {"low": Reason.IN_CLUSTER_QUEUE}}


def test_a_nomination_whose_node_is_lost_is_given_up():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8, preemption=LOWER))
    submit(queues, make_workload("low"))
    run(state, queues)
    submit(queues, make_workload("high", priority=1, created=1.0))
    run(state, queues)
    state.remove_node("tas-0")
    queues.pending.room_freed(["tas"])
    queues.remove_workload(state, "low")
    found = run(state, queues)
    assert [one.key for one in found.given_up] == ["high"]
    assert queues.entries["high"].phase is Phase.WAITING


def stored(grant, node):
    """The same of one pod on this node of the first rack, as it is read back: without its nodes."""
    (part,) = grant.assignments
    there = Assignment(
        pod_set=part.pod_set,
        flavor=part.flavor,
        levels=part.levels,
        requests=part.requests,
        slices=[Slice((*part.slices[0].values[:-1], node), 1)],
    )
    return msgspec.structs.replace(grant, assignments=(there,))


@pytest.mark.parametrize("quota", [8, 16])
def test_a_nomination_whose_quota_others_use_by_now_is_given_up(quota):
    """As after a restart, where a victim is not known for the one that it was."""
    before, made = make_state(2, 1), make_queues(make_queue("q", 8, preemption=LOWER))
    submit(made, low := make_workload("low"))
    (admitted,) = run(before, made).admitted
    state, queues = make_state(2, 2), make_queues(make_queue("q", quota, preemption=LOWER))
    queues.restore_workload(state, low, admitted.grant, 0.0)
    grant = stored(admitted.grant, "tas-1")
    queues.restore_workload(state, make_workload("high", priority=1, created=1.0), grant, 0.0, waits=True)
    found = cycle(state, queues, 0.0)
    assert [one.key for one in found.given_up] == (["high"] if quota < 16 else [])
    assert keys(found) == (["high"] if quota == 16 else [])
    assert victims(found) == ({"high": {"low": Reason.IN_CLUSTER_QUEUE}} if quota < 16 else {}), "it is planned anew"


def test_nobody_waits_for_the_quota_of_one_that_a_budget_keeps_from_going():
    """History 14962: a budget kept one for ever, and who was nominated for its quota held room as long."""
    state, queues = make_state(2, 2), make_queues(make_queue("q", 16, preemption=LOWER))
    submit(queues, make_workload("refused", priority=5), make_workload("low", created=1.0))
    run(state, queues)
    queues.holders.mark_leaving("refused")
    submit(queues, make_workload("high", priority=5, count=2, created=2.0))
    assert victims(run(state, queues)) == {"high": {"low": Reason.IN_CLUSTER_QUEUE}}
    queues.release_workload(state, "low")
    assert not run(state, queues).given_up, "what was planned on is on its way"
    queues.holders.set_kept("refused", kept=True)
    found = run(state, queues)
    assert [one.key for one in found.given_up] == ["high"]
    assert not queues.holders.nominated, "nor is it planned on again"
    queues.holders.set_kept("refused", kept=False)
    queues.release_workload(state, "refused")
    queues.pending.room_freed(["tas"])
    assert keys(run(state, queues)) == ["high"]


@pytest.mark.parametrize("node", ["tas-0", "tas-1", "nosuch"])
def test_a_stored_nomination_whose_node_is_taken_or_lost_is_given_up(node):
    before, made = make_state(2, 1), make_queues(make_queue("q", 8, preemption=LOWER))
    submit(made, low := make_workload("low"))
    (admitted,) = run(before, made).admitted
    state, queues = make_state(1, 2), make_queues(make_queue("q", 16, preemption=LOWER))
    queues.restore_workload(state, low, stored(admitted.grant, "tas-0"), 0.0)
    grant = stored(admitted.grant, node)
    queues.restore_workload(state, make_workload("high", priority=1, created=1.0), grant, 0.0, waits=True)
    found = cycle(state, queues, 0.0)
    assert [one.key for one in found.given_up] == ([] if node == "tas-1" else ["high"])
    assert keys(found) == ["high"], "it gets other room where its own is not there"
    assert [names for piece in state.assignments("high")["main"].slices for names, _ in piece.nodes] == ["tas-1"]


def test_room_that_others_wait_for_on_the_same_node_is_not_missing():
    """What they wait for, their victims hold as well: the node only looks too full."""
    before, made = make_state(1, 1), make_queues(make_queue("q", 8, preemption=LOWER))
    low = [make_workload(f"low{i}", gpu=4, created=float(i)) for i in range(2)]
    submit(made, *low)
    grants = {one.key: one.grant for one in run(before, made).admitted}
    high = [make_workload(f"high{i}", gpu=4, priority=1, created=2.0 + i) for i in range(2)]
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8, preemption=LOWER))
    for workload in low:
        queues.restore_workload(state, workload, grants[workload.key], 0.0)
    for workload, victim in zip(high, low, strict=True):
        queues.restore_workload(state, workload, grants[victim.key], 0.0, nominated=[victim.key], waits=True)
    queues.remove_workload(state, "low0")
    assert queues.holders.promised() == ["high1"]
    assert min(state.free_on_node("tas-0").values()) < 0
    found = run(state, queues)
    assert (keys(found), found.given_up) == (["high0"], [])


def test_fair_sharing_takes_from_the_larger_share_and_stops_at_equality():
    state = make_state(1, 6)
    fair = [make_queue(n, 8, cohort="c", preemption=RECLAIM) for n in ("a", "b")] + [make_queue("idle", 32, cohort="c")]
    queues = make_queues(*fair, rules=Rules(fair=True))
    submit(queues, *(make_workload(f"b{i}", "b", created=float(i)) for i in range(6)))
    assert len(keys(run(state, queues))) == 6
    submit(queues, *(make_workload(f"a{i}", "a", created=10.0 + i) for i in range(6)))
    reasons = []
    for now in range(2, 9):
        found = run(state, queues, now=float(now))
        for one in found.preempting:
            for victim in one.victims:
                reasons.append(victim.reason)
                queues.release_and_requeue(state, victim.key, float(now))
    counts = [sum(1 for _ in queues.holders.held_in(name)) for name in ("a", "b")]
    assert counts == [3, 3]
    # The first is within the nominal quota of a, and compares nothing.
    assert reasons == [Reason.RECLAIMED, Reason.FAIR_SHARING, Reason.FAIR_SHARING]
    assert not run(state, queues, now=20.0).preempting


def test_fair_sharing_serves_the_smallest_share_first_by_weight():
    state = make_state(1, 6)
    queues = make_queues(
        make_queue("a", 0, cohort="c", weight=2000),
        make_queue("b", 0, cohort="c", weight=1000),
        make_queue("lender", 48, cohort="c"),
        rules=Rules(fair=True),
    )
    for name in "ab":
        submit(queues, *(make_workload(f"{name}{i}", name, created=float(i)) for i in range(9)))
    found = keys(run(state, queues))
    assert sorted(key[0] for key in found) == ["a"] * 4 + ["b"] * 2


# -- against exhaustive search ------------------------------------------------------------------------------------


class Crowd:
    """A small full cluster with queues of one cohort, and one that wants in."""

    def __init__(self, seed):
        self.dice = dice = random.Random(seed)
        self.state = make_state(dice.randint(1, 3), dice.randint(1, 3), gpu=4)
        nodes = len(self.state.nodes)
        policies = [
            Preemption(
                within=dice.choice((Within.LOWER, Within.LOWER_OR_NEWER)),
                reclaim=dice.choice(list(Reclaim)),
                borrowing=dice.random() < 0.3,
            )
            for _ in range(2)
        ]
        self.queues = make_queues(
            *(
                make_queue(name, dice.choice((0, 4, 2 * nodes, 4 * nodes)), cohort="c", preemption=policy)
                for name, policy in zip("ab", policies, strict=True)
            )
        )
        for i in range(12):
            submit(
                self.queues,
                make_workload(
                    f"w{i}",
                    dice.choice("ab"),
                    dice.randint(1, 2),
                    gpu=dice.choice((1, 2, 4)),
                    level=dice.choice((RACK, HOST, None)),
                    priority=dice.randint(0, 2),
                    created=float(i),
                ),
            )
        run(self.state, self.queues)
        for key in [key for key, entry in self.queues.entries.items() if entry.phase is not Phase.ADMITTED]:
            self.queues.remove_workload(self.state, key)
        cycle(self.state, self.queues, 2.0)  # from the next cycle on those that were admitted may be victims
        self.wanted = make_workload(
            "x",
            dice.choice("ab"),
            dice.randint(1, 3),
            gpu=dice.choice((1, 2, 4)),
            level=dice.choice((RACK, RACK, HOST, None)),
            priority=dice.randint(1, 3),
            created=50.0,
        )
        submit(self.queues, self.wanted)
        self.entry = self.queues.entries["x"]
        (self.option,) = self.queues.options_of(self.state, self.entry.group).found

    def fits(self, without):
        """Whether it would fit with these gone."""
        quotas = self.queues.quotas
        depth, checkpoint = quotas.begin(), self.state.begin()
        for key in without:
            quotas.release_quota(key)
            self.state.release_workload(key)
        placed = not isinstance(put(self.state, "x", self.option), Refusal)
        found = placed and quotas.fits_quota(self.entry.queue, self.option.amounts)
        self.state.rollback(checkpoint)
        quotas.rollback(depth)
        return found

    def own_candidates(self):
        within = self.queues.quotas.queues[self.entry.queue].preemption.within
        for key in self.queues.holders.held_in(self.entry.queue):
            priority = self.queues.entries[key].workload.priority
            if priority < self.wanted.priority:
                yield key
            assert within is not Within.NEVER


@pytest.mark.parametrize("seed", range(400))
def test_a_plan_holds_and_every_victim_is_needed(seed):
    crowd = Crowd(seed)
    version, held = crowd.state.version, dict(crowd.queues.quotas.held)
    if crowd.fits(()):
        return
    found = plan(crowd.state, crowd.queues, crowd.entry, crowd.option)
    assert (crowd.state.version, crowd.queues.quotas.held) == (version, held)
    own = sorted(crowd.own_candidates())
    if found is None:
        for size in range(1, min(len(own), 4) + 1):
            assert not any(crowd.fits(some) for some in combinations(own, size)), "there was a plan"
        return
    names = [victim.key for victim in found.victims]
    assert crowd.fits(names)
    if all(victim.reason is not Reason.RECLAIMED for victim in found.victims):
        for left_alone in names:
            assert not crowd.fits([key for key in names if key != left_alone]), f"{left_alone} is not needed"
    else:
        crowd.dice.shuffle(names)
        quotas, queue = crowd.queues.quotas, crowd.entry.queue
        depth = quotas.begin()
        for key in names:
            quotas.release_quota(key)
        assert not quotas.borrows(queue, crowd.option.amounts)
        quotas.rollback(depth)


def test_the_least_highest_priority_is_found():
    """Against every subset, where all candidates are of the own queue."""
    compared = 0
    for seed in range(300):
        crowd = Crowd(seed)
        policy = crowd.queues.quotas.queues[crowd.entry.queue]
        only = msgspec.structs.replace(policy, preemption=LOWER)
        crowd.queues.set_cluster_queue(only)
        (crowd.option,) = crowd.queues.options_of(crowd.state, crowd.entry.group).found
        if crowd.fits(()):
            continue
        own = sorted(crowd.own_candidates())
        found = plan(crowd.state, crowd.queues, crowd.entry, crowd.option)
        sets = [some for size in range(1, len(own) + 1) for some in combinations(own, size) if crowd.fits(some)]
        assert (found is None) == (not sets)
        if found is not None and len(own) <= 10:
            priority = {key: crowd.queues.entries[key].workload.priority for key in own}
            assert found.cost[0] == min(max(priority[key] for key in some) for some in sets)
            compared += 1
    assert compared > 30


def test_a_plan_costs_the_same_whatever_else_waits():
    state, queues = make_state(2, 2), make_queues(make_queue("q", 32, preemption=LOWER))
    submit(queues, *(make_workload(f"w{i}", created=float(i)) for i in range(4)))
    run(state, queues)
    submit(queues, *(make_workload(f"x{i}", priority=1, created=10.0 + i) for i in range(3)))
    found = cycle(state, queues, 2.0, limit=64)
    taken = [victim.key for one in found.preempting for victim in one.victims]
    assert len(found.preempting) == 3
    assert len(set(taken)) == len(taken) == 3
