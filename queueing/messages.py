"""What queueing tells people: which quota, how much is missing, who uses it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from engine.cluster.levels import domain_in_words
from engine.quantity import format_quantity
from engine.reasons import Reason
from engine.results import Refusal
from queueing.model import FlavorResource, Quantities
from queueing.queues.minimum_run_time import safe_until
from queueing.queues.quota import Limits, Missing

if TYPE_CHECKING:
    from queueing.preemption.plan import Plan
    from queueing.queues.entry import Entry
    from queueing.queues.eviction_units import Path
    from queueing.queues.queues import Queues

# Messages end up in conditions, which people read in one line of a terminal.
NAMED: Final = 3
CIRCLE: Final = 6  # cohorts of a circle that are named


def counting(nodes: int) -> Refusal:
    """Devices that are being counted."""
    what = f"{nodes} nodes" if nodes > 1 else "1 node"
    return Refusal(
        Reason.PENDING, f"its devices are being counted: it is not known yet how many of its pods fit {what}"
    )


def in_circle(cohorts: Sequence[str]) -> str:
    """Cohorts that are each other's parents, each below the next and the last below the first."""
    which = f"cohort {cohorts[0]} is its own parent"
    if len(cohorts) > 1:
        names, more = list(cohorts[:CIRCLE]), len(cohorts) - CIRCLE
        last = names.pop() if more <= 0 else f"{more} more"
        way = [*cohorts[:CIRCLE], *(["..."] if more > 0 else []), cohorts[0]]
        which = f"cohorts {', '.join(names)} and {last} are each other's parents ({' → '.join(way)})"
    return f"{which}: nothing of the queues below is admitted until one of them has another parentName"


def cohort_cycle(cohorts: Sequence[str]) -> Refusal:
    """A queue below cohorts that are each other's parents."""
    return Refusal(Reason.COHORT_CYCLE, in_circle(cohorts))


def missing_parent(parent: str) -> str:
    """What is said of a cohort that names this one as its parent, of which there is no object."""
    return f"there is no Cohort {parent}, its parent: it counts as one without quota or limits"


def insufficient(queues: "Queues", queue: str, missing: Sequence[Missing]) -> Refusal:
    """Quota that others use now."""
    text = "; ".join(_missing(queues, queue, one) for one in missing)
    return Refusal(Reason.INSUFFICIENT_QUOTA, text, flavor=missing[0].flavor)


def _missing(queues: "Queues", queue: str, one: Missing) -> str:
    quotas, key = queues.quotas, (one.flavor, one.resource)
    want, lacking = format_quantity(one.resource, one.wanted), format_quantity(one.resource, one.lacking)
    nominal = format_quantity(one.resource, quotas.nominal(queue, key))
    used = format_quantity(one.resource, one.used)
    text = f"{want} {one.resource} of flavor {one.flavor} wanted, {lacking} more than is left: "
    text += f"cluster queue {queue} uses {used} of its nominal {nominal}"
    if one.non_preemptible is not None:
        lasting = format_quantity(one.resource, one.non_preemptible)
        return f"{text}, {lasting} of it for non-preemptible workloads, which may not borrow"
    if one.borrowing_limit and not one.cohort and quotas.shares(queue):
        most = format_quantity(one.resource, one.limit or 0)
        return f"{text}, and may use {most} at most with what it borrows{_users(queues, [queue], key)}"
    if one.cohort:
        most, taken = (format_quantity(one.resource, amount) for amount in quotas.use_of_cohort(one.cohort, key))
        text += f", and cohort {one.cohort} may use {most} at most with what it borrows ({taken} used)"
    sharing = quotas.members_below(queue, one.cohort) - {queue}
    using = ((name, quotas.used(name, key)) for name in sharing)
    borrowers = [name for _, name in sorted((-amount, name) for name, amount in using if amount > 0)]
    if borrowers:
        shown = ", ".join(
            f"{name} {format_quantity(one.resource, quotas.used(name, key))}" for name in borrowers[:NAMED]
        )
        more = f" and {len(borrowers) - NAMED} more" if len(borrowers) > NAMED else ""
        text += f"; in {f'cohort {one.cohort}' if one.cohort else quotas.pool(queue)} also {shown}{more}"
    return text + _users(queues, [queue, *borrowers[:NAMED]], key)


def _users(queues: "Queues", names: Iterable[str], key: FlavorResource) -> str:
    """The workloads that use most of it."""
    used: Counter[str] = Counter()
    for name in names:
        # Some of them are enough to name three; thousands of holders would make every refusal slow.
        for workload in queues.holders.first(name):
            used[queues.title_of(workload)] += queues.quotas.held[workload].amounts.get(key, 0)
    ranked = sorted(used.items(), key=lambda pair: (-pair[1], pair[0]))
    top = [workload for workload, amount in ranked if amount > 0][:NAMED]
    return (
        f" (used by {', '.join(top)} and others)"
        if len(top) == NAMED
        else f" (used by {', '.join(top)})"
        if top
        else ""
    )


def exceeds(limits: Limits, amounts: Quantities, beyond: str = "") -> Refusal:
    """More than the queue may ever have, or one that may not borrow. ``beyond``: what of it no node has either."""
    most = {key: limits.most(key) for key in amounts}
    parts = [
        f"{format_quantity(key[1], amount)} {key[1]} of flavor {key[0]} wanted, at most "
        f"{format_quantity(key[1], most[key])} possible"
        for key, amount in amounts.items()
        if amount > most[key]
    ]
    why = " for a non-preemptible workload, which may not borrow" if limits.spared else ""
    text = f"cluster queue {limits.queue}: {'; '.join(parts)}{why}"
    if beyond:
        return Refusal(Reason.EXCEEDS_QUOTA, f"{beyond}. Beside that, {text}", flavor=next(iter(amounts))[0])
    text += ". Raise its quota or borrowing limit, or ask for less"
    return Refusal(Reason.EXCEEDS_QUOTA, text, flavor=next(iter(amounts))[0])


def kept_quota_refusal(claimant: str, pool: str) -> Refusal:
    """Quota is there, but kept."""
    text = f"what is left of the quota of {pool} is kept for {claimant}, which has waited long and comes first"
    return Refusal(Reason.BEHIND_OTHERS, text)


def behind_in_room(claimants: Sequence[str]) -> Refusal:
    """Room is there, but kept."""
    waited = "have waited long and come" if len(claimants) > 1 else "has waited long and comes"
    text = f"the room where it would fit is kept for {' and '.join(claimants)}, which {waited} first"
    return Refusal(Reason.BEHIND_OTHERS, text)


def behind_successors(keys: Sequence[str]) -> Refusal:
    """Room and quota are there, but somebody fits once more has come free."""
    they = "they come first and fit" if len(keys) > 1 else "it comes first and fits"
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    text = (
        f"what it would have is kept for {', '.join(keys[:NAMED])}{more}: {they} once others that are leaving are gone"
    )
    return Refusal(Reason.BEHIND_OTHERS, text)


def beside_promised_zones() -> Refusal:
    """Room and quota are there, but a kubelet could give its pods what others are promised inside their node."""
    text = "its pods could get the NUMA zones that are kept on their nodes for others, whose victims are not gone yet"
    return Refusal(Reason.BEHIND_OTHERS, text)


def following(refusal: Refusal) -> Refusal:
    """Why one waits who has nobody evicted, as others leave by themselves."""
    text = "it fits once those that are already leaving are gone, and evicts nobody meanwhile"
    return replace(refusal, message=f"{refusal.message}; {text}")


def leaving_alone(refusal: Refusal, titles: Sequence[str]) -> Refusal:
    """Why one waits that would have others evicted in order to borrow, and had been evicted for those."""
    more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
    text = f"it evicts nobody in order to borrow from {titles[0]}{more}, for which it was evicted itself"
    return replace(refusal, message=f"{refusal.message}; {text}")


def safe_yet(queues: "Queues") -> str:
    """Until when some are safe from one that was just looked at, as they have not run for long enough; "" none are."""
    found = queues.run_times.left_out
    if found is None:
        return ""
    whose = f" of {found.minimum.source}" if found.minimum.source else ""
    text = f"{queues.title_of(found.key)} is safe from eviction until {clock_time(found.until)} (minimumRunTime{whose})"
    return text if found.last <= found.until else f"{text}, and others until {clock_time(found.last)} at the latest"


def safe_at_first(queues: "Queues", queue: str) -> str:
    """For how long one that a queue admits is safe from whom; "" it is not."""
    minimums = [(whom, one.seconds) for whom, one in queues.run_times.minimums_of(queue)]
    parts = [f"for {whom} in its first {seconds:.0f} s" for whom, seconds in _from_whom(minimums) if seconds]
    return f"it is not evicted to make room {', nor '.join(parts)} (minimumRunTime)" if parts else ""


def safe_until_when(queues: "Queues", entry: "Entry") -> str:
    """Until when one that runs is safe from whom, as things are; "" it is safe from nobody."""
    times = queues.run_times
    ends = [
        (whom, safe_until(entry.admitted_at, entry.ready_at, one.seconds))
        for whom, one in times.minimums_of(entry.queue)
    ]
    parts = [f"for {whom} until {clock_time(at)}" for whom, at in _from_whom(ends) if at > times.now]
    return f"it is not evicted to make room {', nor '.join(parts)} (minimumRunTime)" if parts else ""


def _from_whom(amounts: Sequence[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """What holds for one's own queue and by cohort, in words: the last cohort is that of all others."""
    values = {amount for _, amount in amounts}
    if len(values) == 1 and len(amounts) > 1:
        yield "others", values.pop()
        return
    for at, (cohort, amount) in enumerate(amounts):
        last = at == len(amounts) - 1
        yield ("its own queue" if not cohort else "other queues" if last else f"queues of cohort {cohort}"), amount


def clock_time(at: float) -> str:
    """A moment, for a person: ``2026-03-01 12:34:56 UTC``. ``at``: seconds since the epoch."""
    return f"{np.datetime64(int(at), 's')} UTC".replace("T", " ", 1)


def preempting(queues: "Queues", plan: "Plan") -> str:
    """What a preemptor waits for."""
    names = [
        f"{queues.title_of(victim.key)} (its slices in {name_domains(victim.domains)})"
        if victim.domains
        else queues.title_of(victim.key)
        for victim in plan.victims
    ]
    pods = sum(victim.is_pod for victim in plan.victims)
    counted = [_counted(len(names) - pods, "evicted workload")] if len(names) > pods else []
    counted += [_counted(pods, "evicted pod")] if pods else []
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    are = "is" if len(names) == 1 else "are"
    return f"waits until {' and '.join(counted)} {are} gone: {', '.join(names[:NAMED])}{more}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def deallocating(claims: Sequence[str]) -> str:
    """What a preemptor waits for whose victims are gone, and their claims are not given back."""
    more = f" and {len(claims) - NAMED} more" if len(claims) > NAMED else ""
    names = f"ResourceClaim{'s' if len(claims) > 1 else ''} {', '.join(claims[:NAMED])}{more}"
    have, them = ("have", "them") if len(claims) > 1 else ("has", "it")
    text = f"its victims are gone, but {names} still {have} devices that it needs"
    return f"{text}: it continues once kube-controller-manager deallocates {them}"


def name_domains(domains: "Iterable[Path]") -> str:
    """Domains, for a person."""
    return ", ".join(domain_in_words(domain) for domain in domains)


def losing(domains: "Iterable[Path]", why: str) -> str:
    """The message for a workload that keeps its other slices."""
    return f"it loses its slices in {name_domains(domains)}: {why}"


def preempted(by: str, queue: str, reason: Reason, cohort: str = "") -> str:
    """The message for a victim. ``cohort``: whose quota is taken back, where it is not that of the queue."""
    owner = f"cohort {cohort} takes back its quota for cluster queue {queue}"
    why = {
        Reason.IN_CLUSTER_QUEUE: f"it comes first in cluster queue {queue}",
        Reason.RECLAIMED: owner if cohort else f"cluster queue {queue} takes back its nominal quota",
        Reason.RECLAIMED_WHILE_BORROWING: f"cluster queue {queue} may preempt lower priorities while it borrows",
        Reason.FAIR_SHARING: f"the share of cluster queue {queue} is smaller",
        Reason.OUTSIDE_QUEUES: f"cluster queue {queue} comes before pods of lower priority that no queue admitted",
    }
    return f"preempted to make room for {by}: {why[reason]}"


def admitted(queue: str, counts: dict[str, int], flavors: Iterable[str], *, partly: bool) -> str:
    """What one that was admitted is told; ``counts``: of pod sets that are told without a place."""
    several = [f"{_counted(count, 'pod')} of {name}" for name, count in counts.items()]
    pods = ", ".join(several) if len(counts) > 1 else _counted(sum(counts.values()), "pod")
    fewer = ", fewer than it asked for" if partly else ""
    pods = f": {pods}" if counts else ""
    return f"admitted by cluster queue {queue} in flavor {', '.join(sorted(set(flavors))) or 'none'}{pods}{fewer}"
