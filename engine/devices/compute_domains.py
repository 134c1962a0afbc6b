"""Channels of ComputeDomains: what NVIDIA's driver for multi-node NVLink ties to a claim and to a node.

Rules (source: NVIDIA's ``k8s-dra-driver-gpu``, now ``dra-driver-nvidia-gpu``: ``compute-domain-kubelet-plugin``)
- A claim of a channel names its ComputeDomain by uid, in the opaque configuration (`_KIND`) of the claim.
- Where such a claim is prepared, the plugin labels the node with that uid. It fails where the node has another one, so
  a node is of one domain at a time; the label goes when the claim is unprepared.
- A node's slice offers one channel, so a domain has one on each node.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import msgspec

from engine.claims.asks import DeviceAsk
from engine.devices.holders import ClaimHolders

DRIVER: Final = "compute-domain.nvidia.com"
LABEL: Final = "resource.nvidia.com/computeDomain"  # of a node: the uid of its domain
CLIQUE: Final = "nvidia.com/gpu.clique"  # of a node: whose NVLink it shares
CHANNELS: Final = "compute-domain-default-channel.nvidia.com"  # their DeviceClass
_KIND: Final = "ComputeDomainChannelConfig"
_CHANNEL: Final = "channel-"  # what the names of its channels begin with; others are the daemon's


@lru_cache(maxsize=1024)
def domains_of(ask: DeviceAsk) -> tuple[str, ...]:
    """The ComputeDomains whose channels a pod asks for, by uid; () for none, and for what cannot be read."""
    # Nearly all claims are of other drivers, and the text tells that without parsing it.
    if DRIVER not in ask.key:
        return ()
    return tuple(dict.fromkeys([uid for spec in msgspec.json.decode(ask.key) for uid in _domain_names(spec)]))


def domain_of(ask: DeviceAsk | None) -> str:
    """The one of them; "" where there is none, or more than one."""
    found = domains_of(ask) if ask is not None else ()
    # A pod of two domains prepares its claims on no node: a node is of one domain at a time.
    return found[0] if len(found) == 1 else ""


def _domain_names(spec: object) -> Iterator[str]:
    """Whatever a tenant wrote there is stored: what is no such configuration is passed over."""
    for config in _list(_field(_field(spec, "devices"), "config")):
        opaque = _field(config, "opaque")
        parameters = _field(opaque, "parameters")
        uid = _field(parameters, "domainID")
        if _field(opaque, "driver") == DRIVER and _field(parameters, "kind") == _KIND and isinstance(uid, str) and uid:
            yield uid


def _field(of: object, name: str) -> object:
    return of.get(name) if isinstance(of, dict) else None


def _list(found: object) -> list[object]:
    return found if isinstance(found, list) else []


def left_behind(holders: ClaimHolders) -> frozenset[str]:
    """The nodes whose channels only claims hold that are thought away: their label goes with these."""
    return holders.vacated(DRIVER, _CHANNEL)
