"""What `topogate queues` says, from objects as the API server lists them."""

import io

import msgspec
import pytest
from rich.console import Console
from support.queue_objects import EARLY, GPU, began, cluster, cohort, local, quota, read, waits, wire, workload

from cli.explain import queue_report
from cli.output import Failure
from cli.queues import rendering
from cli.queues.report import report
from cli.web.questions import _queue
from kube.queues import LocalQueue
from queueing.model import Rules, RunTime, UseRules
from web.sight import Sight


@pytest.fixture
def reading():
    return read(
        [cluster("gpu", quota(amount=8, borrowingLimit="16"), cohortName="all"), cluster("spare", cohortName="all")],
        [local("a", "gpu"), local("b", "gpu", "other"), local("c", "spare", "other")],
        [
            workload("job-runs", pods=4, held="gpu"),
            workload("job-late", status=waits("InsufficientQuota", "8 wanted")),
            workload("job-other", "b", namespace="other", made="2023-11-14T22:00:00Z"),
            workload("job-first", priority=9, status=waits("DoesNotFit", "no room")),
            workload("job-done", held="gpu", status={"conditions": [{"type": "Finished", "status": "True"}]}),
            workload("job-off", active=False),
            workload("job-free", "", held=""),
        ],
    )


def text(result):
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(rendering.render(result))
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_who_waits_in_order_with_place_priority_age_and_why(reading):
    (view,) = report(reading, "team", "gpu").queues
    found = [(one.position, one.job, one.priority, one.age_seconds, one.reason) for one in view.waiting]
    assert found == [
        (1, "job/first", 9, 600, "DoesNotFit"),
        (2, "job/other", 0, 800, "Pending"),
        (3, "job/late", 0, 600, "InsufficientQuota"),
    ]
    assert view.waiting[0].wants == {"pods": "2", GPU: "8"}
    assert (view.pending, view.reserving, view.admitted) == (3, 1, 1)


def test_a_boost_decides_the_place_and_is_shown():
    boosted = {"priorityBoost": {"value": 20, "since": "2023-11-14T22:14:20Z"}, **waits("DoesNotFit", "no room")}
    jobs = [workload("job-w", priority=90, status=boosted), workload("job-x", priority=100)]
    found = report(read([cluster("gpu", quota(amount=8))], [local("a", "gpu")], jobs), "team", "gpu")
    assert [(one.job, one.priority, one.boost) for one in found.queues[0].waiting] == [
        ("job/w", 110, 20),
        ("job/x", 100, 0),
    ]
    assert any(" 110 (90 + 20) " in line for line in text(found))


def test_how_long_workloads_run_at_least_and_how_many_have_not_yet():
    reading = read(
        [
            cluster("gpu", cohortName="x", minimumRunTime={"withinClusterQueueSeconds": 60}),
            cluster("b", cohortName="x"),
        ],
        [local("a", "gpu")],
        [
            workload("job-new", held="gpu", status=began("2023-11-14T22:13:00Z")),
            workload("job-old", held="gpu", status=began(ready=EARLY)),
        ],
        rules=Rules(minimum=RunTime(within=5.0)),
        cohorts=[cohort("x", "top", minimumRunTime={"reclaimSeconds": 90}), cohort("top")],
    )
    gpu, other = (next(one for one in report(reading).queues if one.name == name) for name in ("gpu", "b"))
    assert [msgspec.structs.astuple(one) for one in gpu.minimum_run_time] == [
        ("", 60.0, "ClusterQueue gpu"),
        ("top", 90.0, "Cohort x"),
    ]
    assert msgspec.structs.astuple(other.minimum_run_time[0]) == ("", 5.0, "")
    assert (gpu.safe, other.safe) == (1, 0)
    told = "Minimum run time: 1m against its own queue, 1m30s against other queues (Cohort x)"
    assert f"{told}; 1 of 2 admitted are safe from somebody now" in text(report(reading))


def test_places_count_everybody_where_only_one_namespace_is_listed(reading):
    (view,) = report(reading, "team").queues
    assert [(one.position, one.job) for one in view.waiting] == [(1, "job/first"), (3, "job/late")]
    (view,) = report(reading, "other", "b").queues
    assert [(one.position, one.job) for one in view.waiting] == [(2, "job/other")]
    assert [view.name for view in report(reading, "other").queues] == ["gpu", "spare"]
    assert [view.name for view in report(reading).queues] == ["gpu", "spare"]


def test_usage_against_quota(reading):
    (view,) = report(reading, "team", "gpu").queues
    (use,) = view.quotas
    assert (use.flavor, use.resource, use.nominal, use.used, use.borrowed) == ("tas", GPU, "8", "16", "8")
    assert (use.free, use.borrowing_limit, use.lending_limit) == ("8", "16", None)


def test_use_and_waits_are_told_by_local_queue_of_those_that_are_listed(reading):
    (view,) = report(reading, None, "gpu").queues
    assert [(one.name, one.pending, one.admitted, one.used, one.longest_wait_seconds) for one in view.uses] == [
        ("other/b", 1, 0, {GPU: "0"}, 800),
        ("team/a", 2, 1, {GPU: "16"}, 600),
    ]
    lines = [" ".join(line.split()) for line in text(report(reading, None, "gpu"))]
    assert lines[4:7] == [
        "LOCAL QUEUE WAITING LONGEST WAIT ADMITTED USED",
        "other/b 1 13m20s 0 -",
        f"team/a 2 10m 1 16 {GPU}",
    ]
    (view,) = report(reading, "team", "gpu").queues
    assert [one.name for one in view.uses] == ["other/b", "team/a"], "a ClusterQueue by its name"
    (view,) = report(reading, "team").queues
    assert [one.name for one in view.uses] == ["team/a"]


def test_the_page_tells_a_tenant_of_the_local_queues_of_its_own_namespaces_alone(reading):
    made = msgspec.to_builtins(report(reading, None, "gpu").queues[0])
    shown = _queue(made, Sight(namespaces=frozenset({"other"})))
    assert ([one["name"] for one in shown["uses"]], shown["local_queues"]) == (["other/b"], ["other/b"])


def test_a_cohort_shows_who_borrows_of_whom(reading):
    (cohort,) = report(reading, "team").cohorts
    (use,) = cohort.quotas
    assert (cohort.name, use.nominal, use.used) == ("all", "24", "16")
    assert [(one.queue, one.nominal, one.used, one.borrowed) for one in use.members] == [
        ("gpu", "8", "16", "8"),
        ("spare", "16", "0", "0"),
    ]


def test_what_a_person_reads(reading):
    lines = text(report(reading, "team"))
    assert lines[0] == "ClusterQueue gpu  cohort all  BestEffortFIFO  3 waiting, 1 admitted"
    assert lines[1] == "Active  can admit workloads"
    assert lines[2].split() == ["FLAVOR", "RESOURCE", "USED", "NOMINAL", "FREE", "BORROWED", "MAY", "BORROW", "LENDS"]
    assert lines[3].split() == ["tas", GPU, "16", "8", "8", "8", "16", "all"]
    assert " ".join(lines[5].split()) == "1 team/first a 9 10m 2 pods, 8 nvidia.com/gpu DoesNotFit no room"
    assert lines[-1] == "On hold (spec.active is false; `topogate release` has them wait again): team/off"
    assert [line.split() for line in lines[-4:-1]] == [
        ["tas", GPU, "all", "16", "24", "-", "-", "-"],
        ["gpu", "16", "8", "8"],
        ["spare", "0", "16", "0"],
    ]


def test_one_that_is_nominated_or_put_off_has_no_place():
    nominated = {
        "nomination": {
            "victims": [{"kind": "Workload", "namespace": "team", "name": "job-runs"}],
            "podSetAssignments": [{"name": "main", "flavors": {GPU: "tas"}, "resourceUsage": {GPU: "8"}, "count": 2}],
        },
        **waits("Preempting", "waits until 1 evicted workloads are gone: team/job-runs"),
    }
    late = {"requeueState": {"count": 2, "requeueAt": "2023-11-14T22:14:20Z"}}
    found = read(
        [cluster("gpu")],
        [local("a", "gpu")],
        [
            workload("job-runs", held="gpu"),
            workload("job-wins", status=nominated),
            workload("job-back", status=late),
            workload("job-next"),
        ],
    )
    (view,) = report(found, "team").queues
    assert [(one.position, one.job, one.reason, one.victims) for one in view.waiting] == [
        (None, "job/wins", "Preempting", ("team/job-runs",)),
        (1, "job/next", "Pending", ()),
        (None, "job/back", "BackingOff", ()),
    ]
    assert "comes back at 2023-11-14T22:14:20Z (return number 2)" in view.waiting[2].message
    assert (view.pending, view.reserving, view.admitted, view.quotas[0].used) == (3, 2, 1, "16")


def test_a_nominated_one_whose_victims_are_gone_still_waits():
    assigned = [{"name": "main", "flavors": {GPU: "tas"}, "resourceUsage": {GPU: "8"}, "count": 2}]
    victims = [{"kind": "Workload", "namespace": "team", "name": "job-gone"}]
    status = {"nomination": {"victims": victims, "podSetAssignments": assigned}}
    (view,) = report(read([cluster("gpu")], [local("a", "gpu")], [workload("job-w", status=status)]), "team").queues
    assert (view.pending, view.reserving, view.admitted) == (1, 1, 0)


def test_one_that_was_put_back_for_its_own_trouble_comes_after_those_who_wait():
    back = {"requeueState": {"count": 1, "requeueAt": "2023-11-14T22:10:00Z"}}
    found = read([cluster("gpu")], [local("a", "gpu")], [workload("job-old", status=back), workload("job-young")])
    (view,) = report(found, "team").queues
    assert [one.job for one in view.waiting] == ["job/young", "job/old"]


def test_a_queue_on_hold_says_so_for_all_in_it():
    found = read([cluster("gpu", stopPolicy="Hold")], [local("a", "gpu")], [workload("job-w")])
    (view,) = report(found, "team").queues
    assert (view.active, view.reason) == (False, "QueueStopped")
    assert [(one.position, one.reason) for one in view.waiting] == [(None, "QueueStopped")]
    assert text(report(found, "team"))[1].startswith("Not active (QueueStopped)  it is stopped")


def test_fair_shares_where_they_count():
    found = read(
        [cluster("gpu", quota(amount=8), cohortName="x"), cluster("spare", cohortName="x")],
        [local("a", "gpu")],
        [workload("job-w", pods=4, held="gpu")],
        rules=Rules(fair=True),
    )
    lines = text(report(found, "team"))
    assert lines[0].endswith("0 waiting, 1 admitted  share 334")  # rounded up, as Kueue does


def test_a_name_that_is_no_queue(reading):
    with pytest.raises(Failure, match=r"no LocalQueue nope in namespace team and no ClusterQueue nope; .* gpu, spare"):
        report(reading, "team", "nope")
    with pytest.raises(Failure, match="namespace empty has no LocalQueue"):
        report(reading, "empty")


def test_quantities_that_cannot_be_read_are_told():
    found = read([cluster("gpu", quota(amount="many"))], [], [])
    assert text(report(found))[-1].startswith("Cannot be read: ClusterQueue gpu:")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (59, "59s"), (61, "1m1s"), (3600, "1h"), (90061, "1d1h"), (86405, "1d5s")]
)
def test_ages(seconds, shown):
    assert rendering.duration(seconds) == shown


NOWHERE = "LocalQueue team/lost names ClusterQueue gpus, which does not exist (did you mean gpu?)"


def test_a_local_queue_that_leads_nowhere_is_named_with_what_was_meant():
    found = read([cluster("gpu")], [local("a", "gpu"), local("lost", "gpus")], [workload("job-w", "lost")])
    told = f"{NOWHERE}; 1 workload waits in it"
    assert report(found, "team").lost == report(found).lost == (told,)
    assert text(report(found))[-1] == told
    assert not report(found, "team", "a").lost
    with pytest.raises(Failure, match="which does not exist"):
        report(found, "team", "lost")


def test_one_that_is_alone_in_its_namespace_is_no_error():
    found = read([cluster("gpu")], [local("lost", "gpus")], [])
    assert text(report(found, "team")) == [NOWHERE]
    with pytest.raises(Failure, match="namespace other has no LocalQueue"):
        report(found, "other")


def test_a_flavor_that_is_not_there_offers_nothing():
    found = read([cluster("gpu", quota("gone", 64), cohortName="all")], [local("a", "gpu")], [])
    lines = [" ".join(line.split()) for line in text(report(found))]
    assert f"gone (no such ResourceFlavor) {GPU} 0 - - - - -" in lines
    assert not [line for line in lines if "64" in line]


SCOPE = {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}
BY_USE = Rules(patience=1e9, use=UseRules(half_life=600.0))


def used(amount, at="2023-11-14T22:13:20Z"):
    """A status: so many GPUs over time, as of now."""
    return {"fairSharing": {"admissionFairSharingStatus": {"consumedResources": {GPU: amount}, "lastUpdate": at}}}


def shared(*workloads, rules=BY_USE, **uses):
    """ClusterQueue gpu by use, whose LocalQueues used so much; the first has weight 2."""
    queues = [
        wire(LocalQueue, name, {"clusterQueue": "gpu", "fairSharing": {"weight": weight}}, used(amount), "team")
        for (name, amount), weight in zip(uses.items(), ("2", "1", "0"), strict=False)
    ]
    return read([cluster("gpu", quota("tas", 8), **SCOPE)], queues, workloads, rules)


def test_local_queues_that_share_over_time_stand_in_the_order_of_their_scores():
    found = report(shared(a="8.485281374", b="6.142", c="0"), None, "gpu")
    (view,) = found.queues
    assert view.by_use
    assert [(one.name, one.score and round(one.score, 3), one.weight) for one in view.uses] == [
        ("team/a", 3.0, "2"),
        ("team/b", 4.343, "1"),
        ("team/c", None, "0"),
    ]
    assert view.uses[0].consumed == {GPU: "8.485281374"}
    lines = [" ".join(line.split()) for line in text(found)]
    assert lines[4:8] == [
        "LOCAL QUEUE WAITING LONGEST WAIT ADMITTED USED SCORE OVER TIME",
        f"team/a 0 - 0 - 3.0 8.5 {GPU}, weight 2",
        f"team/b 0 - 0 - 4.3 6.1 {GPU}",
        "team/c 0 - 0 - - nothing, weight 0",
    ]


def test_one_that_waits_because_its_local_queue_used_more_says_so():
    reading = shared(workload("job-heavy", "b", priority=1000), workload("job-light", "a"), a="8.485281374", b="6.142")
    (view,) = report(reading, None, "gpu").queues
    assert [one.job for one in view.waiting] == ["job/light", "job/heavy"]
    assert view.waiting[1].short.endswith("; behind team/a, which used less (3.0 against 4.3)")
    assert "used less" not in view.waiting[0].short
    told = queue_report.place(reading, reading.state, "team/job-heavy")
    assert told.history[0] == "LocalQueue team/b has the score 4.3 for what it used over time"
    assert told.rivals == ("It waits behind team/a, which used less (3.0 against 4.3)",)


def test_queues_of_a_cohort_that_goes_by_use_tell_their_shares_over_time():
    """As of now a used 6 of the 8 that the cohort has, b nothing; both borrow 300 s from now what they hold."""
    org = cohort("org", "", quota("tas", 8), **SCOPE)
    queues = [
        msgspec.structs.replace(cluster(name, quota("tas", 0), cohortName="org"), status=used(amount))
        for name, amount in (("a", "6"), ("b", "0"))
    ]
    waits = workload("job-heavy", "a", pods=1)
    reading = read(queues, [local("a", "a"), local("b", "b")], [waits], BY_USE, cohorts=[org])
    found = report(reading)
    assert [(one.name, one.over_time, one.consumed) for one in found.queues] == [
        ("a", pytest.approx(6 * 0.5**0.5 * 125, abs=0.001), {GPU: "6"}),
        ("b", 0.0, {}),
    ]
    lines = [" ".join(line.split()) for line in text(found)]
    assert "ClusterQueue a cohort org BestEffortFIFO 1 waiting, 0 admitted over time 530.3" in lines
    assert any("a (over time 530.3)" in line for line in lines)
    told = queue_report.place(reading, reading.state, "team/job-heavy").tree
    assert told[0] == (
        "ClusterQueue a has the share 530.3 for what it used over time in cohort org, where 1 other used less"
    )


def test_the_order_of_a_line_is_made_a_few_times_however_many_wait(monkeypatch):
    reading = shared(*(workload(f"job-{number}", "ab"[number % 2]) for number in range(40)), a="8", b="6")
    asked = []
    waiting = reading.queues.waiting
    monkeypatch.setattr(reading.queues, "waiting", lambda name: asked.append(name) or waiting(name))
    (view,) = report(reading, None, "gpu").queues
    assert len(view.waiting) == 40
    assert len(asked) < 4


def test_what_runs_counts_since_the_status_was_written_and_what_waited_too_long_comes_first():
    since = "2023-11-14T22:03:20Z"  # 600 s ago: one half-life
    reserved = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": since}
    runs = workload("job-runs", "b", pods=2, held="gpu", status={"conditions": [reserved]})
    old = {"conditions": [{"type": "QuotaReserved", "status": "False", "lastTransitionTime": "2023-11-01T00:00:00Z"}]}
    waits = [workload("job-old", "b", status=old), workload("job-light", "a", priority=9)]
    (view,) = report(shared(runs, *waits, a="0", b="0"), None, "gpu").queues
    assert view.uses[1].consumed == {}, "its status is of now"
    reading = read(
        [cluster("gpu", quota("tas", 8), **SCOPE)], [local("a", "gpu"), local("b", "gpu")], [runs, *waits], BY_USE
    )
    (view,) = report(reading, None, "gpu").queues
    assert view.uses[1].consumed == {GPU: "4"}, "half of the eight that it holds"
    assert [one.job for one in view.waiting] == ["job/old", "job/light"], "it has waited for more than a week"
    (told,) = queue_report.place(reading, reading.state, "team/job-old").history[:1]
    assert told.startswith("It has waited longer than 7d (queueHoldSeconds), so it comes before those that have not")


def test_without_a_half_life_there_is_nothing_to_tell_of_use_over_time():
    (view,) = report(shared(workload("job-x", "b"), a="9", b="1", rules=Rules()), None, "gpu").queues
    assert not view.by_use
    assert {(one.score, one.weight, one.consumed) for one in view.uses} == {(None, None, None)}
    assert view.message.endswith("the setting fairUseHalfLifeSeconds is not set")


def test_a_local_queue_whose_weight_cannot_be_read_is_told_and_stops_nothing():
    reading = read([cluster("gpu")], [local("a", "gpu", fairSharing={"weight": "much"}), local("b", "gpu")], [])
    (wrong,) = reading.wrong
    assert wrong.startswith("LocalQueue team/a: spec.fairSharing.weight: 'much' is not a quantity")
    assert [one.local_queues for one in report(reading).queues] == [("team/b",)]
