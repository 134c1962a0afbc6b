"""Reading values that others wrote: each either a value or a problem that names its place."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

from engine.quantity import bounded, parse
from kube.objects import Quantity

# A mask has a bit for each CPU: a set such as 0-999999999 would take 125 MB.
MAX_CPU = 65_535
MOST = 8  # problems that are told of one object; the rest is counted

T = TypeVar("T")


class Problems:
    """What is wrong with one object."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._found: list[str] = []

    def add(self, field: str, value: object, expected: str) -> None:
        """A value that cannot be used."""
        shown = str(value)
        # The value goes into events and conditions, and may be as long as its object.
        shown = shown if len(shown) <= 64 else f"{shown[:61]}..."
        self._found.append(f'{self._what}: {field}: Invalid value: "{shown}": expected {expected}')

    def report_missing(self, field: str, expected: str) -> None:
        """A value that is not there."""
        self._found.append(f"{self._what}: {field}: Required value: expected {expected}")

    def add_problems(self, texts: Iterable[str]) -> None:
        """Problems that somebody else found."""
        self._found.extend(f"{self._what}: {text}" for text in texts)

    @property
    def texts(self) -> tuple[str, ...]:
        """All of it, each once, in the order found; no more than a person wants to read."""
        found = list(dict.fromkeys(self._found))
        more = len(found) - MOST
        return (*found[:MOST], *((f"{self._what}: and {more} more",) if more > 0 else ()))

    def amount(self, field: str, resource: str, value: Quantity | None) -> int | None:
        """A quantity; None where there is none that can be used."""
        if value is None:
            return None
        try:
            amount = bounded(parse(resource, value))
        except ValueError:
            self.add(field, value, "a quantity, such as 8 or 64Gi")
            return None
        if amount < 0:
            self.add(field, value, "no negative amount")
            return None
        return amount

    def parse_whole_number(self, field: str, value: object) -> int | None:
        """A whole number from 0."""
        text = str(value)
        # 18 digits fit into 64 bits, whatever they are.
        if text.isascii() and text.isdigit() and len(text) < 19:
            return int(text)
        self.add(field, value, "a whole number")
        return None

    def parse_cpu_set(self, field: str, text: str | None) -> int:
        """A CPU set such as ``0-7,64-71`` as a mask; 0 where it is empty or cannot be used."""
        try:
            return cpu_mask(text or "")
        except ValueError:
            self.add(field, text, "a set of CPUs, such as 0-7,64-71")
            return 0

    def choice(self, field: str, value: str, allowed: Mapping[str, T]) -> T | None:
        """One of a few words."""
        if value in allowed:
            return allowed[value]
        self.add(field, value, f"one of {', '.join(allowed)}")
        return None


@lru_cache(maxsize=8192)  # the machines of a fleet have the same cores
def cpu_mask(text: str) -> int:
    """A CPU set as a mask. Raises ValueError where it is none."""
    mask = 0
    for part in text.split(",") if text else ():
        low, dash, high = part.partition("-")
        first, last = _cpu(low), _cpu(high if dash else low)
        if last < first:
            raise ValueError(part)
        mask |= (1 << last + 1) - (1 << first)
    return mask


def _cpu(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_CPU)) else -1
    if not 0 <= number <= MAX_CPU:
        raise ValueError(text)
    return number
