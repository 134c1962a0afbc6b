"""The annotation that says of a pod by which quota it runs: `ADMITTED_QUOTA`.

It is written when the pod is let go, and outlives the pod's workload: a pod that is orphaned, or goes on while its
owner is gone, still takes what it takes.
"""

import msgspec


class AdmittedQuota(msgspec.Struct, frozen=True, rename="camel"):
    """The ClusterQueue that pays, and by resource the flavor in which it does."""

    cluster_queue: str
    flavors: dict[str, str] = {}


_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(AdmittedQuota).decode


def encode(quota: AdmittedQuota) -> str:
    """The text of the annotation; equal quotas give equal text."""
    return _encode(quota).decode()


def decode(text: str | None) -> AdmittedQuota | None:
    """What the annotation says; None where there is none, or it cannot be read."""
    if not text:
        return None
    try:
        return _decode(text)
    # Unreadable text is no quota: an error here would be taken for one of ours, with each event of the pod.
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
