"""The claims of one pod as plain data that can be compared: pods with equal ones get devices alike."""

import msgspec

Named = tuple[tuple[str, str], ...]  # of each claim of a pod its name there, and the template that it is made of


class ExtendedRequest(msgspec.Struct, frozen=True, gc=False):
    """So many devices of a class for an extended resource of one container; ``name`` is that of the request."""

    resource: str
    name: str
    class_name: str
    count: int


class DeviceAsk(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Claims in the order in which the pod names them; ``key`` is what they ask for, as JSON (`read.asks`).

    ``extended``: what the scheduler's own claim asks for beside them, in its order, on a node whose device plugins give
    none of these resources; what a node's plugins give is left out there (`read.asks.at_node`).
    """

    key: str
    named: Named
    extended: tuple[ExtendedRequest, ...] = ()
