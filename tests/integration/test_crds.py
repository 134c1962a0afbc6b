"""Every rule of the kinds on the real API server: one object that passes it, one that is refused for it.

A sample that sets every field of a kind passes; what the schema demands of each field is then broken in turn, by
walking schema and sample side by side. CEL rules are listed by hand, and the list must be complete.
"""

import contextlib
import copy
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from crds import assignment
from crds.generate import KINDS, definition, schema
from crds.kinds.common import CEL
from kube import resources
from kube.errors import ApiError, NotFound
from kube.resources import resource_of

pytestmark = pytest.mark.cluster

SAMPLES = Path(__file__).parent.parent / "data" / "crds"
BY_NAME = {kind.__name__: kind for kind in KINDS}
DROP = object()
LARGEST = 10_000  # longer lists would meet the limit of a request first
Object = dict[str, Any]


def sample(kind: str) -> Object:
    return yaml.safe_load((SAMPLES / f"{kind.lower()}.yaml").read_text())


@pytest.fixture(scope="module", autouse=True)
def _served(cluster):
    """Our kinds, served. Other tests may rely on them too, so they stay."""
    bases = Path(__file__).parents[2] / "crds" / "bases"
    base = [str(cluster.kubectl), "--kubeconfig", str(cluster.kubeconfig)]
    subprocess.run([*base, "apply", "--server-side", "-f", str(bases)], check=True, capture_output=True)
    names = [f"crd/{kind.definition.plural}.topogate.dev" for kind in KINDS]
    subprocess.run([*base, "wait", "--for=condition=Established", *names], check=True, capture_output=True)


# --- schema ----------------------------------------------------------------------------------------------------------


Break = tuple[tuple, str, Any]  # path, what is broken, the value that breaks it


def broken(node: Object, value: Any, path: tuple, seen: set[tuple]) -> Iterator[Break]:
    """Everything the schema demands here and below, once a place of the schema; those places go into ``seen``."""
    place = tuple("*" if isinstance(step, int) else step for step in path)
    if place not in seen:
        seen.add(place)
        for what, bad in breaks(node, value):
            yield path, what, bad
        for name in node.get("required", []):
            yield (*path, name), "required", DROP
    for name, child in node.get("properties", {}).items():
        if name in value:
            yield from broken(child, value[name], (*path, name), seen)
    if "items" in node:
        for index, item in enumerate(value):
            yield from broken(node["items"], item, (*path, index), seen)
    if isinstance(node.get("additionalProperties"), dict):
        key = next(iter(value))
        yield from broken(node["additionalProperties"], value[key], (*path, key), seen)


def places(node: Object, path: tuple) -> Iterator[tuple]:
    """Every place of the schema that has a name."""
    yield path
    for name, child in node.get("properties", {}).items():
        yield from places(child, (*path, name))
    if "items" in node:
        yield from places(node["items"], (*path, "*"))


def breaks(node: Object, value: Any) -> Iterator[tuple[str, Any]]:
    wrong_types = {"string": 7, "integer": "x", "number": "x", "boolean": "x", "object": "x", "array": "x"}
    if "x-kubernetes-int-or-string" in node:
        yield "type", True
    else:
        yield "type", wrong_types[node["type"]]
    if "format" in node:
        yield "format", "yesterday"
    makers = {
        "enum": lambda _: "Nonsense",
        "pattern": lambda _: "~ !",
        "minLength": lambda _: "",
        "maxLength": lambda most: "a" * (most + 1),
        "minimum": lambda least: least - 1,
        "maximum": lambda most: most + 1,
        "minItems": lambda _: [],
        "maxItems": lambda most: [value[0]] * (most + 1) if most <= LARGEST else None,
        "minProperties": lambda _: {},
        "maxProperties": lambda most: {f"k{i}": next(iter(value.values())) for i in range(most + 1)},
    }
    for word, make in makers.items():
        if word in node and (bad := make(node[word])) is not None:
            yield word, bad


def changed(obj: Object, path: tuple, value: Any) -> Object:
    result = copy.deepcopy(obj)
    place = result
    for step in path[:-1]:
        place = place[step]
    if value is DROP:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return result


async def store(client, obj: Object) -> Object:
    """Create the object with its status; the same that the sample says, for status is a subresource."""
    resource = resource_of(obj)
    made = await client.create(resource, obj)
    if "status" in obj:
        made["status"] = obj["status"]
        made = await client.replace(resource, made, subresource="status")
    return made


async def discard(client, obj: Object) -> None:
    with contextlib.suppress(NotFound):
        await client.delete(resource_of(obj), obj["metadata"]["name"], obj["metadata"].get("namespace"))


@pytest.fixture(params=sorted(BY_NAME))
async def stored(client, request):
    """The full sample of a kind, stored. (sample, what the API server made of it)"""
    obj = sample(request.param)
    await discard(client, obj)
    yield obj, await store(client, obj)
    await discard(client, obj)


async def test_full_sample_is_stored_whole_and_read_by_the_model(stored):
    obj, made = stored
    parts = schema(BY_NAME[obj["kind"]])["properties"]
    assert {part: made.get(part) for part in parts} == {part: obj[part] for part in parts}
    model = BY_NAME[obj["kind"]].from_wire(made)
    assert model.to_wire() == made


async def test_everything_the_schema_demands_is_enforced(client, stored):
    obj, made = stored
    resource, seen, passed = resource_of(obj), set(), []
    nameless = obj | {"metadata": {**obj["metadata"], "name": "broken"}}
    root = schema(BY_NAME[obj["kind"]])
    whole = root["properties"]
    for name in root.get("required", []):
        with pytest.raises(ApiError, match=name):
            await client.create(resource, changed(nameless, (name,), DROP), dry_run=True)
    for part in whole:  # of a class each field, which has neither spec nor status
        base, send = (made, client.replace) if part == "status" else (nameless, client.create)
        options = {"dry_run": True} | ({"subresource": "status"} if part == "status" else {})
        for path, what, bad in broken(whole[part], obj[part], (part,), seen):
            try:
                await send(resource, changed(base, path, bad), **options)
            except ApiError as error:
                refused = error
            else:
                passed.append((path, what))
                continue
            named = [str(step) for step in path if isinstance(step, str)][-2:]
            assert refused.status in {400, 422}, (path, what, refused)
            assert any(name in str(refused) for name in named), (path, what, refused)
        assert set(places(whole[part], (part,))) <= seen, "the sample does not set these"
    assert passed == []


# --- CEL -------------------------------------------------------------------------------------------------------------


@dataclass
class Rule:
    """``good`` and ``bad``: changes of the full sample, path -> value. ``on``: create, update of the sample, status."""

    kind: str
    message: str
    bad: dict[str, Any]
    good: dict[str, Any] = field(default_factory=dict)
    on: str = "create"
    before: dict[str, Any] = field(default_factory=dict)


HOST, RACK = "kubernetes.io/hostname", "cloud-provider.com/topology-rack"
MAIN = "spec.podSets.1"
REQUEST = f"{MAIN}.topologyRequest"
ASSIGNED = "status.admission.podSetAssignments.1.topologyAssignment"
GROUPED = "status.admission.podSetAssignments.2.topologyAssignment"
QUOTA = "spec.resourceGroups.0.flavors.0.resources.0"
TOLERATION = "spec.tolerations.0"


def layers(*pairs):
    """Slices within slices, each as (level, size)."""
    return [{"topology": level, "size": size} for level, size in pairs]


# Of the two ways to write slices, room for the other.
LAYERS = {f"{REQUEST}.podSetSliceSize": DROP, f"{REQUEST}.podSetSliceRequiredTopology": DROP}
RULES = [
    Rule(
        "ResourceFlavor",
        "levels must be unique",
        {"spec.topology.levels": [RACK, RACK]},
        {"spec.topology.levels": [RACK]},
    ),
    Rule(
        "ResourceFlavor",
        "kubernetes.io/hostname may only be the last level",
        {"spec.topology.levels": [HOST, RACK]},
        {"spec.topology.levels": [RACK, HOST]},
    ),
    Rule(
        "ResourceFlavor",
        "names must refer to levels of this flavor",
        {"spec.topology.names": {"rack": "other/rack"}},
        {"spec.topology.names": {"rack": RACK, "shelf": RACK}},
    ),
    Rule("ResourceFlavor", "auto cannot be a name", {"spec.topology.names": {"auto": RACK}}, {}),
    Rule("ResourceFlavor", "names must begin with a letter", {"spec.topology.names": {"a/b": RACK}}, {}),
    Rule(
        "ResourceFlavor",
        "names of levels cannot be changed or removed once set",
        {"spec.topology.names": {"node": HOST}},
        {"spec.topology.names": {"rack": RACK, "node": HOST}},
        on="update",
    ),
    Rule(
        "ResourceFlavor",
        "at least one label if topology is set",
        {"spec.nodeLabels": {}},
        {"spec.nodeLabels": {"a": "b"}},
    ),
    Rule(
        "ResourceFlavor",
        "at least one label if topology is set",
        {"spec.nodeLabels": DROP},
        {"spec.nodeLabels": DROP, "spec.topology": DROP},
    ),
    Rule(
        "ResourceFlavor",
        "keys of nodeLabels must be valid label keys",
        {"spec.nodeLabels": {"no key": "b"}},
        {"spec.nodeLabels": {"a.b/c": "b"}},
    ),
    Rule(
        "ResourceFlavor",
        "topology cannot be changed once set",
        {"spec.topology.levels": [RACK]},
        {"spec.nodeLabels": {"other": "nodes"}},
        on="update",
    ),
    Rule("ResourceFlavor", "topology cannot be changed once set", {"spec.topology": DROP}, {}, on="update"),
    Rule(
        "ResourceFlavor",
        "operator must be Exists if key is empty",
        {f"{TOLERATION}.key": DROP},
        {"spec.tolerations": [{"operator": "Exists"}]},
    ),
    Rule(
        "ResourceFlavor",
        "value must be absent if operator is Exists",
        {f"{TOLERATION}.operator": "Exists"},
        {"spec.tolerations": [{"key": "a", "operator": "Exists"}]},
    ),
    Rule(
        "ResourceFlavor",
        "effect must be NoExecute if tolerationSeconds is set",
        {f"{TOLERATION}.effect": "NoSchedule"},
    ),
    Rule(
        "ClusterQueue",
        "lendingLimit must not exceed nominalQuota",
        {f"{QUOTA}.lendingLimit": "640.001"},
        {f"{QUOTA}.lendingLimit": "640"},
    ),
    Rule(
        "ClusterQueue",
        "lendingLimit must not exceed nominalQuota",
        {f"{QUOTA}.lendingLimit": 641},
        {f"{QUOTA}.lendingLimit": 640},
    ),
    Rule("ClusterQueue", "a quota for each of coveredResources", {"spec.resourceGroups.0.coveredResources": ["cpu"]}),
    Rule(
        "ClusterQueue",
        "a quota for each of coveredResources",
        {"spec.resourceGroups.0.coveredResources": ["cpu", "pods"]},
    ),
    Rule(
        "ClusterQueue",
        "a flavor may be part of one resource group only",
        {"spec.resourceGroups.1.flavors.0.name": "tas"},
        {"spec.resourceGroups.1.flavors.0.name": "other"},
    ),
    Rule(
        "ClusterQueue",
        "a resource may be part of one resource group only",
        {
            "spec.resourceGroups.1.coveredResources": ["cpu"],
            "spec.resourceGroups.1.flavors.0.resources": [{"name": "cpu", "nominalQuota": 1}],
        },
    ),
    Rule("ClusterQueue", "borrowingLimit needs a cohortName", {"spec.cohortName": DROP}),
    Rule(
        "ClusterQueue",
        "lendingLimit needs a cohortName",
        {"spec.cohortName": DROP},
        {"spec.cohortName": DROP, "spec.resourceGroups": DROP},
    ),
    Rule(
        "ClusterQueue",
        "borrowWithinCohort.policy must be Never if reclaimWithinCohort is Never",
        {"spec.preemption.reclaimWithinCohort": "Never"},
        {"spec.preemption.reclaimWithinCohort": "Never", "spec.preemption.borrowWithinCohort.policy": "Never"},
    ),
    Rule(
        "ClusterQueue",
        "alpha can only be set with strategy IncrementalMinimal",
        {"spec.preemption.strategy": "LeastPriority"},
        {"spec.preemption.strategy": "LeastPriority", "spec.preemption.alpha": DROP},
    ),
    Rule(
        "ClusterQueue",
        "values are required with In and NotIn",
        {"spec.namespaceSelector.matchExpressions": [{"key": "a", "operator": "In"}]},
        {"spec.namespaceSelector.matchExpressions": [{"key": "a", "operator": "Exists"}]},
    ),
    Rule(
        "ClusterQueue",
        "values are required with In and NotIn",
        {"spec.namespaceSelector.matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
        {"spec.namespaceSelector": {}},
    ),
    Rule(
        "Cohort",
        "a cohort cannot be its own parent",
        {"spec.parentName": "tried"},
        {"spec.parentName": "tried-too"},
    ),
    Rule("Cohort", "borrowingLimit needs a parentName", {"spec.parentName": DROP}),
    Rule(
        "Cohort",
        "lendingLimit needs a parentName",
        {"spec.parentName": DROP},
        {"spec.parentName": DROP, "spec.resourceGroups": DROP},
    ),
    # A ClusterQueue may not lend more than it has; a Cohort may, for it lends what its whole subtree has.
    Rule(
        "Cohort",
        "a flavor may be part of one resource group only",
        {"spec.resourceGroups.1.flavors.0.name": "tas"},
        {f"{QUOTA}.nominalQuota": 4, f"{QUOTA}.lendingLimit": 10},
    ),
    Rule(
        "Cohort",
        "a resource may be part of one resource group only",
        {
            "spec.resourceGroups.1.coveredResources": ["cpu"],
            "spec.resourceGroups.1.flavors.0.resources": [{"name": "cpu", "nominalQuota": 1}],
        },
    ),
    Rule("Cohort", "a quota for each of coveredResources", {"spec.resourceGroups.0.coveredResources": ["cpu"]}),
    Rule(
        "LocalQueue",
        "clusterQueue cannot be changed",
        {"spec.clusterQueue": "cpu"},
        {"spec.stopPolicy": "None"},
        on="update",
    ),
    Rule("Workload", "level is required unless policy is Unconstrained", {f"{REQUEST}.level": DROP}),
    Rule(
        "Workload",
        "level must be absent if policy is Unconstrained",
        {f"{REQUEST}.policy": "Unconstrained"},
        {f"{REQUEST}.policy": "Unconstrained", f"{REQUEST}.level": DROP},
    ),
    Rule(
        "Workload",
        "level auto (the narrowest) can only be used with policy Preferred",
        {f"{REQUEST}.level": "auto"},
        {f"{REQUEST}.level": "auto", f"{REQUEST}.policy": "Preferred"},
    ),
    Rule(
        "Workload",
        "podSetSliceRequiredTopology and podSetSliceSize must be set together",
        {f"{REQUEST}.podSetSliceSize": DROP},
        {f"{REQUEST}.podSetSliceSize": DROP, f"{REQUEST}.podSetSliceRequiredTopology": DROP},
    ),
    Rule(
        "Workload",
        "podSetSliceRequiredTopologyConstraints replaces podSetSliceRequiredTopology and podSetSliceSize",
        {f"{REQUEST}.podSetSliceRequiredTopologyConstraints": [{"topology": HOST, "size": 2}]},
    ),
    Rule("Workload", "minCount must not exceed count", {f"{MAIN}.minCount": 17}, {f"{MAIN}.minCount": 16}),
    Rule(
        "Workload",
        "count must be a multiple of the first of several sizes of "
        "topologyRequest.podSetSliceRequiredTopologyConstraints",
        {**LAYERS, f"{REQUEST}.podSetSliceRequiredTopologyConstraints": layers((RACK, 5), (HOST, 1))},
        {**LAYERS, f"{REQUEST}.podSetSliceRequiredTopologyConstraints": layers((HOST, 5))},
    ),
    Rule("Workload", "priority is required with priorityClassName", {"spec.priority": DROP}, {"spec.priority": 0}),
    Rule("Workload", "only one pod set can have a minCount", {"spec.podSets.2.minCount": 1}),
    Rule("Workload", "exactly one of counts and count must be set", {f"{GROUPED}.groups.0.count": 2}, on="status"),
    Rule("Workload", "exactly one of counts and count must be set", {f"{GROUPED}.groups.0.counts": DROP}, on="status"),
    Rule(
        "Workload",
        "counts must have one number for each of names",
        {f"{GROUPED}.groups.0.counts": [1]},
        {f"{GROUPED}.groups.0.counts": [1, 2]},
        on="status",
    ),
    Rule("Workload", "exactly one of slices and groups must be set", {f"{ASSIGNED}.groups": []}, on="status"),
    Rule("Workload", "exactly one of slices and groups must be set", {f"{ASSIGNED}.slices": DROP}, on="status"),
    Rule("Workload", "groups needs levels", {f"{GROUPED}.levels": DROP}, {f"{ASSIGNED}.levels": DROP}, on="status"),
    Rule("Workload", "groups needs levels", {f"{GROUPED}.groups.0.values": []}, on="status"),
    Rule(
        "Workload",
        "podSetAssignments must have one entry for each of spec.podSets",
        {"status.admission.podSetAssignments.0.name": "other"},
        on="status",
    ),
    Rule(
        "Workload",
        "podSetAssignments must have one entry for each of spec.podSets",
        {"status.admission.podSetAssignments.0": DROP},
        {"status.admission": DROP},
        on="status",
    ),
    Rule(
        "Workload",
        "names and topologyRequest of spec.podSets cannot be changed",
        {f"{REQUEST}.policy": "Preferred"},
        {f"{MAIN}.count": 20, f"{MAIN}.minCount": 4},
        on="update",
    ),
    Rule(
        "Workload",
        "names and topologyRequest of spec.podSets cannot be changed",
        {"spec.podSets.0.topologyRequest": DROP},
        on="update",
    ),
    Rule(
        "Workload",
        "spec.queueName cannot be changed",
        {"spec.queueName": "team-b"},
        {"spec.active": False},
        on="update",
    ),
    Rule(
        "Workload",
        "spec.queueName cannot be changed",
        {"spec.queueName": DROP},
        {"spec.queueName": "team-b"},
        on="update",
        before={"status.admission": DROP},
    ),
    Rule(
        "FlexTopo",
        "an edge must connect two different components",
        {"spec.edges.0.target": "socket-0"},
        {"spec.edges.0.target": "numa-0"},
    ),
]


def with_changes(obj: Object, changes: dict[str, Any]) -> Object:
    for path, value in changes.items():
        obj = changed(obj, tuple(int(step) if step.isdigit() else step for step in steps(path)), value)
    return obj


def steps(path: str) -> list[str]:
    return path.split(".")


def messages(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (rule["message"] for rule in node.get(CEL, []))
        for child in node.values():
            yield from messages(child)
    elif isinstance(node, list):
        for child in node:
            yield from messages(child)


def test_every_rule_is_tried():
    for kind in KINDS:
        tried = [rule.message for rule in RULES if rule.kind == kind.__name__]
        own = set(messages(definition(kind)))
        shared = set(messages(definition(BY_NAME["ResourceFlavor"]))) if kind.__name__ == "Workload" else set()
        untried = {text for text in own - shared if not any(part in text for part in tried)}
        assert untried == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind}-{rule.message[:50]}")
async def test_rule(client, rule):
    obj = with_changes(sample(rule.kind), rule.before)
    await discard(client, obj)
    if rule.on == "create":
        fresh = obj | {"metadata": {**obj["metadata"], "name": "tried"}}
        await client.create(resource_of(obj), with_changes(fresh, rule.good), dry_run=True)
        with pytest.raises(ApiError) as refused:
            await client.create(resource_of(obj), with_changes(fresh, rule.bad), dry_run=True)
    else:
        made = await store(client, obj)
        subresource = "status" if rule.on == "status" else None
        put = {"subresource": subresource, "dry_run": True}
        await client.replace(resource_of(obj), with_changes(made, rule.good), **put)
        if rule.before:
            await client.replace(resource_of(obj), with_changes(made, rule.bad), **put)
            made["status"] = sample(rule.kind)["status"]
            made = await client.replace(resource_of(obj), made, subresource="status")
        with pytest.raises(ApiError) as refused:
            await client.replace(resource_of(obj), with_changes(made, rule.bad), **put)
        await discard(client, obj)
    assert refused.value.status == 422
    assert rule.message in str(refused.value)


# --- defaults, columns, names ----------------------------------------------------------------------------------------


MINIMAL = {
    "ResourceFlavor": {},
    "Cohort": {},
    "ClusterQueue": {},
    "LocalQueue": {"clusterQueue": "gpu"},
    "Workload": {"podSets": [{"name": "main", "count": 1, "template": {"spec": {}}}]},
    "FlexTopo": {},
}
DEFAULTS = {
    "ResourceFlavor": {},
    "Cohort": {},
    "ClusterQueue": {
        "queueingStrategy": "BestEffortFIFO",
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
        "preemption": {"reclaimWithinCohort": "Never", "withinClusterQueue": "Never", "nonPreemptible": "ByClass"},
        "stopPolicy": "None",
    },
    "LocalQueue": {"clusterQueue": "gpu", "stopPolicy": "None"},
    "Workload": {"podSets": [{"name": "main", "count": 1, "template": {"spec": {}}}], "active": True},
    "FlexTopo": {"coreGroupSize": 8},
}


@pytest.mark.parametrize("kind", sorted(MINIMAL))
async def test_defaults(client, kind):
    obj = {"apiVersion": "topogate.dev/v1alpha1", "kind": kind, "metadata": {"name": "least"}, "spec": MINIMAL[kind]}
    if BY_NAME[kind].definition.namespaced:
        obj["metadata"]["namespace"] = "default"
    made = await client.create(resource_of(obj), obj, dry_run=True)
    assert made["spec"] == DEFAULTS[kind]
    model = BY_NAME[kind].from_wire(obj)
    assert (
        model.spec.model_dump(by_alias=True, exclude_none=True, mode="json").items()
        >= {key: value for key, value in DEFAULTS[kind].items() if not isinstance(value, dict)}.items()
    )


COLUMNS = {
    "rf": ("NAME LEVELS NODES UNLABELED REASON AGE", "128 2 Ready"),
    "co": ("NAME PARENT PENDING ADMITTED ACTIVE REASON AGE", "org 3 1 False CohortCycle"),
    "cq": ("NAME COHORT PENDING ADMITTED ACTIVE REASON AGE", "research 3 1 False Stopped"),
    "lq": ("NAME CLUSTERQUEUE PENDING ADMITTED ACTIVE REASON AGE", "gpu 3 1 Unknown Pending"),
    "wl": (
        "NAME KIND OWNER QUEUE RESERVED IN ADMITTED PLACE REASON READY FINISHED AGE",
        "team-a gpu True b0/r0",
    ),
    "ft": ("NAME POLICY SCOPE READY REASON OBSERVED AGE", "restricted pod True Ready"),
}


@pytest.mark.parametrize("short", sorted(COLUMNS))
async def test_printer_columns_and_short_names(client, kubectl, short):
    kind = next(kind for kind in KINDS if kind.definition.short_names == (short,))
    obj = sample(kind.__name__)
    await discard(client, obj)
    await store(client, obj)
    header, row = (" ".join(line.split()) for line in kubectl("get", short, "full", "-n", "default").splitlines())
    await discard(client, obj)
    assert header == COLUMNS[short][0]
    assert COLUMNS[short][1] in row


async def test_the_category_lists_all_kinds(client, kubectl):
    obj = sample("FlexTopo")
    await discard(client, obj)
    await store(client, obj)
    assert "flextopo.topogate.dev/full" in kubectl("get", "topogate", "-o", "name")
    await discard(client, obj)


async def test_an_assignment_over_20000_hosts_fits_one_object(client):
    levels = ("cloud-provider.com/topology-block", "cloud-provider.com/topology-rack", HOST)
    domains = [((f"block-{i // 512}", f"rack-{i // 16}", f"node-{i:05}.cluster.example.com"), 8) for i in range(20_000)]
    obj = {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": "huge", "namespace": "default"},
        "spec": {"podSets": [{"name": "main", "count": 160_000, "template": {"spec": {}}}]},
        "status": {
            "admission": {
                "podSetAssignments": [
                    {"name": "main", "count": 160_000, "topologyAssignment": assignment.encode(levels, domains)}
                ]
            },
            "conditions": [
                {
                    "type": "Admitted",
                    "status": "True",
                    "reason": "Admitted",
                    "message": "",
                    "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            ],
        },
    }
    await discard(client, obj)
    await store(client, obj)
    read = await client.get(resources.WORKLOADS, "huge", "default")
    await discard(client, obj)
    stored_assignment = read["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"]
    assert assignment.decode(stored_assignment) == (levels, domains)
