"""What stands on an owner reaches the pods that it makes: its queue, priority class, time limit, request and wishes."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mutations import GONE, places, put
from support.owners import OWNER_OBJECTS, POINTERS
from support.reviews import (
    BLOCK,
    FLAVORS,
    QUEUE,
    RACK,
    REQUIRE,
    UNCONSTRAINED,
    answer_of,
    make_review,
    patch_of,
    patched,
)

from crds.constants import GPU_LINK, NUMA_POLICY, Keys
from crds.owner_templates import MANAGER, OWNERS
from webhook import large
from webhook.checks import QueueRoute
from webhook.handed_down import decide_owner
from webhook.mutate import MutationRules
from webhook.review import Rulebook, for_owners

KEYS = Keys()
PRIORITY, LONGEST = KEYS.priority_class, KEYS.max_execution
KUEUE_REQUIRED, SIZE, LEVEL = KEYS.required[1], KEYS.slice_size, KEYS.slice_level
RULES = MutationRules(
    KEYS, FLAVORS, {("ns", "q"): QueueRoute("gpu", ("tas",)), ("ns", "r"): QueueRoute("gpu", ("tas",))}
)
QUEUED = [kind for kind in OWNER_OBJECTS if kind != "TrainJob"]
REVIEWER = for_owners()


def make_owner(kind="Deployment", labels=None, annotations=None, *, template=None):
    """``template``: metadata of its first template."""
    owner = copy.deepcopy(OWNER_OBJECTS[kind])
    owner["metadata"] |= {name: one for name, one in (("labels", labels), ("annotations", annotations)) if one}
    if template is not None:
        at(owner, POINTERS[kind][0])["metadata"] = copy.deepcopy(template)
    return owner


def at(owner, pointer):
    for key in pointer.split("/")[1:]:
        owner = owner[int(key)] if isinstance(owner, list) else owner[key]
    return owner


def metadata_of(owner, pointer):
    found = at(owner, pointer)
    return found if owner["kind"] in {"SparkApplication", "TrainJob"} else found.get("metadata", {})


def ask(owner, old=None, rules=RULES):
    """The answer that an API server gets, and the object that it stores."""
    review = make_review(owner, operation="UPDATE" if old is not None else "CREATE", old=old)
    answer = answer_of(REVIEWER.answer(json.dumps(review).encode(), Rulebook(rules)))
    return answer, patched(owner, patch_of(answer)) if answer["allowed"] else None


def stored(owner, old=None, rules=RULES):
    answer, after = ask(owner, old, rules)
    assert answer["allowed"], answer
    return after


def warned(owner, old=None, rules=RULES):
    return ask(owner, old, rules)[0].get("warnings", [])


def denied(owner, old=None, rules=RULES):
    answer, _ = ask(owner, old, rules)
    assert not answer["allowed"]
    return answer["status"]["message"]


# --- what is handed down ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", QUEUED)
def test_a_queue_on_a_kind_reaches_every_template_of_it(kind):
    said = {QUEUE: "q", PRIORITY: "high", LONGEST: "60"}
    wishes = {REQUIRE: RACK, NUMA_POLICY: "restricted"}
    after = stored(make_owner(kind, {**said, "other": "x"}, {**wishes, "other": "x"}))
    for pointer in POINTERS[kind]:
        found = metadata_of(after, pointer)
        assert {key: found["labels"].get(key) for key in said} == said, pointer
        assert found["annotations"] == wishes, pointer
        assert "other" not in found["labels"]
    # What stood there stays.
    before = OWNER_OBJECTS[kind]
    assert after["metadata"] == {
        **before["metadata"],
        "labels": after["metadata"]["labels"],
        "annotations": after["metadata"]["annotations"],
    }
    for pointer in POINTERS[kind]:
        assert (metadata_of(before, pointer).get("labels") or {}).items() <= metadata_of(after, pointer)[
            "labels"
        ].items()


@pytest.mark.parametrize("kind", OWNER_OBJECTS)
def test_a_second_pass_changes_nothing(kind):
    owner = make_owner(kind, {QUEUE: "q", PRIORITY: "high"}, {KUEUE_REQUIRED: BLOCK, SIZE: "2", LEVEL: RACK})
    after = stored(owner)
    assert after != owner
    assert stored(after) == after
    assert stored(after, owner) == after


@pytest.mark.parametrize("kind", OWNER_OBJECTS)
def test_an_owner_that_says_nothing_of_ours_is_left_alone(kind):
    answer, after = ask(make_owner(kind, {"app": "o"}, {"other": "x"}))
    assert after == make_owner(kind, {"app": "o"}, {"other": "x"})
    assert "warnings" not in answer


def test_a_trainjob_says_its_request_in_both_places():
    """Trainer up to 2.1 reads spec.annotations, and 2.2.1 the runtimePatches: each CRD drops the other."""
    after = stored(make_owner("TrainJob", {PRIORITY: "high"}, {REQUIRE: RACK}))
    said = {"labels": {PRIORITY: "high"}, "annotations": {REQUIRE: RACK}}
    assert {name: after["spec"][name] for name in said} == said
    entry = {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"metadata": said}}}
    assert after["spec"]["runtimePatches"] == [entry]
    others = make_owner("TrainJob", {}, {REQUIRE: RACK})
    others["spec"]["runtimePatches"] = [{"manager": "a.b/c"}]
    assert stored(others)["spec"]["runtimePatches"] == [
        {"manager": "a.b/c"},
        {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"metadata": {"annotations": {REQUIRE: RACK}}}}},
    ]
    others["spec"]["runtimePatches"] = [{"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"x": 1}}}}]
    template = stored(others)["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]
    assert template == {"spec": {"x": 1}, "metadata": {"annotations": {REQUIRE: RACK}}}


@pytest.mark.parametrize(
    ("said", "below"), [({REQUIRE: BLOCK, SIZE: "4"}, {LEVEL: RACK}), ({KEYS.group: "g"}, {REQUIRE: RACK})]
)
def test_a_trainjob_is_refused_a_request_that_is_whole_in_one_of_its_two_places_alone(said, below):
    """Stored with a half of it in the other one, its next change would be refused for what we wrote."""
    owner = make_owner("TrainJob", {PRIORITY: "high"}, said)
    owner["spec"]["annotations"] = below
    assert denied(owner).startswith("metadata.annotations[")


def test_a_queue_on_a_trainjob_is_told_to_queue_nothing():
    """Trainer 2.2.1 (jobset plugin, Build) resumes what a queue suspends, so the two would go on for ever."""
    owner = make_owner("TrainJob", {QUEUE: "q"})
    assert stored(owner) == owner
    assert any(f"metadata.labels[{QUEUE}] has no effect on a TrainJob" in text for text in warned(owner))


def test_a_launcher_is_placed_with_its_workers_once_they_have_a_queue():
    """A Job makes it (MPI operator, v2beta1), and the pods of a Job are gated by a request alone."""
    after = stored(make_owner("MPIJob", {QUEUE: "q"}))
    launcher, worker = (metadata_of(after, pointer) for pointer in POINTERS["MPIJob"])
    assert launcher == {"labels": {QUEUE: "q"}, "annotations": {UNCONSTRAINED: "true"}}
    assert worker == {"labels": {QUEUE: "q"}}
    asks = make_owner("MPIJob", {QUEUE: "q"}, {REQUIRE: RACK})
    assert metadata_of(stored(asks), POINTERS["MPIJob"][0])["annotations"] == {REQUIRE: RACK}
    own = make_owner("MPIJob", {QUEUE: "q"}, template={"annotations": {KUEUE_REQUIRED: RACK}})
    assert metadata_of(stored(own), POINTERS["MPIJob"][0])["annotations"] == {KUEUE_REQUIRED: RACK}
    # The request went and the queue stays: the launcher is not left without a gate.
    before = stored(asks)
    left = copy.deepcopy(before)
    left["metadata"]["annotations"] = {}
    assert metadata_of(stored(left, before), POINTERS["MPIJob"][0])["annotations"] == {UNCONSTRAINED: "true"}


def test_a_level_that_the_template_has_in_another_spelling_is_not_added_again():
    owner = make_owner(
        annotations={REQUIRE: RACK}, template={"labels": {"app": "o"}, "annotations": {KUEUE_REQUIRED: RACK}}
    )
    assert stored(owner) == owner


def test_pods_with_neither_queue_nor_request_get_nothing_and_their_author_hears_of_it():
    owner = make_owner(labels={PRIORITY: "high"}, annotations={NUMA_POLICY: "restricted"})
    assert stored(owner) == owner
    texts = warned(owner)
    assert [text.split(" has no effect")[0] for text in texts] == [
        f"metadata.labels[{PRIORITY}]",
        f"metadata.annotations[{NUMA_POLICY}]",
    ]
    linked = stored(make_owner(annotations={GPU_LINK: "require"}))  # which is a request
    assert metadata_of(linked, "/spec/template")["annotations"] == {GPU_LINK: "require"}
    queued = make_owner(labels={PRIORITY: "high"}, template={"labels": {"app": "o", QUEUE: "q"}})
    assert metadata_of(stored(queued), "/spec/template")["labels"] == {"app": "o", QUEUE: "q", PRIORITY: "high"}


# --- the owner and its templates -------------------------------------------------------------------------------------


def test_the_owners_queue_wins_over_its_templates_and_says_so():
    """As in Kueue 0.19.2 (deployment_webhook.go, Default)."""
    owner = make_owner(labels={QUEUE: "q"}, template={"labels": {"app": "o", QUEUE: "r"}})
    assert metadata_of(stored(owner), "/spec/template")["labels"] == {"app": "o", QUEUE: "q"}
    assert warned(owner) == [
        f'spec.template.metadata.labels[{QUEUE}]: "r" is replaced by "q", which the Deployment has'
    ]


def test_contradicting_levels_are_refused():
    owner = make_owner(annotations={REQUIRE: RACK}, template={"annotations": {REQUIRE: BLOCK}})
    both = f'spec.template.metadata.annotations[{REQUIRE}]: "{BLOCK}" contradicts metadata.annotations[{REQUIRE}]'
    assert both in denied(owner)
    wishes = make_owner(
        "LeaderWorkerSet", {QUEUE: "q"}, {NUMA_POLICY: "restricted"}, template={"annotations": {NUMA_POLICY: "none"}}
    )
    assert f"spec.leaderWorkerTemplate.leaderTemplate.metadata.annotations[{NUMA_POLICY}]" in denied(wishes)


@pytest.mark.parametrize(
    ("labels", "annotations", "says"),
    [
        ({QUEUE: "A b"}, {}, f'metadata.labels[{QUEUE}]: Invalid value: "A b": expected the name of a LocalQueue'),
        ({QUEUE: ""}, {}, "expected the name of a LocalQueue"),
        ({}, {REQUIRE: "no.such/level"}, "no topology level"),
        ({}, {REQUIRE: "auto"}, "goes with prefer-topology only"),
        ({QUEUE: "q"}, {NUMA_POLICY: "x"}, 'Unsupported value: "x"'),
        ({QUEUE: "q"}, {SIZE: "2"}, "Required value"),
    ],
)
@pytest.mark.parametrize("kind", ["Deployment", "RayCluster", "AppWrapper", "SparkApplication"])
def test_what_no_pod_could_have_is_refused_once_and_at_the_owner(kind, labels, annotations, says):
    message = denied(make_owner(kind, labels, annotations))
    assert says in message
    assert message.count(says) == 1


def test_what_a_template_says_alone_is_judged_when_its_pods_are_made():
    owner = make_owner(labels={QUEUE: "q"}, template={"labels": {"app": "o"}, "annotations": {REQUIRE: "auto"}})
    assert metadata_of(stored(owner), "/spec/template")["labels"] == {"app": "o", QUEUE: "q"}


def test_a_template_that_names_its_node_is_refused_before_its_pods_are():
    owner = make_owner(labels={QUEUE: "q"})
    owner["spec"]["template"]["spec"]["nodeName"] = "n1"
    assert "spec.template.spec.nodeName: Forbidden" in denied(owner)
    owner["metadata"]["labels"] = {}
    assert stored(owner) == owner


def test_where_a_queue_is_required_owner_and_template_are_looked_at_together():
    strict = MutationRules(KEYS, FLAVORS, RULES.queues, require_queue=True)
    assert f"metadata.labels[{QUEUE}]: Required value" in denied(make_owner(annotations={REQUIRE: RACK}), rules=strict)
    stored(make_owner(labels={QUEUE: "q"}, annotations={REQUIRE: RACK}), rules=strict)
    stored(make_owner(annotations={REQUIRE: RACK}, template={"labels": {"app": "o", QUEUE: "q"}}), rules=strict)


def test_templates_beyond_the_limits_are_refused_where_their_pods_would_be_ours():
    owner = make_owner("RayCluster", {QUEUE: "q"})
    terms = [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["x" * 60] * 2000}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    owner["spec"]["workerGroupSpecs"][1]["template"]["spec"] = {"affinity": affinity, "containers": []}
    told = [problem.message for problem in large.of_templates(owner)]
    assert told
    assert all(text.startswith("spec.workerGroupSpecs[1].template.spec.") for text in told)
    assert denied(owner) == "; ".join(told)
    owner["metadata"]["labels"] = {}
    assert stored(owner) == owner


@pytest.mark.parametrize(("kind", "field"), [("RayCluster", "workerGroupSpecs"), ("AppWrapper", "components")])
def test_more_templates_than_are_looked_at_are_refused_and_none_is_left_outside_of_its_queue(kind, field):
    owner = make_owner(kind, {QUEUE: "q"})
    owner["spec"][field] = [copy.deepcopy(owner["spec"][field][0]) for _ in range(64)]
    assert len([one for one in stored(owner)["spec"][field] if QUEUE in one["template"]["metadata"]["labels"]]) == 64
    owner["spec"][field].append(copy.deepcopy(owner["spec"][field][0]))
    assert f"spec.{field}: Too many: must have at most 64 templates" in denied(owner)
    # One that exists is refused nothing but what it says itself.
    before = make_owner(kind)
    before["spec"][field] = owner["spec"][field]
    assert stored(before) == before
    assert "Too many" in ask(owner, before)[0]["status"]["message"]
    again = copy.deepcopy(owner)
    again["metadata"]["finalizers"] = ["a.example/b"]
    assert stored(again, owner) == again


# --- updates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", QUEUED)
def test_a_queue_that_is_taken_away_goes_from_the_template(kind):
    before = stored(make_owner(kind, {QUEUE: "q", "app": "o"}, {REQUIRE: RACK}))
    now = copy.deepcopy(before)
    now["metadata"]["labels"], now["metadata"]["annotations"] = {"app": "o"}, {}
    after = stored(now, before)
    for pointer in POINTERS[kind]:
        found, first = metadata_of(after, pointer), metadata_of(OWNER_OBJECTS[kind], pointer)
        assert (found.get("labels") or {}, found.get("annotations") or {}) == (first.get("labels") or {}, {})
    assert any(f"metadata.labels[{QUEUE}] was removed" in text for text in warned(now, before))


@pytest.mark.parametrize("kind", QUEUED)
def test_a_queue_and_a_level_that_change_are_followed_by_their_copies(kind):
    before = stored(make_owner(kind, {QUEUE: "q"}, {REQUIRE: RACK}))
    now = copy.deepcopy(before)
    now["metadata"] |= {"labels": {QUEUE: "r"}, "annotations": {KEYS.preferred[1]: BLOCK}}
    after = stored(now, before)
    for pointer in POINTERS[kind]:
        found = metadata_of(after, pointer)
        assert found["labels"][QUEUE] == "r"
        assert found["annotations"] == {KEYS.preferred[0]: BLOCK}
    assert not any("is replaced by" in text for text in warned(now, before)), "it was a copy"
    assert stored(after, now) == after


def test_a_label_that_the_template_had_itself_stays():
    before = stored(make_owner(labels={QUEUE: "q"}, template={"labels": {"app": "o", PRIORITY: "high"}}))
    now = copy.deepcopy(before)
    now["metadata"]["labels"] = {}
    assert metadata_of(stored(now, before), "/spec/template")["labels"] == {"app": "o", PRIORITY: "high"}
    # What its author edits in the same update is the author's own word.
    now["spec"]["template"]["metadata"]["labels"][QUEUE] = "r"
    assert metadata_of(stored(now, before), "/spec/template")["labels"] == {"app": "o", PRIORITY: "high", QUEUE: "r"}
    # Here it is no copy: the owner was made without the webhook, and its author moves the label to the template.
    moved = make_owner(template={"labels": {"app": "o", QUEUE: "q"}})
    assert stored(moved, make_owner(labels={QUEUE: "q"})) == moved


def test_a_template_that_an_update_leaves_alone_is_changed_by_nothing_but_its_owners_labels():
    """A change would replace pods that run: here of a Deployment that was made while the webhook was away."""
    before = make_owner(labels={QUEUE: "q"})
    scaled = copy.deepcopy(before)
    scaled["spec"]["replicas"] = 5
    assert stored(scaled, before) == scaled
    changed = copy.deepcopy(scaled)
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    assert metadata_of(stored(changed, before), "/spec/template")["labels"] == {"app": "o", QUEUE: "q"}
    spark = make_owner("SparkApplication", {QUEUE: "q"})
    larger = copy.deepcopy(spark)
    larger["spec"]["driver"]["cores"] = 2
    after = stored(larger, spark)
    assert [metadata_of(after, pointer).get("labels") for pointer in POINTERS["SparkApplication"]] == [
        {QUEUE: "q"},
        {"app": "o"},
    ]
    train = make_owner("TrainJob", {PRIORITY: "high"}, {REQUIRE: RACK})
    resumed = copy.deepcopy(train)
    resumed["spec"]["suspend"] = False
    assert stored(resumed, train) == resumed, "its spec is no template"
    more = copy.deepcopy(before)
    more["metadata"]["labels"][PRIORITY] = "high"
    after = stored(more, before)
    assert metadata_of(after, "/spec/template")["labels"] == {"app": "o", QUEUE: "q", PRIORITY: "high"}


def test_an_author_who_takes_the_copy_out_of_the_template_finds_it_there_again():
    """As each apply of a manifest that has no label on its template would."""
    before = stored(make_owner(labels={QUEUE: "q"}))
    assert stored(make_owner(labels={QUEUE: "q"}), before) == before


def test_who_changes_an_owner_hears_what_becomes_of_pods_that_run():
    for kind in QUEUED:
        before = make_owner(kind)
        texts = [text for text in warned(make_owner(kind, {QUEUE: "q"}), before) if "the template of the" in text]
        rolls = next(one.rolls for one in OWNERS if one.kind == kind)
        assert len(texts) == 1
        assert ("pods that run are replaced" if rolls else "pods that run keep what they have") in texts[0]
    assert not [text for text in warned(make_owner(labels={QUEUE: "q"})) if "the template of" in text]


def test_an_owner_that_exists_is_refused_a_change_of_what_it_says_and_nothing_else():
    wrong = make_owner(labels={QUEUE: "q"}, annotations={REQUIRE: "no.such/level"})
    later = copy.deepcopy(wrong)
    later["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    assert stored(later, wrong) == later
    assert "no topology level" in denied(later, make_owner(labels={QUEUE: "q"}))


def test_a_template_that_is_changed_to_contradict_its_owner_is_refused():
    before = stored(make_owner(annotations={REQUIRE: RACK}))
    later = copy.deepcopy(before)
    later["spec"]["template"]["metadata"]["annotations"] = {REQUIRE: BLOCK}
    assert "contradicts" in denied(later, before)
    # One that contradicted it before, as the webhook was away, is left as it is until somebody changes what it says.
    later["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    wrong = make_owner(annotations={REQUIRE: RACK}, template={"annotations": {REQUIRE: BLOCK}})
    assert stored(later, wrong) == later


def test_labels_that_are_none_can_be_mended():
    wrong = make_owner("RayCluster", {QUEUE: "q"}, template={"labels": {"a": 5}})
    mended = make_owner("RayCluster", {QUEUE: "q"}, template={"labels": {"a": "5"}})
    assert metadata_of(stored(mended, wrong), POINTERS["RayCluster"][0])["labels"] == {"a": "5", QUEUE: "q"}
    other = copy.deepcopy(wrong)
    other["spec"]["workerGroupSpecs"][0]["replicas"] = 3
    assert stored(other, wrong) == other, "no template changes"


def test_an_owner_that_goes_loses_its_finalizers():
    going = make_owner(labels={QUEUE: "A b"})
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert stored(going, make_owner()) == going


# --- what else is told -----------------------------------------------------------------------------------------------


def test_an_owner_without_a_template_says_that_its_queue_reaches_nobody():
    ray = make_owner("RayJob", {QUEUE: "q"})
    ray["spec"] = {"clusterSelector": {"ray.io/cluster": "r"}}
    assert warned(ray) == [f"metadata.labels[{QUEUE}] has no effect: this RayJob has no pod template"]


@pytest.mark.parametrize(("kind", "path"), [("RayJob", "suspend"), ("PyTorchJob", "runPolicy.suspend")])
def test_an_owner_that_waits_for_a_queue_to_resume_it_is_told_that_none_does(kind, path):
    """Manifests for Kueue may say so: it resumes the owner, and Topogate lets the pods go."""
    owner = make_owner(kind, {QUEUE: "q"})
    owner["spec"] |= {"suspend": True} if path == "suspend" else {"runPolicy": {"suspend": True}}
    assert [text.split(":")[0] for text in warned(owner)] == [f"spec.{path}"]
    owner["metadata"]["labels"] = {}
    assert not warned(owner)


def test_an_appwrapper_is_told_how_long_it_waits_for_its_pods():
    keys = [f"workload.codeflare.dev.appwrapper/{name}GracePeriodDuration" for name in ("admission", "warmup")]
    assert [text.split(":")[0] for text in warned(make_owner("AppWrapper", {QUEUE: "q"}))] == [
        f"metadata.annotations[{key}]" for key in keys
    ]
    assert not warned(make_owner("AppWrapper", {QUEUE: "q"}, dict.fromkeys(keys, "24h")))


def test_a_queue_that_is_not_there_or_a_level_that_cannot_be_checked_yet_is_told():
    missing = "namespace ns has no such LocalQueue: its pods wait behind the gate until it has"
    assert warned(make_owner(labels={QUEUE: "none"})) == [f'metadata.labels[{QUEUE}]: "none": {missing}']
    unknown = MutationRules(KEYS, None)
    texts = warned(make_owner("RayCluster", {QUEUE: "none"}, {REQUIRE: RACK}), rules=unknown)
    assert texts == [
        f"metadata.annotations[{REQUIRE}]: the level was not checked, as the ResourceFlavors could not be read yet"
    ]


# --- bad input -------------------------------------------------------------------------------------------------------

WRONG = [None, 5, -1.5, True, "x", "", [], ["x"], {}, {"a": 5}, {"a": None}, [[[]]], [{"metadata": 5}]]


@pytest.mark.parametrize("kind", OWNER_OBJECTS)
def test_wrong_types_anywhere_are_denied_or_left_and_never_an_error(kind):
    owner = make_owner(kind, {QUEUE: "q"}, {REQUIRE: RACK}, template={"labels": {"a": "b"}, "annotations": {"c": "d"}})
    for place in [one for one in places(owner) if one and one[0] not in {"apiVersion", "kind"}]:
        for wrong in (*WRONG, GONE):
            for old in (None, owner):
                body = put(copy.deepcopy(owner), place, wrong if wrong is GONE else copy.deepcopy(wrong))
                answer, after = ask(body, old)
                assert answer["allowed"] or answer["status"]["code"] in {403, 422}
                if after is not None and old is None:
                    assert ask(after)[1] == after, (place, wrong)


def test_labels_that_are_none_are_named():
    owner = make_owner("RayCluster", {QUEUE: "q"})
    owner["spec"]["workerGroupSpecs"][0]["template"]["metadata"] = {"labels": {"a": 5}}
    assert denied(owner).startswith("spec.workerGroupSpecs[0].template.metadata: Invalid value: expected text")


def test_a_kind_that_is_not_known_is_refused_with_words():
    other = {"apiVersion": "example.com/v1", "kind": "Deployment", "metadata": {"labels": {QUEUE: "q"}}}
    assert 'kind: Unsupported value: "Deployment" of "example.com/v1"' in denied(other)
    reply = REVIEWER.answer(json.dumps(make_review({"kind": "Pod"})).encode(), Rulebook(RULES))
    assert (reply.status, b"only Deployment, StatefulSet" in reply.body) == (400, True)


def test_a_train_job_that_is_applied_again_gets_its_entry_again():
    """`kubectl replace` with the manifest of its author, in which there is no entry of ours."""
    manifest = make_owner("TrainJob", {PRIORITY: "high"}, {})
    stored = stored_or_none(manifest)
    assert stored["spec"]["runtimePatches"]
    assert stored_or_none(manifest, stored) == stored


TEXTS = st.dictionaries(
    st.sampled_from([QUEUE, PRIORITY, LONGEST, "other"]), st.sampled_from(["q", "r", "", "A b", "x" * 70]), max_size=3
)
SAID = st.dictionaries(
    st.sampled_from(
        [REQUIRE, KUEUE_REQUIRED, KEYS.preferred[0], UNCONSTRAINED, SIZE, LEVEL, NUMA_POLICY, GPU_LINK, KEYS.group]
    ),
    st.sampled_from([RACK, BLOCK, "true", "false", "2", "require", "restricted", "auto"]),
    max_size=3,
)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(sorted(OWNER_OBJECTS)),
    owner=st.tuples(TEXTS, SAID),
    old=st.tuples(TEXTS, SAID),
    own=st.tuples(TEXTS, SAID),
)
def test_whatever_owner_and_template_say_pods_never_get_two_minds(kind, owner, old, own):
    """What is stored is stable, and an owner that is let through has templates that agree with it."""
    template = {"labels": dict(own[0]), "annotations": dict(own[1])}
    said = make_owner(kind, *owner, template=template if kind not in {"SparkApplication", "TrainJob"} else None)
    for before in (None, stored_or_none(make_owner(kind, *old)) or make_owner(kind)):
        after = stored_or_none(said, before)
        if after is None:
            continue
        again = decide_owner(after, RULES, "CREATE")
        assert again.denied is None
        assert not again.patch
        if kind != "TrainJob" and QUEUE in owner[0]:
            found = [metadata_of(after, pointer)["labels"][QUEUE] for pointer in POINTERS[kind]]
            assert found == [owner[0][QUEUE]] * len(found)


def stored_or_none(owner, old=None):
    return ask(owner, old)[1]
