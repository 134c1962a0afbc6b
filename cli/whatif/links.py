"""How the devices of a described machine are linked, for ``topogate whatif admit``."""

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.kubelet.admission import AdmissionOutcome
from engine.kubelet.devices.links import LinkGraph, bits, from_words
from engine.kubelet.devices.xpu import XpuBoard, board
from engine.kubelet.machine import Layout
from kube.links import XPU_RESOURCE, parse_matrix

LinksForm = dict[str, str | tuple[tuple[int | str, ...], ...]]
"""By resource: what ``nvidia-smi topo -m`` prints, or a matrix of its words or of numbers of NVLinks."""


def with_links(layout: Layout, links: Mapping[str, Any]) -> Layout:
    """The layout with its links, and with the rules of XPUs where it has any.

    Raises ValueError where a matrix is none, or is of more or fewer devices than there are.
    """
    unknown = sorted(set(links) - set(layout.resources))
    if unknown:
        raise ValueError(f"links: the machine has no {unknown[0]}")
    found = tuple(_rules(layout, row, links.get(name)) for row, name in enumerate(layout.resources))
    return msgspec.structs.replace(layout, links=found) if any(found) else layout


def _rules(layout: Layout, row: int, given: Any) -> LinkGraph | XpuBoard | None:
    resource = layout.resources[row]
    zones = [device.zones for device in layout.devices[row]] if layout.devices else []
    if resource == XPU_RESOURCE:
        return board(zones) if zones else XpuBoard()
    if given is None:
        return None
    matrix = parse_matrix(
        given if isinstance(given, str) else msgspec.json.encode(given).decode(), f"links: {resource}"
    )
    # Without single devices, as by NodeResourceTopology, the zones' counts tell how many there are.
    count = len(zones) if layout.devices else sum(max(zone[row], 0) for zone in layout.capacity)
    if len(matrix.words) != count:
        raise ValueError(f"links: {resource}: a matrix of {len(matrix.words)} devices, the machine has {count}")
    if zones:
        return from_words(matrix.words, zones=zones)
    # The zone masks that the matrix came with, where it has some.
    index = {zone.id: 1 << at for at, zone in enumerate(layout.zones)}
    printed = tuple(0 if zone is None else index.get(zone, 0) for zone in matrix.zones)
    return from_words(matrix.words, zones=printed if any(printed) else ())


def chosen(
    layout: Layout, admission: AdmissionOutcome, ids: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """The ids of the devices that a choice was made about; {} where there was none to make."""
    ruled = {name for name, rules in zip(layout.resources, layout.links, strict=False) if rules is not None}
    return {
        resource: tuple(ids[resource][device] for device in bits(mask))
        for resource, mask in admission.devices
        if resource in ruled and resource in ids
    }
