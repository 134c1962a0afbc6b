"""What the runs share in which processes die: a witness, and moments that are counted in the controller's writes."""

import asyncio
import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.cluster_checker import is_gated
from support.etcd_events import Change, Events
from support.house import House
from support.witness import Witness

from kube.errors import AlreadyExists, KubeError, NotFound

# TOPOGATE_CHAOS: "small" or "full"; without it these runs are left out, as they take minutes.
FULL = os.environ.get("TOPOGATE_CHAOS") == "full"
ASKED = pytest.mark.skipif(
    os.environ.get("TOPOGATE_CHAOS") not in {"small", "full"}, reason="TOPOGATE_CHAOS is not set"
)
IDLE_SECONDS = 20
# One controller at a time, and the next one goes on at once: with a lease so long that a busy machine lets its holder
# renew it, each kill would cost as much time. Losing one is tested elsewhere.
ALONE = {"TOPOGATE_LEADER_ELECTION": "false"}
RETRY_SECONDS = 0.2
Json = dict[str, Any]


class Moments(Witness):
    """A witness that counts what the controller writes, and does something at the very moment of a write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self._at, self._then, self._reached = 0, lambda: None, asyncio.Event()

    def see(self, change: Change) -> None:
        before = getattr(self, change.kind).get(change.key) if change.kind in {"pods", "workloads"} else None
        try:
            super().see(change)
        except Exception:  # noqa: BLE001 -- at once among what is wrong, not at the end of the run
            self.complain(traceback.format_exc())
        if _is_write(change, before):
            self.writes += 1
            if self.writes == self._at:
                self._then()
                self._reached.set()

    async def wait(self, more: int, then: Callable[[], None]) -> None:
        """Until the controller has written so many times more; ``then`` is called at once."""
        self._at, self._then = self.writes + more, then
        self._reached.clear()
        try:
            await self._reached.wait()
        finally:
            self._at = 0


def _is_write(change: Change, before: Json | None) -> bool:
    """A Workload was made, its status was written, or a pod was let go."""
    if change.new is None:
        return False
    if change.kind == "workloads":
        return before is None or before.get("status") != change.new.get("status")
    return change.kind == "pods" and before is not None and is_gated(before) and not is_gated(change.new)


@asynccontextmanager
async def witnessed(here: House) -> AsyncIterator[tuple[Moments, Events]]:
    """A witness of all that happens from now on."""
    witness = Moments()
    async with Events(here.cluster, witness.see) as events:
        yield witness, events


async def gets_on(witness: Moments, writes: int, then: Callable[[], None]) -> None:
    """Do something at the moment at which the controller has written so many times more, or has had nothing to write.

    What is written while etcd's watch is cut is not counted, so there may be fewer writes left than are waited for.
    """
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            await witness.wait(writes, then)
    except TimeoutError:
        then()


async def insist(call: Callable[[], Awaitable[object]]) -> None:
    """Call until the API server is there and has done it, as people and scripts do."""
    while True:
        try:
            await call()
        except (AlreadyExists, NotFound):
            return
        except KubeError:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return
