"""Kueue's ClusterQueue while it moves, and as it was."""

import copy

from cli.migrate.moves.kueue_spec import leave_cohort, patch_to_hold, patch_to_leave, patch_to_release, patch_to_return

AMOUNT = {"name": "cpu", "nominalQuota": "4", "borrowingLimit": "2", "lendingLimit": "1"}
SPEC = {
    "cohortName": "all",
    "namespaceSelector": {},
    "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [AMOUNT]}]}],
    "stopPolicy": "None",
}


def merged(body, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    found = dict(body) if isinstance(body, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def test_outside_of_its_cohort_a_queue_has_no_limits_and_all_its_own_quota():
    before = copy.deepcopy(SPEC)
    alone = merged({"spec": SPEC}, patch_to_leave(SPEC))["spec"]
    assert "cohortName" not in alone
    assert alone["resourceGroups"][0]["flavors"][0]["resources"] == [{"name": "cpu", "nominalQuota": "4"}]
    assert leave_cohort(SPEC) == alone
    assert before == SPEC


def test_there_and_back_is_the_spec_of_before():
    for spec in (SPEC, {**SPEC, "stopPolicy": "HoldAndDrain"}, {"namespaceSelector": {}, "stopPolicy": "None"}):
        body = {"spec": spec}
        for patch in (patch_to_hold(), patch_to_leave(spec), patch_to_return(spec)):
            body = merged(body, patch)
        assert body["spec"]["stopPolicy"] == "Hold", "until all is back"
        assert merged(body, patch_to_release(spec)) == {"spec": spec}
