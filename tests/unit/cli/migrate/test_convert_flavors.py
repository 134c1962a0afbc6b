"""Topology and ResourceFlavor of Kueue 0.19.2 as flavors of ours."""

import pytest
from support.migrating import made_of, migrated, of_kueue, outcome_of, rows_of

NODES = {"nodeLabels": {"cloud.com/group": "tas"}}


def topology(*labels, name="t", version="v1beta2"):
    return of_kueue("Topology", name, {"levels": [{"nodeLabel": label} for label in labels]}, version=version)


def flavor(name="f", **spec):
    return of_kueue("ResourceFlavor", name, {**NODES, **spec})


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1", "v1alpha1"])
def test_levels_come_from_the_topology(version):
    report = migrated(flavor(topologyName="t"), topology("block", "kubernetes.io/hostname", version=version))
    assert made_of(report, "ResourceFlavor", "f")["spec"] == {
        **NODES,
        "topology": {"levels": ["block", "kubernetes.io/hostname"]},
    }
    assert outcome_of(report, "ResourceFlavor", "f") == "changed"
    (row,) = [one for one in report.rows if one.kind == "Topology" and not one.field]
    assert (row.outcome, row.ours) == ("changed", "spec.topology.levels of ResourceFlavor f")


def test_a_flavor_with_a_missing_topology_is_refused():
    report = migrated(flavor(topologyName="t"), topology("block", name="other"))
    assert report.objects == []
    assert "Topology t does not exist" in rows_of(report)["spec.topologyName", "refused"]
    assert "nothing is made of it" in next(row.why for row in report.rows if row.kind == "Topology")


def test_nine_levels_are_refused_and_eight_taken():
    labels = [f"level-{at}" for at in range(9)]
    assert migrated(flavor(topologyName="t"), topology(*labels[:8])).objects != []
    report = migrated(flavor(topologyName="t"), topology(*labels))
    assert report.objects == []
    assert rows_of(report)["spec.topology.levels", "refused"] == "expected a list of at most 8, found 9 of them"


@pytest.mark.parametrize("levels", ["block", ["block"], [], None, [{"nodeLabel": 5}]])
def test_a_topology_of_another_shape_refuses_its_flavor(levels):
    report = migrated(flavor(topologyName="t"), of_kueue("Topology", "t", {"levels": levels}))
    assert outcome_of(report, "ResourceFlavor", "f") == "refused"


def test_a_topology_without_labels_of_nodes_is_refused():
    report = migrated(of_kueue("ResourceFlavor", "f", {"topologyName": "t"}), topology("block"))
    assert rows_of(report)["spec.nodeLabels", "refused"] == "a flavor with a topology needs a label of its nodes"


def test_taints_and_tolerations_are_taken():
    spec = {
        "nodeTaints": [{"key": "spot", "value": "", "effect": "NoSchedule"}],
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}],
    }
    report = migrated(flavor(**spec))
    assert made_of(report, "ResourceFlavor", "f")["spec"] == {**NODES, **spec}
    assert outcome_of(report, "ResourceFlavor", "f") == "taken"


def test_an_operator_that_kueue_has_not_either_is_refused():
    report = migrated(flavor(tolerations=[{"key": "slots", "operator": "Gt", "value": "3"}]))
    assert outcome_of(report, "ResourceFlavor", "f") == "refused"


def test_a_flavor_that_says_nothing_is_taken():
    report = migrated(of_kueue("ResourceFlavor", "f"), of_kueue("ResourceFlavor", "g", {}))
    assert [one["metadata"]["name"] for one in report.objects] == ["f", "g"]
