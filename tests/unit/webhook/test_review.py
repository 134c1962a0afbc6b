import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.owners import OWNER_OBJECTS
from support.reviews import (
    FLAVORS,
    QUEUE,
    RACK,
    REQUIRE,
    answer_of,
    make_job,
    make_jobset,
    make_pod,
    make_review,
    patch_of,
)

from crds.constants import Keys
from webhook import large
from webhook.mutate import MutationRules
from webhook.review import Rulebook, for_jobs, for_jobsets, for_owners, for_pods

RULES = Rulebook(MutationRules(Keys(), FLAVORS))
REVIEWERS = {"Job": for_jobs(), "JobSet": for_jobsets(), "Pod": for_pods(), "Deployment": for_owners()}


def ask(review, kind=None, rules=RULES):
    body = review if isinstance(review, bytes) else json.dumps(review).encode()
    kind = kind or json.loads(body)["request"]["kind"]["kind"]
    return REVIEWERS[kind].answer(body, rules)


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
def test_an_answer_keeps_uid_and_version(version):
    reply = ask({**make_review(make_job({REQUIRE: RACK}), uid='u"1'), "apiVersion": version})
    answer = json.loads(reply.body)
    assert (answer["apiVersion"], answer["kind"]) == (version, "AdmissionReview")
    assert answer["response"]["uid"] == 'u"1'
    assert answer["response"]["allowed"] is True
    assert answer["response"]["patchType"] == "JSONPatch"
    assert patch_of(answer["response"])
    assert reply.verdict == "patched"


def test_an_object_that_needs_nothing_is_allowed_without_a_patch():
    reply = ask(make_review(make_pod()))
    assert answer_of(reply) == {"uid": "0a1b", "allowed": True}
    assert reply.verdict == "allowed"


def test_a_denial_is_a_status_with_code_reason_and_message():
    reply = ask(make_review(make_job({REQUIRE: "cloud.example/row"})))
    response = answer_of(reply)
    assert response["allowed"] is False
    assert response["status"]["code"] == 422
    assert response["status"]["reason"] == "Invalid"
    assert RACK in response["status"]["message"]
    assert "patch" not in response
    forbidden = answer_of(ask(make_review(make_pod({REQUIRE: RACK}, nodeName="n"))))
    assert (forbidden["status"]["code"], forbidden["status"]["reason"]) == (403, "Forbidden")


def test_a_dry_run_is_answered_alike():
    job = make_job({REQUIRE: RACK})
    assert ask(make_review(job)) == ask(make_review(job, dryRun=True))


def test_a_deletion_is_allowed():
    assert answer_of(ask(make_review(None, operation="DELETE"), "Job"))["allowed"] is True


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no AdmissionReview"),
        (b"{", "no AdmissionReview"),
        (b"[]", "expected an object"),
        (b"{}", "apiVersion"),
        (b"\xff\xfe", "no AdmissionReview"),
        (json.dumps({**make_review(make_job()), "apiVersion": "admission.k8s.io/v2"}).encode(), "$.apiVersion"),
        (json.dumps({**make_review(make_job()), "kind": "Review"}).encode(), "$.kind"),
        (json.dumps({**make_review(make_job()), "request": None}).encode(), "$.request"),
        (json.dumps(make_review(make_job(), uid="")).encode(), "request.uid"),
        (json.dumps(make_review(make_job(), uid=7)).encode(), "$.request.uid"),
        (json.dumps(make_review(make_pod())).encode(), "only Job is reviewed"),
        (b'{"x":' * 100_000, "no AdmissionReview"),
        (json.dumps(make_review(make_job())).encode().replace(b'"containers": ', b"[" * 100_000), "no AdmissionReview"),
        (
            json.dumps(make_review(make_job())).encode().replace(b'"containers": ', b'"containers": ' + b"[" * 100_000),
            "nested too deeply",
        ),
    ],
)
def test_what_is_no_review_gets_400_and_the_reason(body, says):
    reply = ask(body, "Job")
    assert reply.status == 400
    assert says in reply.body.decode()
    assert reply.verdict == "malformed"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"metadata": {"annotations": {"a": 1}}}, "metadata.annotations"),
        ({"metadata": 5}, "metadata"),
        ({"spec": {"parallelism": "2"}}, "spec.parallelism"),
        ({"spec": {"template": {"spec": {"schedulingGates": {}}}}}, "spec.template.spec.schedulingGates"),
    ],
)
def test_an_object_with_wrong_types_is_denied_by_path(change, path):
    response = answer_of(ask(make_review({"kind": "Job", **change})))
    assert response["allowed"] is False
    assert response["status"]["code"] == 422
    assert path in response["status"]["message"]
    assert response["uid"] == "0a1b"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def check(reply, uid=None):
    assert reply.status in (200, 400)
    if reply.status == 200:
        response = json.loads(reply.body)["response"]
        assert isinstance(response["allowed"], bool)
        if uid is not None:
            assert response["uid"] == uid
        if not response["allowed"]:
            assert response["status"]["code"] in (422, 403)
            assert response["status"]["message"]
        patch_of(response)


@pytest.mark.parametrize("kind", REVIEWERS)
@given(body=st.binary(max_size=64))
@example(body=b'"\\ud800"')
@example(body=b"NaN")
def test_any_bytes_are_answered(kind, body):
    check(ask(body, kind))


@pytest.mark.parametrize("kind", REVIEWERS)
@given(value=anything)
def test_any_json_is_answered(kind, value):
    check(ask(json.dumps(value).encode(), kind))


def places(value, path=()):
    """Paths of every member of a JSON value."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield (*path, key)
        yield from places(member, (*path, key))


LOOKED_AT = {
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "initContainers": [{"name": "i", "resources": {"limits": {"cpu": 1}}, "ports": [{"hostPort": 80}]}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
            }
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "t", "labelSelector": {"matchLabels": {"a": "b"}}, "namespaces": ["n"]}
            ]
        },
    },
    "topologySpreadConstraints": [{"topologyKey": "t", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["a"]}],
}
VALID = {
    "Job": make_review(
        make_job({REQUIRE: RACK}, template={REQUIRE: RACK, "topogate.dev/gpu-link": "prefer"}, gates=["a"]),
        operation="UPDATE",
        old=make_job({REQUIRE: RACK}),
    ),
    "JobSet": make_review(
        make_jobset({REQUIRE: RACK}, jobs=["a"], template=make_job(managedBy="a", spec=LOOKED_AT)["spec"])
    ),
    "Pod": make_review(make_pod({REQUIRE: RACK}, gates=["a"], schedulerName="s", **LOOKED_AT)),
    "Deployment": make_review(
        {
            **OWNER_OBJECTS["Deployment"],
            "metadata": {"namespace": "ns", "labels": {QUEUE: "q"}, "annotations": {REQUIRE: RACK}},
        }
    ),
}


@pytest.mark.parametrize("least", [0, large.LARGE_BYTES], ids=["as a large one", "as a small one"])
@pytest.mark.parametrize("kind", REVIEWERS)
@settings(max_examples=400)
@given(data=st.data())
def test_a_wrong_value_anywhere_in_a_review_is_answered(kind, least, data):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(large, "LARGE_BYTES", least)
        answer_a_wrong_value(kind, data)


def answer_a_wrong_value(kind, data):
    review = json.loads(json.dumps(VALID[kind]))
    *parents, last = data.draw(st.sampled_from(sorted(places(review), key=str)))
    target = review
    for parent in parents:
        target = target[parent]
    if isinstance(target, dict) and data.draw(st.booleans()):
        del target[last]
    else:
        target[last] = data.draw(anything)
    uid = review["request"].get("uid") if isinstance(review.get("request"), dict) else None
    check(ask(json.dumps(review).encode(), kind), uid if isinstance(uid, str) else None)


@pytest.mark.parametrize("kind", REVIEWERS)
@given(cut=st.floats(0, 1))
def test_a_review_that_is_cut_off_gets_400(kind, cut):
    body = json.dumps(VALID[kind]).encode()
    assert ask(body[: int(len(body) * cut * 0.999)], kind).status == 400


def test_half_a_surrogate_is_answered():
    check(ask(make_review(make_job({REQUIRE: "\ud800"}, spec={"nodeName": "\ud800"}), uid="\ud800"), "Job"))


def test_a_bug_is_a_refusal_and_not_a_crash(monkeypatch, capsys):
    reviewer = for_jobs()
    monkeypatch.setattr(reviewer, "_decide", lambda *_: 1 / 0)
    reply = reviewer.answer(json.dumps(make_review(make_job())).encode(), RULES)
    assert reply.status == 400
    assert "ZeroDivisionError" in capsys.readouterr().out


# -- large objects ----------------------------------------------------------------------------------------------------


def with_resources(count, padding=0):
    names = {f"example.com/r{number}": "1" for number in range(count)}
    container = {"name": "c", "image": "i", "resources": {"limits": names}}
    return {"containers": [container], "volumes": [{"name": "x" * padding}]}


LARGE = {
    "Pod": (lambda asks: make_pod(asks, **with_resources(500)), ""),
    "Job": (lambda asks: make_job(asks, spec=with_resources(500)), "spec.template."),
    "JobSet": (
        lambda asks: make_jobset(asks, template=make_job(spec=with_resources(500))["spec"]),
        "spec.replicatedJobs[1].template.spec.template.",
    ),
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_object_keeps_the_limits_or_is_refused(kind):
    of, path = LARGE[kind]
    response = answer_of(ask(make_review(of({REQUIRE: RACK}))))
    assert response["allowed"] is False
    assert response["status"]["code"] == 422
    assert f"{path}spec.containers: Too many: 500 different resource names" in response["status"]["message"]
    assert answer_of(ask(make_review(of({}))))["allowed"], "it is none of ours"


@pytest.mark.parametrize("kind", LARGE)
def test_an_update_of_a_large_object_is_not_refused_for_what_it_was_before(kind):
    of, _ = LARGE[kind]
    review = make_review(of({REQUIRE: RACK}), operation="UPDATE", old=of({REQUIRE: RACK}))
    assert answer_of(ask(review))["allowed"]


def test_a_large_object_within_the_limits_passes_and_a_small_one_is_not_looked_at():
    fine = make_pod({REQUIRE: RACK}, **with_resources(64, padding=10_000))
    assert answer_of(ask(make_review(fine)))["allowed"]
    small = make_pod({REQUIRE: RACK}, **with_resources(65))
    assert answer_of(ask(make_review(small)))["allowed"], "the controller says so"


@pytest.mark.parametrize("spec", [{"tolerations": 5}, {"tolerations": [None]}, {"affinity": {"nodeAffinity": []}}])
def test_a_large_object_that_cannot_be_read_is_judged_by_others(spec):
    pod = make_pod({REQUIRE: RACK}, **with_resources(500), **spec)
    assert answer_of(ask(make_review(pod)))["allowed"]


def test_many_problems_of_a_large_object_make_a_short_message():
    jobset = make_jobset(
        {REQUIRE: RACK}, jobs=[f"j{n}" for n in range(200)], template=make_job(spec=with_resources(500))["spec"]
    )
    assert len(answer_of(ask(make_review(jobset)))["status"]["message"]) <= 4096
