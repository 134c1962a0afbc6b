"""A decision that is kept is the decision that would be made."""

import json
import string

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reviews import (
    BLOCK,
    DOMAIN,
    FLAVORS,
    GATE,
    HOST,
    KUEUE_REQUIRED,
    POD_SET,
    PREFER,
    QUEUE,
    RACK,
    REQUIRE,
    UNCONSTRAINED,
    make_pod,
)

from crds.constants import Keys
from webhook import memo
from webhook.checks import QueueRoute
from webhook.memo import DecisionMemo
from webhook.mutate import MutationRules, mutate_job, mutate_pod
from webhook.objects import ReviewedJob, ReviewedPod

RULES = MutationRules(
    Keys(), FLAVORS, {("a", "q"): QueueRoute("cq", ("tas",)), ("b", "q"): QueueRoute("cq", (), "it is on hold")}
)
STRICT = msgspec.structs.replace(RULES, require_queue=True)
KEPT = [
    DecisionMemo(rules, lambda decision: decision) for rules in (RULES, STRICT)
]  # shared: examples find what others left

OTHERS = (
    f"{DOMAIN}/pod-group-total-count",
    "topogate.dev/gpu-link",
    "topogate.dev/numa-placement-observed",
    "example.com/a",
    "plain",
)
annotations = st.none() | st.dictionaries(
    st.sampled_from((REQUIRE, KUEUE_REQUIRED, PREFER, UNCONSTRAINED, POD_SET, f"{DOMAIN}/requires-topology", *OTHERS)),
    st.sampled_from([BLOCK, RACK, HOST, "auto", "true", "main", "prefer", "x", "4"]),
    max_size=4,
)
names = st.none() | st.sampled_from(["", "default-scheduler", "other"])
gates = st.none() | st.lists(st.sampled_from([GATE, "other.example/gate"]).map(lambda name: {"name": name}), max_size=3)
labels = st.none() | st.sampled_from(["q", "r", ""]).map(lambda name: {QUEUE: name}) | st.just({"a": "b"})
groups = st.sampled_from(["", "ring"]).map(lambda name: {f"{DOMAIN}/pod-group-name": name})
owners = st.none() | st.lists(
    st.fixed_dictionaries(
        {"apiVersion": st.sampled_from(["batch/v1", "made.up/v1"]), "kind": st.sampled_from(["Job", "Ring"])},
        optional={"controller": st.none() | st.booleans()},
    ),
    max_size=2,
)
metadata = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "annotations": annotations,
        "labels": labels | groups,
        "namespace": st.sampled_from(["a", "b"]),
        "ownerReferences": owners,
    },
)
specs = st.none() | st.fixed_dictionaries(
    {}, optional={"nodeName": names, "schedulerName": names, "schedulingGates": gates}
)
pods = st.fixed_dictionaries({}, optional={"metadata": metadata, "spec": specs})
counts = st.none() | st.integers(0, 4)
jobs = st.fixed_dictionaries(
    {},
    optional={
        "metadata": metadata,
        "spec": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "suspend": st.none() | st.booleans(),
                "parallelism": counts,
                "completions": counts,
                "managedBy": st.none() | st.sampled_from(["kubernetes.io/job-controller", "example.com/x"]),
                "template": st.none() | pods,
            },
        ),
    },
)


def decode(value, kind):
    return msgspec.json.decode(json.dumps(value), type=kind)


@settings(max_examples=600)
@given(pods, st.sampled_from([RULES, STRICT]))
def test_of_a_pod(value, rules):
    pod = decode(value, ReviewedPod)
    assert KEPT[rules.require_queue].decide_pod(pod) == mutate_pod(pod, rules)


@settings(max_examples=600)
@given(jobs, st.sampled_from([RULES, STRICT]))
def test_of_a_job(value, rules):
    job = decode(value, ReviewedJob)
    assert KEPT[rules.require_queue].on_job(job) == mutate_job(job, rules)


@given(jobs, jobs)
def test_of_an_update(old, new):
    before, after = decode(old, ReviewedJob), decode(new, ReviewedJob)
    assert KEPT[False].on_job(after, "UPDATE", before) == mutate_job(after, RULES, "UPDATE", before)


def test_pods_that_differ_elsewhere_share_one():
    made = []
    kept = DecisionMemo(RULES, lambda decision: made.append(decision) or decision)
    for number in range(10):
        kept.decide_pod(decode(make_pod({REQUIRE: RACK, "example.com/n": str(number)}, name=f"p{number}"), ReviewedPod))
    assert len(made) == 1


def test_what_is_kept_stays_small(monkeypatch):
    monkeypatch.setattr(memo, "MAX_ENTRIES", 8)
    kept = DecisionMemo(RULES, lambda decision: decision)
    for letter in string.ascii_letters:
        kept.decide_pod(decode(make_pod({REQUIRE: RACK, f"{DOMAIN}/other": letter}), ReviewedPod))
        kept.decide_pod(decode(make_pod({REQUIRE: RACK, f"{DOMAIN}/other": letter * 3000}), ReviewedPod))
        assert len(kept._kept) <= 8
        assert all(len(repr(key)) <= memo.MAX_CHARACTERS for key in kept._kept)
