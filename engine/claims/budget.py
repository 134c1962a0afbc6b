"""How much work may be done for one pod: no claim can keep its reader busy for ever."""

from dataclasses import dataclass
from typing import Final

from engine.claims.errors import SearchLimitError

MOST_STEPS: Final = 1_000_000  # seconds; what takes Kubernetes a tenth of one takes 150,000 of them


@dataclass(slots=True)
class Budget:
    """Steps that are left: devices looked at by the search, and the cost of expressions as Kubernetes counts it."""

    left: int = MOST_STEPS

    def charge(self, steps: int) -> None:
        """Count steps that were taken; who goes on asks for more."""
        self.left -= steps

    def spend(self, steps: int) -> None:
        """Take these steps.

        Raises:
            SearchLimitError: there are none left.
        """
        self.charge(steps)
        if self.left < 0:
            raise SearchLimitError("the search for devices took too many steps")
