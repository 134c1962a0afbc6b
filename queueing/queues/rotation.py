"""Parties that take turns, and within each of them its members: everybody's turn comes, whatever others bring.

Rules
- A party has its turn after all others had theirs. Within a party one has its turn after those who joined before it.
- So each is served in bounded time. However many members one party has, and however often they leave and join again,
  they cost a member of another party one turn at a time.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

Party = tuple[str, ...]
Member = TypeVar("Member", bound=Hashable)


def of_namespace(key: str) -> Party:
    """The party of a workload (``namespace/name``) that takes turns with those of its namespace."""
    return "namespace", key.partition("/")[0]


class Rotation(Generic[Member]):
    """See the module's rules."""

    def __init__(self) -> None:
        self._parties: dict[Party, dict[Member, None]] = {}  # both in the order of turns
        self._party_of: dict[Member, Party] = {}

    def __bool__(self) -> bool:
        return bool(self._party_of)

    def join_party(self, member: Member, party: Party) -> None:
        """One takes turns with this party; it keeps the turn that it has there."""
        # Joining again keeps its place and leaving loses it, so a
        # member that comes and goes is behind members that stay.
        if self._party_of.get(member) != party:
            self.leave_party(member)
            self._party_of[member] = party
            self._parties.setdefault(party, {})[member] = None

    def leave_party(self, member: Member) -> None:
        """One takes no turns."""
        party = self._party_of.pop(member, None)
        if party is None:
            return
        members = self._parties[party]
        del members[member]
        if not members:
            del self._parties[party]

    def set_members(self, members: Iterable[Member], party: Callable[[Member], Party]) -> None:
        """These take turns and nobody else; who did before keeps its turn."""
        wanted = dict.fromkeys(members)
        for member in [member for member in self._party_of if member not in wanted]:
            self.leave_party(member)
        for member in wanted:
            self.join_party(member, party(member))

    def take_members(self, most: int) -> list[Member]:
        """The next ones, at most so many; they take no turns any more."""
        taken: list[Member] = []
        for member in islice(self.members_in_turn(lambda member: member), most):
            self.leave_party(member)
            taken.append(member)
        return taken

    def members_in_turn(self, chosen: Callable[[Member], Member | None]) -> Iterator[Member]:
        """Whose turn it is, one after the other, until there is nobody; each may leave or join meanwhile.

        ``chosen``: who of a party has its turn, given the one whose turn it is; None: nobody.
        """
        idle: set[Party] = set()
        while (party := next((each for each in self._parties if each not in idle), None)) is not None:
            members = self._parties[party]
            member = chosen(next(iter(members)))
            if member is None:
                idle.add(party)
                continue
            # Moved to the end before it is yielded: whoever is served may
            # leave, join, or fail, and its turn counts in any case.
            del members[member], self._parties[party]
            members[member] = None
            self._parties[party] = members
            yield member
