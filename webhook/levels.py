"""Which topology levels exist: what the ResourceFlavors of the cluster offer."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

import structlog

from kube.client import Client
from kube.errors import KubeTimeout
from kube.informer import Event, Informer
from kube.objects import ResourceFlavor
from kube.resources import RESOURCE_FLAVORS

log = structlog.get_logger(__name__)

Flavors = Mapping[str, tuple[str, ...]]  # flavor name -> its levels, widest first; those without a topology are absent


class LevelSource(Protocol):
    """Something that knows the levels, perhaps after a while."""

    def current(self) -> Flavors | None:
        """The flavors with a topology; None as long as they are not known."""

    async def wait(self, seconds: float) -> None:
        """Wait until they are known, but no longer than this."""


class FixedLevels:
    """Levels that are known from the start, for tests and benchmarks."""

    def __init__(self, flavors: Flavors) -> None:
        self._flavors = flavors

    def current(self) -> Flavors | None:
        """What was given."""
        return self._flavors

    async def wait(self, seconds: float) -> None:
        """Nothing to wait for."""


class FlavorLevels:
    """Levels read by an informer. The mapping is replaced at each change, never changed."""

    def __init__(self, client: Client) -> None:
        self._flavors: dict[str, tuple[str, ...]] = {}
        self._known = asyncio.Event()
        self._informer = Informer(client, RESOURCE_FLAVORS, ResourceFlavor, on_event=self._on_event)

    def current(self) -> Flavors | None:
        """The flavors with a topology; None before the first list."""
        return self._flavors if self._known.is_set() else None

    async def wait(self, seconds: float) -> None:
        """Wait for the first list, but no longer than this."""
        if not self._known.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._known.wait()
            except TimeoutError:
                return

    async def run(self) -> None:
        """List and watch for ever; ends only by cancellation."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            group.create_task(self._note_first_list())

    async def _note_first_list(self) -> None:
        while not self._known.is_set():
            try:
                await self._informer.wait_synced()
            except KubeTimeout as error:
                log.warning("ResourceFlavors cannot be listed; trying again", error=str(error))
            else:
                self._known.set()

    def _on_event(self, event: Event[ResourceFlavor]) -> None:
        name, flavor = event.key, event.new
        rest = {other: levels for other, levels in self._flavors.items() if other != name}
        topology = flavor.spec.topology if flavor is not None else None
        self._flavors = {**rest, name: topology.levels} if topology is not None and topology.levels else rest
