"""Pods that have a slot and stay gated until others are there."""

from enum import StrEnum

import msgspec

from engine.kubelet.machine import PodShape


class HoldReason(StrEnum):
    """Why a pod is not let go to a node now."""

    NONE = ""
    ORDER = "order"  # it, or one on its way there, may be refused where they come in another order
    ENDS = "ends"  # it may be refused where a pod ends before it is there
    PROMISED = "promised"  # a pod that is still to come, of a workload that was admitted before, might find no zone
    DEVICES = "devices"  # those on their way get theirs first, or devices of its claims are still to come free
    REFUSED = "refused"  # it would be refused as things stand


class HeldPod(msgspec.Struct, frozen=True):
    """A pod that stays gated though it has a slot (`ungater.numa.in_flight`); ``since``: in seconds of the clock.

    ``claims``: the devices of its claims are to be where its kubelet gives it CPUs; ``words``: why they would not
    be, or what is the matter with its devices.
    """

    node: str
    shape: PodShape
    since: float
    why: HoldReason = HoldReason.NONE
    claims: bool = False
    words: str = ""
