"""What becomes of JobSets on their way into the API server."""

import copy
import json

import msgspec
import pytest
from support.reviews import (
    BLOCK,
    DOMAIN,
    FLAVORS,
    GATE,
    HOST,
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

from crds.constants import GPU_LINK, NUMA_POLICY, Keys
from crds.levels import LevelNames
from webhook.jobsets import mutate_jobset
from webhook.mutate import UNTOUCHED, MutationRules
from webhook.objects import ReviewedJobSet

RULES = MutationRules(Keys(DOMAIN), FLAVORS)


def decode(obj):
    return msgspec.json.decode(msgspec.json.encode(obj), type=ReviewedJobSet)


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


def test_a_wish_for_linked_devices_alone_is_a_request():
    for template in templates(after(make_jobset({GPU_LINK: "require"}))):
        assert template["spec"]["schedulingGates"]
        assert template["metadata"]["annotations"][GPU_LINK] == "require"


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


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({REQUIRE: RACK}, {REQUIRE: BLOCK}),
        ({REQUIRE: RACK, NUMA_POLICY: "restricted"}, {REQUIRE: RACK, NUMA_POLICY: "best-effort"}),
        ({REQUIRE: RACK}, {REQUIRE: BLOCK, NUMA_POLICY: "restricted"}),
    ],
)
def test_a_suspended_one_may_change_its_mind_and_its_templates_follow(was, now):
    """As `kubectl annotate --overwrite` does. JobSet 0.12.0 lets annotations of the pod templates change then."""
    old = make_jobset(was, labels={QUEUE: "team"}, suspend=True)
    templates(old)[0]["metadata"]["annotations"] = {"other": "stays"}
    old = after(old)
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] = now
    made = patched(new, msgspec.to_builtins(decide(new, "UPDATE", old).patch))
    leader, workers = (template["metadata"]["annotations"] for template in templates(made))
    assert leader == {"other": "stays", POD_SET: "leader", **now}
    assert workers == {POD_SET: "workers", **now}
    assert decide(made, "UPDATE", new).patch == (), "a second pass over the result changes nothing"


@pytest.mark.parametrize(
    ("was", "now", "stays"),
    [
        ({REQUIRE: RACK}, {PREFER: RACK}, REQUIRE),
        ({REQUIRE: RACK, NUMA_POLICY: "restricted"}, {REQUIRE: RACK}, NUMA_POLICY),
    ],
)
def test_what_the_jobs_of_a_suspended_one_keep_cannot_be_taken_away(was, now, stays):
    """JobSet 0.12.0 unites annotations when it resumes a Job (``resumeJob``): pods would carry both, and be refused."""
    old = after(make_jobset(was, suspend=True))
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] = now
    message = decide(new, "UPDATE", old).denied.message
    at = f"spec.replicatedJobs[0].template.spec.template.metadata.annotations[{stays}]"
    assert message.startswith(f"{at}: Forbidden: ")
    assert "delete the JobSet and create it again" in message


def test_one_that_is_not_suspended_is_told_to_be_created_again():
    old = after(make_jobset({REQUIRE: RACK}))
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] = {REQUIRE: BLOCK}
    assert decide(new, "UPDATE", old).denied.message == (
        f"metadata.annotations[{REQUIRE}]: Forbidden: it cannot change while the JobSet is not suspended, as pods may "
        "have been created by the old value: delete the JobSet and create it again"
    )


def test_what_the_user_wrote_on_a_template_contradicts_as_before():
    old = after(make_jobset({REQUIRE: RACK}, suspend=True))
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] = {REQUIRE: BLOCK}
    templates(new)[1]["metadata"]["annotations"][REQUIRE] = HOST
    assert "contradicts" in decide(new, "UPDATE", old).denied.message


def test_a_request_that_is_taken_away_counts_on_and_its_author_is_told_once():
    old = after(make_jobset({REQUIRE: RACK}, suspend=True))
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] = {}
    decision = decide(new, "UPDATE", old)
    assert (decision.patch, decision.denied) == ((), None)
    told = [warning for warning in decision.warnings if "still counts" in warning]
    assert len(told) == 1
    assert "delete the JobSet and create it again" in told[0]


def with_template(**annotations):
    return make_jobset({REQUIRE: RACK}, template=make_job(template=annotations)["spec"])


LAYERS = json.dumps([{"topology": RACK, "size": 3}, {"topology": HOST, "size": 1}])


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
                {f"{DOMAIN}/podset-slice-required-topology-constraints": LAYERS},
            ),
            "do not divide into slices of 3",
        ),
        (make_jobset({REQUIRE: RACK}, template={"parallelism": 1}), "spec: Required value"),
    ],
)
def test_what_is_refused(jobset, text):
    decision = decide(jobset)
    assert decision.denied is not None
    assert text in decision.denied.message


# -- numbers --------------------------------------------------------------------------------------------------


def with_replicas(*replicas, parallelism=2, **more):
    jobset = make_jobset({REQUIRE: RACK}, jobs=[f"j{number}" for number in range(len(replicas))])
    for job, count in zip(jobset["spec"]["replicatedJobs"], replicas, strict=True):
        job["replicas"] = count
        job["template"]["spec"] |= {"parallelism": parallelism, "completions": parallelism, **more}
    return jobset


@pytest.mark.parametrize("replicas", [(20_000_000,), (2**30 - 1,), (2**29, 2**29 - 1), (0,), (-5, 3)])
def test_replicas_are_judged_by_arithmetic(replicas):
    assert decide(with_replicas(*replicas)).denied is None


@pytest.mark.parametrize("replicas", [(2**31 - 1,), (2**29, 2**29), (2**30, -(2**30))])
def test_more_pods_than_a_number_holds_are_refused(replicas):
    message = decide(with_replicas(*replicas)).denied.message
    total = 2 * sum(max(count, 0) for count in replicas)
    assert message.startswith(f"spec.replicatedJobs: Too many pods: {total} at once (j0 {2 * replicas[0]}")
    assert message.endswith("at most 2147483647")


def test_the_pods_that_run_at_once_count():
    assert decide(with_replicas(2**31 - 1, parallelism=2**31 - 1, completions=0)).denied is None
    assert decide(with_replicas(2**31 - 1, parallelism=2**31 - 1, completions=1)).denied is None


# -- a queue is compulsory, and stands on the JobSet -------------------------------------------------------------


def test_one_that_asks_and_names_no_queue_is_refused_where_one_is_required():
    strict = MutationRules(Keys(DOMAIN), FLAVORS, require_queue=True)
    asks = make_jobset()
    templates(asks)[1]["metadata"]["annotations"] = {PREFER: RACK}
    for jobset in (asks, make_jobset({REQUIRE: RACK})):
        denied = mutate_jobset(decode(jobset), strict).denied
        assert denied.code == 403
        assert denied.message.startswith(f"metadata.labels[{QUEUE}]: Required value: ")
        jobset["metadata"]["labels"] = {QUEUE: "q"}
        assert mutate_jobset(decode(jobset), strict).denied is None
    assert mutate_jobset(decode(make_jobset()), strict) == UNTOUCHED


@pytest.mark.parametrize(("own", "refused"), [(None, True), ("other", True), ("q", False)])
def test_a_queue_on_a_job_template_is_the_jobsets_or_refused(own, refused):
    jobset = make_jobset(labels={QUEUE: own} if own else None)
    jobset["spec"]["replicatedJobs"][1]["template"]["metadata"] = {"labels": {QUEUE: "q"}}
    decision = decide(jobset)
    assert (decision.denied is not None) == refused
    if refused:
        at = f'spec.replicatedJobs[1].template.metadata.labels[{QUEUE}]: Forbidden: "q"'
        assert decision.denied.message.startswith(at)


def test_a_suspended_one_that_leaves_its_queue_is_told_that_nobody_resumes_it():
    old, new = (make_jobset({REQUIRE: RACK}, labels=labels, suspend=True) for labels in ({QUEUE: "q"}, None))
    decision = decide(new, "UPDATE", old)
    assert decision.warnings[0].startswith(f'metadata.labels[{QUEUE}]: "q" was removed: the JobSet stays suspended')


def test_a_suspended_one_that_loses_a_gate_gets_it_back():
    old = after(make_jobset({REQUIRE: RACK}, suspend=True))
    new = copy.deepcopy(old)
    del templates(new)[1]["spec"]["schedulingGates"]
    made = patched(new, msgspec.to_builtins(decide(new, "UPDATE", old).patch))
    assert made == old


# -- those of others ------------------------------------------------------------------------------------------


def managed(manager, **more):
    jobset = make_jobset({REQUIRE: RACK}, labels={QUEUE: "q"}, **more)
    jobset["spec"]["managedBy"] = manager
    return jobset


def test_one_that_another_controller_manages_is_left_to_it():
    decision = decide(managed("kueue.x-k8s.io/multikueue"))
    assert (decision.patch, decision.denied) == ((), None)
    assert decision.warnings[0].startswith('spec.managedBy: "kueue.x-k8s.io/multikueue": the JobSet is that')
    assert decide(managed("jobset.sigs.k8s.io/jobset-controller")).patch


def test_one_cannot_come_back_from_another_controller():
    message = decide(managed(None), "UPDATE", managed("example.com/x")).denied.message
    assert message.startswith('spec.managedBy: Forbidden: it was "example.com/x"')


def test_jobs_of_one_are_managed_by_nobody_else():
    message = decide(with_replicas(1, managedBy="example.com/x")).denied.message
    assert message.startswith('spec.replicatedJobs[0].template.spec.managedBy: Forbidden: "example.com/x"')
    assert decide(with_replicas(1, managedBy="kubernetes.io/job-controller")).denied is None


def test_levels_by_name_are_stamped_as_they_were_written_into_every_replicated_job():
    names = LevelNames.read([("tas", FLAVORS["tas"], {"shelf": RACK})])
    named = MutationRules(Keys(DOMAIN), FLAVORS, names=names)
    jobset = make_jobset({REQUIRE: "shelf"})
    decision = mutate_jobset(decode(jobset), named, "CREATE", None)
    made = patched(jobset, msgspec.to_builtins(decision.patch))
    assert [template["metadata"]["annotations"][REQUIRE] for template in templates(made)] == ["shelf", "shelf"]
    assert 'Unsupported value: "shelf"' in decide(jobset).denied.message


def test_what_nobody_reads_is_told_of_a_jobset_and_its_templates():
    key = f"{DOMAIN}/wait-for-pods-ready"
    (own,) = decide(make_jobset({REQUIRE: RACK, key: "{}"}, jobs=["a"])).warnings
    assert own.startswith(f"metadata.annotations[{key}] is not supported and has no effect")
    jobset = make_jobset({REQUIRE: RACK}, jobs=["a"])
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"] = {"annotations": {key: "{}"}}
    (below,) = decide(jobset).warnings
    assert below.startswith(
        f"spec.replicatedJobs[0].template.spec.template.metadata.annotations[{key}] is not supported"
    )
