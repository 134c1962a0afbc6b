"""Names of levels: what a request means that asks for a level by its name."""

import pytest

from crds.constants import Keys
from crds.levels import LevelNames, check_level, with_label_keys
from crds.request import RequestError, canonical, parse_request, resolve
from engine.model import SliceLayer
from engine.reasons import Reason

K = Keys()
BLOCK, RACK, HOST = "cloud-provider.com/topology-block", "cloud-provider.com/topology-rack", "kubernetes.io/hostname"
FLAVORS = {"gpu": (BLOCK, RACK, HOST)}
NAMES = {"block": BLOCK, "rack": RACK}


def names(**more):
    return LevelNames.read([("gpu", FLAVORS["gpu"], NAMES), *((name, *found) for name, found in more.items())])


def asked(text, key=K.required[0]):
    return parse_request({key: text}, K)


@pytest.mark.parametrize("key", [*K.required, *K.preferred])
def test_a_name_means_its_level_and_stays_as_it_was_written(key):
    request = with_label_keys(asked("rack", key), names())
    assert request.same_request(asked(RACK, key))
    assert resolve(request, FLAVORS["gpu"]).level == RACK
    assert canonical(request, K)[1] == "rack"
    assert with_label_keys(request, names()) == request
    check_level(request, FLAVORS, names=names())


def test_a_request_without_a_name_is_the_same_object():
    for request in (asked(RACK), asked("auto", K.preferred[0]), parse_request({K.unconstrained: "true"}, K)):
        assert with_label_keys(request, names()) is request


def test_slices_by_name_and_those_that_are_to_be_alone_by_label_alone():
    annotations = {K.required[0]: "block", K.slice_level: "rack", K.slice_size: "4"}
    request = with_label_keys(parse_request(annotations, K), names())
    assert [layer.level for layer in request.slices] == [RACK]
    check_level(request, FLAVORS, names=names())
    alone = SliceLayer(level="rack", size=4, alone=True)
    assert with_label_keys(type(request)(request.policy, BLOCK, slices=(alone,)), names()).slices == (alone,)


def test_an_unknown_name_is_refused_with_those_that_there_are():
    with pytest.raises(RequestError) as refused:
        check_level(with_label_keys(asked("row"), names()), FLAVORS, names=names())
    assert refused.value.reason is Reason.UNKNOWN_LEVEL
    assert 'Unsupported value: "row"' in str(refused.value)
    assert f'allowed are "{BLOCK}" ("block"), "{RACK}" ("rack"), "{HOST}"' in str(refused.value)


def test_a_level_that_the_queues_flavors_lack_is_told_by_the_name_that_was_written():
    with pytest.raises(RequestError, match='Unsupported value: "rack"'):
        check_level(with_label_keys(asked("rack"), names()), {"other": (BLOCK,)}, names=names())


def test_a_name_of_different_levels_is_refused_with_all_of_them():
    several = names(cloud=((RACK, "cloud.example/rack"), {"rack": "cloud.example/rack"}))
    request = with_label_keys(asked("rack"), several)
    assert request.level == "rack"
    with pytest.raises(RequestError) as refused:
        check_level(request, {**FLAVORS, "cloud": (RACK, "cloud.example/rack")}, names=several)
    assert f'"cloud.example/rack", "{RACK}"' in str(refused.value)
    check_level(with_label_keys(asked("block"), several), FLAVORS, names=several)


def test_two_flavors_may_say_the_same():
    assert with_label_keys(asked("rack"), names(cloud=((RACK, HOST), {"rack": RACK}))).level == RACK


def test_what_is_a_level_is_no_name():
    """A label key without a prefix looks like a name."""
    assert with_label_keys(asked("rack"), names(old=(("row", "rack"), None))).level == "rack"
    assert with_label_keys(asked("rack"), names(old=(("row",), {"rack": "gone"}))).level == RACK, (
        "a name of no level of its own"
    )


def test_names_come_and_stay_as_long_as_somebody_may_have_asked_by_them():
    found = LevelNames()
    assert not found.set("gpu", FLAVORS["gpu"], None)
    assert found.level("rack") == "rack"
    assert found.set("gpu", FLAVORS["gpu"], NAMES)
    assert not found.set("gpu", FLAVORS["gpu"], NAMES)
    assert not found.remove("gpu")
    assert found.level("rack") == RACK
    assert found.set("new", (HOST,), {"rack": HOST})
    assert found.level("rack") == HOST


OTHER = ("topology.k8s.aws/network-node-layer-3", HOST)


def test_a_name_of_several_levels_means_that_of_the_queues_flavors():
    both = names(eks=(OTHER, {"rack": OTHER[0], "host": HOST}))
    with pytest.raises(RequestError, match="flavors give this name to different levels"):
        check_level(with_label_keys(asked("rack"), both), {**FLAVORS, "eks": OTHER}, names=both)
    for flavor, levels in {**FLAVORS, "eks": OTHER}.items():
        within = both.from_flavors([flavor, "plain"])
        request = with_label_keys(asked("rack"), within)
        assert request.level == levels[-2]
        check_level(request, {flavor: levels}, names=within)
    assert both.from_flavors(["gpu", "eks"]).ambiguous_levels("rack") == (OTHER[0], RACK)
    assert both.from_flavors(["eks"]).level("block") == BLOCK, "a name that only another flavor has keeps its meaning"
    assert both.from_flavors([]).level("rack") == "rack"
    assert both.from_flavors(["eks"]) is both.from_flavors(["eks"])
    both.set("eks", OTHER, {"shelf": OTHER[0]})
    assert both.from_flavors(["eks"]).level("shelf") == OTHER[0]
    assert names().from_flavors(["gpu"]).level("rack") == RACK


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Rack", 'of any ResourceFlavor; did you mean rack? Allowed are "'),
        ("rak", "did you mean rack? Allowed are"),
        ("true", 'of any ResourceFlavor; allowed are "'),
    ],
)
def test_a_level_that_is_misspelt_is_told_what_was_meant(text, told):
    request = with_label_keys(asked(text), names())
    with pytest.raises(RequestError) as refused:
        check_level(request, FLAVORS, names=names())
    assert told in str(refused.value)
