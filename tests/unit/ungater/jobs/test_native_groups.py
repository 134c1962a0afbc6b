"""What PodGroups of Kubernetes itself and spec.scheduling say of a job, beside its own annotations."""

import msgspec
import pytest
from msgspec.structs import replace
from support.owned import KEYS, make_job

from crds.constants import EVICT_BY
from engine.model import Policy
from engine.reasons import Reason
from kube.objects import GroupTerms, Pod, PodGroup
from ungater.jobs.job import owner_of
from ungater.jobs.native_groups import groups_of
from ungater.jobs.native_groups import with_groups as with_groups_of
from ungater.jobs.pod_group import owner_key, owner_of_pods

RACK, BLOCK = "rack", "block"
IN_GROUP = {"schedulingGroup": {"podGroupName": "ring"}}
UNCONSTRAINED = {KEYS.unconstrained: "true"}
MOST = 2**31 - 1


def with_groups(view, find, keys, priority_of=lambda spec: spec.priority or 0):
    return with_groups_of(view, find, keys, priority_of)


def terms(level="", least=0, mode="", claims=()):
    said = {"schedulingPolicy": {"gang": {"minCount": least}} if least else {"basic": {}}}
    if level:
        said["schedulingConstraints"] = {"topology": [{"key": level}]}
    if mode:
        said["disruptionMode"] = {mode: {}}
    if claims:
        said["resourceClaims"] = [{"name": name} for name in claims]
    return said


def group(**said):
    body = {"metadata": {"name": "ring", "namespace": "ns"}, "spec": terms(**said)}
    return msgspec.json.decode(msgspec.json.encode(body), type=PodGroup)


def found(**said):
    return {"ns/ring": group(**said)}.get


def job(annotations=None, *, says=None, spec=None, parallelism=4, **more):
    made = make_job(request={} if annotations is None else annotations, spec=spec, parallelism=parallelism, **more)
    metadata = replace(made.metadata, annotations=dict(annotations or {}))
    scheduling = msgspec.convert(says, GroupTerms) if says is not None else None
    return owner_of(replace(made, metadata=metadata, spec=replace(made.spec, scheduling=scheduling)), KEYS)


def grouped(annotations=None, **more):
    return job(annotations, spec=IN_GROUP, **more)


def asked(view):
    request = view.pod_sets[0].request
    return (request.policy, request.level) if request is not None else None


def pod(name, *, owner=None, labels=None, annotations=None, named="ring"):
    body = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"u-{name}",
            "labels": labels or {},
            "annotations": annotations or UNCONSTRAINED,
            "ownerReferences": [owner] if owner else [],
        },
        "spec": {
            "schedulingGates": [{"name": KEYS.gate}],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            **({"schedulingGroup": {"podGroupName": named}} if named else {}),
        },
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Pod)


def of_pods(*pods):
    return owner_of_pods(owner_key(pods[0], KEYS), pods, KEYS)


# --- level ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("annotations", [None, UNCONSTRAINED, {KEYS.required[0]: RACK}, {KEYS.preferred[0]: RACK}])
def test_the_groups_level_is_required_where_the_annotations_say_the_same_or_nothing(annotations):
    for view in (with_groups(grouped(annotations), found(level=RACK), KEYS), of_job(annotations, level=RACK)):
        assert (asked(view), view.held_off) == ((Policy.REQUIRED, RACK), None)


def of_job(annotations, **said):
    return with_groups(job(annotations, says=terms(**said)), None, KEYS)


@pytest.mark.parametrize(
    ("key", "level"), [(KEYS.required[0], BLOCK), (KEYS.preferred[0], BLOCK), (KEYS.preferred[0], "auto")]
)
def test_another_level_holds_it_off_and_both_fields_are_named(key, level):
    theirs = "schedulingConstraints.topology[0].key"
    for view, where in (
        (with_groups(grouped({key: level}), found(level=RACK), KEYS), f"PodGroup ring: spec.{theirs}"),
        (of_job({key: level}, level=RACK), f"spec.scheduling.{theirs}"),
    ):
        assert view.held_off.reason is Reason.CONTRADICTING_REQUESTS
        assert f'[{key}]: "{level}" contradicts {where}: "{RACK}"' in str(view.held_off)
        assert asked(view) == asked(job({key: level})), "what it runs by stays as it was"


def test_slices_go_with_the_groups_level():
    slices = {f"{KEYS.domain}/podset-slice-required-topology": RACK, f"{KEYS.domain}/podset-slice-size": "2"}
    view = of_job(slices, level=BLOCK)
    assert asked(view) == (Policy.REQUIRED, BLOCK)
    assert [layer.level for layer in view.pod_sets[0].request.slices] == [RACK]


def test_a_group_without_a_level_asks_for_none():
    view = with_groups(grouped({KEYS.preferred[0]: RACK}), found(), KEYS)
    assert (asked(view), view.held_off) == ((Policy.PREFERRED, RACK), None)


# --- gang -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [5, MOST])
def test_a_job_with_fewer_pods_than_its_gang_is_held_off(least):
    view = with_groups(grouped(UNCONSTRAINED), found(least=least), KEYS)
    assert view.held_off.reason is Reason.CONTRADICTING_REQUESTS
    told = f"spec.parallelism: 4 contradicts PodGroup ring: spec.schedulingPolicy.gang.minCount: {least}"
    assert str(view.held_off).startswith(told)
    assert view.count == 4


def test_as_many_or_more_pods_than_the_gang_are_placed_together():
    for least in (1, 4):
        view = with_groups(grouped(UNCONSTRAINED), found(least=least), KEYS)
        assert (view.held_off, view.pod_sets[0].count, view.pod_sets[0].least) == (None, 4, 0)


def test_a_job_may_not_be_admitted_with_fewer_pods_than_its_gang():
    annotations = {**UNCONSTRAINED, KEYS.min_parallelism: "2"}
    view = of_job(annotations, least=3)
    assert f'[{KEYS.min_parallelism}]: "2" contradicts spec.scheduling.' in str(view.held_off)
    assert of_job(annotations, least=2).held_off is None


def test_pods_that_nobody_counts_wait_for_their_gang():
    stateful = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u-db", "controller": True}
    pods = [pod(f"db-{at}", owner=stateful) for at in range(3)]
    view = with_groups(of_pods(*pods[:2]), found(least=3), KEYS)
    assert (view.held_off.reason, str(view.held_off)[:23]) == (Reason.PENDING, "2 of 3 pods are there (")
    assert with_groups(of_pods(*pods), found(least=3), KEYS).held_off is None


def test_a_total_below_the_gang_contradicts_it():
    total = {**UNCONSTRAINED, KEYS.pod_group_total: "2"}
    pods = [pod(f"p{at}", labels={KEYS.pod_group: "mine"}, annotations=total) for at in range(2)]
    view = with_groups(of_pods(*pods), found(least=3), KEYS)
    assert f"metadata.annotations[{KEYS.pod_group_total}]: 2 contradicts PodGroup ring" in str(view.held_off)
    assert with_groups(of_pods(*pods), found(least=2), KEYS).held_off is None


# --- eviction, and what is not there ----------------------------------------------------------------------------------


def test_pods_that_are_disrupted_together_are_evicted_whole():
    assert with_groups(grouped(UNCONSTRAINED), found(mode="all"), KEYS).whole
    assert not with_groups(grouped(UNCONSTRAINED), found(mode="single"), KEYS).whole
    assert not with_groups(grouped(UNCONSTRAINED), found(), KEYS).whole


def test_slices_that_go_alone_contradict_pods_that_go_together():
    by_slice = {**UNCONSTRAINED, EVICT_BY: "slice"}
    view = of_job(by_slice, mode="all")
    assert f'metadata.annotations[{EVICT_BY}]: "slice" contradicts spec.scheduling.disruptionMode' in str(view.held_off)
    assert of_job(by_slice, mode="single").held_off is None


def test_a_group_that_is_not_there_is_waited_for():
    view = with_groups(grouped(UNCONSTRAINED), {}.get, KEYS)
    assert view.held_off.reason is Reason.PENDING
    assert str(view.held_off).startswith("PodGroup ring does not exist")


def test_devices_of_a_whole_group_are_not_counted():
    view = with_groups(grouped(UNCONSTRAINED), found(claims=["gpus"]), KEYS)
    assert view.held_off.reason is Reason.RESOURCE_CLAIMS_NOT_COUNTED


def test_where_no_groups_are_read_what_pods_name_means_nothing():
    view = grouped(UNCONSTRAINED)
    assert with_groups(view, None, KEYS) == view


def test_a_job_without_a_group_is_what_it_was():
    view = job({KEYS.required[0]: RACK})
    assert with_groups(view, found(level=BLOCK), KEYS) is view


# --- whose pods are whose ---------------------------------------------------------------------------------------------


def test_pods_without_a_controller_are_one_workload_with_those_of_their_group():
    pods = [pod("a"), pod("b")]
    assert {owner_key(one, KEYS) for one in pods} == {":podgroup/ns/ring"}
    view = of_pods(*pods)
    assert (view.kind, view.name, view.pod_sets[0].count) == ("PodGroup", "ring", 2)
    assert groups_of(view) == {"ns/ring"}
    labelled = of_pods(pod("c", labels={KEYS.pod_group: "ring"}))
    assert labelled.workload != view.workload, "a group of ours may be called the same"


def test_pods_of_one_workload_are_of_one_native_group():
    labels = {KEYS.pod_group: "mine"}
    view = of_pods(pod("a", labels=labels), pod("b", labels=labels, named="other"))
    assert view.wrong.reason is Reason.INVALID_REQUEST
    assert "differ in what they ask for" in str(view.wrong)


# -- all pods alike: validatePodGroup of kube-scheduler 1.37 -----------------------------------------------------------

HIGH = {**IN_GROUP, "priorityClassName": "high"}


def valued(spec):
    """Class high has 1000; there is no default class."""
    return spec.priority if spec.priority is not None else {"high": 1000}.get(spec.priority_class_name, 0)


def of_priority(priority):
    made = group()
    return {"ns/ring": replace(made, spec=replace(made.spec, priority=priority))}.get


@pytest.mark.parametrize(("spec", "priority"), [(HIGH, 1000), (IN_GROUP, None), (IN_GROUP, 0)])
def test_pods_of_the_priority_of_their_group_are_placed(spec, priority):
    assert with_groups(job(UNCONSTRAINED, spec=spec), of_priority(priority), KEYS, valued).held_off is None


@pytest.mark.parametrize(("spec", "priority"), [(HIGH, None), (HIGH, 0), (IN_GROUP, 1000)])
def test_pods_of_another_priority_than_their_group_wait_in_1_37(spec, priority):
    """kube-scheduler 1.37.1 never binds them: "got 1000 and 0", condition PodGroupInitiallyScheduled SchedulerError."""
    view = job(UNCONSTRAINED, spec=spec)
    held = with_groups(view, of_priority(priority), KEYS, valued).held_off
    assert (held.reason, held.field) == (Reason.CONTRADICTING_REQUESTS, "PodGroup ring: spec.priority")
    theirs = 1000 if spec is HIGH else 0
    assert f"PodGroup ring: spec.priority: {priority or 0}: the pods of pod set main have priority {theirs}" in str(
        held
    )
    assert with_groups(view, of_priority(priority), KEYS, None).held_off is None, "1.36 compares none"


def test_the_group_that_is_made_of_a_jobs_spec_scheduling_gets_the_class_of_its_pods():
    view = job(UNCONSTRAINED, says=terms(), spec={"priorityClassName": "high"})
    assert with_groups(view, None, KEYS, valued).held_off is None


def test_pods_of_a_group_that_name_several_schedulers_wait():
    view = grouped(UNCONSTRAINED)
    (main,) = view.pod_sets
    spec = replace(main.template.spec, scheduler_name="other")
    other = msgspec.structs.replace(main, name="workers", template=replace(main.template, spec=spec))
    held = with_groups(msgspec.structs.replace(view, pod_sets=(main, other)), found(), KEYS).held_off
    assert (held.reason, held.field) == (Reason.CONTRADICTING_REQUESTS, "spec.schedulerName")
    assert "default-scheduler and other" in str(held)
