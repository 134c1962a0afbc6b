import copy
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.reviews import (
    BLOCK,
    DOMAIN,
    FLAVORS,
    GATE,
    HOST,
    KUEUE_PREFERRED,
    KUEUE_REQUIRED,
    POD_SET,
    PREFER,
    QUEUE,
    RACK,
    REQUIRE,
    UNCONSTRAINED,
    WORKLOAD,
    make_job,
    make_pod,
    patched,
)

from crds.constants import EVICT_BY, Keys
from crds.levels import LevelNames
from webhook.checks import QueueRoute
from webhook.mutate import MutationRules, mutate_job, mutate_pod
from webhook.objects import ReviewedJob, ReviewedPod

RULES = MutationRules(Keys(), FLAVORS)
QUEUED = MutationRules(
    Keys(),
    {**FLAVORS, "zoned": ("cloud.example/zone",)},
    {
        ("ns", "team-a"): QueueRoute("gpu", ("tas",)),
        ("ns", "team-b"): QueueRoute("cpu", ("plain",)),
        ("ns", "held"): QueueRoute("gpu", ("tas",), "it is on hold (stopPolicy Hold)"),
        ("ns", "orphan"): QueueRoute("gone", None, "its ClusterQueue gone does not exist"),
    },
)
SPELLINGS = {
    REQUIRE: (REQUIRE, RACK),
    KUEUE_REQUIRED: (REQUIRE, RACK),
    PREFER: (PREFER, RACK),
    KUEUE_PREFERRED: (PREFER, RACK),
    UNCONSTRAINED: (UNCONSTRAINED, "true"),
}


def decode(obj, kind):
    return msgspec.json.decode(json.dumps(obj), type=kind)


def decide_job(job, rules=RULES, operation="CREATE", old=None):
    return mutate_job(decode(job, ReviewedJob), rules, operation, None if old is None else decode(old, ReviewedJob))


def decide_pod(pod, rules=RULES):
    return mutate_pod(decode(pod, ReviewedPod), rules)


def plain(decision):
    assert decision.denied is None, decision.denied
    return json.loads(msgspec.json.encode(decision.patch))


def refusal(decision):
    assert decision.denied is not None
    assert not decision.patch
    return decision.denied.message


@pytest.mark.parametrize("key", SPELLINGS)
@pytest.mark.parametrize("place", ["job", "template"])
def test_every_spelling_in_either_place_is_stamped_in_the_canonical_one(key, place):
    canonical, value = SPELLINGS[key]
    written = {key: value}
    job = make_job(written) if place == "job" else make_job(template=written)
    after = patched(job, plain(decide_job(job)))
    template = after["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        **(written if place == "template" else {}),
        canonical: value,
        POD_SET: "main",
    }
    assert template["spec"]["schedulingGates"] == [{"name": GATE}]
    assert after["metadata"] == job["metadata"]
    assert "suspend" not in after["spec"]


def test_only_what_is_missing_is_added():
    job = make_job({REQUIRE: RACK}, template={REQUIRE: RACK, POD_SET: "main"}, gates=["other.example/gate"])
    assert plain(decide_job(job)) == [
        {"op": "add", "path": "/spec/template/spec/schedulingGates/-", "value": {"name": GATE}}
    ]


def test_pointers_are_escaped():
    job = make_job({REQUIRE: RACK}, template={"a~b/c": "d"}, gates=[GATE])
    paths = [operation["path"] for operation in plain(decide_job(job))]
    assert paths == [
        f"/spec/template/metadata/annotations/{DOMAIN}~1require-topology",
        f"/spec/template/metadata/annotations/{DOMAIN}~1topology-podset",
    ]


def test_missing_parents_are_made():
    job = make_job({REQUIRE: RACK})
    del job["spec"]["template"]["metadata"]
    after = patched(job, plain(decide_job(job)))
    assert after["spec"]["template"]["metadata"]["annotations"][REQUIRE] == RACK


@pytest.mark.parametrize("absent", ["spec", "template", "pod spec"])
def test_a_job_without_a_pod_spec_is_refused_by_path(absent):
    job = make_job({REQUIRE: RACK})
    if absent == "spec":
        del job["spec"]
    elif absent == "template":
        del job["spec"]["template"]
    else:
        del job["spec"]["template"]["spec"]
    assert "spec.template.spec: Required value" in refusal(decide_job(job))


def test_a_queue_suspends():
    job = make_job({REQUIRE: RACK}, labels={QUEUE: "team-a"}, namespace="ns")
    decision = decide_job(job, QUEUED)
    assert patched(job, plain(decision))["spec"]["suspend"] is True
    assert not decision.warnings


@pytest.mark.parametrize("said", [None, {}, {UNCONSTRAINED: "false"}])
def test_a_queued_job_without_a_request_asks_for_any_place(said):
    job = make_job(labels={QUEUE: "team-b"}, template=said, namespace="ns")
    decision = decide_job(job, QUEUED)
    after = patched(job, plain(decision))
    assert after["spec"]["suspend"] is True
    assert after["spec"]["template"]["metadata"]["annotations"] == {UNCONSTRAINED: "true", POD_SET: "main"}
    assert after["spec"]["template"]["spec"]["schedulingGates"] == [{"name": GATE}]
    assert not decision.warnings
    assert plain(decide_job(after, QUEUED)) == []


def test_wishes_of_a_queued_job_without_a_request_count():
    job = make_job({"topogate.dev/numa-policy": "restricted"}, labels={QUEUE: "team-a"}, namespace="ns")
    decision = decide_job(job, QUEUED)
    assert patched(job, plain(decision))["spec"]["template"]["metadata"]["annotations"] == {
        UNCONSTRAINED: "true",
        POD_SET: "main",
        "topogate.dev/numa-policy": "restricted",
    }
    assert not decision.warnings


def test_levels_are_those_of_the_queues_flavors():
    def ask(level, queue, key=REQUIRE):
        return decide_job(make_job({key: level}, labels={QUEUE: queue}, namespace="ns"), QUEUED)

    assert plain(ask(RACK, "team-a"))
    message = refusal(ask("cloud.example/zone", "team-a"))
    assert message == (
        f'metadata.annotations[{REQUIRE}]: Unsupported value: "cloud.example/zone": it is no topology level of any '
        f'ResourceFlavor of ClusterQueue gpu; allowed are "{BLOCK}", "{RACK}", "{HOST}"'
    )
    assert plain(decide_job(make_job({REQUIRE: "cloud.example/zone"}), QUEUED)), "without a queue any flavor will do"
    assert "no ResourceFlavor of ClusterQueue cpu with spec.topology" in refusal(ask(RACK, "team-b"))
    assert "no ResourceFlavor of ClusterQueue cpu with spec.topology" in refusal(ask("auto", "team-b", PREFER))
    assert plain(ask("true", "team-b", UNCONSTRAINED)), "quota alone"
    assert plain(ask("cloud.example/zone", "orphan")), "its cluster queue may be made yet"
    assert "of any ResourceFlavor; allowed" in refusal(ask("cloud.example/row", "nowhere"))


def test_a_level_that_only_some_of_the_queues_flavors_have_is_told():
    queues = {("ns", "team-a"): QueueRoute("gpu", ("tas", "zoned"))}
    rules = MutationRules(Keys(), {**FLAVORS, "zoned": ("cloud.example/zone",), "other": (RACK,)}, queues)
    decision = decide_job(make_job({REQUIRE: RACK}, labels={QUEUE: "team-a"}, namespace="ns"), rules)
    assert [warning for warning in decision.warnings if "of ResourceFlavor tas only, of 2" in warning]


@pytest.mark.parametrize(
    ("queue", "told"),
    [
        ("nowhere", '"nowhere": namespace ns has no such LocalQueue: the Job waits, suspended, until it has'),
        ("orphan", '"orphan": its ClusterQueue gone does not exist: the Job waits, suspended, until that changes'),
        ("held", '"held": it is on hold (stopPolicy Hold): the Job waits, suspended, until that changes'),
    ],
)
def test_a_queue_that_admits_nothing_is_told_and_never_refused(queue, told):
    decision = decide_job(make_job({REQUIRE: RACK}, labels={QUEUE: queue}, namespace="ns"), QUEUED)
    assert plain(decision)
    assert decision.warnings[0] == f"metadata.labels[{QUEUE}]: {told}"


def test_a_queue_of_another_namespace_is_none():
    decision = decide_job(make_job({REQUIRE: RACK}, labels={QUEUE: "team-a"}, namespace="other"), QUEUED)
    assert "namespace other has no such LocalQueue" in decision.warnings[0]


def test_a_name_that_no_queue_can_have_is_refused():
    message = refusal(decide_job(make_job(labels={QUEUE: "Team_A"}, namespace="ns"), QUEUED))
    assert message.startswith(f'metadata.labels[{QUEUE}]: Invalid value: "Team_A": expected the name of a LocalQueue')


def test_before_the_queues_are_known_a_job_is_suspended_and_gated_all_the_same():
    job = make_job(labels={QUEUE: "team-a"}, namespace="ns")
    decision = decide_job(job, MutationRules(Keys(), None))
    after = patched(job, plain(decision))
    assert after["spec"]["suspend"]
    assert after["spec"]["template"]["spec"]["schedulingGates"] == [{"name": GATE}]
    assert "was not checked" in decision.warnings[0]


def queued(queue, **spec):
    return make_job({REQUIRE: RACK}, labels={QUEUE: queue} if queue else {}, namespace="ns", gates=[GATE], **spec)


def test_a_job_that_runs_keeps_its_queue():
    for before, after in (("team-a", "held"), ("team-a", ""), ("", "team-a")):
        message = refusal(decide_job(queued(after), QUEUED, "UPDATE", queued(before)))
        assert f'metadata.labels[{QUEUE}]: Invalid value: "{after}": a Job that is not suspended keeps' in message
        assert f'("{before}")' in message
        for old, new in ((True, False), (False, True)):
            update = decide_job(queued(after, suspend=new), QUEUED, "UPDATE", queued(before, suspend=old))
            assert update.denied, "it cannot change and start, or change and stop, at once"


def test_a_suspended_job_may_change_its_queue():
    old = make_job(namespace="ns", suspend=True)
    new = make_job(labels={QUEUE: "team-b"}, namespace="ns", suspend=True)
    after = patched(new, plain(decide_job(new, QUEUED, "UPDATE", old)))
    assert after["spec"]["template"]["metadata"]["annotations"][UNCONSTRAINED] == "true"
    decision = decide_job(queued("held", suspend=True), QUEUED, "UPDATE", queued("team-a", suspend=True))
    assert decision.denied is None
    assert any("stopPolicy Hold" in warning for warning in decision.warnings)


def test_a_suspended_job_that_leaves_its_queue_is_told_that_nobody_resumes_it():
    decision = decide_job(queued("", suspend=True), QUEUED, "UPDATE", queued("team-a", suspend=True))
    assert decision.warnings[0].startswith(f'metadata.labels[{QUEUE}]: "team-a" was removed: the Job stays suspended')
    bare = make_job(namespace="ns", suspend=True)
    (warning,) = decide_job(bare, QUEUED, "UPDATE", make_job(labels={QUEUE: "team-a"}, suspend=True)).warnings
    assert "set spec.suspend to false" in warning
    assert not decide_job(bare, QUEUED, "UPDATE", make_job({REQUIRE: RACK}, suspend=True)).denied


NUMA = "topogate.dev/numa-policy"


@pytest.mark.parametrize(
    ("was", "now", "stamped"),
    [
        ({REQUIRE: RACK}, {REQUIRE: BLOCK}, {REQUIRE: BLOCK}),
        ({REQUIRE: RACK}, {PREFER: RACK}, {PREFER: RACK}),
        ({KUEUE_REQUIRED: RACK}, {KUEUE_REQUIRED: BLOCK}, {REQUIRE: BLOCK}),
        (
            {REQUIRE: RACK, NUMA: "restricted"},
            {REQUIRE: RACK, NUMA: "best-effort"},
            {REQUIRE: RACK, NUMA: "best-effort"},
        ),
        ({REQUIRE: RACK, NUMA: "restricted"}, {REQUIRE: RACK}, {REQUIRE: RACK}),
    ],
)
def test_a_suspended_job_may_change_its_mind_and_its_template_follows(was, now, stamped):
    """As `kubectl annotate --overwrite` does; what else is on the template stays."""
    old = make_job(was, template={"other": "stays"}, labels={QUEUE: "team-a"}, namespace="ns", suspend=True)
    old = patched(old, plain(decide_job(old, QUEUED)))
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] = now
    decision = decide_job(new, QUEUED, "UPDATE", old)
    after = patched(new, plain(decision))
    assert after["spec"]["template"]["metadata"]["annotations"] == {"other": "stays", POD_SET: "main", **stamped}
    assert decide_job(after, QUEUED, "UPDATE", new).patch == (), "a second pass over the result changes nothing"


def test_a_job_whose_pods_are_made_is_told_to_be_created_again():
    old = make_job({REQUIRE: RACK})
    old = patched(old, plain(decide_job(old)))
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] = {REQUIRE: BLOCK}
    message = refusal(decide_job(new, operation="UPDATE", old=old))
    assert message == (
        f"metadata.annotations[{REQUIRE}]: Forbidden: it cannot change while the Job is not suspended, as pods may "
        "have been created by the old value: delete the Job and create it again"
    )


@pytest.mark.parametrize(
    ("suspend", "remedy"), [(True, f'set metadata.annotations[{UNCONSTRAINED}] to "true"'), (False, "delete the Job")]
)
def test_a_request_that_is_taken_away_counts_on_and_its_author_is_told(suspend, remedy):
    old = make_job({REQUIRE: RACK}, suspend=suspend)
    old = patched(old, plain(decide_job(old)))
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] = {}
    decision = decide_job(new, operation="UPDATE", old=old)
    assert (decision.patch, decision.denied) == ((), None)
    assert decision.warnings[0].startswith(f'metadata.annotations[{REQUIRE}]: "{RACK}" still counts')
    assert remedy in decision.warnings[0]


@pytest.mark.parametrize("asked", [{REQUIRE: BLOCK}, {UNCONSTRAINED: "true"}])
@pytest.mark.parametrize("suspend", [True, False])
def test_whoever_took_a_request_away_may_ask_anew_while_suspended_and_else_is_told_why_not(suspend, asked):
    """Two steps, `kubectl annotate KEY-` and `kubectl annotate KEY=VALUE`: the template has the copy in between."""
    old = make_job({REQUIRE: RACK}, suspend=suspend)
    old = patched(old, plain(decide_job(old)))
    del old["metadata"]["annotations"]
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] = asked
    decision = decide_job(new, operation="UPDATE", old=old)
    if suspend:
        after = patched(new, plain(decision))
        assert after["spec"]["template"]["metadata"]["annotations"] == {POD_SET: "main", **asked}
    else:
        assert "it cannot change while the Job is not suspended" in refusal(decision)


def test_what_the_user_wrote_on_the_template_contradicts_as_before():
    old = make_job({REQUIRE: RACK}, template={REQUIRE: RACK}, suspend=True)
    new = make_job({REQUIRE: BLOCK}, template={REQUIRE: "cloud.example/other"}, suspend=True)
    assert "contradicts" in refusal(decide_job(new, operation="UPDATE", old=old))


def test_an_update_never_suspends_again():
    old = make_job({REQUIRE: RACK}, labels={QUEUE: "team-a"}, suspend=True)
    new = make_job({REQUIRE: BLOCK}, labels={QUEUE: "team-a"}, suspend=False)
    assert not any(op["path"] == "/spec/suspend" for op in plain(decide_job(new, operation="UPDATE", old=old)))


def test_a_job_without_a_request_is_left_alone():
    assert plain(decide_job(make_job(labels={"a": "b"}))) == []
    assert plain(decide_job(make_job({UNCONSTRAINED: "false"}))) == []


def test_auto_stays_auto():
    job = make_job({PREFER: "auto"})
    after = patched(job, plain(decide_job(job)))
    assert after["spec"]["template"]["metadata"]["annotations"][PREFER] == "auto"


def test_another_domain_reads_and_writes_its_own_keys_only():
    rules = MutationRules(Keys("topogate.dev"), FLAVORS)
    assert plain(decide_job(make_job({REQUIRE: RACK}), rules)) == []
    job = make_job({"topogate.dev/require-topology": RACK})
    after = patched(job, plain(decide_job(job, rules)))
    assert after["spec"]["template"]["spec"]["schedulingGates"] == [{"name": "topogate.dev/topology"}]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({REQUIRE: RACK}, {REQUIRE: BLOCK}),
        ({REQUIRE: RACK}, {PREFER: RACK}),
        ({REQUIRE: RACK}, {KUEUE_REQUIRED: BLOCK}),
        ({PREFER: "auto"}, {PREFER: RACK}),
        ({PREFER: RACK}, {UNCONSTRAINED: "true"}),
    ],
)
def test_job_and_template_that_contradict_are_refused_by_both_names(first, second):
    message = refusal(decide_job(make_job(first, template=second)))
    assert f"metadata.annotations[{next(iter(first))}]" in message
    assert f"spec.template.metadata.annotations[{next(iter(second))}]" in message
    assert "contradicts" in message


def test_a_wrong_level_is_refused_with_the_right_ones():
    decision = decide_job(make_job({REQUIRE: "cloud.example/row"}))
    assert decision.denied.code == 422
    for part in (f"metadata.annotations[{REQUIRE}]", '"cloud.example/row"', f'"{BLOCK}"', f'"{RACK}"', f'"{HOST}"'):
        assert part in decision.denied.message
    assert '"auto"' not in decision.denied.message
    assert '"auto"' in refusal(decide_job(make_job({PREFER: "cloud.example/row"})))


def test_without_flavors_one_is_asked_for():
    assert "create one first" in refusal(decide_job(make_job({REQUIRE: RACK}), MutationRules(Keys(), {})))


def test_unknown_flavors_let_it_pass_gated_with_a_warning():
    job = make_job({REQUIRE: "cloud.example/row"})
    decision = decide_job(job, MutationRules(Keys(), None))
    assert patched(job, plain(decision))["spec"]["template"]["spec"]["schedulingGates"] == [{"name": GATE}]
    assert any("not checked" in warning for warning in decision.warnings)


def test_a_node_name_is_forbidden():
    decision = decide_job(make_job({REQUIRE: RACK}, spec={"nodeName": "n1"}))
    assert decision.denied.code == 403
    assert 'spec.template.spec.nodeName: Forbidden: "n1"' in decision.denied.message
    assert "spec.nodeName: Forbidden" in refusal(decide_pod(make_pod({REQUIRE: RACK}, nodeName="n1")))


@pytest.mark.parametrize("key", [WORKLOAD, "topogate.dev/numa-placement-predicted"])
def test_what_topogate_writes_may_not_be_written(key):
    assert key in refusal(decide_job(make_job({REQUIRE: RACK}, template={key: "x"})))
    assert key in refusal(decide_pod(make_pod({REQUIRE: RACK, key: "x"})))


def test_a_job_has_no_other_pod_set():
    assert 'supported values: "main"' in refusal(decide_job(make_job({REQUIRE: RACK}, template={POD_SET: "workers"})))


@pytest.mark.parametrize(
    ("key", "bad", "allowed"),
    [
        ("topogate.dev/numa-policy", "single", '"single-numa-node"'),
        ("topogate.dev/gpu-link", "yes", '"require", "prefer"'),
        ("topogate.dev/topology-qos", "burstable", '"guaranteed", "numa-guaranteed", "best-effort"'),
        ("topogate.dev/preemptible", "no", '"true", "false"'),
        ("topogate.dev/numa-resources", "nvidia.com/gpu,,cpu", '"nvidia.com/gpu,cpu"'),
        ("topogate.dev/numa-resources", "", '"nvidia.com/gpu,cpu"'),
    ],
)
def test_own_annotations_are_checked(key, bad, allowed):
    for message in (
        refusal(decide_job(make_job({REQUIRE: RACK}, template={key: bad}))),
        refusal(decide_pod(make_pod({REQUIRE: RACK, key: bad}))),
    ):
        assert f"[{key}]: " in message
        assert f'"{bad}"' in message
        assert allowed in message


@pytest.mark.parametrize("key", ["topogate.dev/numa-policy", "topogate.dev/gpu-link", "topogate.dev/numa-resources"])
def test_own_annotations_of_the_job_are_checked_in_their_own_place(key):
    message = refusal(decide_job(make_job({REQUIRE: RACK, key: "a,,b"})))
    assert message.startswith(f"metadata.annotations[{key}]: ")
    assert '"a,,b"' in message


OWN = {
    "topogate.dev/numa-policy": "single-numa-node",
    "topogate.dev/numa-resources": "nvidia.com/gpu,cpu",
    "topogate.dev/gpu-link": "require",
    "topogate.dev/topology-qos": "guaranteed",
    "topogate.dev/preemptible": "false",
}


def test_own_annotations_of_the_job_go_into_its_template_once():
    job = make_job({REQUIRE: RACK, **OWN})
    after = patched(job, plain(decide_job(job)))
    stamped = after["spec"]["template"]["metadata"]["annotations"]
    assert {key: stamped[key] for key in OWN} == OWN
    assert plain(decide_job(after)) == []


def test_own_annotations_that_differ_between_job_and_template_are_refused_by_both_names():
    policy = "topogate.dev/numa-policy"
    message = refusal(decide_job(make_job({REQUIRE: RACK, policy: "none"}, template={policy: "restricted"})))
    assert f'metadata.annotations[{policy}]: "none" contradicts' in message
    assert f'spec.template.metadata.annotations[{policy}]: "restricted"' in message
    same = make_job({REQUIRE: RACK, policy: "none"}, template={policy: "none"})
    assert decide_job(same).denied is None


@pytest.mark.parametrize("place", ["job", "template"])
def test_own_annotations_without_a_request_are_left_alone_and_told(place):
    policy = {"topogate.dev/numa-policy": "restricted"}
    job = make_job(policy) if place == "job" else make_job(template=policy)
    decision = decide_job(job)
    assert plain(decision) == []
    (warning,) = decision.warnings
    assert "numa-policy] has no effect without a topology request" in warning
    assert UNCONSTRAINED in warning


@pytest.mark.parametrize("value", ["require", "prefer"])
def test_a_wish_for_linked_devices_alone_is_gated_and_placed_anywhere(value):
    link = {"topogate.dev/gpu-link": value}
    for job in (make_job(link), make_job(template=link)):
        decision = decide_job(job)
        after = patched(job, plain(decision))["spec"]["template"]
        assert after["spec"]["schedulingGates"] == [{"name": GATE}]
        assert after["metadata"]["annotations"] == {**link, UNCONSTRAINED: "true", POD_SET: "main"}
        assert decision.warnings == ()
    pod = make_pod(link)
    assert patched(pod, plain(decide_pod(pod)))["spec"]["schedulingGates"] == [{"name": GATE}]
    declined = make_pod({**link, UNCONSTRAINED: "false"})
    assert plain(decide_pod(declined)) == []
    assert decide_job(make_job({"topogate.dev/gpu-link": "yes"})).denied is not None


def test_a_changed_wish_of_a_suspended_job_is_stamped_and_of_a_running_one_told():
    policy = {"topogate.dev/numa-policy": "restricted"}
    old, new = make_job({REQUIRE: RACK}, suspend=True), make_job({REQUIRE: RACK, **policy}, suspend=True)
    after = patched(new, plain(decide_job(new, operation="UPDATE", old=old)))
    assert after["spec"]["template"]["metadata"]["annotations"]["topogate.dev/numa-policy"] == "restricted"
    running = decide_job(make_job({REQUIRE: RACK, **policy}), operation="UPDATE", old=make_job({REQUIRE: RACK}))
    assert plain(running) == []
    assert any("delete the Job and create it again" in text for text in running.warnings)


def test_own_annotations_that_are_right_pass():
    own = {
        "topogate.dev/numa-policy": "socket",
        "topogate.dev/gpu-link": "prefer",
        "topogate.dev/topology-qos": "best-effort",
        "topogate.dev/numa-resources": "nvidia.com/gpu,cpu,hugepages-2Mi",
    }
    assert decide_job(make_job({REQUIRE: RACK}, template=own)).denied is None


def test_all_problems_are_told_at_once():
    message = refusal(decide_job(make_job({REQUIRE: RACK}, template={WORKLOAD: "w"}, spec={"nodeName": "n"})))
    assert "nodeName" in message
    assert WORKLOAD in message


@pytest.mark.parametrize(
    ("job", "warning"),
    [
        (make_job({REQUIRE: HOST}, parallelism=4), "all 4 pods must fit on a single node"),
        (make_job({REQUIRE: RACK}, parallelism=4, completions=2), "less than parallelism 4"),
        (make_job({REQUIRE: RACK}, spec={"schedulerName": "mine"}), 'schedulerName: "mine"'),
        (make_job({REQUIRE: RACK, f"{DOMAIN}/requires-topology": RACK}), f"did you mean {REQUIRE}?"),
        (
            make_job({REQUIRE: RACK}, template={"topogate.dev/numa-polcy": "none"}),
            "did you mean topogate.dev/numa-policy?",
        ),
        (make_job({REQUIRE: RACK, f"{DOMAIN}/pod-index-offset": "2"}), "is not supported"),
        (make_job({REQUIRE: RACK, f"{DOMAIN}/podset-group-name": "ring"}), "a Job has one pod set"),
        (make_job({REQUIRE: RACK, "topogate.dev/numa-resources": "cpu"}), "no effect without topogate.dev/numa-policy"),
    ],
)
def test_a_person_is_warned(job, warning):
    decision = decide_job(job)
    assert decision.denied is None
    assert [text for text in decision.warnings if warning in text]


def test_a_level_that_only_some_flavors_have_is_told():
    rules = MutationRules(Keys(), {**FLAVORS, "flat": (HOST,)})
    assert any("of ResourceFlavor tas only" in text for text in decide_job(make_job({REQUIRE: RACK}), rules).warnings)
    assert decide_job(make_job({REQUIRE: HOST}, parallelism=1), rules).warnings == ()


def test_a_plain_job_gets_no_warning():
    job = make_job({REQUIRE: RACK, "example.com/requires-topology": "x"}, labels={"app": "a"})
    assert decide_job(job).warnings == ()


def test_warnings_are_few_and_short():
    wrong = {f"{DOMAIN}/require-topolog{'y' * n}": "x" for n in range(2, 60)}
    decision = decide_job(make_job({REQUIRE: RACK, **wrong}, spec={"schedulerName": "s" * 500}))
    assert len(decision.warnings) == 8
    assert all(len(warning) <= 256 for warning in decision.warnings)


def test_a_long_value_gives_a_bounded_message():
    assert len(refusal(decide_job(make_job({REQUIRE: "x" * 200_000})))) <= 4096


def test_updates_that_leave_the_request_alone_pass_untouched():
    stuck = make_job({REQUIRE: "gone.example/level"}, template={REQUIRE: RACK})
    assert plain(decide_job({**stuck, "status": {"active": 1}}, operation="UPDATE", old=stuck)) == []


def test_a_deleted_job_can_always_lose_its_finalizers():
    old, new = make_job({REQUIRE: RACK}), make_job({REQUIRE: "nonsense"})
    new["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    assert plain(decide_job(new, operation="UPDATE", old=old)) == []


def test_an_update_to_a_wrong_level_is_refused():
    old, new = make_job({REQUIRE: RACK}), make_job({REQUIRE: "cloud.example/row"})
    assert "cloud.example/row" in refusal(decide_job(new, operation="UPDATE", old=old))


def test_a_request_added_to_a_running_job_is_told_to_have_no_effect():
    decision = decide_job(make_job({REQUIRE: RACK}), operation="UPDATE", old=make_job())
    assert plain(decision) == []
    assert any("delete the Job and create it again" in text for text in decision.warnings)


def test_a_request_added_to_a_suspended_job_is_stamped():
    old, new = make_job(suspend=True), make_job({REQUIRE: RACK}, suspend=True)
    after = patched(new, plain(decide_job(new, operation="UPDATE", old=old)))
    assert after["spec"]["template"]["spec"]["schedulingGates"] == [{"name": GATE}]


def test_a_bare_pod_gets_gate_and_annotations():
    pod = make_pod({KUEUE_PREFERRED: RACK})
    after = patched(pod, plain(decide_pod(pod)))
    assert after["spec"]["schedulingGates"] == [{"name": GATE}]
    assert after["metadata"]["annotations"] == {KUEUE_PREFERRED: RACK, PREFER: RACK, POD_SET: "main"}


def owned_by(obj, kind, api_version):
    owner = {"apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": True}
    obj["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "v"}, owner]
    return obj


def test_a_pod_of_a_stamped_job_is_left_alone_even_where_the_flavor_is_gone():
    pod = make_pod({REQUIRE: RACK, POD_SET: "main"}, gates=[GATE])
    assert plain(decide_pod(owned_by(pod, "Job", "batch/v1"), MutationRules(Keys(), {}))) == []
    assert "create one first" in refusal(decide_pod(make_pod({REQUIRE: RACK}), MutationRules(Keys(), {})))


@pytest.mark.parametrize("owner", [None, ("Job", "made.up/v1"), ("Job", "batch/v1beta1"), ("StatefulSet", "apps/v1")])
def test_a_pod_that_was_gated_by_another_than_a_job_is_reviewed_like_any(owner):
    pod = make_pod({REQUIRE: RACK, POD_SET: "main"}, gates=[GATE])
    if owner is not None:
        owned_by(pod, *owner)
    assert "create one first" in refusal(decide_pod(pod, MutationRules(Keys(), {})))


def test_a_pod_is_not_touched_by_updates():
    assert plain(mutate_pod(decode(make_pod({REQUIRE: RACK}), ReviewedPod), RULES, "UPDATE")) == []


levels = st.sampled_from([BLOCK, RACK, HOST, "auto", "cloud.example/row", "", "not a key"])
some_annotations = st.dictionaries(
    st.sampled_from([*SPELLINGS, POD_SET, "topogate.dev/gpu-link", "example.com/x~y"]), levels, max_size=3
)


@given(
    some_annotations,
    st.none() | some_annotations,
    st.lists(st.sampled_from([GATE, "other.example/gate"]), max_size=2, unique=True),
    st.booleans(),
)
def test_a_second_pass_changes_nothing(own, below, gates, queued):
    job = make_job(own, template=below, gates=gates, labels={QUEUE: "q"} if queued else None)
    first = decide_job(job)
    if first.denied is not None:
        assert first.denied.code in (422, 403)
        return
    after = patched(job, plain(first))
    assert plain(decide_job(after)) == []
    pod = {"metadata": after["spec"]["template"]["metadata"], "spec": after["spec"]["template"]["spec"]}
    assert plain(decide_pod(pod)) == []
    # What the user wrote is still there.
    assert after["metadata"] == job["metadata"]
    assert (below or {}).items() <= after["spec"]["template"]["metadata"].get("annotations", {}).items()


@given(some_annotations, st.lists(st.sampled_from([GATE, "other.example/gate"]), max_size=2, unique=True))
def test_a_pod_with_a_request_never_goes_on_without_the_gate(annotations, gates):
    pod = make_pod(annotations, gates=gates)
    decision = decide_pod(pod)
    asked = any(key in annotations for key in (REQUIRE, KUEUE_REQUIRED, PREFER, KUEUE_PREFERRED))
    if decision.denied is None and (asked or annotations.get(UNCONSTRAINED) == "true"):
        assert {"name": GATE} in patched(pod, plain(decision))["spec"]["schedulingGates"]


# -- slices ---------------------------------------------------------------------------------------------------

SLICE_LEVEL, SLICE_SIZE = f"{DOMAIN}/podset-slice-required-topology", f"{DOMAIN}/podset-slice-size"
SLICE_LAYERS = f"{DOMAIN}/podset-slice-required-topology-constraints"
SLICED = {REQUIRE: BLOCK, SLICE_LEVEL: RACK, SLICE_SIZE: "4"}
LAYERED = {
    REQUIRE: BLOCK,
    SLICE_LAYERS: json.dumps([{"topology": RACK, "size": 4}, {"topology": HOST, "size": 2}]),
}


def test_slices_of_a_job_go_into_its_template():
    job = make_job(SLICED, parallelism=8)
    decision = decide_job(job)
    assert (decision.denied, decision.warnings) == (None, ())
    template = patched(job, plain(decision))["spec"]["template"]
    assert template["metadata"]["annotations"] == {**SLICED, POD_SET: "main"}
    assert decide_job(patched(job, plain(decision))).patch == ()


def test_slices_alone_are_a_request():
    layers = json.dumps([{"topology": RACK, "size": 4}, {"topology": HOST, "size": 2}])
    job = make_job({SLICE_LAYERS: layers}, parallelism=8)
    template = patched(job, plain(decide_job(job)))["spec"]["template"]
    assert template["metadata"]["annotations"][UNCONSTRAINED] == "true"
    assert template["spec"]["schedulingGates"] == [{"name": GATE}]
    pod = make_pod({SLICE_LEVEL: RACK, SLICE_SIZE: "4"})
    assert patched(pod, plain(decide_pod(pod)))["spec"]["schedulingGates"] == [{"name": GATE}]


@pytest.mark.parametrize(
    ("job", "texts"),
    [
        (make_job(LAYERED, parallelism=10), ["spec.parallelism: Invalid value: 10: 10 pods", "8 or 12", SLICE_LAYERS]),
        (make_job(LAYERED, parallelism=8, completions=6), ["spec.completions: Invalid value: 6: 6 pods"]),
        (make_job({REQUIRE: BLOCK, SLICE_LEVEL: RACK}, parallelism=4), [f"[{SLICE_SIZE}]: Required value"]),
        (make_job({**SLICED, SLICE_LEVEL: "row"}, parallelism=8), ['"row": it is no topology level', RACK]),
        (make_job({**SLICED, REQUIRE: HOST}, parallelism=8), ["do not go from the widest to the narrowest"]),
        (make_job(SLICED, template={SLICE_SIZE: "2"}, parallelism=8), ['"2" contradicts metadata.annotations']),
    ],
)
def test_slices_that_cannot_be_are_refused(job, texts):
    message = refusal(decide_job(job))
    for text in texts:
        assert text in message


def test_a_job_of_several_layers_is_scaled_by_whole_slices():
    old, more, uneven = (make_job(LAYERED, parallelism=count) for count in (8, 12, 10))
    assert decide_job(more, operation="UPDATE", old=old).denied is None
    assert "10 pods do not divide into slices" in refusal(decide_job(uneven, operation="UPDATE", old=old))
    assert decide_job(uneven, operation="UPDATE", old=uneven).denied is None  # its status or finalizers


def test_the_last_slice_may_be_a_part_of_one():
    # Kueue 0.20 places it (PR 15640); 0.19.2 admits the Job and leaves the last pods behind their gate (issue 15277).
    for count in (3, 10):
        assert decide_job(make_job(SLICED, parallelism=count)).denied is None
    ten = make_job(SLICED, parallelism=10)
    assert decide_job(ten, operation="UPDATE", old=make_job(SLICED, parallelism=8)).denied is None
    # Of 30 ranks, ten at a time, the last slice of each moment would be another one.
    ten["spec"]["completions"] = 30
    text = "10 pods at once, of 30, do not divide into slices of 4; 8 or 12 would"
    assert f"spec.parallelism: Invalid value: 10: {text}" in refusal(decide_job(ten))
    ten["spec"]["completions"] = 10
    assert decide_job(ten).denied is None
    by_slice = make_job({**SLICED, EVICT_BY: "slice"}, parallelism=10)
    assert "so they are evicted together" in decide_job(by_slice).warnings[0]
    assert decide_job(make_job({**SLICED, EVICT_BY: "slice"}, parallelism=8)).warnings == ()
    plain = {REQUIRE: BLOCK}
    assert decide_job(make_job(plain, parallelism=7), operation="UPDATE", old=make_job(plain)).denied is None


# -- pods that no Job owns ------------------------------------------------------------------------------------


def test_a_pod_of_a_group_gets_gate_and_annotations():
    total = f"{DOMAIN}/pod-group-total-count"
    pod = make_pod({REQUIRE: RACK, total: "4"})
    pod["metadata"]["labels"] = {f"{DOMAIN}/pod-group-name": "ring"}
    again = patched(pod, plain(decide_pod(pod)))
    assert again["spec"]["schedulingGates"] == [{"name": GATE}]
    assert again["metadata"]["annotations"] == {REQUIRE: RACK, total: "4", POD_SET: "main"}
    assert plain(decide_pod(again)) == []


def test_a_pod_with_a_queue_waits_behind_the_gate():
    pod = make_pod()
    pod["metadata"]["labels"] = {QUEUE: "team-a"}
    again = patched(pod, plain(decide_pod(pod)))
    assert again["spec"]["schedulingGates"] == [{"name": GATE}]
    assert again["metadata"]["annotations"] == {UNCONSTRAINED: "true", POD_SET: "main"}
    assert plain(decide_pod(again)) == []


def test_what_a_pod_without_a_job_cannot_ask_for():
    pod = make_pod({REQUIRE: RACK, f"{DOMAIN}/pod-group-total-count": "many"})
    pod["metadata"]["labels"] = {QUEUE: "Team A"}
    message = refusal(decide_pod(pod))
    assert 'queue-name]: Invalid value: "Team A": expected the name of a LocalQueue' in message
    assert 'pod-group-total-count]: Invalid value: "many": expected a whole number above 0' in message
    pod["spec"]["schedulingGates"] = [{"name": GATE}]
    assert refusal(decide_pod(pod)) == message, "it says itself that it is gated"
    assert decide_pod(owned_by(pod, "Job", "batch/v1")).denied is None, "its Job was reviewed"


# -- gates that are taken away --------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"labels": {QUEUE: "team-a"}}])
def test_a_suspended_job_that_loses_its_gate_gets_it_back(more):
    stamped = {REQUIRE: RACK, POD_SET: "main"}
    old = make_job({REQUIRE: RACK}, template=stamped, gates=[GATE], suspend=True, **more)
    new = make_job({REQUIRE: RACK}, template=stamped, gates=[], suspend=True, **more)
    after = patched(new, plain(decide_job(new, operation="UPDATE", old=old)))
    assert after["spec"]["template"]["spec"]["schedulingGates"] == [{"name": GATE}]


def test_a_job_that_gives_up_request_and_gate_together_is_a_plain_one():
    old = make_job({REQUIRE: RACK}, template={REQUIRE: RACK, POD_SET: "main"}, gates=[GATE], suspend=True)
    assert plain(decide_job(make_job(suspend=True), operation="UPDATE", old=old)) == []


# -- a queue is compulsory ------------------------------------------------------------------------------------

STRICT = MutationRules(Keys(), FLAVORS, require_queue=True)


@pytest.mark.parametrize(
    "job", [make_job({REQUIRE: RACK}), make_job(template={UNCONSTRAINED: "true"}), make_job({REQUIRE: RACK}, labels={})]
)
def test_a_job_that_asks_and_names_no_queue_is_refused_where_one_is_required(job):
    decision = decide_job(job, STRICT)
    assert decision.denied.code == 403
    assert decision.denied.message.startswith(
        f"metadata.labels[{QUEUE}]: Required value: this cluster places nothing without"
    )
    assert "requireQueue" in decision.denied.message
    assert decide_job(job).denied is None
    assert decide_job({**job, "metadata": {**job["metadata"], "labels": {QUEUE: "q"}}}, STRICT).denied is None


def test_where_a_queue_is_required_jobs_that_ask_for_nothing_pass():
    for job in (make_job(), make_job({UNCONSTRAINED: "false"}), make_job({"topogate.dev/numa-policy": "restricted"})):
        assert plain(decide_job(job, STRICT)) == []


def test_where_a_queue_is_required_a_job_cannot_lose_its_own():
    old = make_job({REQUIRE: RACK}, labels={QUEUE: "q"}, gates=[GATE], suspend=True)
    new = make_job({REQUIRE: RACK}, gates=[GATE], suspend=True)
    assert "requireQueue" in refusal(decide_job(new, STRICT, "UPDATE", old))
    older = make_job({REQUIRE: RACK})  # from before it was required
    assert plain(decide_job({**older, "status": {"active": 1}}, STRICT, "UPDATE", older)) == []


@pytest.mark.parametrize("gates", [[], [GATE]])
@pytest.mark.parametrize("owner", [None, ("StatefulSet", "apps/v1"), ("Job", "made.up/v1")])
def test_a_pod_that_asks_and_names_no_queue_is_refused_where_one_is_required(gates, owner):
    pod = make_pod({REQUIRE: RACK}, gates=gates)
    if owner is not None:
        owned_by(pod, *owner)
    decision = decide_pod(pod, STRICT)
    assert decision.denied.code == 403
    assert f"metadata.labels[{QUEUE}]: Required value" in decision.denied.message
    pod["metadata"]["labels"] = {QUEUE: "q"}
    assert decide_pod(pod, STRICT).denied is None


@pytest.mark.parametrize("gates", [[], [GATE]])
def test_pods_of_a_job_need_no_queue_of_their_own(gates):
    pod = owned_by(make_pod({REQUIRE: RACK, POD_SET: "main"}, gates=gates), "Job", "batch/v1")
    assert {"name": GATE} in patched(pod, plain(decide_pod(pod, STRICT)))["spec"]["schedulingGates"]


# -- those of others ------------------------------------------------------------------------------------------


def test_a_job_that_another_controller_manages_is_left_to_it():
    job = make_job({REQUIRE: "no level"}, labels={QUEUE: "team-a"}, managedBy="example.com/other")
    decision = decide_job(job, STRICT)
    assert (plain(decision), len(decision.warnings)) == ([], 1)
    assert decision.warnings[0].startswith('spec.managedBy: "example.com/other": the Job is that controller')
    assert plain(decide_job(job, operation="UPDATE", old=make_job())) == []
    own = make_job({REQUIRE: RACK}, managedBy="kubernetes.io/job-controller")
    assert patched(own, plain(decide_job(own)))["spec"]["template"]["spec"]["schedulingGates"] == [{"name": GATE}]


def test_a_total_on_a_pod_that_belongs_to_nothing_is_told_to_mean_nothing():
    total = f"{DOMAIN}/pod-group-total-count"

    def told(pod):
        return [text for text in decide_pod(pod).warnings if f"metadata.annotations[{total}] has no effect" in text]

    lone = make_pod({REQUIRE: RACK, total: "16"})
    assert told(lone)
    lone["metadata"]["labels"] = {f"{DOMAIN}/pod-group-name": ""}
    assert told(lone), "a group without a name is none"
    lone["metadata"]["labels"] = {f"{DOMAIN}/pod-group-name": "ring"}
    assert not told(lone)
    assert not told(owned_by(make_pod({REQUIRE: RACK, total: "16"}), "PyTorchJob", "kubeflow.org/v1"))


NAMED = MutationRules(Keys(), FLAVORS, names=LevelNames.read([("tas", FLAVORS["tas"], {"rack": RACK, "node": HOST})]))


def test_a_level_by_its_name_is_stamped_as_it_was_written():
    decision = decide_job(make_job({REQUIRE: "rack"}), NAMED)
    stamped = patched(make_job({REQUIRE: "rack"}), plain(decision))
    assert stamped["spec"]["template"]["metadata"]["annotations"][REQUIRE] == "rack"
    assert decide_job(stamped, NAMED).patch == ()
    assert decide_pod(make_pod({REQUIRE: "rack"}), NAMED).denied is None


def test_a_name_that_two_pools_give_to_different_levels_means_that_of_the_queues_pool():
    flavors = {**FLAVORS, "eks": ("layer-3", HOST)}
    names = LevelNames.read([("tas", FLAVORS["tas"], {"rack": RACK}), ("eks", flavors["eks"], {"rack": "layer-3"})])
    queues = {("ns", "one"): QueueRoute("one", ("tas",)), ("ns", "both"): QueueRoute("both", ("tas", "eks"))}
    rules = MutationRules(Keys(), flavors, queues, names=names)
    for make, decide in ((make_job, decide_job), (make_pod, decide_pod)):

        def submitted(queue, make=make):
            made = make({REQUIRE: "rack"})
            made["metadata"] |= {"namespace": "ns", "labels": {QUEUE: queue} if queue else {}}
            return made

        assert decide(submitted("one"), rules).denied is None
        for queue in ("both", ""):
            assert "flavors give this name to different levels" in refusal(decide(submitted(queue), rules))


def test_a_name_that_no_flavor_gives_is_refused_with_the_names_that_there_are():
    for text in (
        refusal(decide_job(make_job({REQUIRE: "row"}), NAMED)),
        refusal(decide_pod(make_pod({REQUIRE: "row"}), NAMED)),
    ):
        assert 'Unsupported value: "row"' in text
        assert f'"{RACK}" ("rack")' in text


def test_what_is_warned_of_a_level_is_warned_of_its_name():
    warnings = decide_job(make_job({REQUIRE: "node"}, parallelism=4), NAMED).warnings
    assert any("must fit on a single node" in text for text in warnings)


def test_a_group_that_an_annotation_names_is_known_and_has_the_name_of_an_object():
    keys = Keys()
    named = {REQUIRE: RACK, keys.pod_group: "ring.a", keys.pod_group_total: "2"}
    assert decide_pod(make_pod(named)).warnings == ()
    assert keys.pod_group in decide_pod(make_pod({REQUIRE: RACK, keys.pod_group_total: "2"})).warnings[0]
    for name in ("a/b", "Ring", "x" * 254):
        text = refusal(decide_pod(make_pod({**named, keys.pod_group: name})))
        assert text.startswith(
            f'metadata.annotations[{keys.pod_group}]: Invalid value: "{name[:253]}": expected the name'
        )


@pytest.mark.parametrize("key", ["wait-for-pods-ready", "pods-ready-timeout"])
def test_what_kueue_may_read_and_nobody_reads_here_is_told(key):
    said = {REQUIRE: RACK, f"{DOMAIN}/{key}": "{}"}
    (text,) = decide_job(make_job(said)).warnings
    assert text.startswith(f"metadata.annotations[{DOMAIN}/{key}] is not supported and has no effect: ")
    (text,) = decide_job(make_job({REQUIRE: RACK}, template={f"{DOMAIN}/{key}": "{}"})).warnings
    assert text.startswith(f"spec.template.metadata.annotations[{DOMAIN}/{key}] is not supported")
    assert len(decide_pod(make_pod(said)).warnings) == 1


SPREADING = f"{DOMAIN}/podset-topology-spreading"
HALF = f'{{"rules":[{{"topologyKey":"{RACK}","maxShareAllowingPlacement":"0.5"}}]}}'


def test_shares_of_domains_go_into_the_pod_template():
    job = make_job({REQUIRE: RACK, SPREADING: HALF})
    made = patched(job, plain(decide_job(job)))
    assert made["spec"]["template"]["metadata"]["annotations"][SPREADING] == HALF


def test_shares_that_are_none_are_refused_where_they_are_written():
    for decided in (
        decide_job(make_job({REQUIRE: RACK, SPREADING: "{}"})),
        decide_job(make_job({REQUIRE: RACK}, template={SPREADING: "{}"})),
        decide_pod(make_pod({REQUIRE: RACK, SPREADING: "{}"})),
    ):
        assert f"metadata.annotations[{SPREADING}].rules: Required value: expected a list of 1 to 2" in refusal(decided)
    assert "it needs one of" in refusal(decide_job(make_job({SPREADING: HALF})))
