"""What ``--move`` and ``--back`` have in common: phase after phase, each by what is there, and the wait for quiet."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from enum import StrEnum
from typing import Final, Generic, TypeVar

import msgspec

from cli.migrate.moves.meanwhile import require_queues
from cli.migrate.moves.phases import LAST, note_turn
from cli.migrate.moves.sight import MoveSight, look_around
from cli.migrate.moves.steps import MoveStep
from cli.output import Failure, some
from clock import SYSTEM, Clock
from kube.client import Client

Tell = Callable[[str], None]
Done = TypeVar("Done")  # the facts of a way
PATIENCE_SECONDS: Final = 120.0
STILL_SECONDS: Final = 5.0  # what a controller began before a hold or a label may still be under way
POLL_SECONDS: Final = 1.0
_SHOWN: Final = 8  # problems in one message


class MoveOptions(msgspec.Struct, frozen=True):
    """What the command line says. ``namespace``: Topogate's; ``without_checks``: AdmissionChecks that are left out."""

    namespace: str
    kueue_namespace: str
    without_checks: tuple[str, ...] = ()
    shared_nodes: bool = False
    patience: float = PATIENCE_SECONDS


class PhaseWalk(ABC, Generic[Done]):
    """One way of a step. ``tell`` is called with each thing that was done, as a sentence."""

    def __init__(self, client: Client, options: MoveOptions, tell: Tell, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._options = options
        self._tell = tell
        self._clock = clock

    @abstractmethod
    def _choose_phase(self, sight: MoveSight, step: MoveStep, done: Done) -> StrEnum:
        """What is next; the phase `LAST` where nothing is left."""

    @abstractmethod
    async def _go_through(self, phase: StrEnum, sight: MoveSight, step: MoveStep, done: Done) -> Done:
        """Do what a phase asks for, and what is done with it."""

    async def _look(self) -> MoveSight:
        return await look_around(self._client, self._options.kueue_namespace, self._options.namespace)

    async def walk_phases(self, sight: MoveSight, step: MoveStep, done: Done) -> MoveSight:
        """Go through all that are left; what there is then. Raises Failure with what to do."""
        turns = dict[StrEnum, int]()
        # Looked at again after each phase: others write to these objects too, and a run may have ended anywhere.
        while (phase := self._choose_phase(sight, step, done)) != LAST:
            note_turn(turns, phase)
            done = await self._go_through(phase, sight, step, done)
            sight = await self._look()
            require_queues(sight, step)
        return sight

    async def wait_still(self, find_under_way: Callable[[], Awaitable[list[str]]]) -> list[str]:
        """Wait until nothing was under way for some seconds; what still is when patience ends, else nothing."""
        deadline = self._clock.monotonic() + self._options.patience
        quiet_since = None
        while True:
            under_way = await find_under_way()
            now = self._clock.monotonic()
            # A cycle that began before the hold may still admit, so one quiet look does not tell.
            quiet_since = None if under_way else now if quiet_since is None else quiet_since
            if quiet_since is not None and now - quiet_since >= STILL_SECONDS:
                return []
            if under_way and now > deadline:
                return under_way
            await asyncio.sleep(POLL_SECONDS)


def name_queues(names: Collection[str]) -> str:
    """``ClusterQueues a, b``."""
    return f"ClusterQueue{'s' if len(names) > 1 else ''} {some(sorted(names))}"


def say_stopped(what: str, problems: Sequence[str]) -> Failure:
    """An error that lists the first problems."""
    more = f"\nand {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return Failure(f"{what}:\n" + "\n".join(problems[:_SHOWN]) + more)
