"""How much work may be done for one pod: no claim can keep its reader busy for ever."""

from typing import Final

import msgspec

from engine.claims.errors import SearchLimitError

MOST_STEPS: Final = 1_000_000  # seconds; what takes Kubernetes a tenth of one takes 150,000 of them
CHARACTER_STEPS: Final = 3  # for each character that is compiled: 65,536 of them take about a second


class Budget(msgspec.Struct):
    """Steps that are left: devices looked at by the search, and the cost of expressions as Kubernetes counts it.

    ``compiled``: steps for expressions that had to be compiled for it. They do not end the search, as others may have
    thrown out what was compiled before; who has several searches made charges them too.
    """

    left: int = MOST_STEPS
    compiled: int = 0

    def spend_steps(self, steps: int) -> None:
        """Count steps that were taken; who goes on asks for more."""
        self.left -= steps

    def compile(self, characters: int) -> None:
        """Count an expression that is compiled."""
        self.compiled += CHARACTER_STEPS * characters

    def spend(self, steps: int) -> None:
        """Take these steps.

        Raises:
            SearchLimitError: there are none left.
        """
        self.spend_steps(steps)
        if self.left < 0:
            raise SearchLimitError("the search for devices took too many steps")
