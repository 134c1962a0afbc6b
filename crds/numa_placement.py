"""NUMA placements as annotations carry them: who writes one, who reads one, and which of several counts.

A record is a JSON list with one entry a zone, ascending, each zone once:
``[{"zone": "node-0", "amount": {"cpu": "8", "nvidia.com/gpu": "2"}, "devices": {"nvidia.com/gpu": ["GPU-3f1c"]}}]``.
``zone`` is spelled as in NodeResourceTopology, ``amount`` holds quantities, ``devices`` may be absent. A prediction may
have ``claims`` too: devices (``driver/pool/device``) that the scheduler is to give to the pod's claims. They are for
people to read: what claims hold is told by the claims.

Rules
- A record that is malformed or empty is no record: whoever asks for it gets None and looks further.
- A zone that the machine does not have voids the whole record; an amount is never guessed.
- Observed (by the node agent) goes before in flight (decided, not seen yet), and that before predicted.
"""

from collections.abc import Container, Mapping
from functools import lru_cache

import msgspec

from engine.kubelet.machine import NumaPlacement, ZoneUse
from engine.quantity import bounded, format_quantity, parse

ZONE_PREFIX = "node-"
MAX_ZONE = 4095  # the kernel's limit


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    zone: str
    amount: dict[str, str | int | float]
    devices: dict[str, tuple[str, ...]] = {}
    claims: tuple[str, ...] = ()


_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(tuple[_Entry, ...]).decode


def zone_name(zone: int) -> str:
    """The name of a zone by its kubelet id: ``node-0``."""
    return f"{ZONE_PREFIX}{zone}"


def zone_id(name: str) -> int | None:
    """The kubelet id of a zone by its name; None for what is no such name."""
    digits = name.removeprefix(ZONE_PREFIX)
    plain = name.startswith(ZONE_PREFIX) and digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_ZONE))
    # No leading zeros: two spellings of one zone would be two entries of it.
    return int(digits) if plain and int(digits) <= MAX_ZONE and str(int(digits)) == digits else None


def encode(placement: NumaPlacement, claims: Mapping[int, tuple[str, ...]] | None = None) -> str:
    """The record of a placement; equal placements give equal text. ``claims``: devices of claims, by zone."""
    entries = [
        _Entry(
            zone_name(use.zone),
            {resource: format_quantity(resource, amount) for resource, amount in use.amounts.items()},
            {resource: tuple(ids) for resource, ids in use.devices.items() if ids},
            (claims or {}).get(use.zone, ()),
        )
        for use in sorted(placement.zones, key=lambda use: use.zone)
    ]
    return _encode(entries).decode()


@lru_cache(maxsize=8192)  # pods of one template have few different ones
def decode(text: str) -> NumaPlacement | None:
    """The placement of a record; None where it is malformed or empty. Equal texts give the same object."""
    try:
        uses = tuple(sorted((_read_zone_use(entry) for entry in _decode(text)), key=lambda use: use.zone))
    # An annotation is text that somebody wrote, nested as deeply as JSON goes: none of it may raise.
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        return None
    if not uses or len({use.zone for use in uses}) < len(uses):
        return None
    return NumaPlacement(zones=uses)


def resolve(
    *,
    observed: str | None = None,
    in_flight: NumaPlacement | None = None,
    predicted: str | None = None,
    zones: Container[int] | None = None,
) -> NumaPlacement | None:
    """The placement that counts: the first record that holds. ``zones``: the machine's ids; None: any will do."""
    for record in (observed, in_flight, predicted):
        found = decode(record) if isinstance(record, str) else record
        if found is not None and (zones is None or all(use.zone in zones for use in found.zones)):
            return found
    return None


def misaligned(predicted: NumaPlacement, observed: NumaPlacement) -> bool:
    """Whether a resource that both name comes from other zones than predicted.

    Who observes may not see all that was predicted (and the reverse), so what only one of them names says nothing.
    """
    expected, found = _zones_of(predicted), _zones_of(observed)
    return any(expected[resource] != found[resource] for resource in expected.keys() & found.keys())


def _zones_of(placement: NumaPlacement) -> dict[str, set[int]]:
    zones: dict[str, set[int]] = {}
    for use in placement.zones:
        for resource, amount in use.amounts.items():
            if amount:
                zones.setdefault(resource, set()).add(use.zone)
    return zones


def _read_zone_use(entry: _Entry) -> ZoneUse:
    zone = zone_id(entry.zone)
    if zone is None:
        raise ValueError(f"no zone: {entry.zone}")
    amounts: dict[str, int] = {}
    for resource, value in entry.amount.items():
        # Bounded as every amount is, so that sums of them stay within 64 bits.
        amounts[resource] = bounded(parse(resource, value))
        if amounts[resource] < 0:
            raise ValueError(f"{resource}: negative")
    return ZoneUse(zone=zone, amounts=amounts, devices=dict(entry.devices))
