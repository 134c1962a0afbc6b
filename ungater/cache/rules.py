"""What settings mean for queues and for the life of a workload: the same for the controller and for commands."""

from typing import TYPE_CHECKING

from engine.preemption.model import ChoiceRules, Scoring, Strategy
from queueing import model
from queueing.moves import MoveRules
from ungater.model.life import LifeRules
from ungater.reconcile.context import MissingPods

if TYPE_CHECKING:
    from crds.settings import Settings


def queue_rules(settings: "Settings") -> model.Rules:
    """What holds for all queues."""
    return model.Rules(
        patience=settings.queue_patience_seconds,
        hold=settings.queue_hold_seconds,
        fair=settings.fair_sharing,
        victims=victim_rules(settings),
        pods=settings.preempt_plain_pods,
        override=settings.reclaim_overrides_budgets,
        leaving=settings.leaving_patience_seconds,
        use=_use_rules(settings),
        minimum=model.RunTime(
            within=settings.minimum_run_time_within_cluster_queue_seconds,
            reclaim=settings.minimum_run_time_reclaim_seconds,
            fair=settings.minimum_run_time_fair_sharing_seconds,
        ),
    )


def _use_rules(settings: "Settings") -> model.UseRules | None:
    """How use over time is counted; None: it is not."""
    half_life = settings.fair_use_half_life_seconds
    if half_life is None:
        return None
    return model.UseRules(
        half_life=half_life, sampling=settings.fair_use_sampling_seconds, weights=settings.fair_use_resource_weights
    )


def victim_rules(settings: "Settings") -> ChoiceRules:
    """Which victims are the least."""
    scoring = Scoring(
        alpha=settings.preemption_alpha,
        high=settings.preemption_same_zone,
        medium=settings.preemption_same_socket,
        low=settings.preemption_across,
    )
    return ChoiceRules(Strategy(settings.preemption_strategy), scoring)


def device_resources(settings: "Settings") -> dict[str, str]:
    """By DeviceClass, the resource of queues that its devices count as."""
    return {name: one.name for one in settings.device_class_mappings for name in one.device_class_names}


def life_rules(settings: "Settings") -> LifeRules:
    """What holds for a queued workload from its admission to its end."""
    return LifeRules(
        ready_timeout=settings.wait_for_pods_ready_timeout_seconds,
        recovery_timeout=settings.wait_for_pods_ready_recovery_timeout_seconds,
        backoff=settings.requeuing_backoff_base_seconds,
        backoff_most=settings.requeuing_backoff_max_seconds,
        backoff_limit=settings.requeuing_backoff_limit_count,
        replacement=settings.replacement_timeout_seconds,
        retention=settings.workload_retention_seconds,
        boost_rest=settings.priority_boost_rest_seconds,
    )


def patience(settings: "Settings") -> float | None:
    """How long kube-scheduler may refuse a pod that was let go; None: for ever."""
    return settings.unschedulable_patience_seconds or None


def missing_pods(settings: "Settings") -> MissingPods:
    """How long pods are waited for that do not come."""
    return MissingPods(settings.missing_pods_timeout_seconds, settings.missing_pods_recovery_timeout_seconds)


def move_rules(settings: "Settings") -> MoveRules:
    """How many workloads that run may be moved, and why."""
    return MoveRules(
        per_hour=settings.moves_per_hour,
        rest=settings.move_rest_seconds,
        together=settings.pull_together,
        misaligned=settings.replace_misaligned,
        room=settings.make_room,
        room_priority=settings.make_room_max_priority,
    )
