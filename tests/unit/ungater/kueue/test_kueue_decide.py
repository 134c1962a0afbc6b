"""What follows from Kueue's Workloads: objects in, the job's view and the check out."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.owned import KEYS, context, make_owner, make_record, slot_map

from crds.constants import GPU_LINK, Keys
from engine.reasons import Reason
from kube.objects import Toleration
from kube.parents import JobSet
from kube.workloads import PodSetUpdate
from ungater.jobs.jobset import owner_of_jobset
from ungater.kueue import answers as a
from ungater.kueue import decide as d
from ungater.kueue.answers import Side
from ungater.kueue.decide import KueueStanding, Restriction
from ungater.kueue.retries import HOPELESS
from ungater.model import kueue_objects as kueue
from ungater.model.kueue_objects import PENDING, READY, REJECTED, RETRY, KueueCheckState
from ungater.reconcile.reconcile import reconcile

TAINTED = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}


def decode(kind, body):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def make_check(name="topology", controller=kueue.CONTROLLER, **spec):
    return decode(kueue.AdmissionCheck, {"metadata": {"name": name}, "spec": {"controllerName": controller, **spec}})


def make_flavor(name="gpu", **spec):
    body = {"nodeLabels": {"group": "a"}, "tolerations": [TAINTED], **spec}
    return decode(kueue.ResourceFlavor, {"metadata": {"name": name}, "spec": body})


def make_workload(
    name="job-train",
    *,
    checks=(("topology", PENDING),),
    flavors=None,
    count=4,
    true=("QuotaReserved",),
    admitted=True,
    active=True,
    deleted=False,
    pod_sets=1,
    topology=None,
    template=None,
    requeues=None,
    priority=None,
    **check,
):
    template = {"metadata": {"annotations": {KEYS.required[0]: "rack"}}} if template is None else template
    assigned = {"flavors": flavors or {"cpu": "gpu", "nvidia.com/gpu": "gpu"}, "count": count}
    if topology:
        assigned["topologyAssignment"] = topology
    names = ["main", *(f"more-{number}" for number in range(1, pod_sets))]
    status = {
        "conditions": [{"type": kind, "status": "True", "reason": "x", "message": ""} for kind in true],
        "admissionChecks": [
            {"name": each, "state": state, "message": "", "lastTransitionTime": "2026-11-21T00:00:00Z", **check}
            for each, state in checks
        ],
    }
    if admitted:
        status["admission"] = {"clusterQueue": "cq", "podSetAssignments": [{"name": n, **assigned} for n in names]}
    if requeues is not None:
        status["requeueState"] = {"count": requeues}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-train", "controller": True}
    body = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "ownerReferences": [owner],
            **({"deletionTimestamp": "2026-11-21T00:01:00Z"} if deleted else {}),
        },
        "spec": {
            "active": active,
            "priority": priority,
            "podSets": [{"name": n, "count": 4, "template": template} for n in names],
        },
        "status": status,
    }
    return decode(kueue.KueueWorkload, body)


KNOWN = d.KueueObjects({"topology"}, {"gpu": make_flavor()}, {})


def stands(*workloads, observed=KNOWN):
    return d.standing(workloads, observed)


# --- the AdmissionCheck


@pytest.mark.parametrize(
    ("check", "domain", "flavors", "reason", "text"),
    [
        (make_check(), "topogate.dev", ["tas"], "Active", ""),
        (make_check(), "kueue.x-k8s.io", ["tas"], "DomainOfKueue", "--domain topogate.dev"),
        (make_check(parameters={"kind": "X"}), "topogate.dev", ["tas"], "BadParametersRef", "spec.parameters"),
        (make_check(), "topogate.dev", [], "NoFlavor", "levels"),
    ],
)
def test_a_check_is_active_only_where_it_can_be_answered(check, domain, flavors, reason, text):
    wanted = d.activity(check, domain, flavors)
    assert (wanted.status, str(wanted.reason)) == (reason == "Active", reason)
    assert text in wanted.message


def test_checks_of_others_are_not_ours():
    assert d.ours(make_check())
    assert not d.ours(make_check(controller="kueue.x-k8s.io/provisioning-request"))


# --- what Kueue holds


def test_quota_reserved_gives_a_restriction():
    assert stands(make_workload()) == KueueStanding(
        "ns/job-train", Restriction(4, {"group": "a"}, (), (decode(Toleration, TAINTED),))
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"true": ()},
        {"admitted": False},
        {"active": False},
        {"deleted": True},
        {"true": ("QuotaReserved", "Finished")},
        {"checks": (("other", PENDING),)},
        {"checks": ()},
    ],
)
def test_without_quota_or_without_our_check_nothing_is_held(changes):
    assert stands(make_workload(**changes)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"true": ("QuotaReserved", "Evicted")},
        {"true": ("Evicted",), "admitted": False},
        {"checks": (("topology", RETRY),)},
        {"checks": (("topology", REJECTED),)},
    ],
)
def test_what_kueue_takes_back_is_evicted(changes):
    assert stands(make_workload(**changes)) == KueueStanding("ns/job-train", evicted=True)


@pytest.mark.parametrize("state", [RETRY, REJECTED])
def test_nothing_is_kept_for_one_that_another_check_sends_away_however_long_kueue_waits_with_that(state):
    found = stands(make_workload(checks=(("topology", READY), ("other", state))))
    assert found.evicted
    assert f"check other says {state}" in found.missing
    assert d.view(make_owner(suspend=True), found).suspended


def test_a_finished_workload_is_not_evicted_again():
    assert stands(make_workload(true=("Evicted", "Finished"))) is None


def test_of_two_workloads_the_one_with_quota_counts():
    old = make_workload("a-old", true=("QuotaReserved", "Evicted"))
    assert stands(old, make_workload("b-new")).workload == "ns/b-new"
    assert stands(old, make_workload("b-new", true=())) == KueueStanding("ns/a-old", evicted=True)


def test_a_jobset_with_one_replicated_job_is_looked_at_as_kueue_will_start_it():
    template = {"metadata": {}, "spec": {"schedulingGates": [{"name": KEYS.gate}], "containers": [{"name": "c"}]}}
    job = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
    body = {
        "metadata": {"name": "js", "namespace": "ns", "uid": "u", "annotations": {KEYS.required[0]: "rack"}},
        "spec": {"suspend": True, "replicatedJobs": [{"name": "workers", "replicas": 2, "template": {"spec": job}}]},
    }
    owner = owner_of_jobset(msgspec.json.decode(json.dumps(body), type=JobSet), (), KEYS)
    seen = d.view(owner, stands(make_workload()))
    (pod_set,) = seen.pod_sets
    assert (seen.suspended, pod_set.name, pod_set.count) == (False, "workers", 4)
    assert (
        pod_set.template.spec.node_selector
        == d.view(make_owner(suspend=True), stands(make_workload())).pod_sets[0].template.spec.node_selector
    )


def test_several_pod_sets_are_never_placed_and_one_whose_flavor_comes_may_be():
    assert stands(make_workload(pod_sets=2)).never is Reason.UNSUPPORTED_OWNER
    assert Reason.UNSUPPORTED_OWNER in HOPELESS, "so that its quota goes back to others"
    assert stands(make_workload(), observed=d.KueueObjects({"topology"}, {}, {})).never is None


@pytest.mark.parametrize(
    ("workload", "observed", "text"),
    [
        (make_workload(), d.KueueObjects({"topology"}, {}, {}), "ResourceFlavor gpu"),
        (make_workload(pod_sets=2), KNOWN, "2 pod sets"),
        (
            make_workload(),
            d.KueueObjects({"topology"}, {"gpu": make_flavor(topologyName="dc")}, {}),
            "Topology dc",
        ),
        (
            make_workload(topology={"levels": ["rack"], "slices": []}),
            d.KueueObjects({"topology"}, {"gpu": make_flavor(topologyName="dc")}, {}),
            "remove topologyName",
        ),
    ],
)
def test_what_cannot_be_placed_yet_says_what_is_missing(workload, observed, text):
    found = stands(workload, observed=observed)
    assert found.restriction is None
    assert text in found.missing
    assert d.view(make_owner(suspend=True), found).suspended


def test_labels_of_several_flavors_are_merged_and_a_topology_asks_for_its_levels():
    topology = decode(
        kueue.Topology,
        {"metadata": {"name": "dc"}, "spec": {"levels": [{"nodeLabel": "block"}, {"nodeLabel": "rack"}]}},
    )
    flavors = {
        "gpu": make_flavor(topologyName="dc"),
        "cpu": make_flavor("cpu", nodeLabels={"arch": "x", "group": "b"}, tolerations=[]),
    }
    workload = make_workload(flavors={"nvidia.com/gpu": "gpu", "cpu": "cpu"})
    found = stands(workload, observed=d.KueueObjects({"topology"}, flavors, {"dc": topology})).restriction
    assert found.selector == {"group": "a", "arch": "x"}
    assert found.labels == ("block", "rack")


# --- the job as Kueue will start it


def test_a_suspended_job_with_quota_is_looked_at_as_it_will_start():
    owner = make_owner(suspend=True, parallelism=4, spec={"nodeSelector": {"zone": "z"}, "tolerations": [TAINTED]})
    seen = d.view(owner, stands(make_workload(count=3, priority=7)))
    spec = seen.pod_sets[0].template.spec
    assert (seen.suspended, seen.priority) == (False, 7)
    assert (seen.pod_sets[0].count, seen.pod_sets[0].full) == (3, 3)
    assert spec.node_selector == {"group": "a", "zone": "z"}
    assert len(spec.tolerations) == 1
    assert owner.pod_sets[0].template.spec.node_selector == {"zone": "z"}, "the job itself is not changed"


def test_levels_of_kueues_topology_are_added_to_every_term_of_the_affinity():
    terms = [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    for own, wanted in ((affinity, [["a", "rack"], []]), (None, [["rack"]])):
        owner = make_owner(suspend=True, spec={"affinity": own} if own else {})
        seen = d.view(owner, KueueStanding("ns/w", Restriction(4, {}, ("rack",))))
        node = seen.pod_sets[0].template.spec.affinity.node_affinity
        found = node.required_during_scheduling_ignored_during_execution.node_selector_terms
        assert [[need.key for need in term.match_expressions or ()] for term in found] == wanted


def test_otherwise_the_job_is_looked_at_as_it_is():
    waiting, running = make_owner(suspend=True), make_owner()
    assert d.view(waiting, None) is waiting
    assert d.view(running, stands(make_workload())) is running, "Kueue has put the restriction into it"
    gone = make_owner(suspend=True, deleted=True)
    assert d.view(gone, stands(make_workload())) is gone


def test_an_evicted_job_counts_as_suspended_before_kueue_suspends_it():
    evicted = stands(make_workload(true=("QuotaReserved", "Evicted")))
    for owner in (make_owner(), make_owner(suspend=True)):
        seen = d.view(owner, evicted)
        assert (seen.suspended, seen.waits_for) == (True, "Kueue takes back the quota of its Workload ns/job-train")


def test_why_kueue_has_it_suspended_is_said():
    assert "no quota for its Workload ns/a" in d.view(make_owner(suspend=True), None, {"ns/b", "ns/a"}).waits_for
    unknown = stands(make_workload(), observed=d.KueueObjects({"topology"}, {}, {}))
    assert d.view(make_owner(suspend=True), unknown).waits_for == unknown.missing
    record = make_record(replace(make_owner(suspend=True), waits_for="Kueue has no quota"))
    (write,) = (each for each in reconcile(record, context(), 0.0) if hasattr(each, "wanted"))
    assert write.wanted[0].message == "Job train is suspended: Kueue has no quota"


def test_slots_outside_of_what_was_assigned_have_strayed():
    slots, given = slot_map(("b/r/n1", 2), ("b/r/n2", 2)), Restriction(4, {"group": "a"}, ("rack",))
    labels = {"n1": {"group": "a", "rack": "r"}, "n2": {"group": "a", "rack": "r"}}
    assert not d.strayed(slots, given, labels.get)
    assert d.strayed(slots, given, {**labels, "n2": {"group": "b", "rack": "r"}}.get)
    assert d.strayed(slots, given, {**labels, "n2": {"rack": "r"}}.get)
    assert d.strayed(slots, given, {**labels, "n2": {"group": "a"}}.get)
    assert not d.strayed(slots, given, {"n1": labels["n1"]}.get), "a node that is gone says nothing"


# --- the check of a Workload


def answer(workload, side, unplaced=PENDING):
    return a.answer(workload, workload.status.admission_checks[0], side, unplaced)


PLACED = Side(True, True, "4 pods in b/r", selector={"group": "a"}, tolerations=(decode(Toleration, TAINTED),))


def test_placed_is_ready_with_what_our_flavor_adds_to_the_pods():
    ready = answer(make_workload(), PLACED)
    assert (ready.state, ready.message) == (READY, "4 pods in b/r")
    body = json.loads(json.dumps(a.body("v", make_workload(), [ready], 0.0)))["status"]["admissionChecks"][0]
    assert body["podSetUpdates"] == [{"name": "main", "nodeSelector": {"group": "a"}, "tolerations": [TAINTED]}]


def test_what_a_ready_check_adds_to_the_pods_stays():
    """Kueue refuses another: it may have started the job with it."""
    added = [{"name": "main", "nodeSelector": {"group": "old"}}]
    ready = answer(make_workload(checks=(("topology", READY),), podSetUpdates=added), PLACED)
    assert (ready.message, ready.pod_set_updates[0].node_selector) == ("4 pods in b/r", {"group": "old"})


def test_who_asks_for_no_topology_is_ready_at_once():
    assert answer(make_workload(), Side(False)) == KueueCheckState(
        name="topology", state=READY, message=a.NOTHING_TO_PLACE
    )


def test_who_waits_is_pending_with_the_reason():
    side = Side(True, reason=Reason.DOES_NOT_FIT, message="r1 could take 3 of 4")
    assert answer(make_workload(), side) == KueueCheckState(name="topology", message="DoesNotFit: r1 could take 3 of 4")
    assert answer(make_workload(), Side(True)) is None, "no news yet"
    lost = answer(make_workload(checks=(("topology", READY),)), Side(True))
    assert (lost.state, lost.message) == (PENDING, a.LOOKING)


@pytest.mark.parametrize("state", [PENDING, RETRY, REJECTED])
def test_one_without_a_place_gets_the_state_that_was_decided_with_the_reason_and_no_delay(state):
    found = answer(make_workload(), Side(True, reason=Reason.NEVER_FITS, message="m"), state)
    assert found == KueueCheckState(name="topology", state=state, message="NeverFits: m")


@pytest.mark.parametrize(
    "workload",
    [
        make_workload(true=()),
        make_workload(true=("QuotaReserved", "Evicted"), checks=(("topology", READY),)),
        make_workload(checks=(("topology", RETRY),)),
        make_workload(checks=(("topology", REJECTED),)),
        make_workload(active=False),
    ],
)
def test_what_kueue_is_at_is_left_alone(workload):
    for side in (PLACED, Side(False), Side(True, reason=Reason.DOES_NOT_FIT)):
        assert answer(workload, side) is None


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"checks": (("topology", READY),)}, PENDING),
        ({"checks": (("topology", REJECTED),)}, PENDING),
        ({"checks": (("topology", PENDING),)}, None),
        ({"checks": (("topology", RETRY),)}, None),  # that is for `retries.next_step`
        ({"checks": (("topology", READY),), "deleted": True}, None),
        ({"checks": (("topology", READY),), "true": ("Finished",)}, None),
    ],
)
def test_a_check_that_kueue_leaves_ready_without_quota_is_pending_again(changes, state):
    """Where a queue is stopped Kueue 0.19.2 takes quota back without resetting the checks; new quota would admit."""
    found = answer(make_workload(**{"true": (), "admitted": False, **changes}), PLACED)
    assert (found and found.state) == state
    assert answer(make_workload(**{"true": (), "admitted": False, **changes}), Side(False)) is None


def test_a_running_job_stays_ready_whatever_becomes_of_its_slots():
    for state in (PENDING, RETRY, REJECTED):
        running = make_workload(true=("QuotaReserved", "Admitted"))
        assert answer(running, Side(True, reason=Reason.DOES_NOT_FIT), state) is None


def test_a_waiting_one_that_lost_its_slots_is_pending_again():
    workload = make_workload(checks=(("topology", READY),))
    assert answer(workload, Side(True, reason=Reason.DOES_NOT_FIT, message="m")).state == PENDING


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({GPU_LINK: "require"}, True),
        ({GPU_LINK: "require", KEYS.unconstrained: "false"}, False),
        ({KEYS.unconstrained: "false"}, False),
        ({KEYS.unconstrained: "perhaps"}, True),  # our side says what is wrong with it
        ({KEYS.required[0]: "rack", KEYS.unconstrained: "false"}, True),
    ],
)
def test_what_pods_say_is_read_as_everywhere_else(annotations, expected):
    assert a.has_request(make_workload(template={"metadata": {"annotations": annotations}}), KEYS) is expected


def test_requests_and_gates_tell_whether_pods_ask():
    gated = {"spec": {"schedulingGates": [{"name": KEYS.gate}]}}
    assert a.has_request(make_workload(), KEYS)
    assert a.has_request(make_workload(template=gated), KEYS)
    assert not a.has_request(make_workload(template={}), KEYS)
    assert not a.has_request(make_workload(template=gated), Keys("topogate.dev")), (
        "the keys of another domain are not ours"
    )


@pytest.mark.parametrize(
    ("message", "state", "since", "seconds"),
    [
        ("DoesNotFit: 2 of 4", PENDING, 0.0, None),
        ("DoesNotFit: 3 of 4", PENDING, 4.0, 6.0),
        ("DoesNotFit: 3 of 4", PENDING, 60.0, 0.0),
        ("NumaAlignment: x", PENDING, 4.0, 0.0),
        ("DoesNotFit: 2 of 4", RETRY, 4.0, 0.0),
        ("DoesNotFit: 3 of 4", PENDING, None, 0.0),
    ],
)
def test_news_are_written_at_once_and_details_rarely(message, state, since, seconds):
    before = KueueCheckState(name="topology", state=PENDING, message="DoesNotFit: 2 of 4")
    assert a.seconds_until_due(before, KueueCheckState(name="topology", state=state, message=message), since) == seconds


def test_updates_that_kueue_still_owns_are_no_news_of_one_that_waits():
    left = KueueCheckState(name="topology", message="m", pod_set_updates=(PodSetUpdate(name="main"),))
    assert a.seconds_until_due(left, KueueCheckState(name="topology", message="m"), None) is None
    assert a.seconds_until_due(left, KueueCheckState(name="topology", state=READY, message="m"), None) == 0.0


def test_the_body_names_the_version_that_was_judged_and_keeps_the_time_of_a_state():
    workload = make_workload(checks=(("a", PENDING), ("b", PENDING)))
    checks = [KueueCheckState(name="a", message="m"), KueueCheckState(name="b", state=READY, message="")]
    found = a.body("kueue.x-k8s.io/v1beta2", workload, checks, 1795000000.0)
    assert found["metadata"] == {
        "name": "job-train",
        "namespace": "ns",
        "uid": "uid-job-train",
        "resourceVersion": "7",
    }
    assert found["status"] == {
        "admissionChecks": [
            {"name": "a", "state": PENDING, "message": "m", "lastTransitionTime": "2026-11-21T00:00:00Z"},
            {"name": "b", "state": READY, "message": "", "lastTransitionTime": "2026-11-18T11:06:40Z"},
        ]
    }


def test_where_the_api_has_no_delay_the_time_of_return_is_said_as_it_was_then():
    checks = [KueueCheckState(name="topology", state=RETRY, message="m", requeue_after_seconds=120)]
    with_delay = a.body("v", make_workload(requeues=1), checks, 1795000000.0)["status"]
    assert with_delay["admissionChecks"][0]["requeueAfterSeconds"] == 120
    without = a.body("v", make_workload(requeues=1), checks, 1795000000.0, delays=False)["status"]
    assert "requeueAfterSeconds" not in without["admissionChecks"][0]
    assert without["requeueState"] == {"count": 2, "requeueAt": "2026-11-18T11:08:40Z"}


@given(
    true=st.sets(st.sampled_from(["QuotaReserved", "Admitted", "Evicted", "Finished"])),
    states=st.lists(st.sampled_from([PENDING, READY, RETRY, REJECTED]), max_size=2),
    flags=st.fixed_dictionaries({name: st.booleans() for name in ("admitted", "active", "deleted")}),
    suspended=st.booleans(),
    side=st.sampled_from(
        [PLACED, Side(False), Side(True), *(Side(True, reason=why, message="m") for why in (*HOPELESS, "DoesNotFit"))]
    ),
    unplaced=st.sampled_from([PENDING, RETRY, REJECTED]),
)
def test_whatever_kueue_says_only_what_has_quota_is_placed_or_answered(
    *, true, states, flags, suspended, side, unplaced
):
    checks = [(f"c{number}", state) for number, state in enumerate(states)]
    workload = make_workload(true=sorted(true), checks=checks, **flags)
    observed = d.KueueObjects({"c0", "c1"}, KNOWN.flavors, {})
    held = true & {"QuotaReserved", "Evicted", "Finished"} == {"QuotaReserved"}
    held = held and flags == {"admitted": True, "active": True, "deleted": False}
    owner = make_owner(suspend=suspended)
    seen = d.view(owner, d.standing([workload], observed), {"ns/w"})
    if suspended and not seen.suspended:
        assert held
        assert set(states) <= {PENDING, READY}
        assert states
    for check in workload.status.admission_checks:
        wanted = a.answer(workload, check, side, unplaced)
        if wanted is None:
            continue
        assert held or (wanted.state == PENDING and check.state in {READY, REJECTED} and "QuotaReserved" not in true)
        assert check.state in {PENDING, READY} or not held
        assert (wanted.state == READY) == (held and (side.placed or not side.asks))
        assert wanted.state in {READY, PENDING, unplaced}
        assert wanted.state == READY or "Admitted" not in true or not held, "what runs is never sent back"


def test_owners_that_are_not_served_are_named():
    reason, text = a.unserved(make_workload())
    assert reason == Reason.UNSUPPORTED_OWNER
    assert "Job train" in text
