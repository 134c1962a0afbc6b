"""The cheapest set of items that covers what is missing of several resources at once.

Equal items are one class, of which only the number taken matters. The classes are gone through one after the other,
with the cheapest way to every amount that is still missing (what is covered counts as 0): so the work grows with the
amounts that can be missing, times the items, not with the number of sets. An amount that is missing is dropped where
its way costs no less than another that leaves no more missing of anything. Past ``MOST_STATES`` the most promising ways
are kept only; what is found then covers, but may not be the cheapest (docs/preemption.md).
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

MOST_STATES: Final = 4096

Amount = tuple[int, ...]
Price = tuple[int, ...]  # compared in order; no component is negative


class Item(NamedTuple):
    """Something that can be taken once: what it covers, and its price; prices of a set add up by component."""

    gains: Amount
    price: Price


class _Way(NamedTuple):
    """How an amount came to be missing: so many of a class were taken after ``before``."""

    price: Price
    number: int  # of the class
    taken: int
    before: "_Way | None"


def cheapest(missing: Amount, items: Sequence[Item]) -> tuple[int, ...] | None:
    """Positions of the items of the cheapest cover, ascending; None where all together do not cover.

    Of equal items the first ones are taken; of covers of equal price the one found first.
    """
    classes: dict[Item, list[int]] = {}
    for position, item in enumerate(items):
        # What goes beyond the need makes no difference, so items that differ in that alone are one class.
        gains = tuple(map(min, item.gains, missing))
        if any(gains):
            classes.setdefault(Item(gains, item.price), []).append(position)
    # The usual case of equal victims and one scarce resource needs no search.
    if len(missing) == 1 and len(classes) == 1:
        ((item, members),) = classes.items()
        need = -(-missing[0] // item.gains[0])
        return tuple(members[:need]) if need <= len(members) else None
    # Cheap classes first: a way that is complete early cuts off the dearer ones by its price.
    order = sorted(classes, key=lambda item: (item.price, tuple(-gain for gain in item.gains)))
    # What the classes from each one on cover together.
    rest = [(0,) * len(missing)]
    for item in reversed(order):
        count = len(classes[item])
        rest.append(tuple([have + gain * count for have, gain in zip(rest[-1], item.gains, strict=True)]))
    rest.reverse()
    if any(have < need for have, need in zip(rest[0], missing, strict=True)):
        return None
    way = _walk(missing, order, [len(classes[item]) for item in order], rest)
    found: list[int] = []
    while way.before is not None:
        found += classes[order[way.number]][: way.taken]
        way = way.before
    return tuple(sorted(found))


def _walk(missing: Amount, order: Sequence[Item], counts: Sequence[int], rest: Sequence[Amount]) -> _Way:
    """The cheapest way to nothing missing; there is one."""
    done: _Way | None = None
    ways: dict[Amount, _Way] = {missing: _Way((0,) * len(order[0].price), -1, 0, None)}
    for number, item in enumerate(order):
        after: dict[Amount, _Way] = {}
        last = number + 1 == len(order)
        for have, way in ways.items():
            left, price = have, way.price
            for taken in range(counts[number] + 1):
                if taken:
                    left = tuple([max(part - gain, 0) for part, gain in zip(left, item.gains, strict=True)])
                    price = tuple([a + b for a, b in zip(price, item.price, strict=True)])
                # Prices only grow on a way, so nothing cheaper comes of this one.
                if done is not None and price >= done.price:
                    break
                if not any(left):
                    done = _Way(price, number, taken, way) if taken else way
                    break
                # What all classes behind cannot cover leads nowhere and is not kept.
                if not last and all(part <= more for part, more in zip(left, rest[number + 1], strict=True)):
                    known = after.get(left)
                    if known is None or price < known.price:
                        after[left] = _Way(price, number, taken, way) if taken else way
        ways = after if len(after) < _FEW else _undominated(after)
    assert done is not None  # noqa: S101  (the caller saw that all together cover)
    return done


_FEW: Final = 32


def _undominated(ways: dict[Amount, _Way]) -> dict[Amount, _Way]:
    """Those than which none is cheaper and leaves less of everything; the most promising of too many."""
    kept: dict[Amount, _Way] = {}
    if len(ways) > MOST_STATES:
        ways = dict(heapq.nsmallest(MOST_STATES, ways.items(), key=lambda pair: (sum(pair[0]), pair[1].price)))
    if len(next(iter(ways))) > 1 and len(ways) > MOST_STATES // 4:
        return ways  # to compare each with each costs more than it saves
    for have, way in sorted(ways.items(), key=lambda pair: (pair[1].price, pair[0])):
        if not any(all(a <= b for a, b in zip(better, have, strict=True)) for better in kept):
            kept[have] = way
    return kept


def by_cost(same: Sequence[int], cost: Callable[[tuple[int, ...]], Price]) -> Iterator[tuple[int, ...]]:
    """Every set of positions but the empty one, the cheapest first.

    ``same[i]``: the class of i, ascending; of a class only the first ones are taken, because others would be as good.
    ``cost`` must not fall when a set grows, nor when one of its members gives way to one of a later position.
    """
    if not same:
        return
    # For each position, the first one behind it of another class; equal ones are neighbours.
    following = [len(same)] * len(same)
    for position in range(len(same) - 2, -1, -1):
        follows = position + 1
        following[position] = follows if same[follows] != same[position] else following[follows]
    heap: list[tuple[Price, tuple[int, ...]]] = [(cost((0,)), (0,))]
    while heap:
        _, chosen = heapq.heappop(heap)
        yield chosen
        last = chosen[-1]
        others = [(*chosen, last + 1)] if last + 1 < len(same) else []
        if following[last] < len(same):
            others.append((*chosen[:-1], following[last]))
        for other in others:
            heapq.heappush(heap, (cost(other), other))
