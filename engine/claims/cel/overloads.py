"""Functions and operators: for which types there is one, what it does, and what Kubernetes charges for it.

Costs are those of cel-go's ``interpreter/runtimecost.go`` and of Kubernetes' ``library/cost.go``.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from engine.claims.cel.errors import CostError, EvaluationError
from engine.claims.cel.types import (
    BOOL,
    DOUBLE,
    DYN,
    INT,
    STRING,
    UINT,
    Type,
    list_of,
    map_of,
)
from engine.claims.cel.values import LARGEST_INT, LARGEST_UINT, UInt, Value, equal, is_there, size

# Kubernetes' limit of cost alone would allow texts of some ten million characters.
LONGEST_TEXT: Final = 1 << 20  # characters; no expression of use makes a longer one
# Appending costs 1 whatever the lengths are: a list that is doubled 40 times would cost little and take terabytes.
LONGEST_LIST: Final = 1 << 14

Cost = Callable[..., int]  # of the arguments
Spend = Callable[[int], None]


class Overload(msgspec.Struct, frozen=True):
    """One function for arguments of these types; a method's target is its first argument.

    ``run`` takes the arguments; where it looks into lists and maps of any size (``deep``), first a function that is
    charged for it.
    """

    parameters: tuple[Type, ...]
    result: Type
    run: Callable[..., Value]
    cost: Cost | None = None  # None: 1
    deep: bool = False


Overloads = dict[tuple[str, bool], tuple[Overload, ...]]  # by name, and whether it is a method


def traversal(*sizes: float) -> int:
    """What looking at texts of these sizes costs."""
    return math.ceil(sum(sizes) * 0.1)


def first_text(*arguments: Value) -> int:
    """The cost of looking through the first argument."""
    return traversal(size(arguments[0]))


def both_texts(left: Value, right: Value) -> int:
    """The cost of looking through both."""
    return traversal(size(left), size(right))


def shorter(left: Value, right: Value) -> int:
    """The cost of comparing two of them."""
    return traversal(min(size(left), size(right)))


def limited_text(length: int) -> None:
    """Refuse to make a text that is longer than any expression needs."""
    if length > LONGEST_TEXT:
        raise CostError(f"a text of more than {LONGEST_TEXT} characters")


def _bounded(value: int) -> int:
    if not -LARGEST_INT - 1 <= value <= LARGEST_INT:
        raise EvaluationError("integer overflow")
    return value


def _unsigned(value: int) -> UInt:
    if not 0 <= value <= LARGEST_UINT:
        raise EvaluationError("unsigned integer overflow")
    return UInt(value)


def _quotient(left: int, right: int) -> int:
    """Division toward zero."""
    if right == 0:
        raise EvaluationError("division by zero")
    # Python rounds down, Go toward zero: -7 / 2 is -3 in CEL.
    found = abs(left) // abs(right)
    return found if (left < 0) == (right < 0) else -found


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("modulus by zero")
    return left - right * _quotient(left, right)


def _ratio(left: float, right: float) -> float:
    # Python raises where Go gives infinity or NaN.
    if right:
        return left / right
    if not left or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _concatenated(left: str, right: str) -> str:
    limited_text(len(left) + len(right))
    return left + right


def _appended(left: tuple[Value, ...], right: tuple[Value, ...]) -> tuple[Value, ...]:
    if len(left) + len(right) > LONGEST_LIST:
        raise CostError(f"a list of more than {LONGEST_LIST} elements")
    return left + right


def contains(spend: Spend, value: Value, items: tuple[Value, ...]) -> bool:
    """Whether a list has an element; what cannot be compared with it is another one."""
    for item in items:
        try:
            if equal(value, item, spend):
                return True
        except EvaluationError:
            continue
    return False


def _arithmetic(whole: Callable[[int, int], int], real: Callable[[float, float], float] | None) -> tuple[Overload, ...]:
    return (
        Overload((INT, INT), INT, lambda left, right: _bounded(whole(left, right))),
        Overload((UINT, UINT), UINT, lambda left, right: _unsigned(whole(left, right))),
        *((Overload((DOUBLE, DOUBLE), DOUBLE, real),) if real else ()),
    )


def in_order(holds: Callable[[Value, Value], bool]) -> Callable[[Value, Value], bool]:
    """A comparison of numbers: NaN is neither less nor more than any, and cel-go says so."""

    def run(left: Value, right: Value) -> bool:
        # NaN is the one value that is not equal to itself.
        if left != left or right != right:  # noqa: PLR0124
            raise EvaluationError("NaN values cannot be ordered")
        return holds(left, right)

    return run


def _comparison(holds: Callable[[Value, Value], bool]) -> tuple[Overload, ...]:
    numbers = (INT, UINT, DOUBLE)
    return (
        *(
            Overload((left, right), BOOL, in_order(holds) if DOUBLE in {left, right} else holds)
            for left in numbers
            for right in numbers
        ),
        Overload((STRING, STRING), BOOL, holds, shorter),
        Overload((BOOL, BOOL), BOOL, holds),
    )


def _to_int(value: float) -> int:
    # NaN fails both comparisons, and so is refused too.
    if not -(2.0**63) < value < 2.0**63:
        raise EvaluationError("integer overflow")
    return int(value)


def _parsed_int(text: str) -> int:
    digits = text[1:] if text[:1] in {"-", "+"} else text
    # Python reads digits of all scripts, underscores and spaces; Go does not.
    if not (digits.isascii() and digits.isdigit() and len(digits) < 32):
        raise EvaluationError(f"no integer: {text[:32]!r}")
    return _bounded(int(text))


_LIST: Final = list_of(DYN)
_MAP: Final = map_of(DYN, DYN)

OPERATORS: Final[Overloads] = {
    ("_+_", False): (
        *_arithmetic(lambda left, right: left + right, lambda left, right: left + right),
        Overload((STRING, STRING), STRING, _concatenated, both_texts),
        Overload((_LIST, _LIST), _LIST, _appended),
    ),
    ("_-_", False): _arithmetic(lambda left, right: left - right, lambda left, right: left - right),
    ("_*_", False): _arithmetic(lambda left, right: left * right, lambda left, right: left * right),
    ("_/_", False): _arithmetic(_quotient, _ratio),
    ("_%_", False): _arithmetic(_remainder, None),
    ("-_", False): (
        Overload((INT,), INT, lambda value: _bounded(-value)),
        Overload((DOUBLE,), DOUBLE, lambda value: -value),
    ),
    ("!_", False): (Overload((BOOL,), BOOL, lambda value: not value),),
    ("_<_", False): _comparison(lambda left, right: left < right),
    ("_<=_", False): _comparison(lambda left, right: left <= right),
    ("_>_", False): _comparison(lambda left, right: left > right),
    ("_>=_", False): _comparison(lambda left, right: left >= right),
    ("@in", False): (
        Overload((DYN, _LIST), BOOL, contains, lambda _, items: len(items), deep=True),
        Overload((DYN, _MAP), BOOL, lambda key, entries: is_there(entries, key)),
    ),
    **{
        ("size", member): tuple(Overload((kind,), INT, len) for kind in (STRING, _LIST, _MAP))
        for member in (False, True)
    },
    ("int", False): (
        Overload((INT,), INT, lambda value: value),
        Overload((UINT,), INT, lambda value: _bounded(int(value))),
        Overload((DOUBLE,), INT, _to_int),
        Overload((STRING,), INT, _parsed_int),
    ),
    ("uint", False): (
        Overload((UINT,), UINT, lambda value: value),
        Overload((INT,), UINT, _unsigned),
    ),
    ("double", False): (
        Overload((DOUBLE,), DOUBLE, lambda value: value),
        Overload((INT,), DOUBLE, float),
        Overload((UINT,), DOUBLE, float),
    ),
    ("string", False): (
        Overload((STRING,), STRING, lambda value: value),
        Overload((INT,), STRING, str),
        Overload((UINT,), STRING, lambda value: str(int(value))),
        Overload((BOOL,), STRING, lambda value: "true" if value else "false"),
    ),
}
