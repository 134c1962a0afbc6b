"""Which workloads budgets keep, from events of budgets and pods."""

import itertools

import msgspec
import pytest
from support.owned import make_job, make_owner, make_pod
from support.world import FLAVOR, NODES, World

from engine.cluster.filters import selects
from kube.budgets import BudgetSpec, BudgetStatus, PodDisruptionBudget
from kube.informer import Event, EventKind
from kube.objects import LabelSelector, ObjectMeta, Requirement, key
from queueing.queues.pdb import Budgets
from ungater.cache import pdb
from ungater.cache.pdb import BudgetWatch


class Watching(World):
    """A world with two jobs of two pods each that run, labelled by the name of their job; and a watch of budgets."""

    def __init__(self):
        super().__init__()
        self.put("flavor", FLAVOR)
        for node in NODES:
            self.put("node", node)
        self.watch = BudgetWatch(self.memory)
        self.budgets = {}
        self.keys = {}
        for name in ("one", "two"):
            job = make_job(name, parallelism=2, uid=name)
            self.put("job", job)
            owner = make_owner(name, parallelism=2, uid=name)
            self.keys[owner.workload_key] = name
            for number in range(2):
                self.tell(labelled(make_pod(f"{name}-{number}", owner=owner, node="r1-h1", gated=False), job=name))

    def tell(self, pod, *, gone=False):
        old = self.stores["pod"].get(key(pod))
        (self.drop if gone else self.put)("pod", pod)
        self.watch.follow_pod(Event(EventKind.MODIFIED, key(pod), old, None if gone else pod))

    def budget(self, name, allowed, selector, namespace="ns", **meta):
        status = BudgetStatus(disruptions_allowed=allowed, observed_generation=1)
        meta = ObjectMeta(name=name, namespace=namespace, generation=1, **meta)
        self.says(PodDisruptionBudget(metadata=meta, spec=BudgetSpec(selector), status=status))

    def says(self, budget):
        old = self.budgets.get(key(budget))
        self.budgets[key(budget)] = budget
        self.watch.on_budget(Event(EventKind.MODIFIED, key(budget), old, budget))

    def forget(self, name):
        budget = self.budgets.pop(name)
        self.watch.on_budget(Event(EventKind.DELETED, name, budget, None))

    def kept(self):
        """The jobs that are nobody's victims."""
        self.watch.report_changes()
        return [self.keys[name] for name in sorted(self.memory.queues.budgets.guarded)]


def labelled(pod, **labels):
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))


def of(job):
    return LabelSelector(match_labels={"job": job})


@pytest.fixture
def world():
    return Watching()


def test_who_has_more_pods_than_a_budget_lets_go_is_kept_until_it_lets_them(world):
    world.budget("small", 1, of("one"))
    assert world.kept() == ["one"]
    before = world.memory.generation
    world.budget("small", 2, of("one"))
    assert world.kept() == []
    assert world.memory.generation > before, "who waits is looked at again"
    world.budget("small", 0, LabelSelector(match_expressions=(Requirement("job", "In", ("one", "two")),)))
    assert world.kept() == ["one", "two"]
    world.forget("ns/small")
    assert world.kept() == []


def test_a_budget_counts_in_its_namespace_and_from_when_its_controller_has_seen_it(world):
    world.budget("elsewhere", 0, of("one"), namespace="other")
    world.budget("nobody", 0, None)
    assert world.kept() == []
    unseen = PodDisruptionBudget(
        metadata=ObjectMeta(name="new", namespace="ns", generation=2),
        spec=BudgetSpec(of("one")),
        status=BudgetStatus(disruptions_allowed=2, observed_generation=1),
    )
    world.says(unseen)
    assert world.kept() == ["one"]


def test_pods_that_end_or_wait_are_not_asked_for(world):
    world.budget("small", 1, of("one"))
    assert world.kept() == ["one"]
    pod = world.stores["pod"]["ns/one-0"]
    world.tell(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Succeeded")))
    assert world.kept() == []
    owner = make_owner("one", parallelism=2, uid="one")
    world.tell(labelled(make_pod("one-2", owner=owner), job="one"))
    assert world.kept() == []
    world.tell(labelled(make_pod("one-3", owner=owner, node="r1-h2", gated=False), job="one"))
    assert world.kept() == ["one"]
    world.tell(world.stores["pod"]["ns/one-3"], gone=True)
    assert world.kept() == []


def test_of_budgets_and_jobs_that_are_gone_nothing_is_kept(world):
    budgets, before = world.memory.queues.budgets, dict(vars(world.memory.queues.budgets))
    world.budget("small", 0, of("one"))
    assert world.kept() == ["one"]
    assert budgets._holders
    world.drop("job", world.stores["job"]["ns/one"])
    assert world.kept() == []
    assert world.watch._keyed == {}
    world.forget("ns/small")
    assert vars(budgets) == before == vars(Budgets())


def test_a_pod_of_two_budgets_can_go_for_nobody(world):
    world.budget("a", 9, of("one"))
    assert world.kept() == []
    world.budget("b", 9, of("one"))
    assert world.kept() == ["one"]
    world.forget("ns/a")
    assert world.kept() == []


def test_a_job_that_is_gone_takes_nothing(world):
    world.budget("small", 0, of("one"))
    assert world.kept() == ["one"]
    world.drop("job", world.stores["job"]["ns/one"])
    world.tell(world.stores["pod"]["ns/one-0"], gone=True)
    assert world.kept() == []


# --- what many of them cost ------------------------------------------------------------------------------------------


class Comparing:
    """Counts how often a budget is compared with a pod."""

    def __init__(self, monkeypatch):
        self.times = 0
        selects = pdb._Matcher.selects

        def counted(matcher, labels):
            self.times += 1
            return selects(matcher, labels)

        monkeypatch.setattr(pdb._Matcher, "selects", counted)

    def since(self):
        times, self.times = self.times, 0
        return times


def test_a_change_compares_what_changed_and_nothing_else(world, monkeypatch):
    comparing = Comparing(monkeypatch)
    for number in range(20):
        world.budget(f"b{number}", 0, of(f"other-{number}"))
    assert world.kept() == []
    assert comparing.since() == 20 * 4, "each budget with each pod"
    world.budget("b7", 0, of("one"))
    assert world.kept() == ["one"]
    assert comparing.since() == 4, "one budget with each pod"
    world.tell(labelled(make_pod("one-9", owner=make_owner("one", uid="one"), node="r1-h1", gated=False), job="one"))
    assert world.kept() == ["one"]
    assert comparing.since() == 20, "each budget with one pod"
    world.forget("ns/b7")
    assert world.kept() == []
    assert comparing.since() == 0


def test_a_pod_that_is_labelled_anew_counts_for_other_budgets(world):
    world.budget("small", 1, of("one"))
    assert world.kept() == ["one"]
    world.tell(labelled(world.stores["pod"]["ns/one-0"], job="none"))
    assert world.kept() == []


def many(start, count):
    return [f"b{number}" for number in range(start, start + count)]


def test_where_there_are_more_budgets_than_are_compared_nobody_can_be_evicted(world, monkeypatch):
    for name in many(0, pdb.MOST_BUDGETS):
        world.budget(name, 9, of("other"))
    assert world.kept() == []
    comparing = Comparing(monkeypatch)
    world.budget("more", 9, of("other"))
    assert world.kept() == ["one", "two"]
    world.forget("ns/more")
    assert world.kept() == []
    assert comparing.since() == 0, "coming and going of one too many has nothing counted again"
    world.budget("more", 0, of("two"))
    world.forget("ns/b0")
    assert world.kept() == ["two"], "it takes the place of one that is gone"


def test_so_it_is_with_selectors_that_are_too_large(world, monkeypatch):
    comparing = Comparing(monkeypatch)
    values = tuple(many(0, pdb.MOST_TERMS))
    world.budget("large", 9, LabelSelector(match_expressions=(Requirement("job", "NotIn", values),)))
    assert world.kept() == ["one", "two"]
    assert comparing.since() == 0
    world.budget("large", 9, LabelSelector(match_expressions=(Requirement("job", "NotIn", values[1:]),)))
    assert world.kept() == []
    assert comparing.since() == 4


REQUIREMENTS = [
    Requirement(key, operator, values)
    for key in ("job", "tier")
    for operator, values in (
        ("In", ("one",)),
        ("In", ("one", "two")),
        ("NotIn", ("one",)),
        ("NotIn", ("two", "three")),
        ("Exists", ()),
        ("DoesNotExist", ()),
    )
]


def test_a_selector_selects_as_kubernetes_has_it():
    for some in (*itertools.combinations(REQUIREMENTS, 1), *itertools.combinations(REQUIREMENTS, 3), ()):
        matcher = pdb._Matcher.from_selector(LabelSelector(match_expressions=some))
        for job, tier in itertools.product((None, "one", "two", "four"), repeat=2):
            labels = {key: value for key, value in (("job", job), ("tier", tier)) if value is not None}
            assert matcher.selects(labels) == selects(some, labels), (some, labels)
