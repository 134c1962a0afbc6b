"""Boosts of priorities: what an annotation says, when it counts, and that changing it evicts nobody for ever.

Example I of QUEUES-PARITY (Kueue 0.19.2, KEP-7990): x has priority 100, y 90, and there is room for one of them.
"""

import msgspec
import pytest
from support.owned import KEYS, context, make_admission, make_job, make_known, make_owner, make_record, slot_map
from support.queue_factories import make_queue, make_queues, make_state, make_workload, run, submit

from kube.objects import Condition
from kube.workloads import StoredBoost, WorkloadObject
from queueing.model import Preemption, Within
from ungater.jobs.job import owner_of as owner_view
from ungater.model.actions import CountBoost, RequeueAfter
from ungater.model.admission import Nomination
from ungater.model.conditions import ADMITTED, QUOTA_RESERVED, timestamp
from ungater.model.life import LifeRules
from ungater.model.workload_status import counted_boost, observed_of
from ungater.reconcile.boosts import follow_boost, read_boost
from ungater.reconcile.reconcile import reconcile

WALL = 1_800_000_000.0
REST = LifeRules().boost_rest
MOST, LEAST = (1 << 31) - 1, -(1 << 31)


@pytest.mark.parametrize(
    ("text", "boost"),
    [
        *(("20", 20), ("-20", -20), ("+5", 5), ("007", 7), ("0", 0), (str(MOST), MOST), (str(LEAST), LEAST)),
        # No number of 32 bits: 0, as in Kueue's EffectivePriority.
        *((str(MOST + 1), 0), (str(LEAST - 1), 0), ("9" * 5000, 0), ("", 0), ("twenty", 0), ("1e3", 0), ("2.0", 0)),
        *((" 5", 0), ("5\n", 0), ("1_000", 0), ("٣", 0), ("--1", 0), ("0x10", 0)),
    ],
)
def test_what_an_annotation_says(text, boost):
    assert read_boost(text) == boost


@pytest.mark.parametrize(
    ("priority", "boost", "counts"),
    [(90, 20, 110), (90, -200, -110), (MOST, MOST, MOST), (LEAST, LEAST, LEAST), (MOST, LEAST, -1)],
)
def test_the_sum_is_a_priority_of_32_bits(priority, boost, counts):
    # More could be stored neither in status.nomination nor compared with the priority of a pod. (Kueue has 64 bits.)
    body = {"spec": {"priority": priority}, "status": counted_boost(boost, WALL)}
    found = msgspec.convert({"metadata": {"name": "w"}, **body}, WorkloadObject)
    assert (found.effective_priority, observed_of(found).effective_priority) == (counts, counts)
    assert found.status.priority_boost == StoredBoost(boost, timestamp(WALL))
    assert observed_of(found).boost_since == WALL


def decided(asked, boost=0, *, since=None, held_for=None, nominated=False, rest=REST, queue="team", key=None):
    """What is to be done where an annotation asks for a boost; ``since`` and ``held_for``: so many seconds."""
    owner = make_owner(labels={KEYS.queue_name: queue} if queue else {}, suspend=held_for is None)
    admission = make_admission(slot_map(("b/r/n1", 2)), queue="cq")
    conditions, held = [], admission if held_for is not None else None
    if held_for is not None:
        at = timestamp(WALL - held_for)
        conditions = [Condition(type=one, status="True", last_transition_time=at) for one in (QUOTA_RESERVED, ADMITTED)]
    observed = msgspec.structs.replace(
        make_known(owner, admission=held, conditions=conditions),
        boosts={key or KEYS.priority_boost: asked},
        boost=boost,
        boost_since=None if since is None else WALL - since,
        nomination=Nomination(admission, {"ns/victim": "u"}) if nominated else None,
    )
    record = make_record(owner, admission=held, observed=observed, started=held_for is not None)
    rules = context(life=LifeRules(boost_rest=rest))
    actions = reconcile(record, rules, 0.0, WALL)
    found = [one for one in actions if isinstance(one, CountBoost)]
    assert not found or actions[0] is found[0], "before anything that its priority decides"
    return found[0].value if found else next((one.after for one in actions if isinstance(one, RequeueAfter)), None)


def test_the_first_boost_counts_at_once():
    assert decided("20") == 20
    assert decided("-20") == -20
    assert decided("20", held_for=5.0) == 20


def test_what_counts_already_is_not_written_again():
    assert decided("20", 20) is None
    assert decided("no number", 0) is None
    assert decided("20", key="team.example/priority-boost") is None, "the annotation of somebody else"


def test_another_boost_counts_once_the_one_before_has_rested():
    for asked in ("30", "0", "-5", "no number"):
        assert decided(asked, 20, since=100.0) == 500.0
        assert decided(asked, 20, since=600.0) == read_boost(asked)
        assert decided(asked, 20, since=100.0, rest=0.0) == read_boost(asked), "0: at once, as in Kueue"


def test_what_a_boost_let_in_keeps_it_for_as_long_as_it_would_rest():
    # It waited for an hour with its boost, and the boost falls as soon as it runs.
    assert decided("0", 20, since=3600.0, held_for=10.0) == 590.0
    assert decided("0", 20, since=3600.0, held_for=600.0) == 0
    assert decided("0", 20, since=3600.0, held_for=10.0, rest=0.0) == 0
    # It may rise: that takes room from nobody who was let in by it.
    assert decided("30", 20, since=3600.0, held_for=10.0) == 30
    # A boost that falls below 0 after a run time, as kueue-priority-booster writes it, counts then.
    assert decided("-1000", 0, held_for=1800.0) == -1000
    assert decided("-1000", 0, held_for=60.0) == 540.0


def test_a_boost_does_not_fall_while_others_make_room_for_it():
    assert decided("0", 20, since=3600.0, nominated=True) is None
    assert decided("30", 20, since=3600.0, nominated=True) == 30


def test_times_that_are_still_to_come_hold_no_boost():
    assert decided("0", 20, since=-86_400.0) == 0
    assert decided("0", 20, since=3600.0, held_for=-86_400.0) == 0


def test_without_a_queue_no_boost_counts():
    assert decided("20", queue="") is None


class Pair:
    """x and y, with room for one of them. An annotation is followed each second, as the API server's clock goes."""

    def __init__(self, rest=REST, restarts=False):
        self.state = make_state(1, 1)
        self.queues = make_queues(make_queue("q", 8, preemption=Preemption(within=Within.LOWER)))
        self.rules, self.restarts = context(life=LifeRules(boost_rest=rest)), restarts
        self.base, self.now, self.evicted = {"x": 100, "y": 90}, 0, []
        self.reserved = dict.fromkeys(self.base)
        self.records = {}
        for name in self.base:
            owner = owner_view(make_job(name, labels={KEYS.queue_name: "q"}, suspend=True), KEYS)
            self.records[name] = make_record(owner, observed=make_known(owner, priority=self.base[name]))
        self.ask("x", "0")

    def ask(self, name, text):
        record = self.records[name]
        record.observe(msgspec.structs.replace(record.observed, boosts={KEYS.priority_boost: text}))

    def second(self):
        wall = WALL + self.now
        for name, record in self.records.items():
            for action in follow_boost(record, self.reserved[name], self.rules, wall):
                if isinstance(action, CountBoost):
                    record.observe(msgspec.structs.replace(record.observed, boost=action.value, boost_since=wall))
            if self.restarts and record.observed.boost_since is not None:  # nothing but what is stored is left
                status = counted_boost(record.observed.boost, record.observed.boost_since)
                stored = observed_of(msgspec.convert({"metadata": {"name": name}, "status": status}, WorkloadObject))
                kept = {"boost": stored.boost, "boost_since": stored.boost_since}
                record.observe(msgspec.structs.replace(record.observed, **kept))
            made = make_workload(name, priority=record.observed.effective_priority, created=float(name == "y"))
            submit(self.queues, made, now=float(self.now))
        for _ in range(3):  # victims are gone at once
            made = run(self.state, self.queues, float(self.now))
            for one in made.preempting:
                for victim in one.victims:
                    self.evicted.append((self.now, str(victim.key)))
                    self.reserved[victim.key] = None
                    self.queues.release_and_requeue(self.state, victim.key, float(self.now))
            for one in made.admitted:
                self.reserved[one.key] = wall
        self.now += 1

    def pass_time(self, seconds):
        for _ in range(seconds):
            self.second()

    @property
    def runs(self):
        return [name for name, at in self.reserved.items() if at is not None]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_boost_that_falls_after_the_admission_makes_no_victim_of_what_it_let_in(restarts):
    pair = Pair(restarts=restarts)
    pair.second()
    assert pair.runs == ["x"]
    pair.ask("y", "20")
    pair.second()
    assert (pair.runs, pair.evicted) == (["y"], [(1, "x")])
    pair.pass_time(10)
    pair.ask("y", "0")
    pair.pass_time(588)
    assert pair.runs == ["y"], "nobody moves"
    pair.pass_time(3)
    assert (pair.runs, pair.evicted) == (["x"], [(1, "x"), (601, "y")])


def test_with_no_rest_x_is_back_at_once_as_in_kueue():
    pair = Pair(rest=0.0)
    pair.second()
    pair.ask("y", "20")
    pair.second()
    pair.ask("y", "0")
    pair.second()
    assert (pair.runs, pair.evicted) == (["x"], [(1, "x"), (2, "y")])


def flip(_pair, second):
    """y's boost, on and off each second."""
    return {"y": str(20 * (second % 2))}


def both(_pair, second):
    """Both, so that the one that runs has the lower priority a second later."""
    return {"x": str(40 * (second % 2)), "y": str(40 * ((second + 1) % 2))}


def climb(pair, second):
    """Ever more for the one that waits."""
    return {name: str(100 * second) for name in pair.base if name not in pair.runs}


@pytest.mark.parametrize("way", [flip, both, climb])
def test_boosts_that_change_each_second_have_nobody_evicted_each_second(way):
    evicted = {}
    for rest, seconds in ((REST, 3600), (0.0, 60)):
        pair = Pair(rest=rest)
        for second in range(seconds):
            for name, text in way(pair, second).items():
                pair.ask(name, text)
            pair.second()
        evicted[rest] = pair.evicted
    assert len(evicted[0.0]) >= 25, "without a rest they do evict each other"
    # Each of the two has another boost at most once in ten minutes, so in an hour there are no more than twelve.
    assert 1 <= len(evicted[REST]) <= 12
