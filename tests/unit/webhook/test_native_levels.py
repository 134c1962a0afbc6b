"""The level that a Job names in spec.scheduling, beside what its annotations ask for."""

import json

import msgspec
import pytest
from support.reviews import BLOCK, FLAVORS, GATE, PREFER, QUEUE, RACK, REQUIRE, UNCONSTRAINED, make_job

from crds.constants import Keys
from crds.levels import LevelNames
from webhook.checks import QueueRoute
from webhook.memo import DecisionMemo
from webhook.mutate import MutationRules, mutate_job
from webhook.objects import ReviewedJob

RULES = MutationRules(Keys(), FLAVORS, {("ns", "team-a"): QueueRoute("gpu", ("tas",))})
FIELD = "spec.scheduling.schedulingConstraints.topology[0].key"


def scheduling(*levels):
    return {"schedulingConstraints": {"topology": [{"key": level} for level in levels]}} if levels else {}


def read(annotations, *levels, **more):
    body = make_job(annotations, scheduling=scheduling(*levels), namespace="ns", **more)
    return msgspec.json.decode(json.dumps(body), type=ReviewedJob)


@pytest.mark.parametrize("annotations", [{REQUIRE: RACK}, {PREFER: RACK}, {UNCONSTRAINED: "true"}])
def test_the_same_level_or_none_goes_with_it(annotations):
    decision = mutate_job(read(annotations, RACK), RULES)
    assert decision.denied is None
    assert any(GATE in str(one.value) for one in decision.patch)


@pytest.mark.parametrize(("key", "level"), [(REQUIRE, BLOCK), (PREFER, BLOCK), (PREFER, "auto")])
def test_another_level_is_refused_and_both_are_named(key, level):
    told = mutate_job(read({key: level}, RACK), RULES).denied.message
    assert told == f'metadata.annotations[{key}]: "{level}" contradicts {FIELD}: "{RACK}": keep one of the two'


def test_a_level_may_be_asked_for_by_its_name_in_the_annotation():
    rules = MutationRules(Keys(), FLAVORS, names=LevelNames.read([("tas", FLAVORS["tas"], {"rack": RACK})]))
    assert mutate_job(read({REQUIRE: "rack"}, RACK), rules).denied is None
    assert f'"rack" contradicts {FIELD}' in mutate_job(read({REQUIRE: "rack"}, BLOCK), rules).denied.message


def test_a_level_that_no_flavor_has_is_refused():
    told = mutate_job(read({UNCONSTRAINED: "true"}, "made.up/level"), RULES).denied.message
    assert told.startswith(f'{FIELD}: Unsupported value: "made.up/level"')
    told = mutate_job(read(None, "made.up/level", labels={QUEUE: "team-a"}), RULES).denied.message
    assert "of ClusterQueue gpu" in told


def test_it_is_no_request_by_itself():
    assert not mutate_job(read(None, RACK), RULES).patch
    assert mutate_job(read(None, "made.up/level"), RULES).denied is None


def test_what_was_decided_of_a_job_without_it_is_not_taken_for_one_with_it():
    decisions = DecisionMemo(RULES, lambda decision: decision)
    assert decisions.on_job(read({REQUIRE: BLOCK})).denied is None
    assert decisions.on_job(read({REQUIRE: BLOCK}, RACK)).denied is not None
    assert decisions.on_job(read({REQUIRE: BLOCK})).denied is None
