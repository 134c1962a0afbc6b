"""What one evaluation works with: the values of its variables, and what it has cost."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from engine.claims.cel.errors import CostError
from engine.claims.cel.types import Type
from engine.claims.cel.values import Value
from engine.claims.errors import SearchLimitError

MOST: Final = 1_000_000  # cost of one evaluation (resource.k8s.io, CELSelectorExpressionMaxCost)


@dataclass(slots=True)
class Frame:
    """One evaluation; ``granted`` is what it may cost here, which may be less than Kubernetes grants."""

    variables: dict[str, Value]
    granted: int = MOST
    spent: int = field(default=0)

    def spend(self, cost: int) -> None:
        """Count what was done.

        Raises:
            CostError: it is more than Kubernetes grants to one evaluation.
            SearchLimitError: it is more than is granted here.
        """
        self.spent += cost
        if self.spent > self.granted:
            if self.spent > MOST:
                raise CostError("operation cancelled: actual cost limit exceeded")
            raise SearchLimitError("an expression takes too many steps")


Run = Callable[[Frame], Value]
Scope = dict[str, Type]


@dataclass(frozen=True, slots=True)
class Compiled:
    """Code of an expression: the type of its value, and how to get it; a literal is known before (``constant``)."""

    type: Type
    run: Run
    constant: bool = False
