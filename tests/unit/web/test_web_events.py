"""Events of a workload: what is shown of them, and that a selector is of nothing but plain names."""

from datetime import UTC, datetime

import msgspec

from kube.told_events import EventSeries, Regarding, ToldEvent
from web.events import LONGEST, MOST_ROWS, rows


def event(kind, name, reason, note="", at=100, **more):
    stamp = datetime.fromtimestamp(at, UTC)
    return ToldEvent(regarding=Regarding(kind, name), reason=reason, note=note, type="Normal", event_time=stamp, **more)


def shown(*found, since=0.0):
    return [(row.kind, row.name, row.reason, row.objects, row.times, row.last) for row in rows(found, since)]


def test_a_gang_is_one_row_with_its_newest_event():
    pods = [event("Pod", f"train-{at}", "Scheduled", f"to node {at}", at=100 + at) for at in range(512)]
    assert shown(*pods) == [("Pod", "train-511", "Scheduled", 512, 512, 611.0)]
    assert rows(pods, 0.0)[0].note == "to node 511"


def test_the_newest_comes_first_and_what_is_older_than_the_workload_is_anothers():
    found = [
        event("Job", "a", "Suspended", at=50),
        event("Workload", "w", "Pending", at=70),
        event("Pod", "p", "Pulled", at=90),
    ]
    assert [row[2] for row in shown(*found, since=60.0)] == ["Pulled", "Pending"]


def test_what_a_workload_and_its_job_are_told_alike_is_said_once():
    found = [event("Job", "a", "Admitted", "to b1", at=101), event("Workload", "w", "Admitted", "to b1", at=100)]
    assert [row[0] for row in shown(*found)] == ["Workload"]


def test_times_are_of_the_series_or_of_the_older_api():
    began, ended = "2026-11-23T10:00:00Z", "2026-11-23T10:05:00Z"
    of_old = {"deprecatedCount": 7, "deprecatedFirstTimestamp": began, "deprecatedLastTimestamp": ended}
    stored = {"metadata": {"creationTimestamp": began}, "regarding": {"kind": "Pod", "name": "p"}, "eventTime": None}
    old = msgspec.convert(stored | of_old, type=ToldEvent)
    new = event("Pod", "p", "BackOff", series=EventSeries(4, datetime.fromtimestamp(500, UTC)))
    assert (old.times, old.last) == (7, datetime(2026, 11, 23, 10, 5, tzinfo=UTC).timestamp())
    assert (new.times, new.last) == (4, 500.0)
    assert ToldEvent().last == 0.0


def test_however_much_there_is_little_is_shown():
    found = [event("Job", "a", f"Reason{at}", "x" * 100_000, at=at) for at in range(1, 500)]
    made = rows(found, 0.0)
    assert len(made) == MOST_ROWS
    assert {len(row.note) for row in made} == {LONGEST}
    assert made[0].last == 499.0
