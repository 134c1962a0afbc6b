"""Sentences for people: where a workload went, and why it waits."""

from engine.cluster.levels import domain_in_words
from engine.model import HOSTNAME_LABEL, PodSet, Policy
from ungater.model.pod_slots import PodSetSlots, Values

SHOWN = 3  # domains named in a message; `topogate explain` lists them all


def admitted(slots: PodSetSlots, pod_set: PodSet) -> str:
    """Where the pods go: ``16 pods in b1/r3 (cloud.../topology-rack), on 4 hosts``."""
    level = pod_set.topology.level
    depth = slots.levels.index(level) + 1 if level in slots.levels else len(slots.levels)
    domains = by_domain(slots, depth)
    pods = f"{slots.total} pod{'s' * (slots.total != 1)}"
    if not depth or not domains:  # as somebody wrote it into the status of a Workload
        return pods
    if len(domains) == 1:
        where = f"in {domain_in_words(next(iter(domains)))} ({slots.levels[depth - 1]})"
    else:
        shown = [f"{domain_in_words(values)} ({count})" for values, count in list(domains.items())[: 2 * SHOWN]]
        more = f" and {len(domains) - len(shown)} more" if len(domains) > len(shown) else ""
        where = f"over {len(domains)} domains of {slots.levels[depth - 1]}: {', '.join(shown)}{more}"
    narrower = ""
    if depth < len(slots.levels):
        count = len(slots.slots)
        of_level = f"domain{'s' * (count != 1)} of {slots.levels[-1]}"
        what = f"host{'s' * (count != 1)}" if slots.levels[-1] == HOSTNAME_LABEL else of_level
        narrower = f", on {count} {what}"
    spilled = pod_set.topology.policy is Policy.PREFERRED and len(domains) > 1
    preferred = " (preferred: no single one had room)" if spilled else ""
    return f"{pods} {where}{narrower}{preferred}"


def by_domain(slots: PodSetSlots, depth: int) -> dict[Values, int]:
    """Pods by domain of the level at ``depth`` (1: the widest), in rank order."""
    counts: dict[Values, int] = {}
    for slot in slots.slots:
        values = slot.values[:depth]
        counts[values] = counts.get(values, 0) + slot.count
    return counts
