"""Queues that admit nothing, or less than they seem to, and what mends that. Pure: what was read in, findings out.

A LocalQueue is reported only for its own faults: that its ClusterQueue admits nothing is a finding of the ClusterQueue.
Commands name kinds with their group: where Kueue is there too, kubectl would take its objects of the same name.
"""

from collections.abc import Collection, Iterator

from cli.doctor import cohorts
from cli.doctor.findings import Finding, error, warning
from cli.output import some
from crds.constants import DEFAULT_QUEUE
from crds.settings import CONFIG_MAP
from crds.spelling import meant
from engine.reasons import Reason
from queueing.model import ClusterQueue, LocalQueue
from queueing.queues.queues import Queues
from queueing.status import COHORT_NO_EFFECT, NO_EFFECT, Standing, standings

GO_ON = """--type merge -p '{"spec":{"stopPolicy":"None"}}'"""


def findings(queues: Queues, flavors: Collection[str], *, defaults: bool) -> Iterator[Finding]:
    """``flavors``: those with a topology, which the engine knows. ``defaults``: jobs get the LocalQueue default."""
    found, known = standings(queues, flavors), {*flavors, *queues.config.plain}
    yield from cohorts.findings(queues.quotas.tree, known)
    for name, standing in sorted(found.cohorts.items()):
        yield from _without_effect(f"Cohort {name}", standing)
    for name, queue in sorted(queues.quotas.queues.items()):
        yield from _cluster(queue, found.cluster[name], known)
    for key, local in sorted(queues.config.local.items()):
        standing, ahead = found.local[key], found.cluster.get(local.cluster_queue)
        # A LocalQueue repeats the reason of its ClusterQueue; another reason is a fault of its own.
        if not standing.active and (ahead is None or ahead.active or standing.reason != ahead.reason):
            yield _local(queues, local, standing)
        if local.name == DEFAULT_QUEUE and not defaults:
            text = "what names no queue does not get it: this API server has no MutatingAdmissionPolicy v1"
            mend = "Kubernetes 1.36 or newer, then topogate install; until then the label queue-name on each job"
            yield warning(f"LocalQueue {local.namespace}/{local.name}", text, mend)


def _cluster(queue: ClusterQueue, standing: Standing, known: Collection[str]) -> Iterator[Finding]:
    about = f"ClusterQueue {queue.name}"
    if standing.reason is Reason.COHORT_CYCLE:
        return  # told of the cohorts
    if standing.reason is Reason.QUEUE_STOPPED:
        yield warning(about, _text(standing), f"kubectl patch clusterqueues.topogate.dev {queue.name} {GO_ON}")
        return
    named = [one.flavor for group in queue.groups for one in group.flavors]
    missing = sorted({flavor for flavor in named if flavor not in known})
    if missing:
        there = f"there are {some(sorted(known))}" if known else "there is none: `topogate install --topology auto`"
        hint = meant(missing[0], known)
        mend = (
            f"kubectl edit clusterqueues.topogate.dev {queue.name}: name a ResourceFlavor that exists; {hint or there}"
        )
        # Active with a missing flavor: it admits by the others, and less than it seems to.
        yield (warning if standing.active else error)(about, _text(standing), mend)
    else:
        yield from _without_effect(about, standing)


def _without_effect(about: str, standing: Standing) -> Iterator[Finding]:
    if standing.active and standing.message.endswith((NO_EFFECT, COHORT_NO_EFFECT)):
        yield warning(about, _text(standing), f"set fairUseHalfLifeSeconds in ConfigMap {CONFIG_MAP}, as 86400 (a day)")


def _local(queues: Queues, local: LocalQueue, standing: Standing) -> Finding:
    about, where = f"LocalQueue {local.namespace}/{local.name}", f"-n {local.namespace}"
    if standing.reason is Reason.QUEUE_STOPPED:
        return warning(about, _text(standing), f"kubectl patch localqueues.topogate.dev {where} {local.name} {GO_ON}")
    if standing.reason is Reason.NO_QUEUE:
        known = queues.quotas.queues
        there = f"there are {some(sorted(known))}" if known else "docs/queues.md says how to make one"
        hint = meant(local.cluster_queue, known) or there
        mend = f"create that ClusterQueue, or the LocalQueue again with another spec.clusterQueue; {hint}"
        return error(about, _text(standing), mend)
    edit = f"kubectl edit clusterqueues.topogate.dev {local.cluster_queue}"
    mend = f"{edit}: have spec.namespaceSelector select {local.namespace}"
    return error(about, _text(standing), mend)


def _text(standing: Standing) -> str:
    return f"{standing.reason}: {standing.message}" if not standing.active else standing.message
