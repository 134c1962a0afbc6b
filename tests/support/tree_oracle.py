"""Quota in a tree of cohorts, by naive recursion from the rules: nothing is kept, everything is summed up each time.

A node is ``("q", name)`` or ``("c", name)``. After Kueue 0.19.2, pkg/cache/scheduler/resource_node.go, but that less
than nothing counts as nothing on each level.
"""


class TreeOracle:
    """``queues``, ``cohorts``: name -> (quotas, parent), quotas: key -> (nominal, borrowing, lending).

    ``held``: holder -> (queue, amounts, leaving). Tests change all three in place.
    """

    def __init__(self):
        self.queues, self.cohorts, self.held = {}, {}, {}

    def quotas(self, node):
        kind, name = node
        return (self.queues if kind == "q" else self.cohorts).get(name, ({}, ""))[0]

    def declared(self, node):
        kind, name = node
        return (self.queues if kind == "q" else self.cohorts).get(name, ({}, ""))[1]

    def cycle(self, node):
        """Whether the way up from a cohort comes back to it."""
        seen, at = set(), self.declared(node)
        while node[0] == "c" and at and at not in seen:
            if at == node[1]:
                return True
            seen.add(at)
            at = self.declared(("c", at))
        return False

    def parent(self, node):
        name = self.declared(node)
        return ("c", name) if name and not self.cycle(node) else None

    def children(self, node):
        if node[0] == "q":
            return []
        every = [("q", name) for name in self.queues] + [("c", name) for name in self.cohorts]
        return [one for one in every if self.parent(one) == node]

    def below(self, node):
        return [node, *(each for child in self.children(node) for each in self.below(child))]

    def root(self, node):
        parent = self.parent(node)
        return node if parent is None else self.root(parent)

    def subtree(self, node, key):
        own = self.quotas(node).get(key, (0, None, None))[0]
        return own + sum(self.subtree(child, key) - self.local(child, key) for child in self.children(node))

    def local(self, node, key):
        lending = self.quotas(node).get(key, (0, None, None))[2]
        return 0 if lending is None else max(0, self.subtree(node, key) - lending)

    def usage(self, node, key, *, stays=False):
        if node[0] == "q":
            each = (held for held in self.held.values() if held[0] == node[1] and not (stays and held[2]))
            return sum(amounts.get(key, 0) for _, amounts, _ in each)
        parts = (self.usage(child, key, stays=stays) - self.local(child, key) for child in self.children(node))
        return sum(max(0, part) for part in parts)

    def left(self, node, key):
        parent = self.parent(node)
        if parent is None:
            return max(0, self.subtree(node, key) - self.usage(node, key))
        above, own, used = self.left(parent, key), self.local(node, key), self.usage(node, key)
        borrowing = self.quotas(node).get(key, (0, None, None))[1]
        if borrowing is not None:
            above = min(above, self.subtree(node, key) - own - max(0, used - own) + borrowing)
        return max(0, above) + max(0, own - used)

    def potential(self, node, key):
        parent = self.parent(node)
        if parent is None:
            return self.subtree(node, key)
        most, borrowing = self.local(node, key) + self.potential(parent, key), self.quotas(node).get(key, (0, None))[1]
        return most if borrowing is None else min(most, self.subtree(node, key) + borrowing)

    def height(self, node):
        heights = [1 if child[0] == "q" else 1 + self.height(child) for child in self.children(node)]
        return max(heights, default=0)

    def level(self, queue, key, amount, less):
        """The height of the lowest subtree that has so much; ``less`` of what the queue uses is not there."""
        held = ("less than nothing", (queue, {key: -less}, False))
        self.held[held[0]] = held[1]
        try:
            at, rest = ("q", queue), amount
            while self.usage(at, key) + rest > self.subtree(at, key) and (parent := self.parent(at)) is not None:
                rest -= max(0, self.local(at, key) - self.usage(at, key))
                at = parent
            return self.height(at)
        finally:
            del self.held[held[0]]
