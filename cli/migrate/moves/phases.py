"""What is to be done next, from what is there: so each command can be run again wherever it ended. Pure."""

from collections.abc import Collection
from enum import StrEnum

import msgspec


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
    DONE = "done"


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


def next_phase(facts: MoveFacts) -> MovePhase:
    """The first phase of which something is left to do."""
    # Each is a precondition of all that follow: nobody serves a namespace before its queues are here and Kueue's hold.
    for phase, is_due in (
        (MovePhase.BACK_UP, bool(facts.unsaved)),
        (MovePhase.HOLD, bool(facts.unheld)),
        (MovePhase.SETTLE, bool(facts.unserved) and not facts.settled),
        (MovePhase.MAKE, not facts.made),
        (MovePhase.LEAVE, bool(facts.joined)),
        (MovePhase.SERVE, bool(facts.unserved)),
        (MovePhase.ADOPT, not facts.adopted),
        (MovePhase.RELEASE, bool(facts.unreleased)),
        (MovePhase.CLEAN, not facts.cleaned),
    ):
        if is_due:
            return phase
    return MovePhase.DONE
