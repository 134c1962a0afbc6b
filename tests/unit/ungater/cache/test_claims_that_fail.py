"""Slices, classes, templates and expressions that cannot be used: each is the trouble of those who name it."""

import pytest
from support.claims_world import a_class, a_pod, read
from support.equipped import DRIVER, META, Equipped, cel, gpus, on, request_of, template, told

from engine.claims.errors import ObjectError
from kube.pods.devices import ResourceClaimTemplate


@pytest.fixture
def world():
    return Equipped()


def test_a_slice_that_cannot_be_read_is_one_objects_error():
    world = Equipped(["r1-h1"])
    with pytest.raises(ObjectError, match="r1-h1-gpus"):
        world.put("resource_slice", gpus("r1-h1", driver=""))
    world.put("resource_slice", gpus("r2-h1"))
    assert on(world.placed(count=2)) == {"r2-h1": 2}


def test_a_pool_that_never_completes_has_no_devices():
    world = Equipped(["r1-h1"])
    world.put("resource_slice", gpus("r1-h1", slices=2))
    assert on(world.placed(count=1)) is None


def test_a_class_that_goes_is_the_trouble_of_those_who_name_it(world):
    other = template(name="other", deviceClassName="other")
    world.put("device_class", a_class("other"))
    world.put("claim_template", other)
    claims = [{"name": "gpu", "resourceClaimTemplateName": "other"}]
    record = world.placed("first", 1, claims=claims)
    (host,) = on(record)
    world.drop("device_class", world.stores["device_class"]["other"])
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "first", "uid": record.job.uid, "controller": True}
    world.put("pod", a_pod("first-x", owner=owner, claims=claims))
    assert world.let_go(record) == []
    assert on(world.placed("others", 4))[host] == 2
    assert world.why(world.job("second", 1, claims=claims))[1].endswith('DeviceClass "other" does not exist')


@pytest.mark.parametrize(
    ("selectors", "words"),
    [
        ("device.attributes['x'].missing == 1", "CEL runtime error"),
        ("device.", "CEL compile error"),
        ("1", "must evaluate to bool"),
        ("type(device) == type(1)", "CEL compile error"),
    ],
)
def test_an_expression_that_fails_is_one_workloads_trouble(world, selectors, words):
    world.put("claim_template", template(1, "odd", selectors=cel(selectors)))
    record = world.placed("odd", 1, claims=[{"name": "gpu", "resourceClaimTemplateName": "odd"}])
    assert words in told(world, record)[1]
    assert on(world.placed(count=4)) is not None


def test_a_search_without_end_is_given_up_at_the_second_look():
    """What it takes to compile its expressions is part of the first, which gives up one node."""
    world = Equipped([])
    for at, name in enumerate(("r1-h1", "r1-h2", "r2-h1", "r2-h2")):
        devices = [{"name": f"gpu-{number}", "attributes": {"n": {"int": number % 2}}} for number in range(100 + at)]
        world.put("resource_slice", gpus(name, devices=devices))
    requests = [request_of(1) | {"name": f"r{number}"} for number in range(12)]
    asks = {"requests": requests, "constraints": [{"distinctAttribute": f"{DRIVER}/n"}]}
    body = {"metadata": {"name": "hard", **META}, "spec": {"spec": {"devices": asks}}}
    world.put("claim_template", read(ResourceClaimTemplate, body))
    record = world.placed("hard", 1, claims=[{"name": "gpu", "resourceClaimTemplateName": "hard"}])
    assert record.admission is None
    assert world.why(record) is None, "its devices are being counted"
    world.settle()
    assert record.admission is None
    assert world.why(record)[1].endswith("counting such devices takes too many steps")
    assert sum(on(world.placed(count=8)).values()) == 8


def test_numbers_of_any_size_are_numbers():
    world = Equipped(["r1-h1"])
    huge = 9223372036854775807
    devices = [{"name": "gpu-0", "capacity": {"memory": {"value": str(huge)}}, "attributes": {"n": {"int": huge}}}]
    pool = {"name": "r1-h2", "generation": huge, "resourceSliceCount": 1}
    world.put("resource_slice", gpus("r1-h2", pool=pool, devices=devices))
    endless = {"name": "r2-h1", "generation": huge, "resourceSliceCount": huge}
    world.put("resource_slice", gpus("r2-h1", pool=endless))
    world.put("claim_template", template(huge, "all"))
    assert on(world.placed("all", 1, claims=[{"name": "gpu", "resourceClaimTemplateName": "all"}])) is None
    assert on(world.placed(count=3)) == {"r1-h1": 2, "r1-h2": 1}


def test_a_hundred_and_twenty_eight_devices_are_counted():
    world = Equipped([])
    world.put("resource_slice", gpus("r1-h1", 128))
    world.put("claim_template", template(32, "many"))
    claims = [{"name": "gpu", "resourceClaimTemplateName": "many"}]
    assert on(world.placed("four", 4, claims=claims)) == {"r1-h1": 4}
    assert on(world.placed("more", 1, claims=claims)) is None


@pytest.mark.parametrize(
    "devices", [None, {}, {"requests": [{"name": "gpu"}]}, {"requests": [{"name": "gpu", "exactly": {"count": "x"}}]}]
)
def test_a_template_that_asks_for_nothing_that_is_known_harms_nobody(world, devices):
    body = {"metadata": {"name": "odd", **META}, "spec": {"spec": {"devices": devices}}}
    world.put("claim_template", read(ResourceClaimTemplate, body))
    world.job("odd", 1, claims=[{"name": "gpu", "resourceClaimTemplateName": "odd"}])
    assert on(world.placed(count=2)) is not None
