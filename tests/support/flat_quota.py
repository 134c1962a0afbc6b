"""The rules of quota in one cohort without a tree, written plainly: what a tree of one level has to come to."""


class FlatQuota:
    """``queues``: name -> {key: (nominal, borrowing, lending)}; ``used``: name -> {key: amount}; all in one cohort."""

    def __init__(self, queues, used, weights):
        self.queues, self.used, self.weights = queues, used, weights

    def own(self, queue, key):
        """What a queue does not lend."""
        nominal, _, lending = self.queues[queue].get(key, (0, None, None))
        return 0 if lending is None else max(0, nominal - lending)

    def common(self, key):
        return sum(each[key][0] - self.own(name, key) for name, each in self.queues.items() if key in each)

    def taken(self, key):
        return sum(max(0, self.used[name].get(key, 0) - self.own(name, key)) for name in self.queues)

    def available(self, queue, key):
        if key not in self.queues[queue]:
            return 0
        nominal, borrowing, _ = self.queues[queue][key]
        used, own = self.used[queue].get(key, 0), self.own(queue, key)
        left = self.common(key) - self.taken(key)
        if borrowing is not None:
            left = min(left, nominal + borrowing - max(used, own))
        return max(0, own - used) + max(0, left)

    def limit(self, queue, key):
        if key not in self.queues[queue]:
            return 0
        nominal, borrowing, _ = self.queues[queue][key]
        most = self.own(queue, key) + self.common(key)
        return most if borrowing is None else min(most, nominal + borrowing)

    def borrows(self, queue, more):
        return any(
            amount > 0 and self.used[queue].get(key, 0) + amount > self.queues[queue].get(key, (0, None, None))[0]
            for key, amount in more.items()
        )

    def share(self, queue, more):
        """In thousandths by weight, as a plain number; infinite of a queue of weight 0 that borrows."""
        beyond, lent = {}, {}
        for key in {*self.used[queue], *more}:
            over = self.used[queue].get(key, 0) + more.get(key, 0) - self.queues[queue].get(key, (0, None, None))[0]
            beyond[key[1]] = beyond.get(key[1], 0) + max(0, over)
        for key in {key for each in self.queues.values() for key in each}:
            lent[key[1]] = lent.get(key[1], 0) + self.common(key)
        ratio = max((amount / lent[name] for name, amount in beyond.items() if lent.get(name)), default=0)
        if not ratio:
            return 0.0
        return ratio * 1e6 / self.weights[queue] if self.weights[queue] else float("inf")
