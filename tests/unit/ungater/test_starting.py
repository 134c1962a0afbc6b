"""The patches that unsuspend a job and give it back what it was."""

import json

import msgspec
from support.owned import KEYS, make_admission, make_owner, slot_map

from kube.objects import ResourceFlavor
from ungater import starting

SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 2))


def flavor(name="plain", *, topology=False, labels=None, tolerations=()):
    spec = {"nodeLabels": labels or {"disk": "fast"}, "tolerations": list(tolerations)}
    if topology:
        spec["topology"] = {"levels": ["rack"]}
    body = {"metadata": {"name": name}, "spec": spec}
    return {name: msgspec.json.decode(json.dumps(body), type=ResourceFlavor)}


def started(owner, admission, flavors):
    return starting.start(owner, admission, flavors, KEYS)["spec"]


def test_a_job_with_slots_is_only_unsuspended():
    owner = make_owner(suspend=True)
    body = starting.start(owner, make_admission(SLOTS), flavor("gpu", topology=True), KEYS)
    assert body == {"metadata": {"uid": owner.uid}, "spec": {"suspend": False}}


def test_fewer_pods_than_it_asks_for_are_its_parallelism():
    owner = make_owner(parallelism=4, suspend=True)
    admission = make_admission(slot_map(("b/r/n1", 3)))
    assert started(owner, admission, {})["parallelism"] == 3


def test_labels_and_tolerations_of_flavors_without_a_topology_are_added():
    wanted = {"key": "dedicated", "operator": "Exists"}
    mine = {"key": "mine", "operator": "Exists"}
    owner = make_owner(suspend=True, gated=False, request={}, spec={"tolerations": [mine]})
    admission = make_admission(None, queue="q", count=4)
    spec = started(owner, admission, flavor(labels={"disk": "fast"}, tolerations=[wanted, mine]))
    assert spec["template"]["spec"] == {"nodeSelector": {"disk": "fast"}, "tolerations": [mine, wanted]}


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
    patch = starting.start(owner, make_admission(SLOTS, queue="q"), flavor("gpu", tolerations=[wanted]), KEYS)
    after = merged(spec, patch["spec"]["template"]["spec"])
    assert after["nodeSelector"] == {"mine": "1", "disk": "fast"}
    running = make_owner(suspend=True, gated=True, request={}, spec=after)
    back = starting.restore(running, {"count": 4, "template": {"spec": spec}})
    again = merged(after, back["spec"]["template"]["spec"])
    assert again == {key: value for key, value in spec.items() if value}, "an empty list of gates is none"
    assert starting.restore(owner, {"count": 4, "template": {"spec": spec}}) is None


def test_a_job_that_ran_with_fewer_pods_asks_for_all_again():
    owner = make_owner(parallelism=2, suspend=True)
    template = json.loads(owner.pod_sets[0].raw)
    body = starting.restore(owner, {"count": 4, "minCount": 2, "template": template})
    assert body["spec"] == {"parallelism": 4}
    assert starting.restore(owner, {"count": 4, "template": template}) is None, "an edit of the user stays"
