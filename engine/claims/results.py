"""What the allocator answers."""

from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from engine.claims.in_use import Use
from engine.claims.model import DeviceId
from engine.claims.quantities import Quantity


class Outcome(StrEnum):
    """How an allocation went."""

    ALLOCATED = "allocated"
    UNALLOCATABLE = "unallocatable"  # not on this node
    INVALID_POOL = "invalid-pool"  # not on this node, and one of its pools contradicts itself
    ERROR = "error"  # on no node: the claims, their classes or an expression are wrong
    GIVEN_UP = "given-up"  # the search took too long, so nothing is known


class Given(msgspec.Struct, frozen=True):
    """One device for one request; ``request`` names the alternative too. ``consumed`` is there for a share."""

    request: str
    device: DeviceId
    consumed: Mapping[str, Quantity] | None = None
    shared: bool = False
    admin: bool = False


class Allocation(msgspec.Struct, frozen=True):
    """The devices of each claim where there are enough, else why not."""

    outcome: Outcome
    claims: tuple[tuple[Given, ...], ...] = ()
    message: str = ""

    @property
    def allocated(self) -> bool:
        """Whether every claim has its devices."""
        return self.outcome is Outcome.ALLOCATED

    def allocated_devices(self) -> Iterator[DeviceId]:
        """All devices of all claims."""
        return (one.device for claim in self.claims for one in claim)

    def uses(self) -> Iterator[Use]:
        """What is in use once the claims have been given this; every share is one of its own."""
        for given in (one for claim in self.claims for one in claim):
            consumed = {name: amount.nanos for name, amount in (given.consumed or {}).items()}
            yield Use(given.device, "share" if given.shared else "", consumed, given.admin)
