"""What each LocalQueue used over time, and its score: of two in one cluster queue the lower goes first. Pure.

Rules
- *Consumed* follows what is held: after the half-life it has come half of the way. By resource, over all flavors.
- Without sampling it is exact: what is held changes at certain moments and is constant in between, so it does not
  matter when anybody looks. The score is what will have been consumed ``AHEAD`` from now if all stays as it is. So an
  admission counts at once, and one that fails leaves nothing behind.
- With sampling the numbers are those of Kueue 0.19.2 (pkg/controller/core/localqueue_controller.go and
  workload_controller.go): what is held counts at each sample as if it had been held since the last one. Between
  reservation and admission a *penalty* stands for a workload, as much as one sample would add; then it is consumed.
- The score is the weighted sum over resources divided by the weight of the LocalQueue; infinite where that is 0.
- Time never goes back. Who charges or releases says what time it is first (`advance_to`).
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

import msgspec

from engine.model import Amounts
from engine.quantity import CPU
from engine.reservation_key import HolderKey
from queueing.model import Quantities, UseRules

AHEAD: Final = 300.0  # seconds; Kueue's default sampling interval, so that its penalty and our score agree
DIGITS: Final = 6  # of a score: less is noise of what is stored with nine digits
LEAST: Final = 0.01  # of an amount that is worth telling: decay alone never ends
REMEMBERED: Final = 4  # half-lives for which the use of a LocalQueue that was deleted counts, should it be made again


class _Holding(msgspec.Struct):
    """What one workload holds, in the engine's units; ``penalty``: what stands for it until it is ``settled``."""

    amounts: Amounts
    settled: bool
    penalty: dict[str, float] = msgspec.field(default_factory=dict)

    def penalize(self, share: float) -> None:
        """This part of what it holds stands for it."""
        self.penalty = {resource: amount * share for resource, amount in self.amounts.items()}

    def settle(self) -> dict[str, float]:
        """What it holds counts from now on; returns what stood for it."""
        penalty, self.penalty, self.settled = self.penalty, {}, True
        return penalty


class _History(msgspec.Struct):
    """One LocalQueue. ``consumed`` as of ``at``; ``used``: what is held and settled; ``promised``: the rest of that.

    ``restored_at``: up to when what was stored before a restart says it; ``gone_at``: when it was deleted.
    """

    at: float
    weight: int = 1000
    gone_at: float | None = None
    restored_at: float = -inf
    consumed: dict[str, float] = msgspec.field(default_factory=dict)
    used: Amounts = msgspec.field(default_factory=dict)
    promised: Amounts = msgspec.field(default_factory=dict)
    held: dict[HolderKey, _Holding] = msgspec.field(default_factory=dict)

    def restore(self, consumed: Mapping[str, float], at: float) -> None:
        """So much was consumed up to a time before a restart."""
        self.consumed, self.at, self.restored_at = dict(consumed), at, at

    def set_weight(self, weight: int) -> None:
        """The LocalQueue is there, with this weight."""
        self.weight, self.gone_at = weight, None

    def mark_gone(self, now: float) -> None:
        """The LocalQueue was deleted."""
        self.gone_at = now

    def change_held(self, holding: _Holding, sign: int) -> None:
        """One holds more, or (-1) less."""
        table = self.used if holding.settled else self.promised
        for resource, amount in holding.amounts.items():
            left = table.get(resource, 0) + sign * amount
            if left:
                table[resource] = left
            else:
                table.pop(resource, None)

    def consume(self, keep: float, now: float) -> None:
        """Time passed: so much is kept of what was consumed, and what is held takes the place of the rest."""
        for resource in {*self.consumed, *self.used}:
            held = self.used.get(resource, 0)
            self.consumed[resource] = held + (self.consumed.get(resource, 0.0) - held) * keep
        self.at = now

    def add_consumed(self, amounts: Mapping[str, float], factor: float = 1.0) -> None:
        """So much counts as consumed besides."""
        for resource, amount in amounts.items():
            self.consumed[resource] = self.consumed.get(resource, 0.0) + amount * factor


class FairUse:
    """See the module's rules. LocalQueues go by ``namespace/name`` (`queueing.model.part_of`).

    ``stamp`` grows whenever a score may have become lower: with time, and with whatever is given back.
    """

    def __init__(self, rules: UseRules | None) -> None:
        self.rules = rules
        self.now = 0.0
        self.stamp = 0
        self._histories: dict[str, _History] = {}
        self._part_of: dict[HolderKey, str] = {}
        self._scores: dict[str, float] = {}

    def advance_to(self, now: float) -> None:
        """It is so late, in seconds."""
        if self.rules is not None and now > self.now:
            self.now = now
            self._note_lower()

    # -- what is held -----------------------------------------------------------------------------------------

    def charge_use(
        self, part: str, key: HolderKey, amounts: Quantities, *, admitted: bool, since: float | None = None
    ) -> None:
        """A workload of a LocalQueue holds this from now on, instead of what it held.

        ``admitted``: nobody has to go for it first. ``since``: it is taken in after a restart, and held it since then.
        """
        rules = self.rules
        if rules is None:
            return
        before = self._take_out(key)
        history = self._history(part)
        summed = _by_resource(amounts)
        # With sampling it counts as admitted once its status says so (`settle_use`); what was settled stays so.
        settled = admitted and (rules.sampling is None or since is not None or (before is not None and before.settled))
        holding = _Holding(summed, settled)
        if rules.sampling is None:
            self._catch_up(history)
            if since is not None and admitted:
                # What each holds adds up, so this is exact for whatever still holds it. Not with sampling: Kueue
                # counts it from the next sample on as if it had been held since the last one.
                history.add_consumed(summed, 1 - self._kept_after(self.now - max(since, history.restored_at)))
        elif since is None and not settled:
            self._catch_up(history)
            holding.penalize(1 - self._kept_after(rules.sampling))
        history.held[key] = holding
        history.change_held(holding, 1)
        self._part_of[key] = part
        self._scores.pop(part, None)
        if before is not None:
            self._note_lower()

    def settle_use(self, key: HolderKey) -> None:
        """A workload that holds something is admitted: what stood for it is consumed, and what it holds counts."""
        part = self._part_of.get(key)
        holding = self._histories[part].held[key] if part is not None else None
        if part is None or holding is None or holding.settled:
            return
        history = self._histories[part]
        history.change_held(holding, -1)
        penalty = holding.settle()
        history.change_held(holding, 1)
        # With what it holds, as updateAfsConsumedUsage in workload_controller.go of Kueue 0.19.2.
        self._catch_up(history)
        history.add_consumed(penalty)
        self._note_lower()

    def release_use(self, key: HolderKey) -> None:
        """A workload holds nothing any more."""
        if self._take_out(key) is not None:
            self._note_lower()

    def restore_use(self, part: str, consumed: Mapping[str, float], at: float) -> None:
        """After a restart: what was stored of a LocalQueue, as of ``at``; before its workloads are taken in."""
        if self.rules is None:
            return
        # A time that is still to come is a clock that went wrong: nothing may be kept from falling until then.
        at = min(at, self.now)
        history = self._history(part)
        history.restore(consumed, at)
        if self.rules.sampling is None:
            self._catch_up(history)
        self._note_lower()

    # -- LocalQueues ------------------------------------------------------------------------------------------

    def set_weight(self, part: str, weight: int) -> None:
        """There is a LocalQueue of this weight, in thousandths."""
        if self.rules is not None:
            self._history(part).set_weight(weight)
            self._note_lower()

    def forget_part(self, part: str) -> None:
        """A LocalQueue was deleted. What it used counts on for a time: making it again must not be a way to the front.

        So does what its workloads use that still run.
        """
        if part in self._histories:
            self._histories[part].mark_gone(self.now)
        for name in [name for name, one in self._histories.items() if self._is_over(one)]:
            del self._histories[name]
            self._scores.pop(name, None)

    def _is_over(self, history: _History) -> bool:
        """Whether a LocalQueue is gone, and what it used counts for nothing any more."""
        if history.gone_at is None or history.held or self.rules is None:
            return False
        late = self.now - history.gone_at >= REMEMBERED * self.rules.half_life
        return late or not any(history.consumed.values())

    # -- reading ----------------------------------------------------------------------------------------------

    def score_of(self, part: str) -> float:
        """The score of a LocalQueue now, at least 0; that of one that never used anything is 0."""
        found = self._scores.get(part)
        if found is None:
            found = self._scores[part] = self._make_score(part)
        return found

    def consumed_by(self, part: str) -> dict[str, float]:
        """What a LocalQueue consumed by now, by resource in the engine's units, without what stands for anything."""
        history = self._histories.get(part)
        if history is None:
            return {}
        self._bring_up(history)
        return {resource: amount for resource, amount in sorted(history.consumed.items()) if amount >= LEAST}

    def updated_at(self, part: str) -> float:
        """As of when `consumed_by` says it, in seconds."""
        history = self._histories.get(part)
        return history.at if history is not None else self.now

    # -- parts of it ------------------------------------------------------------------------------------------

    def _make_score(self, part: str) -> float:
        history, rules = self._histories.get(part), self.rules
        if history is None or rules is None:
            return 0.0
        # 0 divided by 0 would be first and not last, as in Kueue before CalculateUsage of 0.19.2 refused it.
        if history.weight <= 0:
            return inf
        self._bring_up(history)
        total = 0.0
        kept = self._kept_after(AHEAD)
        stands = _summed(one.penalty for one in history.held.values() if one.penalty)
        # In the order of names: sums of the same numbers in another order differ, and a restart must change nothing.
        for resource in sorted({*history.consumed, *history.used, *history.promised, *stands}):
            weight = rules.weight_of(resource) / (1000 if resource == CPU else 1)
            consumed = history.consumed.get(resource, 0.0)
            if rules.sampling is None:
                held = history.used.get(resource, 0) + history.promised.get(resource, 0)
                total += weight * (held + (consumed - held) * kept)
            else:
                total += weight * (consumed + stands.get(resource, 0.0))
        return round(total * 1000 / history.weight, DIGITS)

    def _history(self, part: str) -> _History:
        """The history of a LocalQueue, which may begin now."""
        history = self._histories.get(part)
        if history is None:
            # Gone until somebody says that it is there: a workload may outlive its LocalQueue.
            history = self._histories[part] = _History(self.now, gone_at=self.now)
        return history

    def _take_out(self, key: HolderKey) -> _Holding | None:
        """Have a workload hold nothing; returns what it held."""
        part = self._part_of.pop(key, None)
        if part is None:
            return None
        history = self._histories[part]
        self._bring_up(history)
        holding = history.held.pop(key)
        history.change_held(holding, -1)
        self._scores.pop(part, None)
        return holding

    def _bring_up(self, history: _History) -> None:
        """Have a history say how things are now; with sampling, how they were at the last sample."""
        rules = self.rules
        if rules is None:
            return
        # While a penalty is pending Kueue samples at each look, not once an interval (localqueue_controller.go).
        if rules.sampling is None or any(one.penalty for one in history.held.values()):
            self._catch_up(history)
        elif (samples := int((self.now - history.at) / rules.sampling)) > 0:
            # What is held did not change since the last one, so all samples in between make one.
            passed = samples * rules.sampling
            history.consume(self._kept_after(passed), history.at + passed)

    def _catch_up(self, history: _History) -> None:
        if self.now > history.at:
            history.consume(self._kept_after(self.now - history.at), self.now)

    def _kept_after(self, seconds: float) -> float:
        """How much is kept of what was consumed so long ago."""
        return 0.5 ** (max(0.0, seconds) / self.rules.half_life) if self.rules is not None else 1.0

    def _note_lower(self) -> None:
        self._scores.clear()
        self.stamp += 1


def _by_resource(amounts: Quantities) -> Amounts:
    """Amounts by resource, over all flavors."""
    summed: Amounts = {}
    for (_, resource), amount in amounts.items():
        summed[resource] = summed.get(resource, 0) + amount
    return summed


def _summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for amounts in parts:
        for resource, amount in amounts.items():
            total[resource] = total.get(resource, 0.0) + amount
    return total
