"""Cohorts in a tree: what each node has, uses and may take, as the tree and all that is charged to it change."""

import random

import pytest
from support.flat_quota import FlatQuota
from support.queue_factories import GPU, make_cohort, make_groups, make_queue
from support.tree_oracle import TreeOracle

from queueing.model import ClusterQueue, Cohort
from queueing.queues.held import Held
from queueing.queues.quota import Quotas

KEY, OTHER = ("tas", GPU), ("tas", "cpu")
NODES = ("org", "research", "product", "vision", "speech", "ads")


def example_a():
    """Example A of QUEUES-PARITY: org over research (vision, speech) and product (ads)."""
    made = Quotas()
    made.set_cohort(make_cohort("org", 8))
    made.set_cohort(make_cohort("research", 4, "org", borrowing=6, lending=10))
    made.set_cohort(make_cohort("product", 0, "org"))
    made.set_queue(make_queue("vision", 12, lending=8, cohort="research"))
    made.set_queue(make_queue("speech", 8, borrowing=4, cohort="research"))
    made.set_queue(make_queue("ads", 16, cohort="product"))
    return made


def node_of(made, name):
    return made.tree.queues.get(name) or made.tree.cohorts[name]


def hold(made, workload, queue, amount):
    made.charge_workload(workload, Held(queue, {KEY: amount}))


def standing(made):
    """(usage, available) of each node of example A."""
    nodes = [node_of(made, name) for name in NODES]
    return [(node.usage.get(KEY, 0), made.tree.available_to(node, KEY)) for node in nodes]


def test_example_a_has_the_quotas_that_kueue_gives_it():
    # resource_node.go of 0.19.2: subtree, localQuota and potentialAvailable.
    made = example_a()
    nodes = [node_of(made, name) for name in NODES]
    assert [node.subtree.get(KEY, 0) for node in nodes] == [34, 20, 16, 12, 8, 16]
    assert [node.local.get(KEY, 0) for node in nodes] == [0, 10, 0, 4, 0, 0]
    assert [made.tree.potential_of(node, KEY) for node in nodes] == [34, 26, 34, 30, 12, 34]
    assert [made.limit(name, KEY) for name in ("vision", "speech", "ads")] == [30, 12, 34]


def test_example_a_step_by_step():
    # The rows of the table: usage and available as addUsage, removeUsage and available say in 0.19.2.
    made = example_a()
    hold(made, "v12", "vision", 8)
    hold(made, "v4", "vision", 4)
    assert standing(made) == [(0, 34), (8, 18), (0, 34), (12, 18), (0, 12), (0, 34)]
    hold(made, "s10", "speech", 10)
    assert standing(made) == [(8, 26), (18, 8), (0, 26), (12, 8), (10, 2), (0, 26)]
    hold(made, "a20", "ads", 20)
    assert standing(made) == [(28, 6), (18, 6), (20, 6), (12, 6), (10, 2), (20, 6)]
    hold(made, "v4 more", "vision", 4)
    assert standing(made) == [(32, 2), (22, 2), (20, 2), (16, 2), (10, 2), (20, 2)]
    made.release_quota("v4")
    made.release_quota("s10")
    assert standing(made) == [(20, 14), (8, 16), (20, 14), (12, 16), (0, 12), (20, 14)]


@pytest.mark.parametrize(
    ("queue", "levels"),
    [("vision", {12: 0, 13: 1, 24: 1, 25: 2}), ("speech", {8: 0, 9: 1, 20: 1, 21: 2}), ("ads", {16: 0, 17: 2})],
)
def test_levels_of_example_a(queue, levels):
    # FindHeightOfLowestSubtreeThatFits of 0.19.2; product has no more than ads, so beyond that it is all of org.
    made = example_a()
    assert {amount: made.borrowing_level(queue, {KEY: amount}) for amount in levels} == levels


def test_what_is_not_lent_stays_at_every_level():
    made = example_a()
    hold(made, "a50", "ads", 50)
    # Kueue 0.19.2 lets the negative rest of org (34 - 50) eat into what research and vision keep to themselves: -6, 0.
    assert [made.tree.available_to(node_of(made, name), KEY) for name in ("org", "research", "vision")] == [0, 10, 14]


def test_a_lending_limit_of_a_cohort_counts_against_its_subtree():
    made = Quotas()
    made.set_cohort(make_cohort("org", 0))
    made.set_cohort(make_cohort("team", 4, "org", lending=10))
    made.set_queue(make_queue("a", 12, cohort="team"))
    made.set_queue(make_queue("b", 0, cohort="org"))
    assert (made.limit("b", KEY), made.limit("a", KEY)) == (10, 16)
    made.set_queue(make_queue("a", 2, cohort="team"))
    assert (made.limit("b", KEY), made.limit("a", KEY)) == (6, 6)


def test_a_limit_that_changes_alone_moves_usage_upwards():
    made = Quotas()
    made.set_queue(make_queue("a", 10, cohort="c", lending=4))
    made.set_queue(make_queue("b", 10, cohort="c"))
    hold(made, "w", "a", 8)
    assert (made.available("a", KEY), made.available("b", KEY)) == (12, 12)  # 6 of a's are its own, 2 of the common 14
    made.set_queue(make_queue("a", 10, cohort="c"))
    assert (made.available("a", KEY), made.available("b", KEY)) == (12, 12)
    made.set_queue(make_queue("a", 10, cohort="c", lending=0))
    assert (made.available("a", KEY), made.available("b", KEY)) == (12, 10)


def test_a_queue_that_changes_its_cohort_takes_its_usage_along():
    made = Quotas()
    for name, cohort in (("a", "left"), ("b", "left"), ("c", "right")):
        made.set_queue(make_queue(name, 10, cohort=cohort))
    hold(made, "w", "a", 14)
    assert [made.available(name, KEY) for name in "abc"] == [6, 6, 10]
    made.set_queue(make_queue("a", 10, cohort="right"))
    assert [made.available(name, KEY) for name in "abc"] == [6, 10, 6]
    assert sorted(made.members("c")) == ["a", "c"]


class Untouched(dict):
    """A dict that may be asked for one thing at a time."""

    def __iter__(self):
        raise AssertionError("somebody looks at all holders")

    keys = values = items = __iter__


def test_moving_a_cohort_looks_at_no_workload():
    made = example_a()
    for number in range(10_000):
        hold(made, f"w{number}", "ads", 1)
    made.held = Untouched(made.held)
    made.set_cohort(make_cohort("product", 0, "elsewhere"))
    assert (made.available("ads", KEY), made.available("vision", KEY)) == (0, 30)
    made.set_cohort(make_cohort("product", 0, "research"))
    made.remove_cohort("product")
    assert made.available("vision", KEY) == 30
    made.set_cohort(make_cohort("product", 0, "org"))
    assert node_of(made, "org").usage == {KEY: 10_000}


def test_a_parent_that_is_missing_has_no_quota_and_no_limits():
    made = Quotas()
    made.set_cohort(make_cohort("team", 4, "nobody"))
    made.set_queue(make_queue("a", 10, cohort="team"))
    made.set_queue(make_queue("b", 10, cohort="nobody"))
    assert (made.limit("a", KEY), made.pool("a"), made.pool("b")) == (24, "cohort nobody", "cohort nobody")
    assert list(made.tree.missing_parents()) == [("team", "nobody")]
    made.set_cohort(make_cohort("nobody", 6, "top"))
    assert (made.limit("a", KEY), made.pool("a")) == (30, "cohort top")
    assert list(made.tree.missing_parents()) == [("nobody", "top")]


def test_a_deleted_cohort_keeps_its_queues_together():
    made = example_a()
    made.remove_cohort("research")
    assert (made.limit("vision", KEY), made.limit("speech", KEY), made.limit("ads", KEY)) == (20, 12, 24)
    assert (made.pool("vision"), made.pool("speech")) == ("cohort research", "cohort research")
    made.set_cohort(make_cohort("research", 4, "org", borrowing=6, lending=10))
    assert made.limit("vision", KEY) == 30


def test_of_cohorts_that_nobody_made_and_nobody_names_nothing_is_kept():
    made = Quotas()
    made.set_queue(make_queue("a", 10, cohort="c"))
    made.set_queue(make_queue("a", 10, cohort="d"))
    made.set_cohort(make_cohort("d", 0, "e"))
    made.remove_cohort("d")
    made.remove_queue("a")
    assert (made.tree.cohorts, made.tree.queues) == ({}, {})


def circle(*, with_work=True):
    """Queues below a, b and c, each below the next, and d below a; then c below a."""
    made = Quotas()
    for name, parent in (("a", "b"), ("b", "c"), ("c", ""), ("d", "a")):
        made.set_cohort(make_cohort(name, 4, parent))
        made.set_queue(make_queue(f"of-{name}", 4, cohort=name))
        if with_work:
            hold(made, f"w{name}", f"of-{name}", 2)
    return made


def test_a_circle_stops_all_below_it_and_one_edit_mends_it():
    made = circle()
    names = [f"of-{name}" for name in "abcd"]
    assert [made.available(name, KEY) for name in names] == [24] * 4
    made.set_cohort(make_cohort("c", 4, "a"))
    assert [made.available(name, KEY) for name in names] == [0] * 4
    assert [made.limit(name, KEY) for name in names] == [0] * 4
    assert {made.cycle_of(name) for name in names} == {("a", "b", "c")}
    assert [made.used(name, KEY) for name in names] == [2] * 4
    assert not made.fits_quota("of-d", {KEY: 1})
    made.release_quota("wd")
    made.set_cohort(make_cohort("b", 4))
    assert {made.cycle_of(name) for name in names} == {()}
    assert [made.available(name, KEY) for name in names] == [26] * 4


@pytest.mark.parametrize("mend", ["remove", "self", "elsewhere"])
def test_circles_of_every_size_end_with_the_edge_that_made_them(mend):
    made = circle(with_work=False)
    made.set_cohort(make_cohort("c", 4, "c"))
    assert made.cycle_of("of-c") == ("c",)
    assert made.cycle_of("of-d") == ("c",)
    made.set_cohort(make_cohort("c", 4, "d"))
    assert made.cycle_of("of-d") == ("a", "b", "c", "d")
    if mend == "remove":
        made.remove_cohort("d")
    else:
        made.set_cohort(make_cohort("d", 4, "d" if mend == "self" else "top"))
    assert made.cycle_of("of-c") == (("d",) if mend == "self" else ())
    # Where d is gone, so is its own quota.
    assert made.limit("of-c", KEY) == {"remove": 28, "self": 0, "elsewhere": 32}[mend]


def test_what_a_cohort_does_not_lend_is_shared_below_it_all_the_same():
    made = Quotas()
    made.set_cohort(make_cohort("org", 0))
    made.set_cohort(make_cohort("team", 8, "org", lending=0))
    for name in "ab":
        made.set_queue(make_queue(name, 0, cohort="team"))
    hold(made, "w", "a", 2)
    # calculateLendable of Kueue 0.19.2 asks for all that the tree lists, of which the root has none here.
    assert made.tree.cohorts["org"].subtree == {}
    assert made.tree.lendable_of(made.tree.cohorts["team"]) == {GPU: 8}
    assert (made.share("a"), made.share("b", more={KEY: 4})) == ((False, 250.0), (False, 500.0))


def test_a_bottleneck_is_the_lowest_cohort_whose_own_limit_stops_a_queue():
    made = example_a()
    assert [bottleneck(made, queue) for queue in ("vision", "ads")] == ["research", None]  # 26 of 34
    hold(made, "a", "ads", 20)
    assert bottleneck(made, "vision") is None  # org has 14 left, and research might have 16 of them
    hold(made, "v", "vision", 20)
    (missing,) = made.missing_quota("vision", {KEY: 9})
    assert (missing.lacking, missing.cohort) == (1, "")  # org has 8 left: 34 less 20 and 6
    made.release_quota("a")
    (missing,) = made.missing_quota("vision", {KEY: 11})
    assert (missing.lacking, missing.cohort) == (1, "research")
    assert made.use_of_cohort("research", KEY) == (26, 16)
    assert made.members_below("vision", "research") == {"vision", "speech"}
    (missing,) = made.missing_quota("speech", {KEY: 11})
    assert (missing.lacking, missing.cohort) == (1, "research")
    made.release_quota("v")
    (missing,) = made.missing_quota("speech", {KEY: 13})
    assert (missing.lacking, missing.cohort) == (1, "")  # its own limit stops it


def bottleneck(made, queue):
    found = made.tree.bottleneck(node_of(made, queue), KEY)
    return found and found.name


def random_quota(dice):
    return dice.choice([0, 4, 8, 12]), dice.choice([None, None, 0, 3, 6]), dice.choice([None, None, 0, 5, 10])


def test_one_level_is_what_it_was():
    dice = random.Random(11)
    for _ in range(500):
        made, queues, weights = Quotas(), {}, {}
        for number in range(dice.randint(1, 4)):
            name = f"q{number}"
            quotas = {key: random_quota(dice) for key in (KEY, OTHER) if dice.random() < 0.8}
            queues[name], weights[name] = quotas, dice.choice([0, 500, 1000, 3000])
            made.set_queue(ClusterQueue(name=name, groups=make_groups(quotas), cohort="c", weight=weights[name]))
        flat = FlatQuota(queues, {name: {} for name in queues}, weights)
        for step in range(30):
            queue, amounts = dice.choice([*queues]), {KEY: dice.randrange(5), OTHER: dice.randrange(3)}
            made.charge_workload(f"w{step % 9}", Held(queue, amounts))
            flat.used = {name: dict(made.usage(name)) for name in queues}
            for name in queues:
                more = {KEY: dice.randrange(6), OTHER: dice.randrange(3)}
                for key in (KEY, OTHER):
                    assert made.available(name, key) == flat.available(name, key)
                    assert made.limit(name, key) == flat.limit(name, key)
                assert made.borrows(name, more) == flat.borrows(name, more)
                assert (made.borrowing_level(name, more) > 0) == flat.borrows(name, more)
                infinite, share = made.share(name, more)
                assert (float("inf") if infinite else share) == pytest.approx(flat.share(name, more))


class World:
    """A tree and its oracle, changed at random in the same way."""

    def __init__(self, dice):
        self.dice, self.made, self.oracle = dice, Quotas(), TreeOracle()
        self.opened = []

    def step(self):
        dice = self.dice
        queue, holder = f"q{dice.randrange(5)}", f"w{dice.randrange(12)}"
        cohort = f"c{dice.randrange(5)}"
        match dice.randrange(12):
            case 0 | 1 if not self.opened:
                quotas, parent = self.quotas(), dice.choice(["", "c0", "c1", "c2", "c3"])
                self.oracle.queues[queue] = quotas, parent
                self.made.set_queue(ClusterQueue(name=queue, groups=make_groups(quotas), cohort=parent))
            case 2 | 3 if not self.opened:
                quotas, parent = self.quotas(), dice.choice(["", "c0", "c1", "c2", "c3", "c4"])
                self.oracle.cohorts[cohort] = quotas, parent
                self.made.set_cohort(Cohort(name=cohort, groups=make_groups(quotas), parent=parent))
            case 4 if not self.opened:
                (self.oracle.queues if dice.random() < 0.5 else self.oracle.cohorts).pop(queue, None)
                self.oracle.cohorts.pop(cohort, None)
                self.made.remove_cohort(cohort)
                if queue not in self.oracle.queues:
                    self.made.remove_queue(queue)
            case 5:
                self.opened.append((dict(self.oracle.held), self.made.begin()))
            case 6 if self.opened:
                self.oracle.held, depth = self.opened.pop()
                self.made.rollback(depth)
            case 7 if self.opened:
                self.made.commit(self.opened.pop()[1])
            case 8:
                some = [f"w{number}" for number in dice.sample(range(12), 4)]
                self.made.free_all(some)
                for key in some:
                    self.oracle.held.pop(key, None)
            case 9:
                leaving = dice.random() < 0.6
                self.made.mark_leaving(holder, leaving=leaving)
                if holder in self.oracle.held:
                    self.oracle.held[holder] = (*self.oracle.held[holder][:2], leaving)
            case _:
                amounts = {KEY: dice.randrange(9), OTHER: dice.randrange(4)}
                self.oracle.held[holder] = queue, amounts, dice.random() < 0.2
                self.made.charge_workload(holder, Held(queue, amounts, self.oracle.held[holder][2]))

    def quotas(self):
        return {key: random_quota(self.dice) for key in (KEY, OTHER) if self.dice.random() < 0.8}

    def compare(self):
        made, oracle = self.made, self.oracle
        for name in [f"c{number}" for number in range(5)]:
            node = made.tree.cohorts.get(name)
            for key in (KEY, OTHER) if node is not None else ():
                mine = node.subtree.get(key, 0), node.local.get(key, 0), node.usage.get(key, 0)
                assert mine == tuple(ask(("c", name), key) for ask in (oracle.subtree, oracle.local, oracle.usage))
                stays = node.usage.get(key, 0) - node.gone.get(key, 0)
                assert stays == oracle.usage(("c", name), key, stays=True)
        for name, (quotas, _) in oracle.queues.items():
            at = ("q", name)
            stopped = oracle.cycle(oracle.root(at))
            assert bool(made.cycle_of(name)) == stopped
            assert made.members(name) == {one for kind, one in oracle.below(oracle.root(at)) if kind == "q"}
            for key in (KEY, OTHER):
                open_ = key in quotas and not stopped
                assert made.available(name, key) == (oracle.left(at, key) if open_ else 0)
                assert made.limit(name, key) == (oracle.potential(at, key) if open_ else 0)
                amount, less = self.dice.randrange(1, 20), self.dice.randrange(made.used(name, key) + 1)
                assert made.borrowing_level(name, {key: amount}, {key: less}) == oracle.level(name, key, amount, less)


def test_changes_add_up_to_what_a_new_tree_would_say():
    for seed in range(60):
        world = World(random.Random(seed))
        for _ in range(60):
            world.step()
            world.compare()
