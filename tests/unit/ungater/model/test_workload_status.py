"""Conditions and bodies of Workloads, there and back."""

import json

import msgspec
import pytest
from support.owned import KEYS, make_admission, make_known, make_owner, slot_map

from crds.constants import COPY_OF, HELD, OWNER
from kube.objects import Condition
from kube.workloads import WorkloadObject
from ungater.jobs import pod_template
from ungater.model import conditions, workload_spec, workload_status
from ungater.model.admission import Admission, PodSetAssignment
from ungater.model.conditions import ADMITTED, MAX_MESSAGE, WantedCondition, merge, plain
from ungater.model.pod_slots import PodSetSlots, Slot
from ungater.model.workload_spec import new_workload
from ungater.model.workload_status import observed_of

SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 3))


def stored(patch, **spec):
    body = {"metadata": {"name": "w", "uid": "u", "resourceVersion": "9"}, "spec": spec, "status": patch["status"]}
    return observed_of(msgspec.json.decode(msgspec.json.encode(body), type=WorkloadObject))


def test_an_admission_reads_back_as_the_same_slots_in_both_stored_forms():
    observed = make_known(make_owner())
    found = stored(workload_status.status_patch(observed, (), admission=make_admission(SLOTS)))
    assert found.slots.same_slots(SLOTS)
    assert found.slots.flavor == "gpu"
    many = slot_map(*((f"b/r{i // 20}/n{i}", 1 + i % 2) for i in range(600)))
    assert stored(workload_status.status_patch(observed, (), admission=make_admission(many))).slots.same_slots(many)


@pytest.mark.parametrize(
    ("hosts", "place"),
    [
        (["b/r/n1"], "b/r/n1"),
        (["b/r/n1", "b/r/n2"], "b/r: n1, n2"),
        ([f"b/r/n{i}" for i in range(4)], "b/r: 4 nodes"),
        (["b/r/" + "n" * 40, "b/r/m"], "b/r: 2 nodes"),
        (["b/r2/n1", "b/r1/n2"], "b: r2, r1"),
        ([f"b/r{i}/n" for i in range(5)], "b: 5 racks"),
        (["b2/r/n1", "b1/r/n2"], "b2, b1"),
        ([f"b{i}/r/n" for i in range(5)], "5 blocks"),
        (["b//n1", "b//n2"], "b: n1, n2"),
    ],
)
def test_an_admission_tells_in_a_few_words_where_its_pods_go(hosts, place):
    admission = make_admission(slot_map(*((host, 1) for host in hosts)))
    assert admission.place == place
    patch = workload_status.status_patch(make_known(make_owner()), (), admission=admission)
    assert patch["status"]["admission"]["place"] == place


def test_a_place_in_flavors_with_other_levels_is_told_by_flavor():
    parts = [
        PodSetAssignment(name, 1, {}, {}, PodSetSlots(levels, [Slot(("x",) * len(levels), 1)], name))
        for name, levels in (("fast", ("block", "rack")), ("slow", ("zone",)))
    ]
    assert Admission("", tuple(parts)).place == "fast, slow"
    assert Admission("", ()).place == ""


def test_an_admission_that_cannot_be_read_counts_as_none():
    for assignment in (
        {"slices": [{"count": 1}]},
        {"levels": ["a"], "slices": [{"nodeLabels": {}, "count": 1}]},
        {"slices": [{"nodeLabels": {"kubernetes.io/hostname": "n", "rack": "r"}, "count": 1}]},
    ):
        entry = {"name": "main", "topologyAssignment": assignment}
        assert stored({"status": {"admission": {"podSetAssignments": [entry]}}}).slots is None


def test_every_status_write_carries_the_version_it_was_decided_on():
    observed = make_known(make_owner())
    for patch in (
        workload_status.status_patch(observed, (), admission=None),
        workload_status.conditions_patch(observed, ()),
    ):
        assert patch["metadata"] == {"resourceVersion": "5"}
    assert workload_status.status_patch(observed, (), admission=None)["status"]["admission"] is None


def test_a_new_workload_belongs_to_its_job_and_has_the_whole_template():
    owner = make_owner(parallelism=4, completions=9, spec={"priorityClassName": "high", "hostname": "kept"})
    body = json.loads(msgspec.json.encode(new_workload(owner, 7)))
    (reference,) = body["metadata"]["ownerReferences"]
    assert (reference["uid"], reference["controller"], reference["blockOwnerDeletion"]) == (owner.uid, True, True)
    (pod_set,) = body["spec"]["podSets"]
    assert (pod_set["count"], pod_set["topologyRequest"]) == (4, {"policy": "Required", "level": "rack"})
    assert pod_set["template"]["spec"]["hostname"] == "kept"
    assert (body["spec"]["priority"], body["spec"]["priorityClassName"]) == (7, "high")


def test_a_workload_says_of_which_templates_and_requests_it_is_a_copy():
    owner = make_owner()
    body = json.loads(msgspec.json.encode(new_workload(owner, 7)))
    observed = observed_of(msgspec.json.decode(msgspec.json.encode(body), type=WorkloadObject))
    assert observed.copy_of == workload_spec.fingerprint(owner)
    others = [
        make_owner(spec={"nodeSelector": {"a": "b"}}),
        make_owner(request={KEYS.required[0]: "block"}),
        make_owner(request={KEYS.preferred[0]: "rack"}),
    ]
    prints = {workload_spec.fingerprint(other) for other in others}
    assert len(prints) == 3
    assert observed.copy_of not in prints
    assert workload_spec.fingerprint(make_owner(parallelism=9, status={"active": 3})) == observed.copy_of
    patch = workload_spec.spec_patch(observed, others[0], 0)
    said = {COPY_OF: workload_spec.fingerprint(others[0]), OWNER: others[0].owner, HELD: None}
    assert patch["metadata"]["annotations"] == said


def test_one_that_is_made_anew_says_what_its_pods_were_given_until_its_status_does():
    owner, held = make_owner(), make_admission(slot_map(("b/r1/n1", 3)), queue="cq")
    body = json.loads(msgspec.json.encode(new_workload(owner, 7, held)))
    observed = observed_of(msgspec.json.decode(msgspec.json.encode(body), type=WorkloadObject))
    assert observed.admission is None
    assert observed.held.same_grant(held)
    written = {**body, "status": {"conditions": [{"type": "QuotaReserved", "status": "False"}]}}
    assert observed_of(msgspec.json.decode(msgspec.json.encode(written), type=WorkloadObject)).held is None
    for garbage in ("", "{", "7", "[" * 100_000, '{"podSetAssignments":[{"topologyAssignment":7}]}', "null"):
        body["metadata"]["annotations"][HELD] = garbage
        assert observed_of(msgspec.json.decode(msgspec.json.encode(body), type=WorkloadObject)).held is None
    many = make_admission(slot_map(*((f"b{i}/r{i}/{i}n{i}x{i * 7919}", i + 1) for i in range(9000))), queue="cq")
    assert HELD not in new_workload(owner, 7, many)["metadata"]["annotations"], "more than an object may carry"


def test_what_checks_add_counts_once_they_are_ready():
    update = {"name": "main", "labels": {"a": "b"}, "nodeSelector": {"zone": "z"}, "tolerations": [{"key": "k"}]}
    checks = [
        {"name": name, "state": state, "podSetUpdates": [update]} for name, state in (("c", "Ready"), ("d", "Pending"))
    ]
    observed = stored({"status": {"admissionChecks": checks}})
    assert list(observed.updates) == ["c"]
    ((check, found),) = pod_template.updates_of(observed, ["b", "c", "d"])
    assert (check, found.labels, found.node_selector) == ("c", {"a": "b"}, {"zone": "z"})


def test_slices_and_groups_stand_in_the_workload_as_they_were_asked_for():
    base = {KEYS.required[0]: "block"}
    one = {**base, KEYS.slice_level: "rack", KEYS.slice_size: "2"}
    layers = [{"topology": "rack", "size": 4}, {"topology": "kubernetes.io/hostname", "size": 2}]
    for request, expected in (
        (one, {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 2}),
        ({**base, KEYS.slice_layers: json.dumps(layers)}, {"podSetSliceRequiredTopologyConstraints": layers}),
        ({**base, KEYS.group: "ring"}, {"podSetGroupName": "ring"}),
    ):
        (pod_set,) = new_workload(make_owner(request=request), 0)["spec"]["podSets"]
        assert pod_set["topologyRequest"] == {"policy": "Required", "level": "block", **expected}
    alone = {KEYS.slice_level: "rack", KEYS.slice_size: "2"}
    (pod_set,) = new_workload(make_owner(request=alone), 0)["spec"]["podSets"]
    assert pod_set["topologyRequest"]["policy"] == "Unconstrained"


def test_nothing_is_written_where_nothing_changed():
    old = Condition(
        type=ADMITTED, status="True", reason="r", message="m", last_transition_time="t", observed_generation=1
    )
    want = [WantedCondition(ADMITTED, True, "r", "m")]
    assert merge([old], want, generation=1, now=0.0) is None
    assert merge([old], want, generation=0, now=0.0) is None, "what was seen is older than what it was said of"


def test_a_newer_generation_alone_is_written():
    """`kubectl wait` (1.37) takes a condition whose observedGeneration is behind metadata.generation for outdated."""
    old = Condition(
        type=ADMITTED, status="True", reason="r", message="m", last_transition_time="t", observed_generation=1
    )
    want = [WantedCondition(ADMITTED, True, "r", "m")]
    (again,) = merge([old], want, generation=2, now=0.0)
    assert again == msgspec.structs.replace(old, observed_generation=2)
    assert conditions.outdated([old], 2) == tuple(want)
    assert conditions.outdated([again], 2) == ()


def test_the_transition_time_moves_with_the_status_alone():
    old = Condition(
        type=ADMITTED, status="True", reason="r", message="m", last_transition_time="t", observed_generation=1
    )
    other = Condition(type="Other", status="True", reason="r", message="m", last_transition_time="t")
    (kept, same) = merge([other, old], [WantedCondition(ADMITTED, True, "r", "news")], generation=2, now=0.0)
    assert kept is other
    assert (same.message, same.last_transition_time, same.observed_generation) == ("news", "t", 2)
    (_, flipped) = merge([other, old], [WantedCondition(ADMITTED, False, "r", "m")], generation=2, now=0.0)
    assert flipped.last_transition_time == "1970-01-01T00:00:00Z"


def test_messages_are_cut_and_every_required_field_is_written():
    (condition,) = plain(merge([], [WantedCondition(ADMITTED, False, "r", "x" * 5000)], generation=0, now=0.0))
    assert len(condition["message"]) == MAX_MESSAGE
    assert set(condition) == {"type", "status", "reason", "message", "lastTransitionTime", "observedGeneration"}


def test_times_that_the_api_server_stores_are_read_and_written():
    assert conditions.timestamp(1e15) == "9999-12-31T23:59:59Z"
    assert conditions.moment("2026-01-01t00:00:00.123456789z") == 1767225600.123456
    assert conditions.moment("0000-01-01T00:00:00Z") is None
    assert conditions.timestamp(conditions.moment("9999-12-31T23:59:59-14:00")) == "9999-12-31T23:59:59Z"
