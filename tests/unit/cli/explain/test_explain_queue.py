"""What `topogate explain` says of queues and quota, from objects as the API server lists them."""

import io

import msgspec
import pytest
from rich.console import Console, Group
from support.queue_objects import EARLY, GPU, began, cluster, cohort, local, quota, read, waits, workload

from cli.explain import queue_report
from queueing.model import Rules


def place(reading, name, namespace="team"):
    return queue_report.place(reading, reading.state, f"{namespace}/{name}")


def text(found):
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(Group(*queue_report.render(found)))
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines() if line.strip()]


def test_one_that_waits_hears_its_place_and_which_quota_lacks_how_much():
    reading = read(
        [cluster("gpu", quota(amount=8, borrowingLimit="4"), cohortName="all"), cluster("spare", cohortName="all")],
        [local("a", "gpu")],
        [workload("job-runs", held="gpu"), workload("job-first", priority=3), workload("job-w", pods=3)],
    )
    found = place(reading, "job-w")
    assert (found.cluster_queue, found.cohort, found.position, found.waiting) == ("gpu", "all", 2, 2)
    (option,) = found.options
    (line,) = option.quotas
    assert (line.flavor, line.resource, line.wanted, line.free, line.lacking) == ("tas", GPU, "12", "4", "8")
    assert (line.used, line.nominal, line.most, line.never, option.borrows) == ("8", "8", "12", False, True)
    assert text(found) == [
        "Queue a: cluster queue gpu (cohort all), priority 0, place 2 of 2 that wait",
        "FLAVOR RESOURCE WANTS FREE LACKING USED NOMINAL AT MOST",
        f"tas {GPU} 12 4 8 8 8 12",
    ]


@pytest.mark.parametrize(
    ("boost", "place_in_line", "shown"),
    [(20, 1, "23 (3 + 20)"), (-20, 2, "-17 (3 - 20)"), (0, 2, "3"), ((1 << 31) - 1, 1, "2147483647 (3 + 2147483644)")],
)
def test_a_boost_decides_the_place_in_the_line_and_is_shown_beside_the_priority(boost, place_in_line, shown):
    status = {"priorityBoost": {"value": boost, "since": "2027-01-15T08:00:00Z"}}
    others = [workload("job-runs", held="gpu"), workload("job-first", priority=5)]
    queues = [cluster("gpu", quota(amount=8))], [local("a", "gpu")]
    found = place(read(*queues, [*others, workload("job-w", priority=3, status=status)]), "job-w")
    assert found.position == place_in_line
    assert text(found)[0].endswith(f"priority {shown}, place {place_in_line} of 2 that wait")


@pytest.mark.parametrize("asked", [None, "0", "no number", "of another domain"])
def test_a_boost_that_counts_longer_than_it_is_asked_for_is_said(asked):
    counts = workload("job-w", status={"priorityBoost": {"value": 20, "since": "2027-01-15T08:00:00Z"}})
    # Anybody may write such an annotation of another domain; it asks for nothing.
    notes = {"example.com/priority-boost": "7"} if asked == "of another domain" else {}
    notes |= {"kueue.x-k8s.io/priority-boost": asked} if asked in {"0", "no number"} else {}
    meta = msgspec.structs.replace(counts.metadata, annotations={**(counts.metadata.annotations or {}), **notes})
    found = place(
        read([cluster("gpu")], [local("a", "gpu")], [msgspec.structs.replace(counts, metadata=meta)]), "job-w"
    )
    (told,) = found.history
    assert told.startswith("Its boost of 20 counts since 2027-01-15T08:00:00Z; its annotation asks for 0, which counts")
    assert "priorityBoostRestSeconds" in told


def test_more_than_the_queue_may_ever_use_is_said():
    reading = read([cluster("gpu", quota(amount=8))], [local("a", "gpu")], [workload("job-w", pods=3)])
    assert text(place(reading, "job-w"))[-1] == f"tas {GPU} 12 8 4 0 8 8 never enough"


def test_enough_by_borrowing_is_said():
    reading = read(
        [cluster("gpu", quota(amount=4), cohortName="x"), cluster("b", cohortName="x")],
        [local("a", "gpu")],
        [workload("job-w")],
    )
    assert text(place(reading, "job-w"))[-1] == f"tas {GPU} 8 20 0 4 20 borrows from cohort x (level 1)"


def test_from_how_high_up_it_borrows_is_said():
    tree = [cohort("org", "", quota(amount=8)), cohort("x", "org")]
    queues = [cluster("gpu", quota(amount=4), cohortName="x"), cluster("b", quota(amount=2), cohortName="x")]
    found = place(read(queues, [local("a", "gpu")], [workload("job-w")], cohorts=tree), "job-w")
    assert text(found)[-1] == f"tas {GPU} 8 14 0 4 14 borrows from cohort org (level 2)"
    assert [(one.level, one.lender) for one in found.options] == [(2, "org")]


def test_each_flavor_is_an_option_and_one_that_is_missing_is_none():
    reading = read([cluster("gpu", quota("tas", 4), quota("gone", 8))], [local("a", "gpu")], [workload("job-w")])
    assert [option.flavors for option in place(reading, "job-w").options] == [("tas",)]
    reading = read([cluster("gpu", quota("gone", 8))], [local("a", "gpu")], [workload("job-w")])
    assert text(place(reading, "job-w"))[-1] == "No flavor of the queue can be given: there is no ResourceFlavor gone"


def test_one_that_is_admitted_says_what_it_holds():
    reading = read([cluster("gpu")], [local("a", "gpu")], [workload("job-w", held="gpu")])
    found = place(reading, "job-w")
    assert found.holds == {f"tas/{GPU}": "8"}
    assert text(found) == ["Queue a: cluster queue gpu, priority 0", f"Quota: it holds 8 {GPU} of tas"]


def test_one_that_runs_says_until_when_it_is_safe_from_whom():
    queues = [cluster("gpu", cohortName="x", minimumRunTime={"withinClusterQueueSeconds": 600, "reclaimSeconds": 900})]
    began_at = began(ready="2023-11-14T22:03:30Z")
    found = place(read(queues, [local("a", "gpu")], [workload("job-w", held="gpu", status=began_at)]), "job-w")
    told = "It is not evicted to make room for its own queue until 2023-11-14 22:13:30 UTC"
    assert found.history == (f"{told}, nor for other queues until 2023-11-14 22:18:30 UTC (minimumRunTime)",)
    # Its own queue may have it evicted by now, 600 s after it was admitted.
    late = read(queues, [local("a", "gpu")], [workload("job-w", held="gpu", status=began(ready=EARLY))])
    told = "It is not evicted to make room for other queues until 2023-11-14 22:18:20 UTC (minimumRunTime)"
    assert place(late, "job-w").history == (told,)
    # Whoever admitted it had a clock that is ahead: the controller counts from when it read that, and not from later.
    ahead = began(admitted="2030-01-01T00:00:00Z", ready="2030-01-01T00:00:00Z")
    (told,) = place(read(queues, [local("a", "gpu")], [workload("job-w", held="gpu", status=ahead)]), "job-w").history
    assert "until 2023-11-14 22:23:20 UTC, nor for other queues until 2023-11-14 22:28:20 UTC" in told


def test_a_nominated_one_names_its_victims():
    victims = [{"kind": "Workload", "namespace": "team", "name": name, "priority": 1} for name in ("job-a", "job-b")]
    assigned = [{"name": "main", "flavors": {GPU: "tas"}, "resourceUsage": {GPU: "8"}, "count": 2}]
    status = {"nomination": {"victims": victims, "podSetAssignments": assigned}, **waits("Preempting", "waits")}
    reading = read(
        [cluster("gpu")], [local("a", "gpu")], [workload("job-w", status=status), workload("job-a", held="gpu")]
    )
    found = place(reading, "job-w")
    assert [(one.workload, one.priority, one.gone) for one in found.victims] == [
        ("team/job-a", 1, False),
        ("team/job-b", 1, True),
    ]
    assert text(found)[-3:] == ["VICTIM PRIORITY", "Job team/a 1 on its way out", "team/job-b 1 gone"]


def test_what_was_done_to_it_is_told():
    conditions = [
        {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "preempted to make room for team/x"},
        {"type": "Preempted", "status": "True", "reason": "InCohortReclamation", "message": "preempted by b"},
    ]
    status = {"conditions": conditions, "requeueState": {"count": 1, "requeueAt": "2023-11-14T22:14:20Z"}}
    reading = read([cluster("gpu")], [local("a", "gpu")], [workload("job-w", status=status)])
    assert text(place(reading, "job-w"))[1:4] == [
        "Evicted (Preempted): preempted to make room for team/x",
        "Preempted (InCohortReclamation): preempted by b",
        "It was put back into the queue once, and comes back at 2023-11-14T22:14:20Z.",
    ]


def test_without_a_queue_or_inactive():
    reading = read([], [], [workload("job-w", active=False)])
    assert text(place(reading, "job-w")) == [
        "Queue a: no cluster queue, priority 0",
        "It is on hold (spec.active is false): `topogate release` has it wait again.",
    ]


def test_one_that_others_stand_behind_says_so():
    behind = waits(
        "BehindOthers", "what is left of the quota of queue gpu is kept for Job team/w, which has waited long"
    )
    reading = read(
        [cluster("gpu")], [local("a", "gpu")], [workload("job-w"), workload("job-x", status=behind), workload("job-y")]
    )
    assert "What it needs is kept for it; behind it wait Job team/x" in text(place(reading, "job-w"))
    assert not [line for line in text(place(reading, "job-x")) if "kept for it" in line]


def test_one_that_has_waited_long_says_what_that_means():
    def told(**rules):
        found = place(read([cluster("gpu")], [local("a", "gpu")], [workload("job-w")], rules=Rules(**rules)), "job-w")
        return [line for line in found.history if "queuePatienceSeconds" in line]

    assert told(patience=599.0)
    assert not told(patience=601.0)


def test_devices_of_claims_are_wanted_as_what_they_count_as():
    reading = read([cluster("gpu", quota(amount=8))], [local("a", "gpu")], [workload("job-w", pods=3)])
    found = queue_report.place(reading, reading.state, "team/job-w", {"main": {GPU: 5}})
    assert [line.wanted for option in found.options for line in option.quotas] == ["15"]
