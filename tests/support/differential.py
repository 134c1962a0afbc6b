"""Random pods for a real kubelet, what engine and simulated kubelet say to them, and where the real one disagrees."""

import json
from collections import Counter
from dataclasses import dataclass, field

import msgspec
from support.jobs import GPU

from engine.kubelet.admission import AdmissionOutcome
from engine.kubelet.admit import admit
from engine.kubelet.machine import CPU, MEMORY, ContainerKind, Machine, PodShape, Scope, TopologyPolicy
from kube.objects import Node, ObjectMeta, PodSpec
from kube.pods.requests import pod_requests
from kube.topologies import FlexTopo
from localcluster.kubelets.hardware import bits, parse_cpu_list
from localcluster.kubelets.kubelet import AdmissionVerdict, ContainerHolding, PlayedKubelet
from localcluster.kubelets.memory import PlayedBlock
from localcluster.kubelets.pods import INIT, from_api
from localcluster.kubelets.specs import NIC, build, parse_kubelet, parse_machine
from localcluster.real.layout import RealNode
from ungater.model.job_view import shape_of
from ungater.numa.sources.describe import describe

GIB = 1 << 30
REJECTED = "Pod was rejected: "
KINDS = [(), (), (), (INIT,), ("sidecar",), (INIT, "sidecar"), ("sidecar", INIT, INIT)]
Owner = tuple[str, str]  # pod's uid, container


# --- pods ------------------------------------------------------------------------------------------------------------


def random_pod(dice, name, node, devices):
    """A pod of any class that is bound to the node; ``devices``: the resources that it may ask for."""
    qos = dice.choices(["Guaranteed", "Burstable", "BestEffort"], weights=[6, 3, 1])[0]
    first = [(f"i{number}", kind) for number, kind in enumerate(dice.choice(KINDS))]
    apps = [(f"c{number}", "app") for number in range(dice.choice([1, 1, 1, 2]))]
    odd = dice.random() < 0.1
    made = {kind: [] for kind in ("init", "app")}
    for container, kind in (*first, *apps):
        cpu = dice.choice(["500m", "1500m"] if odd else ["1", "2", "2", "3", "4", "6", "8", "12"])
        amounts = {} if qos == "BestEffort" else {"cpu": cpu, "memory": f"{dice.choice([1, 2, 8, 20, 45])}Gi"}
        wanted = {GPU: str(dice.choice([1, 1, 2, 3, 4]))} if GPU in devices and dice.random() < 0.5 else {}
        wanted |= {NIC: "1"} if NIC in devices and dice.random() < 0.2 else {}
        most = amounts if qos == "Guaranteed" else {"memory": amounts["memory"]} if amounts else {}
        body = {
            "name": container,
            "image": "i",
            "resources": {"requests": {**amounts, **wanted}, "limits": {**most, **wanted}},
            **({"command": ["true"]} if kind == INIT else {}),
            **({"restartPolicy": "Always"} if kind == "sidecar" else {}),
        }
        made["app" if kind == "app" else "init"].append(body)
    annotations = (
        {"topogate.dev/run-seconds": "1"} if dice.random() < 0.1 and "sidecar" not in dict(first).values() else {}
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "initContainers": made["init"],
            "containers": made["app"],
        },
    }


# --- the kubelet's own files -----------------------------------------------------------------------------------------


@dataclass
class Files:
    """What they say, of all pods that they have."""

    free: int
    cpus: dict[Owner, int]
    memory: dict[Owner, set[tuple[str, tuple[int, ...], int]]]
    zones: dict[int, tuple[int, tuple[int, ...], int]]  # assignments, cells, free bytes
    devices: dict[Owner, dict[str, dict[str, int]]]  # resource -> id -> zone

    def of(self, uid):
        """The same of one pod, by container."""
        return tuple(
            {name: found for (pod, name), found in each.items() if pod == uid}
            for each in (self.cpus, self.memory, self.devices)
        )

    def without(self, alive):
        """Cpus, memory and devices of those who are alive."""
        return tuple(
            {owner: found for owner, found in each.items() if alive(owner[0])}
            for each in (self.cpus, self.memory, self.devices)
        )


def read(folder):
    """The files of a real kubelet."""

    def text(path):
        return json.loads(path.read_text()) if path.exists() else {}

    cpu = text(folder.kubelet / "cpu_manager_state")
    memory = text(folder.kubelet / "memory_manager_state")
    devices = {}
    for entry in (
        text(folder.device_plugins / "kubelet_internal_checkpoint").get("Data", {}).get("PodDeviceEntries") or ()
    ):
        of = devices.setdefault((entry["PodUID"], entry["ContainerName"]), {}).setdefault(entry["ResourceName"], {})
        of.update({device: int(zone) for zone, ids in entry["DeviceIDs"].items() for device in ids})
    return Files(
        parse_cpu_list(cpu.get("defaultCpuSet", "")),
        {
            (pod, name): parse_cpu_list(cpus)
            for pod, each in (cpu.get("entries") or {}).items()
            for name, cpus in each.items()
        },
        {
            (pod, name): {(block["type"], tuple(block["numaAffinity"]), block["size"]) for block in found}
            for pod, each in (memory.get("entries") or {}).items()
            for name, found in each.items()
        },
        {
            int(zone): (state["numberOfAssignments"], tuple(state["cells"]), state["memoryMap"]["memory"]["free"])
            for zone, state in (memory.get("machineState") or {}).items()
        },
        devices,
    )


def published(flex_topo):
    """Cpus, memory and devices as `Files.without` has them, of a FlexTopo; of a shared device one owner alone."""
    status = flex_topo.get("status", {})
    memory, devices = {}, {}
    for each in status.get("memory", {}).get("assignments", ()):
        block = each["type"], tuple(each["zones"]), each["size"]
        memory.setdefault((each["podUid"], each["container"]), set()).add(block)
    for resource in status.get("devices", ()):
        for device in resource["devices"]:
            if "usedBy" in device:
                devices[device["id"]] = device["usedBy"]["podUid"]
    cpus = {
        (each["podUid"], each["container"]): parse_cpu_list(each["cpus"])
        for each in status.get("cpus", {}).get("assignments", ())
    }
    return cpus, memory, devices


def is_published(flex_topo, files, alive):
    """Whether a FlexTopo says what the files say of the pods that are alive, and that it is exact."""
    conditions = flex_topo.get("status", {}).get("conditions", ())
    cpus, memory, devices = files.without(alive)
    by_pod = {device: pod for (pod, _), of in devices.items() for ids in of.values() for device in ids}
    # A kubelet writes that a container is gone, then once more that its CPUs are free: the agent may have read between.
    given, freed = 0, 0
    for owner, mask in files.cpus.items():
        given, freed = (given | mask, freed) if owner in cpus else (given, freed | mask)
    default = parse_cpu_list(flex_topo.get("status", {}).get("cpus", {}).get("defaultSet", ""))
    return (
        any(each["status"] == "True" for each in conditions)
        and published(flex_topo) == (cpus, memory, by_pod)
        and default == files.free | freed & ~given
    )


# --- one node --------------------------------------------------------------------------------------------------------


@dataclass
class Asked:
    """One pod: what was said before it came."""

    shape: PodShape
    machine: Machine
    predicted: AdmissionOutcome
    simulated: AdmissionVerdict | None = None
    by_chance: bool = False  # which zones its devices are of
    later_by_chance: bool = False  # and so what its later containers find


@dataclass
class Twin:
    """What is told beforehand of a node's pods, and judged afterwards."""

    node: RealNode
    kubelet: PlayedKubelet
    differences: list[str] = field(default_factory=list)
    left_to_chance: int = 0
    freed_meanwhile: int = 0  # what containers of other pods left was taken back between question and answer

    @classmethod
    def of(cls, node):
        return cls(node, PlayedKubelet(build(parse_machine(node.machine), node.name), parse_kubelet(node.kubelet)))

    def ask(self, flex_topo, body):
        """What the engine predicts from what the agent published."""
        wire = msgspec.convert(flex_topo, FlexTopo)
        found = describe(Node(metadata=ObjectMeta(name=self.node.name)), flex=wire)
        assert found.machine is not None, found
        assert found.machine.layout.exact, found
        layout, state = found.machine.layout, found.machine.state
        shape = shape_of(msgspec.convert(body["spec"], PodSpec), {})
        predicted = admit(layout, state, shape)
        chance, later = _chance(layout, state, shape, predicted)
        return Asked(shape, found.machine, predicted, None, chance, later)

    def play(self, asked, pod):
        """Have the simulated kubelet admit the same pod, as the API server has it."""
        asked.simulated = self.kubelet.admit_pod(from_api(pod))

    def judge(self, asked, pod, files):
        """Compare with what the kubelet said and did, right after. Raises nothing: what differs is noted."""
        status, uid = pod["status"], pod["metadata"]["uid"]
        refused = status.get("phase") == "Failed"
        real = (status["reason"], status["message"]) if refused else ("", "")
        wrong = []
        predicted = asked.predicted
        told = ("", "") if predicted.admitted else (predicted.reason, REJECTED + predicted.message)
        refusal = asked.simulated.refusal
        played = ("", "") if refusal is None else (refusal.reason, REJECTED + refusal.message)
        wrong += [("engine: verdict", told, real)] if told != real else []
        wrong += [("simulated: verdict", played, real)] if played != real else []
        self.freed_meanwhile += _is_freed(asked, uid, files)
        if not refused and told == real:
            wrong += [("engine: " + what, mine, theirs) for what, mine, theirs in _engine(asked, uid, files)]
        if not refused and played == real:
            held = self.kubelet.held_by_container(uid)
            wrong += [
                ("simulated: " + what, mine, theirs) for what, mine, theirs in self._simulated(asked, held, uid, files)
            ]
        if wrong and asked.later_by_chance:
            self.left_to_chance += 1
        elif wrong:
            shown = {name: value for name, value in pod["spec"].items() if name in {"initContainers", "containers"}}
            parts = [
                {each["name"]: each["resources"], "r": each.get("restartPolicy")}
                for of in shown.values()
                for each in of
            ]
            self.differences.append(
                f"{self.node.name} {self.node.machine}; {self.node.kubelet}: {pod['metadata']['name']} {parts}: {wrong}"
            )
        self._follow(uid, files, refused=refused, right=not any(what.startswith("simulated") for what, *_ in wrong))

    def _simulated(self, asked, held, uid, files):
        hardware = self.kubelet.hardware
        cpus, memory, devices = files.of(uid)
        mine = {name: each.cpus for name, each in held.items() if each.cpus}
        if mine != cpus:
            yield "cpus", mine, cpus
        blocks = {
            name: {(block.type, tuple(hardware.zone_ids(block.zones)), block.size) for block in each.memory}
            for name, each in held.items()
            if each.memory
        }
        through = {each.name for each in asked.shape.containers if each.kind is ContainerKind.INIT}
        # The kubelet drops those of init containers one after the other, when the next container starts.
        if {name: each for name, each in blocks.items() if name in memory or name not in through} != memory:
            yield "memory", blocks, memory
        if not asked.by_chance:
            zone_of = {device.id: device.zones[0] for each in hardware.devices.values() for device in each}
            ours = {
                (name, resource): sorted(zone_of[device] for device in ids)
                for name, each in held.items()
                for resource, ids in (each.devices or {}).items()
                if ids
            }
            theirs = {(name, r): sorted(ids.values()) for name, of in devices.items() for r, ids in of.items() if ids}
            if ours != theirs:
                yield "zones of devices", ours, theirs

    def started(self, pod):
        """Its init containers are through."""
        self.kubelet.started(from_api(pod))

    def ended(self, uid):
        """It holds nothing any more."""
        self.kubelet.remove(uid)

    def _follow(self, uid, files, *, refused, right):
        """Hold what the real one holds: devices are its chance, and what differed is noted already."""
        if refused:
            self.kubelet.remove(uid)
            return
        cpus, memory, devices = files.of(uid)
        ids = {name: {r: frozenset(of) for r, of in each.items()} for name, each in devices.items()}
        if right:
            self.kubelet.devices.release_pod(uid)
            self.kubelet.devices.restore_pod(uid, ids)
            return
        mask = self.kubelet.hardware.zone_mask
        self.kubelet.remove(uid)
        held = {
            name: ContainerHolding(
                cpus.get(name, 0),
                ids.get(name, {}),
                [PlayedBlock(kind, mask(z), size) for kind, z, size in memory.get(name, ())],
            )
            for name in {*cpus, *memory, *devices}
        }
        self.kubelet.restore_held(uid, held)


def _engine(asked, uid, files):
    layout, predicted = asked.machine.layout, asked.predicted
    cpus, _, devices = files.of(uid)
    pinned, freed = 0, _is_freed(asked, uid, files)
    for mask in cpus.values():
        pinned |= mask
    if layout.kubelet.static_cpu:
        if pinned != predicted.cpus:
            yield "cpus", list(bits(predicted.cpus)), list(bits(pinned))
        if not freed and files.free & ~layout.reserved_cpus != predicted.after.cpus:
            yield "free cpus", list(bits(predicted.after.cpus)), list(bits(files.free))
    has_init = any(each.kind is ContainerKind.INIT for each in asked.shape.containers)
    if layout.kubelet.static_memory and not has_init and not freed:  # theirs is dropped a moment later
        row = layout.resources.index(MEMORY)
        for at, zone in enumerate(layout.zones):
            cells = tuple(other.id for i, other in enumerate(layout.zones) if predicted.after.memory[at].cells >> i & 1)
            used = (
                predicted.after.memory[at].assignments > 0
            )  # the engine counts a pod once, the kubelet its containers
            mine = used, cells, predicted.after.free[at][row]
            assignments, group, free = files.zones[zone.id]
            real = assignments > 0, tuple(sorted(group)), free
            if mine != real:
                yield f"memory of zone {zone.id}", mine, real
    if not asked.by_chance:
        real = {}
        for of in devices.values():
            for resource, ids in of.items():
                real.setdefault(resource, {}).update(ids)
        theirs = {resource: sorted(ids.values()) for resource, ids in real.items() if ids}
        mine = {
            resource: sorted(
                layout.zones[zone].id
                for at in bits(mask)
                for zone in bits(layout.devices[layout.resources.index(resource)][at].zones)
            )
            for resource, mask in predicted.devices
        }
        if mine != theirs:
            yield "zones of devices", mine, theirs


def _is_freed(asked, uid, files):
    """Whether others hold less than was published: a kubelet takes back what a container left when it sees to it.

    What is free and what the pod itself holds was free before it came. Of blocks over several zones nothing is said.
    """
    layout, state, (cpus, memory, _) = asked.machine.layout, asked.machine.state, files.of(uid)
    before = files.free
    for mask in cpus.values():
        before |= mask
    if layout.kubelet.static_cpu and before & ~layout.reserved_cpus != state.cpus:
        return True
    blocks = [block for each in memory.values() for block in each]
    if not layout.kubelet.static_memory or any(len(zones) > 1 for _, zones, _ in blocks):
        return False
    row, own = layout.resources.index(MEMORY), Counter()
    for _, zones, size in blocks:
        own[zones[0]] += size
    return any(files.zones[zone.id][2] + own[zone.id] != state.free[at][row] for at, zone in enumerate(layout.zones))


def _chance(layout, state, shape, predicted):
    """Whether the kubelet may take devices of several zones in any order; and whether later containers depend on that.

    A plugin without preferred allocation: devices of the merged zones come first, in no order, then all others in none.
    Under ``none`` no zones are merged. Which devices those are of one zone is chance too, but nobody looks at it. What
    init containers leave is taken before all, whatever its zone: fewer are then needed of the merged zones.
    """
    merged = {step.container: step.merged for step in predicted.steps}
    asking, chance, left = 0, False, Counter()
    for container in shape.containers:
        for name, count in container.limits:
            if name not in layout.resources or not layout.devices[layout.resources.index(name)] or not count:
                continue
            asking += 1
            row = layout.resources.index(name)
            mask = merged.get("*", merged.get(container.name))
            here = [at for at in bits(state.devices[row]) if mask is None or layout.devices[row][at].zones & mask]
            wide = mask is None or mask.bit_count() > 1
            chance = chance or (wide and len(here) > count - left[name]) or len(here) < count or left[name] > count
            left[name] += count if container.kind is ContainerKind.INIT else 0
    apart = layout.kubelet.scope is Scope.CONTAINER and layout.kubelet.policy is not TopologyPolicy.NONE
    return chance, chance and apart and asking > 1


def fits(spec, taken, node_allocatable):
    """Whether a pod fits beside others by amounts, which a kubelet looks at first; and what it takes."""
    wanted = pod_requests(msgspec.convert(spec, PodSpec))
    room = all(
        taken.get(name, 0) + amount <= node_allocatable.get(name, 0)
        for name, amount in wanted.items()
        if name in {CPU, MEMORY} or "/" in name
    )
    return wanted if room else None
