"""Nobody loses what is his: what the controller takes from honest tenants, and by which rule.

- It deletes no Workload of a job that is there and wants pods.
- It deletes or evicts no pod of a workload that is admitted, unless that is on its way out, or the pod has no slot.
- It preempts only for a workload that is nominated: one of the same queue and of higher priority, or one of another
  queue of the cohort, and then only what is borrowed.
- It preempts nobody who has not run for its minimum run time, in histories that have one.
"""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from support.history.actors import requests
from support.history.paid import believed
from support.history.server import CONTROLLER, NAMESPACE, QUEUE, Json, Key, Server, is_set, is_true, over, owner_of
from support.history.stored import admission_of, cpu_of, name_of

from ungater.model.conditions import moment

if TYPE_CHECKING:
    from support.history.judge import Judge

SOON = 3.0  # seconds in which the controller hears when one was admitted, whatever happens to its calls
LAG = 300.0  # seconds for which what was so before may still be what the controller knows
UNDER_WAY = 60.0  # seconds in which an admission that was decided is stored


class Doubt(NamedTuple):
    """A victim of a queue of which it is not stored yet that it borrows: an admission may be under way."""

    queue: str
    victim: Key
    cpu: int
    until: float
    text: str


class Minimums(NamedTuple):
    """How long workloads run at least, in seconds: against their own queue, and against others."""

    within: int = 0
    others: int = 0


def draw_minimums(seed: int) -> Minimums:
    """Those of a history; a third of them has any. By dice of its own: histories without stay what they were."""
    dice = random.Random(f"minimums {seed}")
    return Minimums(dice.choice((0, 15, 40)), dice.choice((0, 15, 40))) if dice.random() < 1 / 3 else Minimums()


class Losses:
    """See the module's rules."""

    def __init__(self, server: Server, judge: "Judge") -> None:
        self.server = server
        self._judge = judge
        self._planned: dict[str, float] = {}  # victims of nominations, by key: when that was last seen
        self._gone: dict[str, float] = {}  # queues: when a Workload or pod of theirs was deleted last
        self._leaving: dict[str, float] = {}  # Workloads by uid: when they were last on their way out
        self._doubts: list[Doubt] = []
        self.minimums = Minimums()
        # Since when each is admitted, by name: one that is deleted while its pods run is made again, and ran before.
        self._admitted: dict[str, float] = {}

    def changed(self, key: Key, old: Json | None, new: Json | None, who: str) -> Iterator[str]:
        """One change was made."""
        if key[0] == "workloads" and new is not None and new.get("status") != (old or {}).get("status"):
            yield from self._told(key, old or {}, new)
        yield from self._doubted()
        if key[0] == "workloads" and old is not None and new is None and (admission := admission_of(old)):
            self._gone[admission.get("clusterQueue", "")] = self.server.loop.now
        if key[0] == "pods" and old is not None and new is None:
            queues = (each["metadata"]["name"] for each in self.server.all("clusterqueues"))
            self._gone |= {queue: self.server.loop.now for queue in queues if believed(old, queue)}
        if key[0] in {"jobs", "jobsets"} and old is not None and new is None:  # it may have been admitted just now
            self._gone[f"cq-{(old['metadata'].get('labels') or {}).get(QUEUE)}"] = self.server.loop.now
        if who != CONTROLLER or key[1] != NAMESPACE or old is None:
            return
        going = new is None or new["metadata"].get("deletionTimestamp")
        if key[0] == "workloads" and new is None:
            yield from self._workload(old)
        elif key[0] == "pods" and going and not old["metadata"].get("deletionTimestamp"):
            yield from self._pod(old)

    def _told(self, key: Key, old: Json, new: Json) -> Iterator[str]:
        """The status of a Workload changed."""
        now, before = self.server.loop.now, old.get("status") or {}
        if is_true(before, "Evicted") or is_true(new["status"], "Evicted"):
            self._leaving[new["metadata"]["uid"]] = now
        since, earlier = _admitted_since(new), _admitted_since(old)
        if since is None or (earlier is not None and earlier != since):
            self._admitted.pop(name_of(new), None)
        if since is not None:
            self._admitted.setdefault(name_of(new), since)
        nomination = new["status"].get("nomination")
        if nomination and nomination != before.get("nomination"):
            yield from self._nominated(new, nomination)
        begins = _evicted(new) == "Preempted" != _evicted(old)
        if begins and key[1] == NAMESPACE and now - self._planned.get(name_of(new), -LAG) >= LAG:
            yield f"{name_of(new)} is preempted, and nobody was nominated for that"

    def _nominated(self, workload: Json, nomination: Json) -> Iterator[str]:
        queue, mine = nomination.get("clusterQueue", ""), _priority(workload)
        for victim in nomination["victims"]:
            if victim["kind"] != "Workload":
                continue
            key = f"{victim['namespace']}/{victim['name']}"
            self._planned[key] = self.server.loop.now
            found = self.server.get("workloads", victim["name"], victim["namespace"])
            if found is None or victim["namespace"] != NAMESPACE or (admission := admission_of(found)) is None:
                continue
            its = admission.get("clusterQueue", "")
            least, ran = self.minimums.within if its == queue else self.minimums.others, self._ran(found)
            if ran is not None and SOON < ran < least:
                yield f"{name_of(workload)} preempts {key}, which has run for {ran:.0f} s of {least}"
            if its == queue:
                # As it was when the plan was made: another boost may count since.
                if min(victim.get("priority", 0), _priority(found)) >= mine:
                    yield f"{name_of(workload)} preempts {key}, whose priority is no lower"
            elif (
                self._used(its) <= self._judge.least(its)
                and self.server.loop.now - self._gone.get(its, -LAG) >= LAG  # else it may be about to be written again
            ):
                text = f"{name_of(workload)} preempts {key}, though {its} borrows nothing"
                place: Key = ("workloads", victim["namespace"], victim["name"])
                self._doubts.append(Doubt(its, place, cpu_of(found), self.server.loop.now + UNDER_WAY, text))

    def _ran(self, workload: Json) -> float | None:
        """For how many seconds a workload has been admitted; None where it is not."""
        since = _admitted_since(workload)
        if since is None:
            return None
        return self.server.loop.clock.now() - min(since, self._admitted.get(name_of(workload), since))

    def _doubted(self) -> Iterator[str]:
        """Whose queue was not seen to borrow beside it in time."""
        left = []
        for doubt in self._doubts:
            kind, namespace, name = doubt.victim
            victim = self.server.get(kind, name, namespace)
            gone = 0 if victim is not None and admission_of(victim) is not None else doubt.cpu
            if self._used(doubt.queue) + gone > self._judge.least(doubt.queue):
                continue
            if self.server.loop.now >= doubt.until:
                yield doubt.text
            else:
                left.append(doubt)
        self._doubts = left

    def _used(self, queue: str) -> int:
        """The most that a queue may be taken to use."""
        admitted = sum(
            max(cpu_of(each), _wish(each))  # what it grows by may be about to be written
            for each in self.server.all("workloads")
            if (admission_of(each) or {}).get("clusterQueue") == queue
        )
        running = sum(cpu for (_, name), cpu in self._judge.payers.running().items() if name == queue)
        return admitted + max(running, sum(believed(pod, queue) for pod in self.server.all("pods")))

    def _workload(self, old: Json) -> Iterator[str]:
        owner = self._judge.job(owner_of(old))
        if owner is None or is_set(owner) or over(owner) or owner["metadata"].get("deletionTimestamp"):
            return
        yield f"{name_of(old)} was deleted, and its job is there"

    def _pod(self, pod: Json) -> Iterator[str]:
        uid = owner_of(pod)
        owner = self._judge.job(uid)
        if owner is None or over(owner) or owner["metadata"].get("deletionTimestamp") or owner["spec"].get("suspend"):
            return
        workload = next((each for each in self.server.within("workloads", NAMESPACE) if owner_of(each) == uid), None)
        if workload is None or admission_of(workload) is None:
            return
        if self.server.loop.now - self._leaving.get(workload["metadata"]["uid"], -LAG) < LAG:
            return
        if not self._judge.has_no_slot(pod, workload):
            yield f"pod {name_of(pod)} was deleted by the controller, and nothing says why"


def _priority(workload: Json) -> int:
    """Its priority, with the boost that counts."""
    boost = ((workload.get("status") or {}).get("priorityBoost") or {}).get("value", 0)
    return int(workload["spec"].get("priority", 0)) + int(boost)


def _wish(workload: Json) -> int:
    """What all pods take that it may have."""
    return sum(requests(each["template"]["spec"])["cpu"] * each["count"] for each in workload["spec"]["podSets"])


def _admitted_since(workload: Json) -> float | None:
    """When a workload was admitted; None where it is not."""
    said = (one for one in (workload.get("status") or {}).get("conditions") or () if one["type"] == "Admitted")
    found = next((one for one in said if one["status"] == "True"), None)
    return moment(found["lastTransitionTime"]) if found is not None else None


def _evicted(workload: Json) -> str:
    """Why a Workload is on its way out."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return next((one["reason"] for one in conditions if one["type"] == "Evicted" and one["status"] == "True"), "")
