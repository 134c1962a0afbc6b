"""Slices, groups of pod sets and shares of domains, as annotations say them. Pure; `crds.request` has the whole.

Rules
- ``podset-slice-required-topology`` (a level) and ``podset-slice-size`` come together: each run of so many pods shares
  one domain of the level.
- The last slice may be a part of one, as in Kueue from 0.20 on (PR 15640), but not where there are several layers.
- ``podset-slice-required-topology-constraints`` says the same in one to three layers, the widest first, as JSON:
  ``[{"topology": LEVEL, "size": N}, ...]``. Each level once; each size a multiple of the next.
- ``podset-group-name``: pod sets of one group (a leader and its workers) share one domain of the requested level. It
  needs a level. One of the group's pod sets may have slices, as in Kueue from 0.20 on (PR 15111).
- ``podset-topology-spreading`` (`crds.kueue.spreading`) goes with a required level.
- A Job and its pod template are one request: the same said twice is fine, two that differ are refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from crds.constants import Keys
from crds.kueue.spreading import WrongAnnotation, read_spreading
from crds.names import is_label_key
from engine.model import ShareLimits, SliceLayer
from engine.reasons import Reason

MAX_LAYERS: Final = 3
MAX_SIZE: Final = 1_000_000
_GROUP = re.compile(r"(?=.*[a-z-])[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")

Place = tuple[Mapping[str, str], str]  # annotations, and their path in the object


class Slices(NamedTuple):
    """What was written: ``field`` is the path of the (widest) level, "" where there are no slices."""

    layers: tuple[SliceLayer, ...] = ()
    field: str = ""
    group: str = ""
    group_field: str = ""
    shares: ShareLimits | None = None
    shares_field: str = ""


class BadSlices(NamedTuple):
    """What cannot be honoured: where it stands, what stands there, and what is allowed."""

    field: str
    value: str
    message: str
    reason: Reason = Reason.INVALID_REQUEST


def read_slices(places: Sequence[Place], keys: Keys) -> Slices | BadSlices:
    """Slices and group of one request that is written in these places."""
    if not any(key in annotations for annotations, _ in places for key in keys.grouping):
        return Slices()
    try:
        return _read(places, keys)
    except WrongAnnotation as wrong:
        return BadSlices(wrong.field, wrong.value, str(wrong), wrong.reason)


def _read(places: Sequence[Place], keys: Keys) -> Slices:
    said = {key: found for key in keys.grouping if (found := _find_annotation(places, key)) is not None}
    layers, field = _layers(said, keys, places[-1][1])
    group, group_field = said.get(keys.group, ("", ""))
    if group_field and not _GROUP.match(group):
        expected = "expected a name of at most 63 lowercase letters, digits and '-' that is no number"
        raise WrongAnnotation(group_field, group, f'Invalid value: "{group}": {expected}')
    spread, spread_field = said.get(keys.spreading, ("", ""))
    shares = read_spreading(spread, spread_field) if spread_field else None
    return Slices(layers, field, group, group_field, shares, spread_field)


def uneven(layers: Sequence[SliceLayer], count: int, ranks: int | None = None) -> str:
    """Why so many pods at once cannot be in these slices, for a message; "" where they can.

    The last slice may be a part of one, where there is one layer, and all ``ranks`` run at once (None: they have none).
    """
    if not layers or count % layers[0].size == 0:
        return ""
    several = len(layers) > 1
    if not several and (ranks is None or ranks <= count):
        return ""
    size = layers[0].size
    below = count - count % size
    near = f"{below} or {below + size}" if below else str(size)
    # Of more ranks than run at once, the last slice of each moment would be another one.
    told, inner = ("", " that have slices within them") if several else (f" at once, of {ranks},", "")
    return f"{count} pods{told} do not divide into slices of {size}{inner}; {near} would"


def _find_annotation(places: Sequence[Place], key: str) -> tuple[str, str] | None:
    """(value, path) of an annotation that may stand in several places."""
    found: tuple[str, str] | None = None
    for annotations, path in places:
        value, field = annotations.get(key), f"{path}[{key}]"
        if value is None:
            continue
        if found is not None and found[0] != value:
            text = f'"{value}" contradicts {found[1]}: "{found[0]}": keep one of the two'
            raise WrongAnnotation(field, value, text, Reason.CONTRADICTING_REQUESTS)
        found = found or (value, field)
    return found


def _layers(said: Mapping[str, tuple[str, str]], keys: Keys, path: str) -> tuple[tuple[SliceLayer, ...], str]:
    level, size, several = (said.get(key) for key in (keys.slice_level, keys.slice_size, keys.slice_layers))
    if several is not None:
        for other in (level, size):
            if other is not None:
                raise WrongAnnotation(
                    several[1], several[0], f"Forbidden: it says the same as {other[1]}; keep one of the two"
                )
        return tuple(_constraints(*several)), several[1]
    if level is None and size is None:
        return (), ""
    if level is None or size is None:
        missing, given = (keys.slice_level, size) if level is None else (keys.slice_size, level)
        raise WrongAnnotation(f"{path}[{missing}]", "", f"Required value: it goes with {given[1] if given else ''}")
    _check_level(*level)
    return (SliceLayer(level=level[0], size=_size(*size)),), level[1]


def _check_level(level: str, field: str) -> None:
    if not is_label_key(level):
        raise WrongAnnotation(
            field, level, f'Invalid value: "{level}": expected the node label key of a topology level'
        )


def _size(text: str, field: str) -> int:
    # The length first: Python's int refuses texts of more than 4,300 digits by an error of its own.
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SIZE)) and 1 <= int(text) <= MAX_SIZE):
        raise WrongAnnotation(field, text, f'Invalid value: "{text}": expected a whole number from 1 to {MAX_SIZE}')
    return int(text)


def _constraints(text: str, field: str) -> Iterator[SliceLayer]:
    expected = f'expected JSON of 1 to {MAX_LAYERS} layers, as [{{"topology": "example.com/rack", "size": 16}}]'
    try:
        entries = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        entries = None
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_LAYERS:
        raise WrongAnnotation(field, text, f'Invalid value: "{text}": {expected}')
    levels: dict[str, int] = {}
    above = 0
    for at, entry in enumerate(entries):
        layer = _constraint(entry, f"{field}[{at}]", text, expected)
        if layer.level in levels:
            text = f'Duplicate value: "{layer.level}": layer {levels[layer.level]} has it'
            raise WrongAnnotation(f"{field}[{at}].topology", layer.level, text)
        # 0 for the widest layer, which every size divides.
        if above % layer.size:
            text = f"Invalid value: {layer.size}: expected a divisor of the size of the layer above, {above}"
            raise WrongAnnotation(f"{field}[{at}].size", str(layer.size), text)
        levels[layer.level], above = at, layer.size
        yield layer


def _constraint(entry: Any, field: str, text: str, expected: str) -> SliceLayer:
    if not isinstance(entry, dict) or not entry.keys() <= {"topology", "size"}:
        raise WrongAnnotation(field, text, f'Invalid value: "{text}": {expected}')
    level, size = entry.get("topology"), entry.get("size")
    if not isinstance(level, str):
        raise WrongAnnotation(f"{field}.topology", "", "Required value: the node label key of a topology level")
    _check_level(level, f"{field}.topology")
    # In Python true is the number 1.
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_SIZE:
        shown = msgspec.json.encode(size).decode()
        raise WrongAnnotation(
            f"{field}.size", shown, f"Invalid value: {shown}: expected a whole number from 1 to {MAX_SIZE}"
        )
    return SliceLayer(level=level, size=size)
