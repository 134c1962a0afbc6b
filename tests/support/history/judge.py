"""Judges a history from the stored objects alone, and shares no code with what it judges.

`Judge.changed` is told of every change, and says at that moment what of the invariants is broken:

- no slot is held by two pods, no node is over-committed by assignments, no more pods in a slice than its count
- no pod loses its gate before an admission with that slice is stored for its own job
- all pod sets are assigned, or none; a required pod set stays in one domain
- quota: what is admitted anew fits what the queue's quotas were within the last minutes

`unsettled` says what is wrong with a cluster in which nothing happens any more: somebody fits and waits, a pod sits in
no slot, or a gated pod's Workload does not say why.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from support.history.actors import allocatable, ready, requests, usable
from support.history.server import (
    CONTROLLER,
    MARK,
    ROLE,
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
    over,
    owner_of,
    owners,
    parent_of,
)

from crds.constants import WORKER_INDEX
from ungater.leaders import NAME

HOSTNAME = "kubernetes.io/hostname"
LEVELS = ("block", "rack", HOSTNAME)
MAIN = "main"  # the pod set of those that have one
LAG = 300.0  # seconds for which an older quota may still be what the controller knows


class Slots(NamedTuple):
    """So many slots of a pod set on a node."""

    pod_set: str
    labels: dict[str, str]
    count: int


class Part(NamedTuple):
    """What an owner wants of a pod set at once from here on, were it not suspended."""

    pod_set: str
    template: Json
    count: int


Slices = list[Slots]


class Judge:
    """See the module's rules. ``wrong``: what was found, in words."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.wrong: list[str] = []
        self._forsaken: set[str] = set()  # uids of pods that were to go when their node was lost: they hold nothing
        self._astray: set[str] = (
            set()
        )  # uids of pods whose slots moved before they could start: they are to be replaced
        self._closed: dict[str, float] = {}  # when a node was last seen that takes no pods
        self._quotas: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._held: dict[str, int] = {}  # cpu of a queue that a Workload had when it was deleted, by its name
        self._renewed: dict[str, float] = {}  # when a LeaderWorkerSet of that name was deleted
        server.judge = self.changed

    def changed(self, key: Key, old: Json | None, new: Json | None, who: str) -> None:
        """One change was made."""
        kind = key[0]
        if kind in {"nodes", "pods"}:
            self._note_lost()
        if kind == "nodes" and not all(each is not None and usable(each) for each in (old, new)):
            self._closed[key[2]] = self.server.loop.now
        if kind == "workloads" and new is None and old is not None:
            self._held[_name(old)] = _cpu(old)
        if kind == "leaderworkersets" and new is None:
            self._renewed[key[2]] = self.server.loop.now
        if kind == "clusterqueues" and new is not None:
            self._quotas[key[2]].append((self.server.loop.now, _nominal(new)))
        elif kind == "workloads" and new is not None and new.get("status") != (old or {}).get("status"):
            self.wrong += self._workload(old, new)
        elif kind == "pods" and old is not None and new is not None and gated(old) and not gated(new):
            self.wrong += self._ungated(new, who)

    # --- at every moment -----------------------------------------------------------------------------------------

    def _workload(self, old: Json | None, new: Json) -> Iterator[str]:
        admission, before = _admission(new), _admission(old) if old is not None else None
        if admission is None or admission == before:
            return
        name, names = _name(new), [each["name"] for each in new["spec"]["podSets"]]
        if [each["name"] for each in admission["podSetAssignments"]] != names:
            yield f"{name}: pod sets {names}, assigned {admission['podSetAssignments']}"
        slices = slices_of(new)
        keys = [(each.pod_set, *sorted(each.labels.items())) for each in slices]
        if len(set(keys)) < len(keys):
            yield f"{name}: one slice twice in {slices}"
        if any(each.count < 1 for each in slices):
            yield f"{name}: an empty slice in {slices}"
        for part in admission["podSetAssignments"]:
            if _slots(slices, part["name"]) != part["count"]:
                yield f"{name}: slices {slices} are not the counts of {admission}"
        yield from _one_domain(new, slices)
        yield from self._full(slices, name)
        if before is not None:
            self._note_moved(new, slices)
        else:  # what is still on its way out since an earlier admission sits beside the new slots, not in them
            leaving = (pod for pod in self._holders(new) if pod["metadata"].get("deletionTimestamp"))
            self._astray |= {pod["metadata"]["uid"] for pod in leaving}
        yield from self._crowded(new, slices)
        yield from self._over_quota(new, before)

    def _full(self, slices: Slices, name: str) -> Iterator[str]:
        """Nodes on which there are more slots than fit beside the pods that were there from the beginning."""
        taken: dict[str, Counter] = defaultdict(Counter)
        for workload in self.server.all("workloads"):
            job = self._job(owner_of(workload))
            if job is None or over(job) or job["metadata"].get("deletionTimestamp"):
                continue  # it gives back what it holds without a write
            for node, amounts in _taken(workload):
                taken[node].update(amounts)
        for pod in self.server.all("pods"):
            if "always" in pod["metadata"].get("labels", {}):
                taken[pod["spec"]["nodeName"]].update(requests(pod["spec"]))
        for host in {each.labels[HOSTNAME]: None for each in slices}:
            node = self.server.get("nodes", host)
            room = allocatable(node) if node is not None else {}
            for resource, amount in taken[host].items():
                if node is not None and amount > room[resource]:
                    yield f"{name}: node {host} is given {amount} of {room[resource]} {resource}"

    def _note_lost(self) -> None:
        for pod in self.server.all("pods"):
            name, meta = pod["spec"].get("nodeName"), pod["metadata"]
            if name and meta.get("deletionTimestamp") and meta["uid"] not in self._forsaken:
                node = self.server.get("nodes", name)
                if node is None or not ready(node):
                    self._forsaken.add(meta["uid"])

    def _note_moved(self, workload: Json, slices: Slices) -> None:
        """Slots of a node that takes no pods went to another: so do the pods that were sent there and cannot start."""
        for index, (_, labels, count) in enumerate(slices):
            since = self._closed.get(labels[HOSTNAME])
            node = self.server.get("nodes", labels[HOSTNAME])
            if (node is not None and usable(node)) and (since is None or self.server.loop.now - since > LAG):
                continue
            there = [pod for pod in self._holders(workload) if slice_of(pod, slices) == index]
            there.sort(key=lambda pod: not pod["spec"].get("nodeName"))
            self._astray |= {pod["metadata"]["uid"] for pod in there[count:]}

    def _crowded(self, workload: Json, slices: Slices) -> Iterator[str]:
        used = self._used(workload, slices)
        for index, each in enumerate(slices):
            if used[index] > each.count:
                yield f"{_name(workload)}: {used[index]} pods in slice {each}"

    def _used(self, workload: Json, slices: Slices) -> Counter:
        """Pods that hold a slot, by slice."""
        return Counter(
            index
            for pod in self._holders(workload)
            if pod["metadata"]["uid"] not in self._astray and (index := slice_of(pod, slices)) is not None
        )

    def _holders(self, workload: Json) -> list[Json]:
        """The pods of its job that were let go and take a place."""
        return [
            pod
            for pod in self.server.all("pods")
            if owner_of(pod) == owner_of(workload)
            and not gated(pod)
            and not ended(pod)
            and holds(pod)
            and pod["metadata"]["uid"] not in self._forsaken
        ]

    def _over_quota(self, new: Json, before: Json | None) -> Iterator[str]:
        queue = _admission(new).get("clusterQueue", "")
        had = _usage(before) if before is not None else self._held.pop(_name(new), 0)  # it was not given back between
        if not queue or _cpu(new) <= had:
            return
        queues = {each["metadata"]["name"]: each for each in self.server.all("clusterqueues")}
        cohort = queues[queue]["spec"].get("cohortName") if queue in queues else None
        members = {name for name, each in queues.items() if cohort and each["spec"].get("cohortName") == cohort}
        members |= {queue}
        limit = sum(self._most(name) for name in members)
        used = sum(
            _cpu(workload)
            for workload in self.server.all("workloads")
            if (_admission(workload) or {}).get("clusterQueue") in members and self._wants(owner_of(workload))
        )
        if used > limit:
            yield f"{_name(new)}: queues {sorted(members)} use {used} of {limit} cpu"

    def _most(self, queue: str) -> int:
        found, since = self._quotas[queue], self.server.loop.now - LAG
        late = [amount for at, amount in found if at >= since]
        early = [amount for at, amount in found if at < since][-1:]
        return max([*late, *early])

    def _wants(self, uid: str) -> bool:
        job = self._job(uid)
        return job is not None and not over(job) and not job["metadata"].get("deletionTimestamp")

    def _ungated(self, pod: Json, who: str) -> Iterator[str]:
        name = _name(pod)
        if who != CONTROLLER:
            yield f"pod {name}: {who} removed its gate"
        if pod["metadata"].get("deletionTimestamp"):
            return  # it goes nowhere any more
        if self._may_be_of_another(pod):
            self._astray.add(pod["metadata"]["uid"])
            return
        mine = [each for each in self.server.all("workloads") if owner_of(each) == owner_of(pod)]
        if not mine:
            if self._wants(owner_of(pod)):
                yield f"pod {name} was let go, and its job has no Workload"
            return
        workload = mine[0]
        if len(mine) > 1:
            yield f"pod {name}: its job has {len(mine)} Workloads"
        if pod["metadata"].get("annotations", {}).get(MARK) != workload["metadata"]["name"]:
            yield f"pod {name} is marked for another than {_name(workload)}"
        slices = slices_of(workload)
        if _admission(workload) is None:
            yield f"pod {name} was let go, and {_name(workload)} is not admitted"
        elif slice_of(pod, slices) is None:
            yield f"pod {name} was let go to {pod['spec'].get('nodeSelector')}, no slice of {_name(workload)}"
        else:
            yield from self._crowded(workload, slices)

    def _may_be_of_another(self, pod: Json) -> bool:
        """A LeaderWorkerSet's pods tell its name alone: until its watch is up to date they are one's of that name."""
        since = self._renewed.get((pod["metadata"].get("labels") or {}).get(NAME, ""))
        return since is not None and self.server.loop.now - since < LAG

    def _job(self, uid: str) -> Json | None:
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
        name = _name(job)
        wanted = self.wanted(job)
        if workload is None:
            if wanted or not is_set(job):
                yield f"job {name} has no Workload"
            return
        running = sum(pod["status"]["phase"] == "Running" for pod in pods)
        if (workload.get("status") or {}).get("nomination"):
            yield f"{_name(workload)} is nominated still"
        yield from self._pods_settled(job, workload, pods)
        if _admission(workload) is not None:
            yield from self._admitted_settled(job, workload, pods, running, fits=fits)
            return
        if running:
            yield f"job {name} runs {running} pods and is not admitted"
        if wanted and workload["spec"].get("active", True) and not _says_why(workload):
            yield f"{_name(workload)} does not say why it waits"
        if fits and not self._held_up(job, workload) and self.fits(job, workload):
            yield f"job {name} waits and would fit"

    def _pods_settled(self, job: Json, workload: Json, pods: list[Json]) -> Iterator[str]:
        slices = slices_of(workload)
        self._astray.clear()
        yield from self._crowded(workload, slices)
        for pod in pods:
            if not gated(pod) and not ended(pod) and slice_of(pod, slices) is None:
                yield f"pod {_name(pod)} sits at {pod['spec'].get('nodeSelector')}, no slice of {_name(workload)}"
            if gated(pod) and not _says_why(workload):
                yield f"pod {_name(pod)} is gated, and {_name(workload)} does not say why"
            told = {job["metadata"]["uid"], pod["metadata"]["uid"], parent_of(pod)}
            if is_group(job):  # one pod tells, or none any more
                told |= {each["metadata"]["uid"] for each in (*pods, workload)}
            if gated(pod) and not any(self.server.events.get(uid) for uid in told):
                yield f"pod {_name(pod)} is gated, and no event says why"

    def _admitted_settled(
        self, job: Json, workload: Json, pods: list[Json], running: int, *, fits: bool
    ) -> Iterator[str]:
        slices, wanted = slices_of(workload), self.wanted(job)
        if is_true(workload.get("status"), "Evicted"):
            yield f"{_name(workload)} is on its way out still"
        if job["spec"].get("suspend"):
            return
        total, used = _slots(slices), sum(not gated(pod) and not ended(pod) for pod in pods)
        if wanted and total > max(wanted, used):
            yield f"{_name(workload)} has {total} slots, and its job wants {wanted}"
        if running < wanted <= total and not self._has_lost(slices):
            yield f"job {_name(job)}: {running} of {wanted} pods run, in slots {slices}"
        if is_set(job) and fits and total < wanted and not self._has_lost(slices) and self.fits(job, workload):
            yield f"set {_name(job)} waits with {wanted - total} pods, and they would fit"

    def _has_lost(self, slices: Slices) -> bool:
        nodes = (self.server.get("nodes", each.labels[HOSTNAME]) for each in slices)
        return any(node is None or not usable(node) for node in nodes)

    def _held_up(self, job: Json, workload: Json) -> bool:
        """By somebody's wish: nobody has to let it in."""
        queued = "kueue.x-k8s.io/queue-name" in labels_of(job)
        by_hand = "by-hand" in job["metadata"].get("annotations", {})
        return (
            not workload["spec"].get("active", True)
            or (job["spec"].get("suspend") and (not queued or by_hand))
            or not self.wanted(job)
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
        lacks = [part._replace(count=part.count - _slots(slices, part.pod_set)) for part in self.parts(job)]
        cpu = sum(requests(part.template["spec"])["cpu"] * part.count for part in lacks)
        if queue and not self._quota_left(queue, cpu, idle=idle):
            return False
        free = self.free(idle=idle)
        return all(
            part.count
            <= self._room(part, [each for each in slices if each.pod_set == part.pod_set], free)
            - sum(_beside(part, other) for other in lacks if other is not part)
            for part in lacks
            if part.count
        )

    def _room(self, part: Part, slices: Slices, free: dict[str, Counter]) -> int:
        """Most pods of a pod set that fit in one domain of its level, that of its slots where it has some."""
        each = requests(part.template["spec"])
        level = part.template["metadata"]["annotations"].get("kueue.x-k8s.io/require-topology")
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
        slots = {} if idle else {owner_of(each): slices_of(each) for each in self.server.all("workloads")}
        for workload in () if idle else self.server.all("workloads"):
            if not self._wants(owner_of(workload)):
                slots.pop(owner_of(workload), None)
                continue
            for node, amounts in _taken(workload):
                everything[node].subtract(amounts)
        for pod in self.server.all("pods"):
            node = pod["spec"].get("nodeName")
            if not node or ended(pod) or (idle and owner_of(pod)):
                continue
            if slice_of(pod, slots.get(owner_of(pod), [])) is None:
                everything[node].subtract(requests(pod["spec"]))
        return everything

    def _quota_left(self, local: str, more: int, *, idle: bool) -> bool:
        """Whether its queue has room, without a loan."""
        found = self.server.get("localqueues", local, "ns")
        queue = self.server.get("clusterqueues", found["spec"]["clusterQueue"]) if found is not None else None
        if queue is None or queue["spec"].get("stopPolicy", "None") != "None":
            return False
        used: Counter = Counter()
        for workload in () if idle else self.server.all("workloads"):
            if self._wants(owner_of(workload)):
                used[(_admission(workload) or {}).get("clusterQueue", "")] += _cpu(workload)
        name, cohort = queue["metadata"]["name"], queue["spec"].get("cohortName")
        others = [
            each for each in self.server.all("clusterqueues") if cohort and each["spec"].get("cohortName") == cohort
        ]
        total = sum(map(_nominal, others)) - sum(used[each["metadata"]["name"]] for each in others)
        return used[name] + more <= _nominal(queue) and (not cohort or more <= total)


def _wanted(job: Json) -> int:
    """Pods of a Job or a set at once, of a JobSet's Job template too."""
    status, spec = job.get("status") or {}, job["spec"]
    if "replicas" in spec:
        return spec["replicas"]
    return 0 if over(job) else max(0, min(spec["parallelism"], spec["completions"] - status.get("succeeded", 0)))


def _beside(part: Part, other: Part) -> int:
    """Places for pods of a pod set that those of another may take, wherever they go."""
    own, its = (requests(each.template["spec"])["cpu"] for each in (part, other))
    return other.count * max(1, -(-its // own))


def slices_of(workload: Json) -> Slices:
    """Its slots."""
    admission = _admission(workload) or {"podSetAssignments": []}
    return [
        Slots(part["name"], entry["nodeLabels"], entry["count"])
        for part in admission["podSetAssignments"]
        for entry in (part.get("topologyAssignment") or {"slices": []})["slices"]
    ]


def _slots(slices: Slices, pod_set: str | None = None) -> int:
    """How many there are, in all or of a pod set."""
    return sum(each.count for each in slices if pod_set in {None, each.pod_set})


def _taken(workload: Json) -> Iterator[tuple[str, dict[str, int]]]:
    """What its slots take: node, and amounts by resource."""
    amounts = {each["name"]: requests(each["template"]["spec"]) for each in workload["spec"]["podSets"]}
    for pod_set, labels, count in slices_of(workload):
        yield labels[HOSTNAME], {name: amount * count for name, amount in amounts[pod_set].items()}


def slice_of(pod: Json, slices: Slices) -> int | None:
    """The slice that a pod was sent to."""
    selector, labels = pod["spec"].get("nodeSelector") or {}, pod["metadata"].get("labels", {})
    pod_set = labels.get(ROLE, MAIN)
    if any(each.pod_set in {"leader", "workers"} for each in slices):
        pod_set = "leader" if labels.get(WORKER_INDEX) == "0" else "workers"
    return next(
        (
            index
            for index, each in enumerate(slices)
            if each.pod_set == pod_set and all(selector.get(key) == value for key, value in each.labels.items())
        ),
        None,
    )


def holds(pod: Json) -> bool:
    """Whether it takes its place: one that is deleted and was never bound does not."""
    return not pod["metadata"].get("deletionTimestamp") or bool(pod["spec"].get("nodeName"))


def _admission(workload: Json) -> Any:
    return (workload.get("status") or {}).get("admission")


def _cpu(workload: Json) -> int:
    return _usage(_admission(workload))


def _usage(admission: Json | None) -> int:
    parts = (admission or {"podSetAssignments": []})["podSetAssignments"]
    return sum(int((each.get("resourceUsage") or {}).get("cpu", 0)) for each in parts)


def _nominal(queue: Json) -> int:
    return int(queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"])


def _one_domain(workload: Json, slices: Slices) -> Iterator[str]:
    for pod_set in workload["spec"]["podSets"]:
        request = pod_set.get("topologyRequest") or {}
        if request.get("policy") != "Required":
            continue
        upper = LEVELS[: LEVELS.index(request["level"]) + 1]
        own = [each for each in slices if each.pod_set == pod_set["name"]]
        domains = {tuple(each.labels[key] for key in upper) for each in own}
        if len(domains) > 1:
            yield f"{_name(workload)}: required {request['level']}, but {pod_set['name']} over {sorted(domains)}"


def _says_why(workload: Json) -> bool:
    """Whether its Workload says why it waits, or its pods do."""
    return any(
        found["status"] == "False" and found.get("message")
        for found in (workload.get("status") or {}).get("conditions") or ()
        if found["type"] in {"QuotaReserved", "PodsReady", "Admitted"}
    )


def _name(obj: Json) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"
