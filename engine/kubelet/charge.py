"""What a placement takes from a machine's state, and gives back.

Amounts are exact. Where the full state is known but the placement does not say which CPUs or devices it holds, those
are taken that the kubelet would pick in each zone, and the lowest that are held are given back. `release` knows them,
and leaves the state that was there before the admission.

Memory: a pod counts as one allocation for each zone and type, however many containers it has; the kubelet only ever
looks at whether there are any. Zones of one placement are a group where they were filled up one after the other.
"""

from collections.abc import Mapping

import msgspec

from engine.kubelet.admission import AdmissionOutcome
from engine.kubelet.allocators import devices_by_zone, lowest_of, row_of
from engine.kubelet.cpu_manager import cpus_of, take_by_topology
from engine.kubelet.devices.links import bits
from engine.kubelet.machine import CPU, Layout, MemoryCells, NumaPlacement, State
from engine.kubelet.memory_manager import memory_rows

_ByZone = dict[int, dict[int, int]]  # zone -> row -> amount
Ids = Mapping[str, tuple[str, ...]]


def charge(layout: Layout, state: State, placement: NumaPlacement, sign: int, device_ids: Ids | None = None) -> State:
    """Take (``sign`` 1) what a placement holds, or give it back (-1).

    A placement that names an unknown zone is void. ``device_ids``: by resource, the names of the layout's devices.
    """
    index = {zone.id: at for at, zone in enumerate(layout.zones)}
    # A record of another machine, or of this one before its zones changed: a part of it would be charged to wrong
    # zones.
    if any(use.zone not in index for use in placement.zones):
        return state
    amounts: _ByZone = {}
    for use in placement.zones:
        rows = amounts.setdefault(index[use.zone], {})
        for resource, amount in use.amounts.items():
            row = row_of(layout.resources, resource)
            # The record may name resources that this report does not have: a plugin that registers late, say.
            if row >= 0 and layout.allocatable[index[use.zone]][row] >= 0:
                rows[row] = rows.get(row, 0) + amount
    if not layout.exact:
        return _charge_amounts(layout, state, amounts, sign)
    devices = list(state.devices)
    for row, listed in enumerate(layout.devices):
        wanted = {zone: rows[row] for zone, rows in amounts.items() if row in rows}
        names = (device_ids or {}).get(layout.resources[row], ())
        resource = layout.resources[row]
        # Names are matched over all zones of the record: a device without a zone stands at the record's first zone.
        held = {name for use in placement.zones for name in use.devices.get(resource, ())}
        named = sum(1 << at for at, name in enumerate(names) if name in held)
        if not listed or not (wanted or named):
            continue
        chosen = _meant_devices(layout, state, row, wanted, named, sign=sign)
        devices[row] = state.devices[row] & ~chosen if sign > 0 else state.devices[row] | chosen
    row = row_of(layout.resources, CPU)
    cpus = state.cpus
    for zone, rows in amounts.items():
        chosen = _cpus(layout, state, zone, rows.get(row, 0) // 1000, sign)
        cpus = cpus & ~chosen if sign > 0 else cpus | chosen
    return _state_with(layout, state, amounts, cpus, devices, sign=sign)


def release(layout: Layout, state: State, admission: AdmissionOutcome) -> State:
    """Give back exactly what an admitted pod got: `admit` and then this leave the state as it was."""
    amounts: _ByZone = {
        zone: {row_of(layout.resources, resource): amount for resource, amount in uses} for zone, uses in admission.uses
    }
    if not layout.exact:
        return _charge_amounts(layout, state, amounts, -1)
    devices = list(state.devices)
    for resource, mask in admission.devices:
        devices[row_of(layout.resources, resource)] |= mask
    # Reserved CPUs may be in the mask, because the kubelet hands them out on uneven machines
    # (`_CpuSelection.take_whole_groups`). They are not free afterwards.
    return _state_with(layout, state, amounts, (state.cpus | admission.cpus) & ~layout.reserved_cpus, devices, sign=-1)


def _meant_devices(layout: Layout, state: State, row: int, wanted: Mapping[int, int], named: int, *, sign: int) -> int:
    """The devices that are meant: those named, and as many more in each zone as it takes."""
    listed = layout.devices[row]
    # Given back are healthy devices only: a device that became unhealthy meanwhile must not appear as free.
    healthy = sum(1 << at for at, device in enumerate(listed) if device.healthy)
    possible = state.devices[row] if sign > 0 else healthy & ~state.devices[row]
    by_zone = devices_by_zone(layout, row)
    chosen = named & possible
    for zone, count in sorted(wanted.items()):
        # A named device counts even if it cannot be changed: it is part of the amount, and another must not be taken in
        # its place.
        missing = count - ((chosen | named) & by_zone[zone]).bit_count()
        chosen |= lowest_of(possible & by_zone[zone] & ~chosen, max(missing, 0))
    return chosen


def _cpus(layout: Layout, state: State, zone: int, count: int, sign: int) -> int:
    """The CPUs of a zone that are meant."""
    known = cpus_of(layout)
    if sign > 0:
        free = state.cpus & known.zones[zone]
        return take_by_topology(known, layout.kubelet, free, min(count, free.bit_count())) or 0
    # Held by anybody: which pod has which CPU is not known here. Whole cores first, as packed allocations take them.
    held = known.zones[zone] & ~state.cpus & ~layout.reserved_cpus
    chosen, missing = 0, count
    for core in known.cores:
        if missing <= 0:
            break
        cpus = core.cpus
        if cpus & held == cpus and missing >= cpus.bit_count():
            chosen |= cpus
            missing -= cpus.bit_count()
    return chosen | lowest_of(held & ~chosen, missing)


def _charge_amounts(layout: Layout, state: State, amounts: _ByZone, sign: int) -> State:
    """By amounts alone; never below nothing nor above what is allocatable."""
    return msgspec.structs.replace(state, free=_charged_rows(layout, state, amounts, sign))


def _charged_rows(layout: Layout, state: State, amounts: _ByZone, sign: int) -> tuple[tuple[int, ...], ...]:
    rows = list(state.free)
    for zone, changes in amounts.items():
        free = list(rows[zone])
        for row, amount in changes.items():
            if row >= 0 and free[row] >= 0:
                free[row] = min(max(free[row] - sign * amount, 0), layout.allocatable[zone][row])
        rows[zone] = tuple(free)
    return tuple(rows)


def _state_with(layout: Layout, state: State, amounts: _ByZone, cpus: int, devices: list[int], *, sign: int) -> State:
    """The state with these CPUs and devices free, and memory by amounts."""
    memory_of = set(memory_rows(layout.resources))
    by_type = {
        zone: {row: amount for row, amount in rows.items() if row in memory_of} for zone, rows in amounts.items()
    }
    free = _charged_rows(layout, state, by_type, sign)
    known = cpus_of(layout)
    units: dict[int, list[int]] = {}
    # CPUs and devices are counted from the masks, and not changed by the amounts: where fewer units were possible than
    # the record says, ``free`` still agrees with the masks.
    if cpus != state.cpus:
        units[row_of(layout.resources, CPU)] = [1000 * (cpus & mask).bit_count() for mask in known.zones]
    for row, mask in enumerate(devices):
        if mask != state.devices[row]:
            units[row] = [(mask & zone).bit_count() for zone in devices_by_zone(layout, row)]
    if units:
        free = tuple(
            [
                tuple([units[row][zone] if row in units and have >= 0 else have for row, have in enumerate(line)])
                for zone, line in enumerate(free)
            ]
        )
    named = {zone: rows for zone, rows in by_type.items() if rows}
    memory = _cells(layout, state, free, named, sign) if state.memory and named else state.memory
    return State(free=free, cpus=cpus, devices=tuple(devices), memory=memory)


def _cells(
    layout: Layout, state: State, free: tuple[tuple[int, ...], ...], named: _ByZone, sign: int
) -> tuple[MemoryCells, ...]:
    """Groups and allocations once memory of these zones was taken or given back."""
    cells = list(state.memory)
    if sign > 0:
        group = _group(state, free, named)
        for zone, rows in named.items():
            before = cells[zone]
            joined = group or (before.cells if before.assignments else 1 << zone)
            cells[zone] = MemoryCells(cells=joined, assignments=before.assignments + len(rows))
        return tuple(cells)
    for zone, rows in named.items():
        before = cells[zone]
        cells[zone] = MemoryCells(cells=before.cells, assignments=max(before.assignments - len(rows), 0))
    rows_of = memory_rows(layout.resources)
    # Two ways to leave a group: everything of all its zones is free again, or (below) the zone has no allocation left,
    # as the kubelet's memorymanager/policy_static.go `RemoveContainer` does it.
    for group in {cells[zone].cells for zone in named}:
        members = [zone for zone in bits(group) if cells[zone].cells == group]
        if all(free[zone][row] >= layout.allocatable[zone][row] for zone in members for row in rows_of):
            for zone in members:
                cells[zone] = MemoryCells(cells=1 << zone)
    for zone in named:
        if not cells[zone].assignments:
            cells[zone] = MemoryCells(cells=1 << zone)
    return tuple(cells)


def _group(state: State, free: tuple[tuple[int, ...], ...], named: _ByZone) -> int:
    """The zones of a new placement as one group; 0 where each zone stands for itself."""
    zones = sorted(named)
    alone = any(state.memory[zone].assignments and state.memory[zone].cells == 1 << zone for zone in zones)
    if alone or len(zones) == 1:
        return 0
    for row in {row for rows in named.values() for row in rows}:
        rest = sum(named[zone].get(row, 0) for zone in zones)
        for zone in zones:
            rest -= named[zone].get(row, 0)
            # The kubelet fills a group zone by zone. A zone that has some left while the next one gives was not filled
            # first, so the record is of several allocations.
            if rest and free[zone][row] > 0:
                return 0
    return sum(1 << zone for zone in zones)
