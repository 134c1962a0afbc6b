"""Who may hold a job back, as its annotation ``admission-gated-by`` names them. The rules are Kueue's of 0.19.2."""

import copy
import json

import msgspec
import pytest
from support.owners import OWNER_OBJECTS
from support.reviews import FLAVORS, QUEUE, RACK, REQUIRE, make_job, make_jobset, make_pod

from crds.constants import Keys
from crds.owner_templates import OWNERS
from manifests import render
from ungater.reconcile.said import held_by
from webhook.admission_gates import MAX_GATES, bad_change, bad_gates
from webhook.handed_down import decide_owner
from webhook.jobsets import mutate_jobset
from webhook.memo import DecisionMemo
from webhook.mutate import MutationRules, mutate_job, mutate_pod
from webhook.objects import ReviewedJob, ReviewedJobSet, ReviewedPod

KEYS = Keys()
BY = KEYS.gated_by
RULES = MutationRules(KEYS, FLAVORS)


def make_lws(annotations, labels=None):
    owner = copy.deepcopy(OWNER_OBJECTS["LeaderWorkerSet"])
    owner["metadata"] |= {"annotations": annotations, "labels": labels or {}}
    return owner


MADE = {"Job": make_job, "JobSet": make_jobset, "LeaderWorkerSet": make_lws}
SHAPES = {
    "Job": (ReviewedJob, mutate_job),
    "JobSet": (ReviewedJobSet, mutate_jobset),
    "LeaderWorkerSet": (dict, decide_owner),
}
LONG = f"example.com/{'a' * 60}"


def decided(kind, now, before=None, **meta):
    shape, mutate = SHAPES[kind]

    def read(text):
        body = MADE[kind]({REQUIRE: RACK, **({} if text is None else {BY: text})}, labels={QUEUE: "team"})
        body["metadata"] |= meta
        return msgspec.json.decode(json.dumps(body), type=shape)

    if before is None:
        return mutate(read(now), RULES)
    return mutate(read(now), RULES, "UPDATE", read(before or None))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", None),
        ("  ", None),
        ("example.com/budget", None),
        ("example.com/a/b, x.y/c", None),
        ("budget", '"budget": expected names such as "example.com/budget"'),
        ("example.com/", '"example.com/": expected names'),
        ("/budget", '"/budget": expected names'),
        ("Example.com/a", '"Example.com/a": expected names'),
        ("example.com/a b", '"example.com/a b": expected names'),
        ("a.b/c,", '"": expected names'),
        ("a.b/c,a.b/c", '"a.b/c" stands there twice'),
        (LONG, f'"{LONG[:63]}...": a name has at most 63 characters'),
        (",".join(f"a.b/{n}" for n in range(64)), None),
        (",".join(f"a.b/{n}" for n in range(65)), "65 names: expected no more than 64"),
    ],
)
def test_names_have_a_domain_and_stand_there_once(text, wrong):
    found = list(bad_gates(text))
    assert found == [] if wrong is None else found[0].startswith(wrong)
    for kind in MADE:
        denied = decided(kind, text).denied
        assert (denied is None) == (wrong is None)
        if denied is not None:
            assert denied.message.startswith(f"metadata.annotations[{BY}]: Invalid value: {wrong}"), kind
    pod = mutate_pod(msgspec.json.decode(json.dumps(make_pod({REQUIRE: RACK, BY: text})), type=ReviewedPod), RULES)
    assert (pod.denied is None) == (wrong is None)


@pytest.mark.parametrize(
    ("before", "now", "wrong"),
    [
        ("", "a.b/c", "it cannot be added after the creation"),
        ("a.b/c", "a.b/c,a.b/d", '"a.b/d" cannot be added: names can only be removed'),
        ("a.b/c", "a.b/d", '"a.b/d" cannot be added'),
        ("a.b/c,a.b/d", "a.b/d", ""),
        ("a.b/c,a.b/d", "a.b/d, a.b/c", ""),
        ("a.b/c", "", ""),
        ("a.b/c", None, ""),
    ],
)
def test_names_are_removed_later_and_never_added(before, now, wrong):
    assert bad_change(before, now or "").startswith(wrong)
    assert bool(bad_change(before, now or "")) == bool(wrong)
    for kind in MADE:
        denied = decided(kind, now, before).denied
        assert (denied is not None) == bool(wrong), kind
        if denied is not None:
            assert denied.message.startswith(f"metadata.annotations[{BY}]: Forbidden: {wrong}")


@pytest.mark.parametrize("kind", MADE)
def test_one_that_goes_and_one_that_stays_as_it_was_stored_are_not_refused(kind):
    assert decided(kind, "a.b/c", "", deletionTimestamp="2026-11-21T00:00:00Z").denied is None
    assert decided(kind, "nonsense", "nonsense").denied is None, "it was stored while the webhook was away"
    assert decided(kind, None, "nonsense").denied is None, "the way out of it"


def test_the_annotation_on_a_pod_template_is_told_to_have_no_effect():
    body = make_job({REQUIRE: RACK}, template={BY: "a.b/c"})
    (text,) = mutate_job(msgspec.json.decode(json.dumps(body), type=ReviewedJob), RULES).warnings
    assert text == (
        f"spec.template.metadata.annotations[{BY}] has no effect: it is read from the Job itself (metadata.annotations)"
    )


UNHELD = sorted({one.kind for one in OWNERS if not one.held})


@pytest.mark.parametrize("kind", UNHELD)
def test_owners_whose_pods_alone_wait_are_told_that_it_has_no_effect_on_them(kind):
    def owner(text, **labels):
        made = copy.deepcopy(OWNER_OBJECTS[kind])
        made["metadata"] |= {"annotations": {} if text is None else {BY: text}, "labels": labels}
        return made

    for labels in ({}, {QUEUE: "team"}, {KEYS.priority_class: "low"}):
        told = decide_owner(owner("a.b/c", **labels), RULES)
        assert told.denied is None
        assert told.warnings[0] == (
            f"metadata.annotations[{BY}] has no effect on a {kind}: set it on what its pods are made of; each name is "
            "then removed from the pods"
        )
        later = decide_owner(owner("a.b/c", **labels), RULES, "UPDATE", owner(None, **labels))
        assert later.warnings[0] == told.warnings[0]
        same = decide_owner(owner("a.b/c", **labels), RULES, "UPDATE", owner("a.b/c", **labels))
        assert told.warnings[0] not in same.warnings, "said once"
    assert len(UNHELD) + 1 == len({one.kind for one in OWNERS})


def test_on_the_templates_of_a_leaderworkerset_it_is_told_to_have_no_effect():
    owner = make_lws({}, {QUEUE: "team"})
    at = owner["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    at["metadata"] = {"annotations": {BY: "a.b/c"}}
    assert decide_owner(owner, RULES).warnings[-1] == (
        f"spec.leaderWorkerTemplate.workerTemplate.metadata.annotations[{BY}] has no effect: it is read from the "
        "LeaderWorkerSet itself (metadata.annotations)"
    )


def test_the_policy_for_pods_compares_as_many_names_as_the_webhook_takes():
    (policy,) = [
        one
        for one in render.objects()
        if one["kind"] == "ValidatingAdmissionPolicy" and one["metadata"]["name"] == "topogate-pods"
    ]
    (held,) = [one["expression"] for one in policy["spec"]["variables"] if one["name"] == "held"]
    assert held.count(f".split(',', {MAX_GATES + 1})") == held.count("split") == 2


def test_a_remembered_decision_differs_by_the_names():
    memo = DecisionMemo(RULES, lambda decision: decision)
    bodies = [make_job({REQUIRE: RACK, BY: text}) for text in ("a.b/c", "nonsense")]
    good, bad = (memo.on_job(msgspec.json.decode(json.dumps(body), type=ReviewedJob)) for body in bodies)
    assert (good.denied, bad.denied is None) == (None, False)


def test_the_message_names_those_who_hold_back_and_stays_short():
    assert held_by("a.b/c", BY) == (
        f"admission is held back by a.b/c: it removes its name from metadata.annotations[{BY}] once it may start"
    )
    assert held_by("a.b/c,a.b/d,a.b/e,a.b/f", BY).startswith("admission is held back by a.b/c, a.b/d, a.b/e and 1 more")
    assert len(held_by(",".join(["x" * 1000] * 200), BY)) < 400, "anybody writes annotations"
    assert held_by(" ", BY).startswith('admission is held back by "": '), (
        "Kueue holds back by any text but an empty one"
    )
