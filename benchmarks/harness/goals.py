"""Goals of benchmarks, each beside the figure that was measured: met or missed.

A benchmark states its goals while it reports; ``report.save`` keeps them with its figures, and ``python -m benchmarks``
prints all of a run at its end. A figure that could not be measured misses its goal.
"""

from collections.abc import Iterable

import msgspec


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One figure and what it is to be: at most so much, or at least."""

    what: str
    figure: float | None
    bound: float
    unit: str
    least: bool  # whether the figure is to be at least the bound

    @property
    def met(self) -> bool:
        """Whether the figure holds it."""
        if self.figure is None:
            return False
        return self.figure >= self.bound if self.least else self.figure <= self.bound


class Goals:
    """The goals of one run, by benchmark."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Goal]] = {}
        self._stated: list[Goal] = []

    def at_most(self, what: str, figure: float | None, bound: float, unit: str) -> None:
        """State that ``figure`` is to be ``bound`` or less."""
        self._stated.append(Goal(what=what, figure=figure, bound=bound, unit=unit, least=False))

    def at_least(self, what: str, figure: float | None, bound: float, unit: str) -> None:
        """State that ``figure`` is to be ``bound`` or more."""
        self._stated.append(Goal(what=what, figure=figure, bound=bound, unit=unit, least=True))

    def keep(self, benchmark: str) -> list[Goal]:
        """Those stated since the last call are this benchmark's; returns them."""
        self.kept[benchmark], self._stated = self._stated, []
        return self.kept[benchmark]

    def rows(self) -> Iterable[tuple[str, str, float | None, str, str]]:
        """One row a goal: benchmark, what, figure, goal, verdict."""
        for benchmark, goals in self.kept.items():
            for goal in goals:
                bound = f"{'>=' if goal.least else '<='} {goal.bound:,g} {goal.unit}".rstrip()
                yield benchmark, goal.what, goal.figure, bound, "met" if goal.met else "MISSED"

    def verdict(self) -> str:
        """How many of them are met; empty where there are none."""
        goals = [goal for kept in self.kept.values() for goal in kept]
        return f"{sum(goal.met for goal in goals)} of {len(goals)} goals met" if goals else ""


GOALS = Goals()
