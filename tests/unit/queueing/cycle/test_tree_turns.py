"""Whose turn it is in a tree of cohorts: by how high up a workload would borrow, and by shares with fair sharing."""

import random

import pytest
from support.queue_factories import (
    GPU,
    HOST,
    keys,
    make_cohort,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from queueing.cycle.cycle import cycle
from queueing.cycle.tournament import Contender, Tournament
from queueing.model import Rules
from queueing.queues.cohort_tree import CohortTree
from queueing.queues.held import Held
from queueing.queues.quota import Quotas

KEY = ("tas", GPU)


def test_the_nearest_quota_goes_first():
    # As Kueue 0.19.2 sorts (scheduler.go, makeClassicalIterator): the height of the lowest subtree that has the quota
    # comes before priority.
    state = make_state(1, 1)
    queues = make_queues(
        make_queue("own", 8, cohort="near"),
        make_queue("within", 0, cohort="near"),
        make_queue("far", 0, cohort="empty"),
    )
    for name in ("near", "empty"):
        queues.set_cohort(make_cohort(name, 0, "org"))
    work = [("within", 1), ("far", 2), ("own", 0)]
    submit(queues, *(make_workload(name, name, gpu=4, priority=priority) for name, priority in work))
    ranks = {name: queues.rank_of_entry(queues.entries[name], {KEY: 4}).level for name, _ in work}
    assert ranks == {"own": 0, "within": 1, "far": 2}
    assert keys(run(state, queues)) == ["own", "within"]


def test_the_flavor_that_it_would_get_says_how_high_up_it_borrows():
    # The first flavor is full, and there both would borrow. In the second one owner has 4, which borrower may borrow:
    # it is looked at later, though its priority is higher (Kueue 0.19.2, scheduler.go: ``assignment.Borrows``).
    state = make_state(1, 1, flavors=("f0", "f1"))
    queues = make_queues(
        make_queue("full", {"f0": 8, "f1": 4}, cohort="c"),
        make_queue("owner", {"f0": 0, "f1": 4}, cohort="c"),
        make_queue("borrower", {"f0": 0, "f1": 0}, cohort="c"),
    )
    submit(queues, make_workload("full-0", "full", gpu=8), make_workload("full-1", "full", gpu=4, created=1.0))
    assert keys(run(state, queues)) == ["full-0", "full-1"]
    submit(queues, make_workload("borrower", "borrower", gpu=4, priority=9), make_workload("owner", "owner", gpu=4))
    assert keys(run(state, queues)) == ["owner"]


def test_one_behind_the_first_that_borrows_less_high_up_brings_its_queue_forward():
    state = make_state(1, 1)
    queues = make_queues(make_queue("a", 0, cohort="near"), make_queue("b", 0, cohort="other"))
    queues.set_cohort(make_cohort("near", 4, "org"))
    queues.set_cohort(make_cohort("other", 0, "org"))
    queues.set_cohort(make_cohort("org", 4))
    large = make_workload("large", "a", gpu=8, priority=2)
    submit(queues, large, make_workload("small", "a", gpu=4, priority=1), make_workload("b", "b", gpu=4, priority=5))
    # Each queue is looked at in its own order, so large has the turn of small, before b, which is of higher priority.
    assert keys(run(state, queues)) == ["large"]


def test_with_fair_sharing_who_borrows_nothing_that_it_asks_for_goes_first():
    # Kueue's FairSharingPrioritizeNonBorrowing (0.17 and later): before the share, which counts other resources too.
    state = make_state(1, 1)
    queues = make_queues(
        make_queue("a", {"tas": 4, "other": 0}, cohort="c"),
        make_queue("b", {"tas": 0, "other": 0}, cohort="c"),
        make_queue("lender", {"tas": 4, "other": 8}, cohort="c"),
        rules=Rules(fair=True),
    )
    queues.charge_pod("ns/pod", Held("a", {("other", GPU): 8}))
    submit(queues, make_workload("owns", "a", gpu=4, created=1.0), make_workload("borrows", "b", gpu=4))
    ranks = [queues.rank_of_entry(queues.entries[key], {KEY: 4}) for key in ("owns", "borrows")]
    assert [rank.level for rank in ranks] == [0, 1]
    assert ranks[0].share > ranks[1].share
    assert keys(run(state, queues))[0] == "owns"


def test_those_who_leave_are_taken_off_a_share_once():
    state = make_state(1, 4)
    queues = make_queues(make_queue("a", 8, cohort="c"), make_queue("b", 24, cohort="c"), rules=Rules(fair=True))
    submit(queues, make_workload("stays", "a"), make_workload("leaves", "a", 2, created=1.0))
    run(state, queues)
    submit(queues, make_workload("next", "a", created=2.0))
    entry = queues.entries["next"]
    assert queues.rank_of_entry(entry, {KEY: 8})[:2] == (1, (False, 750))  # 32 - 8 of 32
    queues.holders.mark_leaving("leaves")
    queues.leaving.review_leaving(state, 2.0)
    assert queues.rank_of_entry(entry, {KEY: 8})[:2] == (1, (False, 250))  # 16 - 8 of 32


def example_c(*, weight=1000, **heads):
    """Example C of QUEUES-PARITY: vision has 12, speech 10, ads 20; ``heads``: what firsts ask for."""
    queues = make_queues(
        make_queue("vision", 12, lending=8, cohort="research"),
        make_queue("speech", 8, borrowing=4, cohort="research"),
        make_queue("ads", 16, cohort="product", weight=weight),
        rules=Rules(fair=True),
    )
    queues.set_cohort(make_cohort("org", 8))
    queues.set_cohort(make_cohort("research", 4, "org", borrowing=6, lending=10))
    queues.set_cohort(make_cohort("product", 0, "org"))
    for name, amount in {"vision": 12, "speech": 10, "ads": 20}.items():
        queues.charge_pod(f"ns/{name}", Held(name, {KEY: amount}))
    submit(queues, *(make_workload(name, name, amount, gpu=1, level=None) for name, amount in heads.items()))
    return queues


def test_example_c():
    queues = example_c(vision=2, speech=2, ads=2)
    tree = queues.quotas.tree
    shares = {name: queues.quotas.share(name, {KEY: 2})[1] for name in ("vision", "speech")}
    assert shares == {"vision": pytest.approx(76.9, abs=0.1), "speech": pytest.approx(153.8, abs=0.1)}
    assert tree.share_of(tree.cohorts["product"], {KEY: 2}, {})[1] == pytest.approx(176.5, abs=0.1)
    assert tree.share_of(tree.cohorts["research"], {KEY: 2}, {}) == (False, 0.0)
    # In research vision wins, at org research; then speech against ads, then ads.
    assert keys(run(make_state(), queues)) == ["vision", "speech", "ads"]


@pytest.mark.parametrize("weight", [1000, 10_000])
def test_example_c_with_the_first_of_speech_alone(weight):
    # By queues ads would win with the weight 10: 17.6 against 153.8. At org the weight of product counts.
    queues = example_c(weight=weight, speech=2, ads=2)
    assert keys(run(make_state(), queues)) == ["speech", "ads"]


def test_equal_children_go_by_priority_and_time_then_by_name():
    def of(*work):
        queues = make_queues(
            *(make_queue(name, 0, cohort=f"c-{name}") for name in "ab"),
            make_queue("lender", 16, cohort="org"),
            rules=Rules(fair=True),
        )
        for name in "ba":
            queues.set_cohort(make_cohort(f"c-{name}", 0, "org"))
        submit(queues, *work)
        return keys(run(make_state(), queues))

    first, second = make_workload("x", "a", gpu=2, level=HOST), make_workload("y", "b", gpu=2, level=HOST)
    assert of(first, second) == ["x", "y"]
    assert of(first, make_workload("y", "b", gpu=2, level=HOST, priority=1)) == ["y", "x"]
    assert of(make_workload("x", "a", gpu=2, level=HOST, created=1.0), second) == ["y", "x"]


def test_an_inner_loser_does_not_win_outside():
    queues = make_queues(
        make_queue("large", 4, cohort="team"),
        make_queue("small", 0, cohort="team"),
        make_queue("beside", 0, cohort="org"),
        make_queue("lender", 28, cohort="org"),
        rules=Rules(fair=True),
    )
    queues.set_cohort(make_cohort("team", 0, "org"))
    queues.charge_pod("ns/pod", Held("beside", {KEY: 2}))
    # In team large wins, as it borrows nothing there with 4; small asks for 1, which team would borrow with less
    # than beside. What large asks for team owns, so it goes first; then small has the least share.
    submit(
        queues,
        make_workload("large", "large", gpu=4, level=HOST),
        make_workload("small", "small", gpu=1, level=HOST),
        make_workload("beside", "beside", gpu=1, level=HOST),
    )
    assert keys(run(make_state(), queues)) == ["large", "small", "beside"]
    queues = make_queues(
        make_queue("large", 8, cohort="team"),
        make_queue("small", 0, cohort="team"),
        make_queue("beside", 0, cohort="org"),
        make_queue("lender", 16, cohort="org"),
        rules=Rules(fair=True),
    )
    queues.set_cohort(make_cohort("team", 0, "org"))
    queues.charge_pod("ns/pod", Held("small", {KEY: 8}))
    submit(
        queues,
        make_workload("large", "large", gpu=8, level=HOST),
        make_workload("small", "small", gpu=1, level=HOST),
        make_workload("beside", "beside", gpu=4, level=HOST),
    )
    # Large need not borrow in team, so it stands for it at org: with its 8 team has a third, beside a sixth. With the 1
    # of small team would have less than beside.
    assert keys(run(make_state(), queues)) == ["beside", "large", "small"]


def turn_of(tree, node, contender):
    """What a node competes with, all summed up again."""
    change = tree.handed_up_to(contender.node, node, contender.change)
    borrows = any(node.usage.get(key, 0) + change[key] > node.subtree.get(key, 0) for key in contender.asks)
    return (int(borrows), tree.share_of(node, change, {}), *contender.tail, contender.node.name)


def winner_anew(tree, cohort, contenders):
    """As Kueue runs it: the winner of each child, and the least of these."""
    found = []
    for child in cohort.children.values():
        won = contenders.get(child.name) if child.is_queue else winner_anew(tree, child, contenders)
        if won is not None:
            found.append((turn_of(tree, child, won), won))
    return min(found, key=lambda one: one[0])[1] if found else None


class Contest:
    """A random tree, and queues in it that compete."""

    def __init__(self, seed):
        self.dice, self.quotas, self.contenders = random.Random(seed), Quotas(), {}
        dice = self.dice
        for number in range(dice.randint(1, 5)):
            parent = dice.choice(["root", *(f"c{at}" for at in range(number))])
            limits = {"borrowing": dice.choice([None, 4]), "lending": dice.choice([None, 3])}
            weight = dice.choice([0, 500, 1000])
            self.quotas.set_cohort(make_cohort(f"c{number}", dice.choice([0, 8]), parent, weight=weight, **limits))
        self.names = [f"q{number}" for number in range(dice.randint(2, 9))]
        for name in self.names:
            cohort, lending = dice.choice(["root", *self.quotas.cohorts]), dice.choice([None, 2])
            self.quotas.set_queue(make_queue(name, dice.choice([0, 4, 8]), cohort=cohort, lending=lending))
        self.tournament = Tournament(self.quotas, fair=True)

    def enter(self, name, at):
        asks = {KEY: self.dice.randrange(1, 6)}
        tail = (0, at, self.dice.randrange(4))
        self.contenders[name] = Contender(self.quotas.tree.queues[name], asks, asks, tail)
        self.tournament.enter_queue(self.contenders[name])

    def winner(self):
        if not self.contenders:
            return None
        tree = self.quotas.tree
        return winner_anew(tree, tree.cohorts["root"], self.contenders).node.name

    def serve(self, name, at):
        """A queue has its turn: it is admitted or not, and has somebody left or not."""
        won = self.contenders.pop(name)
        self.tournament.leave_queue(won.node)
        if self.dice.random() < 0.7:
            self.quotas.charge_workload(f"w{at}", Held(name, won.asks))
        if self.dice.random() < 0.5:
            self.enter(name, at)
        else:
            self.tournament.leave_queue(won.node)


def test_the_order_of_pops_is_that_of_a_tournament_run_anew():
    for seed in range(400):
        contest = Contest(seed)
        for name in contest.names:
            contest.enter(name, 0)
        for at in range(20):
            top = contest.tournament.top()
            assert (top and top[-1]) == contest.winner()
            if top is None:
                break
            contest.serve(top[-1], at)


@pytest.mark.parametrize(("nested", "gets_it"), [(True, "job"), (False, "service")])
def test_who_grows_counts_with_its_cohort_against_those_outside(nested, gets_it):
    # Its queue has a small share by its weight, and its cohort has more than the other queue.
    queues = make_queues(
        make_queue("a", 0, cohort="team" if nested else "org", weight=10_000),
        make_queue("b", 0, cohort="team"),
        make_queue("beside", 0, cohort="org"),
        make_queue("lender", 24, cohort="org"),
        rules=Rules(fair=True),
    )
    queues.set_cohort(make_cohort("team", 0, "org"))
    queues.charge_pod("ns/b", Held("b", {KEY: 15}))
    queues.charge_pod("ns/beside", Held("beside", {KEY: 5}))
    state = make_state()
    submit(queues, make_workload("service", "a", gpu=2, level=HOST))
    assert keys(run(state, queues)) == ["service"]
    queues.wish("service", {"main": 2})
    submit(queues, make_workload("job", "beside", gpu=2, level=HOST, created=1.0))
    made = cycle(state, queues, 2.0)
    assert [*keys(made), *(one.key for one in made.resized)] == [gets_it]


def test_turns_in_a_deep_tree_cost_as_many_steps_as_it_has_levels(monkeypatch):
    levels, steps, real = 300, 0, CohortTree.handed_up_to

    def counted(tree, below, node, more):
        nonlocal steps
        steps += 0 if node is below else 1 + below.path.index(node)
        return real(tree, below, node, more)

    monkeypatch.setattr(CohortTree, "handed_up_to", counted)
    names = [f"q{number}" for number in range(8)]
    queues = make_queues(*(make_queue(name, 8, cohort="c0") for name in names), rules=Rules(fair=True))
    for level in range(levels):
        queues.set_cohort(make_cohort(f"c{level}", 0, f"c{level + 1}"))
    submit(queues, *(make_workload(name, name, gpu=4, level=HOST) for name in names))
    assert sorted(keys(cycle(make_state(), queues, 1.0, 64))) == names
    # Each queue comes in, and goes out twice: when it is served, and as it has nobody left.
    assert steps <= 3 * len(names) * (levels + 2)
