"""Every value of an object is judged: nothing is dropped by construction."""

import copy
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.migrating import configuration, group, migrated, of_kueue

from cli.migrate.leaves import FieldTable, Leaf, build_object, list_leaves
from cli.migrate.rendering import render_report
from cli.migrate.rows import TAKEN, changed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON, min_size=1))
def test_an_object_is_the_sum_of_its_leaves(body):
    assert build_object(list_leaves(body)) == body


def test_an_empty_map_is_a_leaf():
    assert [*list_leaves({"a": {}, "b": [[], 1]})] == [
        Leaf(("a",), {}),
        Leaf(("b", 0), []),
        Leaf(("b", 1), 1),
    ]


def test_a_list_closes_up_where_entries_are_left_out():
    kept = [leaf for leaf in list_leaves({"a": [{"b": 1}, {"c": 2}, {"b": 3}]}) if leaf.value != 2]
    assert build_object(iter(kept)) == {"a": [{"b": 1}, {"b": 3}]}


def test_no_depth_is_too_deep():
    body = value = {}
    for _ in range(20_000):
        value["a"] = value = {}
    assert [len(leaf.path) for leaf in list_leaves(body)] == [20_000]


@pytest.mark.parametrize(("field", "path"), [("spec.a[0].b", ("spec", "a", 0, "b")), ("a[b.c/d]", ("a", "b.c/d"))])
def test_a_field_is_written_as_people_know_it(field, path):
    assert Leaf(path, 1).field == field


@pytest.mark.parametrize(
    ("path", "value", "outcome"),
    [
        (("a", "b"), 1, "taken"),
        (("a", "x"), 1, "refused"),
        (("a", "b", "c"), 1, "refused"),
        (("a",), {}, "taken"),
        (("a",), "text", "refused"),
        (("a", "b"), {}, "refused"),
        (("a", "b"), None, "left"),
        (("list", 3, "x"), 1, "changed"),
        (("list", "[]", "x"), 1, "refused"),
        (("map", "any"), 1, "changed"),
        (("map", "any", "more"), 1, "refused"),
        (("all", "of", 1, "it"), {}, "changed"),
        (("all",), {}, "changed"),
        (("*", "**"), 1, "refused"),
    ],
)
def test_a_table_says_what_becomes_of_a_leaf(path, value, outcome):
    other = changed("")
    table = FieldTable[None]({"a.b": TAKEN, "list[].x": other, "map.*": other, "all.**": other})
    assert table.judge_leaf(Leaf(path, value), None).outcome == outcome


SAMPLES = [
    of_kueue(
        "ResourceFlavor", "f0", {"nodeLabels": {"a/b": "c"}, "nodeTaints": [{"key": "a", "effect": "NoSchedule"}]}
    ),
    of_kueue(
        "ClusterQueue",
        "q",
        {
            "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
            "resourceGroups": [group("4", "5")],
            "preemption": {"borrowWithinCohort": {"policy": "Never"}},
        },
    ),
    of_kueue("LocalQueue", "l", {"clusterQueue": "q"}, namespace="team"),
    configuration(waitForPodsReady={"timeout": "5m", "requeuingStrategy": {"timestamp": "Eviction"}}),
]


@pytest.mark.parametrize("seed", range(500))
def test_one_unknown_field_at_any_depth_is_one_more_refusal(seed):
    dice = random.Random(seed)
    sample = dice.choice(SAMPLES)
    assert not migrated(sample).has_refusals()
    body = copy.deepcopy(sample)
    places = [*mappings_in(body if sample["kind"] == "Configuration" else body["spec"])]
    dice.choice(places)["unheard"] = dice.choice([1, "x", [], {}, [{"a": 1}], {"a": True}])
    after = [row for row in migrated(body).rows if row.outcome == "refused" and row.field]
    assert len(after) == 1
    assert "unheard" in after[0].field


def mappings_in(value, key=""):
    """All mappings with fields, those with keys of their author's choice apart."""
    if isinstance(value, dict) and key != "nodeLabels":
        yield value
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inner, dict | list):
            yield from mappings_in(inner, name)


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_no_object_whatever_is_in_it_stops_the_command(first):
    for seed in range(first, first + 50):
        dice = random.Random(seed)
        bodies = copy.deepcopy(MANY)
        for _ in range(dice.randint(1, 4)):
            places = [(inner, key) for body in bodies for inner in containers_in(body) for key in keys_of(inner)]
            inner, key = dice.choice([one for one in places if one[1] not in {"apiVersion", "kind"}])
            inner[key] = copy.deepcopy(dice.choice(ODD))
        report = migrated(*bodies)
        msgspec.json.encode((report.objects, report.settings, report.rows))
        render_report(report)
        titles = {(row.kind, row.name) for row in report.rows if not row.field}
        assert {body["kind"] for body in bodies} == {kind for kind, _ in titles}, seed
        for row in report.rows:
            assert row.outcome != "refused" or (row.why and row.instead), (seed, row)


PARAMETERS = {"kind": "MultiKueueConfig", "name": "m"}
CHECKS = [{"name": "check", "onFlavors": ["f"]}]
MANY = [
    *SAMPLES,
    of_kueue("Cohort", "c", {"parentName": "d", "resourceGroups": [group("1", lendingLimit="2")]}),
    of_kueue("Cohort", "d", {}),
    of_kueue("WorkloadPriorityClass", "p", value=5, description="x"),
    of_kueue("Topology", "t", {"levels": [{"nodeLabel": "rack"}]}),
    of_kueue("ResourceFlavor", "f1", {"topologyName": "t", "nodeLabels": {"a": "b"}}),
    of_kueue(
        "AdmissionCheck", "check", {"controllerName": "x", "parameters": {"kind": "MultiKueueConfig", "name": "m"}}
    ),
    of_kueue("MultiKueueConfig", "m", {"clusters": ["k"]}),
    of_kueue("MultiKueueCluster", "k", {"kubeConfig": {"location": "s"}}, version="v1beta1"),
    of_kueue(
        "ClusterQueue",
        "old",
        {"cohort": "c", "admissionChecks": ["check"], "flavorFungibility": {"whenCanBorrow": "Borrow"}},
        version="v1beta1",
    ),
    of_kueue("ClusterQueue", "new", {"admissionChecksStrategy": {"admissionChecks": CHECKS}}),
    {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "labels": {"kueue.x-k8s.io/queue-name": "l"}}},
]
ODD = [
    *(None, "", "x", "[]", -1, 1 << 70, 1e308, True),
    *([], {}, [[]], {"a": {"b": []}}, [None, {"name": 5}], {"": ""}, {"[]": 1}),
]


def containers_in(value):
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers_in(inner)


def keys_of(inner):
    return list(inner) if isinstance(inner, dict) else range(len(inner))
