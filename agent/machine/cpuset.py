"""CPU lists as the kernel and the kubelet write them: ``0-3,8``; "" is no CPU."""

from collections.abc import Iterable

Cpus = frozenset[int]
MAX_CPU = 65_535


def parse(text: str) -> Cpus:
    """The CPUs of a list. Raises ValueError: it is none."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise ValueError(f"{text.strip()!r} is no CPU list")
        low, high = int(first), int(last if dash else first)
        # Bounded before it is spelled out: a list like 0-9999999999 would fill the memory.
        if not low <= high <= MAX_CPU:
            raise ValueError(f"{text.strip()!r} is no CPU list")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def render(cpus: Iterable[int]) -> str:
    """The list of the CPUs, shortest form."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
