"""What the webhook refuses, and what it warns of. Several sentences of one object are joined by "; "."""

import json

import msgspec
from support.owners import OWNER_OBJECTS
from support.reviews import (
    BLOCK,
    DOMAIN,
    FLAVORS,
    HOST,
    POD_SET,
    PREFER,
    QUEUE,
    RACK,
    REQUIRE,
    UNCONSTRAINED,
    WORKLOAD,
    make_job,
    make_jobset,
    make_pod,
    make_review,
    patched,
)
from support.sentences.golden import Golden

from crds.constants import EVICT_BY, NUMA_POLICY, NUMA_RESOURCES, Keys
from crds.levels import LevelNames
from webhook import large
from webhook.checks import QueueRoute
from webhook.handed_down import decide_owner
from webhook.jobsets import mutate_jobset
from webhook.mutate import MutationRules, mutate_job, mutate_pod
from webhook.objects import ReviewedJob, ReviewedJobSet, ReviewedPod
from webhook.review import UNFORESEEN, Rulebook, for_jobs
from webhook.settings import ConfigMap, judged

GOLDEN = Golden("refusals")
case = GOLDEN.case
KEYS = Keys(DOMAIN)
QUEUES = {
    ("ns", "team"): QueueRoute("gpu", ("tas",)),
    ("ns", "held"): QueueRoute("gpu", ("tas",), "it is on hold (stopPolicy Hold)"),
    ("ns", "orphan"): QueueRoute("gone", None, "its ClusterQueue gone does not exist"),
}
RULES = MutationRules(KEYS, FLAVORS, QUEUES)
SLICE_LEVEL, SLICE_SIZE = f"{DOMAIN}/podset-slice-required-topology", f"{DOMAIN}/podset-slice-size"
LAYERS, GROUP = f"{DOMAIN}/podset-slice-required-topology-constraints", f"{DOMAIN}/podset-group-name"
TWO_LAYERS = json.dumps([{"topology": RACK, "size": 4}, {"topology": HOST, "size": 2}])
TOTAL, POD_GROUP = KEYS.pod_group_total, KEYS.pod_group
_KINDS = {"Job": (ReviewedJob, mutate_job), "JobSet": (ReviewedJobSet, mutate_jobset), "Pod": (ReviewedPod, mutate_pod)}


def decided(body, *, old=None, rules=RULES):
    kind, mutate = _KINDS[body["kind"]]
    bodies = [None if one is None else msgspec.json.decode(json.dumps(one), type=kind) for one in (body, old)]
    return mutate(bodies[0], rules, "UPDATE" if old is not None else "CREATE", bodies[1])


def owner_of(kind="Deployment", labels=None, annotations=None, *, template=None, spec=None):
    """An owner that makes pods of a template. ``template``: labels of it; ``spec``: more of the owner's spec."""
    owner = json.loads(json.dumps(OWNER_OBJECTS[kind]))
    owner["metadata"] |= {"labels": labels or {}, "annotations": annotations or {}}
    owner["spec"] |= spec or {}
    if template is not None:
        owner["spec"]["template"]["metadata"]["labels"] = template
    return owner


def decided_owner(body, old=None):
    return decide_owner(body, RULES, "UPDATE" if old is not None else "CREATE", old)


def owner_warned(body, old=None):
    found = decided_owner(body, old)
    assert found.denied is None, found.denied
    return found.warnings[-1]


def refused(body, **more):
    found = decided(body, **more).denied
    assert found is not None
    return found.message


def warned(body, **more):
    found = decided(body, **more)
    assert found.denied is None, found.denied
    (text,) = found.warnings
    return text


def stamped(body):
    """As it is stored."""
    return patched(body, msgspec.to_builtins(decided(body).patch))


def changed(body, annotations):
    """What it becomes if its annotations are these."""
    return {**body, "metadata": {**body["metadata"], "annotations": annotations}}


def _completions(count):
    return {"spec": {**make_job({REQUIRE: RACK}, parallelism=4)["spec"], "completions": count}}


# Each row: the name of a case, and what makes the object.
def refusals(rows):
    for name, make, *more in rows:
        GOLDEN.add(name, lambda make=make, more=more: refused(make(), **(more[0] if more else {})))


def warnings(rows):
    for name, make, *more in rows:
        GOLDEN.add(name, lambda make=make, more=more: warned(make(), **(more[0] if more else {})))


GOLDEN.section("a level")
TWO_NAMES = LevelNames.read([("tas", FLAVORS["tas"], {"rack": RACK}), ("b", ("other/rack",), {"rack": "other/rack"})])
refusals(
    [
        ("a level that no flavor has", lambda: make_job({REQUIRE: "shelf"})),
        (
            "a level that the flavors of the queue lack",
            lambda: make_job({PREFER: "x/y"}, labels={QUEUE: "team"}, namespace="ns"),
        ),
        ("a level before there is any flavor", lambda: make_job({REQUIRE: RACK}), {"rules": MutationRules(KEYS, {})}),
        (
            "a name that flavors give to different levels",
            lambda: make_job({REQUIRE: "rack"}),
            {"rules": MutationRules(KEYS, {**FLAVORS, "b": ("other/rack",)}, names=TWO_NAMES)},
        ),
        ("no key of a label", lambda: make_job({REQUIRE: "a b"})),
        ("the narrowest level, required", lambda: make_job({REQUIRE: "auto"})),
        ("neither true nor false", lambda: make_job({UNCONSTRAINED: "yes"})),
        ("two levels", lambda: make_job({REQUIRE: RACK, PREFER: BLOCK})),
        (
            "a level on the Job and another on its template",
            lambda: make_job({REQUIRE: RACK}, template={REQUIRE: BLOCK}),
        ),
        (
            "a level in spec.scheduling and another",
            lambda: make_job({REQUIRE: RACK}, scheduling={"schedulingConstraints": {"topology": [{"key": BLOCK}]}}),
        ),
    ]
)

GOLDEN.section("slices and groups")
refusals(
    [
        ("slices within slices that do not divide the pods", lambda: make_job({LAYERS: TWO_LAYERS}, parallelism=6)),
        (
            "slices that do not divide the pods at once",
            lambda: make_job({SLICE_LEVEL: RACK, SLICE_SIZE: "3"}, parallelism=4) | _completions(8),
        ),
        ("slices without a size", lambda: make_job({SLICE_LEVEL: RACK})),
        ("slices of no whole number", lambda: make_job({SLICE_LEVEL: RACK, SLICE_SIZE: "two"})),
        ("slices in no level", lambda: make_job({SLICE_LEVEL: "a b", SLICE_SIZE: "2"})),
        (
            "slices in a level that no flavor has",
            lambda: make_job({REQUIRE: BLOCK, SLICE_LEVEL: "x/y", SLICE_SIZE: "2"}),
        ),
        ("slices in a level above the request", lambda: make_job({REQUIRE: RACK, SLICE_LEVEL: BLOCK, SLICE_SIZE: "2"})),
        ("slices that are said twice", lambda: make_job({LAYERS: "[]", SLICE_SIZE: "2"})),
        ("layers that are no JSON", lambda: make_job({LAYERS: "x"})),
        ("layers of one level", lambda: make_job({LAYERS: json.dumps([{"topology": RACK, "size": 2}] * 2)})),
        (
            "layers that do not divide",
            lambda: make_job({LAYERS: json.dumps([{"topology": RACK, "size": 4}, {"topology": HOST, "size": 3}])}),
        ),
        ("a layer without a level", lambda: make_job({LAYERS: json.dumps([{"size": 2}])})),
        ("a layer without a size", lambda: make_job({LAYERS: json.dumps([{"topology": RACK}])})),
        ("a group without a level", lambda: make_job({GROUP: "g"})),
        ("a group of no name", lambda: make_job({REQUIRE: RACK, GROUP: "1"})),
        (
            "slices that say one thing twice differently",
            lambda: make_job({SLICE_LEVEL: RACK, SLICE_SIZE: "2"}, template={SLICE_SIZE: "1"}),
        ),
    ]
)

GOLDEN.section("wishes for the inside of nodes")
refusals(
    [
        ("a policy that is none", lambda: make_job({REQUIRE: RACK, NUMA_POLICY: "tight"})),
        ("resources that are no names", lambda: make_job({REQUIRE: RACK, NUMA_RESOURCES: "cpu, memory"})),
        (
            "a wish that contradicts the template",
            lambda: make_job({REQUIRE: RACK, NUMA_POLICY: "none"}, template={NUMA_POLICY: "restricted"}),
        ),
    ]
)

GOLDEN.section("controllers that hold a job back")
GATED = KEYS.gated_by
refusals(
    [
        ("a controller without a domain", lambda: make_job({REQUIRE: RACK, GATED: "budget"})),
        ("a controller that is named twice", lambda: make_job({REQUIRE: RACK, GATED: "a.b/c,a.b/c"})),
        (
            "more controllers than are read",
            lambda: make_job({REQUIRE: RACK, GATED: ",".join(f"a.b/{n}" for n in range(65))}),
        ),
        ("a controller with a long name", lambda: make_job({REQUIRE: RACK, GATED: f"example.com/{'a' * 60}"})),
        (
            "a controller that comes late",
            lambda: make_job({REQUIRE: RACK, GATED: "a.b/c"}),
            {"old": make_job({REQUIRE: RACK})},
        ),
        (
            "one controller more",
            lambda: make_job({REQUIRE: RACK, GATED: "a.b/c,a.b/d"}),
            {"old": make_job({REQUIRE: RACK, GATED: "a.b/c"})},
        ),
    ]
)

GOLDEN.section("pods and their templates")
refusals(
    [
        ("a node name", lambda: make_job({REQUIRE: RACK}, spec={"nodeName": "n1"})),
        (
            "a template without a spec",
            lambda: make_jobset({REQUIRE: RACK}, template={"parallelism": 1}, jobs=["leader"]),
        ),
        ("an annotation that Topogate writes", lambda: make_job({REQUIRE: RACK}, template={WORKLOAD: "mine"})),
        ("another pod set than a Job has", lambda: make_job({REQUIRE: RACK}, template={POD_SET: "workers"})),
        ("a number of pods that is none", lambda: make_pod({REQUIRE: RACK, TOTAL: "many"})),
        ("a queue that no object can be called", lambda: in_queue(make_pod(), "Team A")),
        ("a group that no object can be called", lambda: make_pod({REQUIRE: RACK, POD_GROUP: "team/ring"})),
    ]
)


def in_queue(body, queue):
    return {**body, "metadata": {**body["metadata"], "labels": {QUEUE: queue}}}


@case
def a_pod_template_with_too_many_containers():
    spec = {"containers": [{"name": f"c{at}", "image": "i"} for at in range(200)]}
    return "; ".join(one.message for one in large.of_object("Job", json.dumps(make_job(spec=spec)).encode()))


@case
def a_selector_with_too_many_requirements():
    spec = {"nodeSelector": {f"l{at}": "x" for at in range(2000)}}
    return "; ".join(one.message for one in large.of_object("Job", json.dumps(make_job(spec=spec)).encode()))


@case
def a_requirement_with_too_many_values():
    needs = [{"key": "k", "operator": "In", "values": [f"v{at}" for at in range(2000)]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": needs}]}}
    spec = {"affinity": {"nodeAffinity": required}}
    return next(one.message for one in large.of_object("Job", json.dumps(make_job(spec=spec)).encode()))


GOLDEN.section("queues")
refusals(
    [
        (
            "no queue where one is required",
            lambda: make_job({REQUIRE: RACK}),
            {"rules": MutationRules(KEYS, FLAVORS, require_queue=True)},
        ),
        ("a queue of a Job that no object can be called", lambda: make_job(labels={QUEUE: "Team A"})),
        (
            "another queue of a Job that is not suspended",
            lambda: make_job(labels={QUEUE: "b"}),
            {"old": make_job(labels={QUEUE: "a"})},
        ),
        (
            "another queue of a JobSet that is not suspended",
            lambda: make_jobset(labels={QUEUE: "b"}, suspend=False),
            {"old": make_jobset(labels={QUEUE: "a"}, suspend=False)},
        ),
        (
            "a queue on a Job template of a JobSet",
            lambda: with_queue_below(make_jobset({REQUIRE: RACK}, jobs=["leader"])),
        ),
    ]
)


def with_queue_below(jobset):
    jobset["spec"]["replicatedJobs"][0]["template"]["metadata"] = {"labels": {QUEUE: "team"}}
    return jobset


GOLDEN.section("JobSets")


def of_pods(count):
    jobset = make_jobset({REQUIRE: RACK}, jobs=["leader"])
    jobset["spec"]["replicatedJobs"][0]["replicas"] = count
    return jobset


def managed(manager, *, below=False):
    jobset = make_jobset({REQUIRE: RACK}, jobs=["leader"])
    if below:
        jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["managedBy"] = manager
    elif manager:
        jobset["spec"]["managedBy"] = manager
    return jobset


refusals(
    [
        ("too many replicated jobs", lambda: make_jobset({REQUIRE: RACK}, jobs=[f"j{at}" for at in range(9)])),
        ("too many pods", lambda: of_pods(2**31 - 1)),
        (
            "slices that do not divide the pods of a JobSet",
            lambda: make_jobset({LAYERS: TWO_LAYERS.replace("4", "6")}, jobs=["leader"]),
        ),
        ("Jobs that another controller manages", lambda: managed("example.com/x", below=True)),
        ("a JobSet that comes back from another controller", lambda: managed(None), {"old": managed("example.com/x")}),
    ]
)

GOLDEN.section("owners of pods")


@case
def a_kind_whose_templates_nobody_knows():
    return decided_owner(
        {"apiVersion": "example.com/v1", "kind": "Ring", "metadata": {"labels": {QUEUE: "team"}}}
    ).denied


@case
def labels_of_a_template_that_are_none():
    return decided_owner(owner_of(labels={QUEUE: "team"}, template={"a": 5})).denied


@case
def a_level_on_a_deployment_and_another_on_its_template():
    owner = owner_of(annotations={REQUIRE: RACK})
    owner["spec"]["template"]["metadata"]["annotations"] = {REQUIRE: BLOCK}
    return decided_owner(owner).denied


@case
def a_wish_on_a_deployment_and_another_on_its_template():
    owner = owner_of(labels={QUEUE: "team"}, annotations={NUMA_POLICY: "none"})
    owner["spec"]["template"]["metadata"]["annotations"] = {NUMA_POLICY: "restricted"}
    return decided_owner(owner).denied


GOLDEN.section("a change of mind")


def change_of(make, was, now, **more):
    old = stamped(make(was, **more))
    return lambda: changed(old, now), {"old": old}


refusals(
    [
        ("another level for a Job that is not suspended", *change_of(make_job, {REQUIRE: RACK}, {REQUIRE: BLOCK})),
        (
            "another level for a JobSet that is not suspended",
            *change_of(make_jobset, {REQUIRE: RACK}, {REQUIRE: BLOCK}, jobs=["leader"]),
        ),
        (
            "another key for a suspended JobSet",
            *change_of(make_jobset, {REQUIRE: RACK}, {PREFER: RACK}, jobs=["leader"], suspend=True),
        ),
    ]
)
warnings(
    [
        ("no level any more for a Job", *change_of(make_job, {REQUIRE: RACK}, {})),
        ("no level any more for a suspended Job", *change_of(make_job, {REQUIRE: RACK}, {}, suspend=True)),
        ("no level any more for a JobSet", *change_of(make_jobset, {REQUIRE: RACK}, {}, jobs=["leader"])),
        (
            "no queue any more for a suspended Job",
            lambda: make_job(suspend=True),
            {"old": make_job(labels={QUEUE: "team"}, suspend=True)},
        ),
        ("a level that comes late", lambda: make_job({REQUIRE: RACK}), {"old": make_job()}),
        ("a level that comes late to a JobSet", lambda: make_jobset({REQUIRE: RACK}), {"old": make_jobset()}),
    ]
)

GOLDEN.section("settings")


def changed_settings(text, before):
    metadata = {"namespace": "topogate-system"}
    return [msgspec.convert({"metadata": metadata, "data": {"config.yaml": one}}, ConfigMap) for one in (text, before)]


def settings_refused(text, before=""):
    return judged(*changed_settings(text, before), DOMAIN).denied


@case
def a_setting_that_is_unknown():
    return settings_refused("requireQeue: true\n")


@case
def another_domain_than_installed():
    return settings_refused("domain: topogate.dev\n")


@case
def a_setting_that_is_given_twice():
    return settings_refused("requireQueue: true\nrequireQueue: false\n")


@case
def settings_under_another_key():
    return judged(ConfigMap(data={"config.yml": ""}), None, DOMAIN).denied


@case
def another_namespace_than_installed():
    return settings_refused("namespace: elsewhere\n")


@case
def settings_without_the_url_of_a_webhook_beside_the_cluster():
    return settings_refused("", before="webhookUrl: https://127.0.0.1:9443\n")


@case
def another_controller_beside():
    return settings_refused("", before="besideKueue: true\n")


@case
def a_name_by_which_objects_are_found():
    return judged(*changed_settings("leaseName: other\n", ""), DOMAIN).warnings[0]


GOLDEN.section("what cannot be read")


def review(body):
    reply = for_jobs().answer(body, Rulebook(RULES))
    if reply.status != 200:
        return reply.body.decode().strip()
    return json.loads(reply.body)["response"]["status"]["message"]


@case
def a_field_of_a_wrong_type():
    return review(json.dumps(make_review(make_job(parallelism="two"))).encode())


@case
def no_review_at_all():
    return review(b"{}")


@case
def a_review_of_another_kind():
    return review(json.dumps(make_review(make_pod())).encode())


@case
def a_review_without_a_uid():
    return review(json.dumps(make_review(make_job(), uid="")).encode())


@case
def a_review_that_nobody_foresaw():
    return UNFORESEEN


@case
def a_review_that_is_nested_too_deeply():
    return review(b'{"apiVersion":' + b"[" * 5000)


GOLDEN.section("warnings: queues")
warnings(
    [
        ("a queue that is not there", lambda: make_job({REQUIRE: RACK}, labels={QUEUE: "tema"}, namespace="ns")),
        ("a queue that is on hold", lambda: make_job({REQUIRE: RACK}, labels={QUEUE: "held"}, namespace="ns")),
        (
            "a queue without its ClusterQueue",
            lambda: make_job({REQUIRE: RACK}, labels={QUEUE: "orphan"}, namespace="ns"),
        ),
        ("a JobSet's queue that is not there", lambda: make_jobset({REQUIRE: RACK}, labels={QUEUE: "tema"})),
    ]
)

GOLDEN.section("warnings: owners of pods")
OWNERS_WARNED = [
    ("an owner's queue that is not there", lambda: owner_of(labels={QUEUE: "tema"})),
    ("a template that names another queue", lambda: owner_of(labels={QUEUE: "team"}, template={QUEUE: "other"})),
    ("an owner without a template", lambda: owner_of("RayJob", {QUEUE: "team"}, spec={"rayClusterSpec": None})),
    ("a priority without a queue", lambda: owner_of(labels={KEYS.priority_class: "high"})),
    ("a queue on a TrainJob", lambda: owner_of("TrainJob", {QUEUE: "team"})),
    ("an owner that waits to be resumed", lambda: owner_of("RayJob", {QUEUE: "team"}, spec={"suspend": True})),
    ("an owner that does not wait for ever", lambda: owner_of("AppWrapper", {QUEUE: "team"})),
]
for name, make in OWNERS_WARNED:
    GOLDEN.add(name, lambda make=make: owner_warned(make()))


@case
def a_queue_that_a_deployment_gets():
    return owner_warned(owner_of(labels={QUEUE: "team"}), owner_of())


@case
def a_queue_that_a_cluster_gets_whose_pods_stay():
    return owner_warned(owner_of("RayCluster", {QUEUE: "team"}), owner_of("RayCluster"))


@case
def a_queue_that_an_owner_has_no_more():
    before = owner_of(labels={QUEUE: "team"}, template={QUEUE: "team"})
    return decided_owner(owner_of(template={QUEUE: "team"}), before).warnings[0]


@case
def controllers_that_hold_back_an_owner_whose_pods_alone_wait():
    return owner_warned(owner_of("RayCluster", {QUEUE: "team"}, {GATED: "a.b/c"}))


@case
def more_templates_than_are_looked_at():
    groups = {"workerGroupSpecs": [OWNER_OBJECTS["RayCluster"]["spec"]["workerGroupSpecs"][0]] * 65}
    return decided_owner(owner_of("RayCluster", {QUEUE: "team"}, spec=groups)).denied.message


GOLDEN.section("warnings: what has no effect, or perhaps another one")
warnings(
    [
        ("another controller's", lambda: make_job({REQUIRE: RACK}, managedBy="kueue.x-k8s.io/multikueue")),
        ("another controller's JobSet", lambda: managed("kueue.x-k8s.io/multikueue")),
        ("how many pods, of a lone pod", lambda: make_pod({REQUIRE: RACK, TOTAL: "3"})),
        ("a wish without a level", lambda: make_job({NUMA_POLICY: "restricted"})),
        ("resources without a policy", lambda: make_job({REQUIRE: RACK, NUMA_RESOURCES: "cpu"})),
        ("controllers on a pod template", lambda: make_job({REQUIRE: RACK}, template={GATED: "a.b/c"})),
        (
            "slices that may not be lost one by one",
            lambda: make_job({SLICE_LEVEL: RACK, SLICE_SIZE: "3", EVICT_BY: "slice"}, parallelism=4),
        ),
        ("a group in a Job", lambda: make_job({REQUIRE: RACK, GROUP: "g"})),
        ("fewer completions than pods at once", lambda: make_job({REQUIRE: RACK}, parallelism=4) | _completions(2)),
        ("all pods on one node", lambda: make_job({REQUIRE: HOST})),
        ("levels that nobody could read yet", lambda: make_job({REQUIRE: RACK}), {"rules": MutationRules(KEYS, None)}),
        (
            "a level of some flavors",
            lambda: make_job({REQUIRE: RACK}),
            {"rules": MutationRules(KEYS, {**FLAVORS, "other": ("x/y",)})},
        ),
        ("another scheduler", lambda: make_job({REQUIRE: RACK}, spec={"schedulerName": "mine"})),
        ("a key that is misspelt", lambda: make_job({f"{DOMAIN}/required-topology": RACK})),
        (
            "workloads that are to be spread",
            lambda: make_job({REQUIRE: RACK, f"{DOMAIN}/podset-topology-spreading": "{}"}),
        ),
        ("a time for its pods alone", lambda: make_job({REQUIRE: RACK, f"{DOMAIN}/wait-for-pods-ready": "{}"})),
        ("a key of Kueue that does nothing here", lambda: make_job({f"{DOMAIN}/pod-index-offset": "1"})),
    ]
)
