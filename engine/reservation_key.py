"""Under which keys room and quota are held.

What a workload holds by itself goes by its key, plain text (``namespace/name``), which is what nearly every look-up is
for. What is held in another role goes by a `ReservationKey`. Nobody reads a key by its text: `role_of`, `workload_of`.
"""

from enum import StrEnum
from typing import Final, TypeAlias

import msgspec


class Role(StrEnum):
    """In which role something is held."""

    WORKLOAD = "workload"
    GROWTH = "growth"  # what more of its pods are to get once their victims are gone
    BACKFILL = "backfill"  # what is kept for a workload that has waited long
    SUCCESSOR = "successor"  # what is kept for a workload until those are gone that it follows
    LEAVING = "leaving"  # what a workload moved away from, until its pods are gone
    TRIAL = "trial"  # what a workload would hold; a roll-back takes it away
    POD = "pod"  # a pod that no queue admitted; a search may evict it
    ORPHAN = "orphan"  # what pods take of a queue though no admission pays for it (any more)


class ReservationKey(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """``workload``: its key, or ``namespace/name`` of a pod. ``part``: of several in one role, which.

    The part of a workload, or of its growth, is a domain: the slices that it has there. No NamedTuple, which takes
    twice as long to make, and is hashed anew in each look-up.
    """

    workload: str
    role: Role
    part: tuple[str, ...] = ()

    @classmethod
    def for_domain(cls, key: "HolderKey", domain: tuple[str, ...]) -> "ReservationKey":
        """The slices that one has in a domain."""
        return cls(workload_of(key), role_of(key), domain)

    @classmethod
    def for_growth(cls, key: str) -> "ReservationKey":
        """More pods of a workload."""
        return cls(key, Role.GROWTH)

    @classmethod
    def for_backfill(cls, key: str) -> "ReservationKey":
        """Room for a workload that has waited long."""
        return cls(key, Role.BACKFILL)

    @classmethod
    def for_successor(cls, key: str) -> "ReservationKey":
        """Room and quota for a workload that follows others."""
        return cls(key, Role.SUCCESSOR)

    @classmethod
    def for_leaving(cls, key: str, *part: str) -> "ReservationKey":
        """The slots of a workload that moved, or one that it moves."""
        return cls(key, Role.LEAVING, part)

    @classmethod
    def for_trial(cls, key: "HolderKey", *part: str) -> "ReservationKey":
        """What one would hold beside what it holds; ``part``: who tries it, and which of several it is."""
        return cls(workload_of(key), Role.TRIAL, part)

    @classmethod
    def for_pod(cls, pod: str) -> "ReservationKey":
        """A pod (``namespace/name``) that no queue admitted."""
        return cls(pod, Role.POD)

    @classmethod
    def for_orphan(cls, pod: str, queue: str = "") -> "ReservationKey":
        """A pod that no workload answers for; ``queue``: what pods of a workload take of it beyond its admission."""
        return cls(pod, Role.ORPHAN, (queue,) if queue else ())

    @property
    def whole(self) -> "HolderKey":
        """The same with all its parts."""
        if not self.part:
            return self
        return self.workload if self.role is Role.WORKLOAD else ReservationKey(self.workload, self.role)

    def __str__(self) -> str:
        """For people: ``pod team-a/web``."""
        return self.workload if self.role is Role.WORKLOAD else f"{self.role} {self.workload}"


HolderKey: TypeAlias = str | ReservationKey
_WORKLOAD: Final = Role.WORKLOAD  # a look-up in an enum takes longer than all else of `role_of`


def workload_of(key: HolderKey) -> str:
    """Whose it is: the key of a workload, or of a pod."""
    return key if isinstance(key, str) else key.workload


def role_of(key: HolderKey) -> Role:
    """In which role it is held."""
    return _WORKLOAD if isinstance(key, str) else key.role


def part_of(key: HolderKey) -> tuple[str, ...]:
    """Which part it is; () where it is all of it."""
    return () if isinstance(key, str) else key.part


def whole_of(key: HolderKey) -> HolderKey:
    """The same with all its parts."""
    return key if isinstance(key, str) else key.whole


def order_of(key: HolderKey) -> tuple[str, ...]:
    """What keys are sorted by: their text, then the part."""
    return (key,) if isinstance(key, str) else (str(key), *key.part)
