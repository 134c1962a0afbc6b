"""Random machines and pods, exact or by amounts alone; the same seed gives the same ones."""

import random
from dataclasses import dataclass

from engine.kubelet.devices.links import LinkGraph
from engine.kubelet.machine import (
    CPU,
    MEMORY,
    Container,
    ContainerKind,
    DeviceLayout,
    Kubelet,
    Layout,
    MemoryCells,
    PodShape,
    Qos,
    Scope,
    State,
    TopologyPolicy,
    Zone,
)

GPU, NIC, HUGE = "nvidia.com/gpu", "nvidia.com/rdma_nic", "hugepages-1Gi"
GIB = 1 << 30
POLICIES = [TopologyPolicy.SINGLE, TopologyPolicy.RESTRICTED, TopologyPolicy.BEST_EFFORT, TopologyPolicy.NONE]


@dataclass
class Dice:
    """What is likely in the machines and pods that are made."""

    random: random.Random
    policies: list[TopologyPolicy]
    exact: bool = False
    odd: float = 0.0  # how often something that closed forms leave to the exact admission

    def often(self, chance: float = 0.5) -> bool:
        return self.random.random() < chance

    def layout(self) -> Layout:
        zones = self.random.choice([1, 2, 2, 3, 4, 4, 6, 8])
        resources = [CPU, MEMORY, GPU] + [NIC] * self.often() + [HUGE] * self.often(0.2)
        same = self.often(0.7)
        per_zone = [self._zone(resources) for _ in range(zones)]
        if same:
            per_zone = [per_zone[0]] * zones
        devices: list[tuple[DeviceLayout, ...]] = []
        threads = self.random.choice([1, 2])
        capacity = [list(zone) for zone in per_zone]
        allocatable = [list(zone) for zone in per_zone]
        cores, reserved = self._cores([zone[0] // 1000 for zone in per_zone], threads)
        for row, resource in enumerate(resources):
            units = resource in {GPU, NIC}
            listed = [
                DeviceLayout(zones=1 << zone, healthy=self.often(0.95))
                for zone in range(zones)
                for _ in range(max(capacity[zone][row], 0) if units else 0)
            ]
            devices.append(tuple(listed))
            for zone in range(zones):
                if units and allocatable[zone][row] >= 0:
                    allocatable[zone][row] = sum(d.healthy for d in listed if d.zones == 1 << zone)
                elif resource == MEMORY:
                    allocatable[zone][row] -= GIB * self.random.choice([0, 1])
        for zone in range(zones):
            free = sum((1 << cpu) & ~reserved > 0 for core in cores[zone] for cpu in core)
            allocatable[zone][0] = free * 1000
        kubelet = Kubelet(
            version=self.random.choice([(1, 35), (1, 36), (1, 36)]),
            policy=self.random.choice(self.policies),
            scope=self.random.choice(list(Scope)),
            static_cpu=self.often(0.85),
            static_memory=self.often(0.7),
            prefer_closest_numa_nodes=self.often(0.2),
            full_pcpus_only=self.often(self.odd * 2),
            prefer_align_cpus_by_uncorecache=self.often(self.odd),
            distribute_cpus_across_numa=self.often(self.odd / 2),
        )
        distances = [
            tuple([10 if a == b else 12 if a // 2 == b // 2 else 20 for b in range(zones)]) for a in range(zones)
        ]
        return Layout(
            zones=tuple(
                [
                    Zone(
                        id=zone,
                        socket=zone * 2 // zones,
                        distances=distances[zone],
                        cores=tuple(cores[zone]) if self.exact else (),
                    )
                    for zone in range(zones)
                ]
            ),
            resources=tuple(resources),
            capacity=tuple(map(tuple, capacity)),
            allocatable=tuple(map(tuple, allocatable)),
            kubelet=kubelet,
            devices=tuple(devices) if self.exact else (),
            reserved_cpus=reserved,
            links=self._links(resources, capacity),
            ignored=(NIC,) if NIC in resources and self.often(self.odd / 2) else (),
            exact=self.exact,
        )

    def _links(self, resources: list[str], capacity: list[list[int]]) -> tuple[LinkGraph | None, ...]:
        if not self.often(self.odd * 2):
            return ()
        row = resources.index(GPU)
        size = sum(max(zone[row], 0) for zone in capacity)
        mesh = self.often(0.3)
        nvlinks = [[int(a != b and (not mesh or (a ^ b).bit_count() == 1)) for b in range(size)] for a in range(size)]
        weights = [[100 * links for links in each] for each in nvlinks]
        graph = LinkGraph(weights=tuple(map(tuple, weights)), nvlinks=tuple(map(tuple, nvlinks)))
        return tuple([graph if resource == GPU else None for resource in resources])

    def _zone(self, resources: list[str]) -> list[int]:
        amounts = {
            CPU: self.random.choice([4, 8, 16]) * 1000,
            MEMORY: self.random.choice([8, 16, 32]) * GIB,
            GPU: self.random.choice([1, 1, 2, 4]) if self.often(0.9) else -1,
            NIC: self.random.choice([1, 2]) if self.often(0.9) else -1,
            HUGE: self.random.choice([2, 4]) * GIB,
        }
        return [amounts[resource] for resource in resources]

    def _cores(self, cpus: list[int], threads: int) -> tuple[list[list[tuple[int, ...]]], int]:
        cores: list[list[tuple[int, ...]]] = []
        first = reserved = 0
        for count in cpus:
            cores.append([tuple(range(cpu, cpu + threads)) for cpu in range(first, first + count, threads)])
            reserved |= self.random.choice([0, 0, 1, 3]) << first
            first += count
        return cores, reserved

    def state(self, layout: Layout) -> State:
        """Some of it is taken, at random."""
        taken = self.random.choice([0.0, 0.2, 0.5])
        rows = {resource: row for row, resource in enumerate(layout.resources)}
        free = [list(zone) for zone in layout.allocatable]
        if not layout.exact:
            for zone in free:
                for row, resource in enumerate(layout.resources):
                    if zone[row] > 0 and self.often():
                        unit = 1000 if resource == CPU else 1 if resource in {GPU, NIC} else GIB
                        zone[row] -= unit * self.random.randint(0, int(zone[row] // unit * 2 * taken) if taken else 0)
                        zone[row] = max(zone[row], 0)
            return State(free=tuple(map(tuple, free)))
        cpus = 0
        for zone, each in enumerate(layout.zones):
            left = [cpu for core in each.cores for cpu in core if not layout.reserved_cpus >> cpu & 1]
            left = [cpu for cpu in left if not self.often(taken)]
            cpus |= sum(1 << cpu for cpu in left)
            free[zone][rows[CPU]] = 1000 * len(left)
        masks = []
        for row, listed in enumerate(layout.devices):
            mask = sum(1 << i for i, device in enumerate(listed) if device.healthy and not self.often(taken))
            masks.append(mask)
            for zone in range(len(layout.zones)) if listed else ():
                if free[zone][row] >= 0:
                    free[zone][row] = sum(mask >> i & 1 for i, d in enumerate(listed) if d.zones == 1 << zone)
        memory = self._memory(layout, free, taken)
        return State(free=tuple(map(tuple, free)), cpus=cpus, devices=tuple(masks), memory=memory)

    def _memory(self, layout: Layout, free: list[list[int]], taken: float) -> tuple[MemoryCells, ...]:
        rows = [row for row, resource in enumerate(layout.resources) if resource in {MEMORY, HUGE}]
        cells = [MemoryCells(cells=1 << zone) for zone in range(len(layout.zones))]
        for zone, amounts in enumerate(free):
            if layout.kubelet.static_memory and self.often(taken):
                cells[zone] = MemoryCells(cells=1 << zone, assignments=1)
                for row in rows:
                    amounts[row] = GIB * self.random.randint(0, amounts[row] // GIB)
        if len(cells) > 1 and self.often(self.odd) and layout.kubelet.static_memory:
            both = self.random.sample(range(len(cells)), 2)
            for zone in both:
                cells[zone] = MemoryCells(cells=1 << both[0] | 1 << both[1], assignments=1)
        return tuple(cells)

    def shape(self, layout: Layout) -> PodShape:
        """A pod that suits the machine more or less."""
        count = self.random.choice([1, 1, 1, 2, 3])
        qos = self.random.choice([Qos.GUARANTEED, Qos.GUARANTEED, Qos.GUARANTEED, Qos.BURSTABLE])
        containers = [self._container(layout, str(i), wide=count == 1 and self.often(0.4)) for i in range(count)]
        if self.often(self.odd):
            for name in "ij"[: self.random.choice([1, 1, 2])]:
                kind = self.random.choice([ContainerKind.INIT, ContainerKind.INIT, ContainerKind.SIDECAR])
                first = self._container(layout, name, wide=False)
                containers.insert(0, Container(name=name, kind=kind, requests=first.requests, limits=first.limits))
        return PodShape(
            containers=tuple(containers),
            qos=qos,
            pod_level=self.often(self.odd / 2),
            wish=self.random.choice(list(TopologyPolicy)) if self.often(self.odd * 3) else TopologyPolicy.NONE,
            wish_resources=tuple([r for r in layout.resources if self.often(0.6)]) if self.often() else (),
            gpu_link=self.random.choice(["require", "prefer"]) if self.often(self.odd * 2) else "",
        )

    def _container(self, layout: Layout, name: str, *, wide: bool) -> Container:
        width = self.random.randint(1, len(layout.zones)) if wide else 1
        amounts = {
            CPU: self.random.choice([1000, 2000, 3000, 4000, 4000 * width, 6000 * width, 8000 * width, 500]),
            MEMORY: self.random.choice([1, 2, 4 * width, 6 * width, 8 * width]) * GIB + self.random.choice([0, 1]),
            GPU: self.random.choice([1, width, 2 * width, 4 * width]) if not self.often(0.1) else 0,
            NIC: self.random.choice([1, width]),
            HUGE: GIB,
        }
        picked = [r for r in layout.resources if self.often(0.65 if r != HUGE else 0.3)]
        asked = tuple(sorted((resource, amounts[resource]) for resource in picked))
        return Container(name=name, requests=asked, limits=asked)
