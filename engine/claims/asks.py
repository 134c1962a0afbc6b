"""The claims of one pod as plain data that can be compared: pods with equal ones get devices alike."""

from typing import Final

import msgspec

OWN: Final = "claim/"  # before the name of a ResourceClaim that is there; no template is called so

Named = tuple[tuple[str, str], ...]  # of each claim of a pod its name there, and its template, or `OWN` and its name


class ExtendedRequest(msgspec.Struct, frozen=True, gc=False):
    """So many devices of a class for an extended resource of one container; ``name`` is that of the request."""

    resource: str
    name: str
    class_name: str
    count: int


class DeviceAsk(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Claims in the order in which the pod names them; ``key`` is what they ask for, as JSON (`claims.read.asks`).

    ``extended``: what the scheduler's own claim asks for beside them, in its order, on a node whose device plugins give
    none of these resources; what a node's plugins give is left out there (`claims.read.asks.at_node`). ``claims``: all
    claims that the pod names (``namespace/name``), those too that have devices already and are not in ``named``.
    ``shared``: all pods of the pod set have the same claims, so they all go onto one node, and there the devices count
    once.
    ``aligned``: where the devices have to be in the zones that a kubelet gives the pod, a digest of all else that
    decides on those; "" where they do not (`engine.devices.first_fits`).
    """

    key: str
    named: Named
    extended: tuple[ExtendedRequest, ...] = ()
    claims: tuple[str, ...] = ()
    shared: bool = False
    aligned: str = ""

    @property
    def varies(self) -> bool:
        """Whether not all nodes are asked for these claims, and for any."""
        return bool(self.extended or self.claims or not self.named)
