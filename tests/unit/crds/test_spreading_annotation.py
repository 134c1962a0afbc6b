"""``podset-topology-spreading`` as it is written; the form is that of Kueue's main (pkg/util/tas/spreading.go)."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.constants import Keys
from crds.kueue.spreading import MAX_LENGTH, WrongAnnotation, read_spreading
from crds.levels import LevelNames, with_label_keys
from crds.request import RequestError, parse_job_request, parse_request, resolve, unresolved
from engine.model import ShareLimits, ShareRule
from engine.reasons import Reason

K = Keys()
RACK = "cloud/rack"
RULE = {"topologyKey": RACK, "maxShareAllowingPlacement": "0.45"}
APP = {"key": "app", "operator": "In", "values": ["main", "other"]}


def text_of(*rules, selectors=None):
    body = {"rules": list(rules) or [RULE]}
    return json.dumps(body if selectors is None else body | {"workloadLabelSelectors": selectors})


def test_rules_selector_and_modes():
    zone = {"topologyKey": "zone", "maxShareAllowingPlacement": "220m", "enforcementMode": "Preferred"}
    found = read_spreading(text_of(RULE, zone, selectors=[APP]), "f")
    assert found == ShareLimits(
        rules=(ShareRule(level=RACK, most=450), ShareRule(level="zone", most=220, required=False)),
        key="app",
        values=("main", "other"),
    )


@pytest.mark.parametrize("selectors", [None, []])
def test_no_selector_is_the_owner(selectors):
    assert read_spreading(text_of(selectors=selectors), "f") == ShareLimits(rules=(ShareRule(level=RACK, most=450),))


@pytest.mark.parametrize(
    ("share", "most"),
    # ScaledValue(Milli) rounds up, as ExceedsShare reads it.
    [("0.45", 450), ("450m", 450), ("45e-2", 450), (0.45, 450), ("0.0001", 1), ("0.9999", 1000), ("1n", 1)],
)
def test_a_share_is_a_quantity_in_thousandths(share, most):
    (rule,) = read_spreading(text_of(RULE | {"maxShareAllowingPlacement": share}), "f").rules
    assert rule.most == most


@pytest.mark.parametrize(
    "share", ["0", "1", "1000m", "-0.1", 0, 1, 45, "45%", "", "x", True, None, [], "9" * 5000, 1e308]
)
def test_what_is_no_share_is_refused_with_its_path(share):
    with pytest.raises(WrongAnnotation, match="maxShareAllowingPlacement") as error:
        read_spreading(text_of(RULE | {"maxShareAllowingPlacement": share}), "f")
    assert error.value.field == "f.rules[0].maxShareAllowingPlacement"
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("half", "f"),
        ("[" * 5000, "f"),
        (" " * (MAX_LENGTH + 1), "f"),
        ("[]", "f"),
        ("{}", "f.rules"),
        ('{"rules": {}}', "f.rules"),
        (text_of(RULE, RULE, RULE), "f.rules"),
        (text_of(RULE, RULE), "f.rules[1].topologyKey"),
        (text_of(7), "f.rules[0]"),
        (text_of(RULE | {"key": RACK}), "f.rules[0].key"),
        (text_of(RULE | {"topologyKey": 7}), "f.rules[0].topologyKey"),
        (text_of(RULE | {"enforcementMode": ""}), "f.rules[0].enforcementMode"),
        (text_of(RULE | {"enforcementMode": ["Required"]}), "f.rules[0].enforcementMode"),
        ('{"rules": [], "workloadLabelSelector": "app=main"}', "f.workloadLabelSelector"),
        (text_of(selectors="app=main"), "f.workloadLabelSelectors"),
        (text_of(selectors=[APP, APP]), "f.workloadLabelSelectors"),
        (text_of(selectors=[None]), "f.workloadLabelSelectors[0]"),
        (text_of(selectors=[APP | {"key": "a b"}]), "f.workloadLabelSelectors[0].key"),
        (text_of(selectors=[APP | {"operator": "NotIn"}]), "f.workloadLabelSelectors[0].operator"),
        (text_of(selectors=[APP | {"values": []}]), "f.workloadLabelSelectors[0].values"),
        (text_of(selectors=[APP | {"values": ["x"] * 65}]), "f.workloadLabelSelectors[0].values"),
        (text_of(selectors=[APP | {"values": ["ok", "a\n"]}]), "f.workloadLabelSelectors[0].values[1]"),
    ],
    ids=lambda value: value[:40],
)
def test_what_is_wrong_is_refused_where_it_stands(text, field):
    with pytest.raises(WrongAnnotation) as error:
        read_spreading(text, "f")
    assert error.value.field == field
    assert str(error.value).startswith(f"{field}: ")
    assert len(str(error.value)) < 400


values = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from([RACK, "0.5", "In"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*RULE, *APP, "rules", "workloadLabelSelectors", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["rules", "workloadLabelSelectors"]), values) | st.text(max_size=40))
def test_whatever_a_tenant_writes_is_read_or_refused(body):
    found = None
    with suppress(WrongAnnotation):
        found = read_spreading(body if isinstance(body, str) else json.dumps(body), "f")
    assert found is None or 1 <= len(found.rules) <= 2


def test_it_is_part_of_the_request():
    request = parse_request({K.required[1]: RACK, K.spreading: text_of()}, K)
    assert request.shares == ShareLimits(rules=(ShareRule(level=RACK, most=450),))
    assert resolve(request, (RACK,)).shares == unresolved(request).shares == request.shares
    assert resolve(request, (RACK,)).limited_levels == (RACK,)


@pytest.mark.parametrize("beside", [{}, {K.preferred[0]: RACK}, {K.unconstrained: "true"}])
def test_it_goes_with_a_required_level_alone(beside):
    # ValidateTASPodSetRequest of Kueue's main demands podset-required-topology too.
    with pytest.raises(RequestError, match="it needs one of") as error:
        parse_request({**beside, K.spreading: text_of()}, K)
    assert (error.value.reason, error.value.field) == (
        Reason.INVALID_REQUEST,
        f"metadata.annotations[{K.spreading}]",
    )


def test_a_job_and_its_template_say_the_same():
    with pytest.raises(RequestError) as error:
        parse_job_request({K.required[0]: RACK, K.spreading: text_of()}, {K.spreading: text_of(selectors=[APP])}, K)
    assert error.value.reason is Reason.CONTRADICTING_REQUESTS


def test_a_level_may_go_by_its_name():
    names = LevelNames.read([("tas", (RACK,), {"rack": RACK})])
    request = parse_request({K.required[0]: "rack", K.spreading: text_of(RULE | {"topologyKey": "rack"})}, K)
    made = with_label_keys(request, names)
    assert (made.level, made.shares.rules[0].level, made.as_written) == (RACK, RACK, request)
