"""A `World` in which looks are carried out as the controller does, one after the other, until nothing changes."""

import msgspec
from support.owned import KEYS
from support.world import World

from kube.workloads import WorkloadObject
from queueing.cycle.cycle import cycle
from ungater.model import conditions as names
from ungater.model import workload_spec, workload_status
from ungater.model.actions import (
    Create,
    Delete,
    Dequeue,
    Differ,
    Enqueue,
    Instruction,
    LoseTurns,
    Release,
    TakePods,
    Ungate,
    UpdateSpec,
    WriteConditions,
)
from ungater.model.conditions import WantedCondition, merge
from ungater.model.pod_slots import is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.reconcile import reconcile

ROUNDS = 12


class LookedAt(World):
    """See the module. ``now``: the clock of every look."""

    now = 100.0

    def look(self, record: WorkloadEntry) -> list[Instruction]:
        """What is decided about a record now."""
        if not self.memory.pod_groups.regroup(record):
            return []
        return reconcile(record, self.memory.rules, self.now, self.now)

    def settle(self) -> None:
        """Look at all there is, and carry out what is decided, until that is nothing new."""
        for _ in range(ROUNDS):
            before = self._seen()
            for record in tuple(self.memory.entries.values()):
                for instruction in self.look(record):
                    self._carry_out(record, instruction)
            made = cycle(self.memory.state, self.memory.queues, self.now)
            for one in (*made.admitted, *made.resized):
                record = self.memory.entries.of_workload(one.key)
                admission = self.memory.reservations.admission_of(record, one.grant)
                self.memory.admissions.store_admission(record, admission, one.grant)
                self._store(record, admission)
            for key in self.memory.queues.entries:
                refusal, record = self.memory.queues.entries[key].refusal, self.memory.entries.of_workload(key)
                record.refused = refusal or record.refused
            if self._seen() == before:
                return

    def let_go(self, record: WorkloadEntry) -> list[str]:
        """The names of the pods that go now; they are not gated any more after this, each in its slot."""
        going = [one for one in self.look(record) if isinstance(one, Ungate)]
        for one in going:
            slots = record.slots_of(one.pod)
            self.run(record, one.pod, slots.slots[one.index])
        return sorted(one.pod.metadata.name for one in going)

    def run(self, record: WorkloadEntry, pod, slot) -> None:
        """A pod goes to a slot, as by the ungating patch, and runs there."""
        annotations = {**(pod.metadata.annotations or {}), KEYS.workload: record.job.workload}
        levels = dict(zip(record.slots_of(pod).levels, slot.values, strict=True))
        spec = msgspec.structs.replace(pod.spec, scheduling_gates=None, node_selector=levels, node_name=slot.node)
        meta = msgspec.structs.replace(pod.metadata, annotations=annotations)
        status = msgspec.structs.replace(pod.status, phase="Running")
        self.put("pod", msgspec.structs.replace(pod, metadata=meta, spec=spec, status=status))

    def said(self, record: WorkloadEntry) -> str:
        """What is said of its waiting, or of its pods'."""
        found = [one.wanted[0] for one in self.look(record) if isinstance(one, WriteConditions)]
        return f"{found[0].reason}: {found[0].message}" if found else ""

    def gated(self) -> list[str]:
        """The names of all pods behind the gate."""
        return sorted(pod.metadata.name for pod in self.stores["pod"].values() if is_gated(pod, KEYS.gate))

    def _seen(self) -> list[tuple]:
        return [
            (record.observed, record.admission, record.refused, tuple(map(repr, self.look(record))))
            for record in tuple(self.memory.entries.values())
        ]

    def _carry_out(self, record: WorkloadEntry, instruction: Instruction) -> None:
        match instruction:
            case Create() | UpdateSpec():
                body = workload_spec.new_workload(record.job, 0)
                body["metadata"] |= {"uid": "wl", "creationTimestamp": "2026-11-21T00:00:00Z"}
                self._write(record, body, record.observed.conditions if record.observed else (), record.admission)
            case Enqueue(lost, until, asked):
                record.lost, record.asked = lost, asked
                self.memory.admissions.enqueue_entry(record, until)
            case TakePods(specs, undecided):
                record.take_pods(specs, undecided=undecided)
                self.memory.views.review(record.id)
            case Differ(uids, again):
                record.see_differing(uids, self.now, again=again)
            case LoseTurns(pods):
                self.memory.in_flight.lose_turns(record, pods)
            case Dequeue():
                self.memory.admissions.dequeue_entry(record)
            case Release(wanted):
                self.memory.admissions.release_job(record)
                self._store(record, None, wanted)
            case WriteConditions((WantedCondition(names.ADMITTED, True),)):  # what else is said stays unwritten
                self._store(record, record.admission, instruction.wanted)
            case Delete(pod):
                self.drop("pod", pod)

    def _store(self, record: WorkloadEntry, admission, wanted=()) -> None:
        observed = record.observed
        conditions = merge(observed.conditions, wanted, generation=1, now=self.now) or observed.conditions
        self._write(record, workload_spec.new_workload(record.job, 0) | {}, conditions, admission)

    def _write(self, record: WorkloadEntry, body, conditions, admission) -> None:
        meta = body["metadata"] | {"uid": "wl", "creationTimestamp": "2026-11-21T00:00:00Z"}
        stored = self.stores["workload"].get(record.key)
        meta["resourceVersion"] = str(int(stored.metadata.resource_version) + 1 if stored is not None else 1)
        empty = msgspec.structs.replace(record.observed, unhealthy={}) if record.observed else None
        status = {}
        if admission is not None and empty is not None:
            status = workload_status.status_patch(empty, conditions, admission=admission)["status"]
        elif conditions and empty is not None:
            status = workload_status.conditions_patch(empty, conditions)["status"]
        status = {name: value for name, value in status.items() if value is not None}
        whole = body | {"metadata": meta, "status": status}
        workload = msgspec.json.decode(msgspec.json.encode(whole), type=WorkloadObject)
        record.observed = workload_status.observed_of(workload)
        self.put("workload", workload)
