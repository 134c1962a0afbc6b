"""What a claim says of the nodes that its pods may go to, case by case as kube-scheduler has it."""

import msgspec
import pytest

from engine.cluster.filters import selects
from engine.model import HOSTNAME_LABEL, LabelRequirement, NodeTerm, local_volumes_of, volumes_of
from kube.objects import ClaimSpec, Node, Pod, PodTemplate
from kube.pods.limits import over_limits
from kube.pods.volumes import MOST_CLAIMS, claims_in, claims_of
from kube.volumes import available as volumes_available
from kube.volumes.available import MOST_WISHES, Available, TooManyWishes, host_of, is_available
from kube.volumes.binding import (
    NotReady,
    Storage,
    attachable,
    limit_of,
    reach_of,
    reach_of_template,
)
from kube.volumes.objects import (
    BIND_COMPLETED,
    SELECTED_NODE,
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
)
from kube.volumes.objects import StorageClass as Class
from kube.volumes.terms import MOST_REQUIREMENTS, MOST_VALUES

ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
BOUND = {BIND_COMPLETED: "yes"}


def read(kind, body):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def claim(name="data", *, volume="", storage_class="slow", annotations=None, modes=("ReadWriteOnce",), **more):
    meta = {"name": name, "namespace": "ns", "uid": name, "annotations": annotations or {}, **more.pop("meta", {})}
    spec = {"volumeName": volume, "accessModes": modes, "resources": {"requests": {"storage": "1Gi"}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    body = {"metadata": meta, "spec": {**spec, **more.pop("spec", {})}, "status": {"phase": "Pending"}, **more}
    return read(PersistentVolumeClaim, body)


def volume(name="pv", *, zones=None, labels=None, phase="Available", storage_class="slow", **spec):
    made = {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    if zones is not None:
        terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": zones}]}] if zones else []
        made["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    meta = {"name": name, "uid": name, "labels": labels or {}}
    return read(PersistentVolume, {"metadata": meta, "spec": {**made, **spec}, "status": {"phase": phase}})


def storage_class(name="slow", *, provisioner="ebs.csi.aws.com", waits=True, zones=None, default=False, **meta):
    body = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate"}
    if zones is not None:
        body["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": zones}]}]
    said = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return read(Class, {**body, "metadata": {"name": name, "annotations": said, **meta}})


def storage(*found):
    def of(kind):
        return {f"{one.metadata.namespace}/".lstrip("/") + one.metadata.name: one for one in found if type(one) is kind}

    volumes = of(PersistentVolume)
    return Storage(
        claim=of(PersistentVolumeClaim).get,
        volume=volumes.get,
        storage_class=of(Class).get,
        classes=of(Class).values,
        available=lambda name: [
            one for one in volumes.values() if is_available(one) and one.spec.storage_class_name == name
        ],
        local=lambda host: [one for one in volumes.values() if host_of(one) == host],
        csi_node=of(CsiNode).get,
        csi_driver=of(CsiDriver).get,
        capacities=lambda name: [one for one in of(CsiStorageCapacity).values() if one.storage_class_name == name],
    )


def told_nothing(_):
    """What a driver has left that does not tell."""
    return


def reach(*found, name="data"):
    return reach_of(storage(*found), "ns", name)


def lets_in(found, labels, node="n"):
    """Whether all terms of a reach let in a node with these labels."""
    fields = {"metadata.name": node}
    return all(
        any(
            (term.labels or term.fields) and selects(term.labels, labels) and selects(term.fields, fields)
            for term in terms
        )
        for terms in found.nodes
    )


# -- bound claims -------------------------------------------------------------------------------------------------


def test_a_bound_claim_goes_where_its_volume_reaches():
    found = reach(claim(volume="pv", annotations=BOUND), volume(zones=["a", "b"]))
    assert [lets_in(found, {ZONE: zone}) for zone in "abc"] == [True, True, False]
    assert not lets_in(found, {})


def test_a_volume_without_affinity_reaches_all_nodes_and_one_without_terms_none():
    assert reach(claim(volume="pv", annotations=BOUND), volume()).nodes == ()
    assert not lets_in(reach(claim(volume="pv", annotations=BOUND), volume(zones=[])), {ZONE: "a"})


def test_zones_in_the_labels_of_a_volume_hold_for_nodes_that_have_any():
    found = reach(claim(volume="pv", annotations=BOUND), volume(labels={ZONE: "a__b"}))
    assert [lets_in(found, {ZONE: zone}) for zone in "abc"] == [True, True, False]
    assert lets_in(found, {})
    assert not lets_in(found, {"topology.kubernetes.io/region": "r"})


def test_the_old_label_of_a_volume_is_that_of_nodes_or_the_new_one():
    found = reach(claim(volume="pv", annotations=BOUND), volume(labels={OLD_ZONE: "a"}))
    assert lets_in(found, {OLD_ZONE: "a"})
    assert lets_in(found, {ZONE: "a"})
    assert not lets_in(found, {OLD_ZONE: "b", ZONE: "a"})
    assert not lets_in(found, {ZONE: "b"})


def test_a_zone_label_that_cannot_be_read_is_no_matter():
    assert reach(claim(volume="pv", annotations=BOUND), volume(labels={ZONE: "a____b"})).nodes == ()
    assert reach(claim(volume="pv", annotations=BOUND), volume(labels={ZONE: ""})).nodes == ()


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([], 'persistentvolumeclaim "data" not found'),
        ([claim(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})], "is being deleted"),
        ([claim(volume="pv", annotations=BOUND)], 'is bound to non-existent persistentvolume "pv"'),
        ([claim(volume="pv", annotations=BOUND, status={"phase": "Lost"}), volume()], "non-existent"),
        ([claim(volume="pv"), volume()], 'is not bound yet to persistentvolume "pv"'),
        ([claim(storage_class="fast")], 'has storageclass "fast", which is not there'),
        ([claim(), storage_class(waits=False)], 'has storageclass "slow", which binds at once'),
        ([claim(storage_class="")], "has no storage class"),
        ([claim(), storage_class(provisioner="kubernetes.io/no-provisioner")], "no available persistentvolume"),
    ],
)
def test_a_claim_with_which_no_pod_can_be_scheduled_says_why(found, why):
    answer = reach(*found)
    assert isinstance(answer, NotReady)
    assert '"data"' in answer.message
    assert why in answer.message


def test_a_volume_with_more_affinity_than_is_taken_into_account_is_not_used():
    terms = [{"matchExpressions": [{"key": f"k{i}", "operator": "Exists"}]} for i in range(10_000)]
    large_affinity = {"required": {"nodeSelectorTerms": terms}}
    large = volume(nodeAffinity=large_affinity)
    assert "more node affinity" in reach(claim(volume="pv", annotations=BOUND), large).message
    static = storage_class(provisioner="kubernetes.io/no-provisioner")
    assert isinstance(reach(claim(), large, static), NotReady)
    kept = volume("pv", nodeAffinity=large_affinity, claimRef={"namespace": "ns", "name": "data"})
    assert isinstance(reach(claim(), kept, volume("free"), static), NotReady), "the two are bound all the same"


# -- claims whose class waits for a pod -----------------------------------------------------------------------------


def test_an_unbound_claim_goes_where_its_class_makes_volumes():
    found = reach(claim(), storage_class(zones=["a", "b"]))
    assert [lets_in(found, {ZONE: zone}) for zone in "abc"] == [True, True, False]
    assert reach(claim(), storage_class()).nodes == ()


def test_an_unbound_claim_goes_where_a_volume_is_that_matches_it():
    static = storage_class(provisioner="kubernetes.io/no-provisioner", zones=["c"])
    found = reach(claim(), static, volume("p1", zones=["a"]), volume("p2", zones=["b"]))
    assert [lets_in(found, {ZONE: zone}) for zone in "abc"] == [True, True, False]
    assert len(found.nodes[0]) == 1  # volumes of one zone each are one term
    assert reach(claim(), static, volume("p1", zones=["a"]), volume("p2")).nodes == ()


def test_volumes_that_are_there_and_those_that_are_made_add_up():
    found = reach(claim(), storage_class(zones=["b"]), volume(zones=["a"]))
    assert [lets_in(found, {ZONE: zone}) for zone in "abc"] == [True, True, False]


@pytest.mark.parametrize(
    "other",
    [
        volume(zones=["a"], storage_class="other"),
        volume(zones=["a"], phase="Released"),
        volume(zones=["a"], phase="Pending"),
        volume(zones=["a"], capacity={"storage": "1Mi"}),
        volume(zones=["a"], capacity={"storage": "x"}),
        volume(zones=["a"], accessModes=["ReadOnlyMany"]),
        volume(zones=["a"], volumeMode="Block"),
        volume(zones=["a"], claimRef={"namespace": "ns", "name": "other"}),
        volume(zones=["a"], claimRef={"namespace": "elsewhere", "name": "data"}),
    ],
)
def test_a_volume_that_does_not_match_is_none(other):
    assert isinstance(reach(claim(), storage_class(provisioner="kubernetes.io/no-provisioner"), other), NotReady)


def test_a_claim_may_select_volumes_and_a_volume_may_be_kept_for_it():
    static = storage_class(provisioner="kubernetes.io/no-provisioner")
    picky = claim(spec={"selector": {"matchLabels": {"disk": "fast"}}})
    two = volume("p1", zones=["a"]), volume("p2", zones=["b"], labels={"disk": "fast"})
    assert [lets_in(reach(picky, static, *two), {ZONE: zone}) for zone in "ab"] == [False, True]
    kept = volume("p3", zones=["c"], claimRef={"namespace": "ns", "name": "data"})
    assert lets_in(reach(picky, static, kept), {ZONE: "c"})


def test_volumes_of_one_host_each_are_one_term_however_many_there_are():
    static = storage_class(provisioner="kubernetes.io/no-provisioner")
    hosts = [
        volume(
            f"p{i}",
            nodeAffinity={
                "required": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [f"n{i}"]}]}
                    ]
                }
            },
        )
        for i in range(1000)
    ]
    (terms,) = reach(claim(), static, *hosts).nodes
    assert [len(need.values) for term in terms for need in term.labels] == [1000]


def test_a_claim_for_which_a_node_was_chosen_goes_there():
    found = reach(claim(annotations={SELECTED_NODE: "n7"}), storage_class())
    only = LabelRequirement(key="metadata.name", operator="In", values=("n7",))
    assert found.nodes == ((NodeTerm(fields=(only,)),),)


def test_allowed_topologies_without_end_are_cut():
    body = {"metadata": {"name": "slow"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"}
    terms = [{"matchLabelExpressions": [{"key": f"k{i}", "values": ["a"]}, {"key": "x"}]} for i in range(10_000)]
    (found,) = reach(claim(), read(Class, {**body, "allowedTopologies": terms})).nodes
    assert len(found) == MOST_REQUIREMENTS
    zones = [f"z{i}" for i in range(20_000)]
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": zones}]}]
    ((term,),) = reach(claim(), read(Class, {**body, "allowedTopologies": terms})).nodes
    assert len(term.labels[0].values) == MOST_VALUES


def test_a_topology_of_more_labels_than_are_taken_into_account_lets_no_node_in():
    """Cut, it would let in the nodes that lack the labels that were cut."""
    body = {"metadata": {"name": "slow"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"}
    large = {"matchLabelExpressions": [{"key": f"k{i}", "values": ["a"]} for i in range(MOST_REQUIREMENTS + 1)]}
    small = {"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}
    found = reach(claim(), read(Class, {**body, "allowedTopologies": [large, small]}))
    cut = {f"k{i}": "a" for i in range(MOST_REQUIREMENTS)}
    assert [lets_in(found, labels) for labels in (cut, {ZONE: "a"})] == [False, True]
    assert isinstance(reach(claim(), read(Class, {**body, "allowedTopologies": [large]})), NotReady)


def test_one_pod_alone_may_have_a_claim():
    alone = claim(volume="pv", annotations=BOUND, modes=("ReadWriteOncePod",))
    assert reach(alone, volume()).alone
    assert not reach(claim(volume="pv", annotations=BOUND), volume()).alone


# -- claims that are to be made -------------------------------------------------------------------------------------


def made(name, *found):
    return reach_of_template(storage(*found), ClaimSpec(storage_class_name=name))


def test_claims_to_come_go_where_their_class_makes_volumes():
    found = made("slow", storage_class(zones=["a"]))
    assert [lets_in(found, {ZONE: zone}) for zone in "ab"] == [True, False]
    assert made("slow", storage_class(zones=["a"], waits=False)).nodes == ()
    assert made("", storage_class(zones=["a"])).nodes == ()
    assert made("nosuch").message == 'storageclass "nosuch" not found'


def test_claims_to_come_that_name_no_class_have_the_newest_default():
    old = storage_class("old", zones=["a"], default=True, creationTimestamp="2025-01-01T00:00:00Z")
    new = storage_class("new", zones=["b"], default=True, creationTimestamp="2026-01-01T00:00:00Z")
    assert [lets_in(made(None, old, new), {ZONE: zone}) for zone in "ab"] == [False, True]
    assert made(None).nodes == ()


def test_of_default_classes_of_one_age_the_first_by_name_counts():
    """As ``GetDefaultClass`` of Kubernetes 1.37.1 has it (pkg/volume/util/storageclass.go)."""
    same = {"default": True, "creationTimestamp": "2026-01-01T00:00:00Z"}
    classes = [storage_class(name, zones=[name], **same) for name in ("b", "a", "c")]
    assert [lets_in(made(None, *classes), {ZONE: zone}) for zone in "abc"] == [True, False, False]


# -- what is attached ---------------------------------------------------------------------------------------------


def test_a_volume_counts_for_its_driver_and_before_it_is_there_for_that_of_its_class():
    assert reach(claim(), storage_class()).limit == volumes_of("ebs.csi.aws.com")
    csi = volume(csi={"driver": "nfs", "volumeHandle": "h"})
    assert reach(claim(volume="pv", annotations=BOUND), csi).limit == volumes_of("nfs")
    old = volume(awsElasticBlockStore={"volumeID": "vol-1"})
    assert reach(claim(volume="pv", annotations=BOUND), old).limit == volumes_of("ebs.csi.aws.com")
    assert reach(claim(volume="pv", annotations=BOUND), volume(local={"path": "/x"})).limit == ""
    assert reach(claim(volume="pv", annotations=BOUND), volume(csi={"driver": "d" * 10_000})).limit == ""


def test_a_claim_counts_whatever_state_it_is_in():
    gone = claim(volume="pv", meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert limit_of(storage(gone, volume(csi={"driver": "nfs"})), "ns", "data") == volumes_of("nfs")
    assert limit_of(storage(gone), "ns", "data") == ""
    assert limit_of(storage(claim(), storage_class()), "ns", "data") == volumes_of("ebs.csi.aws.com")
    assert limit_of(storage(), "ns", "data") == ""


def test_what_a_node_attaches():
    drivers = [
        {"name": "ebs.csi.aws.com", "allocatable": {"count": 25}},
        {"name": "any", "allocatable": {}},
        {"name": "none"},
        {"name": "less", "allocatable": {"count": -1}},
        {"name": "a/b", "allocatable": {"count": 1}},
    ]
    node = read(Node, {"metadata": {"name": "n", "labels": {HOSTNAME_LABEL: "host-n"}}})
    found = attachable(storage(read(CsiNode, {"metadata": {"name": "n"}, "spec": {"drivers": drivers}})), node)
    assert found == {volumes_of("ebs.csi.aws.com"): 25, volumes_of("less"): 0}
    assert attachable(storage(), node) == {}
    assert attachable(storage(read(CsiNode, {"metadata": {"name": "n"}, "spec": {"drivers": None}})), node) == {}


def on_host(name, *hosts, **more):
    need = {"key": HOSTNAME_LABEL, "operator": "In", "values": hosts}
    terms = [{"matchExpressions": [need]}]
    return volume(name, nodeAffinity={"required": {"nodeSelectorTerms": terms}}, **more)


def test_what_a_node_has_for_claims_of_a_class():
    node = read(Node, {"metadata": {"name": "n", "labels": {HOSTNAME_LABEL: "host-n"}}})
    found = storage(
        *(on_host(f"p{i}", "host-n", storage_class="local") for i in range(3)),
        on_host("other", "host-m", storage_class="local"),
        on_host("two", "host-n", "host-m", storage_class="local"),
        on_host("taken", "host-n", storage_class="local", phase="Bound"),
        on_host("kept", "host-n", storage_class="local", claimRef={"namespace": "ns", "name": "data"}),
        on_host("of-no-class", "host-n", storage_class=""),
    )
    assert attachable(found, node) == {local_volumes_of("local"): 3}


def test_an_unbound_claim_of_a_class_without_provisioner_takes_one_of_them():
    static = storage_class(provisioner="kubernetes.io/no-provisioner")
    assert reach(claim(), static, volume(zones=["a"])).limit == local_volumes_of("slow")
    assert limit_of(storage(claim(), static), "ns", "data") == local_volumes_of("slow")
    bound = claim(volume="pv", annotations=BOUND)
    assert reach(bound, static, volume(csi={"driver": "disks"})).limit == volumes_of("disks")


# -- pods ---------------------------------------------------------------------------------------------------------

VOLUMES = [
    {"name": "token", "projected": {"sources": []}},
    {"name": "data", "persistentVolumeClaim": {"claimName": "shared"}},
    {"name": "again", "persistentVolumeClaim": {"claimName": "shared", "readOnly": True}},
    {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "slow"}}}},
    {"name": "odd", "ephemeral": {}},
]


def test_a_pod_names_claims_and_has_some_made_for_it():
    pod = read(Pod, {"metadata": {"name": "p-0"}, "spec": {"volumes": VOLUMES}})
    assert [one.name for one in claims_of(pod)] == ["shared", "p-0-scratch", "p-0-odd"]
    assert [one.template is None for one in claims_of(pod)] == [True, False, False]
    assert claims_of(read(Pod, {"spec": {"volumes": VOLUMES[:1]}})) == []


def test_what_a_template_names_is_told_from_what_is_made_for_its_pods():
    spec = read(PodTemplate, {"spec": {"volumes": VOLUMES}}).spec
    assert [(one.name, one.template is None) for one in claims_in(spec)] == [
        ("shared", True),
        ("scratch", False),
        ("odd", False),
    ]


def test_only_volumes_with_a_claim_are_kept_of_a_pod():
    assert read(Pod, {"spec": {"volumes": VOLUMES[:1]}}).spec.volumes is None
    assert [one.name for one in read(Pod, {"spec": {"volumes": VOLUMES}}).spec.volumes] == [
        "data",
        "again",
        "scratch",
        "odd",
    ]


def test_metadata_that_nobody_reads_is_not_kept():
    lean = claim(annotations={"note": "x" * 10_000, **BOUND}, meta={"labels": {"a": "b"}, "finalizers": ["x"]})
    assert (lean.metadata.annotations, lean.metadata.labels, lean.metadata.finalizers) == (BOUND, None, ())


def test_a_pod_with_too_many_claims_is_refused_and_no_more_are_looked_at():
    many = [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": f"c{i}"}} for i in range(10_000)]
    (found,) = over_limits(read(PodTemplate, {"spec": {"volumes": many}}), "spec.template.")
    assert found.message == (
        "spec.template.spec.volumes: Too many: 10000 volumes with a claim: at most 128 can be taken into account"
    )
    assert len(claims_of(read(Pod, {"metadata": {"name": "p"}, "spec": {"volumes": many}}))) == MOST_CLAIMS


# -- many claims in one question ------------------------------------------------------------------------------------


def test_many_claims_have_each_volume_looked_at_once():
    volumes = [volume(f"pv{i}", zones=[f"z{i}"], capacity={"storage": f"{i}Gi"}) for i in range(1, 9)]
    asked = []

    def of_class(name):
        asked.append(name)
        yield from volumes

    available, of = Available(of_class, told_nothing), storage_class(provisioner="kubernetes.io/no-provisioner")
    sizes = [(number, number * 10**8) for number in range(1, 100)]
    answers = {
        number: available.terms_of_claim(
            of, claim(spec={"resources": {"requests": {"storage": str(size)}}}).spec, "ns/data"
        )
        for number, size in sizes
    }
    assert asked == ["slow"]
    assert len({id(found) for found in answers.values()}) == len(volumes) + 1  # and one for more than there is
    for number, size in sizes:
        fits = tuple(f"z{i}" for i in range(1, 9) if i * 2**30 >= size)
        assert [need.values for term in answers[number] for need in term.labels] == ([fits] if fits else [])


KEPT = {"claimRef": {"namespace": "ns", "name": "data"}}
STATIC = storage_class(provisioner="kubernetes.io/no-provisioner")


def test_a_volume_that_is_kept_is_for_its_claim_alone_and_others_have_the_rest():
    available = Available(lambda _: [volume("mine", zones=["z1"], **KEPT), volume("free", zones=["z2"])], told_nothing)
    found = {key: available.terms_of_claim(STATIC, claim().spec, key) for key in ("ns/data", "ns/other")}
    assert {key: terms[0].labels[0].values for key, terms in found.items()} == {
        "ns/data": ("z1",),
        "ns/other": ("z2",),
    }


@pytest.mark.parametrize("of", [STATIC, storage_class(zones=["z3"]), storage_class()])
def test_a_claim_for_which_a_volume_is_kept_goes_where_that_one_reaches_and_nowhere_else(of):
    """FindMatchingVolume of Kubernetes 1.37.1 has no other match, and syncUnboundClaim binds the two at once."""
    mine = [volume(f"mine{zone}", zones=[zone], **KEPT) for zone in ("z1", "z4")]
    found = reach(claim(), of, *mine, volume("free", zones=["z2"]))
    assert [lets_in(found, {ZONE: f"z{at}"}) for at in range(1, 5)] == [True, False, False, True]


@pytest.mark.parametrize(
    "other",
    [{"capacity": {"storage": "500Mi"}}, {"volumeMode": "Block"}, {"volumeAttributesClassName": "gold"}],
)
def test_a_kept_volume_that_is_too_small_or_of_another_form_is_not_for_its_claim(other):
    """As FindMatchingVolume of Kubernetes 1.37.1 has it: what is kept is compared by size, mode and attributes."""
    found = reach(claim(), STATIC, volume("mine", zones=["z1"], **KEPT, **other), volume("free", zones=["z2"]))
    assert [lets_in(found, {ZONE: zone}) for zone in ("z1", "z2")] == [False, True]


def test_a_claim_has_volumes_of_its_attributes_class_alone():
    gold = {"volumeAttributesClassName": "gold"}
    two = volume("p1", zones=["z1"], **gold), volume("p2", zones=["z2"])
    for wanted, zones in (({}, [False, True]), (gold, [True, False])):
        found = reach(claim(spec=wanted), STATIC, *two)
        assert [lets_in(found, {ZONE: zone}) for zone in ("z1", "z2")] == zones


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {f"k{i}": "v" for i in range(257)}},
        {"matchExpressions": [{"key": "k", "operator": "In", "values": [str(i) for i in range(1025)]}]},
    ],
)
def test_a_claim_that_selects_by_too_much_is_not_ready(selector):
    found = reach(claim(spec={"selector": selector}), storage_class(provisioner=""), volume(zones=["z1"]))
    assert found == NotReady(
        'persistentvolumeclaim "data" is not bound, and it selects volumes by more than Topogate takes into account'
    )


def selecting(number):
    """A claim that selects in a way of its own, all the same volumes."""
    return claim(spec={"selector": {"matchExpressions": [{"key": f"k{number}", "operator": "DoesNotExist"}]}})


def test_claims_that_all_select_in_another_way_are_answered_up_to_a_limit(monkeypatch):
    """Each way is compared with every volume: of 100 claims and 10,000 volumes that took a second."""
    monkeypatch.setattr(volumes_available, "MOST_COMPARED", 200)
    of, many = storage_class(provisioner=""), [volume(f"v{i}", zones=["z1"]) for i in range(50)]
    available = Available(lambda _: many, told_nothing)
    for number in range(MOST_WISHES):
        assert available.terms_of_claim(of, selecting(number).spec, "ns/data")
    with pytest.raises(TooManyWishes):
        available.terms_of_claim(of, selecting(MOST_WISHES).spec, "ns/data")
    assert available.terms_of_claim(of, selecting(0).spec, "ns/data"), "what was answered is answered again"
    found = reach_of(storage(of, selecting(99), *many), "ns", "data", available)
    assert found == NotReady(
        'persistentvolumeclaim "data" is not bound, and its job\'s claims select volumes in too many different ways'
    )
    few = Available(lambda _: many[:3], told_nothing)
    assert all(few.terms_of_claim(of, selecting(number).spec, "ns/data") for number in range(40))


# -- what storage a driver has left --------------------------------------------------------------------------------
# As ``hasEnoughCapacity`` of kube-scheduler 1.37 (plugin VolumeBinding) has it.

EBS = "ebs.csi.aws.com"


def driver(*, tells=True):
    return read(CsiDriver, {"metadata": {"name": EBS}, "spec": {"storageCapacity": tells}})


def left(zone, size, *, largest=None, storage_class="slow"):
    """What the driver has left in a zone; "" for all nodes, None for none."""
    labels = {"matchLabels": {ZONE: zone}} if zone else {}
    body = {"metadata": {"name": f"{storage_class}-{zone}", "namespace": "kube-system"}, "capacity": size}
    body |= {"storageClassName": storage_class, "nodeTopology": labels if zone is not None else None}
    return read(CsiStorageCapacity, body | ({"maximumVolumeSize": largest} if largest else {}))


def zones_of(*found, zones=("z1", "z2", "z3")):
    """The zones to whose nodes the claim, of 1 GiB, lets pods go."""
    said = reach(claim(), *found)
    return said if isinstance(said, NotReady) else [zone for zone in zones if lets_in(said, {ZONE: zone})]


def test_pods_go_where_the_driver_has_storage_left():
    assert zones_of(storage_class(), driver(), left("z1", "500Mi"), left("z2", "1Gi"), left("z3", "9Gi")) == [
        "z2",
        "z3",
    ]


def test_the_largest_volume_counts_before_what_is_left_in_all():
    found = [left("z1", "9Gi", largest="1Mi"), left("z2", "9Gi", largest="2Gi"), left("z3", "1Mi", largest="2Gi")]
    assert zones_of(storage_class(), driver(), *found) == ["z2", "z3"]


@pytest.mark.parametrize("found", [(), (left("z1", "1Gi"),)])
def test_a_driver_that_does_not_tell_has_storage_everywhere(found):
    assert zones_of(storage_class(), *found) == ["z1", "z2", "z3"]
    assert zones_of(storage_class(), driver(tells=False), *found) == ["z1", "z2", "z3"]


@pytest.mark.parametrize(
    "found",
    [
        (),
        (left("z1", "1Mi"),),
        (left("z1", None),),
        (left("z1", "much"),),
        (left(None, "9Gi"),),
        (left("z1", "9Gi", storage_class="fast"),),
    ],
)
def test_a_claim_waits_while_its_driver_has_storage_left_nowhere(found):
    said = reach(claim(), storage_class(), driver(), *found)
    assert said == NotReady(
        'persistentvolumeclaim "data" is not bound, and no available persistentvolume of storageclass "slow" matches '
        f"it, and driver {EBS} has no storage left for it on any node (CSIStorageCapacity)"
    )


def test_a_selector_without_requirements_is_that_of_all_nodes():
    assert zones_of(storage_class(), driver(), left("", "9Gi")) == ["z1", "z2", "z3"]


def test_both_the_class_and_the_driver_have_to_let_a_node_in():
    assert zones_of(storage_class(zones=["z1", "z2"]), driver(), left("z2", "9Gi"), left("z3", "9Gi")) == ["z2"]


def test_a_topology_without_labels_lets_no_node_in_whatever_storage_is_left():
    """As MatchTopologySelectorTerms of Kubernetes 1.37.1 has it: a term without expressions matches nothing."""
    body = {"metadata": {"name": "slow"}, "provisioner": EBS, "volumeBindingMode": "WaitForFirstConsumer"}
    empty = read(Class, {**body, "allowedTopologies": [{}, {"matchLabelExpressions": [{"key": "k", "values": ["v"]}]}]})
    found = reach(claim(), empty, driver(), left("z2", "9Gi"))
    assert [lets_in(found, {ZONE: "z2", **more}) for more in ({}, {"k": "v"})] == [False, True]


def test_a_volume_that_is_there_needs_no_storage_that_is_left():
    assert zones_of(storage_class(), driver(), left("z2", "9Gi"), volume(zones=["z1"])) == ["z1", "z2"]


def test_claims_of_different_sizes_are_answered_by_what_is_left_for_each():
    of, found = storage_class(), [left("z1", "1Gi"), left("z2", "5Gi")]
    available = Available(lambda _: [], lambda _: found)
    sized = {
        size: claim(spec={"resources": {"requests": {"storage": size}}}).spec for size in ("1Gi", "2Gi", "3Gi", "6Gi")
    }
    answers = {size: available.terms_of_claim(of, spec, "ns/data") for size, spec in sized.items()}
    values = {size: [need.values for term in terms for need in term.labels] for size, terms in answers.items()}
    assert values == {"1Gi": [("z1", "z2")], "2Gi": [("z2",)], "3Gi": [("z2",)], "6Gi": []}


def test_thousands_of_nodes_with_storage_of_their_own_are_one_term():
    of, found = storage_class(), [left(f"z{at}", "9Gi") for at in range(3000)]
    (term,) = Available(lambda _: [], lambda _: found).terms_of_claim(of, claim().spec, "ns/data")
    assert len(term.labels[0].values) == 3000
