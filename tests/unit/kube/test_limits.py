"""What a pod template may ask for: what counts, and what is too many."""

import msgspec
import pytest

from kube.objects import PodTemplate
from kube.pods.limits import MOST_CLAIMS, MOST_CONTAINERS, MOST_REQUIREMENTS, MOST_RESOURCES, MOST_VALUES, over_limits

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def over(spec, path="spec.template."):
    template = msgspec.json.decode(msgspec.json.encode({"spec": spec}), type=PodTemplate)
    return list(over_limits(template, path))


def asking(*, requests=(), limits=(), **more):
    def amounts(names):
        return dict.fromkeys(names, "1")

    return {"name": "c", "resources": {"requests": amounts(requests), "limits": amounts(limits)}, **more}


def names(first, last):
    return [f"example.com/r{number}" for number in range(first, last)]


def expressions(count, values=1):
    return [
        {"key": f"k{number}", "operator": "In", "values": [str(each) for each in range(values)]}
        for number in range(count)
    ]


def of_nodes(*terms):
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def of_pods(kind, *terms):
    return {"affinity": {kind: {REQUIRED: list(terms)}}}


def selector(labels=0, expressed=0):
    return {"matchLabels": {f"l{n}": "" for n in range(labels)}, "matchExpressions": expressions(expressed)}


def test_what_people_write_keeps_all_limits():
    assert over({}) == []
    assert over({"containers": None, "nodeSelector": None, "affinity": None, "tolerations": None}) == []
    many = {
        "containers": [asking(requests=names(0, MOST_RESOURCES))] * (MOST_CONTAINERS - 1),
        "initContainers": [{"name": "i"}],
        "nodeSelector": {f"k{number}": "v" for number in range(MOST_REQUIREMENTS - 2)},
        **of_nodes({"matchExpressions": expressions(1, MOST_VALUES)}),
    }
    assert over(many) == []


def test_containers_are_counted_with_init_containers():
    spec = {"containers": [{"name": "c"}] * MOST_CONTAINERS, "initContainers": [{"name": "i"}]}
    (found,) = over(spec)
    assert (found.field, found.found, found.most) == ("spec.template.spec.containers", 129, 128)
    assert found.message == (
        "spec.template.spec.containers: Too many: 129 containers and init containers: "
        "at most 128 can be taken into account"
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [asking(requests=names(0, 65))]},
        {"containers": [asking(requests=names(0, 40), limits=names(30, 65))]},
        {"containers": [asking(requests=names(0, 64))], "initContainers": [asking(limits=names(64, 65))]},
        {"containers": [asking(requests=names(0, 64))], "overhead": {"example.com/r64": "1"}},
        {"containers": [asking(requests=names(0, 64))], "resources": {"requests": {"example.com/r64": "1"}}},
    ],
)
def test_each_resource_counts_once_wherever_it_is_named(spec):
    (found,) = over(spec)
    assert (found.found, found.most) == (65, MOST_RESOURCES)
    assert "65 different resource names in requests, limits and overhead" in found.message


TERM = {"topologyKey": "t"}
SPREAD = {"topologyKey": "t", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
COUNTED = {
    "node selector": ({"nodeSelector": {f"k{n}": "v" for n in range(300)}}, 300),
    "tolerations": ({"tolerations": [{"key": "k", "operator": "Exists"}] * 300}, 300),
    "node expressions": (of_nodes({"matchExpressions": expressions(299)}), 300),
    "node fields": (of_nodes({"matchFields": expressions(149)}, {"matchFields": expressions(149)}), 300),
    "node terms without any": (of_nodes(*[{}] * 300), 300),
    "pods with others": (of_pods("podAffinity", {**TERM, "labelSelector": selector(149, 150)}), 300),
    "pods without others": (of_pods("podAntiAffinity", *[{**TERM, "labelSelector": selector(1)}] * 150), 300),
    "pods of namespaces": (of_pods("podAntiAffinity", {**TERM, "namespaceSelector": selector(299)}), 300),
    "label keys": (
        of_pods("podAffinity", {**TERM, "matchLabelKeys": ["k"] * 149, "mismatchLabelKeys": ["k"] * 150}),
        300,
    ),
    "pod terms without any": (of_pods("podAffinity", *[TERM] * 300), 300),
    "spread": ({"topologySpreadConstraints": [{**SPREAD, "labelSelector": selector(1, 1)}] * 100}, 300),
    "spread by label keys": ({"topologySpreadConstraints": [{**SPREAD, "matchLabelKeys": ["k", "l"]}] * 100}, 300),
    "host ports": ({"containers": [{"name": "c", "ports": [{"hostPort": 80}] * 300}]}, 300),
    "ports of the host": (
        {"hostNetwork": True, "containers": [{"name": "c", "ports": [{"containerPort": 80}] * 300}]},
        300,
    ),
}


@pytest.mark.parametrize("what", COUNTED)
def test_whatever_is_compared_counts(what):
    spec, count = COUNTED[what]
    (found,) = over(spec)
    assert (found.field, found.found, found.most) == ("spec.template.spec", count, MOST_REQUIREMENTS)


def test_requirements_of_all_kinds_count_together():
    spec = {"nodeSelector": {f"k{n}": "v" for n in range(200)}, "tolerations": [{"key": "k"}] * 57}
    (found,) = over(spec, "")
    assert (found.field, found.found) == ("spec", 257)


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}] * 300}}},
        {"topologySpreadConstraints": [{**SPREAD, "whenUnsatisfiable": "ScheduleAnyway"}] * 300},
        {"containers": [{"name": "c", "ports": [{"containerPort": 80}] * 300}]},
    ],
)
def test_what_is_not_compared_does_not_count(spec):
    assert over(spec) == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (
            of_nodes({}, {"matchExpressions": expressions(2, 1025)}),
            f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[1].matchExpressions[0].values",
        ),
        (
            of_pods("podAffinity", {**TERM, "labelSelector": {"matchExpressions": expressions(1, 1025)}}),
            f"affinity.podAffinity.{REQUIRED}[0].labelSelector.matchExpressions[0].values",
        ),
        (
            of_pods("podAntiAffinity", {**TERM, "namespaces": ["n"] * 1025}),
            f"affinity.podAntiAffinity.{REQUIRED}[0].namespaces",
        ),
    ],
)
def test_the_values_of_each_requirement_are_counted(spec, field):
    found, *_ = over(spec)
    assert found.message == (
        f"spec.template.spec.{field}: Too many: 1025 values of one requirement: at most 1024 can be taken into account"
    )


def test_resource_claims_are_counted_by_themselves():
    spec = {
        "resourceClaims": [{"name": f"c{number}"} for number in range(MOST_CLAIMS)],
        "volumes": [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": "c"}} for n in range(MOST_CLAIMS)],
    }
    assert over(spec) == []
    (found,) = over({"resourceClaims": [*spec["resourceClaims"], {"name": "more"}]})
    assert (found.field, found.found, found.most) == ("spec.template.spec.resourceClaims", 129, MOST_CLAIMS)
