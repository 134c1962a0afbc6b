"""Those who are admitted and want more pods than they hold: what each wishes for, and when it is looked at again.

Rules
- They are in no line, and parked under no event. They compare what became free with what it was when they were tried
  last (`Queues.freed_so_far`), and whatever else may help them has them tried again here.
- One that found no victims is tried again also once somebody may be a victim who was none before: one whose admission
  is stored by now, or one that holds more than before, so that its queue borrows what others may take back.
"""

from collections.abc import Callable, Iterable, Mapping

from engine.reservation_key import HolderKey
from queueing.queues.entry import Entry
from queueing.queues.holders import Holders
from queueing.queues.quota import Quotas


class WantedGrowth(dict[str, tuple[dict[str, int], tuple[int, ...]]]):
    """By key: how many pods one wishes for, by pod set, and what was free when that was tried; () if it was not.

    ``victimless``: those of them that found no victims.
    """

    def __init__(self, holders: Holders, quotas: Quotas, entries: Mapping[HolderKey, Entry]) -> None:
        super().__init__()
        self.victimless: set[str] = set()
        self._holders = holders
        self._quotas = quotas
        self._entries = entries

    def try_again(self, keys: Iterable[str]) -> None:
        """Have those tried that wish for more pods, whatever was freed."""
        self.update({key: (self[key][0], ()) for key in keys if key in self})

    def devices_counted(self) -> None:
        """Devices are counted further: those are tried again that ask for any, and not all who wish for more pods."""
        pod_sets = {key: self._entries[key].workload.pod_sets for key in self}
        self.try_again([key for key, each in pod_sets.items() if any(one.devices is not None for one in each)])

    def may_be_victim(self, victim: HolderKey) -> bool:
        """Somebody may be a victim who was none before; True where that has somebody tried again."""
        return self._find_victims(lambda key: self._holders.may_make_room(victim, key))

    def may_take_back(self, queue: str) -> bool:
        """A cluster queue borrows more than before; True where that has somebody tried again who may take it back."""
        pool = self._quotas.pool(queue)
        return self._find_victims(lambda key: self._quotas.pool(self._entries[key].queue) == pool)

    def _find_victims(self, concerned: Callable[[str], bool]) -> bool:
        self.victimless &= self.keys()
        woken = [key for key in self.victimless if concerned(key)]
        self.victimless.difference_update(woken)
        self.try_again(woken)
        return bool(woken)
