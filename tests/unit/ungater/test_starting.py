"""What unsuspending adds to a job's template or takes from it, and that suspending brings back what was there."""

import msgspec
from support.owned import KEYS, make_admission, make_job, slot_map

from kube.objects import ResourceFlavor
from ungater import starting
from ungater.jobs import owner_of

OTHER = {"name": "other.example/gate"}
PLAIN = {
    "plain": msgspec.convert(
        {"metadata": {"name": "plain"}, "spec": {"nodeLabels": {"pool": "a"}}}, type=ResourceFlavor
    )
}


def owned(template):
    """A suspended job with exactly this template."""
    job = make_job(suspend=True)
    raw = msgspec.Raw(msgspec.json.encode(template))
    return owner_of(msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, template=raw)), KEYS)


def queued(gates=({"name": KEYS.gate},)):
    """A job as the webhook leaves it: its template gated."""
    template = {
        "metadata": {"annotations": {KEYS.unconstrained: "true"}},
        "spec": {"containers": [{"name": "c"}], "schedulingGates": list(gates)},
    }
    return owned(template), template


def merged(body, patch):
    """What a JSON merge patch makes of an object."""
    if not isinstance(patch, dict):
        return patch
    found = dict(body) if isinstance(body, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def started(owner, template, admission):
    patch = starting.start(owner, admission, PLAIN, KEYS)["spec"]
    assert patch["suspend"] is False
    return merged(template, patch.get("template", {}))


def test_pods_without_slots_start_without_gate_and_request():
    owner, template = queued()
    found = started(owner, template, make_admission(None, queue="q", count=2))
    assert "schedulingGates" not in found["spec"]
    assert found["spec"]["nodeSelector"] == {"pool": "a"}
    assert KEYS.unconstrained not in found["metadata"]["annotations"]


def test_gates_of_others_stay():
    owner, template = queued(gates=({"name": KEYS.gate}, OTHER))
    found = started(owner, template, make_admission(None, queue="q", count=2))
    assert found["spec"]["schedulingGates"] == [OTHER]


def test_pods_with_slots_keep_gate_and_request():
    owner, template = queued()
    assert started(owner, template, make_admission(slot_map(("b/r/n1", 2)), queue="q")) == template


def test_a_job_that_is_put_back_has_gate_and_request_again():
    owner, template = queued()
    after = started(owner, template, make_admission(None, queue="q", count=2))
    patch = starting.restore(owned(after), {"template": template, "count": 2})
    assert merged(after, patch["spec"]["template"]) == template
    assert starting.restore(owner, {"template": template, "count": 2}) is None
