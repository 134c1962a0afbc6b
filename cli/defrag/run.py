"""``topogate defrag --run``: a plan is carried out move by move, by the controller.

Rules
- This command moves nothing itself: it writes on the Workload where its pods are to go (`ungater.model.move_request`),
  and the controller reserves the places and evicts, or says why not. So limits and budgets hold as for all moves.
- One move at a time; the next one begins when all pods of the last one run in their new places.
- What is written is removed again, however it ends, and counts for two minutes at most. A move that began is the
  controller's: it ends it, or puts it back.
- A move that has no room yet is tried again after the others of its step. Where none of them goes on, all of it ends:
  what follows was planned with the step done.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum

import msgspec

from clock import Clock
from crds.constants import MOVE_TO
from engine.reasons import Reason
from kube.client import Client
from kube.errors import KubeError, NotFound
from kube.objects import Condition, condition, is_true
from kube.resources import WORKLOADS
from kube.workloads import WorkloadObject
from ungater.model.conditions import MOVE_REFUSED, MOVING, PODS_READY
from ungater.model.move_request import MoveRequest, encode

POLL = 0.5  # seconds
# The controller answers within a reconcile; a minute covers a change of the leader.
ANSWER = 60.0  # seconds in which the controller says whether it moves a workload
COUNTS = 120.0  # seconds for which a request counts where it was not removed
ENDED = (Reason.EVICTION_BLOCKED, Reason.PODS_NOT_READY)  # of a move that came to nothing, or to a part of it


class MoveOutcome(StrEnum):
    """What became of one move."""

    MOVED = "moved"
    THERE = "is there already"
    GONE = "is gone"
    REFUSED = "is not moved"
    STAYED = "was put back"
    LATE = "is not done in time"
    USED_UP = "has to wait for the next hour"


DONE = frozenset({MoveOutcome.MOVED, MoveOutcome.THERE, MoveOutcome.GONE})
ENDS = frozenset({MoveOutcome.USED_UP, MoveOutcome.LATE})  # nothing more is begun after these


class WantedNodes(msgspec.Struct, frozen=True):
    """One workload (``namespace/name``), and by pod set the nodes that its pods go to."""

    workload: str
    job: str
    nodes: Mapping[str, tuple[str, ...]]


class MoveResult(msgspec.Struct, frozen=True):
    """What became of a move, and what the controller said."""

    outcome: MoveOutcome
    message: str = ""


class Run:
    """Carries out steps. ``say`` takes a line for a person; ``patience``: seconds for one move, once it began."""

    def __init__(self, client: Client, say: Callable[[str], None], clock: Clock, patience: float) -> None:
        self._client = client
        self._say = say
        self._clock = clock
        self._patience = patience
        self._number = 0

    async def steps(self, steps: Sequence[Sequence[WantedNodes]]) -> bool:
        """All steps in their order; True where all of it was done. Raises KubeError."""
        for number, moves in enumerate(steps, 1):
            if not await self._step(number, moves):
                self._say(f"step {number} is not done, and nothing after it is begun")
                return False
        return True

    async def _step(self, number: int, moves: Sequence[WantedNodes]) -> bool:
        left = list(moves)
        while left:
            refused: list[WantedNodes] = []
            for move in left:
                told = await self.run_move(move)
                text = f": {told.message}" if told.message else ""
                self._say(f"step {number}: {move.job or move.workload} {told.outcome}{text}")
                if told.outcome in ENDS:
                    return False
                if told.outcome not in DONE:
                    refused.append(move)
            # A whole round without progress: another one would ask the same of the same cluster.
            if len(refused) == len(left):
                return False
            left = refused
        return True

    async def run_move(self, move: WantedNodes) -> MoveResult:
        """One move, from its request to its end. Raises KubeError."""
        self._number += 1
        began = self._clock.now()
        request = MoveRequest(
            # The mark tells this request's answers from those of an earlier run on the same Workload.
            f"{int(began * 1000):x}-{self._number}",
            began + COUNTS,
            {name: frozenset(nodes) for name, nodes in move.nodes.items()},
        )
        try:
            await self._write(move, encode(request))
            said = await self._answer(move, request)
        except NotFound:
            return MoveResult(MoveOutcome.GONE)
        finally:
            # Ctrl-C cancels this task; the annotation has to go all the same.
            await asyncio.shield(self._withdraw(move))
        if isinstance(said, MoveResult):
            return said
        return await self._wait_for_end(move, request, self._clock.monotonic() + self._patience)

    async def _write(self, move: WantedNodes, text: str | None) -> None:
        namespace, _, name = move.workload.partition("/")
        await self._client.patch(WORKLOADS, name, namespace, body={"metadata": {"annotations": {MOVE_TO: text}}})

    async def _withdraw(self, move: WantedNodes) -> None:
        with suppress(KubeError):  # it counts no more in a while
            await self._write(move, None)

    async def _read(self, move: WantedNodes) -> WorkloadObject:
        namespace, _, name = move.workload.partition("/")
        return await self._client.get(WORKLOADS, name, namespace, type=WorkloadObject)

    async def _answer(self, move: WantedNodes, request: MoveRequest) -> Condition | MoveResult:
        """What the controller says to a request: the condition of a move that began, or why none did."""
        until = self._clock.monotonic() + ANSWER
        while self._clock.monotonic() < until:
            conditions = (await self._read(move)).status.conditions
            begun = condition(conditions, MOVING)
            # Begun is asked before refused: a move may begin and end between two polls.
            if begun is not None and request.mark in begun.message:
                return begun
            said = condition(conditions, MOVE_REFUSED)
            if said is None or request.mark not in said.message:
                await asyncio.sleep(POLL)
                continue
            if said.reason == Reason.NOTHING_TO_MOVE:
                return MoveResult(MoveOutcome.THERE)
            if said.reason == Reason.MOVES_USED_UP:
                return MoveResult(MoveOutcome.USED_UP, said.message)
            return MoveResult(MoveOutcome.REFUSED, said.message)
        return MoveResult(
            MoveOutcome.LATE, f"the controller did not answer in {ANSWER:g} s; is `topogate ungater` running?"
        )

    async def _wait_for_end(self, move: WantedNodes, request: MoveRequest, until: float) -> MoveResult:
        """Wait until all pods of a move that began run again; ``until`` is of the monotonic clock."""
        while self._clock.monotonic() < until:
            try:
                conditions = (await self._read(move)).status.conditions
            except NotFound:
                return MoveResult(MoveOutcome.GONE)
            said = condition(conditions, MOVING)
            if said is not None and said.status == "False" and said.reason in ENDED:
                return MoveResult(MoveOutcome.STAYED, said.message)
            if said is not None and said.status == "False" and said.reason == Reason.EVICTED:
                return MoveResult(MoveOutcome.REFUSED, said.message)
            # Another move of the same Workload ends this one too.
            over = said is None or said.status == "False" or request.mark not in said.message
            if over and is_true(conditions, PODS_READY):
                return MoveResult(MoveOutcome.MOVED)
            await asyncio.sleep(POLL)
        return MoveResult(
            MoveOutcome.LATE, f"its pods do not all run after {self._patience:g} s; the controller goes on with it"
        )
