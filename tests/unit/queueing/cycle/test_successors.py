"""Room that comes free bit by bit goes to the first who fits all of it, and nobody is evicted for what was free."""

import pytest
from support.queue_factories import (
    GPU,
    keys,
    make_cohort,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from engine.model import Pod
from engine.reasons import Reason
from engine.reservation_key import ReservationKey, Role, role_of
from queueing.cycle.cycle import cycle
from queueing.cycle.elastic import reclaim
from queueing.cycle.successors import remove_successor
from queueing.model import Preemption, Reclaim, Rules, UseRules, Within
from queueing.queues.entry import Phase
from queueing.queues.held import Held
from queueing.queues.leaving import QUIET

HOSTS = 4
RACK = 8 * HOSTS  # GPUs
RECLAIMS = Preemption(reclaim=Reclaim.ANY)


class Teams:
    """Two teams share two racks. Team a runs on one, gang g of team b on the other; borrowers and `large` wait."""

    def __init__(self, *, rules=None, preemption=RECLAIMS, large="b", strict=False, **of_large):
        more = {"cohort": "all", "preemption": preemption, "strict": strict}
        teams = [make_queue(name, RACK, **more) for name in "ab"]
        self.state, self.queues = make_state(2, HOSTS), make_queues(*teams, rules=rules)
        self.now = 1.0
        self.comes("g", "b", HOSTS, created=1.0)
        for number in range(HOSTS):
            self.comes(f"a{number}", "a", created=2.0)
        for number in range(HOSTS):
            submit(self.queues, make_workload(f"x{number}", "a", created=3.0 + number), now=self.now)
        submit(self.queues, make_workload("large", large, HOSTS, created=10.0, **of_large), now=self.now)
        self.made = self.decide()

    def comes(self, key, queue, count=1, **more):
        submit(self.queues, make_workload(key, queue, count, **more), now=self.now)
        assert keys(run(self.state, self.queues, self.now)) == [key]
        self.bind(key)

    def bind(self, key):
        nodes = [node for node, count in self.slots(key) for _ in range(count)]
        for number, node in enumerate(nodes):
            self.state.set_pod(Pod(key=f"{key}-{number}", node=node, requests={GPU: 8}, claim=(key, "main")))
            self.queues.bind(f"{key}-{number}", key)

    def slots(self, key):
        return [node for piece in self.state.assignments(key)["main"].slices for node in piece.nodes]

    def decide(self, seconds=0.0):
        self.now += seconds
        return run(self.state, self.queues, self.now)

    def delete(self, key):
        """Its job is deleted: nobody answers for its pods any more, and they are told one after the other."""
        entry = self.queues.entries[key]
        pods, queue = sorted(entry.pods), entry.queue
        self.queues.remove_workload(self.state, key)
        for pod in pods:
            held = self.state.pods[pod]
            self.state.set_pod(Pod(key=pod, node=held.node, requests=held.requests))
            self.queues.charge_pod(pod, Held(queue, {("tas", GPU): 8}))
            self.queues.leaving.pod_stops(pod)
        return pods

    def pod_gone(self, pod):
        self.queues.leaving.pod_gone(pod)
        self.queues.charge_pod(pod, None)
        node = self.state.pods[pod].node
        self.state.remove_pod(pod)
        self.queues.pending.room_freed(self.state.flavors_on(node))

    def pod_ends(self, key, number):
        """One of its pods is done, and none is made in its place."""
        held = len(self.queues.entries[key].pods)
        pod = f"{key}-{number}"
        self.state.remove_pod(pod)
        self.queues.unbind(pod)
        if held == 1:
            self.queues.remove_workload(self.state, key)
            return
        self.queues.leaving.pod_ended(key)
        reclaim(self.state, self.queues, key, {"main": HOSTS - held + 1})

    def is_untouched(self):
        """Nothing is held for a successor between cycles."""
        return not any(role_of(key) is Role.SUCCESSOR for key in (*self.state.workloads, *self.queues.quotas.held))


def test_the_rack_that_a_gang_leaves_pod_by_pod_goes_whole_to_whose_quota_it_is():
    teams = Teams()
    decided = [teams.made]
    pods = teams.delete("g")
    decided.append(teams.decide(1.0))
    for pod in pods:
        teams.pod_gone(pod)
        decided.append(teams.decide(1.0))
        assert teams.is_untouched()
    assert [keys(one) for one in decided] == [[], [], [], [], [], ["large"]]
    assert not any(one.preempting for one in decided)
    assert {node for node, _ in teams.slots("large")} == {"tas-0", "tas-1", "tas-2", "tas-3"}


def test_without_that_rule_borrowers_get_in_and_are_evicted():
    """So the test above shows something."""
    teams = Teams(rules=Rules(leaving=0.0))
    made = []
    for pod in teams.delete("g"):
        teams.pod_gone(pod)
        made.append(teams.decide(1.0))
    assert [keys(one) for one in made] == [["x0"], ["x1"], ["x2"], []]
    assert [sorted(victim.key for victim in one.victims) for one in made[-1].preempting] == [["x0", "x1", "x2"]]


def test_pods_that_end_by_themselves_are_followed_too():
    teams = Teams()
    for number in range(HOSTS):
        teams.pod_ends("g", number)
        made = teams.decide(1.0)
        assert keys(made) == (["large"] if number == HOSTS - 1 else [])
        assert not made.preempting


@pytest.mark.parametrize("preemption", [RECLAIMS, Preemption()], ids=["preempts", "does not"])
def test_one_that_comes_as_a_gang_begins_to_leave_takes_nothing_of_what_was_free_before(preemption):
    """`large` was refused for good reasons, and nothing came free since."""
    teams = [make_queue("a", 0, cohort="all"), make_queue("b", RACK, cohort="all", preemption=preemption)]
    state, queues = make_state(1, HOSTS), make_queues(*teams)
    submit(queues, make_workload("g", "b", HOSTS - 1))
    assert keys(run(state, queues)) == ["g"]
    for number in range(HOSTS - 1):
        state.set_pod(Pod(key=f"g-{number}", node=f"tas-{number}", requests={GPU: 8}, claim=("g", "main")))
        queues.bind(f"g-{number}", "g")
    submit(queues, make_workload("large", "b", HOSTS, created=10.0))
    assert keys(run(state, queues, 2.0)) == []
    queues.holders.mark_leaving("g")
    submit(queues, make_workload("x", "a", created=20.0))
    assert keys(run(state, queues, 3.0)) == []
    assert list(queues.successors) == ["large"]
    assert not queues.entries["large"].group.line.next(), "it is not looked at again and again"


def test_nobody_is_looked_at_for_room_that_victims_leave_for_somebody():
    state, queues = make_state(1, 2), make_queues(make_queue("q", 64, preemption=Preemption(within=Within.LOWER)))
    submit(queues, make_workload("one"), make_workload("two", created=1.0))
    assert keys(run(state, queues)) == ["one", "two"]
    submit(queues, make_workload("waits", count=3, created=2.0))
    run(state, queues, 2.0)
    submit(queues, make_workload("urgent", priority=9))
    assert [one.key for one in run(state, queues, 3.0).preempting] == ["urgent"]
    searches = queues.searches
    for at in range(3):
        run(state, queues, 4.0 + at)
    assert queues.searches == searches


def test_both_are_told_why_they_wait():
    teams = Teams()
    told = {one.key: one for one in teams.decide(20.0).waiting}
    pods = teams.delete("g")
    told = {one.key: one for one in teams.decide(20.0).waiting}
    assert told["large"].message.endswith(
        "it fits once those that are already leaving are gone, and evicts nobody meanwhile"
    )
    teams.pod_gone(pods[0])
    (mine,) = [one for one in teams.decide(20.0).waiting if one.key == "x0"]
    assert (mine.reason, mine.message) == (
        Reason.BEHIND_OTHERS,
        "what it would have is kept for large: it comes first and fits once others that are leaving are gone",
    )


def test_what_a_gang_that_ends_hours_apart_leaves_is_used_after_seconds():
    teams = Teams()
    teams.pod_ends("g", 0)
    made = teams.decide(1.0)
    assert keys(made) == []
    assert made.next_time == pytest.approx(teams.now + QUIET)
    made = teams.decide(QUIET)
    assert keys(made) == ["x0"]


def test_nobody_is_waited_for_longer_than_a_minute_in_all():
    teams = Teams()
    pods = teams.delete("g")
    teams.decide(1.0)
    teams.pod_gone(pods[0])
    assert keys(teams.decide(58.0)) == []
    assert keys(teams.decide(2.0)) == ["x0"], "the other pods do not stop"
    teams.queues.leaving.pod_stops(pods[1])
    teams.queues.remove_workload(teams.state, "x0")
    assert keys(teams.decide(1.0)) == ["x1"], "and that they are told once more changes nothing"


def test_one_that_cannot_use_the_room_keeps_none():
    teams = Teams(gpu=9)
    pods = teams.delete("g")
    teams.decide(1.0)
    teams.pod_gone(pods[0])
    assert keys(teams.decide(1.0)) == ["x0"]


def test_one_whose_quota_is_used_by_others_of_its_queue_keeps_none():
    teams = Teams()
    teams.queues.set_cluster_queue(make_queue("a", RACK + 8, cohort="all", preemption=RECLAIMS))
    teams.queues.set_cluster_queue(make_queue("b", RACK - 8, cohort="all", borrowing=0, preemption=RECLAIMS))
    pods = teams.delete("g")
    teams.decide(1.0)
    teams.pod_gone(pods[0])
    assert keys(teams.decide(1.0)) == ["x0"]


def test_who_comes_before_a_successor_is_not_stopped_by_it():
    teams = Teams()
    pods = teams.delete("g")
    teams.decide(1.0)
    submit(teams.queues, make_workload("urgent", "b", priority=5, created=20.0), now=teams.now)
    teams.pod_gone(pods[0])
    assert keys(teams.decide(1.0)) == ["urgent"]
    teams.pod_gone(pods[1])
    assert keys(teams.decide(1.0)) == ["x0"], "large does not fit any more, so nothing is kept for it"


@pytest.mark.parametrize("fair", [True, False])
@pytest.mark.parametrize(("heavy", "admitted"), [("of-b", ["x0"]), ("of-a", [])])
def test_in_a_tree_that_goes_by_use_a_successor_stops_those_whose_cohort_used_more(fair, heavy, admitted):
    """By the children of org: by their queues, none of which is compared over time, large came later than x0."""
    teams = Teams(rules=Rules(fair=fair, patience=1e9, use=UseRules(half_life=600.0)), preemption=Preemption())
    queues = teams.queues
    queues.set_cohort(make_cohort("org", 2 * RACK, by_use=True))
    for name in "ab":
        queues.set_cohort(make_cohort(f"of-{name}", 0, "org"))
        queues.set_cluster_queue(make_queue(name, 0, cohort=f"of-{name}"))
    queues.pass_time(teams.now + 1.0)
    queues.quotas.over_time.restore_use((False, heavy), {GPU: 60.0}, teams.now + 1.0)
    pods = teams.delete("g")
    teams.decide(1.0)
    assert list(queues.successors) == ["large"]
    teams.pod_gone(pods[0])
    assert keys(teams.decide(1.0)) == admitted


def test_room_elsewhere_and_quota_that_it_does_not_need_are_not_kept():
    teams = Teams()
    for name in ("free-0", "free-1"):
        node = teams.state.nodes["tas-0"]
        labels = {**node.labels, "rack": "free", "kubernetes.io/hostname": name}
        teams.state.set_node(type(node)(name=name, labels=labels, allocatable=dict(node.allocatable)))
    for name in "ab":
        teams.queues.set_cluster_queue(make_queue(name, RACK + 8, cohort="all", preemption=RECLAIMS))
    teams.delete("g")
    teams.queues.flavors_changed()
    assert keys(teams.decide(1.0)) == ["x0", "x1"]


def test_in_one_queue_the_first_in_the_order_keeps_it_from_those_that_pass_it():
    state, queues = make_state(1, 2), make_queues(make_queue("q", 64, preemption=Preemption(within=Within.LOWER)))
    submit(queues, make_workload("g", count=2))
    assert keys(run(state, queues)) == ["g"]
    for number in range(2):
        state.set_pod(Pod(key=f"g-{number}", node=f"tas-{number}", requests={GPU: 8}, claim=("g", "main")))
        queues.bind(f"g-{number}", "g")
    submit(queues, make_workload("large", count=2, created=2.0), make_workload("small", created=3.0))
    run(state, queues, 2.0)
    queues.holders.mark_leaving("g")
    run(state, queues, 3.0)
    state.remove_pod("g-0")
    queues.unbind("g-0")
    queues.leaving.pod_ended("g")
    reclaim(state, queues, "g", {"main": 1})
    assert keys(run(state, queues, 4.0)) == []
    state.remove_pod("g-1")
    queues.remove_workload(state, "g")
    assert keys(run(state, queues, 5.0)) == ["large"]


def test_nobody_is_evicted_where_those_that_are_evicted_already_leave_enough():
    """Victims of nobody: their queue is drained, or they ran for too long."""
    state, queues = make_state(1, 2), make_queues(make_queue("q", 64, preemption=Preemption(within=Within.LOWER)))
    submit(queues, make_workload("late"), make_workload("stays", created=1.0))
    assert keys(run(state, queues)) == ["late", "stays"]
    queues.holders.mark_leaving("late")
    submit(queues, make_workload("urgent", priority=9))
    assert not run(state, queues, 2.0).preempting
    queues.remove_workload(state, "late")
    assert keys(run(state, queues, 3.0)) == ["urgent"]


def test_one_that_grows_evicts_nobody_where_others_leave_enough():
    preemption = Preemption(within=Within.LOWER)
    state, queues = make_state(1, 3), make_queues(make_queue("q", 64, preemption=preemption))
    submit(queues, make_workload("grows", priority=9), make_workload("late"), make_workload("stays", created=1.0))
    assert len(keys(run(state, queues))) == 3
    queues.holders.mark_leaving("late")
    submit(queues, make_workload("grows", count=2, priority=9))
    queues.wish("grows", {"main": 2})
    assert not run(state, queues, 2.0).preempting
    queues.remove_workload(state, "late")
    assert [one.counts["main"] for one in cycle(state, queues, 3.0).resized] == [2]


def test_it_preempts_after_all_where_those_do_not_go():
    state, queues = make_state(1, 2), make_queues(make_queue("q", 64, preemption=Preemption(within=Within.LOWER)))
    submit(queues, make_workload("late"), make_workload("stays", created=1.0))
    assert keys(run(state, queues)) == ["late", "stays"]
    queues.holders.mark_leaving("late")
    submit(queues, make_workload("urgent", priority=9))
    made = run(state, queues, 2.0)
    assert not made.preempting
    assert made.next_time == 62.0
    assert [[victim.key for victim in one.victims] for one in run(state, queues, 62.0).preempting] == [["stays"]]


def test_two_successors_keep_their_places_beside_each_other():
    teams = Teams(large="b")
    submit(teams.queues, make_workload("second", "a", HOSTS, created=0.5), now=teams.now)
    teams.delete("g")
    for number in range(HOSTS):
        teams.queues.holders.mark_leaving(f"a{number}")
    assert keys(teams.decide(1.0)) == []
    assert set(teams.queues.successors) == {"large", "second"}
    for number in range(HOSTS):
        teams.state.remove_pod(f"a{number}-0")
        teams.queues.remove_workload(teams.state, f"a{number}")
        assert keys(teams.decide(1.0)) == (["second"] if number == HOSTS - 1 else [])


def test_a_successor_that_is_withdrawn_keeps_nothing():
    teams = Teams()
    pods = teams.delete("g")
    teams.decide(1.0)
    teams.pod_gone(pods[0])
    assert keys(teams.decide(1.0)) == []
    teams.queues.remove_workload(teams.state, "large")
    assert keys(teams.decide(1.0)) == ["x0"]
    assert "large" not in teams.queues.successors


def test_who_need_not_borrow_has_its_turn_before_one_that_would_though_it_had_more_of_them():
    """Else the borrower gets in first, and is evicted in the next cycle."""
    teams = Teams()
    for _ in range(3):
        teams.queues.pending.lines["b"].take_turn()
    for pod in teams.delete("g"):
        teams.pod_gone(pod)  # all at once
    made = teams.decide(1.0)
    assert keys(made) == ["large"]
    assert teams.queues.entries["x0"].phase is Phase.WAITING
    assert ReservationKey.for_orphan("g-0") not in teams.queues.quotas.held


def test_one_that_somebody_else_holds_up_in_its_queue_by_now_keeps_nothing():
    """Else what it would have is kept for it for ever, since it is not looked at while the one before it waits."""
    teams = Teams(strict=True)
    teams.decide(20.0)
    teams.delete("g")
    teams.decide(1.0)
    assert list(teams.queues.successors) == ["large"]
    submit(teams.queues, make_workload("huge", "b", HOSTS + 1, created=5.0), now=teams.now)
    teams.decide(1.0)
    assert list(teams.queues.successors) == ["x0"], "who fits beside the one that holds it up"


class Leavers:
    """Racks of hosts of 8 GPUs, of each of which a pod without a workload that is told to stop has all."""

    def __init__(self, *queues, racks=1, hosts=4, leavers=None, theirs="a", **rules):
        self.state, self.queues = make_state(racks, hosts), make_queues(*queues, rules=Rules(**rules))
        for number in range(racks * hosts if leavers is None else leavers):
            self.leaves(number, theirs)

    def leaves(self, number, queue):
        self.state.set_pod(Pod(key=f"ns/g-{number}", node=f"tas-{number}", requests={GPU: 8}))
        self.queues.charge_pod(f"ns/g-{number}", Held(queue, {("tas", GPU): 8}))
        self.queues.leaving.pod_stops(f"ns/g-{number}")

    def gone(self, number):
        self.queues.leaving.pod_gone(f"ns/g-{number}")
        self.queues.charge_pod(f"ns/g-{number}", None)
        self.state.remove_pod(f"ns/g-{number}")
        self.queues.pending.room_freed(["tas"])

    def comes(self, now, key, queue, count, **more):
        """A workload is submitted; returns what follows from it."""
        submit(self.queues, make_workload(key, queue, count, created=now, **more), now=now)
        return self.decide(now)

    def decide(self, now):
        found = cycle(self.state, self.queues, now)
        for _ in range(9):
            if not found.more:
                return found
            more = cycle(self.state, self.queues, now)
            for name in ("admitted", "preempting", "waiting"):
                getattr(found, name).extend(getattr(more, name))
            found.more = more.more
        pytest.fail("somebody is looked at again and again")


def lenders(*names, nominal=16):
    return [make_queue(name, nominal, cohort="all", preemption=RECLAIMS) for name in names]


def test_three_of_whom_each_comes_before_the_next_are_not_looked_at_for_ever():
    """`w4` comes before `w2`, of its queue; that one before `w3`, which came later; and that one before `w4`, which
    would borrow. So no order is right, and each look would have one of them give way to the next."""
    leavers = Leavers(*lenders(*"abc"), racks=2, hosts=3, theirs="b")
    leavers.comes(1.0, "w1", "a", 2)
    leavers.comes(2.0, "w2", "a", 2, gpu=4)
    leavers.comes(3.0, "w3", "c", 1)
    assert set(leavers.queues.successors) == {"w1", "w2", "w3"}
    leavers.comes(4.0, "w4", "a", 3, priority=5)
    assert set(leavers.queues.successors) == {"w1", "w3", "w4"}


def test_one_that_was_given_up_waits_for_the_same_leavers_and_has_nobody_evicted():
    """It follows them no more, so that two that give way to each other are not looked at for ever."""
    low = Preemption(within=Within.LOWER)
    leavers = Leavers(make_queue("a", 64, preemption=low), hosts=4, leavers=2)
    assert keys(leavers.comes(1.0, "low", "a", 1)) == ["low"]
    assert keys(leavers.comes(1.0, "lower", "a", 1)) == ["lower"]
    leavers.comes(2.0, "large", "a", 2, priority=5)
    assert list(leavers.queues.successors) == ["large"]
    remove_successor(leavers.queues, "large")
    assert not leavers.decide(4.0).preempting
    assert not leavers.queues.successors
    made = leavers.decide(61.0)
    assert [[victim.key for victim in one.victims] for one in made.preempting] == [["low", "lower"]], "they do not go"


def test_nothing_is_kept_of_one_that_was_given_up_and_is_gone():
    leavers = Leavers(make_queue("a", 64), hosts=4, leavers=2)
    leavers.comes(2.0, "large", "a", 4)
    remove_successor(leavers.queues, "large")
    assert leavers.queues.leaving.spent == {"large"}
    leavers.queues.remove_workload(leavers.state, "large")
    leavers.decide(3.0)
    assert leavers.queues.leaving.spent == set()


def test_of_one_queue_the_first_keeps_its_place_though_it_would_borrow_and_the_next_one_not():
    leavers = Leavers(*lenders("a", "b"), theirs="b")
    leavers.comes(1.0, "small", "a", 2)
    assert list(leavers.queues.successors) == ["small"]
    leavers.comes(2.0, "first", "a", 3, priority=5)
    assert list(leavers.queues.successors) == ["first"]
    leavers.decide(3.0)
    assert list(leavers.queues.successors) == ["first"]


def test_a_second_successor_of_a_queue_borrows_where_the_first_one_takes_all_that_is_the_queues():
    """Else who need not borrow comes after it, and has it evicted as soon as both are there."""
    leavers = Leavers(*lenders("a", "b", "c"), theirs="c")
    leavers.comes(1.0, "first", "b", 2)
    leavers.comes(2.0, "second", "b", 4, gpu=4)
    assert list(leavers.queues.successors) == ["first", "second"]
    leavers.comes(3.0, "owner", "a", 2)
    assert list(leavers.queues.successors) == ["first", "owner"]


def test_quota_that_a_successor_will_have_is_nobody_elses_once_they_are_gone():
    """All of it is that of those who leave still, so that nothing is held for it yet."""
    leavers = Leavers(make_queue("a", 16), racks=2, hosts=2, leavers=2)
    leavers.comes(1.0, "first", "a", 2)
    (told,) = leavers.comes(2.0, "second", "a", 2, priority=-1).waiting
    assert (told.key, told.reason) == ("second", Reason.INSUFFICIENT_QUOTA)
    assert "once those are gone that leave" not in told.message
    assert list(leavers.queues.successors) == ["first"]


def test_what_victims_of_the_same_cycle_leave_is_waited_for_too():
    """One of them leaves twice of what its preemptor wants: the next preemptor has nobody evicted."""
    low = Preemption(within=Within.LOWER)
    state, queues = make_state(1, 1), make_queues(make_queue("q", 64, preemption=low))
    submit(queues, make_workload("low", gpu=4), make_workload("other", gpu=4, priority=1, created=1.0))
    assert keys(run(state, queues)) == ["other", "low"]
    submit(queues, *(make_workload(f"high{number}", gpu=2, priority=9, created=2.0) for number in range(2)))
    (made,) = cycle(state, queues, 3.0).preempting
    assert (made.key, [victim.key for victim in made.victims]) == ("high0", ["low"])
    queues.remove_workload(state, "low")
    assert keys(run(state, queues, 4.0)) == ["high0", "high1"]


def test_what_is_kept_for_a_successor_does_not_change_what_a_claimant_lacks():
    """Else its room is opened and closed with each look, and everybody is woken by that, for ever."""
    queues = [*lenders("a", nominal=56), *lenders("b", nominal=24)]
    leavers = Leavers(*queues, racks=2, hosts=3, leavers=2, theirs="b", patience=5.0, hold=5.0)
    for number in range(4):
        assert keys(leavers.comes(1.0, f"runs{number}", "a", 1)) == [f"runs{number}"]
    leavers.comes(2.0, "claims", "a", 3)
    leavers.decide(9.0)
    assert list(leavers.queues.claims) == ["claims"]
    leavers.comes(10.0, "follows", "a", 2, priority=1)
    assert list(leavers.queues.successors) == ["follows"]
    for now in range(11, 15):
        leavers.comes(float(now), f"waits{now}", "ab"[now % 2], 3, priority=now)
        assert (list(leavers.queues.successors), list(leavers.queues.claims)) == (["follows"], ["claims"])
        assert not leavers.queues.claims["claims"].lacks


def test_the_first_of_a_queue_need_not_borrow_for_what_is_kept_for_one_behind_it():
    """Else a borrower has its turn before it, takes of what it would follow, and is evicted as soon as all is free."""
    leavers = Leavers(*lenders("a", nominal=32), *lenders("b", nominal=0), leavers=2)
    assert keys(leavers.comes(1.0, "lodger", "b", 1)) == ["lodger"]
    leavers.comes(2.0, "whole", "a", 4)
    leavers.comes(3.0, "follows", "a", 3)
    leavers.comes(4.0, "borrower", "b", 1, priority=5)
    assert list(leavers.queues.successors) == ["follows"]
    leavers.queues.remove_workload(leavers.state, "lodger")
    assert keys(leavers.decide(5.0)) == []
    assert list(leavers.queues.successors) == ["whole"]


def test_a_second_successor_need_not_borrow_where_the_first_one_has_what_leaves_their_own_queue():
    """That is used already: counted twice, the second one would come after whoever borrows."""
    leavers = Leavers(*lenders("a", nominal=32), *lenders("b", nominal=0), leavers=3)
    leavers.comes(1.0, "first", "a", 2)
    submit(leavers.queues, make_workload("second", "a", 2, priority=-1, created=2.0), now=2.0)
    assert keys(leavers.comes(2.0, "borrower", "b", 1, priority=5)) == []
    assert list(leavers.queues.successors) == ["first", "second"]


def test_one_that_got_in_and_waits_anew_may_wait_for_as_long_again():
    """Else it has somebody evicted at once, though it fits once others are gone that leave."""
    leavers = Leavers(make_queue("a", 64, preemption=Preemption(within=Within.LOWER)), leavers=2)
    assert keys(leavers.comes(1.0, "low", "a", 2)) == ["low"]
    leavers.comes(2.0, "large", "a", 2, gpu=7, priority=5)
    for number in range(2):
        leavers.gone(number)
    assert keys(leavers.decide(3.0)) == ["large"]
    leavers.queues.holders.mark_leaving("large")
    leavers.decide(63.0)
    leavers.queues.release_and_requeue(leavers.state, "large", 64.0)
    for number in range(2):
        leavers.leaves(number, "a")
    assert not leavers.decide(64.0).preempting
    assert list(leavers.queues.successors) == ["large"]


def test_one_that_grew_and_wants_more_again_may_wait_for_as_long_again():
    leavers, key = Leavers(make_queue("a", 64), leavers=0), ReservationKey.for_growth("grows")
    leavers.comes(1.0, "grows", "a", 1)
    leavers.queues.growing["grows"] = {"main": 2}, ()
    leavers.queues.leaving.watch_workload(key)
    for now, may in ((2.0, True), (62.0, False)):
        leavers.queues.leaving.review_leaving(leavers.state, now)
        assert leavers.queues.leaving.may_follow(key) is may
    del leavers.queues.growing["grows"]
    leavers.queues.leaving.review_leaving(leavers.state, 63.0)
    assert leavers.queues.leaving.may_follow(key)


@pytest.mark.parametrize("evicted", [False, True])
def test_nobody_is_evicted_by_one_that_would_have_the_quota_that_comes_back_to_a_successor(evicted):
    """That is the quota of one who is told to go, or ends by itself; the successor would have others evicted for it."""
    preemption = Preemption(within=Within.LOWER, reclaim=Reclaim.ANY)
    both = (make_queue(name, 8, cohort="all", preemption=preemption) for name in "ab")
    leavers = Leavers(*both, leavers=0)
    assert keys(leavers.comes(1.0, "low", "b", 1, gpu=4)) == ["low"]
    assert keys(leavers.comes(1.0, "goes", "b", 3, gpu=4)) == ["goes"]
    if evicted:
        leavers.queues.holders.mark_leaving("goes")
    else:
        leavers.queues.leaving.pod_ended("goes")
    leavers.comes(2.0, "owner", "a", 1)
    assert list(leavers.queues.successors) == ["owner"]
    assert not leavers.comes(3.0, "high", "b", 4, gpu=4, priority=5).preempting
    assert list(leavers.queues.successors) == ["owner"]
    leavers.queues.remove_workload(leavers.state, "goes")
    assert keys(leavers.decide(4.0)) == ["owner"]


def test_one_whose_queue_gives_back_what_it_borrows_need_not_borrow_for_what_somebody_else_is_to_have_of_that():
    """Else the borrower that follows before it gets in, and is evicted for it as soon as all is free."""
    leavers = Leavers(*lenders("a", "b"), leavers=3)
    leavers.comes(1.0, "follows", "b", 3)
    assert list(leavers.queues.successors) == ["follows"]
    leavers.comes(2.0, "owner", "a", 2)
    assert list(leavers.queues.successors) == ["owner"]


def test_a_successor_that_fits_now_has_that_place_before_one_that_comes_after_it():
    """Else it goes on waiting for somebody who may not leave after all, and has that one evicted then."""
    leavers = Leavers(*lenders("a", "b", "c", nominal=8), hosts=2)
    leavers.comes(1.0, "second", "b", 1)
    leavers.comes(2.0, "first", "c", 1, priority=5)
    aims = {key: one.assignments[0].slices[0].nodes[0][0] for key, one in leavers.queues.successors.items()}
    assert sorted(aims) == ["first", "second"]
    leavers.queues.pending.lines["c"].take_turn()
    leavers.gone(int(aims["second"].removeprefix("tas-")))
    assert keys(leavers.decide(3.0)) == ["first"]
    assert list(leavers.queues.successors) == ["second"]


def test_one_behind_a_borrower_that_would_pass_it_stops_nobody_who_comes_before_that_one():
    """`high` comes before `owner`, of another queue, but `large` before `high`, of its own. Were `owner` stopped,
    `large` would get in past `high`, and be evicted for `owner`."""
    leavers = Leavers(*lenders("a"), *lenders("b", nominal=8), hosts=2)
    leavers.comes(1.0, "large", "b", 2, priority=5)
    leavers.comes(2.0, "owner", "a", 2)
    leavers.comes(3.0, "high", "b", 1, priority=5)
    assert list(leavers.queues.successors) == ["high"]
    for number in range(2):
        leavers.gone(number)
    made = leavers.decide(4.0)
    assert keys(made) == ["owner"]
    assert not made.preempting


def test_one_that_was_refused_before_others_began_to_leave_is_looked_at_then():
    """Else whoever comes next gets what is free of that, and is evicted for the other one once they are gone."""
    leavers = Leavers(*lenders("a", nominal=32), *lenders("b", nominal=0), leavers=3, theirs="b")
    for number in range(3):
        leavers.queues.leaving.pod_gone(f"ns/g-{number}")  # nobody has told them to stop
    leavers.comes(1.0, "large", "a", 4)
    assert not leavers.queues.successors
    for number in range(3):
        leavers.queues.leaving.pod_stops(f"ns/g-{number}")
    assert keys(leavers.comes(2.0, "small", "b", 1)) == []
    assert list(leavers.queues.successors) == ["large"]


def test_the_next_one_follows_as_a_successor_is_gone_before_a_borrower_gets_in():
    """Else the borrower is evicted for it once those are gone that leave."""
    queues = [make_queue(name, nominal, cohort="all", preemption=RECLAIMS) for name, nominal in (("a", 16), ("b", 8))]
    leavers = Leavers(*queues, hosts=3, leavers=1, theirs="b")
    assert keys(leavers.comes(1.0, "stays", "b", 1)) == ["stays"]
    leavers.comes(2.0, "first", "a", 2)
    leavers.comes(3.0, "next", "a", 4, gpu=4)
    assert keys(leavers.comes(4.0, "borrower", "b", 1)) == []
    assert list(leavers.queues.successors) == ["first"]
    leavers.queues.remove_workload(leavers.state, "first")
    assert keys(leavers.decide(5.0)) == []
    assert list(leavers.queues.successors) == ["next"]
