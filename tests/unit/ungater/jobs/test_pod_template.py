"""The patches that unsuspend a job and give it back what it was."""

import json

import msgspec
import pytest
from msgspec.structs import replace
from support.owned import KEYS, make_admission, make_owner, make_record, slot_map

from crds.constants import GPU_LINK, KUEUE_POD_SET, KUEUE_WORKLOAD
from crds.request import parse_request
from kube.objects import ResourceFlavor, Toleration
from kube.workloads import PodSetUpdate
from ungater.jobs import pod_template
from ungater.model.admission import PodSetAssignment

SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 2))


def flavor(name="plain", *, topology=False, labels=None, tolerations=()):
    spec = {"nodeLabels": labels or {"disk": "fast"}, "tolerations": list(tolerations)}
    if topology:
        spec["topology"] = {"levels": ["rack"]}
    body = {"metadata": {"name": name}, "spec": spec}
    return {name: msgspec.json.decode(json.dumps(body), type=ResourceFlavor)}


def started(owner, admission, flavors):
    return pod_template.start(owner, admission, flavors, KEYS)["spec"]


def test_a_job_with_slots_is_only_unsuspended():
    owner = make_owner(suspend=True)
    body = pod_template.start(owner, make_admission(SLOTS), flavor("gpu", topology=True), KEYS)
    assert body == {"metadata": {"uid": owner.uid}, "spec": {"suspend": False}}


def test_a_job_that_is_edited_meanwhile_is_not_unsuspended():
    owner = replace(make_owner(suspend=True), version=7)
    body = pod_template.start(owner, make_admission(SLOTS), flavor("gpu", topology=True), KEYS)
    assert body["metadata"] == {"uid": owner.uid, "resourceVersion": "7"}
    assert pod_template.stop(owner)["metadata"] == {"uid": owner.uid}, "whatever it is by then"


def test_fewer_pods_than_it_asks_for_are_its_parallelism():
    owner = make_owner(parallelism=4, suspend=True)
    admission = make_admission(slot_map(("b/r/n1", 3)))
    assert started(owner, admission, {})["parallelism"] == 3


def test_without_slots_pods_with_a_wish_for_linked_devices_are_not_gated_anew():
    link = {GPU_LINK: "prefer", KEYS.unconstrained: "true"}
    owner = make_owner(suspend=True, request=link)
    template = started(owner, make_admission(None, queue="q", count=4), flavor())["template"]
    assert template["spec"]["schedulingGates"] is None
    assert template["metadata"] == {"annotations": {KEYS.unconstrained: "false"}}
    assert parse_request({**link, KEYS.unconstrained: "false"}, KEYS) is None


def test_a_toleration_of_a_flavor_keeps_its_seconds():
    owner = make_owner(suspend=True, gated=False, request={})
    soon = {"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    spec = started(owner, make_admission(None, queue="q", count=4), flavor(tolerations=[soon]))
    assert spec["template"]["spec"]["tolerations"] == [soon]


def test_labels_and_tolerations_of_flavors_without_a_topology_are_added():
    wanted = {"key": "dedicated", "operator": "Exists"}
    mine = {"key": "mine", "operator": "Exists"}
    owner = make_owner(suspend=True, gated=False, request={}, spec={"tolerations": [mine]})
    admission = make_admission(None, queue="q", count=4)
    spec = started(owner, admission, flavor(labels={"disk": "fast"}, tolerations=[wanted, mine]))
    assert spec["template"]["spec"] == {"nodeSelector": {"disk": "fast"}, "tolerations": [mine, wanted]}


def test_what_flavors_add_to_pods_behind_the_gate_is_left_to_the_patch_that_removes_it():
    wanted = {"key": "dedicated", "operator": "Exists"}
    owner = make_owner(suspend=True)
    flavors = flavor("gpu", topology=True, tolerations=[wanted])
    assert started(owner, make_admission(SLOTS, queue="q"), flavors) == {"suspend": False}
    record = make_record(owner, slots=SLOTS, admission=make_admission(SLOTS, queue="q"))
    more = pod_template.to_pods(record, "main", flavors, KEYS, ())
    assert more.node_selector == {"disk": "fast"}
    assert more.tolerations == [Toleration(key="dedicated", operator="Exists")]


def test_the_flavor_that_the_pods_have_their_slots_in_says_last_what_nodes_are_called():
    slots = slot_map(("b/r/n1", 4))
    part = PodSetAssignment("main", 4, {"cpu": "gpu", "memory": "plain"}, {}, slots)
    flavors = flavor("plain") | flavor("gpu", topology=True, labels={"disk": "none"})
    assert pod_template.of_flavors(part, flavors).node_selector == {"disk": "none"}


def test_pods_that_have_slots_and_no_gate_get_ours():
    other = {"name": "example.com/other"}
    owner = make_owner(suspend=True, gated=False, request={}, spec={"schedulingGates": [other]})
    spec = started(owner, make_admission(SLOTS, queue="q"), {})
    assert spec["template"]["spec"]["schedulingGates"] == [other, {"name": KEYS.gate}]


def merged(value, patch):
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    found = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), change)
    return found


def test_what_was_added_is_taken_away_again_and_nothing_else():
    before = {"nodeSelector": {"mine": "1"}, "containers": [{"name": "c"}]}
    wanted = {"key": "dedicated", "operator": "Exists"}
    owner = make_owner(suspend=True, gated=False, request={}, spec=before)
    spec = json.loads(owner.pod_sets[0].raw)["spec"]
    admission = make_admission(None, queue="q", count=4)
    patch = pod_template.start(owner, admission, flavor(tolerations=[wanted]), KEYS)
    after = merged(spec, patch["spec"]["template"]["spec"])
    assert after["nodeSelector"] == {"mine": "1", "disk": "fast"}
    gates = [{"name": KEYS.gate}]
    running = make_owner(suspend=True, request={}, spec={**after, "schedulingGates": gates})
    back = pod_template.restore(running, [{"name": "main", "count": 4, "template": {"spec": spec}}])
    again = merged({**after, "schedulingGates": gates}, back["spec"]["template"]["spec"])
    assert again == {key: value for key, value in spec.items() if value}, "an empty list of gates is none"
    assert pod_template.restore(owner, [{"name": "main", "count": 4, "template": {"spec": spec}}]) is None


@pytest.mark.parametrize(
    ("request_", "more"),
    [
        ({}, {KEYS.unconstrained: "true"}),
        ({KEYS.required[1]: "rack"}, {}),
        ({KEYS.unconstrained: "true"}, {}),
        ({KEYS.preferred[0]: "rack"}, {}),
    ],
)
def test_beside_kueue_a_template_gets_what_kueue_adds_and_loses_it_when_its_job_is_put_back(request_, more):
    """0.19.2: getPodSetsInfoFromStatus in pkg/controller/jobframework/reconciler.go, FromAssignment in pkg/podset."""
    owner = make_owner(suspend=True, request=request_)
    template = json.loads(owner.pod_sets[0].raw)
    body = pod_template.start(owner, make_admission(SLOTS, queue="q"), {}, KEYS, kueue="job-train-0a1b2")
    added = body["spec"]["template"]["metadata"]
    assert added == {"labels": {KUEUE_POD_SET: "main"}, "annotations": {KUEUE_WORKLOAD: "job-train-0a1b2", **more}}
    running = merged(template, body["spec"]["template"])
    pod_set = replace(owner.pod_sets[0], raw=json.dumps(running).encode())
    stored = [{"name": "main", "count": 4, "template": template}]
    back = pod_template.restore(replace(owner, pod_sets=(pod_set,)), stored)
    again = merged(running, back["spec"]["template"])
    assert {name: one for name, one in again["metadata"].items() if one} == {
        name: one for name, one in template["metadata"].items() if one
    }


def test_beside_kueue_pods_without_slots_get_no_request():
    """Kueue has no topology for them, and no gate."""
    owner = make_owner(suspend=True, gated=False, request={})
    admission = make_admission(None, queue="q", count=4)
    body = pod_template.start(owner, admission, flavor(), KEYS, kueue="job-train-0a1b2")
    assert body["spec"]["template"]["metadata"]["annotations"] == {KUEUE_WORKLOAD: "job-train-0a1b2"}
    assert "schedulingGates" not in body["spec"]["template"]["spec"]


def test_a_job_that_ran_with_fewer_pods_asks_for_all_again():
    owner = make_owner(parallelism=2, suspend=True)
    template = json.loads(owner.pod_sets[0].raw)
    body = pod_template.restore(owner, [{"name": "main", "count": 4, "minCount": 2, "template": template}])
    assert body["spec"] == {"parallelism": 4}
    assert pod_template.restore(owner, [{"name": "main", "count": 4, "template": template}]) is None, (
        "an edit of the user stays"
    )


SPOT = {"key": "spot", "operator": "Exists"}
UPDATE = PodSetUpdate(
    name="main",
    labels={"paid-by": "team-a"},
    annotations={"example.com/ticket": "7"},
    node_selector={"zone": "z1"},
    tolerations=(Toleration(key="spot", operator="Exists"),),
)


def updated(*updates, owner=None, flavors=None, count=4):
    owner = owner or make_owner(suspend=True)
    admission = make_admission(SLOTS, queue="q") if flavors is None else make_admission(None, queue="q", count=count)
    return pod_template.start(owner, admission, flavors or {}, KEYS, updates)["spec"]


def test_what_checks_add_goes_into_the_template_and_is_taken_away_again():
    before = {"nodeSelector": {"mine": "1"}, "tolerations": [{"key": "mine", "operator": "Exists"}]}
    owner = make_owner(suspend=True, spec=before)
    template = json.loads(owner.pod_sets[0].raw)
    other = PodSetUpdate(name="main", node_selector={"zone": "z1", "disk": "fast"}, tolerations=UPDATE.tolerations)
    body = updated(("budget", UPDATE), ("other", other), owner=owner)
    after = merged(template, body["template"])
    assert after["metadata"]["labels"] == {"paid-by": "team-a"}
    assert after["metadata"]["annotations"] == {**template["metadata"]["annotations"], "example.com/ticket": "7"}
    assert after["spec"]["nodeSelector"] == {"mine": "1", "zone": "z1", "disk": "fast"}
    assert after["spec"]["tolerations"] == [*before["tolerations"], SPOT], "each once"
    request = after["metadata"].pop("annotations")
    running = make_owner(suspend=True, request=request, spec=after["spec"])
    labelled = msgspec.json.decode(running.pod_sets[0].raw)
    labelled["metadata"]["labels"] = after["metadata"]["labels"]
    running = msgspec.structs.replace(
        running, pod_sets=(msgspec.structs.replace(running.pod_sets[0], raw=json.dumps(labelled).encode()),)
    )
    back = pod_template.restore(running, [{"name": "main", "count": 4, "template": template}])
    again = merged(labelled, back["spec"]["template"])
    assert {key: value for key, value in again["metadata"].items() if value} == template["metadata"]
    assert again["spec"] == template["spec"]


@pytest.mark.parametrize(
    ("update", "text"),
    [
        ({"labels": {"app": "b"}}, 'labels[app]: "b" contradicts "a" of the pod template'),
        ({"annotations": {"note": "b"}}, 'annotations[note]: "b" contradicts "a" of the pod template'),
        ({"node_selector": {"zone": "z2"}}, 'nodeSelector[zone]: "z2" contradicts "z1" of admission check first'),
        ({"node_selector": {"disk": "slow"}}, 'nodeSelector[disk]: "slow" contradicts "fast" of its flavor'),
        ({"annotations": {KEYS.preferred[0]: "block"}}, "would change what the job asks of Topogate"),
        ({"name": "workers"}, 'there is no pod set "workers", but main'),
    ],
)
def test_what_contradicts_is_refused_with_check_field_and_values(update, text):
    owner = make_owner(suspend=True, gated=False, request={"note": "a"})
    template = owner.pod_sets[0].template
    meta = msgspec.structs.replace(template.metadata, labels={"app": "a"})
    template = msgspec.structs.replace(template, metadata=meta)
    owner = msgspec.structs.replace(owner, pod_sets=(msgspec.structs.replace(owner.pod_sets[0], template=template),))
    wanted = PodSetUpdate(**{"name": "main", **update})
    first = PodSetUpdate(name="main", labels={"app": "a"}, node_selector={"zone": "z1"})
    with pytest.raises(pod_template.ClashError) as refused:
        updated(("first", first), ("second", wanted), owner=owner, flavors=flavor())
    assert str(refused.value).startswith("admission check second: podSetUpdates")
    assert text in str(refused.value)
