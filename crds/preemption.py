"""The settings of preemption as the engine takes them."""

from typing import TYPE_CHECKING

from engine.preemption.model import ChoiceRules, Scoring, Strategy

if TYPE_CHECKING:
    from crds.settings import Settings


def victim_rules(settings: "Settings") -> ChoiceRules:
    """Which victims are the least."""
    scoring = Scoring(
        alpha=settings.preemption_alpha,
        high=settings.preemption_same_zone,
        medium=settings.preemption_same_socket,
        low=settings.preemption_across,
    )
    return ChoiceRules(Strategy(settings.preemption_strategy), scoring)
