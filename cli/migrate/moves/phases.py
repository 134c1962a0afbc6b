"""What is to be done next, from what is there: so each command can be run again wherever it ended. Pure."""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from cli.output import Failure

MOST_TURNS: Final = 20
LAST: Final = "done"  # the phase of either way in which nothing is left to do

_Phase = TypeVar("_Phase", bound=StrEnum)


class MovePhase(StrEnum):
    """The phases of ``--move``, in order."""

    BACK_UP = "back up"
    HOLD = "hold"
    SETTLE = "settle"
    MAKE = "make"
    LEAVE = "leave"
    SERVE = "serve"
    ADOPT = "adopt"
    RELEASE = "release"
    CLEAN = "clean"
    DONE = LAST


class MoveFacts(msgspec.Struct, frozen=True):
    """What is seen of a step, and what this run has done already.

    ``unsaved``: queues without a backup; ``unheld``: that Kueue does not hold; ``joined``: that are in a cohort of
    Kueue; ``unserved``: namespaces without the label; ``unreleased``: queues of ours that differ from what they are to
    be in the end. ``settled``, ``made``, ``adopted``, ``cleaned``: phases that were gone through.
    """

    unsaved: Collection[str] = ()
    unheld: Collection[str] = ()
    joined: Collection[str] = ()
    unserved: Collection[str] = ()
    unreleased: Collection[str] = ()
    settled: bool = False
    made: bool = False
    adopted: bool = False
    cleaned: bool = False


class BackPhase(StrEnum):
    """The phases of ``--back``, in order."""

    HOLD = "hold"
    SETTLE = "settle"
    HAND_BACK = "hand back"
    LEAVE = "leave"
    RETURN = "return"
    UNSERVE = "unserve"
    WAKE = "wake"
    RELEASE = "release"
    REMOVE = "remove"
    FORGET = "forget"
    DONE = LAST


class BackFacts(msgspec.Struct, frozen=True):
    """What is seen of a step on its way back, and what this run has done already.

    ``unheld``: queues of ours that go on; ``served``: namespaces with the label; ``joined``: queues of ours that are in
    a cohort; ``apart``: queues of Kueue that are not in theirs; ``unreleased``: queues of Kueue that are stopped
    otherwise than before; ``kept``: with a backup. ``settled``, ``handed``, ``woken``, ``removed``: phases that were
    gone through.
    """

    unheld: Collection[str] = ()
    served: Collection[str] = ()
    joined: Collection[str] = ()
    apart: Collection[str] = ()
    unreleased: Collection[str] = ()
    kept: Collection[str] = ()
    settled: bool = False
    handed: bool = False
    woken: bool = False
    removed: bool = False


def note_turn(turns: dict[StrEnum, int], phase: StrEnum) -> None:
    """Count how often a phase was begun. Raises Failure where it does not last, since somebody else undoes it."""
    turns[phase] = turns.get(phase, 0) + 1
    # A conflict repeats a phase a few times; an installer that puts its own objects back does so for ever.
    if turns[phase] > MOST_TURNS:
        raise Failure(
            f'what the phase "{phase.value}" writes is undone each time: have what installs these objects (Argo CD, '
            "Flux, a script) leave them alone, and run the command again"
        )


def next_back_phase(facts: BackFacts) -> BackPhase:
    """The first phase of which something is left to do."""
    # Kueue's Workloads come before the label goes, and its queues go on after the jobs that wait have no gate of ours.
    phases = (
        (BackPhase.HOLD, bool(facts.unheld)),
        (BackPhase.SETTLE, bool(facts.served) and not facts.settled),
        (BackPhase.HAND_BACK, bool(facts.served) and not facts.handed),
        (BackPhase.LEAVE, bool(facts.joined)),
        (BackPhase.RETURN, bool(facts.apart)),
        (BackPhase.UNSERVE, bool(facts.served)),
        (BackPhase.WAKE, not facts.woken),
        (BackPhase.RELEASE, bool(facts.unreleased)),
        (BackPhase.REMOVE, not facts.removed),
        (BackPhase.FORGET, bool(facts.kept)),
    )
    return first_due(phases, BackPhase.DONE)


def next_phase(facts: MoveFacts) -> MovePhase:
    """The first phase of which something is left to do."""
    # Each is a precondition of all that follow: nobody serves a namespace before its queues are here and Kueue's hold.
    phases = (
        (MovePhase.BACK_UP, bool(facts.unsaved)),
        (MovePhase.HOLD, bool(facts.unheld)),
        (MovePhase.SETTLE, bool(facts.unserved) and not facts.settled),
        (MovePhase.MAKE, not facts.made),
        (MovePhase.LEAVE, bool(facts.joined)),
        (MovePhase.SERVE, bool(facts.unserved)),
        (MovePhase.ADOPT, not facts.adopted),
        (MovePhase.RELEASE, bool(facts.unreleased)),
        (MovePhase.CLEAN, not facts.cleaned),
    )
    return first_due(phases, MovePhase.DONE)


def first_due(phases: Iterable[tuple[_Phase, bool]], last: _Phase) -> _Phase:
    """The first phase that is due; ``last`` where none is."""
    return next((phase for phase, is_due in phases if is_due), last)
