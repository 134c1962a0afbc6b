"""Whether preemption may take those who would have to go, as the policies of the queue say."""

import pytest
import yaml
from support.snapshots import DOMAIN, FLAVOR, GPU, RACK, container, node, running

from cli.cluster import cluster_snapshot, dry_run
from cli.cluster import dump as dumps
from cli.cluster import required_evictions as reliefs
from crds.settings import Settings

NOW = 1_800_000_000.0
API = "topogate.dev/v1alpha1"


def cluster_queue(name, **spec):
    quotas = [{"name": one, "nominalQuota": amount} for one, amount in ((GPU, 8), ("cpu", 100))]
    groups = [{"coveredResources": [GPU, "cpu"], "flavors": [{"name": "tas", "resources": quotas}]}]
    body = {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name}}
    return {**body, "spec": {"resourceGroups": groups, "namespaceSelector": {}, "cohortName": "all", **spec}}


def local(name):
    spec = {"clusterQueue": name}
    return {"apiVersion": API, "kind": "LocalQueue", "metadata": {"name": name, "namespace": "team"}, "spec": spec}


def holding(queue, priority, created):
    """A job that holds the one host, admitted in a queue ("": without one)."""
    objects = running("holds", ["r1h1"], 8, priority=priority)
    owner, workload = objects[:2]
    for one in (owner, workload):
        one["metadata"]["creationTimestamp"] = created
    workload["metadata"]["uid"] = "w"
    workload["spec"]["priority"] = priority
    if queue:
        owner["metadata"]["labels"] = {f"{DOMAIN}/queue-name": queue}
        workload["spec"]["queueName"] = queue
        workload["status"]["admission"]["clusterQueue"] = queue
    part = workload["status"]["admission"]["podSetAssignments"][0]
    part |= {"flavors": {GPU: "tas", "cpu": "tas"}, "resourceUsage": {GPU: 8, "cpu": "1"}}
    workload["status"]["conditions"] = [
        {"type": one, "status": "True", "reason": "Admitted", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for one in ("QuotaReserved", "Admitted")
    ]
    return objects


def waits():
    meta = {"name": "waits", "namespace": "team", "uid": "u", "creationTimestamp": "2026-06-01T00:00:00Z"}
    meta |= {"labels": {f"{DOMAIN}/queue-name": "mine"}, "annotations": {f"{DOMAIN}/podset-required-topology": RACK}}
    template = {"spec": {"restartPolicy": "Never", "priorityClassName": "five", "containers": [container(8)]}}
    spec = {"suspend": True, "parallelism": 1, "completions": 1, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


FIVE = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "five"}, "value": 5}
OLDER, NEWER = "2026-01-01T00:00:00Z", "2026-07-01T00:00:00Z"
MAY = "ClusterQueue mine may preempt them; it is looked at again in the next cycle"
ONLY = "preemption may help only as ClusterQueue mine may take from others: they are in theirs"
NOT = "preemption cannot help: Job team/holds"
ABOVE = f"{NOT} has its priority (5) or a higher one"
NO_NEWER = f"{NOT} has its priority (5) and is no newer"
WITHIN, COHORT = "withinClusterQueue", "reclaimWithinCohort"


OWN = f"{NOT} is in ClusterQueue mine itself, which evicts none of its own (withinClusterQueue Never)"
NO_OTHER = f"{NOT} is in ClusterQueue theirs, and mine takes from no other (reclaimWithinCohort Never)"
ALONE = f"{NOT} is in ClusterQueue alone, which is not in the cohort of ClusterQueue mine"


@pytest.mark.parametrize(
    ("policy", "holder", "told"),
    [
        ({WITHIN: "LowerPriority"}, ("mine", 4, OLDER), MAY),
        ({WITHIN: "LowerPriority"}, ("mine", 5, NEWER), ABOVE),
        ({WITHIN: "LowerOrNewerEqualPriority"}, ("mine", 5, NEWER), MAY),
        ({WITHIN: "LowerOrNewerEqualPriority"}, ("mine", 5, OLDER), NO_NEWER),
        ({WITHIN: "LowerOrNewerEqualPriority"}, ("mine", 6, NEWER), ABOVE),
        ({WITHIN: "LowerOrNewerEqualPriority", COHORT: "LowerPriority"}, ("theirs", 5, NEWER), ABOVE),
        ({COHORT: "LowerPriority"}, ("theirs", 4, OLDER), ONLY),
        ({COHORT: "Any"}, ("theirs", 9, OLDER), ONLY),
        ({COHORT: "Any"}, ("mine", 1, OLDER), OWN),
        ({WITHIN: "LowerPriority"}, ("theirs", 1, OLDER), NO_OTHER),
        ({COHORT: "Any"}, ("alone", 1, OLDER), ALONE),
        ({COHORT: "Any"}, ("", 1, OLDER), f"{NOT} is not in any queue"),
    ],
)
def test_whether_one_may_be_taken_is_what_the_policies_say(tmp_path, policy, holder, told):
    assert asked(tmp_path, policy, holder) == (["job/holds"], told)


SAFE = f"{NOT} is safe from eviction until 2028-01-01 00:00:00 UTC (minimumRunTime of ClusterQueue"
YEAR = 31_536_000


@pytest.mark.parametrize(
    ("policy", "queue", "minimum", "told"),
    [
        ({WITHIN: "LowerPriority"}, "mine", {"withinClusterQueueSeconds": YEAR}, f"{SAFE} mine)"),
        ({COHORT: "Any"}, "theirs", {"reclaimSeconds": YEAR}, f"{SAFE} theirs)"),
        ({COHORT: "Any"}, "theirs", {"withinClusterQueueSeconds": YEAR, "fairSharingSeconds": YEAR}, ONLY),
        ({WITHIN: "LowerPriority"}, "mine", {"reclaimSeconds": YEAR}, MAY),
    ],
)
def test_whether_one_has_run_for_long_enough_to_be_taken_is_said(tmp_path, policy, queue, minimum, told):
    # Since the begin of 2026, and not ready: so it is safe for twice a year.
    assert asked(tmp_path, policy, (queue, 4, OLDER), minimumRunTime=minimum) == (["job/holds"], told)


def asked(tmp_path, policy, holder, **spec):
    """Who would have to go for the job that waits, and whether it may have them evicted."""
    queues = [cluster_queue("mine", preemption=policy, **spec), cluster_queue("theirs", **spec)]
    queues += [cluster_queue("alone", cohortName="")]
    names = [local(name) for name in ("mine", "theirs", "alone")]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    items = [FLAVOR, FIVE, namespace, node("r1h1", "r1"), *queues, *names, waits()]
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump_all([*items, *holding(*holder)]))
    cache = cluster_snapshot.cache_of(dumps.read([str(path)]), Settings())
    entry = next(one for one in cache.entries.values() if one.job.name == "waits")
    dry_run.enqueue_entry(cache, entry, NOW)
    found = reliefs.relief(cache, entry, "DoesNotFit", ())
    return [one.name for one in found.enough], found.preemption
