"""Wire shapes of PodDisruptionBudgets: how many of which pods may be evicted now."""

from kube.objects import LabelSelector, Object, Struct


class BudgetSpec(Struct, frozen=True):
    """Whose pods a budget is about."""

    selector: LabelSelector | None = None


class BudgetStatus(Struct, frozen=True):
    """How many of them may be evicted now."""

    disruptions_allowed: int = 0
    observed_generation: int = 0


class PodDisruptionBudget(Object, frozen=True):
    """A PodDisruptionBudget."""

    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()

    @property
    def allowed(self) -> int:
        """Pods that may be evicted now; none before its controller has seen its spec."""
        return self.status.disruptions_allowed if self.status.observed_generation >= self.metadata.generation else 0
