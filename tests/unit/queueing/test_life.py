"""A workload's life: each state and what is asked for in it; and a simulated API server that does what is asked."""

import random

import msgspec
import pytest

from engine.reasons import Reason
from queueing.lifecycle import (
    Check,
    CheckVerdict,
    DeactivateStep,
    Evicted,
    EvictPodsStep,
    EvictStep,
    Finish,
    Leave,
    Life,
    LifeRules,
    LookAgain,
    ReleaseStep,
    RemoveStep,
    Set,
    StartStep,
    SuspendStep,
    WorkloadCondition,
    backoff,
    decide,
    preempted,
)

RULES = LifeRules(
    ready_timeout=300, recovery_timeout=100, backoff=10, backoff_most=60, backoff_limit=2, replacement=30, retention=500
)
HELD = Life(key="ns/w", reserved_at=0.0, wanted=4)
RUNNING = msgspec.structs.replace(HELD, admitted_at=0.0, suspended=False, started=True)
READY = msgspec.structs.replace(RUNNING, ready=4, ready_at=50.0)


def change(life, **values):
    return msgspec.structs.replace(life, **values)


def names(life, now=1.0, rules=RULES):
    return [type(one).__name__ for one in decide(life, rules, now)]


def test_one_that_waits_asks_for_nothing_until_its_time():
    assert decide(Life(key="ns/w"), RULES, 1.0) == ()
    assert decide(Life(key="ns/w", requeue_at=9.0), RULES, 1.0) == (LookAgain(at=9.0),)
    assert decide(Life(key="ns/w", requeue_at=9.0), RULES, 9.0) == ()
    assert decide(Life(key="ns/w", suspended=False), RULES, 1.0) == (SuspendStep(),)
    assert isinstance(decide(Life(key="ns/w", active=False), RULES, 1.0)[0], Leave)


def test_quota_then_checks_then_admitted_then_started():
    pending = change(HELD, checks=(Check(name="topo", state=CheckVerdict.PENDING),))
    (wait,) = decide(pending, RULES, 1.0)
    assert (wait.type, wait.status) == (WorkloadCondition.ADMITTED, False)
    assert "topo" in wait.message
    (admit,) = decide(change(pending, checks=(Check(name="topo", state=CheckVerdict.READY),)), RULES, 1.0)
    assert (admit.type, admit.status) == (WorkloadCondition.ADMITTED, True)
    assert decide(change(HELD, admitted_at=1.0), RULES, 1.0) == (StartStep(),)


def test_a_rejected_check_deactivates_and_a_retry_comes_back():
    rejected = change(HELD, checks=(Check(name="c", state=CheckVerdict.REJECTED, message="no"),))
    (found,) = decide(rejected, RULES, 1.0)
    assert isinstance(found, EvictStep)
    assert "no" in found.message
    gone = Evicted(reason=str(found.reason), message=found.message, at=2.0)
    off, release = decide(change(rejected, evicted=gone), RULES, 3.0)
    assert isinstance(off, DeactivateStep)
    assert release.leave
    (retry,) = decide(change(HELD, checks=(Check(name="c", state=CheckVerdict.RETRY),)), RULES, 1.0)
    assert retry.reason is Reason.CHECK_RETRY


def test_pods_ready_and_not_ready_any_more():
    (ready, later) = decide(change(RUNNING, ready=4, most_execution=1000.0), RULES, 1.0)
    assert (ready.type, ready.status, later) == (WorkloadCondition.PODS_READY, True, LookAgain(at=1000.0))
    assert names(READY) == []
    (lost, look) = decide(change(READY, ready=3), RULES, 60.0)
    assert (lost.status, look) == (False, LookAgain(at=150.0))
    assert "3 of 4" in lost.message


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
    assert decide(life, RULES, at - 0.5) == (LookAgain(at=at),)
    assert decide(life, RULES, at)[-1].reason is reason


def test_no_timeout_without_a_rule():
    assert decide(RUNNING, LifeRules(), 1e9) == ()


def test_an_eviction_goes_step_by_step():
    gone = Evicted(reason="Preempted", message="for ns/x", at=5.0)
    life = change(READY, evicted=gone, bound=3)
    assert decide(life, RULES, 6.0) == (EvictPodsStep(left=3),)
    life = change(life, bound=0)
    assert decide(life, RULES, 7.0) == (SuspendStep(),)
    life = change(life, suspended=True)
    (release,) = decide(life, RULES, 8.0)
    assert (release.reason, release.until, release.requeues, release.leave) == (Reason.PREEMPTED, 8.0, 0, False)


def test_an_eviction_for_a_reason_that_somebody_else_wrote_goes_like_a_preemption():
    gone = Evicted(reason="NodeMaintenance", message="by hand", at=5.0)
    (release,) = decide(change(READY, evicted=gone, bound=0, suspended=True), RULES, 8.0)
    assert (release.reason, release.until, release.leave) == (Reason.PREEMPTED, 8.0, False)


def test_timeouts_back_off_and_end_at_the_limit():
    assert [backoff(RULES, n) for n in (1, 2, 3, 4, 99)] == [10, 20, 40, 60, 60]
    gone = Evicted(reason="PodsReadyTimeout", message="2 of 4", at=100.0)
    life = change(HELD, evicted=gone)
    (release,) = decide(life, RULES, 101.0)
    assert (release.until, release.requeues) == (110.0, 1)
    (release,) = decide(change(life, requeues=1), RULES, 101.0)
    assert (release.until, release.requeues) == (120.0, 2)
    off, release = decide(change(life, requeues=2), RULES, 101.0)
    assert off.reason is Reason.REQUEUE_LIMIT
    assert "2 times" in off.message
    assert release.leave


def test_inactive_and_suspended_by_hand_give_back():
    assert decide(change(READY, active=False), RULES, 60.0)[0].reason is Reason.DEACTIVATED
    assert decide(change(READY, suspended=True), RULES, 60.0)[0].reason is Reason.SUSPENDED


def test_finished_is_kept_and_then_removed():
    done = change(READY, outcome=Reason.SUCCEEDED)
    assert isinstance(decide(done, RULES, 60.0)[0], Finish)
    done = change(done, finished_at=60.0)
    assert decide(done, RULES, 61.0) == (LookAgain(at=560.0),)
    assert decide(done, RULES, 560.0) == (RemoveStep(),)
    assert decide(done, LifeRules(), 1e9) == ()


def test_a_victim_is_told_by_which_rule():
    found = preempted(Reason.RECLAIMED, "for ns/x")
    assert (found.reason, found.detail) == (Reason.PREEMPTED, Reason.RECLAIMED)


class Server:
    """Does what is asked, one thing at a time, and forgets everything else."""

    def __init__(self, dice):
        self.dice = dice
        self.now = 0.0
        self.life = Life(key="ns/w", wanted=3)
        self.queued = True
        self.gone = False

    def admit(self):
        if self.queued and (self.life.requeue_at or 0) <= self.now:
            self.life = change(self.life, reserved_at=self.now, evicted=None, requeue_at=None)
            self.queued = False

    def do(self, one):
        life, now = self.life, self.now
        match one:
            case Set(type=WorkloadCondition.ADMITTED, status=True):
                life = change(life, admitted_at=now)
            case Set(type=WorkloadCondition.PODS_READY, status=status):
                life = change(life, ready_at=now if status else None, unready_at=None if status else now)
            case EvictStep(reason=reason, message=message):
                life = change(life, evicted=Evicted(reason=str(reason), message=message, at=now))
            case EvictPodsStep():
                life = change(life, bound=life.bound - 1, ready=min(life.ready, life.bound - 1))
            case SuspendStep():
                life = change(life, suspended=True, ready=0, bound=0)
            case StartStep():
                life = change(life, suspended=False, started=True, bound=life.wanted)
            case ReleaseStep(until=until, requeues=requeues, leave=leave):
                life = Life(key=life.key, wanted=3, active=life.active, requeue_at=until, requeues=requeues)
                self.queued = not leave
            case DeactivateStep():
                life = change(life, active=False)
            case Leave():
                self.queued = False
            case Finish():
                life = change(life, finished_at=now)
            case RemoveStep():
                self.gone = True
        self.life = life

    def happen(self):
        life = self.life
        match self.dice.choice(("ready", "ready", "unready", "lost", "time", "preempt", "done", "admit", "admit")):
            case "ready" if life.bound:
                self.life = change(life, ready=life.bound)
            case "unready" if life.ready:
                self.life = change(life, ready=life.ready - 1)
            case "lost" if life.bound:
                self.life = change(life, lost_at=self.now)
            case "preempt" if life.reserved_at is not None and life.evicted is None:
                self.do(preempted(Reason.IN_CLUSTER_QUEUE, "for another"))
            case "done" if life.ready == 3 and self.dice.random() < 0.2:
                self.life = change(life, outcome=Reason.SUCCEEDED)
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
            asked = decide(server.life, RULES, server.now)
            assert decide(server.life, RULES, server.now) == asked
            todo = [one for one in asked if not isinstance(one, LookAgain | Leave)]
            todo = [
                one for one in todo if not (isinstance(one, Set) and not one.status and server.life.ready_at is None)
            ]
            assert all(one.at > server.now for one in asked if isinstance(one, LookAgain))
            if not todo or server.gone:
                break
            server.do(todo[0])  # and then it is killed, and looks again
        else:
            raise AssertionError(f"it goes round in circles: {asked}")
        life = server.life
        assert life.requeues <= 3
        if life.evicted is None and life.reserved_at is None:
            assert life.bound == 0
