"""What one evaluation works with: the values of its variables, and what it has cost."""

from collections.abc import Callable
from typing import Final

import msgspec

from engine.claims.cel.errors import CostError
from engine.claims.cel.types import Type
from engine.claims.cel.values import Value
from engine.claims.errors import SearchLimitError

PATTERN: Final = 5_000  # steps that the making of a regular expression counts for: a large one takes some 5 ms
MOST: Final = 1_000_000  # cost of one evaluation (resource.k8s.io, CELSelectorExpressionMaxCost)


class Frame(msgspec.Struct):
    """One evaluation; ``granted`` is what it may cost here, which may be less than Kubernetes grants.

    ``toil``: steps that are taken here and that Kubernetes does not count.
    """

    variables: dict[str, Value]
    granted: int = MOST
    spent: int = msgspec.field(default=0)
    toil: int = msgspec.field(default=0)
    _patterns: set[str] = msgspec.field(default_factory=set)

    def spend(self, cost: int) -> None:
        """Count what was done.

        Raises:
            CostError: it is more than Kubernetes grants to one evaluation.
            SearchLimitError: it is more than is granted here.
        """
        self.spent += cost
        if self.spent > self.granted:
            # Kubernetes' own limit ends the pod with an error. The smaller one here means that nothing is known.
            if self.spent > MOST:
                raise CostError("operation cancelled: actual cost limit exceeded")
            raise SearchLimitError("an expression takes too many steps")

    def note_pattern(self, text: str) -> None:
        """Count a regular expression that is made while the expression is evaluated, once.

        Raises:
            SearchLimitError: they take more steps than are granted here.
        """
        # Made once and cached (`strings.pattern`), so the same text costs nothing the second time.
        if text not in self._patterns:
            self._patterns.add(text)
            self.toil += PATTERN
        if self.spent + self.toil > self.granted:
            raise SearchLimitError("an expression makes too many regular expressions")


Run = Callable[[Frame], Value]
Scope = dict[str, Type]


class Compiled(msgspec.Struct, frozen=True):
    """Code of an expression: the type of its value, and how to get it; a literal is known before (``constant``)."""

    type: Type
    run: Run
    constant: bool = False
