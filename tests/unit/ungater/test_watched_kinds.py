"""A watched kind is one row of `ungater.kinds`: everything that loops over the rows, and the rights to read them."""

from pathlib import Path

import yaml

from cli.cluster.dump import KINDS
from clock import SYSTEM
from crds.constants import Keys
from kube.client import Client
from kube.connection.config import Connection
from ungater import kinds
from ungater.informers import Informers
from ungater.kinds import OptionalKind

MANIFESTS = Path(__file__).parents[3] / "manifests"
# Readers of PodDisruptionBudgets may have workloads moved; Kueue's classes come with Kueue's own roles.
NOT_OF_INSPECT = {kinds.BUDGETS, kinds.KUEUE_CLASSES}


def rights(name, *files):
    """(group, resource) -> verbs, of the ClusterRole of this name."""
    found = {}
    for file in files:
        for one in yaml.safe_load_all((MANIFESTS / file).read_text()):
            if (one["kind"], one["metadata"]["name"]) != ("ClusterRole", name):
                continue
            for rule in one["rules"]:
                for pair in ((group, resource) for group in rule["apiGroups"] for resource in rule["resources"]):
                    found.setdefault(pair, set()).update(rule["verbs"])
    return found


def without(found, rows, verbs):
    return sorted(
        str(version)
        for row in rows
        for version in row.versions
        if not verbs <= found.get((version.group, version.plural), set())
    )


def test_the_controller_may_list_and_watch_every_kind():
    found = rights("topogate-ungater", "base/rbac-ungater.yaml")
    assert without(found, kinds.KINDS, {"list", "watch"}) == []


def test_whoever_inspects_a_cluster_may_list_every_kind_and_follow_it_on_the_page():
    found = rights("topogate-inspect", "base/rbac-users.yaml")
    assert without(found, set(kinds.KINDS) - NOT_OF_INSPECT, {"list", "watch"}) == []


def test_a_right_that_is_missing_is_found():
    assert without({("", "pods"): {"list"}}, [kinds.PODS], {"list", "watch"}) == ["pods"]
    assert without({("", "pods"): {"list", "watch"}}, [kinds.PODS], {"list", "watch"}) == []


def test_no_two_rows_are_of_one_kind():
    assert len(KINDS) == len(kinds.KINDS) == len({kind.resource for kind in kinds.KINDS})


async def test_every_row_has_its_informer_with_its_versions():
    async with Client(Connection("http://127.0.0.1:1")) as client:
        informers = Informers(client, Keys(), SYSTEM)
    for kind in kinds.KINDS:
        informer = informers.of(kind)
        versions = informer._versions if isinstance(kind, OptionalKind) else (informer.resource,)
        assert versions == kind.versions
    assert len((*informers.every, *informers.optional)) == len(kinds.KINDS)
