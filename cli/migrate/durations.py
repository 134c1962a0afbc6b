"""Durations as Go writes them, in Kueue's Configuration."""

import re
from fractions import Fraction
from typing import Any, Final

_UNITS: Final = {
    "h": Fraction(3600),
    "m": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 1000),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9),
}
_PART: Final = r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(h|ms|us|µs|ns|m|s)"
_WHOLE: Final = re.compile(rf"[+]?(?:{_PART}){{1,16}}")


def seconds_of(text: Any) -> float:
    """``1h30m`` is 5400.0, ``500ms`` is 0.5, ``0`` is 0.0 (Go: time.ParseDuration). Raises ValueError."""
    if text == "0":
        return 0.0
    if not isinstance(text, str) or not _WHOLE.fullmatch(text):
        raise ValueError(f"expected a duration such as 5m or 1h30m, found {str(text)[:60]!r}")
    return float(sum(Fraction(number) * _UNITS[unit] for number, unit in re.findall(_PART, text)))
