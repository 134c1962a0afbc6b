"""How long quota is kept without a place, and the three steps in which it is given back."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.reasons import Reason
from ungater.kueue import retries as r
from ungater.kueue.answers import Side
from ungater.kueue.retries import (
    FIRST_BACKOFF,
    HOPELESS,
    LONGEST_BACKOFF,
    NeverFits,
    RetryAnswer,
    RetryLimits,
    RetryVerdict,
)
from ungater.model import kueue_objects as kueue
from ungater.model.kueue_objects import PENDING, READY, REJECTED, RETRY, KueueCheckState

NOW = 1_800_000_000.0
RESET = "Reset to Pending after eviction. Previously: Retry"
TOLD = RetryAnswer("NeverFits: m", 120)
FINAL = [Reason.INVALID_REQUEST, Reason.CONTRADICTING_REQUESTS, Reason.UNSUPPORTED_OWNER, Reason.NOT_GATED]


def at(seconds):
    return datetime.fromtimestamp(NOW + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_workload(
    name="w", *, state=PENDING, reserved=0.0, evicted=None, why="AdmissionCheck", requeued=None, again=None, **more
):
    """Times are seconds from NOW; ``reserved`` None: without quota. ``more``: of the check, or below."""
    conditions = [("QuotaReserved", reserved is not None, "x", reserved or 0)]
    if evicted is not None:
        conditions.append(("Evicted", True, why, evicted))
    if requeued is not None:
        conditions.append(("Requeued", requeued, "x", 0))
    if more.pop("finished", False):
        conditions.append(("Finished", True, "x", 0))
    spec = {"active": more.pop("active", True), "queueName": more.pop("queue", "team")}
    cluster = more.pop("cluster", "cq")
    status = {
        "conditions": [
            {"type": kind, "status": str(value), "reason": reason, "message": "", "lastTransitionTime": at(when)}
            for kind, value, reason, when in conditions
        ],
        "admissionChecks": [{"name": "c", "state": state, "message": "", "lastTransitionTime": at(0), **more}],
    }
    if reserved is not None:
        status["admission"] = {"clusterQueue": cluster, "podSetAssignments": [{"name": "main"}]}
    if again is not None:
        status["requeueState"] = {"requeueAt": at(again)}
    body = {"metadata": {"name": name, "namespace": "ns"}, "spec": spec, "status": status}
    return msgspec.json.decode(msgspec.json.encode(body), type=kueue.KueueWorkload)


def verdict(reason, *, held, since=None, times=0, others=True, **limits):
    workload, side = make_workload(reserved=-held), Side(True, reason=reason, message="m")
    found = r.verdict(
        workload,
        side,
        RetryLimits(**limits),
        since=NOW - (held if since is None else since) if reason in HOPELESS else None,
        times=times,
        others=lambda: others,
        now=NOW,
    )
    return found.state, found.requeue_after


# --- how long


@pytest.mark.parametrize("policy", NeverFits)
@pytest.mark.parametrize("reason", sorted(HOPELESS))
def test_nothing_final_is_said_at_once_for_nodes_may_be_away_for_a_moment(policy, reason):
    look = None if policy is NeverFits.WAIT else 20.0
    assert verdict(reason, held=10, policy=policy) == (PENDING, look)


def test_the_time_counts_from_the_reservation_and_from_when_it_is_so():
    assert verdict(Reason.NEVER_FITS, held=10, since=500) == (PENDING, 20.0)
    assert verdict(Reason.NEVER_FITS, held=500, since=10) == (PENDING, 20.0)


@pytest.mark.parametrize(
    ("policy", "since", "state"),
    [
        (NeverFits.REJECT, 100, RETRY),
        (NeverFits.REJECT, 600, REJECTED),
        (NeverFits.RETRY, 100, RETRY),
        (NeverFits.RETRY, 100_000, RETRY),
        (NeverFits.WAIT, 100_000, PENDING),
    ],
)
def test_what_only_nodes_or_flavors_could_help_is_sent_away_and_rejected_late_if_ever(policy, since, state):
    for reason in HOPELESS - set(FINAL):
        assert verdict(reason, held=40, since=since, policy=policy) == (state, None)


@pytest.mark.parametrize("reason", FINAL)
def test_what_only_another_job_could_help_is_rejected_without_further_tries(reason):
    assert verdict(reason, held=40) == (REJECTED, None)
    assert verdict(reason, held=40, policy=NeverFits.RETRY) == (RETRY, None)


@pytest.mark.parametrize("reason", [Reason.DOES_NOT_FIT, Reason.NUMA_ALIGNMENT, None])
def test_who_waits_gives_its_quota_to_others_after_a_while_and_is_never_rejected(reason):
    assert verdict(reason, held=3000) == (PENDING, 600.0)
    assert verdict(reason, held=3601) == (RETRY, None)
    assert verdict(reason, held=10**9, policy=NeverFits.REJECT, reject=1) == (RETRY, None)


def test_who_waits_keeps_its_quota_while_nobody_else_wants_it_or_no_time_is_set():
    assert verdict(Reason.DOES_NOT_FIT, held=3601, others=False) == (PENDING, r.WANTED_AGAIN)
    assert verdict(Reason.DOES_NOT_FIT, held=10**9, wait=0) == (PENDING, None)


def test_who_was_sent_away_in_vain_keeps_its_quota_for_twice_as_long_so_that_a_rack_can_become_free():
    assert verdict(Reason.DOES_NOT_FIT, held=3601, times=1) == (PENDING, 3599.0)
    assert verdict(Reason.DOES_NOT_FIT, held=7201, times=1) == (RETRY, None)
    assert verdict(Reason.DOES_NOT_FIT, held=3600 * 33, times=99) == (RETRY, None)


def test_others_are_asked_for_only_when_the_time_is_over():
    def never():
        raise AssertionError

    side = Side(True, reason=Reason.DOES_NOT_FIT, message="m")
    found = r.verdict(make_workload(), side, RetryLimits(), since=None, times=0, others=never, now=NOW)
    assert found == RetryVerdict(PENDING, 3600.0)


@pytest.mark.parametrize(("times", "seconds"), [(0, 60), (1, 120), (3, 480), (9, 1800)])
def test_one_that_is_hopeless_stays_away_longer_each_time_and_one_that_waits_does_not(times, seconds):
    assert r.backoff(times, hopeless=True) == seconds
    assert r.backoff(times, hopeless=False) == FIRST_BACKOFF


def test_tries_are_counted_by_our_checks_or_by_an_older_kueue():
    workload = make_workload(retryCount=3)
    assert r.times_of(workload, workload.status.admission_checks) == 3
    assert r.times_of(workload, ()) == 0
    counted = msgspec.structs.replace(workload.status, requeue_state=kueue.KueueRequeueState(count=5))
    assert r.times_of(msgspec.structs.replace(workload, status=counted), ()) == 5


@pytest.mark.parametrize(
    ("other", "waits"),
    [
        ({"reserved": None}, True),
        ({"reserved": None, "queue": "elsewhere"}, True),  # whose it is nobody knows
        ({"reserved": None, "queue": "b"}, False),
        ({"reserved": 0.0}, False),
        ({"reserved": None, "active": False}, False),
        ({"reserved": None, "finished": True}, False),
        ({"reserved": None, "again": 5}, False),
        ({"reserved": None, "again": -5}, True),
    ],
)
def test_quota_is_waited_for_by_those_of_the_same_cluster_queue(other, waits):
    mine = make_workload("mine")
    observed = make_workload("known", queue="b", cluster="another")
    assert r.wanted([mine, observed, make_workload("other", **other)], NOW).is_contested(mine) == waits


def test_a_time_that_cannot_be_read_counts_as_none():
    mine, other = make_workload("mine"), make_workload("other", reserved=None)
    broken = msgspec.structs.replace(other.status, requeue_state=kueue.KueueRequeueState(requeue_at="tomorrow"))
    assert r.wanted([mine, msgspec.structs.replace(other, status=broken)], NOW).is_contested(mine)


# --- in three steps


def step(workload, told=TOLD, now=NOW):
    return r.next_step(workload, workload.status.admission_checks[0], told, now)


@pytest.mark.parametrize(
    "changes",
    [
        {"reserved": 0.0},
        {"reserved": 0.0, "requeued": True},  # of an earlier time
        {"reserved": None},
        {"reserved": None, "requeued": False},
        {"reserved": None, "requeued": False, "again": -5},
    ],
)
def test_when_kueue_has_evicted_it_is_told_for_how_long(changes):
    found = step(make_workload(evicted=0, message=RESET, **changes))
    assert found == KueueCheckState(name="c", state=RETRY, message="NeverFits: m", requeue_after_seconds=120)


@pytest.mark.parametrize(
    "changes",
    [
        {"reserved": 0.0, "why": "Preempted"},
        {"reserved": 0.0, "message": "Reset to Pending after eviction. Previously: Ready"},
        {"reserved": 0.0, "message": "NeverFits: m; others have its quota until then"},  # the third step is done
        {"reserved": 0.0, "evicted": None},
        {"reserved": None, "again": 50},  # it is away already
        {"reserved": None, "active": False},
        {"reserved": None, "finished": True},
        {"reserved": 0.0, "state": READY},
    ],
)
def test_otherwise_nothing_is_told(changes):
    assert step(make_workload(**{"evicted": 0, "message": RESET, **changes})) is None


def test_one_that_is_in_its_queue_again_is_told_no_delay_but_its_reason_stays():
    """The scheduler may have it already; with Retry it would lie among those that wait, and nobody would wake it."""
    found = step(make_workload(evicted=0, message=RESET, reserved=None, requeued=True))
    assert found == KueueCheckState(name="c", state=PENDING, message="NeverFits: m")


@pytest.mark.parametrize("reserved", [0.0, None])
def test_when_the_delay_is_noted_the_check_is_pending_again_and_says_what_happens(reserved):
    away = {"state": RETRY, "reserved": reserved, "evicted": 0, "requeueAfterSeconds": 120}
    assert step(make_workload(**away)) is None, "Kueue has yet to note it"
    assert step(make_workload(**away, again=-5)) is None, "that is of an earlier time"
    found = step(make_workload(**away, again=120))
    assert found.state == PENDING
    assert found.message == f"NeverFits: m; others have its quota until {at(120)}"
    assert step(make_workload(**away), now=NOW + 121).message == "NeverFits: m", "nobody noted it, and it is over"


def test_a_retry_that_kueue_has_yet_to_follow_is_left_alone():
    assert step(make_workload(state=RETRY)) is None
    assert step(make_workload(state=RETRY, requeueAfterSeconds=60, again=60)) is None


def test_a_retry_whose_quota_went_without_an_eviction_does_not_stay():
    assert step(make_workload(state=RETRY, reserved=None)).state == PENDING


def test_a_controller_that_starts_in_between_goes_on():
    found = step(make_workload(evicted=0, message=RESET), RetryAnswer())
    assert (found.state, found.requeue_after_seconds) == (RETRY, FIRST_BACKOFF)
    assert found.message


def said(reason):
    return KueueCheckState(name="c", state=RETRY, message=f"{reason}: m")


@pytest.mark.parametrize(("reason", "seconds"), [(Reason.NEVER_FITS, 240), (Reason.DOES_NOT_FIT, 60)])
def test_one_that_has_its_quota_back_too_early_is_sent_away_again_at_once_but_not_for_ever(reason, seconds):
    workload, side = make_workload(retryCount=2), Side(True, reason=reason, message="m")
    told = r.remembered(workload, said(reason), None)
    assert (told.message, told.seconds) == (f"{reason}: m", seconds)
    tries = 0
    while told.at_once(side):
        tries += 1
        told = r.remembered(make_workload(retryCount=2 + tries), said(reason), told)
        assert told.seconds == seconds, "what came of it too early does not count"
    assert tries == r.TRIES
    assert r.remembered(workload, said(reason), told).at_once(side), "after further patience it begins anew"


@pytest.mark.parametrize("reason", [None, Reason.DOES_NOT_FIT])
def test_nobody_is_sent_away_at_once_before_it_was_looked_at_or_for_another_reason(reason):
    told = r.remembered(make_workload(), said(Reason.NEVER_FITS), None)
    assert not told.at_once(Side(True, reason=reason))
    assert not RetryAnswer().at_once(Side(True, reason=Reason.NEVER_FITS))


@given(
    state=st.sampled_from([PENDING, READY, RETRY, REJECTED]),
    reserved=st.sampled_from([None, 0.0]),
    evicted=st.sampled_from([None, 0.0]),
    requeued=st.sampled_from([None, True, False]),
    again=st.sampled_from([None, -5, 5, 120]),
    message=st.sampled_from([RESET, "m"]),
    after=st.sampled_from([{}, {"requeueAfterSeconds": 120}]),
)
def test_no_step_follows_upon_itself_and_none_touches_one_that_has_quota(
    *, state, reserved, evicted, requeued, again, message, after
):
    workload = make_workload(
        state=state, reserved=reserved, evicted=evicted, requeued=requeued, again=again, message=message, **after
    )
    found = step(workload)
    if found is None:
        return
    assert evicted is not None or reserved is None
    assert state in {PENDING, RETRY}
    assert (found.state, found.message) != (state, message)
    assert (found.requeue_after_seconds or 0) <= LONGEST_BACKOFF
    written = msgspec.structs.replace(found, last_transition_time=at(0))
    status = msgspec.structs.replace(workload.status, admission_checks=(written,))
    follows = step(msgspec.structs.replace(workload, status=status))
    assert follows is None or (found.state, follows.state) == (RETRY, PENDING)
