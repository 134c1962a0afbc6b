"""Running the controller as a process: leadership, health, and the end."""

import asyncio
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog

from clock import SYSTEM, Clock
from kube.client import Client
from kube.errors import KubeError
from kube.events import EventRecorder
from kube.lease import LeaderElector
from kube.versions import NEWEST, SchedulerRules, scheduler_rules
from serving.server import serving
from ungater.controller import Controller
from ungater.metrics import Metrics

if TYPE_CHECKING:
    from crds.settings import Settings

COMPONENT = "topogate-ungater"
VERSION_SECONDS = 300.0  # between two looks at the version of the API server
log = structlog.get_logger()


class Process:
    """The controller of one process: a fresh `Controller` for every term in which it leads."""

    def __init__(self, settings: "Settings", client: Client, clock: Clock) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._recorder = EventRecorder(client, COMPONENT, clock=clock)
        self.metrics = Metrics()
        client.transport.subscribe(self.metrics.answered)
        self.controller: Controller | None = None

    @property
    def ready(self) -> bool:
        """Whether it works, or stands by for the lease."""
        return self.controller is None or self.controller.ready

    async def run(self) -> None:
        """Lead whenever the lease is ours, until cancelled."""
        flushing = asyncio.create_task(self._recorder.run())
        try:
            if not self._settings.leader_election:
                await self._lead(self._client)
                return
            elector = self._elector()
            # Whoever is stopped for a while, and then goes on as if it still led, is to write nothing.
            await elector.run(partial(self._lead, self._client.fenced(lambda: elector.is_leader)))
        finally:
            flushing.cancel()
            with suppress(asyncio.CancelledError):
                await flushing
            await self._recorder.close()

    def _elector(self) -> LeaderElector:
        settings = self._settings
        identity = f"{os.environ.get('POD_NAME') or platform.node()}_{uuid4().hex[:8]}"
        return LeaderElector(
            self._client,
            settings.namespace,
            settings.lease_name,
            identity,
            lease_seconds=settings.lease_seconds,
            renew_seconds=settings.lease_renew_seconds,
            retry_seconds=settings.lease_retry_seconds,
            clock=self._clock,
        )

    async def _lead(self, client: Client) -> None:
        """Work until cancelled; from the start again once kube-scheduler has other rules, as it was upgraded."""
        scheduler = await self._scheduler(client, NEWEST)
        while True:
            term = asyncio.create_task(self._term(client, scheduler))
            try:
                now = scheduler
                while now == scheduler:
                    await asyncio.wait([term], timeout=VERSION_SECONDS)
                    if term.done():
                        term.result()
                        return
                    now = await self._scheduler(client, scheduler)
                log.info("the API server has another version: all is read again")
            finally:
                term.cancel()
                with suppress(asyncio.CancelledError):
                    await term
            scheduler = now

    async def _term(self, client: Client, scheduler: SchedulerRules) -> None:
        self.controller = Controller(
            self._settings, client, self.metrics, self._recorder, self._clock, scheduler=scheduler
        )
        self.metrics.leader.set(1)
        try:
            await self.controller.run()
        finally:
            self.metrics.leader.set(0)
            self.metrics.forget()
            self.controller = None

    @staticmethod
    async def _scheduler(client: Client, known: SchedulerRules) -> SchedulerRules:
        """What kube-scheduler does by the version of the API server; what is ``known`` where that does not say."""
        try:
            return scheduler_rules(await client.server_version())
        except (KubeError, KeyError) as error:
            log.warning("the API server does not say its version", error=str(error))
            return known


async def run(
    settings: "Settings",
    client: Client,
    *,
    stop: asyncio.Event | None = None,
    on_port: Callable[[int], None] | None = None,
    clock: Clock = SYSTEM,
) -> None:
    """Run until ``stop`` is set or the task is cancelled.

    ``on_port`` is told the port of /healthz and /readyz (``health_port`` 0 takes any free one).

    Raises:
        OSError: the port is taken.
    """
    process = Process(settings, client, clock)
    async with serving(
        settings, client, process.metrics.registry, ready=lambda: process.ready, alive=lambda: True, clock=clock
    ) as ports:
        if on_port is not None:
            on_port(ports.health)
        log.info("serving", port=ports.health, metrics_port=ports.metrics)
        working = asyncio.create_task(process.run())
        waiting = [working] if stop is None else [working, asyncio.create_task(stop.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
