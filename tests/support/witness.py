"""Watches every change of a cluster and says when a rule was broken, were it for one moment. Plain JSON in, words out.

It shares no code with what it judges. Fed with changes in the order of the API server's store (`support.etcd_events`),
after each of them:

- A pod that asks for a topology is born behind our gate. It loses the gate only while its Workload's admission is
  stored, into a slot of it, and it is bound to a node of that slot.
- No slot ever has more pods than it counts. Who holds no admission has no pods that run or may run.
- No node is over-committed, neither by the slots on it and its pods that are in no slot, nor by the pods that are bound
  to it or sent there.
- An admission covers all pod sets with all their pods, in slots that are named once; a queue's quota is kept, and
  a job in a queue is let go only when it was admitted.
- Preemptions, evictions and budgets: `support.preemptions`.

What takes a while is judged at the end by `support.cluster_checker`, of whose words this is made.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from support.cluster_checker import (
    MARK,
    annotations_of,
    has_ended,
    has_labels,
    is_gated,
    is_over,
    number,
    owner_of,
    requests_of,
    slices_of,
)
from support.etcd_events import Change
from support.preemptions import Preemptions

HOSTNAME = "kubernetes.io/hostname"
POD_SET = "kueue.x-k8s.io/topology-podset"
QUEUE = "kueue.x-k8s.io/queue-name"
ASKS = tuple(
    f"kueue.x-k8s.io/{name}"
    for name in (
        "require-topology",
        "prefer-topology",
        "podset-required-topology",
        "podset-preferred-topology",
        "podset-unconstrained-topology",
    )
)
MOST = 100  # complaints that are kept
Json = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One pod set of an admission: how many pods may sit at which values of the levels, and what each takes."""

    count: int
    levels: tuple[str, ...]
    slots: dict[tuple[str, ...], int]
    each: Counter
    usage: dict[tuple[str, str], float]  # of quota, by flavor and resource

    def seat(self, pod: Json) -> tuple[str, ...] | None:
        """The slot that a pod's selector names."""
        selector = pod["spec"].get("nodeSelector", {})
        values = tuple(selector.get(level, "") for level in self.levels)
        return values if values in self.slots else None

    def on_nodes(self) -> dict[str, Counter]:
        """What is taken of each node, where a slot is a node."""
        if not self.levels or self.levels[-1] != HOSTNAME:
            return {}
        return {
            values[-1]: Counter({resource: amount * count for resource, amount in self.each.items()})
            for values, count in self.slots.items()
        }


class Witness:
    """See the module's rules. ``see`` is told every change; ``wrong`` has what was found, in words."""

    def __init__(self) -> None:
        self.revision = 0
        self.seen = 0
        self.wrong: list[str] = []
        self.pods: dict[str, Json] = {}
        self.nodes: dict[str, Json] = {}
        self.workloads: dict[str, Json] = {}
        self.jobs: dict[str, Json] = {}  # by uid
        self.budgets: dict[str, Json] = {}
        self.queues: dict[str, Json] = {}
        self.parts: dict[str, dict[str, Part]] = {}  # of stored admissions, by workload and pod set
        self.admissions: dict[str, list[Json]] = defaultdict(list)  # all that were ever stored, by workload uid
        self.preemptions = Preemptions(self)
        self._job_names: dict[str, str] = {}  # uid by key
        self._workload_of: dict[str, str] = {}  # by owner
        self._pods_of: dict[str, set[str]] = defaultdict(set)  # by owner
        self._pods_on: dict[str, set[str]] = defaultdict(set)  # by the node that they are bound to or sent to
        self._held: dict[str, dict[str, Counter]] = defaultdict(dict)  # by node and workload
        self._kinds = {
            "pods": self._pod,
            "nodes": self._node,
            "workloads": self._workload,
            "jobs": self._job,
            "budgets": self._plain(self.budgets),
            "queues": self._plain(self.queues),
        }

    def see(self, change: Change) -> None:
        """Take a change in, and judge."""
        self.revision = change.revision
        self.seen += 1
        self._kinds[change.kind](change.key, change.new)

    def complain(self, text: str) -> None:
        """Note a broken rule."""
        if len(self.wrong) < MOST:
            self.wrong.append(f"revision {self.revision}: {text}")

    def cluster(self, namespaces: set[str] | None = None) -> dict[str, list[Json]]:
        """What is there now, as `support.cluster_checker` takes it."""
        found = {"pods": self.pods, "workloads": self.workloads, "jobs": self.jobs, "nodes": self.nodes}
        lists = {kind: list(objects.values()) for kind, objects in found.items()}
        if namespaces is not None:
            for kind in ("workloads", "jobs"):
                lists[kind] = [obj for obj in lists[kind] if obj["metadata"]["namespace"] in namespaces]
        return lists

    # --- what is known of things -------------------------------------------------------------------------------------

    def workload_of(self, pod: Json) -> Json | None:
        """The Workload of a pod's owner."""
        return self.workloads.get(self._workload_of.get(owner_of(pod), ""))

    def pods_of(self, workload: Json) -> list[Json]:
        """The pods of a Workload's owner."""
        return [self.pods[key] for key in sorted(self._pods_of[owner_of(workload)])]

    def is_gone(self, owner: str) -> bool:
        """Whether a job needs nothing any more."""
        return owner not in self.jobs or is_over(self.jobs[owner])

    def _without_node(self, part: Part, seat: tuple[str, ...]) -> bool:
        """Whether the node of a slot was deleted: pods that were sent there go, and their slots may be elsewhere."""
        return part.levels[-1:] == (HOSTNAME,) and seat[-1] not in self.nodes

    def lost(self, pod: Json) -> bool:
        """Whether the pod's node is not there."""
        return _place(pod) not in self.nodes

    # --- pods --------------------------------------------------------------------------------------------------------

    def _pod(self, key: str, new: Json | None) -> None:
        old = self.pods.get(key)
        if old is not None:
            self._pods_of[owner_of(old)].discard(key)
            self._pods_on[_place(old)].discard(key)
        if new is None:
            self.pods.pop(key, None)
        else:
            self.pods[key] = new
            self._pods_of[owner_of(new)].add(key)
            self._pods_on[_place(new)].add(key)
        if old is not None and new is not None and old["metadata"]["uid"] != new["metadata"]["uid"]:
            raise AssertionError(f"a deletion of pod {key} was not seen")
        if new is not None:
            self._gate(key, old, new)
            self._crowd(owner_of(new))
            if takes_room(new) and (old is None or not takes_room(old) or _place(old) != _place(new)):
                self._node_room(_place(new))
        self.preemptions.pod(key, old, new)

    def _gate(self, key: str, old: Json | None, new: Json) -> None:
        if old is None and any(ask in annotations_of(new) for ask in ASKS) and not is_gated(new) and not _left(new):
            self.complain(f"pod {key} was born without our gate")
        if old is not None and is_gated(old) and not is_gated(new):
            self._ungated(key, new)
        node = new["spec"].get("nodeName")
        if node and (old is None or not old["spec"].get("nodeName")):
            found, selector = self.nodes.get(node), new["spec"].get("nodeSelector", {})
            if found is not None and not has_labels(found, selector):
                self.complain(f"pod {key} is bound to {node}, outside of {selector}")

    def _ungated(self, key: str, pod: Json) -> None:
        workload = self.workload_of(pod)
        if workload is None:
            self.complain(f"pod {key} lost its gate, and there is no Workload of its owner")
            return
        name = workload["metadata"]["name"]
        if annotations_of(pod).get(MARK) != name:
            self.complain(f"pod {key} lost its gate for {annotations_of(pod).get(MARK)}, its Workload is {name}")
        part = self._part(pod)
        if part is None:
            self.complain(f"pod {key} lost its gate before an admission of {name} was stored")
        elif part.levels and part.seat(pod) is None:
            self.complain(f"pod {key} was sent to {pod['spec'].get('nodeSelector')}, which is no slot of {name}")

    def _part(self, pod: Json) -> Part | None:
        parts = self.parts.get(self._workload_of.get(owner_of(pod), ""), {})
        return parts.get(annotations_of(pod).get(POD_SET, "main")) or (
            next(iter(parts.values())) if len(parts) == 1 else None
        )

    def _crowd(self, owner: str) -> None:
        """No slot has more pods than it counts; who holds nothing has none."""
        workload = self.workloads.get(self._workload_of.get(owner, ""))
        if workload is None or self.is_gone(owner):
            return
        name, used = workload["metadata"]["name"], Counter()
        for key in self._pods_of[owner]:
            pod = self.pods[key]
            if not takes_room(pod) or MARK not in annotations_of(pod):
                continue
            part = self._part(pod)
            if part is None:
                if not _ends(pod):
                    self.complain(f"pod {key} is let go, and {name} has no admission")
            elif (seat := part.seat(pod)) is not None:
                used[id(part), seat] += 1
        for part in self.parts.get(self._workload_of[owner], {}).values():
            for seat, count in part.slots.items():
                if used[id(part), seat] > count and not self._without_node(part, seat):
                    there = [self.pods[key] for key in sorted(self._pods_of[owner])]
                    pods = [_told(pod) for pod in there if part.seat(pod) == seat]
                    text = f"{used[id(part), seat]} pods in slot {seat} of {name}, which counts {count}: "
                    self.complain(text + ", ".join(pods))

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _node(self, key: str, new: Json | None) -> None:
        if new is None:
            self.nodes.pop(key, None)
        else:
            self.nodes[key] = new

    def _node_room(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is None:
            return
        room = {resource: number(amount) for resource, amount in node["status"].get("allocatable", {}).items()}
        pods, foreign = Counter(), Counter()
        held = self._held[name]
        for key in self._pods_on[name]:
            pod = self.pods[key]
            if not takes_room(pod):
                continue
            amounts = Counter(requests_of(pod["spec"]))
            pods += amounts
            part = self._part(pod)
            if self._workload_of.get(owner_of(pod), "") not in held or part is None or part.seat(pod) is None:
                foreign += amounts
        slots = sum(held.values(), Counter())
        for what, taken in (("pods", pods), ("slots and pods without one", slots + foreign)):
            for resource, total in taken.items():
                if total > room.get(resource, 0):
                    self.complain(f"node {name}: {what} take {total} of {room.get(resource, 0)} {resource}")

    # --- workloads and jobs ------------------------------------------------------------------------------------------

    def _workload(self, key: str, new: Json | None) -> None:
        old = self.workloads.get(key)
        if new is None:
            self.workloads.pop(key, None)
            if old is not None and self._workload_of.get(owner_of(old)) == key:
                del self._workload_of[owner_of(old)]
        else:
            self.workloads[key] = new
            self._workload_of[owner_of(new)] = key
        before, after = _admission(old), _admission(new)
        if before != after or (old is None) != (new is None):
            self.parts[key] = _parts(new) if new is not None and after else {}
            self._hold(key)
            if new is not None:
                self._admitted(key, new, after, fresh=not before)
                self._crowd(owner_of(new))
        self.preemptions.workload(key, old, new)

    def _hold(self, key: str) -> None:
        """Have the nodes know what is held on them now."""
        touched = [name for name, held in self._held.items() if held.pop(key, None) is not None]
        workload = self.workloads.get(key)
        if workload is not None and not self.is_gone(owner_of(workload)):
            for part in self.parts[key].values():
                for name, amounts in part.on_nodes().items():
                    self._held[name][key] = self._held[name].get(key, Counter()) + amounts
                    touched.append(name)
        for name in sorted(set(touched)):
            self._node_room(name)

    def _admitted(self, key: str, workload: Json, admission: Json | None, *, fresh: bool) -> None:
        if not admission:
            return
        self.admissions[workload["metadata"]["uid"]].append(admission)
        wanted = {pod_set["name"]: pod_set for pod_set in workload["spec"]["podSets"]}
        given = {part["name"]: part for part in admission["podSetAssignments"]}
        if set(wanted) != set(given):
            self.complain(f"{key} has pod sets {sorted(wanted)}, admitted are {sorted(given)}")
        for name, part in self.parts[key].items():
            most = wanted.get(name, {}).get("count", 0)
            if fresh and not (wanted.get(name, {}).get("minCount") or most) <= part.count <= most:
                self.complain(f"{key}: {part.count} pods of {name} are admitted, it has {most}")
            slices = slices_of(given[name]["topologyAssignment"]) if part.levels else []
            if part.levels and (sum(part.slots.values()) != part.count or len(slices) != len(part.slots)):
                self.complain(f"{key}: {part.count} pods of {name} are admitted, into slots {slices}")
        self._quota(admission.get("clusterQueue", ""))

    def _quota(self, name: str) -> None:
        """A queue and its cohort use no more than they have in all; limits on lending are not looked at."""
        if name not in self.queues:
            return
        cohort = self.queues[name]["spec"].get("cohortName")
        members = {
            other for other, queue in self.queues.items() if other == name or cohort == queue["spec"].get("cohortName")
        }
        members = members if cohort else {name}
        used: Counter = Counter()
        for key, parts in self.parts.items():
            workload = self.workloads.get(key)
            if workload is None or self.is_gone(owner_of(workload)):
                continue
            if (_admission(workload) or {}).get("clusterQueue") in members:
                for part in parts.values():
                    used.update(part.usage)
        for what, limit in _nominal(self.queues[member] for member in members).items():
            if used[what] > limit:
                self.complain(f"queues {sorted(members)} use {used[what]} of {limit} {what}")

    def _job(self, key: str, new: Json | None) -> None:
        uid = new["metadata"]["uid"] if new is not None else self._job_names.get(key, "")
        old, before = self.jobs.get(uid), self.is_gone(uid)
        if new is None:
            self.jobs.pop(uid, None)
        else:
            if key in self._job_names and self._job_names[key] != uid:
                raise AssertionError(f"a deletion of job {key} was not seen")
            self.jobs[uid], self._job_names[key] = new, uid
            queued = QUEUE in new["metadata"].get("labels", {})
            let_go = not new["spec"].get("suspend") and (old is None or old["spec"].get("suspend"))
            if queued and let_go and not self.parts.get(self._workload_of.get(uid, "")):
                self.complain(f"job {key} was let go before its admission was stored")
        if new is None:
            self._job_names.pop(key, None)
        if self.is_gone(uid) != before and (workload := self._workload_of.get(uid)) is not None:
            self._hold(workload)

    @staticmethod
    def _plain(into: dict[str, Json]):
        def keep(key: str, new: Json | None) -> None:
            if new is None:
                into.pop(key, None)
            else:
                into[key] = new

        return keep


def _told(pod: Json) -> str:
    meta, spec = pod["metadata"], pod["spec"]
    gone = f", deleted at {meta['deletionTimestamp']}" if meta.get("deletionTimestamp") else ""
    made = meta.get("creationTimestamp")
    return f"{meta['name']} ({pod['status'].get('phase')} on {spec.get('nodeName')}, made {made}{gone})"


def takes_room(pod: Json) -> bool:
    """Whether the pod runs, ends, or may be bound at any moment."""
    return not is_gated(pod) and not has_ended(pod) and not (_ends(pod) and not pod["spec"].get("nodeName"))


def _ends(pod: Json) -> bool:
    return pod["metadata"].get("deletionTimestamp") is not None


def _left(pod: Json) -> bool:
    """Whether it was there before we looked, and let go."""
    return MARK in annotations_of(pod)


def _place(pod: Json) -> str:
    """The node that the pod is bound to, or that we sent it to."""
    sent = pod["spec"].get("nodeSelector", {}).get(HOSTNAME, "") if MARK in annotations_of(pod) else ""
    return pod["spec"].get("nodeName") or sent


def _admission(workload: Json | None) -> Json | None:
    return workload.get("status", {}).get("admission") if workload is not None else None


def _parts(workload: Json) -> dict[str, Part]:
    templates = {pod_set["name"]: pod_set["template"]["spec"] for pod_set in workload["spec"]["podSets"]}
    made = {}
    for part in _admission(workload)["podSetAssignments"]:
        assignment = part.get("topologyAssignment")
        slices = slices_of(assignment) if assignment else []
        levels = tuple(slices[0][0]) if slices else ()
        slots: Counter = Counter()
        for labels, count in slices:
            slots[tuple(labels[level] for level in levels)] += count
        amounts = part.get("resourceUsage", {})
        usage = {(flavor, name): number(amounts.get(name, 0)) for name, flavor in part.get("flavors", {}).items()}
        each = Counter(requests_of(templates[part["name"]])) if part["name"] in templates else Counter()
        made[part["name"]] = Part(part["count"], levels, dict(slots), each, usage)
    return made


def _nominal(queues) -> Counter:
    nominal: Counter = Counter()
    for queue in queues:
        for group in queue["spec"].get("resourceGroups", ()):
            for flavor in group["flavors"]:
                for resource in flavor["resources"]:
                    nominal[flavor["name"], resource["name"]] += number(resource.get("nominalQuota", 0))
    return nominal
