"""Jobs and queues as the queue core takes them, under one policy."""

from collections.abc import Iterable
from math import inf
from typing import Final

import msgspec

from engine.model import Policy as Wish
from engine.model import TopologyRequest
from queueing.model import ClusterQueue, Cohort, LocalQueue, Preemption, Reclaim, Rules, UseRules, Within, Workload
from queueing.queues.queues import Queues
from simulator.model import (
    HALF_LIFE,
    QUEUE,
    Placing,
    SchedulingPolicy,
    SimulatedCluster,
    SimulatedJob,
    SimulatorOptions,
)

_ANYWHERE: Final = TopologyRequest(policy=Wish.UNCONSTRAINED)


def waiting(job: SimulatedJob, policy: SchedulingPolicy) -> Workload:
    """The job as the queue core sees it; a policy that counts amounts sees neither levels nor insides of nodes."""
    pod_sets = job.pod_sets
    if policy.placing is not Placing.TOPOLOGY:
        blind = msgspec.structs.replace
        # Without a shape the engine counts amounts alone, as kube-scheduler does.
        pod_sets = tuple(blind(p, topology=_ANYWHERE, shape=None, group="") for p in pod_sets)
    return Workload(
        key=job.key,
        namespace=job.namespace,
        queue=job.queue,
        pod_sets=pod_sets,
        priority=job.priority,
        created=job.arrival,
        row=job.row,
        at_least=job.at_least,
        by_slices=job.by_slices,
        one_by_one=job.one_by_one,
        preempts=job.preempts,
        non_preemptible=job.non_preemptible,
    )


def queues_of(
    cluster: SimulatedCluster, policy: SchedulingPolicy, options: SimulatorOptions, jobs: Iterable[SimulatedJob]
) -> Queues:
    """The queues of a cluster as a policy has them, empty."""
    patience = options.patience if policy.claiming else inf
    use = UseRules(half_life=HALF_LIFE) if policy.by_use else None
    rules = Rules(patience=patience, hold=options.hold, fair=policy.fair, use=use)
    made = Queues(rules if policy.leaving else msgspec.structs.replace(rules, leaving=0.0))
    jobs = list(jobs)
    for namespace in sorted({job.namespace for job in jobs} | cluster.namespaces.keys()):
        made.set_namespace(namespace, cluster.namespaces.get(namespace, {}))
    for flavor in cluster.plain:
        made.set_flavor(flavor)
    for cohort in cluster.cohorts:
        made.set_cohort(msgspec.structs.replace(cohort, by_use=policy.by_use))
    if policy.by_use:
        # Those that only queues and cohorts name: with an object that says nothing else they are the same.
        known = {cohort.name for cohort in cluster.cohorts}
        named = {one.cohort for one in cluster.queues} | {one.parent for one in cluster.cohorts}
        for name in sorted(named - known - {""}):
            made.set_cohort(Cohort(name=name, by_use=True))
    for queue in cluster.queues or (ClusterQueue(name=QUEUE, unlimited=True),):
        made.set_cluster_queue(_as_told(queue, policy))
    for local in cluster.local:
        made.set_local_queue(local)
    if not cluster.local:
        # Nobody says which LocalQueues there are: one for each that jobs name.
        there = {queue.name for queue in cluster.queues} or {QUEUE}
        # Sorted, because a set has no order and equal input must give equal results.
        for namespace, name in sorted({(job.namespace, job.queue) for job in jobs}):
            target = name if name in there else next(iter(there)) if len(there) == 1 else name
            made.set_local_queue(LocalQueue(namespace=namespace, name=name, cluster_queue=target))
    return made


def _as_told(queue: ClusterQueue, policy: SchedulingPolicy) -> ClusterQueue:
    """A queue with what the policy overrides."""
    preemption = queue.preemption
    if policy.preemption is False:
        preemption = Preemption(non_preemptible=preemption.non_preemptible)
    elif policy.preemption and not preemption.any:
        reclaim = Reclaim.ANY if queue.cohort else Reclaim.NEVER
        preemption = msgspec.structs.replace(preemption, within=Within.LOWER, reclaim=reclaim)
    if policy.strategy is not None:
        preemption = msgspec.structs.replace(preemption, strategy=policy.strategy)
    strict = queue.strict if policy.strict is None else policy.strict
    return msgspec.structs.replace(queue, preemption=preemption, strict=strict, by_use=policy.by_use)
