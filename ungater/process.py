"""Running the controller as a process: leadership, health, and the end."""

import asyncio
import math
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog

from clock import SYSTEM, Clock
from engine.reasons import Reason
from kube.client import Client
from kube.errors import KubeError
from kube.events import EventRecorder, ObjectReference
from kube.lease import LeaderElector
from kube.versions import NEWEST, SchedulerRules, scheduler_rules
from serving.live_settings import CONFIG_MAP, SettingsChange, SettingsSource, SettingsWatch
from serving.server import serving
from ungater.assembly import assemble
from ungater.controller import Controller
from ungater.identity import check_identity
from ungater.metrics import ControllerMetrics

if TYPE_CHECKING:
    from crds.settings import Settings

COMPONENT = "topogate-ungater"
VERSION_SECONDS = 300.0  # between two looks at the version of the API server
# Between two terms that end for the namespaces that are served: a label costs a tenant one write, and here all is read.
SHORTEST_PAUSE, LONGEST_PAUSE = 10.0, 600.0
CALM_SECONDS = 1200.0  # without such a change, after which the next one counts at once
log = structlog.get_logger()


class ServedChanges:
    """When a term may end because other namespaces are served: at once after a calm time, then less and less often."""

    def __init__(self) -> None:
        self._due = -math.inf  # when a term ended for this, or is to end
        self._made = 0

    def put_off(self, now: float, *, leaving: bool = False) -> float:
        """For how many seconds the term goes on after a change at ``now``; ``leaving``: of one served no longer."""
        if now - self._due > CALM_SECONDS:
            self._due, self._made = now, 0
        else:
            # Until the term ends, two controllers serve one that leaves: what one starts, the other suspends.
            # `topogate migrate kueue --back` waits for as long before Kueue goes on.
            if leaving:
                self._due, self._made = now + SHORTEST_PAUSE, self._made + 1
                return SHORTEST_PAUSE
            # The exponent is bounded, as a loop may go on for months.
            pause = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0 ** min(self._made, 10))
            self._due, self._made = max(now, self._due + pause), self._made + 1
        return self._due - now


class Process:
    """The controller of one process: a fresh `Controller` for every term in which it leads.

    ``source``: what the settings were made of; None where that is no ConfigMap, and so nothing is looked at again.
    """

    def __init__(
        self, settings: "Settings", client: Client, clock: Clock, source: SettingsSource | None = None
    ) -> None:
        self._settings = settings
        self._source = source
        self._retold = asyncio.Event()  # other settings are to be gone by
        self._served = ServedChanges()
        self._ending: asyncio.TimerHandle | None = None  # other namespaces are to be served, a little later
        self._soon = False  # whether that is because one is served no longer
        self._client = client
        self._clock = clock
        self._recorder = EventRecorder(client, COMPONENT, clock=clock)
        self.metrics = ControllerMetrics()
        client.transport.subscribe(self.metrics.answered)
        self.controller: Controller | None = None

    @property
    def ready(self) -> bool:
        """Whether it works, or stands by for the lease."""
        return self.controller is None or self.controller.ready

    async def run(self) -> None:
        """Lead whenever the lease is ours, until cancelled. Raises ConfigError where it runs as somebody else."""
        await check_identity(self._client, self._settings.namespace)
        beside = [asyncio.create_task(self._recorder.run())]
        if self._source is not None:
            watch = SettingsWatch(self._client, self._settings.namespace, self._source, self)
            beside.append(asyncio.create_task(watch.run()))
        try:
            if not self._settings.leader_election:
                await self._lead(self._client)
                return
            elector = self._elector()
            # Whoever is stopped for a while, and then goes on as if it still led, is to write nothing.
            await elector.run(partial(self._lead, self._client.fenced(lambda: elector.is_leader)))
        finally:
            for task in beside:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            # After the last term: events that it asked for are still sent.
            await self._recorder.close()

    def serve_others(self, leaving: str = "") -> None:
        """Other namespaces are to be served: the term ends, as with other settings, but not over and over.

        ``leaving``: one that is served no longer.
        """
        if self._retold.is_set() or (self._ending is not None and (self._soon or not leaving)):
            return  # what changes until the next term begins counts in that
        if self._ending is not None:
            self._ending.cancel()
        self._soon = bool(leaving)
        seconds = self._served.put_off(self._clock.monotonic(), leaving=self._soon)
        log.info("namespaces are served, or no longer", seconds=round(seconds), leaving=leaving)
        if seconds <= 0.0:
            self._retold.set()
        else:
            self._ending = asyncio.get_running_loop().call_later(seconds, self._retold.set)

    # --- settings --------------------------------------------------------------------------------------------------

    def take_settings(self, change: SettingsChange, uid: str) -> None:
        """Go by other settings: the term ends, and the next one reads everything again, as after a start."""
        self.metrics.settings_refused.set(0)
        log.info("settings changed", taken=change.taken, after_a_restart=change.at_start)
        if change.taken or change.at_start:
            self._tell_settings("Normal", Reason.SETTINGS_CHANGED, taken_in_words(change.taken, change.at_start), uid)
        if change.taken:
            self._settings = change.settings
            self._retold.set()

    def settings_refused(self, problem: str, uid: str) -> None:
        """The settings are wrong: those in use go on."""
        self.metrics.settings_refused.set(1)
        log.error("settings are refused, the last good ones count", error=problem)
        self._tell_settings("Warning", Reason.SETTINGS_REFUSED, refused_in_words(problem), uid)

    def keeps_settings(self) -> bool:
        """Whether it keeps the last good ones, as the leader does."""
        return self.controller is not None

    def _tell_settings(self, kind: str, reason: Reason, message: str, uid: str) -> None:
        about = ObjectReference(
            api_version="v1", kind="ConfigMap", namespace=self._settings.namespace, name=CONFIG_MAP, uid=uid
        )
        self._recorder.event(about, kind, reason, "Settings", message)

    # --- terms -----------------------------------------------------------------------------------------------------

    def _elector(self) -> LeaderElector:
        settings = self._settings
        # A container that starts again in its pod has the same name: the
        # suffix tells the two holders of the lease apart.
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
        """Work until cancelled; from the start again with other settings, or once kube-scheduler has other rules."""
        scheduler = await self._scheduler(client, NEWEST)
        while True:
            # Before the term reads the settings: a change that comes from here on ends it.
            self._retold.clear()
            # A timer that is left would end this term for labels that it has read.
            if self._ending is not None:
                self._ending.cancel()
                self._ending = None
            retold = asyncio.create_task(self._retold.wait())
            term = asyncio.create_task(self._term(client, scheduler))
            try:
                now = scheduler
                while now == scheduler and not retold.done():
                    await asyncio.wait([term, retold], timeout=VERSION_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                    # A term ends by itself only with an error, which `result` raises.
                    if term.done():
                        term.result()
                        return
                    now = await self._scheduler(client, scheduler)
                log.info("settings, namespaces, or the version of the API server are others: all is read again")
            finally:
                for task in (term, retold):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
            scheduler = now

    async def _term(self, client: Client, scheduler: SchedulerRules) -> None:
        parts = assemble(
            *(self._settings, client, self.metrics, self._recorder, self._clock),
            scheduler=scheduler,
            restart=self.serve_others,
        )
        self.controller = Controller(parts, self._recorder, self.metrics, self._clock)
        self.metrics.leader.set(1)
        try:
            await self.controller.run()
        finally:
            self.metrics.leader.set(0)
            # Gauges of this term would stand beside those of whoever leads next.
            self.metrics.end_leading()
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
    source: SettingsSource | None = None,
) -> None:
    """Run until ``stop`` is set or the task is cancelled.

    ``source``: as for `Process`. ``on_port`` is told the port of /healthz and /readyz (``health_port`` 0 takes any
    free one).

    Raises:
        OSError: the port is taken.
        ConfigError: the admission policies do not take its user for the ungater.
    """
    process = Process(settings, client, clock, source)
    async with serving(
        settings, client, process.metrics.registry, ready=lambda: process.ready, alive=lambda: True, clock=clock
    ) as ports:
        if on_port is not None:
            on_port(ports.health)
        log.info("serving", port=ports.health, metrics_port=ports.metrics)
        working = asyncio.create_task(process.run())
        # Inside `serving`: health is answered until the last task has ended.
        waiting = [working] if stop is None else [working, asyncio.create_task(stop.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


def taken_in_words(taken: Sequence[str], at_start: Sequence[str]) -> str:
    """Which settings count from now on, and which only after a restart."""
    later = f"; only after a restart: {', '.join(at_start)}" if at_start else ""
    return f"taken: {', '.join(taken) or 'nothing'}{later}"


def refused_in_words(problem: str) -> str:
    """What becomes of settings that are wrong."""
    return f"{problem}: the last good settings count"
