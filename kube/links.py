"""How a node's devices are connected, from what is published about it.

Sources, the first that says something counts, and a later one that disagrees is a problem with a name:

1. the ``link`` edges of the node's FlexTopo (`crds.graph` has their attributes);
2. a node annotation whose name, after any domain, is ``nvlink-matrix``: a JSON matrix, or what ``nvidia-smi topo -m``
   prints. A number in a JSON matrix is how many NVLinks a pair has (0: none), a word is as ``nvidia-smi`` has it.

XPUs have no links: their NUMA zones alone decide (`engine.kubelet.devices.xpu`).

Devices that are not GPUs one to one (MIG, time slices) get no graph: their links would be those of a GPU they share.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from engine.kubelet.device_manager import is_gpu
from engine.kubelet.devices.links import LinkError, LinkGraph, from_words
from engine.kubelet.devices.xpu import RESOURCE, XpuBoard, board
from kube.topologies import Component, FlexTopoSpec

XPU_RESOURCE: Final = RESOURCE
MATRIX_NAME: Final = "nvlink-matrix"
MAX_DEVICES: Final = 64  # of one resource with links; more are slices of some, not cards in slots

_LINK, _NEARBY, _GPU, _ZONE_PREFIX = "link", "nearby", "GPU", "numa-"
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_GPU_NAME: Final = re.compile(r"GPU[0-9]+")


class Links(NamedTuple):
    """What decides how devices of one resource are chosen; None where nothing is known."""

    found: LinkGraph | XpuBoard | None = None
    problems: tuple[str, ...] = ()


class Matrix(NamedTuple):
    """Words for each pair, as ``nvidia-smi topo -m`` has them, and the NUMA zone of each GPU where it was printed."""

    words: tuple[tuple[str, ...], ...]
    zones: tuple[int | None, ...] = ()


def device_links(
    resource: str,
    count: int,
    *,
    ids: Sequence[str] = (),
    zones: Sequence[int] = (),
    zone_ids: Sequence[int] = (),
    spec: FlexTopoSpec | None = None,
    annotations: Mapping[str, str] | None = None,
    xpus: Collection[str] = (XPU_RESOURCE,),
) -> Links:
    """How the ``count`` devices of ``resource`` are chosen.

    ``ids`` and ``zones`` (masks of positions in ``zone_ids``, the kubelet's ids) are of each device, () where only
    their number is known. Never raises: what cannot be read is a problem.
    """
    if resource in xpus:
        return Links(board(zones) if ids else XpuBoard())
    if not is_gpu(resource) or not 0 < count <= MAX_DEVICES:
        return Links()
    problems: list[str] = []
    by_edges = by_matrix = None
    try:
        by_edges = from_flex_topo(spec, count, ids=ids, zones=zones, zone_ids=zone_ids) if spec else None
    except LinkError as error:
        problems.append(f"FlexTopo: {error}")
    try:
        if (matrix := from_annotations(annotations or {})) is not None:
            by_matrix = _graph_of(matrix, count, spec=spec, ids=ids, zones=zones, zone_ids=zone_ids)
    except LinkError as error:
        problems.append(str(error))
    if by_edges is not None and by_matrix is not None and by_edges.nvlinks != by_matrix.nvlinks:
        # A matrix of 0 and 1 says whether there are NVLinks and not how many, so only that is compared.
        flat = {links for row in by_matrix.nvlinks for links in row} <= {0, 1}
        if not flat or by_edges.neighbours != by_matrix.neighbours:
            problems.append(f"FlexTopo and annotation {MATRIX_NAME} disagree about NVLinks; FlexTopo counts")
    return Links(by_matrix if by_edges is None else by_edges, tuple(problems))


def from_flex_topo(
    spec: FlexTopoSpec,
    count: int,
    *,
    ids: Sequence[str] = (),
    zones: Sequence[int] = (),
    zone_ids: Sequence[int] = (),
) -> LinkGraph | None:
    """The graph of the devices with these ids, or of all GPUs in order of their index; None where there are no links.

    Raises LinkError where an edge says what no link is, or two edges of a pair disagree.
    """
    gpus = _in_order(spec, count, ids)
    if gpus is None:
        return None
    position = {gpu.id: index for index, gpu in enumerate(gpus)}
    words = [["X" if one == other else "" for other in range(count)] for one in range(count)]
    levels = [row.copy() for row in words]
    found, generations = False, set()
    for edge in spec.edges or ():
        one, other = position.get(edge.source), position.get(edge.target)
        if edge.type != _LINK or one is None or other is None or one == other:
            continue
        attributes = edge.attributes or {}
        kind, level = _kind(attributes)
        if words[one][other] not in {"", kind} or levels[one][other] not in {"", level}:
            raise LinkError(f"{edge.source} and {edge.target}: two links that disagree, {words[one][other]} and {kind}")
        words[one][other] = words[other][one] = kind
        levels[one][other] = levels[other][one] = level
        if kind.startswith("NV"):
            generations.add(_generation(attributes.get("nvlinkVersion", "")))
        found = True
    if not found:
        return None
    return from_words(
        words,
        pcie=levels,
        zones=zones or _zones_of(spec, gpus, zone_ids),
        # The oldest one: a set of devices is as fast as its slowest link.
        generation=min(generations, default=0),
    )


def _generation(version: str) -> int:
    """The generation of an NVLink by its version, such as 4.0; 0 where it is not known."""
    major = version.partition(".")[0]
    return int(major) if major.isascii() and major.isdigit() and len(major) == 1 else 0


def _kind(attributes: Mapping[str, str]) -> tuple[str, str]:
    """The word of a link, and its PCIe level ("" where it is not known)."""
    kind, level, links = attributes.get("kind", ""), attributes.get("pcie", ""), attributes.get("nvlinks", "")
    if not kind:
        kind = f"NV{links}" if links not in {"", "0"} else level
    return kind, level if kind.startswith("NV") else kind


def _in_order(spec: FlexTopoSpec, count: int, ids: Sequence[str]) -> list[Component] | None:
    """The component of each device; None where they are not one to one."""
    gpus = [node for node in spec.nodes or () if node.type == _GPU]
    if not ids:
        return sorted(gpus, key=_index) if len(gpus) == count else None
    by_name: dict[str, Component] = {}
    for gpu in gpus:
        attributes = gpu.attributes or {}
        # Device plugins call a GPU by its uuid, others by its PCI address; the agent's ids have either behind a prefix.
        names = {gpu.id, gpu.id.removeprefix("gpu-"), attributes.get("uuid", ""), attributes.get("pciAddress", "")}
        by_name.update(dict.fromkeys(names, gpu))
    found = [by_name[name] for name in ids if name and name in by_name]
    # Two ids of one GPU are shares of it in time: then nothing is one to one.
    return found if len({gpu.id for gpu in found}) == count == len(ids) else None


def _index(gpu: Component) -> tuple[int, str]:
    text = (gpu.attributes or {}).get("index", "")
    # One without an index comes after all that have one, in an order that does not change.
    return (int(text) if text.isascii() and text.isdigit() else MAX_DEVICES, gpu.id)


def _zones_of(spec: FlexTopoSpec, gpus: Sequence[Component], zone_ids: Sequence[int]) -> tuple[int, ...]:
    """The zone mask of each GPU by its ``nearby`` edges; () where none is known."""
    near = {f"{_ZONE_PREFIX}{zone}": 1 << index for index, zone in enumerate(zone_ids)}
    masks = dict.fromkeys((gpu.id for gpu in gpus), 0)
    for edge in spec.edges or ():
        if edge.type == _NEARBY and edge.source in masks:
            masks[edge.source] |= near.get(edge.target, 0)
    return tuple(masks.values()) if any(masks.values()) else ()


def _graph_of(
    matrix: Matrix,
    count: int,
    *,
    spec: FlexTopoSpec | None,
    ids: Sequence[str],
    zones: Sequence[int],
    zone_ids: Sequence[int],
) -> LinkGraph:
    """The graph of the devices, in their order, from a matrix whose rows are in the order of the GPUs' indexes.

    Raises LinkError where it is of other GPUs, or where it is not known which device is which of its GPUs and matters.
    """
    words, size = matrix.words, len(matrix.words)
    gpus = _in_order(spec, count, ids) if spec and ids else None
    order = sorted({_index(gpu)[0] for gpu in gpus or ()})
    # The matrix may have more GPUs than the resource has devices: the others are cut into slices.
    if gpus is not None and len(order) == count and order[-1] < size:
        order = [_index(gpu)[0] for gpu in gpus]
        words = tuple(tuple(words[one][other] for other in order) for one in order)
        return from_words(words, zones=zones)
    if size != count:
        raise LinkError(f"annotation {MATRIX_NAME} has {size} GPUs, the node {count}; it is not used")
    if ids:
        # Where all pairs are linked alike, any order of the devices gives the same graph.
        if len({word for one, row in enumerate(words) for other, word in enumerate(row) if one != other}) > 1:
            raise LinkError(f"annotation {MATRIX_NAME}: which device is which of its GPUs is not known; it is not used")
        return from_words(words, zones=zones)
    near = {zone: 1 << index for index, zone in enumerate(zone_ids)}
    printed = tuple(0 if zone is None else near.get(zone, 0) for zone in matrix.zones)
    return from_words(words, zones=printed if any(printed) else ())


def from_annotations(annotations: Mapping[str, str]) -> Matrix | None:
    """The matrix of a node's annotations; None where there is none. Raises LinkError where it cannot be read."""
    # Under any domain, for each exporter writes it under its own.
    keys = sorted(key for key in annotations if key.rpartition("/")[2] == MATRIX_NAME)
    found = {key: parse_matrix(annotations[key], f"annotation {key}") for key in keys}
    if len({matrix.words for matrix in found.values()}) > 1:
        raise LinkError(f"annotations {' and '.join(keys)} disagree")
    return next(iter(found.values()), None)


def parse_matrix(text: str, name: str = MATRIX_NAME) -> Matrix:
    """A matrix from JSON or from the output of ``nvidia-smi topo -m``. Raises LinkError, which begins with ``name``."""
    try:
        return _from_json(text) if text.lstrip().startswith("[") else _from_table(text)
    except (LinkError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise LinkError(f"{name}: {error}") from None


def _from_json(text: str) -> Matrix:
    rows = msgspec.json.decode(text, type=list[list[int | str]])
    _check_size(len(rows))
    words = tuple(tuple(_word(cell, one == other) for other, cell in enumerate(row)) for one, row in enumerate(rows))
    from_words(words)  # raises for what is no matrix
    return Matrix(words)


def _word(cell: Any, itself: bool) -> str:
    if itself:
        return "X"
    if isinstance(cell, str):
        return cell
    if cell < 0:
        raise LinkError(f"expected a number of NVLinks, found {cell}")
    return f"NV{cell}" if cell else ""


def _from_table(text: str) -> Matrix:
    # nvidia-smi underlines the header, also where its output is no terminal.
    lines = [line.split() for line in _ESCAPES.sub("", text).splitlines()]
    header = next((line for line in lines if line and _GPU_NAME.fullmatch(line[0]) and "X" not in line), None)
    if header is None:
        raise LinkError("expected a header that starts with GPU0")
    columns = header[: header.index("CPU")] if "CPU" in header else header
    gpus = [index for index, name in enumerate(columns) if _GPU_NAME.fullmatch(name)]
    _check_size(len(gpus))
    rows: list[tuple[str, ...]] = []
    zones: list[int | None] = []
    for line in lines:
        if not line or not _GPU_NAME.fullmatch(line[0]) or line is header:
            continue
        if len(line) <= len(columns):
            raise LinkError(f"{line[0]}: expected {len(columns)} links, found {len(line) - 1}")
        rows.append(tuple(line[1 + index] for index in gpus))
        zones.append(_zone(line[1 + len(columns) :]) if "NUMA" in header else None)
    from_words(rows)  # raises for what is no matrix
    return Matrix(tuple(rows), tuple(zones))


def _zone(rest: Sequence[str]) -> int | None:
    """The NUMA zone in what follows the links: the CPUs, then the zone."""
    text = rest[1] if len(rest) > 1 else ""
    # The annotation is text that somebody wrote: no number in it may be large.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else None


def _check_size(size: int) -> None:
    if not 0 < size <= MAX_DEVICES:
        raise LinkError(f"expected 1 to {MAX_DEVICES} devices, found {size}")
