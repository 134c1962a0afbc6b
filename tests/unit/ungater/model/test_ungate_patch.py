"""The bytes of the ungating patch."""

import json

from support.owned import KEYS, LEVELS, make_pod

from kube.objects import Toleration
from ungater.model.pod_slots import Slot
from ungater.model.ungate_patch import UngatePatches

SLOT = Slot(("b1", "r2", "n3"), 4, "n3")


def body(pod, slot=SLOT, levels=LEVELS):
    return json.loads(UngatePatches(KEYS, "job-train-x", "main", levels).body(pod, slot))


def terms(patch):
    required = patch["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return required["nodeSelectorTerms"]


def test_it_narrows_the_selector_names_the_workload_and_removes_the_gate_of_this_very_pod():
    pod = make_pod("p1")
    patch = body(pod)
    assert patch["metadata"] == {
        "uid": "uid-p1",
        "annotations": {KEYS.workload: "job-train-x", KEYS.pod_set: "main"},
    }
    assert patch["spec"]["nodeSelector"] == {"block": "b1", "rack": "r2", "kubernetes.io/hostname": "n3"}
    assert patch["spec"]["schedulingGates"] is None
    assert terms(patch) == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n3"]}]}]


def test_other_gates_stay():
    assert body(make_pod(gates=["example.com/other"]))["spec"]["schedulingGates"] == [{"name": "example.com/other"}]


def test_the_node_is_added_to_every_required_term_after_what_stands_there():
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                    {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n9"]}]},
                ]
            }
        }
    }
    first, second = terms(body(make_pod(spec={"affinity": affinity})))
    pin = {"key": "metadata.name", "operator": "In", "values": ["n3"]}
    assert first == {"matchExpressions": [{"key": "a", "operator": "Exists"}], "matchFields": [pin]}
    assert second == {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n9"]}, pin]}


def test_a_term_that_may_not_be_added_to_leaves_affinity_alone():
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}
    assert "affinity" not in body(make_pod(spec={"affinity": affinity}))["spec"]


def test_where_the_last_level_is_no_host_no_node_is_named():
    patch = body(make_pod(), Slot(("b1", "r2"), 4), ("block", "rack"))
    assert patch["spec"]["nodeSelector"] == {"block": "b1", "rack": "r2"}
    assert "affinity" not in patch["spec"]


def test_pods_of_one_slice_differ_in_the_uid_alone():
    patches = UngatePatches(KEYS, "job-train-x", "main", LEVELS)
    first, second = (patches.body(make_pod(name), SLOT) for name in ("aa", "bb"))
    assert first.replace(b"uid-aa", b"uid-bb") == second


def test_a_pod_s_own_annotations_come_beside_those_of_its_slice():
    patches = UngatePatches(KEYS, "job-train-x", "main", LEVELS)
    text = '[{"zone":"node-0","amount":{"cpu":"8"}}]'
    own = {"topogate.dev/numa-placement-predicted": text, "BAIDU_COM_DEVICE_IDX": "0,1"}
    first = json.loads(patches.body(make_pod("p1"), SLOT, own))
    second = json.loads(patches.body(make_pod("p2"), SLOT))
    shared = {KEYS.workload: "job-train-x", KEYS.pod_set: "main"}
    assert first["metadata"] == {"uid": "uid-p1", "annotations": {**shared, **own}}
    assert second["metadata"] == {"uid": "uid-p2", "annotations": shared}
    assert first["spec"] == second["spec"]


TAINTED = Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")


def test_what_its_flavor_says_of_nodes_goes_onto_the_pod_also_where_the_last_level_is_no_host():
    patches = UngatePatches(
        KEYS, "job-train-x", "main", ("block", "rack"), {"pool": "reserved"}, tolerations=(TAINTED,)
    )
    mine = {
        "key": "node.kubernetes.io/not-ready",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    patch = json.loads(patches.body(make_pod(spec={"tolerations": [mine]}), Slot(("b1", "r2"), 4)))
    assert patch["spec"]["nodeSelector"] == {"pool": "reserved", "block": "b1", "rack": "r2"}
    added = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert patch["spec"]["tolerations"] == [mine, added], "Kubernetes takes a list that has all that were there"


def test_a_toleration_that_the_pod_has_is_not_added_again():
    patches = UngatePatches(KEYS, "job-train-x", "main", LEVELS, tolerations=(TAINTED,))
    tolerating = make_pod(
        spec={"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]}
    )
    assert "tolerations" not in json.loads(patches.body(tolerating, SLOT))["spec"]
    assert "tolerations" in json.loads(patches.body(make_pod(), SLOT))["spec"], "each pod by what it has"
