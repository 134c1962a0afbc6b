"""Functions of texts and lists: cel-go's own, its ``ext/strings.go`` (version 2), and Kubernetes' ``lists.go``."""

import math
from functools import lru_cache
from typing import Final

import re2

from engine.claims.cel.errors import CompileError, EvaluationError
from engine.claims.cel.overloads import (
    LONGEST_LIST,
    Overload,
    Overloads,
    Spend,
    contains,
    first_text,
    limited_text,
    traversal,
)
from engine.claims.cel.types import BOOL, DYN, INT, STRING, Type, list_of
from engine.claims.cel.values import LARGEST_INT, NUMBERS, UInt, Value, equal, size

LARGEST_PATTERN: Final = 1 << 20  # bytes of a regular expression once it is made, which takes some 5 ms
_UPPER: Final = str.maketrans("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LOWER: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_SPACE: Final = "".join(
    map(chr, (*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000))
)
_TEXTS: Final = list_of(STRING)
_LIST: Final = list_of(DYN)


@lru_cache(maxsize=64)
def pattern(text: str) -> "re2._Regexp":
    """A regular expression; matching takes time linear in the text, whatever the expression.

    Raises:
        CompileError: it is none.
    """
    options = re2.Options()
    # Errors are the tenant's, and RE2 would write each to the standard error of the process.
    options.log_errors = False
    options.never_capture = True
    ample, options.max_mem = options.max_mem, LARGEST_PATTERN
    try:
        # Twice: first with little memory, which refuses expressions that grow when they are made. A selector of 80
        # characters made such patterns of 150 ms each.
        re2.compile(text, options)
        options.max_mem = ample  # matching is fast as long as it can remember what it found
        return re2.compile(text, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise CompileError(f"no regular expression: {text[:64]!r}") from error


def _matches(text: str, expression: str) -> bool:
    try:
        return pattern(expression).search(text) is not None
    except (CompileError, UnicodeEncodeError) as error:
        raise EvaluationError(str(error)) from error


def _match_cost(text: str, expression: str) -> int:
    return traversal(1 + len(text)) * math.ceil(len(expression) * 0.25)


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise EvaluationError(f"index out of range: {index}")
    return text[index : index + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if not part:
        return start
    if not 0 <= start < len(text):
        return _beyond(text, start)
    return text.find(part, start)


def _last_index_of(text: str, part: str, end: int | None = None) -> int:
    if not part:
        return len(text) if end is None else end
    if end is None:
        return text.rfind(part)
    if not 0 <= end < len(text):
        return _beyond(text, end)
    return text.rfind(part, 0, end + len(part))


def _beyond(text: str, index: int) -> int:
    if index < 0 or index > len(text):
        raise EvaluationError(f"index out of range: {index}")
    return -1


def _substring(text: str, start: int, end: int | None = None) -> str:
    last = len(text) if end is None else end
    if not 0 <= start <= last <= len(text):
        raise EvaluationError(f"index out of range: {start}, {last}")
    return text[start:last]


def _replaced(text: str, old: str, new: str, count: int = -1) -> str:
    found = len(text) + 1 if not old else text.count(old)
    # Before the text is made: replacing "" or one character by a long text multiplies its length, step by step.
    limited_text(len(text) + (found if count < 0 else min(found, count)) * len(new))
    return text.replace(old, new, count)


def _split(text: str, separator: str, limit: int = -1) -> tuple[str, ...]:
    if limit == 0:
        return ()
    if not separator:
        # Python does not split by an empty separator; Go splits into characters.
        whole = len(text) if limit < 0 else limit - 1
        return (*text[:whole], *((text[whole:],) if text[whole:] else ()))
    return tuple(text.split(separator, -1 if limit < 0 else limit - 1))


def _join_texts(texts: tuple[Value, ...], separator: str = "") -> str:
    if not all(type(text) is str for text in texts):
        raise EvaluationError("no such overload")
    limited_text(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _join_cost(texts: tuple[Value, ...], separator: str = "") -> int:
    return traversal(2 * (sum(map(size, texts)) + len(separator) * max(len(texts) - 1, 0)))


def _twice(*arguments: Value) -> int:
    return traversal(2 * size(arguments[0]))


def _elements(*arguments: Value) -> int:
    """The cost of looking through a list once."""
    target = arguments[0]
    return sum(traversal(len(one)) if isinstance(one, str) else 1 for one in target) if type(target) is tuple else 1


def _of_one_kind(items: tuple[Value, ...]) -> tuple[Value, ...]:
    """Elements that can be compared: all of one of the types that have an order."""
    kinds = {type(item) for item in items}
    if len(kinds) > 1 or not kinds <= {*NUMBERS, str, bool}:
        raise EvaluationError("no such overload")
    return items


def _smallest(items: tuple[Value, ...]) -> Value:
    if not items:
        raise EvaluationError("min called on empty list")
    return min(_of_one_kind(items))


def _maximum_of(items: tuple[Value, ...]) -> Value:
    if not items:
        raise EvaluationError("max called on empty list")
    return max(_of_one_kind(items))


def _sum(items: tuple[Value, ...]) -> Value:
    """Of an empty list it is 0, whatever would be in it."""
    kinds = {type(item) for item in _of_one_kind(items)}
    if not kinds <= NUMBERS:
        raise EvaluationError("no such overload")
    total = sum(items)
    if float not in kinds and not -LARGEST_INT - 1 <= total <= LARGEST_INT:
        raise EvaluationError("integer overflow")
    return UInt(total) if UInt in kinds else total


def _is_sorted(items: tuple[Value, ...]) -> bool:
    ordered = _of_one_kind(items)
    # As Kubernetes' `isSorted`, which looks for a larger one before a smaller one: NaN is neither.
    return not any(ordered[index - 1] > ordered[index] for index in range(1, len(ordered)))


def _slice(items: tuple[Value, ...], start: int, end: int) -> tuple[Value, ...]:
    if not 0 <= start <= end <= len(items):
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def _distinct(spend: Spend, items: tuple[Value, ...]) -> tuple[Value, ...]:
    kept: list[Value] = []
    for item in items:
        # Each element is compared with all that are kept; without the charge a list of 16,384 takes 134 million
        # comparisons.
        spend(len(kept))
        if not contains(spend, item, tuple(kept)):
            kept.append(item)
    return tuple(kept)


def _contains_all(spend: Spend, items: tuple[Value, ...], others: tuple[Value, ...]) -> bool:
    return all(contains(spend, other, items) for other in others)


def _products(items: tuple[Value, ...], others: tuple[Value, ...]) -> int:
    return max(1, len(items) * len(others))


def _numbers(count: int) -> tuple[int, ...]:
    if not 0 <= count <= LONGEST_LIST:
        raise EvaluationError(f"expected a size from 0 to {LONGEST_LIST}, got {count}")
    return tuple(range(count))


def _method(name: str, *overloads: Overload) -> Overloads:
    return {(name, True): overloads}


def _with_start(parameters: tuple[Type, ...], result: Type, function: object, cost: object) -> tuple[Overload, ...]:
    """A function, and the same with a number at its end."""
    return tuple(
        Overload(one, result, function, cost)  # type: ignore[arg-type] # a function of these parameters
        for one in (parameters, (*parameters, INT))
    )


TEXTS: Final[Overloads] = {
    ("matches", False): (Overload((STRING, STRING), BOOL, _matches, _match_cost),),
    **_method("matches", Overload((STRING, STRING), BOOL, _matches, _match_cost)),
    **_method("startsWith", Overload((STRING, STRING), BOOL, str.startswith, lambda _, part: traversal(len(part)))),
    **_method("endsWith", Overload((STRING, STRING), BOOL, str.endswith, lambda _, part: traversal(len(part)))),
    **_method(
        "contains",
        Overload(
            (STRING, STRING),
            BOOL,
            lambda text, part: part in text,
            lambda text, part: traversal(len(text)) * traversal(len(part)),
        ),
    ),
    **_method("charAt", Overload((STRING, INT), STRING, _char_at)),
    **_method(
        "indexOf",
        *_with_start((STRING, STRING), INT, _index_of, first_text),
        Overload(
            (_LIST, DYN),
            INT,
            lambda spend, items, value: next((at for at, item in enumerate(items) if equal(item, value, spend)), -1),
            _elements,
            deep=True,
        ),
    ),
    **_method(
        "lastIndexOf",
        *_with_start((STRING, STRING), INT, _last_index_of, first_text),
        Overload(
            (_LIST, DYN),
            INT,
            lambda spend, items, value: next(
                (at for at in reversed(range(len(items))) if equal(items[at], value, spend)), -1
            ),
            _elements,
            deep=True,
        ),
    ),
    **_method("lowerAscii", Overload((STRING,), STRING, lambda text: text.translate(_LOWER), first_text)),
    **_method("upperAscii", Overload((STRING,), STRING, lambda text: text.translate(_UPPER), first_text)),
    **_method("trim", Overload((STRING,), STRING, lambda text: text.strip(_SPACE), first_text)),
    **_method("replace", *_with_start((STRING, STRING, STRING), STRING, _replaced, _twice)),
    **_method("split", *_with_start((STRING, STRING), _TEXTS, _split, _twice)),
    **_method("substring", *_with_start((STRING, INT), STRING, _substring, first_text)),
    **_method(
        "join",
        Overload((_TEXTS,), STRING, _join_texts, _join_cost),
        Overload((_TEXTS, STRING), STRING, _join_texts, _join_cost),
    ),
}

LISTS: Final[Overloads] = {
    **_method("isSorted", Overload((_LIST,), BOOL, _is_sorted, _elements)),
    **_method("sum", Overload((_LIST,), DYN, _sum, _elements)),
    **_method("min", Overload((_LIST,), DYN, _smallest, _elements)),
    **_method("max", Overload((_LIST,), DYN, _maximum_of, _elements)),
    **_method(
        "includes",
        Overload(
            (DYN, DYN),
            BOOL,
            # What is no list has itself as its only element.
            lambda spend, given, value: contains(spend, value, given if type(given) is tuple else (given,)),
            _elements,
            deep=True,
        ),
    ),
    **_method("slice", Overload((_LIST, INT, INT), _LIST, _slice)),
    **_method("reverse", Overload((_LIST,), _LIST, lambda items: items[::-1], lambda items: 1 + len(items))),
    **_method("distinct", Overload((_LIST,), _LIST, _distinct, deep=True)),
    ("lists.range", False): (Overload((INT,), list_of(INT), _numbers, lambda count: max(1, count)),),
    ("sets.contains", False): (Overload((_LIST, _LIST), BOOL, _contains_all, _products, deep=True),),
    ("sets.equivalent", False): (
        Overload(
            (_LIST, _LIST),
            BOOL,
            lambda spend, items, others: _contains_all(spend, items, others) and _contains_all(spend, others, items),
            _products,
            deep=True,
        ),
    ),
    ("sets.intersects", False): (
        Overload(
            (_LIST, _LIST),
            BOOL,
            lambda spend, items, others: any(contains(spend, other, items) for other in others),
            _products,
            deep=True,
        ),
    ),
}
