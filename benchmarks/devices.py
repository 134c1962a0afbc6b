"""How long one choice of devices takes: ``python -m benchmarks devices``.

A choice is made on a machine with up to two devices taken that nobody asked about before, beside a plain search over
every set of that size (in Python, with sums of pair weights alone, as an answer to ``prefer``). *again* is the same
question once more: equal machines in equal states are asked the same. Figures are CPU microseconds, the median over
choices.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations

from benchmarks.harness import report
from engine.kubelet.devices.choose import DeviceChoice, choose
from engine.kubelet.devices.links import LinkGraph, from_words, mask_of, tables
from engine.kubelet.devices.xpu import board, choose_cards

P800 = board([1] * 4 + [2] * 4)


def mesh(size: int) -> LinkGraph:
    """Quads of GPUs with NVLinks of several widths, each GPU with one more link to the next quad."""

    def word(one: int, other: int) -> str:
        if one // 4 == other // 4:
            return f"NV{1 + (one + other) % 2}"
        return "NV2" if abs(one - other) == 4 else "SYS"

    words = [["X" if a == b else word(min(a, b), max(a, b)) for b in range(size)] for a in range(size)]
    return from_words(words, zones=[1 << (gpu // (size // 2)) for gpu in range(size)])


def plain_search(graph: LinkGraph, free: int, count: int) -> int:
    """The best connected set, by trying all."""
    devices = [device for device in range(graph.size) if free >> device & 1]
    weights = graph.weights
    best = max(combinations(devices, count), key=lambda chosen: sum(weights[a][b] for a, b in combinations(chosen, 2)))
    return mask_of(best)


def micros(calls: Iterator[Callable[[], object]]) -> float:
    """The median CPU time of the calls."""
    found = []
    for call in calls:
        start = time.process_time_ns()
        call()
        found.append((time.process_time_ns() - start) / 1000)
    return report.median(found) or 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks devices", description=__doc__)
    parser.add_argument("--searches", type=int, default=20, help="plain searches a row")
    searches = parser.parse_args(arguments).searches
    rows: list[list[object]] = []
    for size, count in ((8, 4), (16, 8)):
        graph = mesh(size)
        start = time.process_time_ns()
        tables(graph)
        first = (time.process_time_ns() - start) / 1000
        # All sets of free devices that lack two at the most: where there is most to choose from.
        frees = [mask for mask in range(1 << size) if mask.bit_count() >= size - 2]
        for mode in ("require", "prefer", ""):
            choose.cache_clear()
            asked = [DeviceChoice(count=count, free=free, mode=mode) for free in frees]
            new = micros(partial(choose, graph, each) for each in asked)
            again = micros(partial(choose, graph, each) for each in asked)
            plain = micros(partial(plain_search, graph, free, count) for free in frees[-searches:])
            rows.append([f"{count} of {size} GPUs, {mode or 'no annotation'}", new, again, plain, plain / new, first])
    choose_cards.cache_clear()
    frees = list(range(256))
    new = micros(partial(choose_cards, P800, free, 2) for free in frees)
    again = micros(partial(choose_cards, P800, free, 2) for free in frees)
    rows.append(["2 of 8 XPU cards", new, again, None, None, None])
    columns = ["choice", "new, us", "again, us", "plain search, us", "plain / new", "tables, us once a kind"]
    report.table("Choice of devices", columns, rows)
    report.save("devices", [dict(zip(columns, row, strict=True)) for row in rows])


if __name__ == "__main__":
    main()
