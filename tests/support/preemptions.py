"""The part of `support.witness` that follows preemptions: plans as they are stored, evictions, budgets, who used what.

- A Workload is marked as preempted, and a pod of it evicted, only while it is a victim of a plan that is stored. A pod
  that is evicted for another reason has the condition Evicted on its Workload first.
- A victim has a lower priority than its preemptor, is admitted, and makes no room for itself: no plan of its own is
  stored.
- A pod that runs goes by an eviction, or with its job, its node or its place; nothing else takes it away.
- No healthy pod goes where a PodDisruptionBudget then has less than it asks for.
- A victim that was evicted waits again, with the reason in its conditions.
- What a victim had is used by whom it went for: both together would not have had quota, or no room in some NUMA zone
  (or on some node, where zones are not known).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from support.cluster_checker import (
    MARK,
    annotations_of,
    has_ended,
    has_labels,
    is_gated,
    name_of,
    number,
    owner_of,
    requests_of,
)
from support.stays import ANY, SCARCE, Going, Place, Stays, slots_of

OBSERVED, PREDICTED = (f"topogate.dev/numa-placement-{name}" for name in ("observed", "predicted"))
BY_EVICTION = ("DisruptionTarget", "EvictionByEvictionAPI")
Json = dict[str, Any]


@dataclass
class Plan:
    """One preemption as it was stored. ``outcome``: "" while it is carried out, then admitted, given up or gone."""

    preemptor: str
    uid: str
    since: int
    victims: dict[str, str]  # key by uid
    had: dict[str, dict[Place, float]]  # what each held of the scarce resource
    owner: str
    own: set[str]  # the owners of all of these
    running: dict[str, dict[Place, float]]  # what pods of others held, by owner
    parts: set[str]  # victims that lose some of their slices
    usage: dict[str, float] = field(default_factory=dict)  # of quota for it, by uid
    left: float = 0.0  # of that quota once they have gone and the preemptor has come
    outcome: str = ""
    until: int = 0
    landed: dict[Place, float] = field(default_factory=dict)  # what the preemptor has in the end
    places: list[str] = field(default_factory=list)  # of the preemptor, as they were stored one after the other
    overtaken: bool = False  # the preemptor was admitted, and made room itself before its pods were where they go

    def lasts(self, since: int, until: int) -> bool:
        """Whether some of it is in a span of revisions."""
        return self.since <= until and not 0 < self.until <= since

    @property
    def judged(self) -> bool:
        """Whether all is known of it that can be."""
        return bool(self.landed) or self.overtaken or self.outcome in {"given up", "gone"}


class Preemptions:
    """See the module's rules.

    ``zone``: devices of the scarce resource in one NUMA zone, where zones are reported; ``quota``: of the one queue.
    """

    def __init__(self, witness, zone: int = 0) -> None:
        self._all = witness
        self.zone = zone
        self.quota = float("inf")
        self.plans: list[Plan] = []
        self.evicted: dict[str, int] = {}  # uid of the Workload -> pods
        self.late: list[str] = []  # evictions that began under a plan and went on after it had ended
        self.requeued: Counter = Counter()  # by uid of the Workload
        self.refused: list[str] = []  # pods that a kubelet did not admit
        self._stays = Stays()

    def active(self) -> list[Plan]:
        """Plans that are stored now."""
        return [plan for plan in self.plans if not plan.outcome]

    # --- plans -------------------------------------------------------------------------------------------------------

    def workload(self, key: str, old: Json | None, new: Json | None) -> None:
        """A Workload changed."""
        before, after = _nomination(old), _nomination(new)
        if before is not None and (after is None or _victims(before) != _victims(after)):
            self._ended(key, new)
        if after is not None and new is not None and (before is None or _victims(before) != _victims(after)):
            self._began(key, new, after)
        self._placed(key, new)
        if (known := new or old) is not None:
            self._stays.changed(owner_of(known), self._all.revision, _given(new))
        if new is None:
            return
        was, now = _condition(old, "Evicted"), _condition(new, "Evicted")
        uid = new["metadata"]["uid"]
        if now.get("status") == "True" and was.get("status") != "True" and now["reason"] == "Preempted":
            self._told(key, new)
        had, has = (bool((found or {}).get("status", {}).get("admission")) for found in (old, new))
        if had and not has and now.get("status") == "True" and now["reason"] == "Preempted":
            self.requeued[uid] += 1
            waits = _condition(new, "QuotaReserved"), _condition(new, "Requeued")
            if (waits[0].get("status"), waits[1].get("status")) != ("False", "True") or not now.get("message"):
                self._all.complain(f"{key} made room and does not wait again: {new['status'].get('conditions')}")

    def _placed(self, key: str, now: Json | None) -> None:
        """Where a preemptor goes, which may change until its pods are there."""
        for plan in self.plans:
            if plan.preemptor != key:
                continue
            if (place := _place(now)) != (plan.places or [""])[-1]:
                plan.places.append(place)
            admitted = now is not None and now.get("status", {}).get("admission")
            plan.overtaken |= not admitted and plan.outcome == "admitted" and not plan.landed

    def _told(self, key: str, victim: Json) -> None:
        if not any(victim["metadata"]["uid"] in plan.victims for plan in self.active()):
            self._all.complain(f"{key} is told to make room, and is in no plan")
        if _condition(victim, "Preempted").get("status") != "True":
            self._all.complain(f"{key} is told to make room, and not why")

    def _began(self, key: str, preemptor: Json, nomination: Json) -> None:
        victims = _victims(nomination)
        mine = {owner_of(self._all.workloads[name]) for name in victims.values() if name in self._all.workloads}
        owner, parts = owner_of(preemptor), _parts(nomination)
        own = {owner, *mine}
        plan = Plan(key, preemptor["metadata"]["uid"], self._all.revision, victims, {}, owner, own, {}, parts)
        for uid, name in victims.items():
            victim = self._all.workloads.get(name)
            if victim is None or victim["metadata"]["uid"] != uid:
                continue  # it went while the plan was written
            plan.usage[uid] = _usage(_given(victim))
            if not victim.get("status", {}).get("admission"):
                self._all.complain(f"{name} is to make room for {key}, and holds nothing")
            if victim["spec"].get("priority", 0) >= preemptor["spec"].get("priority", 0):
                self._all.complain(f"{name} is to make room for {key}, and is no less important")
            if _nomination(victim) is not None:
                self._all.complain(f"{name} is to make room for {key}, and waits for others to make room")
            plan.had[uid] = self._holds(self._all.pods_of(victim)) | self._to_come(victim)
        plan.left = self._quota(plan)
        others: dict[str, list[Json]] = {}
        for pod in self._all.pods.values():
            others.setdefault(owner_of(pod), []).append(pod)
        plan.running = {owner: held for owner in others.keys() - own if (held := self._holds(others[owner]))}
        self.plans.append(plan)

    def _ended(self, key: str, now: Json | None) -> None:
        for plan in self.active():
            if plan.preemptor == key:
                admitted = now is not None and now.get("status", {}).get("admission")
                plan.outcome = "gone" if now is None else "admitted" if admitted else "given up"
                plan.until = self._all.revision

    def _holds(self, pods: Iterable[Json]) -> dict[Place, float]:
        """What pods that run hold of the scarce resource."""
        held: Counter = Counter()
        for pod in pods:
            node = pod["spec"].get("nodeName")
            if node and not is_gated(pod) and not has_ended(pod):
                for zone, amount in _zones(pod).items():
                    held[node, zone] += amount
        return dict(held)

    def _to_come(self, workload: Json) -> dict[Place, float]:
        """What pods of it will hold that have their slots and are on no node yet, in whatever zone."""
        missing: Counter = Counter()
        for part in self._all.parts[name_of(workload)].values():
            for node, amounts in part.on_nodes().items():
                missing[node] += amounts[SCARCE]
        for pod in self._all.pods_of(workload):
            if pod["spec"].get("nodeName") and not has_ended(pod):
                missing[pod["spec"]["nodeName"]] -= requests_of(pod["spec"]).get(SCARCE, 0)
        return {(node, ANY): amount for node, amount in missing.items() if amount > 0}

    def _quota(self, plan: Plan) -> float:
        """What is left of the quota of the scarce resource once all its victims have gone and it has come."""
        going = {uid for one in (plan, *self.active()) for uid in one.victims}
        used = 0.0
        for workload in self._all.workloads.values():
            status = workload.get("status", {})
            leaves = workload["metadata"]["uid"] in going or _condition(workload, "Evicted").get("status") == "True"
            if not leaves or "nomination" in status:
                used += _usage(_given(workload))
        return self.quota - used

    # --- pods --------------------------------------------------------------------------------------------------------

    def pod(self, key: str, old: Json | None, new: Json | None) -> None:
        """A pod changed."""
        if old is not None and not _leaves(old) and (new is None or _leaves(new)):
            self._leaving(key, old, new)
        if new is None:
            return
        if _evicted(new) and (old is None or not _evicted(old)):
            self._eviction(key, new)
        if has_ended(new) and (old is None or not has_ended(old)) and new["status"].get("reason"):
            reason = new["status"]["reason"]
            if reason in {"TopologyAffinityError", "UnexpectedAdmissionError", "SMTAlignmentError"}:
                self.refused.append(f"{key}: {reason}")
        if old is not None and OBSERVED in annotations_of(new) and OBSERVED not in annotations_of(old):
            self._landed(new)

    def _eviction(self, key: str, pod: Json) -> None:
        workload = self._all.workload_of(pod)
        if workload is None:
            planned = any(pod["metadata"]["uid"] in plan.victims for plan in self.active())  # a pod by itself
            if not planned and not self._all.is_gone(owner_of(pod)):
                self._all.complain(f"pod {key} was evicted, and is in no plan")
            return
        uid, name, told = workload["metadata"]["uid"], name_of(workload), _condition(workload, "Evicted")
        self.evicted[uid] = self.evicted.get(uid, 0) + 1
        if any(uid in plan.parts for plan in self.active()):
            return  # it loses some of its slices, and stays admitted
        if told.get("status") != "True":
            self._all.complain(f"pod {key} was evicted, and {name} was not told")
        elif told["reason"] == "Preempted" and not any(uid in plan.victims for plan in self.active()):
            if any(uid in plan.victims for plan in self.plans):
                self.late.append(f"pod {key} of {name} was evicted after the plan had ended")
            else:
                self._all.complain(f"pod {key} was evicted, and {name} is in no plan")

    def _leaving(self, key: str, old: Json, new: Json | None) -> None:
        """A pod was deleted, however."""
        owner = owner_of(old)
        if is_gated(old) or has_ended(old) or MARK not in annotations_of(old) or self._all.is_gone(owner):
            return
        if old["spec"].get("nodeName") and not self._all.lost(old) and not _evicted(new or old):
            job, workload = self._all.jobs[owner].get("status", {}), self._all.workload_of(old)
            self._all.complain(
                f"pod {key} runs on {old['spec']['nodeName']} and was deleted, and not by an eviction; the slots of "
                f"its Workload: {_place(workload)!r}; its job: {job}"
            )
        if _healthy(old) and not self._all.lost(old):
            self._budgets(key, old)

    def _budgets(self, key: str, pod: Json) -> None:
        for name, budget in self._all.budgets.items():
            labels = budget["spec"]["selector"]["matchLabels"]
            if budget["metadata"]["namespace"] != pod["metadata"]["namespace"] or not _selects(labels, pod):
                continue
            healthy = [
                other
                for other, found in self._all.pods.items()
                if other != key and _healthy(found) and _selects(labels, found)
            ]
            if len(healthy) < budget["spec"]["minAvailable"]:
                least = budget["spec"]["minAvailable"]
                self._all.complain(f"budget {name} asks for {least} pods and has {len(healthy)} after {key} went")

    # --- who used what -----------------------------------------------------------------------------------------------

    def _landed(self, pod: Json) -> None:
        """Once all pods of a workload are where they are, it is noted what they hold."""
        workload = self._all.workload_of(pod)
        if workload is None:
            return
        pods = self._all.pods_of(workload)
        if not all(OBSERVED in annotations_of(each) for each in pods):
            return
        if len(pods) < sum(part.count for part in self._all.parts[name_of(workload)].values()):
            return
        held = self._holds(pods)
        self._stays.landed(owner_of(workload), held)
        for plan in self.plans:
            if plan.uid == workload["metadata"]["uid"] and plan.outcome == "admitted" and not plan.judged:
                plan.landed = held

    def in_vain(self) -> list[str]:
        """Victims of plans that were carried out whose room was not needed. To be asked once all have landed."""
        found = []
        for plan in [plan for plan in self.plans if plan.landed]:
            span = plan.since, plan.until
            beside = self._stays.beside(plan.running, plan.own, span, self._going(plan))
            for uid, had in plan.had.items():
                if plan.usage[uid] > plan.left or beside.collides(plan.landed, had, self._zones(plan)):
                    continue  # without it quota would not do, or room
                nodes = {node for node, _ in plan.landed}
                found.append(
                    f"{plan.victims[uid]} went for {plan.preemptor}, which needed none of its room: it had {had}, "
                    f"that has {plan.landed} after {plan.places}; {plan.left} of quota were left; on these nodes "
                    f"{beside.told(nodes)}"
                )
        return found

    def _going(self, plan: Plan) -> Going:
        """Who went for others at that time."""
        others = [other for other in self.plans if other.uid != plan.uid and other.lasts(plan.since, plan.until)]
        return Going({owner for one in others for owner in one.own - {one.owner}}, {one.owner for one in others})

    def _zones(self, plan: Plan) -> dict[str, dict[str, float]]:
        """By node of a preemptor, what each zone has there; where zones are not known, the node."""
        found: dict[str, dict[str, float]] = {}
        for node, zone in plan.landed:
            room = number(self._all.nodes[node]["status"]["allocatable"].get(SCARCE, 0))
            names = [f"node-{at}" for at in range(int(room // self.zone))] if zone else [""]
            found[node] = dict.fromkeys(names, self.zone if zone else room)
        return found

    def aligned(self, workload: Json, most: int = 1) -> list[str]:
        """Pods of a Workload that are in more zones than ``most``, or say nothing of zones."""
        wrong = []
        for pod in self._all.pods_of(workload):
            zones = set(_zones(pod)) if OBSERVED in annotations_of(pod) else set()
            if not 0 < len(zones) <= most:
                wrong.append(f"pod {name_of(pod)} is in zones {sorted(zones)}")
        return wrong


def _zones(pod: Json) -> dict[str, float]:
    """What the pod has of the scarce resource, by zone; all of it in "" where zones are not known."""
    text = annotations_of(pod).get(OBSERVED) or annotations_of(pod).get(PREDICTED)
    if not text:
        return {"": requests_of(pod["spec"]).get(SCARCE, 0)}
    zones: Counter = Counter()
    for entry in msgspec.json.decode(text):
        zones[entry["zone"]] += number(entry["amount"].get(SCARCE, 0))
    return {zone: amount for zone, amount in zones.items() if amount}


def _nomination(workload: Json | None) -> Json | None:
    return workload.get("status", {}).get("nomination") if workload is not None else None


def _given(workload: Json | None) -> list[Json]:
    """What a Workload has, and what it is to have (beside that, where it grows)."""
    status = (workload or {}).get("status", {})
    return [found for name in ("admission", "nomination") if (found := status.get(name))]


def _usage(given: list[Json]) -> float:
    """Of quota for the scarce resource."""
    parts = [part for one in given for part in one.get("podSetAssignments", ())]
    return sum(number(part.get("resourceUsage", {}).get(SCARCE, 0)) for part in parts)


def _place(workload: Json | None) -> str:
    """Where a Workload has its slots, or is to have them."""
    admission = (workload or {}).get("status", {}).get("admission")
    slots = slots_of([admission] if admission else _given(workload))
    text = " ".join(f"{node}={amount:g}" for (node, _), amount in slots.items())
    return ("" if admission else "nominated ") * bool(slots) + text


def _victims(nomination: Json) -> dict[str, str]:
    return {victim["uid"]: f"{victim['namespace']}/{victim['name']}" for victim in nomination.get("victims", ())}


def _parts(nomination: Json) -> set[str]:
    return {victim["uid"] for victim in nomination.get("victims", ()) if victim.get("domains")}


def _condition(workload: Json | None, type_: str) -> Json:
    conditions = (workload or {}).get("status", {}).get("conditions", [])
    return next((found for found in conditions if found["type"] == type_), {})


def _evicted(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any((found["type"], found.get("reason")) == BY_EVICTION for found in conditions)


def _leaves(pod: Json) -> bool:
    return pod["metadata"].get("deletionTimestamp") is not None


def _healthy(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    return not _leaves(pod) and any((found["type"], found["status"]) == ("Ready", "True") for found in conditions)


def _selects(labels: dict[str, str], pod: Json) -> bool:
    return has_labels({"metadata": {"labels": {}, **pod["metadata"]}}, labels)
