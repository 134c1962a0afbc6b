"""What the event of a DeviceClass changes: whether pods that ask for an extended resource wait for a place."""

from kube.informer import Event
from kube.pods.device_claims import DeviceClass
from ungater.cache.core import Core
from ungater.cache.held.device_claims import DeviceClaims


class DeviceEvents:
    """See the module."""

    def __init__(self, core: Core, claims: DeviceClaims) -> None:
        self._entries = core.entries
        self._enqueue = core.enqueue
        self._claims = claims

    def on_class(self, event: Event[DeviceClass]) -> None:
        """A DeviceClass came, changed or went; those that are there at a start are told of like this too."""
        for uid in self._claims.set_class(event.key, event.new, self._entries):
            self._enqueue(uid, 0.0)
