"""What becomes of JobSets on their way into the API server."""

import msgspec
import pytest
from support.reviews import (
    BLOCK,
    DOMAIN,
    FLAVORS,
    GATE,
    POD_SET,
    PREFER,
    QUEUE,
    RACK,
    REQUIRE,
    UNCONSTRAINED,
    make_job,
    make_jobset,
    patched,
)

from crds.constants import NUMA_POLICY, Keys
from webhook.jobsets import mutate_jobset
from webhook.mutate import UNTOUCHED, Rules
from webhook.objects import JobSet

RULES = Rules(Keys(DOMAIN), FLAVORS)


def decode(obj):
    return msgspec.json.decode(msgspec.json.encode(obj), type=JobSet)


def decide(obj, operation="CREATE", old=None):
    return mutate_jobset(decode(obj), RULES, operation, decode(old) if old is not None else None)


def after(obj):
    decision = decide(obj)
    assert decision.denied is None, decision.denied
    made = patched(obj, msgspec.to_builtins(decision.patch))
    assert decide(made).patch == (), "a second pass adds nothing"
    return made


def templates(jobset):
    return [job["template"]["spec"]["template"] for job in jobset["spec"]["replicatedJobs"]]


def test_every_replicated_job_is_gated_as_its_own_pod_set():
    made = after(make_jobset({REQUIRE: RACK, NUMA_POLICY: "restricted"}))
    for name, template in zip(("leader", "workers"), templates(made), strict=True):
        assert template["metadata"]["annotations"] == {REQUIRE: RACK, POD_SET: name, NUMA_POLICY: "restricted"}
        assert template["spec"]["schedulingGates"] == [{"name": GATE}]
    assert "suspend" not in made["spec"]


def test_one_that_asks_has_the_others_go_anywhere():
    jobset = make_jobset()
    templates(jobset)[1]["metadata"]["annotations"] = {PREFER: RACK}
    leader, workers = templates(after(jobset))
    assert leader["metadata"]["annotations"] == {UNCONSTRAINED: "true", POD_SET: "leader"}
    assert workers["metadata"]["annotations"] == {PREFER: RACK, POD_SET: "workers"}


def test_one_with_a_queue_is_born_suspended():
    made = after(make_jobset(labels={QUEUE: "team"}))
    assert made["spec"]["suspend"] is True
    assert all(template["metadata"]["annotations"][UNCONSTRAINED] == "true" for template in templates(made))


def test_others_are_left_alone():
    assert decide(make_jobset()) == UNTOUCHED
    assert decide(make_jobset({"a": "b"})) == UNTOUCHED
    same = make_jobset({REQUIRE: RACK})
    assert decide(same, "UPDATE", same) == UNTOUCHED


def test_a_request_that_comes_late_has_no_effect_unless_suspended():
    late = decide(make_jobset({REQUIRE: RACK}), "UPDATE", make_jobset())
    assert late.patch == ()
    assert "no effect" in late.warnings[0]
    assert decide(make_jobset({REQUIRE: RACK}, suspend=True), "UPDATE", make_jobset(suspend=True)).patch


def with_template(**annotations):
    return make_jobset({REQUIRE: RACK}, template=make_job(template=annotations)["spec"])


@pytest.mark.parametrize(
    ("jobset", "text"),
    [
        (make_jobset({REQUIRE: "shelf"}), "no topology level"),
        (with_template(**{REQUIRE: BLOCK}), "spec.replicatedJobs[0].template.spec.template.metadata.annotations"),
        (with_template(**{POD_SET: "main"}), 'supported values: "leader"'),
        (make_jobset({REQUIRE: RACK}, jobs=[f"j{n}" for n in range(9)]), "at most 8 pod sets"),
        (make_jobset({REQUIRE: RACK, NUMA_POLICY: "tight"}), "Unsupported value"),
        (
            make_jobset(
                {f"{DOMAIN}/podset-slice-required-topology": RACK, f"{DOMAIN}/podset-slice-size": "3"},
            ),
            "no whole number of slices of 3",
        ),
        (make_jobset({REQUIRE: RACK}, template={"parallelism": 1}), "spec: Required value"),
    ],
)
def test_what_is_refused(jobset, text):
    decision = decide(jobset)
    assert decision.denied is not None
    assert text in decision.denied.message
