"""What a kubelet says to a pod: admitted or not, why, and what the pod takes. Plain data."""

from typing import NamedTuple

from engine.kubelet.machine import State

Uses = tuple[tuple[int, tuple[tuple[str, int], ...]], ...]


class HintMerge(NamedTuple):
    """One merge: of a container, or of the whole pod (``*``). ``merged``: a zone mask, None for no affinity."""

    container: str
    merged: int | None
    preferred: bool
    admit: bool


class AdmissionOutcome(NamedTuple):
    """What the kubelet would say. Where it refuses, ``after`` is the state as it was and nothing is used.

    ``zones``: mask of the zones that the pod holds something of; ``uses``: (zone index, amounts by resource), where
    memory of 0 means that the zone belongs to the group that the memory comes from. ``devices``: (resource, mask).
    ``cpus``: the CPUs it pins, as a mask (exact layouts).
    """

    admitted: bool
    reason: str
    message: str
    steps: tuple[HintMerge, ...]
    zones: int
    uses: Uses
    devices: tuple[tuple[str, int], ...]
    after: State
    cpus: int = 0
