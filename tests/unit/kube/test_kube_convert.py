"""Wire shapes to engine data: nodes, pods, pod sets with their constraints, flavors."""

import msgspec
import pytest

from engine.model import (
    Flavor,
    LabelRequirement,
    Node,
    NodeTerm,
    PodTerm,
    Policy,
    SpreadConstraint,
    Taint,
    Toleration,
    TopologyRequest,
)
from engine.quantity import LARGEST, MOST
from kube import objects
from kube.pods import convert

HOST = "kubernetes.io/hostname"
ANY = TopologyRequest(policy=Policy.UNCONSTRAINED)


def pod_set(labels=None, **spec):
    template = msgspec.convert({"metadata": {"labels": labels}, "spec": spec}, objects.PodTemplate)
    return convert.pod_set("main", 4, template, ANY, "team")


def required(**term):
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def wanted(key, operator, *values):
    return LabelRequirement(key=key, operator=operator, values=values)


def test_a_node():
    wire = {
        "metadata": {"name": "n1", "labels": {HOST: "n1"}},
        "spec": {"unschedulable": True, "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "7910m", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
        },
    }
    assert convert.node(msgspec.convert(wire, objects.Node)) == Node(
        name="n1",
        labels={HOST: "n1"},
        allocatable={"cpu": 7910, "memory": 32 << 30, "pods": 110, "nvidia.com/gpu": 8},
        taints=(Taint(key="gpu", value="yes", effect="NoSchedule"),),
        unschedulable=True,
        ready=True,
    )


@pytest.mark.parametrize("conditions", [None, [], [{"type": "Ready", "status": "Unknown"}]])
def test_a_node_that_does_not_say_ready_is_not(conditions):
    assert not convert.node(msgspec.convert({"status": {"conditions": conditions}}, objects.Node)).ready


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [{"resources": {"requests": {"hugepages-2Mi": LARGEST}}}]},
        {"containers": [{"resources": {"limits": {"hugepages-2Mi": LARGEST}}}]},
        {"resources": {"requests": {"hugepages-2Mi": LARGEST}}},
        {"overhead": {"hugepages-2Mi": LARGEST}},
    ],
)
def test_what_is_more_than_can_be_counted_is_told_as_it_was_asked_for(spec):
    assert pod_set(**spec).cut == {"hugepages-2Mi": LARGEST}


def test_amounts_that_are_too_large_together_are_told_as_the_most_that_is_counted():
    half = {"resources": {"requests": {"memory": MOST - 1}}}
    assert pod_set(containers=[half], initContainers=[{**half, "restartPolicy": "Always"}]).cut == {"memory": MOST}


def test_a_bound_pod():
    wire = {
        "metadata": {"name": "web", "namespace": "team", "labels": {"app": "web"}},
        "spec": {
            "nodeName": "n1",
            "containers": [{"resources": {"requests": {"cpu": "1"}}}],
            "affinity": {
                "podAntiAffinity": required(topologyKey=HOST, labelSelector={"matchLabels": {"app": "web"}}),
                "podAffinity": required(topologyKey="zone", labelSelector={}),
            },
        },
    }
    pod = convert.pod(msgspec.convert(wire, objects.Pod), claim=("team/w", "main"))
    assert (pod.key, pod.node, pod.requests, pod.namespace) == ("team/web", "n1", {"cpu": 1000}, "team")
    assert pod.claim == ("team/w", "main")
    assert pod.anti_affinity == (
        PodTerm(topology_key=HOST, selector=(wanted("app", "In", "web"),), namespaces=("team",)),
    )


def test_node_selector_tolerations_and_affinity():
    terms = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
    ]
    found = pod_set(
        nodeSelector={"disk": "ssd"},
        tolerations=[{"operator": "Exists"}, {"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
        affinity={
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
        },
    )
    assert found.node_selector == {"disk": "ssd"}
    assert found.tolerations == (
        Toleration(operator="Exists"),
        Toleration(key="gpu", value="yes", effect="NoSchedule"),
    )
    assert found.node_affinity == (
        NodeTerm(labels=(wanted("zone", "In", "a", "b"),)),
        NodeTerm(fields=(wanted("metadata.name", "In", "n1"),)),
    )
    assert (found.name, found.count, found.namespace, found.topology) == ("main", 4, "team", ANY)


def test_without_node_affinity_there_is_no_constraint_and_preferred_is_none():
    assert pod_set().node_affinity is None
    assert (
        pod_set(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}).node_affinity
        is None
    )


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ({}, (None, ("team",), "")),
        ({"labelSelector": {}}, ((), ("team",), "")),
        ({"labelSelector": {}, "namespaces": ["a", "b"]}, ((), ("a", "b"), "")),
        ({"labelSelector": {}, "namespaceSelector": {}}, ((), None, "")),
        ({"labelSelector": {}, "namespaces": ["a"], "namespaceSelector": {}}, ((), None, "")),
        (
            {"labelSelector": {}, "namespaceSelector": {"matchLabels": {"x": "y"}}},
            ((), (), "a namespaceSelector by label"),
        ),
        (
            {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}, "matchLabelKeys": ["v"]},
            ((wanted("app", "Exists"), wanted("v", "In", "1")), ("team",), ""),
        ),
        ({"labelSelector": {}, "mismatchLabelKeys": ["v"]}, ((wanted("v", "NotIn", "1"),), ("team",), "")),
        ({"labelSelector": {}, "matchLabelKeys": ["absent"]}, ((), ("team",), "")),
        (
            {"labelSelector": {}, "matchLabelKeys": ["batch.kubernetes.io/job-completion-index"]},
            ((), ("team",), "matchLabelKeys batch.kubernetes.io/job-completion-index (it differs from pod to pod)"),
        ),
    ],
)
@pytest.mark.parametrize(("wire", "field"), [("podAffinity", "affinity"), ("podAntiAffinity", "anti_affinity")])
def test_pod_affinity_terms(wire, field, term, expected):
    found = pod_set(labels={"v": "1"}, affinity={wire: required(topologyKey=HOST, **term)})
    selector, namespaces, unsupported = expected
    assert getattr(found, field) == (
        PodTerm(topology_key=HOST, selector=selector, namespaces=namespaces, unsupported=unsupported),
    )


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (
            {"labelSelector": {"matchLabels": {"a": "b"}}, "maxSkew": 2, "minDomains": 3},
            SpreadConstraint(topology_key="zone", max_skew=2, selector=(wanted("a", "In", "b"),), min_domains=3),
        ),
        ({"maxSkew": 1}, SpreadConstraint(topology_key="zone", max_skew=1)),
        ({"maxSkew": 1, "labelSelector": {}}, SpreadConstraint(topology_key="zone", max_skew=1)),
        (
            {"maxSkew": 1, "labelSelector": {}, "matchLabelKeys": ["v"]},
            SpreadConstraint(topology_key="zone", max_skew=1, selector=(wanted("v", "In", "1"),)),
        ),
        (
            {"maxSkew": 1, "nodeAffinityPolicy": "Ignore"},
            SpreadConstraint(topology_key="zone", max_skew=1, unsupported="nodeAffinityPolicy Ignore"),
        ),
        (
            {"maxSkew": 1, "nodeTaintsPolicy": "Honor", "nodeAffinityPolicy": "Honor"},
            SpreadConstraint(topology_key="zone", max_skew=1, unsupported="nodeTaintsPolicy Honor"),
        ),
    ],
)
def test_spread_constraints(constraint, expected):
    wire = {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **constraint}
    soft = {**wire, "whenUnsatisfiable": "ScheduleAnyway"}
    assert pod_set(labels={"v": "1"}, topologySpreadConstraints=[soft, wire]).spread == (expected,)


def port(number, address=None, protocol="TCP"):
    return {"containerPort": 80, "hostPort": number, "hostIP": address or "", "protocol": protocol}


def conflict(ours, theirs) -> bool:
    """Whether a pod set with the one host port would be kept off a node with a pod that has the other."""
    newcomer = pod_set(containers=[{"ports": [ours]}])
    wire = {"metadata": {"name": "p", "namespace": "other"}, "spec": {"containers": [{"ports": [theirs]}]}}
    present = convert.pod(msgspec.convert(wire, objects.Pod))
    for term in newcomer.anti_affinity:
        assert (term.topology_key, term.namespaces) == (HOST, None)
        if all(each.operator == "Exists" and each.key in present.labels for each in term.selector):
            return True
    return False


@pytest.mark.parametrize(
    ("ours", "theirs", "clash"),
    [
        (port(80), port(80), True),
        (port(80), port(81), False),
        (port(80), port(80, protocol="UDP"), False),
        (port(80), port(80, "10.0.0.1"), True),
        (port(80, "10.0.0.1"), port(80), True),
        (port(80, "10.0.0.1"), port(80, "0.0.0.0"), True),
        (port(80, "10.0.0.1"), port(80, "10.0.0.1"), True),
        (port(80, "10.0.0.1"), port(80, "10.0.0.2"), False),
    ],
)
def test_host_ports_keep_pods_apart(ours, theirs, clash):
    assert conflict(ours, theirs) is clash


def test_ports_of_the_host_network_and_of_sidecars_count():
    plain = {"containers": [{"ports": [{"containerPort": 80}]}]}
    assert pod_set(**plain).anti_affinity == ()
    assert len(pod_set(hostNetwork=True, **plain).anti_affinity) == 1
    ends, stays = {"ports": [port(80)]}, {"ports": [port(81)], "restartPolicy": "Always"}
    (term,) = pod_set(initContainers=[ends, stays]).anti_affinity
    assert term.selector[0].key == "hostPort:TCP:81"


def test_a_flavor():
    wire = {
        "metadata": {"name": "tas"},
        "spec": {
            "nodeLabels": {"group": "tas"},
            "topology": {"levels": ["rack", HOST]},
            "tolerations": [{"key": "gpu"}],
        },
    }
    expected = Flavor(
        name="tas", levels=("rack", HOST), node_labels={"group": "tas"}, tolerations=(Toleration(key="gpu"),)
    )
    assert convert.flavor(msgspec.convert(wire, objects.ResourceFlavor)) == expected
    assert convert.flavor(msgspec.convert({"spec": {"nodeLabels": {"a": "b"}}}, objects.ResourceFlavor)) is None


def running_with(terms):
    wire = {
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {
            "nodeName": "n",
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        },
    }
    return convert.pod(msgspec.json.decode(msgspec.json.encode(wire), type=objects.Pod))


def test_a_pod_that_keeps_others_off_by_very_many_terms_keeps_all_off():
    """Each placement looks at each term, and anybody may run such pods."""
    terms = [{"topologyKey": f"k{n % 70}", "labelSelector": {"matchLabels": {"a": f"{n}"}}} for n in range(4000)]
    few = running_with(terms[: convert.MOST_TERMS]).anti_affinity
    assert len(few) == convert.MOST_TERMS
    assert all(term.selector for term in few)
    many = running_with([*terms, {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}]).anti_affinity
    assert len(many) == convert.MOST_TERMS
    assert many[0].topology_key == "kubernetes.io/hostname"
    assert all(term.selector == () and term.unsupported for term in many)
