"""`topogate doctor` finds jobs that never got a Workload: made before Topogate, or refused to the controller."""

from datetime import UTC, datetime

from msgspec.structs import replace
from support.owned import KEYS, make_known, make_owner, make_record

from cli.doctor.hanging import HangingView
from cli.doctor.unmade import findings
from kube.told_events import Regarding, Stamp, ToldEvent
from ungater.executor import messages
from ungater.model.conditions import moment

AT = "2026-11-21T00:00:00Z"
NOW = moment(AT) + 300.0
ACCOUNT = "system:serviceaccount:topogate-system:topogate-ungater"


def record(name="train", *, made=False, **more):
    owner = replace(make_owner(name, uid=f"u-{name}", **more), created=AT)
    return make_record(owner, observed=make_known(owner) if made else None)


def told(entry, note, age=10.0, reporter="topogate.dev/topogate-ungater"):
    return ToldEvent(
        metadata=Stamp(datetime.fromtimestamp(NOW - age, UTC)),
        regarding=Regarding(kind="Job", name=entry.job.name, uid=entry.job.uid, namespace="ns"),
        reason="WriteFailed",
        type="Warning",
        note=note,
        reporting_controller=reporter,
    )


def said(*entries, events=(), now=NOW, led=True):
    found = findings(HangingView(entries, (), events, now), KEYS, ACCOUNT, led=led)
    return [(str(one.weight), one.about, one.message, one.mend) for one in found]


def test_jobs_that_were_made_before_topogate_are_named_with_what_helps():
    ((weight, about, message, mend),) = said(record("a", gated=False), record("b", gated=False))
    assert (weight, about) == ("warning", "Job ns/a, Job ns/b")
    assert message.startswith("NotGated: Job a asks for a topology, but its pods lack the scheduling gate")
    assert mend == "kubectl delete job -n ns a, and create it again"


def test_nothing_is_said_of_jobs_that_have_a_workload_or_were_just_made():
    assert said(record(made=True)) == []
    assert said(record(), now=NOW - 250) == []


def test_jobs_without_a_workload_are_found_where_a_controller_should_have_made_it():
    ((weight, about, message, mend),) = said(record("a"), record("b"))
    assert (weight, about) == ("error", "Job ns/a, Job ns/b")
    assert "has made no Workload of it (for 5m)" in message
    assert "kubectl describe job -n ns a" in mend
    assert said(record(), led=False) == [], "that none is there is told already"


def test_what_the_controller_may_not_write_is_told_once_with_who_it_should_be():
    first, second = record("a"), record("b")
    note = messages.not_created("POST workloads ns: 403 Forbidden: Workloads are made by Topogate alone")
    events = [told(first, note), told(second, note)]
    ((weight, about, message, mend),) = said(first, second, events=events, led=False)
    assert (weight, about) == ("error", "Job ns/a, Job ns/b")
    assert message == f"WriteFailed: {note} (10s ago)"
    assert ACCOUNT in mend


def test_an_event_counts_while_it_is_recent_ours_and_not_made_good_since():
    there, gone = record(made=True), record("gone")
    note = messages.not_created("no")
    assert said(there, events=[told(there, note)]) == []
    assert said(there, events=[told(gone, note)]) == []
    assert said(there, events=[told(there, "other", age=1000.0), told(there, "x", reporter="mine")]) == []
    changed = messages.not_changed("Suspend", "422")
    assert [one[2] for one in said(there, events=[told(there, changed)])] == [f"WriteFailed: {changed} (10s ago)"]
