import pytest

from crds.constants import Keys
from crds.levels import check_level
from crds.names import is_label_key
from crds.request import (
    JOB_PATH,
    TEMPLATE_PATH,
    NumaWish,
    ParsedRequest,
    RequestError,
    canonical,
    level_in,
    parse_job_request,
    parse_job_wish,
    parse_request,
    parse_wish,
    resolve,
)
from engine.kubelet.machine import TopologyPolicy
from engine.model import Policy, TopologyRequest
from engine.reasons import Reason

K = Keys()
OTHER = Keys("topogate.dev")
RACK = "cloud-provider.com/topology-rack"
FLAVORS = {"b": ("block", "rack"), "a": ("zone", RACK, "kubernetes.io/hostname")}
UNCONSTRAINED = ParsedRequest(Policy.UNCONSTRAINED, None)


@pytest.mark.parametrize("keys", [K, OTHER], ids=lambda keys: keys.domain)
def test_all_spellings_are_equal(keys):
    for key in keys.required:
        assert parse_request({key: RACK}, keys).same_request(ParsedRequest(Policy.REQUIRED, RACK))
    for key in keys.preferred:
        assert parse_request({key: RACK}, keys).same_request(ParsedRequest(Policy.PREFERRED, RACK))
        assert parse_request({key: "auto"}, keys).auto
    assert parse_request({keys.unconstrained: "true"}, keys).same_request(UNCONSTRAINED)


def test_no_request():
    for annotations in (None, {}, {"a": "b"}, {K.unconstrained: "false"}, {OTHER.required[0]: RACK}):
        assert parse_request(annotations, K) is None
        assert parse_job_request(annotations, annotations, K) is None


def test_the_same_said_twice_is_fine():
    annotations = dict.fromkeys(K.required, RACK)
    assert parse_request(annotations, K).level == RACK
    assert parse_job_request({K.required[1]: RACK}, {K.required[0]: RACK}, K).level == RACK


def test_either_place_counts():
    assert parse_job_request({K.required[0]: RACK}, None, K).field == f"{JOB_PATH}[{K.required[0]}]"
    assert parse_job_request(None, {K.required[0]: RACK}, K).field == f"{TEMPLATE_PATH}[{K.required[0]}]"


CONTRADICTIONS = [
    {K.required[0]: "rack", K.required[1]: "block"},
    {K.required[0]: "rack", K.preferred[0]: "rack"},
    {K.required[1]: "rack", K.preferred[1]: "auto"},
    {K.preferred[0]: "rack", K.preferred[1]: "block"},
    {K.required[0]: "rack", K.unconstrained: "true"},
    {K.preferred[1]: "rack", K.unconstrained: "true"},
]


@pytest.mark.parametrize("annotations", CONTRADICTIONS)
def test_contradictions_are_refused_and_both_are_named(annotations):
    (first, one), (second, other) = annotations.items()
    with pytest.raises(RequestError) as refused:
        parse_request(annotations, K)
    assert refused.value.reason is Reason.CONTRADICTING_REQUESTS
    for part in (first, one, second, other):
        assert part in str(refused.value)
    with pytest.raises(RequestError) as refused:
        parse_job_request({first: one}, {second: other}, K)
    assert f"{JOB_PATH}[{first}]" in str(refused.value)
    assert f"{TEMPLATE_PATH}[{second}]" in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (K.required[0], "auto", "prefer-topology only"),
        (K.required[0], "", "label key"),
        (K.preferred[0], "not a key", "label key"),
        (K.required[1], "Upper.case/rack", "label key"),
        (K.unconstrained, "yes", '"true" or "false"'),
    ],
)
def test_bad_values_are_named_with_what_is_expected(key, value, expected):
    with pytest.raises(RequestError) as refused:
        parse_request({key: value}, K)
    error = refused.value
    assert (error.reason, error.field, error.value) == (Reason.INVALID_REQUEST, f"{JOB_PATH}[{key}]", value)
    assert expected in str(error)
    assert f'"{value}"' in str(error)


def test_canonical_spelling_reads_back_as_the_same():
    for request in (
        ParsedRequest(Policy.REQUIRED, RACK),
        ParsedRequest(Policy.PREFERRED, RACK),
        ParsedRequest(Policy.PREFERRED, "auto"),
        UNCONSTRAINED,
    ):
        key, value = canonical(request, K)
        assert parse_request({key: value}, K).same_request(request)


def test_levels_that_exist_pass():
    for request in (
        ParsedRequest(Policy.REQUIRED, RACK),
        ParsedRequest(Policy.PREFERRED, "auto"),
        ParsedRequest(Policy.PREFERRED, "block"),
        UNCONSTRAINED,
    ):
        check_level(request, FLAVORS)


def test_an_unknown_level_lists_those_that_exist():
    with pytest.raises(RequestError) as refused:
        check_level(parse_request({K.required[0]: "pod"}, K), FLAVORS)
    text = str(refused.value)
    assert refused.value.reason is Reason.UNKNOWN_LEVEL
    assert f'{JOB_PATH}[{K.required[0]}]: Unsupported value: "pod"' in text
    assert f'allowed are "zone", "{RACK}", "kubernetes.io/hostname", "block", "rack"' in text
    assert '"auto"' not in text
    with pytest.raises(RequestError, match='"auto"'):
        check_level(ParsedRequest(Policy.PREFERRED, "pod"), FLAVORS)


@pytest.mark.parametrize("flavors", [{}, {"no-topology": ()}])
@pytest.mark.parametrize("request_", [ParsedRequest(Policy.REQUIRED, RACK), UNCONSTRAINED])
def test_without_any_topology_the_message_says_so(flavors, request_):
    with pytest.raises(RequestError, match=r"no ResourceFlavor with spec\.topology"):
        check_level(request_, flavors)


def test_auto_is_the_narrowest_level():
    auto = ParsedRequest(Policy.PREFERRED, "auto")
    assert level_in(auto, FLAVORS["a"]) == "kubernetes.io/hostname"
    assert resolve(auto, FLAVORS["b"]) == TopologyRequest(policy=Policy.PREFERRED, level="rack")
    assert resolve(auto, ()) is None


def test_resolve_in_a_flavor_without_the_level():
    assert resolve(ParsedRequest(Policy.REQUIRED, RACK), FLAVORS["b"]) is None
    assert resolve(UNCONSTRAINED, FLAVORS["b"]) == TopologyRequest(policy=Policy.UNCONSTRAINED)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("rack", True),
        ("a.b-c/Rack_1.x", True),
        ("a" * 63, True),
        ("a" * 64, False),
        (f"{'a' * 253}/b", True),
        (f"{'a' * 254}/b", False),
        ("/b", False),
        ("a/", False),
        ("a//b", False),
        ("a..b/c", False),
        ("-a", False),
        ("a\n", False),
    ],
)
def test_label_keys_as_kubernetes_takes_them(text, valid):
    assert is_label_key(text) is valid


NUMA, RESOURCES, LINK = "topogate.dev/numa-policy", "topogate.dev/numa-resources", "topogate.dev/gpu-link"


def test_wishes_are_read_with_their_defaults():
    assert parse_wish({}) == NumaWish()
    given = {NUMA: "socket", RESOURCES: "nvidia.com/gpu,cpu,cpu", LINK: "prefer"}
    assert parse_wish(given) == NumaWish(TopologyPolicy.SOCKET, ("cpu", "nvidia.com/gpu"), "prefer")


@pytest.mark.parametrize("value", ["require", "prefer"])
def test_a_wish_for_linked_devices_alone_is_a_request_to_be_placed_anywhere(value):
    keys, link = Keys(), {LINK: value}
    for found in (parse_request(link, keys), parse_job_request(link, None, keys), parse_job_request(None, link, keys)):
        assert (found.policy, found.level) == (Policy.UNCONSTRAINED, None)
    assert parse_job_request(None, link, keys).field == f"spec.template.metadata.annotations[{LINK}]"
    with_level = parse_request({**link, keys.required[0]: "rack"}, keys)
    assert (with_level.policy, with_level.level) == (Policy.REQUIRED, "rack")
    declined = {keys.unconstrained: "false"}
    assert parse_job_request(link, declined, keys) is None
    assert parse_request({NUMA: "restricted"}, keys) is None


def test_what_the_qos_does_not_guarantee_is_no_wish():
    qos = "topogate.dev/topology-qos"
    assert parse_wish({NUMA: "socket", qos: "best-effort"}).policy is TopologyPolicy.BEST_EFFORT
    assert parse_wish({NUMA: "socket", qos: "numa-guaranteed"}).policy is TopologyPolicy.RESTRICTED
    assert parse_wish({qos: "guaranteed", RESOURCES: "cpu"}) == NumaWish(TopologyPolicy.RESTRICTED, ("cpu",))
    assert parse_wish({NUMA: "none", qos: "guaranteed"}) == NumaWish()


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        (NUMA, "Single", '"single-numa-node", "restricted"'),
        (LINK, "", '"require", "prefer"'),
        (RESOURCES, "a b", "cpu"),
    ],
)
def test_a_bad_wish_names_its_place_the_value_and_what_is_allowed(key, value, allowed):
    with pytest.raises(RequestError) as caught:
        parse_job_wish(None, {key: value})
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.field == f"spec.template.metadata.annotations[{key}]"
    assert caught.value.value == value
    assert allowed in str(caught.value)


def test_the_wishes_of_job_and_template_are_one():
    assert parse_job_wish({NUMA: "none"}, {NUMA: "none", LINK: "require"}) == {NUMA: "none", LINK: "require"}
    assert parse_job_wish(None, None) == {}
    with pytest.raises(RequestError, match="contradicts") as caught:
        parse_job_wish({NUMA: "none"}, {NUMA: "restricted"})
    assert caught.value.reason is Reason.CONTRADICTING_REQUESTS
