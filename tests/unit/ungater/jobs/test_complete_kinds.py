"""A kind of owner stands in several places; what a new one lacks is said here, in words.

That its labels stay as they are: `tests/integration/test_policy_tenants.py`.
"""

from pathlib import Path

import pytest
import yaml

from kube.replicas import REPLICATED
from ungater.jobs.kinds import RULES

ROOT = Path(__file__).parents[4]
BASE = ROOT / "manifests" / "base"


def read_by(name, verbs):
    """What the roles of a file may do with all of ``verbs``: (API group, resource)."""
    found = set()
    for role in yaml.safe_load_all((BASE / name).read_text()):
        for rule in (role or {}).get("rules") or ():
            if verbs <= set(rule["verbs"]):
                found |= {(group, resource) for group in rule["apiGroups"] for resource in rule["resources"]}
    return found


@pytest.mark.parametrize(
    ("name", "verbs"), [("rbac-ungater.yaml", {"list", "watch"}), ("rbac-users.yaml", {"get", "list", "watch"})]
)
def test_owners_whose_replicas_are_read_may_be_read(name, verbs):
    wanted = {(kind.group, kind.plural) for kind, _ in REPLICATED}
    assert wanted - read_by(name, verbs) == set(), f"add a rule with {sorted(verbs)} to manifests/base/{name}"


def test_each_group_of_owners_is_in_their_guide():
    guide = (ROOT / "docs" / "owners.md").read_text()
    lacking = {rule.group for rule in RULES if rule.pod_set and f"`{rule.group}`" not in guide}
    assert lacking == set(), "add a row to the first table of docs/owners.md: workload, pod sets, how it waits"
