"""Judges a history from the stored objects alone, and shares no code with what it judges.

`Judge.changed` is told of every change, and says at that moment what of the invariants is broken:

- no slot is held by two pods, no node is over-committed by assignments, no more pods in a slice than its count
- no pod loses its gate before an admission with that slice is stored for its own job
- all pod sets are assigned, or none; a required pod set stays in one domain
- quota: what is admitted anew fits what the queue's quotas were within the last minutes, beside all that runs
- nothing runs that no quota paid for (`paid`), and nobody loses what is his (`losses`)

`unsettled` says what is wrong with a cluster in which nothing happens any more: somebody fits and waits, a pod sits in
no slot, or a gated pod's Workload does not say why.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from support.history import losses, paid
from support.history.actors import allocatable, asked_first, ready, requests, resized, takes, usable
from support.history.server import (
    CONTROLLER,
    HOSTILE,
    MARK,
    NAMESPACE,
    Json,
    Key,
    Server,
    ended,
    gated,
    is_group,
    is_jobset,
    is_led,
    is_set,
    is_true,
    labels_of,
    named_by,
    over,
    owner_of,
    owners,
    parent_of,
    refused,
)
from support.history.stored import (
    HOSTNAME,
    MAIN,
    Slices,
    admission_of,
    beyond_slots,
    count_of,
    cpu_of,
    granted_each,
    heads_for,
    holds,
    last_of,
    name_of,
    nominal_of,
    planned_of,
    pod_set_of,
    slice_of,
    slices_of,
    taken,
    usage_of,
)
from support.history.trees import CohortTrees

from ungater.jobs.leaderworkerset import NAME

LEVELS = ("block", "rack", HOSTNAME)
REQUIRED = "kueue.x-k8s.io/require-topology"
GROWS = " (growth)"  # after a name: what is held for more of its pods
LAG = 300.0  # seconds for which an older quota may still be what the controller knows


class Part(NamedTuple):
    """What an owner wants of a pod set at once from here on, were it not suspended."""

    pod_set: str
    template: Json
    count: int


class Judge:
    """See the module's rules. ``wrong``: what was found, in words."""

    def __init__(self, server: Server, trees: CohortTrees) -> None:
        self.server = server
        self._trees = trees
        self.wrong: list[str] = []
        self._forsaken: set[str] = set()  # uids of pods that were to go when their node was lost: they hold nothing
        self._astray: set[str] = (
            set()
        )  # uids of pods whose slots moved before they could start: they are to be replaced
        self._closed: dict[str, float] = {}  # when a node was last seen that takes no pods
        self._quotas: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._taken: dict[str, tuple[float, Json]] = {}  # by owner: Workloads that others deleted last, and when
        self._held: dict[str, int] = {}  # cpu of a queue that a Workload had when it was deleted, by its name
        self.payers = paid.Payers(server, self)
        self.losses = losses.Losses(server, self)
        self._asked: dict[tuple[str, str | None], float] = {}  # domains that pods of an owner asked for: when last
        self._lent: set[str] = set()  # nodes of pods that were resized to less: others have the rest, whoever follows
        self._renewed: dict[str, float] = {}  # when a LeaderWorkerSet of that name was deleted
        server.judge = self.changed

    def changed(self, key: Key, old: Json | None, new: Json | None, who: str) -> None:
        """One change was made."""
        kind = key[0]
        if kind in {"nodes", "pods"}:
            self._note_lost()
        if kind == "pods" and new is not None and resized(new) and takes(new)["cpu"] < asked_first(new):
            self._lent.add(new["spec"].get("nodeName", ""))
        if kind == "pods" and old is not None and key[1] == HOSTILE:
            self._asked |= {(uid, _asks(old)): self.server.loop.now for uid in {owner_of(old), *named_by(old)}}
        self.wrong += self.losses.changed(key, old, new, who)
        self.wrong += self.payers.changed(key, old, new, who)
        if kind == "nodes" and not all(each is not None and usable(each) for each in (old, new)):
            self._closed[key[2]] = self.server.loop.now
        if kind == "workloads" and new is None and old is not None:
            if old.get("status") or name_of(old) not in self._held:  # else made anew and deleted before it held again
                self._held[name_of(old)] = cpu_of(old)
            if who != CONTROLLER:
                self._taken[owner_of(old)] = (
                    self.server.loop.now,
                    last_of(old, self._taken.get(owner_of(old), (0, old))[1]),
                )
        if kind == "leaderworkersets" and new is None:
            self._renewed[key[2]] = self.server.loop.now
        if kind == "clusterqueues" and new is not None:
            self._quotas[key[2]].append((self.server.loop.now, nominal_of(new)))
        elif kind == "workloads" and new is not None and new.get("status") != (old or {}).get("status"):
            self.wrong += self._workload(old, new)
        elif kind == "pods" and old is not None and new is not None and gated(old) and not gated(new):
            self.wrong += self._ungated(new, who) if key[1] == NAMESPACE else ()

    # --- at every moment -----------------------------------------------------------------------------------------

    def _workload(self, old: Json | None, new: Json) -> Iterator[str]:
        admission, before = admission_of(new), admission_of(old) if old is not None else None
        if admission is None or admission == before:
            return
        name, names = name_of(new), [each["name"] for each in new["spec"]["podSets"]]
        if [each["name"] for each in admission["podSetAssignments"]] != names:
            yield f"{name}: pod sets {names}, assigned {admission['podSetAssignments']}"
        slices = slices_of(new)
        keys = [(each.pod_set, *sorted(each.labels.items())) for each in slices]
        if len(set(keys)) < len(keys):
            yield f"{name}: one slice twice in {slices}"
        if any(each.count < 1 for each in slices):
            yield f"{name}: an empty slice in {slices}"
        for part in admission["podSetAssignments"]:
            if count_of(slices, part["name"]) != part["count"]:
                yield f"{name}: slices {slices} are not the counts of {admission}"
        if not (new["metadata"]["namespace"] == HOSTILE and self._asked_otherwise(new, slices)):
            yield from _one_domain(new, slices)
        yield from self._full(slices, name)
        if before is not None:
            self._note_moved(new, slices, slices_of(old))
        else:  # what is still on its way out since an earlier admission sits beside the new slots, not in them
            # Where its Workload was deleted while no controller was there, it is placed anew, and all of it goes.
            last = self._deleted(owner_of(new))
            anew = last is not None and slices_of(last) != slices
            leaving = (pod for pod in self._holders(new) if anew or pod["metadata"].get("deletionTimestamp"))
            self._astray |= {pod["metadata"]["uid"] for pod in leaving}
        yield from self._crowded(new, slices)
        yield from self._over_quota(new, before)

    def _asked_otherwise(self, workload: Json, slices: Slices) -> bool:
        """Whether slots are not for what a Workload asks for, by other requests in the pods of one owner.

        Pods that ask for different domains are placed as those that wait ask. And what is written again, where the
        Workload was deleted, is what it was given before.
        """
        uid, since = owner_of(workload), self.server.loop.now - LAG  # its pods may be gone by now
        asked = {level for (owner, level), at in self._asked.items() if owner == uid and at >= since}
        asked |= {_asks(pod) for pod in self._named(workload)}
        before = self._deleted(owner_of(workload))
        return len(asked) > 1 or (before is not None and slices_of(before) == slices)

    def _named(self, workload: Json) -> Iterator[Json]:
        """The pods of whom a Workload names, and of whom its own name tells where somebody wrote another's on it."""
        uid, meta = owner_of(workload), workload["metadata"]
        members = {ref["uid"] for ref in meta.get("ownerReferences") or ()}
        there = {
            owner["metadata"]["uid"]: owner["metadata"]["name"] for owner in owners(self.server, meta["namespace"])
        }
        if uid not in there:
            members |= {other for other, name in there.items() if f"-{name}-" in meta["name"]}
        within = self.server.within("jobs", meta["namespace"])  # of a JobSet, whatever labels its pods have
        members |= {job["metadata"]["uid"] for job in within if parent_of(job) in {uid, *members} - {""}}
        for pod in self.server.within("pods", meta["namespace"]):
            if owner_of(pod) in {uid, *members} or pod["metadata"]["uid"] in members or members & set(named_by(pod)):
                yield pod

    def _full(self, slices: Slices, name: str) -> Iterator[str]:
        """Nodes on which there are more slots than fit beside the pods that were there from the beginning."""
        given: dict[str, Counter] = defaultdict(Counter)
        for workload in self.server.all("workloads"):
            job = self.job(owner_of(workload))
            if job is None or over(job) or job["metadata"].get("deletionTimestamp"):
                continue  # it gives back what it holds without a write
            for node, amounts in self._given(workload, job):
                given[node].update(amounts)
        for pod in self.server.all("pods"):
            if "always" in pod["metadata"].get("labels", {}):
                cpu = min(asked_first(pod), takes(pod)["cpu"])
                given[pod["spec"]["nodeName"]].update({"cpu": cpu, "pods": 1})
        for host in {each.labels[HOSTNAME]: None for each in slices if each.labels[HOSTNAME] not in self._lent}:
            node = self.server.get("nodes", host)
            room = allocatable(node) if node is not None else {}
            for resource, amount in given[host].items():
                if node is not None and amount > room[resource]:
                    yield f"{name}: node {host} is given {amount} of {room[resource]} {resource}"

    def _given(self, workload: Json, job: Json) -> Iterator[tuple[str, dict[str, int]]]:
        """What its slots take: node, and amounts by resource.

        A Workload keeps the templates that it was admitted with, and those of a set may be edited: a pod in a slot
        takes what it asks for, and an empty slot the least of what was granted, was asked for and is asked for now. A
        slot whose pod waits because it asks for more than that is free: the pod is placed anew, and never goes there.
        """
        slices = slices_of(workload)
        if not is_set(job):
            yield from taken(workload, slices)
            return
        least = {each["name"]: requests(each["template"]["spec"]) for each in workload["spec"]["podSets"]}
        for part in self.parts(job):
            asked = requests(part.template["spec"])
            if part.pod_set in least and asked["cpu"] < least[part.pod_set]["cpu"]:
                least[part.pod_set] = asked
        for name, cpu in granted_each(workload).items():  # its templates follow a rolling update, and its slots do not
            if name in least:
                least[name] = {**least[name], "cpu": min(least[name]["cpu"], cpu)}
        inside: dict[int | None, list[dict[str, int]]] = defaultdict(list)
        for pod in self._holders(workload):
            inside[slice_of(pod, slices)].append({"cpu": min(asked_first(pod), takes(pod)["cpu"]), "pods": 1})
        larger = Counter(
            name
            for pod in self._named(workload)
            if gated(pod)
            and requests(pod["spec"])["cpu"] > least.get(name := pod_set_of(pod, slices), {"cpu": 0})["cpu"]
        )
        for index, each in enumerate(slices):
            there = inside[index][: each.count]
            left = min(larger[each.pod_set], each.count - len(there))
            larger[each.pod_set] -= left
            for amounts in (*there, *[least[each.pod_set]] * (each.count - len(there) - left)):
                yield each.labels[HOSTNAME], amounts

    def _note_lost(self) -> None:
        for pod in self.server.all("pods"):
            name, meta = pod["spec"].get("nodeName"), pod["metadata"]
            if name and meta.get("deletionTimestamp") and meta["uid"] not in self._forsaken:
                node = self.server.get("nodes", name)
                if node is None or not ready(node):
                    self._forsaken.add(meta["uid"])

    def _note_moved(self, workload: Json, slices: Slices, before: Slices) -> None:
        """Slots of a node that takes no pods went to another: so do the pods that were sent there and cannot start.

        So do those that kube-scheduler refuses there: a slot moves before its pod is deleted (docs/after-the-gate.md).
        """
        kept = [(each.pod_set, each.labels) for each in slices]
        slices = slices + [each._replace(count=0) for each in before if (each.pod_set, each.labels) not in kept]
        for index, (_, labels, count) in enumerate(slices):
            since = self._closed.get(labels[HOSTNAME])
            node = self.server.get("nodes", labels[HOSTNAME])
            takes_pods = node is not None and usable(node) and (since is None or self.server.loop.now - since > LAG)
            there = [pod for pod in self._holders(workload) if slice_of(pod, slices) == index]
            there.sort(key=lambda pod: (not pod["spec"].get("nodeName"), refused(pod)))
            self._astray |= {pod["metadata"]["uid"] for pod in there[count:] if not takes_pods or refused(pod)}

    def _crowded(self, workload: Json, slices: Slices) -> Iterator[str]:
        used = self._used(workload, slices)
        for index, each in enumerate(slices):
            if used[index] > each.count:
                yield f"{name_of(workload)}: {used[index]} pods in slice {each}"

    def _used(self, workload: Json, slices: Slices) -> Counter:
        """Pods that hold a slot, by slice."""
        return Counter(
            index
            for pod in self._holders(workload)
            if pod["metadata"]["uid"] not in self._astray and (index := slice_of(pod, slices)) is not None
        )

    def _holders(self, workload: Json) -> list[Json]:
        """The pods of its job that were let go and take a place; where a tenant may say whose a Workload is, by it."""
        told = owner_of(workload) and (workload["metadata"]["namespace"] != HOSTILE or self.server.policies)
        return [
            pod
            for pod in self.server.all("pods")
            if owner_of(pod) == owner_of(workload)
            and (told or (pod["metadata"].get("annotations") or {}).get(MARK) == workload["metadata"]["name"])
            and not gated(pod)
            and not ended(pod)
            and holds(pod)
            and pod["metadata"]["uid"] not in self._forsaken
            and not self.payers.taken_away(pod)
            and not self._of_namesake(pod, workload)
        ]

    def _of_namesake(self, pod: Json, workload: Json) -> bool:
        """Whether a pod was let go for another Workload: of an owner with this uid, and of another kind."""
        meta, kind = pod["metadata"], workload["metadata"]["name"].partition("-")[0]
        other = self.server.get("workloads", (meta.get("annotations") or {}).get(MARK, ""), meta["namespace"])
        return (
            other is not None
            and owner_of(other) == owner_of(workload)
            and other["metadata"]["name"].partition("-")[0] != kind
        )

    def _over_quota(self, new: Json, before: Json | None) -> Iterator[str]:
        if is_adopted(new):
            return  # what Kueue started runs, whatever others were given by the same quota meanwhile
        queue = admission_of(new).get("clusterQueue", "")
        had = (
            usage_of(before) if before is not None else self._held.pop(name_of(new), 0)
        )  # it was not given back between
        if before is None:
            # Made again by others' leave: pods of it that were resized meanwhile run with what they have now.
            had += sum(max(0, takes(pod)["cpu"] - asked_first(pod)) for pod in self._holders(new) if resized(pod))
        if not queue or cpu_of(new) <= had:
            return
        if self._trees.there:
            more, each = cpu_of(new) - had, self.payers.used()
            if not self._trees.allows(queue, more, each - Counter({queue: more})):
                yield f"{name_of(new)}: {queue} takes {more} cpu more, which no tree left it: {dict(each)} are used"
            return
        queues = {each["metadata"]["name"]: each for each in self.server.all("clusterqueues")}
        cohort = queues[queue]["spec"].get("cohortName") if queue in queues else None
        members = {name for name, each in queues.items() if cohort and each["spec"].get("cohortName") == cohort}
        members |= {queue}
        limit = sum(self._most(name) for name in members)
        each = self.payers.used()
        used = sum(each[name] for name in members)
        if used > limit:
            yield f"{name_of(new)}: queues {sorted(members)} use {used} of {limit} cpu"

    def _lately(self, queue: str) -> list[int]:
        found, since = self._quotas[queue], self.server.loop.now - LAG
        late = [amount for at, amount in found if at >= since]
        early = [amount for at, amount in found if at < since][-1:]
        return [*late, *early]

    def _most(self, queue: str) -> int:
        return max(self._lately(queue))

    def least(self, queue: str) -> int:
        """The least quota that a queue had of late."""
        return min(self._lately(queue))

    def pods_for(self, workload: Json) -> int:
        """How many pods there are that may be meant by what a Workload holds."""
        marked = (
            pod
            for pod in self.server.within("pods", workload["metadata"]["namespace"])
            if (pod["metadata"].get("annotations") or {}).get(MARK) == workload["metadata"]["name"]
        )
        return len({pod["metadata"]["uid"] for pod in (*marked, *self._named(workload)) if not ended(pod)})

    def waits_for_long(self, workload: Json) -> bool:
        """Whether a pod of somebody whose room or quota a Workload waits for takes all the time that it has to stop.

        That is a victim of it, or one that was on its way out already when the victims were chosen.
        """
        nomination = (workload.get("status") or {}).get("nomination") or {}
        awaited = {(each["namespace"], each["name"]) for each in nomination.get("victims") or ()}
        awaited |= {
            (each["metadata"]["namespace"], each["metadata"]["name"])
            for each in self.server.all("workloads")
            if is_true(each.get("status"), "Evicted")
        }
        return any(
            (meta["namespace"], (meta.get("annotations") or {}).get(MARK)) in awaited
            and meta.get("deletionTimestamp", "") > self.server.now()
            for meta in (pod["metadata"] for pod in self.server.all("pods"))
        )

    def slots_to_hold(self) -> dict[str, list[tuple[tuple[str, ...], int]]]:
        """By Workload of those who are not hostile, the domains and counts of the slots that are held for it.

        One that waits for a pod that takes all its time holds what it is to get, beside what it has by a name of its
        own. All others hold what is stored and nothing else, also while such a pod is there.
        """
        jobs = {job["metadata"]["uid"]: job for job in owners(self.server)}
        slots: dict[str, Slices] = {}
        for each in self.server.all("workloads"):
            if (job := jobs.get(owner_of(each))) is None or over(job):
                continue
            name, has = name_of(each), slices_of(each)
            slots[name] = has
            if self.waits_for_long(each):
                slots[f"{name}{GROWS}" if has else name] = planned_of(each)
        return {
            name: sorted((tuple(one.labels.values()), one.count) for one in each)
            for name, each in slots.items()
            if each
        }

    def forsaken(self, pod: Json) -> bool:
        """Whether a pod was to go when its node was lost."""
        return pod["metadata"]["uid"] in self._forsaken

    def astray(self, pod: Json) -> bool:
        """Whether a pod's slot moved before it could start, or it is on its way out since an earlier admission."""
        return pod["metadata"]["uid"] in self._astray

    def has_no_slot(self, pod: Json, workload: Json) -> bool:
        """Whether a pod is where its workload has no slot, or one on a node that takes none, or took none of late."""
        slices = slices_of(workload)
        index = slice_of(pod, slices)
        if gated(pod) or index is None or pod["metadata"]["uid"] in self._astray:
            return True
        host = slices[index].labels[HOSTNAME]
        node, since = self.server.get("nodes", host), self._closed.get(host)
        if node is None or not usable(node) or (since is not None and self.server.loop.now - since < LAG):
            return True
        return self._used(workload, slices)[index] > slices[index].count

    def _wants(self, uid: str) -> bool:
        job = self.job(uid)
        return job is not None and not over(job) and not job["metadata"].get("deletionTimestamp")

    def _ungated(self, pod: Json, who: str) -> Iterator[str]:
        name = name_of(pod)
        if who != CONTROLLER:
            yield f"pod {name}: {who} removed its gate"
        if pod["metadata"].get("deletionTimestamp"):
            return  # it goes nowhere any more
        if self._may_be_of_another(pod):
            self._astray.add(pod["metadata"]["uid"])
            return
        mine = [each for each in self.server.all("workloads") if owner_of(each) == owner_of(pod)]
        if not mine:
            if self._wants(owner_of(pod)) and self._deleted(owner_of(pod)) is None:
                yield f"pod {name} was let go, and its job has no Workload"
            return
        workload = mine[0]
        if len(mine) > 1:
            yield f"pod {name}: its job has {len(mine)} Workloads"
        if pod["metadata"].get("annotations", {}).get(MARK) != workload["metadata"]["name"]:
            yield f"pod {name} is marked for another than {name_of(workload)}"
        if admission_of(workload) is None and (last := self._deleted(owner_of(pod))) is not None:
            workload = last  # the patch was sent before that was seen: it is about to be written again
        slices = slices_of(workload)
        if admission_of(workload) is None:
            yield f"pod {name} was let go, and {name_of(workload)} is not admitted"
        elif slice_of(pod, slices) is None:
            yield f"pod {name} was let go to {pod['spec'].get('nodeSelector')}, no slice of {name_of(workload)}"
        else:
            yield from self._crowded(workload, slices)

    def _deleted(self, uid: str) -> Json | None:
        """The Workload of this owner that somebody else than the controller deleted of late."""
        at, workload = self._taken.get(uid, (-LAG, None))
        return workload if self.server.loop.now - at < LAG else None

    def _may_be_of_another(self, pod: Json) -> bool:
        """A LeaderWorkerSet's pods tell its name alone: until its watch is up to date they are one's of that name."""
        since = self._renewed.get((pod["metadata"].get("labels") or {}).get(NAME, ""))
        return since is not None and self.server.loop.now - since < LAG

    def job(self, uid: str) -> Json | None:
        """The owner of this uid."""
        return next((owner for owner in owners(self.server) if owner["metadata"]["uid"] == uid), None)

    # --- when nothing happens any more -----------------------------------------------------------------------------

    def unsettled(self, *, fits: bool) -> list[str]:
        """What is wrong now; ``fits``: whether nobody may wait who would fit."""
        wrong = []
        for job in owners(self.server):
            if over(job):
                continue
            pods = [pod for pod in self.server.all("pods") if owner_of(pod) == job["metadata"]["uid"]]
            workload = next(
                (each for each in self.server.all("workloads") if owner_of(each) == job["metadata"]["uid"]), None
            )
            wrong += self._job_settled(job, workload, pods, fits=fits)
        return wrong

    def _job_settled(self, job: Json, workload: Json | None, pods: list[Json], *, fits: bool) -> Iterator[str]:
        name = name_of(job)
        wanted = self.wanted(job)
        if workload is None:
            if wanted or not is_set(job):
                yield f"job {name} has no Workload"
            return
        running = sum(pod["status"]["phase"] == "Running" for pod in pods)
        if (workload.get("status") or {}).get("nomination") and not self.waits_for_long(workload):
            yield f"{name_of(workload)} is nominated still"
        yield from self._pods_settled(job, workload, pods)
        if admission_of(workload) is not None:
            yield from self._admitted_settled(job, workload, pods, running, fits=fits)
            return
        if running and not self._outgrew(job, pods):
            yield f"job {name} runs {running} pods and is not admitted"
        if wanted and workload["spec"].get("active", True) and not _says_why(workload):
            yield f"{name_of(workload)} does not say why it waits"
        if fits and not self._held_up(job, workload) and self.fits(job, workload):
            yield f"job {name} waits and would fit"

    def _outgrew(self, job: Json, pods: list[Json]) -> bool:
        """Whether pods were resized to more than fits where they are, and their Workload was deleted by others.

        All pods of the Workload that is made anew are to take that much; until they fit, those that run are charged
        by themselves.
        """
        larger = any(resized(pod) and requests(pod["spec"])["cpu"] > asked_first(pod) for pod in pods)
        return larger and job["metadata"]["uid"] in self._taken

    def _pods_settled(self, job: Json, workload: Json, pods: list[Json]) -> Iterator[str]:
        slices = slices_of(workload)
        self._astray.clear()
        yield from self._crowded(workload, slices)
        for pod in pods:
            astray = not gated(pod) and not ended(pod) and slice_of(pod, slices) is None
            if astray and not self._outgrew(job, pods):
                yield f"pod {name_of(pod)} sits at {pod['spec'].get('nodeSelector')}, no slice of {name_of(workload)}"
            if gated(pod) and not _says_why(workload):
                yield f"pod {name_of(pod)} is gated, and {name_of(workload)} does not say why"
            told = {job["metadata"]["uid"], pod["metadata"]["uid"], parent_of(pod)}
            if is_group(job):  # one pod tells, or none any more
                told |= {each["metadata"]["uid"] for each in (*pods, workload)}
            if gated(pod) and not any(self.server.events.get(uid) for uid in told):
                yield f"pod {name_of(pod)} is gated, and no event says why"

    def _admitted_settled(
        self, job: Json, workload: Json, pods: list[Json], running: int, *, fits: bool
    ) -> Iterator[str]:
        slices, wanted = slices_of(workload), self.wanted(job)
        if is_true(workload.get("status"), "Evicted"):
            yield f"{name_of(workload)} is on its way out still"
        if job["spec"].get("suspend"):
            return
        total, used = count_of(slices), sum(not gated(pod) and not ended(pod) for pod in pods)
        if wanted and total > max(wanted, used):
            yield f"{name_of(workload)} has {total} slots, and its job wants {wanted}"
        if running < wanted <= total and not self._has_lost(slices) and not _asks_for_more(workload, pods):
            yield f"job {name_of(job)}: {running} of {wanted} pods run, in slots {slices}"
        if is_set(job) and fits and total < wanted and not self._has_lost(slices) and self.fits(job, workload):
            yield f"set {name_of(job)} waits with {wanted - total} pods, and they would fit"

    def _has_lost(self, slices: Slices) -> bool:
        """Whether a node takes no pods, or one there was given more than it came with: of that nobody was told."""
        hosts = {each.labels[HOSTNAME] for each in slices}
        grown = any(
            takes(pod)["cpu"] > asked_first(pod)
            for pod in self.server.all("pods")
            if pod["spec"].get("nodeName") in hosts
        )
        nodes = (self.server.get("nodes", host) for host in hosts)
        return grown or any(node is None or not usable(node) for node in nodes)

    def _held_up(self, job: Json, workload: Json) -> bool:
        """By somebody's wish: nobody has to let it in."""
        queued = "kueue.x-k8s.io/queue-name" in labels_of(job)
        by_hand = "by-hand" in job["metadata"].get("annotations", {})
        return (
            not workload["spec"].get("active", True)
            or (job["spec"].get("suspend") and (not queued or by_hand))
            or not self.wanted(job)
            or (not queued and job["spec"].get("waits", False) and _lacks_pods(workload))
        )

    def parts(self, owner: Json) -> list[Part]:
        """Its pod sets."""
        if is_led(owner) and "leaderTemplate" in owner["spec"]:
            spec = owner["spec"]
            parts = (Part("leader", spec["leaderTemplate"], 1), Part("workers", spec["template"], spec["size"] - 1))
            return [part for part in parts if part.count]
        if not is_jobset(owner):
            return [Part(MAIN, owner["spec"]["template"], _wanted(owner))]
        jobs = [job for job in self.server.all("jobs") if parent_of(job) == owner["metadata"]["uid"]]
        there = {job["metadata"]["name"]: job for job in jobs if not job["metadata"].get("deletionTimestamp")}
        return [
            Part(
                each["name"],
                each["template"]["spec"]["template"],
                sum(
                    _wanted(there.get(f"{owner['metadata']['name']}-{each['name']}-{index}", each["template"]))
                    for index in range(each["replicas"])
                ),
            )
            for each in owner["spec"]["replicatedJobs"]
        ]

    def wanted(self, owner: Json) -> int:
        """Pods that it wants at once from here on, were it not suspended."""
        return sum(part.count for part in self.parts(owner))

    def fits(self, job: Json, workload: Json, *, idle: bool = False) -> bool:
        """Whether what it lacks could surely be admitted now, without anybody's leave; ``idle``: if it were alone."""
        queue, slices = labels_of(job).get("kueue.x-k8s.io/queue-name", ""), slices_of(workload)
        lacks = [part._replace(count=part.count - count_of(slices, part.pod_set)) for part in self.parts(job)]
        cpu = sum(requests(part.template["spec"])["cpu"] * part.count for part in lacks)
        if queue and not self._quota_left(queue, cpu, idle=idle, uid=job["metadata"]["uid"]):
            return False
        free = self.free(idle=idle)
        return all(
            part.count
            <= self._room(part, [each for each in slices if each.pod_set == part.pod_set], free)
            - sum(_beside(part, other) for other in lacks if other is not part)
            for part in lacks
            if part.count
        )

    def beyond_quota(self, owner: Json) -> bool:
        """Whether all its pods together ask for more than its queue could give them if they were alone."""
        queue = labels_of(owner).get("kueue.x-k8s.io/queue-name", "")
        cpu = sum(requests(part.template["spec"])["cpu"] * part.count for part in self.parts(owner))
        return bool(queue) and not self._quota_left(queue, cpu, idle=True, uid=owner["metadata"]["uid"])

    def _room(self, part: Part, slices: Slices, free: dict[str, Counter]) -> int:
        """Most pods of a pod set that fit in one domain of its level, that of its slots where it has some."""
        each = requests(part.template["spec"])
        level = part.template["metadata"]["annotations"].get(REQUIRED)
        upper = LEVELS[: LEVELS.index(level) + 1] if level else ()
        room: Counter = Counter()
        for node in self.server.all("nodes"):
            name, labels = node["metadata"]["name"], node["metadata"]["labels"]
            if usable(node) and all(labels[key] == has.labels[key] for has in slices for key in upper):
                takes = max(0, min(free[name][resource] // amount for resource, amount in each.items() if amount))
                room[tuple(labels[key] for key in upper)] += takes
        return max(room.values(), default=0)

    def free(self, *, idle: bool = False) -> dict[str, Counter]:
        """What is free on nodes: beside slots, and pods that are in none."""
        free = {node["metadata"]["name"]: Counter(allocatable(node)) for node in self.server.all("nodes")}
        everything = defaultdict(Counter, free)
        held = {} if idle else {owner_of(each): each for each in self.server.all("workloads")}
        for workload in () if idle else self.server.all("workloads"):
            if workload["metadata"]["namespace"] != HOSTILE and not self._wants(owner_of(workload)):
                held.pop(owner_of(workload), None)
                continue
            # What is planned for it is kept for it, however long a pod takes to stop whose room it waits for.
            planned = planned_of(workload) if self.waits_for_long(workload) else []
            for node, amounts in taken(workload, [*slices_of(workload), *planned]):
                everything[node].subtract(amounts)
        for pod in self.server.all("pods"):
            node = pod["spec"].get("nodeName") or heads_for(pod)
            if not node or ended(pod) or (idle and owner_of(pod)):
                continue
            if pod["metadata"]["namespace"] == HOSTILE:
                held.pop(owner_of(pod), None)  # whatever its slots are
            everything[node].subtract(beyond_slots(pod, held.get(owner_of(pod))))
        return everything

    def _quota_left(self, local: str, more: int, *, idle: bool, uid: str) -> bool:
        """Whether the queue of the owner with this uid has room; ``idle``: if it were alone.

        Without a loan, but in a tree of cohorts, where it may be one.
        """
        found = self.server.get("localqueues", local, NAMESPACE)
        queue = self.server.get("clusterqueues", found["spec"]["clusterQueue"]) if found is not None else None
        if queue is None or queue["spec"].get("stopPolicy", "None") != "None":
            return False
        used: Counter = Counter()
        # A set whose other pods find no place beside those that run keeps its quota, however long others wait for it.
        for each in self.server.all("workloads") if idle else ():
            if _is_partly_placed(each) and owner_of(each) != uid:
                used[admission_of(each).get("clusterQueue", "")] += cpu_of(each)
        for (_, name), cpu in () if idle else self.payers.running().items():
            used[name] += cpu
        name, cohort = queue["metadata"]["name"], queue["spec"].get("cohortName")
        others = [
            each for each in self.server.all("clusterqueues") if cohort and each["spec"].get("cohortName") == cohort
        ]
        if self._trees.there:
            others = [*self.server.all("clusterqueues")]
        names = {name, *(each["metadata"]["name"] for each in others)}
        for pod in () if idle else self.server.all("pods"):
            let = self.payers.let.get(pod["metadata"]["uid"])
            for one in names if holds(pod) and not ended(pod) and not gated(pod) else ():
                if let is None or let.queue != one or self.forsaken(pod):  # its node may be back
                    used[one] += self.payers.may_take(pod, one)
        for workload in () if idle else self.server.all("workloads"):
            if self._wants(owner_of(workload)) or workload["metadata"]["namespace"] == HOSTILE:
                used[(admission_of(workload) or {}).get("clusterQueue", "")] += cpu_of(workload)
        if self._trees.there:
            # Of an idle cluster that is no promise: what is lent others may keep for as long as they run.
            loan = not idle or used[name] + more <= nominal_of(queue)
            return loan and self._trees.surely_left(name, used) >= more
        total = sum(map(nominal_of, others)) - sum(used[each["metadata"]["name"]] for each in others)
        return used[name] + more <= nominal_of(queue) and (not cohort or more <= total)


def is_adopted(workload: Json) -> bool:
    """Whether what it has was taken over from Kueue."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any((one["type"], one["reason"]) == ("QuotaReserved", "Adopted") for one in conditions)


def _is_partly_placed(workload: Json) -> bool:
    """Whether pods of it run, and no place is found for the others beside them."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    reasons = ((one["type"], one["reason"]) for one in conditions)
    return admission_of(workload) is not None and ("PodsReady", "PartlyPlaced") in reasons


def _wanted(job: Json) -> int:
    """Pods of a Job or a set at once, of a JobSet's Job template too."""
    status, spec = job.get("status") or {}, job["spec"]
    if "replicas" in spec:
        return 0 if over(job) else max(0, spec["replicas"] - status.get("succeeded", 0))
    return 0 if over(job) else max(0, min(spec["parallelism"], spec["completions"] - status.get("succeeded", 0)))


def _asks(pod: Json) -> str | None:
    """The level in one domain of which a pod wants to be with those of its workload."""
    return (pod["metadata"].get("annotations") or {}).get(REQUIRED)


def _beside(part: Part, other: Part) -> int:
    """Places for pods of a pod set that those of another may take, wherever they go."""
    own, its = (requests(each.template["spec"])["cpu"] for each in (part, other))
    return other.count * max(1, -(-its // own))


def _one_domain(workload: Json, slices: Slices) -> Iterator[str]:
    for pod_set in workload["spec"]["podSets"]:
        request = pod_set.get("topologyRequest") or {}
        if request.get("policy") != "Required" or request["level"] not in LEVELS:
            continue
        upper = LEVELS[: LEVELS.index(request["level"]) + 1]
        own = [each for each in slices if each.pod_set == pod_set["name"]]
        domains = {tuple(each.labels[key] for key in upper) for each in own}
        if len(domains) > 1:
            yield f"{name_of(workload)}: required {request['level']}, but {pod_set['name']} over {sorted(domains)}"


def _lacks_pods(workload: Json) -> bool:
    """Whether it waits, for an hour at most, since pods in its namespace did not come in time."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any((one["type"], one["reason"]) == ("QuotaReserved", "PodsMissing") for one in conditions)


def _asks_for_more(workload: Json, pods: list[Json]) -> bool:
    """Whether a pod behind its gate asks for more than its Workload was given for each: it waits for that."""
    parts = admission_of(workload)["podSetAssignments"]
    most = max(usage_of({"podSetAssignments": [part]}) // max(1, part["count"]) for part in parts)
    return any(gated(pod) and requests(pod["spec"])["cpu"] > most for pod in pods)


def _says_why(workload: Json) -> bool:
    """Whether its Workload says why it waits, or its pods do."""
    return any(
        found["status"] == "False" and found.get("message")
        for found in (workload.get("status") or {}).get("conditions") or ()
        if found["type"] in {"QuotaReserved", "PodsReady", "Admitted"}
    )
