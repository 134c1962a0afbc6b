"""The claims of one pod as plain data that can be compared: pods with equal ones get devices alike."""

import msgspec

Named = tuple[tuple[str, str], ...]  # of each claim of a pod its name there, and the template that it is made of


class DeviceAsk(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Claims in the order in which the pod names them; ``key`` is what they ask for, as JSON (`read.asks`)."""

    key: str
    named: Named
