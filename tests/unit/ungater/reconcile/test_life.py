"""A workload's life: each state and what is asked for in it; and a simulated API server that does what is asked."""

import random

import msgspec
import pytest
from support.owned import make_pod

from engine.reasons import Reason
from kube.objects import Condition
from ungater.model import conditions as names
from ungater.model.actions import (
    ClearAdmission,
    Deactivate,
    Dequeue,
    Evict,
    EvictPods,
    RequeueAfter,
    Start,
    Suspend,
    WriteConditions,
)
from ungater.model.life import Check, CheckVerdict, Evicted, Life, LifeRules
from ungater.reconcile.lifecycle import live_on, seconds_away

PODS = tuple(make_pod(name, node="n1") for name in "abc")
RULES = LifeRules(
    ready_timeout=300, recovery_timeout=100, backoff=10, backoff_most=60, backoff_limit=2, replacement=30, retention=500
)
HELD = Life(reserved_at=0.0, wanted=4)
RUNNING = msgspec.structs.replace(HELD, admitted_at=0.0, suspended=False, started=True)
READY = msgspec.structs.replace(RUNNING, ready=4, ready_at=50.0)


def change(life, **values):
    return msgspec.structs.replace(life, **values)


def asked(life, now=1.0, rules=RULES):
    return list(live_on(life, rules, now))


def said(write):
    """What a write says: type, status, reason."""
    return write.wanted[0].type, write.wanted[0].status


def test_one_that_waits_asks_for_nothing_until_its_time():
    assert asked(Life()) == []
    assert asked(Life(requeue_at=9.0)) == [RequeueAfter(8.0)]
    assert asked(Life(requeue_at=9.0), 9.0) == []
    assert asked(Life(suspended=False, unadmitted="why")) == [Suspend("why")]
    assert asked(Life(active=False)) == [Dequeue()]
    assert asked(Life(active=False, requeue_at=9.0)) == [Dequeue()], "no time ends that"
    assert asked(Life(active=False, suspended=False, unadmitted="why")) == [Dequeue(), Suspend("why")]
    assert (Life(active=False).on_hold, Life().on_hold, change(HELD, active=False).on_hold) == (True, False, False)


def test_quota_then_checks_then_admitted_then_started():
    pending = change(HELD, checks=(Check(name="topo", state=CheckVerdict.PENDING),))
    (wait,) = asked(pending)
    assert said(wait) == (names.ADMITTED, False)
    assert "topo" in wait.wanted[0].message
    (admit,) = asked(change(pending, checks=(Check(name="topo", state=CheckVerdict.READY),)))
    assert said(admit) == (names.ADMITTED, True)
    assert asked(change(HELD, admitted_at=1.0)) == [Start()]


def test_a_rejected_check_deactivates_and_a_retry_comes_back():
    rejected = change(HELD, checks=(Check(name="c", state=CheckVerdict.REJECTED, message="no"),))
    (found,) = asked(rejected)
    assert isinstance(found, Evict)
    assert "no" in found.message
    gone = Evicted(reason=str(found.reason), message=found.message, at=2.0)
    off, release = asked(change(rejected, evicted=gone), 3.0)
    assert isinstance(off, Deactivate)
    assert release.leave
    (retry,) = asked(change(HELD, checks=(Check(name="c", state=CheckVerdict.RETRY),)))
    assert retry.reason is Reason.CHECK_RETRY


def test_pods_ready_and_not_ready_any_more():
    assert asked(change(RUNNING, ready=4, most_execution=1000.0)) == [RequeueAfter(999.0)]
    assert asked(READY) == []
    (lost, look) = asked(change(READY, ready=3), 60.0)
    assert (said(lost), look) == ((names.PODS_READY, False), RequeueAfter(90.0))
    assert "3 of 4" in lost.wanted[0].message


@pytest.mark.parametrize(
    ("life", "at", "reason"),
    [
        (RUNNING, 300.0, Reason.PODS_READY_TIMEOUT),
        (change(RUNNING, unready_at=200.0), 300.0, Reason.PODS_READY_TIMEOUT),
        (change(READY, lost_at=100.0), 130.0, Reason.REPLACEMENT_TIMEOUT),
        (change(READY, most_execution=90.0, executed=20.0), 70.0, Reason.MAXIMUM_EXECUTION_TIME),
    ],
)
def test_deadlines_evict_at_their_time_and_not_before(life, at, reason):
    assert asked(life, at - 0.5) == [RequeueAfter(0.5)]
    assert asked(life, at)[-1].reason is reason


def test_no_timeout_without_a_rule():
    assert asked(RUNNING, 1e9, LifeRules()) == []


def test_an_eviction_goes_step_by_step():
    gone = Evicted(reason="Preempted", message="for ns/x", at=5.0)
    life = change(READY, evicted=gone, bound=PODS, conditions=(is_true(names.ADMITTED),))
    assert asked(life, 6.0) == [EvictPods(PODS, "for ns/x")]
    life = change(life, bound=())
    assert asked(life, 7.0) == [Suspend()]
    life = change(life, suspended=True)
    (release,) = asked(life, 8.0)
    assert (reason_of(release), release.until, release.requeues, release.leave) == (Reason.PREEMPTED, 8.0, 0, False)


def is_true(type_):
    return Condition(type=type_, status="True", reason="r", message="m", last_transition_time="")


def reason_of(release):
    """Why it is not admitted any more."""
    return next(one.reason for one in release.wanted if one.type == names.ADMITTED)


def test_an_eviction_for_a_reason_that_somebody_else_wrote_goes_like_a_preemption():
    gone = Evicted(reason="NodeMaintenance", message="by hand", at=5.0)
    (release,) = asked(change(READY, evicted=gone, suspended=True, conditions=(is_true(names.ADMITTED),)), 8.0)
    assert (reason_of(release), release.until, release.leave) == (Reason.PREEMPTED, 8.0, False)


def test_timeouts_back_off_and_end_at_the_limit():
    assert [seconds_away(RULES, n) for n in (1, 2, 3, 4, 99)] == [10, 20, 40, 60, 60]
    gone = Evicted(reason="PodsReadyTimeout", message="2 of 4", at=100.0)
    life = change(HELD, evicted=gone)
    (release,) = asked(life, 101.0)
    assert (release.until, release.requeues) == (110.0, 1)
    (release,) = asked(change(life, requeues=1), 101.0)
    assert (release.until, release.requeues) == (120.0, 2)
    off, release = asked(change(life, requeues=2), 101.0)
    assert off.reason is Reason.REQUEUE_LIMIT
    assert "2 times" in off.message
    assert release.leave


def test_inactive_and_suspended_by_hand_give_back():
    assert asked(change(READY, active=False), 60.0)[0].reason is Reason.DEACTIVATED
    assert asked(change(READY, suspended=True), 60.0)[0].reason is Reason.SUSPENDED


def test_a_victim_is_told_by_which_rule():
    found = Evict(Reason.PREEMPTED, "for ns/x", Reason.RECLAIMED)
    assert [(one.type, one.status, one.reason) for one in found.wanted] == [
        (names.EVICTED, True, Reason.PREEMPTED),
        (names.PREEMPTED, True, Reason.RECLAIMED),
    ]
    assert [one.type for one in Evict(Reason.SUSPENDED, "by hand").wanted] == [names.EVICTED]


class Server:
    """Does what is asked, one thing at a time, and forgets everything else."""

    def __init__(self, dice):
        self.dice = dice
        self.now = 0.0
        self.life = Life(wanted=3)
        self.queued = True

    def admit(self):
        if self.queued and (self.life.requeue_at or 0) <= self.now:
            self.life = change(self.life, reserved_at=self.now, evicted=None, requeue_at=None)
            self.queued = False

    def do(self, one):
        life, now = self.life, self.now
        match one:
            case WriteConditions((wanted,)) if wanted.type == names.ADMITTED and wanted.status:
                life = change(life, admitted_at=now)
            case WriteConditions((wanted,)) if wanted.type == names.PODS_READY:
                life = change(life, ready_at=None, unready_at=now)
            case Evict(reason=reason, message=message):
                life = change(life, evicted=Evicted(reason=str(reason), message=message, at=now))
            case EvictPods(pods):
                life = change(life, bound=pods[1:], ready=min(life.ready, len(pods) - 1))
            case Suspend():
                life = change(life, suspended=True, ready=0, bound=())
            case Start():
                life = change(life, suspended=False, started=True, bound=PODS)
            case ClearAdmission(until=until, requeues=requeues, leave=leave):
                life = Life(wanted=3, active=life.active, requeue_at=until, requeues=requeues)
                self.queued = not leave
            case Deactivate():
                life = change(life, active=False)
            case Dequeue():
                self.queued = False
        self.life = life

    def say_ready(self):
        """Its pods are ready: this is said with what else is known of them (`ungater.reconcile.pods_ready`)."""
        life = self.life
        if life.ready >= life.wanted and not life.suspended and life.ready_at is None:
            self.life = change(life, ready_at=self.now, unready_at=None)

    def happen(self):
        life = self.life
        match self.dice.choice(("ready", "ready", "unready", "lost", "time", "preempt", "admit", "admit")):
            case "ready" if life.bound:
                self.life = change(life, ready=len(life.bound))
                self.say_ready()
            case "unready" if life.ready:
                self.life = change(life, ready=life.ready - 1)
            case "lost" if life.bound:
                self.life = change(life, lost_at=self.now)
            case "preempt" if life.reserved_at is not None and life.evicted is None:
                self.do(Evict(Reason.PREEMPTED, "for another", Reason.IN_CLUSTER_QUEUE))
            case "admit":
                self.admit()
            case "time":
                self.now += self.dice.choice((1, 40, 400))


@pytest.mark.parametrize("seed", range(200))
def test_what_is_asked_for_always_comes_to_rest(seed):
    server = Server(random.Random(seed))
    for _ in range(60):
        server.happen()
        for _ in range(30):
            found = asked(server.life, server.now)
            assert asked(server.life, server.now) == found
            todo = [one for one in found if not isinstance(one, RequeueAfter | Dequeue)]
            todo = [
                one for one in todo if not (isinstance(one, WriteConditions) and said(one) == (names.ADMITTED, False))
            ]
            assert all(one.after > 0 for one in found if isinstance(one, RequeueAfter))
            if not todo:
                break
            server.do(todo[0])  # and then it is killed, and looks again
        else:
            raise AssertionError(f"it goes round in circles: {found}")
        life = server.life
        assert life.requeues <= 3
        if life.evicted is None and life.reserved_at is None:
            assert not life.bound
