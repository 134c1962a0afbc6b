"""`topogate doctor` finds what was let go and does not run, and what holds room without a pod, with age and remedy."""

from datetime import UTC, datetime

import msgspec
import pytest
from support.owned import make_known, make_owner, make_pod, make_record, slot_map
from support.world import stored_workload

from cli.doctor.hanging import HangingView, findings
from kube.objects import Condition
from kube.told_events import Regarding, Stamp, ToldEvent
from ungater.model.conditions import ADMITTED, moment
from ungater.model.unscheduled import Unscheduled
from ungater.model.unstarted import Unstarted

SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 2))
AT = "2026-11-21T00:00:01Z"
NOW = moment(AT) + 300.0
WORDS = "1 node(s) had a filter that nobody knows"


def at(pod, status, reason):
    said = Condition(type="PodScheduled", status=status, reason=reason, last_transition_time=AT)
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=(said,)))


def record(*pods, **tables):
    owner = make_owner()
    admitted = Condition(type=ADMITTED, status="True", reason="Admitted", last_transition_time=AT)
    found = make_record(owner, slots=SLOTS, pods=pods, observed=make_known(owner, slots=SLOTS, conditions=[admitted]))
    for name, one in tables.items():
        getattr(found, name).update({pod.metadata.uid: one for pod in pods})
    return found


def said(*entries, workloads=(), events=(), now=NOW):
    held = HangingView(entries, workloads, events, now)
    return [(str(one.weight), one.about, one.message, one.mend) for one in findings(held)]


def test_nothing_is_said_of_pods_that_run_or_are_on_their_way():
    owner = make_owner()
    runs = record(make_pod("a", owner=owner, at=("b", "r", "n1"), node="n1", phase="Running"))
    young = record(pod := at(make_pod("a", owner=owner, at=("b", "r", "n1")), "False", "Unschedulable"))
    young.unscheduled[pod.metadata.uid] = Unscheduled(0.0, 0.0, WORDS)
    assert said(runs) == []
    assert said(young, now=NOW - 290) == []


def test_a_pod_that_kube_scheduler_refuses_is_told_with_the_node_the_words_and_the_age():
    pod = at(make_pod("a", at=("b", "r", "n1")), "False", "Unschedulable")
    assert said(record(pod, unscheduled=Unscheduled(0.0, 0.0, WORDS))) == [
        (
            "warning",
            "Job ns/train",
            f"kube-scheduler does not bind pod a to n1, where its slot is: {WORDS} (for 5m)",
            "topogate explain job/train -n ns",
        )
    ]


def test_one_that_nobody_makes_again_is_for_a_person_to_delete():
    pod = at(make_pod("a", at=("b", "r", "n1")), "False", "Unschedulable")
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=()))
    ((_, _, _, mend),) = said(record(pod, unscheduled=Unscheduled(0.0, 0.0, WORDS)))
    assert mend == "kubectl delete pod -n ns a"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"schedulerName": "mine"}, "no scheduler has looked at it: does mine run?"),
        ({}, "does default-scheduler run?"),
        ({"schedulingGates": [{"name": "theirs"}]}, "a has a slot and waits for another scheduling gate: theirs"),
    ],
)
def test_a_pod_that_no_scheduler_looks_at(spec, expected):
    pod = make_pod("a", at=("b", "r", "n1"), spec=spec)
    ((_, _, message, mend),) = said(record(pod, unscheduled=Unscheduled(0.0)))
    assert expected in message
    assert "(made 5m ago)" in message
    assert mend == "kubectl describe pod -n ns a"


def test_a_pod_that_is_bound_and_does_not_start():
    pod = at(make_pod("a", at=("b", "r", "n1"), node="n1"), "True", "")
    ((_, _, message, mend),) = said(record(pod, unstarted=Unstarted(0.0, "n1", told="FailedMount: no path")))
    assert message == "pod a is bound to n1 and does not start: FailedMount: no path (for 5m)"
    assert mend == "kubectl describe pod -n ns a"


def test_a_workload_that_holds_room_and_has_no_pod():
    done = make_pod("a", at=("b", "r", "n1"), node="n1", phase="Succeeded")
    assert said(record(done)) == [
        (
            "warning",
            "Job ns/train",
            "it holds room for 4 pods and has none (for 5m)",
            "kubectl describe job -n ns train",
        )
    ]


def test_a_workload_whose_owner_is_not_there():
    owner = make_owner("gone")
    workload = stored_workload(owner, SLOTS)
    meta = msgspec.structs.replace(workload.metadata, creation_timestamp=AT)
    workload = msgspec.structs.replace(workload, metadata=meta)
    ((_, about, message, mend),) = said(workloads=[workload])
    assert about == f"workload ns/{owner.workload}"
    assert "holds room for 4 pods, and its owner is not there" in message
    assert mend == f"kubectl delete workloads.topogate.dev -n ns {owner.workload}"


def test_a_node_that_was_left_out_a_short_time_ago_is_named():
    def told(seconds, note):
        return ToldEvent(
            metadata=Stamp(creation_timestamp=datetime.fromtimestamp(NOW - seconds, UTC)),
            regarding=Regarding(kind="Node", name="n1"),
            reason="NodeLeftOut",
            note=note,
        )

    assert said(events=[told(2000, "old")]) == []
    ((_, about, message, _),) = said(events=[told(90, "new"), told(300, "before")])
    assert (about, message) == ("node n1", "new (1m30s ago)")
