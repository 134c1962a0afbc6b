"""Extended resources that stand for devices: the claim that the scheduler makes."""

from engine.claims.extended import classes_by_resource, extended_claim, is_extended
from engine.claims.read.claims import read_class
from engine.claims.read.pods import read_allocatable, read_containers

GPU = "example.com/gpu"


def one_class(name, resource=GPU, created="2026-01-01T00:00:00Z"):
    return {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"extendedResourceName": resource}}


def container(name="main", *, always=False, **requests):
    amounts = {GPU if key == "gpu" else key.replace("_", "/"): value for key, value in requests.items()}
    return {"name": name, "resources": {"requests": amounts}, **({"restartPolicy": "Always"} if always else {})}


def made(*containers, init=(), classes=None, allocatable=None, has_claims=False):
    pod = {"metadata": {"name": "p"}, "spec": {"containers": list(containers), "initContainers": list(init)}}
    known = classes_by_resource(map(read_class, classes or [one_class("gpu")]))
    return extended_claim(read_containers(pod), known, read_allocatable(allocatable or {}), has_claims=has_claims)


def asked(found):
    return [(one.name, one.exactly.class_name, one.exactly.count) for one in found.claim.requests]


def test_every_container_has_a_request_named_after_its_place():
    found = made(container(cpu="1", gpu="2"), container("side", gpu="1"))
    assert asked(found) == [("container-0-request-1", "gpu", 2), ("container-1-request-0", "gpu", 1)]
    assert [(one.container, one.resource, one.request) for one in found.mappings] == [
        ("main", GPU, "container-0-request-1"),
        ("side", GPU, "container-1-request-0"),
    ]


def test_requests_sort_as_strings():
    found = made(*(container(f"c{index}", gpu="1") for index in range(12)))
    assert [name for name, _, _ in asked(found)][:4] == [
        f"container-{index}-request-0" for index in ("0", "1", "10", "11")
    ]


def test_the_newest_class_counts_then_the_lowest_name():
    newer = one_class("z", created="2026-02-01T00:00:00Z")
    for classes in ([one_class("gpu"), newer], [newer, one_class("gpu")]):
        assert asked(made(container(gpu="1"), classes=classes)) == [("container-0-request-0", "z", 1)]
    for classes in ([one_class("b"), one_class("a")], [one_class("a"), one_class("b")]):
        assert asked(made(container(gpu="1"), classes=classes)) == [("container-0-request-0", "a", 1)]


def test_a_class_can_be_asked_for_by_its_own_name():
    found = made(container(**{"deviceclass.resource.kubernetes.io_gpu": "1"}))
    assert asked(found) == [("container-0-request-0", "gpu", 1)]


def test_an_init_container_takes_what_later_containers_have():
    found = made(container(gpu="2"), init=[container("init", gpu="3")])
    assert asked(found) == [("container-0-request-0", "gpu", 1), ("container-1-request-0", "gpu", 2)]
    assert [one.request for one in found.mappings if one.container == "init"] == [
        "container-1-request-0",
        "container-0-request-0",
    ]


def test_of_several_init_containers_the_largest_is_enough():
    found = made(container(cpu="1"), init=[container("a", gpu="1"), container("b", gpu="3"), container("c", gpu="2")])
    assert asked(found) == [("container-1-request-0", "gpu", 3)]
    assert {one.request for one in found.mappings} == {"container-1-request-0"}


def test_a_sidecar_keeps_what_it_has():
    found = made(container(gpu="1"), init=[container("side", always=True, gpu="1"), container("init", gpu="1")])
    assert asked(found) == [("container-0-request-0", "gpu", 1), ("container-2-request-0", "gpu", 1)]
    assert [one.request for one in found.mappings if one.container == "init"] == ["container-2-request-0"]


def test_what_the_node_has_as_a_plain_resource_is_not_asked_of_its_devices():
    assert made(container(gpu="1"), allocatable={GPU: "4"}).claim is None
    assert made(container(gpu="1"), allocatable={GPU: "0"}).claim is not None
    with_claims = made(container(gpu="1"), allocatable={GPU: "4"}, has_claims=True)
    assert with_claims.claim is not None
    assert asked(with_claims) == []


def test_a_resource_that_nothing_stands_for_is_missing():
    assert made(container(gpu="1", **{"example.com_nic": "1"})).missing == "example.com/nic"
    assert made(container(**{"example.com_nic": "1"})).missing == ""
    assert made(container(gpu="0")).claim is None


def test_which_resources_are_extended():
    assert is_extended(GPU)
    assert is_extended("deviceclass.resource.kubernetes.io/gpu")
    for name in (
        "cpu",
        "kubernetes.io/x",
        "requests.example.com/x",
        "Example.com/x",
        "example.com/",
        "a/b/c",
        "hugepages-2Mi",
    ):
        assert not is_extended(name)
