"""What events of devices change: DeviceClasses, ResourceSlices, taints, claims and what these are made of.

An object that cannot be read counts as one that is not there; the error is told as its own.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from engine.claims import model
from engine.claims.read.claims import read_class, read_uses
from engine.claims.read.slices import read_slice
from engine.devices.holders import NO_POD
from engine.devices.taints import read_rule
from kube.informer import Event
from kube.objects import Pod, key
from kube.pods.device_claims import DeviceClass
from kube.pods.devices import DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from ungater.cache.charges.pod_charges import Charges
from ungater.cache.claims.device_claims import DeviceClaims
from ungater.cache.claims.known_claims import KnownClaim
from ungater.cache.core import Core

USERS_AFTER: Final = 1.0  # seconds: a claim that many pods share changes with each of them


class DeviceEvents:
    """See the module. Those that are there at a start are told of like those that come."""

    def __init__(self, core: Core, claims: DeviceClaims, charges: Charges) -> None:
        self._core = core
        self._stores = core.stores
        self._state = core.state
        self._devices = core.state.cluster.devices
        self._entries = core.entries
        self._enqueue = core.enqueue
        self._claims = claims
        self._claimed = claims.claimed
        self._charges = charges

    def on_class(self, event: Event[DeviceClass]) -> None:
        """A DeviceClass came, changed or went."""
        new = event.new
        read = None
        try:
            read = _class_of(new) if new is not None else None
        finally:
            # In ``finally``: a class that cannot be read any more must not leave what it said before.
            self._devices.set_device_class(event.key, read)
            self._claimed.record_device_class(event.key, read)
            for uid in self._claims.record_device_class(event.key, new, self._entries):
                self._enqueue(uid, 0.0)
            self._helped()

    def on_slice(self, event: Event[ResourceSlice]) -> None:
        """A ResourceSlice came, changed or went."""
        old, new = event.old, event.new
        # Each change of a slice has devices counted again; metadata alone changes nothing.
        if old is not None and new is not None and old.spec == new.spec:
            return
        read = None
        try:
            read = read_slice({"metadata": {"name": event.key}, "spec": new.spec}) if new is not None else None
        finally:
            self._devices.set_slice(event.key, read)
            self._devices_changed()

    def on_rule(self, event: Event[DeviceTaintRule]) -> None:
        """A DeviceTaintRule came, changed or went."""
        new = event.new
        read = None
        try:
            read = read_rule({"metadata": {"name": event.key}, "spec": new.spec}) if new is not None else None
        finally:
            self._devices.set_rule(event.key, read)
            self._devices_changed()

    def on_template(self, event: Event[ResourceClaimTemplate]) -> None:
        """What claims are made of came, changed or went."""
        new = event.new
        self._claimed.set_template(event.key, new.spec.spec or {} if new is not None else None)
        for uid in self._claims.made_of(event.key):
            self._enqueue(uid, 0.0)

    def on_claim(self, event: Event[ResourceClaim]) -> None:
        """A claim came or went, was given devices, or gave them back; or other pods have it."""
        new, before = event.new, event.old.results if event.old is not None else None
        had, have = (one.reserved_for if one is not None else frozenset() for one in (event.old, new))
        # Taken in before it is compared: workloads that are looked at because of it ask for the claim as it is now.
        was = self._claimed.set_claim(event.key, new)
        now = self._claimed.known_claim(event.key)
        self._requeue_claimants(event.key, was, now)
        turned = (was is not None and was.allocated) != (now is not None and now.allocated)
        results = new.results if new is not None else None
        # Most events of a claim change its reservations or conditions; devices are counted again only for these three.
        if results == before and not turned and had == have:
            return
        uses = None
        try:
            uses = read_uses(results or [], f"ResourceClaim {event.key}")
        finally:
            self._devices.set_uses(event.key, uses or (), have)
            if turned and (one := new or event.old) is not None:
                self._charge_owners(one)
            # Devices came free only where it had some: a claim that is given its first ones helps nobody.
            if before and (results != before or had - have):
                self._helped()

    def load(self, pods: Iterable[Pod]) -> None:
        """The pods that there are at a start: all others that claims are reserved for are gone."""
        for pod in set(self._devices.holders.reserved_pods) - {key(pod) for pod in pods} - {NO_POD}:
            self._devices.pod_ended(pod)

    def _requeue_claimants(self, key: str, was: KnownClaim | None, now: KnownClaim | None) -> None:
        """Those who name a claim may have it now, or no more; who waits for a place among its users can wait longer."""
        # Only its users changed: with 256 pods of one claim each of
        # them would have all workloads that name it looked at.
        after = 0.0 if now is None or not now.is_equivalent(was) else USERS_AFTER
        if now != was:
            for uid in self._claims.named.naming(key):
                self._enqueue(uid, after)

    def _charge_owners(self, claim: ResourceClaim) -> None:
        """The pods that a claim is made for wait for devices no more, or again."""
        for owner in claim.metadata.owner_references:
            name = f"{claim.metadata.namespace}/{owner.name}"
            charged = self._state.pods.get(name) if owner.kind == "Pod" else None
            # The claim names its pod by name alone: the node where the engine has it leads to the object.
            for pod in self._stores.pods_on(charged.node) if charged is not None else ():
                if key(pod) == name:
                    self._charges.charge_pod(pod)
                    self._charges.note_arrival(pod)

    def _devices_changed(self) -> None:
        """There are other devices: those whose devices were not counted may be counted now."""
        for uid in self._claims.hindered:
            self._enqueue(uid, 0.0)
        self._helped()

    def _helped(self) -> None:
        """Those who wait for devices may find some."""
        if self._core.live:
            self._core.queue_inadmissible()


def _class_of(found: DeviceClass) -> model.DeviceClass:
    spec, made = msgspec.json.decode(msgspec.json.encode(found.spec)), found.metadata.creation_timestamp
    return read_class({"metadata": {"name": found.metadata.name, "creationTimestamp": made}, "spec": spec})
