"""What is wrong with what an owner asks for, or is not there yet: nothing is placed before that changes."""

import msgspec
from msgspec.structs import replace
from support.claims_world import ONE, a_class, a_pod
from support.equipped import META, Equipped, cel, request_of, template
from support.owned import KEYS, context, make_job, make_known, make_owner, make_record
from support.sentences.golden import Golden
from support.world import FLAVOR, NODES, World

from crds.constants import EVICT_BY, Keys
from crds.request import RequestError
from kube.objects import GroupTerms, Namespace, Pod, PodGroup
from kube.parents import JobSet, LeaderWorkerSet
from kube.pods.devices import ResourceClaim, ResourceClaimTemplate
from kube.queues import ClusterQueue, LocalQueue
from kube.workloads import PodSetUpdate
from ungater.cache.claims.claimed_devices import LONGEST
from ungater.cache.claims.device_claims import TWO_DOMAINS
from ungater.cache.owners import MOST_IN_GROUP
from ungater.jobs import exclusive_topology
from ungater.jobs.exclusive_topology import BY_NODE_LABEL, JOB_SET, SUBGROUPS
from ungater.jobs.job import MOST_PODS, few_kinds, one_queue, owner_of, positive, too_many
from ungater.jobs.jobset import owner_of_jobset
from ungater.jobs.native_groups import with_groups
from ungater.jobs.pod_group import owner_key, owner_of_pods
from ungater.jobs.pod_template import ClashError, added
from ungater.kueue import answers, decide
from ungater.kueue.decide import KueueStanding
from ungater.model import kueue_objects as kueue
from ungater.model.admission import PodSetAssignment
from ungater.model.job_view import id_of
from ungater.reconcile import reconcile

GOLDEN = Golden("asking")
case = GOLDEN.case


def read(body, kind):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def raised(make):
    """What is said of what cannot be made."""
    try:
        return make()
    except (RequestError, ClashError) as error:
        return error


GOLDEN.section("a job as it stands")


def hindered(owner, **rules):
    return reconcile.why_not_placed(make_record(owner), context(**rules))


@case
def a_gate_without_a_request():
    return reconcile.not_ours(make_record(make_owner(request={})), KEYS)


@case
def a_request_without_a_gate():
    return reconcile.not_ours(make_record(make_owner(gated=False)), KEYS)


@case
def no_queue_where_one_is_required():
    return hindered(make_owner(), require_queue=True)


@case
def a_workload_that_is_inactive():
    owner = make_owner()
    return reconcile.why_not_placed(make_record(owner, observed=make_known(owner, active=False)), context())


@case
def a_job_that_a_controller_holds_back():
    return hindered(msgspec.structs.replace(make_owner(), gated_by="example.com/budget"))


@case
def a_job_that_several_controllers_hold_back():
    return hindered(msgspec.structs.replace(make_owner(), gated_by="example.com/budget,example.com/night"))


@case
def a_job_of_no_pods():
    return hindered(make_owner(parallelism=0))


@case
def volumes_that_are_not_ready():
    return hindered(make_owner(), unready=lambda _: 'persistentvolumeclaim "data" not found')


@case
def a_job_that_is_suspended():
    found = reconcile.reconcile(make_record(make_owner(suspend=True)), context(), 0.0)
    return found[-1].wanted[0]


@case
def a_level_that_was_there():
    return hindered(make_owner(request={KEYS.required[0]: "row"}))


@case
def several_queues():
    return one_queue([{KEYS.queue_name: "a"}, {KEYS.queue_name: "b"}], KEYS)


@case
def a_number_that_is_none():
    return raised(lambda: positive("many", f"metadata.annotations[{KEYS.min_parallelism}]"))


@case
def more_pods_than_a_workload_can_say():
    (pod_set,) = make_owner().pod_sets
    return too_many(msgspec.structs.replace(pod_set, full=MOST_PODS + 1), "spec.parallelism")


@case
def too_many_kinds_of_pods():
    return few_kinds([f"kind-{at}" for at in range(9)], None)[1]


@case
def a_template_that_is_kept_in_part():
    (pod_set,) = make_owner().pod_sets
    meta = replace(pod_set.template.metadata, cut=True)
    return msgspec.structs.replace(pod_set, template=replace(pod_set.template, metadata=meta)).excess


GOLDEN.section("JobSets and LeaderWorkerSets")


def jobset(jobs=1, pods=2, *, completions=None, mode="Indexed", annotations=None, count=1):
    template = {"metadata": {"annotations": {KEYS.required[0]: "rack"}}, "spec": {"containers": [{"name": "c"}]}}
    job = {"completionMode": mode, "parallelism": pods, "completions": completions or pods, "template": template}
    replicated = [{"name": f"j{at}", "replicas": jobs, "template": {"spec": job}} for at in range(count)]
    meta = {"name": "js", "namespace": "ns", "uid": "u", "annotations": annotations or {}}
    return raised(
        lambda: (
            owner_of_jobset(read({"metadata": meta, "spec": {"replicatedJobs": replicated}}, JobSet), (), KEYS).wrong
        )
    )


@case
def too_many_replicated_jobs():
    return jobset(count=9)


@case
def exclusive_in_a_level_that_no_label_can_be():
    return jobset(annotations={JOB_SET: "x" * 400})


@case
def exclusive_without_indexes():
    return jobset(annotations={JOB_SET: "rack"}, mode="NonIndexed", jobs=2)


@case
def exclusive_by_labels_of_nodes():
    return jobset(annotations={JOB_SET: "rack", BY_NODE_LABEL: "true"}, jobs=2)


@case
def exclusive_with_more_completions_than_pods():
    return jobset(annotations={JOB_SET: "rack"}, jobs=2, completions=4)


def of_groups(size, *, leader):
    shape = {"size": size, "workerTemplate": {}, "subGroupPolicy": {"subGroupSize": 2}}
    shape |= {"leaderTemplate": {}} if leader else {}
    meta = {"name": "lws", "annotations": {SUBGROUPS: "rack"}}
    whole = read({"metadata": meta, "spec": {"leaderWorkerTemplate": shape}}, LeaderWorkerSet)
    return exclusive_topology.of_groups(whole, whole.spec.leader_worker_template, {}, {}).wrong


@case
def subgroups_beside_a_leader_of_another_kind():
    return of_groups(4, leader=True)


@case
def subgroups_that_do_not_divide_their_group():
    return of_groups(5, leader=False)


GOLDEN.section("pods that no Job owns")
GATE = [{"name": KEYS.gate}]


def pod(name, *, labels=None, annotations=None, level="rack", **spec):
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "labels": labels or {}}
    meta |= {"annotations": {KEYS.required[0]: level, **(annotations or {})}}
    return read({"metadata": meta, "spec": {"schedulingGates": GATE, "containers": [{"name": "c"}], **spec}}, Pod)


def grouped(name, total="2", **more):
    return pod(name, labels={KEYS.pod_group: "ring"}, annotations={KEYS.pod_group_total: total}, **more)


def of_pods(*pods):
    return owner_of_pods(owner_key(pods[0], KEYS), pods, KEYS, None)


@case
def a_group_that_is_not_complete():
    kind = {KEYS.role_hash: "leader", KEYS.pod_group_total: "2"}
    return of_pods(pod("a", labels={KEYS.pod_group: "ring"}, annotations=kind)).wrong


@case
def a_group_of_no_number():
    return of_pods(grouped("a", total="many")).wrong


@case
def a_group_of_pods_that_ask_for_different_things():
    labels = {KEYS.pod_group: "ring"}
    return of_pods(pod("a", labels=labels), pod("b", labels=labels, level="block")).wrong


@case
def a_group_that_has_finished():
    return of_pods(grouped("a")).outcome


@case
def a_group_that_is_gone():
    before = of_pods(grouped("a"))
    return owner_of_pods(before.id, (), KEYS, before).outcome


@case
def a_pod_of_an_owner_that_beside_kueue_is_not_served():
    owner = {"apiVersion": "x/v1", "kind": "Machine", "name": "m", "uid": "u", "controller": True}
    return answers.unserved(read({"metadata": {"ownerReferences": [owner]}}, kueue.KueueWorkload))


@case
def a_bare_pod_beside_kueue():
    return answers.unserved(read({"metadata": {}}, kueue.KueueWorkload))


GOLDEN.section("PodGroups of Kubernetes itself")
IN_GROUP = {"schedulingGroup": {"podGroupName": "ring"}}


def of_group(terms, *, annotations=None, there=True, priority=0, says=None, names=None):
    spec = {**IN_GROUP, **({"priorityClassName": "high"} if priority else {})} if says is None else None
    made = make_job(request=annotations or {KEYS.unconstrained: "true"}, spec=spec)
    made = replace(made, metadata=replace(made.metadata, annotations=annotations))
    scheduling = msgspec.convert(says, GroupTerms) if says is not None else None
    view = owner_of(replace(made, spec=replace(made.spec, scheduling=scheduling)), KEYS)
    group = read({"metadata": {"name": "ring", "namespace": "ns"}, "spec": terms}, PodGroup)
    find = {"ns/ring": group}.get if there else (lambda _: None)
    found = with_groups(view, find, KEYS, lambda _: priority)
    return found.held_off or found.wrong


def gang(least):
    return {"schedulingPolicy": {"gang": {"minCount": least}}}


@case
def a_group_that_is_not_there():
    return of_group({}, there=False)


@case
def a_group_with_claims_of_its_own():
    return of_group({"resourceClaims": [{"name": "x"}]})


@case
def a_group_of_two_levels():
    return of_group({"schedulingConstraints": {"topology": [{"key": "rack"}, {"key": "block"}]}})


@case
def a_group_of_another_level_than_the_job():
    return of_group({"schedulingConstraints": {"topology": [{"key": "block"}]}}, annotations={KEYS.required[0]: "rack"})


@case
def a_group_of_another_priority():
    return of_group({"priority": 0}, priority=1000)


@case
def a_group_that_wants_more_than_there_will_be():
    return of_group(gang(8))


@case
def a_job_that_says_so_itself():
    return of_group({}, says=gang(8))


@case
def a_group_that_wants_more_than_the_least():
    return of_group(gang(4), annotations={KEYS.unconstrained: "true", KEYS.min_parallelism: "2"})


@case
def a_group_that_goes_as_a_whole_and_a_job_that_does_not():
    return of_group({"disruptionMode": {"all": {}}}, annotations={KEYS.required[0]: "rack", EVICT_BY: "slice"})


@case
def a_group_of_which_not_all_pods_are_there():
    view = of_pods(pod("a", labels={"x": "y"}, **IN_GROUP))
    group = read({"metadata": {"name": "ring", "namespace": "ns"}, "spec": gang(4)}, PodGroup)
    found = with_groups(msgspec.structs.replace(view, open_ended=True), {"ns/ring": group}.get, KEYS, None)
    return found.held_off or found.wrong


@case
def a_group_whose_pods_name_several_schedulers():
    view = owner_of(make_job(request={KEYS.unconstrained: "true"}, spec=IN_GROUP), KEYS)
    (one,) = view.pod_sets
    template = replace(one.template, spec=replace(one.template.spec, scheduler_name="mine"))
    other = msgspec.structs.replace(one, name="other", template=template)
    group = read({"metadata": {"name": "ring", "namespace": "ns"}, "spec": {}}, PodGroup)
    found = with_groups(msgspec.structs.replace(view, pod_sets=(one, other)), {"ns/ring": group}.get, KEYS, None)
    return found.held_off or found.wrong


def in_one_group(jobs):
    """The last of so many Jobs whose pods are in one group; each is too large for a rack, so they wait."""
    world = World()
    world.reads_groups = True
    world.put("flavor", FLAVOR)
    world.put("node", NODES[0])
    world.put("native_group", read({"metadata": {"name": "ring", "namespace": "ns"}, "spec": {}}, PodGroup))
    for at in range(jobs):
        world.put("job", made := make_job(f"train-{at}", request={KEYS.unconstrained: "true"}, spec=IN_GROUP))
    return reconcile.why_not_placed(world.memory.entries[id_of(made)], world.memory.rules)


@case
def a_group_of_two_workloads():
    return in_one_group(2)


@case
def a_group_of_too_many_workloads():
    return in_one_group(MOST_IN_GROUP + 1)


GOLDEN.section("devices of claims")
NAMED = [{"name": "gpu", "resourceClaimName": "mine"}]
UNREAD = [{"name": "gpu"}]


def why(*, world=None, claims=ONE, count=2, **more):
    world = world or Equipped()
    return world.why(world.job("train", count, claims=claims, **more))


def with_claim(**meta):
    world = Equipped()
    spec = {"devices": {"requests": [request_of(1)]}}
    world.put("resource_claim", read({"metadata": {"name": "mine", **META, **meta}, "spec": spec}, ResourceClaim))
    return world


@case
def a_template_that_is_not_there():
    return why(claims=[{"name": "gpu", "resourceClaimTemplateName": "gone"}])


@case
def a_claim_that_is_not_there():
    return why(claims=NAMED)


@case
def a_claim_that_names_nothing():
    return why(claims=UNREAD)


@case
def a_claim_that_goes():
    return why(world=with_claim(deletionTimestamp="2026-11-21T00:00:00Z"), claims=NAMED)


@case
def a_claim_that_is_made_for_a_pod():
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "u"}
    return why(world=with_claim(ownerReferences=[owner]), claims=NAMED)


@case
def a_claim_for_more_pods_than_it_can_have():
    return why(world=with_claim(), claims=NAMED, count=300)


@case
def a_claim_that_another_is_to_have_first():
    world = with_claim()
    world.job("first", 1, claims=NAMED)
    return why(world=world, claims=NAMED, count=1)


@case
def a_claim_that_pods_share_which_have_others():
    return why(world=with_claim(), claims=[*NAMED, {"name": "more", "resourceClaimTemplateName": "one-gpu"}])


@case
def a_claim_that_pods_share_which_ask_for_slices():
    request = {KEYS.required[0]: "rack", KEYS.slice_level: "rack", KEYS.slice_size: "1"}
    world = with_claim()
    spec = {"resourceClaims": NAMED, "containers": [{"name": "c"}]}
    world.put("job", make_job(parallelism=2, request=request, spec=spec))
    return world.why(next(iter(world.memory.entries.values())))


@case
def a_claim_that_pods_of_a_group_share():
    world = with_claim()
    spec = {"resourceClaims": NAMED, "containers": [{"name": "c"}], **IN_GROUP}
    world.put("job", make_job(parallelism=2, spec=spec))
    return world.why(next(iter(world.memory.entries.values())))


@case
def claims_that_say_too_much():
    world = Equipped()
    world.put("claim_template", template(selectors=cel("x" * LONGEST)))
    return why(world=world)


@case
def claims_of_several_compute_domains():
    return TWO_DOMAINS


class Paying(Equipped):
    """A queue whose quota counts devices of class gpu."""

    def __init__(self):
        super().__init__()
        for name in ("nic", "unknown"):
            self.put("device_class", a_class(name))
        self.put("namespace", read({"metadata": {"name": "ns"}}, Namespace))
        flavor = {"name": "gpu", "resources": [{"name": name, "nominalQuota": 4} for name in ("cpu", "gpus", "nics")]}
        groups = [{"coveredResources": ["cpu", "gpus", "nics"], "flavors": [flavor]}]
        spec = {"resourceGroups": groups, "namespaceSelector": {}}
        self.put("cluster_queue", read({"metadata": {"name": "cq"}, "spec": spec}, ClusterQueue))
        local = {"metadata": {"namespace": "ns", "name": "team"}, "spec": {"clusterQueue": "cq"}}
        self.put("local_queue", read(local, LocalQueue))

    def make(self, **options):
        return super().make(device_resources={"gpu": "gpus", "nic": "nics"}, **options)


def of_quota(*requests, claims=ONE):
    world = Paying()
    spec = {"spec": {"devices": {"requests": list(requests)}}}
    world.put("claim_template", read({"metadata": {"name": "one-gpu", **META}, "spec": spec}, ResourceClaimTemplate))
    body = {"metadata": {"name": "mine", **META}, "spec": {"devices": {"requests": [exactly()]}}}
    world.put("resource_claim", read(body, ResourceClaim))
    pods = {"resourceClaims": claims, "containers": [{"name": "c"}]}
    world.put("job", make_job(labels={KEYS.queue_name: "team"}, suspend=True, spec=pods))
    return world.why(next(iter(world.memory.entries.values())))


def exactly(**more):
    return {"name": "a", "exactly": {"deviceClassName": "gpu", **more}}


@case
def quota_and_all_devices_of_a_node():
    return of_quota(exactly(allocationMode="All"))


@case
def quota_and_a_class_that_it_does_not_count():
    return of_quota(exactly(deviceClassName="unknown"))


@case
def quota_and_alternatives():
    devices = [{"name": name, "deviceClassName": name} for name in ("gpu", "nic")]
    return of_quota({"name": "a", "firstAvailable": devices})


@case
def quota_and_a_claim_that_pods_name():
    return of_quota(exactly(), claims=NAMED)


@case
def a_class_that_is_not_there():
    world = Equipped()
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gone"}}]}}
    body = {"metadata": {"name": "one-gpu", **META}, "spec": {"spec": spec}}
    world.put("claim_template", read(body, ResourceClaimTemplate))
    return why(world=world)


@case
def claims_where_devices_are_not_read():
    world = Equipped()
    world.reads_devices = False
    return why(world=world)


@case
def pods_with_other_claims_than_their_template():
    world = Equipped()
    record = world.job("train", 2)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": record.job.uid, "controller": True}
    world.put("pod", a_pod("train-x", owner=owner, claims=ONE))
    return world.why(record)


GOLDEN.section("what admission checks add")


def clash(update):
    owner = make_owner(request={KEYS.required[0]: "rack"})
    part = PodSetAssignment("main", 4, {"cpu": "gpu"}, {})
    return raised(lambda: added(owner, part, {}, KEYS, [("mine", msgspec.convert(update, PodSetUpdate))]))


@case
def a_pod_set_that_is_not_there():
    return clash({"name": "other"})


@case
def another_value_than_the_template_has():
    return clash({"name": "main", "annotations": {KEYS.required[0]: "block"}})


@case
def a_key_of_topogate():
    return clash({"name": "main", "annotations": {KEYS.preferred[0]: "block"}})


GOLDEN.section("beside Kueue")


def check(controller=kueue.CONTROLLER, **spec):
    return read(
        {"metadata": {"name": "topology"}, "spec": {"controllerName": controller, **spec}}, kueue.AdmissionCheck
    )


@case
def topogate_under_the_domain_of_kueue():
    return decide.activity(check(), Keys().domain, ["tas"])


@case
def a_check_with_parameters():
    body = {"apiGroup": "x", "kind": "Y", "name": "z"}
    return decide.activity(check(parameters=body), "topogate.dev", ["tas"])


@case
def a_check_without_a_flavor():
    return decide.activity(check(), "topogate.dev", [])


@case
def a_check_that_is_answered():
    return decide.activity(check(), "topogate.dev", ["tas"])


def kueues(**status):
    return read({"metadata": {"name": "job-x", "namespace": "ns"}, "status": status}, kueue.KueueWorkload)


def assigned(count=1, *, topology=False, seen=True):
    parts = [{"name": f"p{at}", "flavors": {"cpu": "gpu"}, "count": 4} for at in range(count)]
    if topology:
        parts[0]["topologyAssignment"] = {}
    workload = kueues(admission={"podSetAssignments": parts})
    flavor = read({"metadata": {"name": "gpu"}, "spec": {"topologyName": "default"}}, kueue.ResourceFlavor)
    return decide.restrict(workload, decide.KueueObjects((), {"gpu": flavor} if seen else {}, {}))[1]


@case
def a_workload_of_several_pod_sets():
    return assigned(2)


@case
def a_flavor_of_kueue_that_was_not_seen():
    return assigned(seen=False)


@case
def a_flavor_that_kueue_places_itself():
    return assigned(topology=True)


@case
def a_topology_that_was_not_seen():
    return assigned()


@case
def a_workload_that_loses_its_quota():
    return decide.view(make_owner(suspend=True), KueueStanding("ns/job-train", evicted=True)).waits_for


@case
def a_workload_without_quota():
    return decide.view(make_owner(suspend=True), None, ["ns/job-train"]).waits_for


@case
def another_check_that_gives_quota_back():
    checks = [{"name": "topology", "state": "Pending"}, {"name": "other", "state": "Retry"}]
    reserved = {"type": "QuotaReserved", "status": "True", "reason": "x", "message": ""}
    workload = kueues(admission={"podSetAssignments": []}, conditions=[reserved], admissionChecks=checks)
    return decide.standing([workload], decide.KueueObjects(["topology"], {}, {})).missing


for _name, _text in (
    ("a place is looked for", answers.LOOKING),
    ("no topology is asked for", answers.NOTHING_TO_PLACE),
    ("quota was taken back", answers.NOTHING_KEPT),
):
    GOLDEN.add(_name, lambda text=_text: text)
