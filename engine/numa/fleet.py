"""How many pods of one shape the kubelet of each node would admit, one after another; kept, and corrected on change.

Machines are known by the table index of their node. The count of a machine is what sequential admission grants:
`engine.kubelet.admit.admit` asked again and again, each time on the state that the pod before left. Equal (layout,
state) are evaluated once; where a closed form holds (`engine.numa.batch.admitted`), all columns of a kind are evaluated
together, and the rest by ``admit`` itself, remembered by (layout, state, shape). A log says which machines changed, so
that counts made earlier are corrected instead of made anew.
"""

from enum import Enum, auto
from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.kubelet.admit import admit
from engine.kubelet.machine import Layout, PodShape, State
from engine.numa.alignment import UNKNOWN_NODE, alignments, exactly
from engine.numa.batch.admitted import UNKNOWN, count, count_in_one_zone, count_one
from engine.numa.batch.masks import Bools, Workspace
from engine.numa.columns import KnownLayout, LayoutColumns, View
from engine.numa.count_plans import CountPlan, plan_for
from engine.numa.layout_class import Traits, traits_of
from engine.numa.score import ZoneScore

ANSWERS_KEPT: Final = 128
LOG_KEPT: Final = 4096
MEMO_KEPT: Final = 1 << 14
NO_MACHINE: Final = -1
_MANY: Final = 3  # where one machine in so many changed, all are asked anew


class Question(Enum):
    """What is asked of a shape."""

    FITS = auto()  # whether one pod is admitted: 1 or 0
    COUNT = auto()  # how many are
    IN_ONE_ZONE = auto()  # how many are, each in one zone
    ALIGNMENT = auto()  # how well the next one is aligned


class _Answer(msgspec.Struct):
    """What was asked for: the answer by table index as of position ``seen`` of the log; counts are cut to ``most``.

    By number of the kind, ``plans``; by (layout, state), ``exact``: what `admit` itself was asked for. ``score``: of an
    alignment.
    """

    question: Question
    shape: PodShape
    most: int
    values: Ints
    score: ZoneScore = ZoneScore.LEAST_NUMA_NODES
    seen: int = -1
    plans: dict[int, CountPlan | None] = msgspec.field(default_factory=dict)
    exact: dict[tuple[Layout, State], int] = msgspec.field(default_factory=dict)

    def permute(self, order: Ints, seen: int) -> None:
        """Index ``order[i]`` becomes index i, at position ``seen`` of the log."""
        self.values, self.seen = self.values[order], seen

    def caught_up(self, seen: int) -> None:
        """Every change before position ``seen`` of the log is in it."""
        self.seen = seen

    @property
    def nowhere(self) -> int:
        """The answer where there is no machine."""
        return UNKNOWN_NODE if self.question is Question.ALIGNMENT else NO_MACHINE


class Fleet:
    """The machines of the nodes of one table, by table index. ``len(fleet)`` indices are known; see `grow_to`."""

    def __init__(self) -> None:
        self._at: list[tuple[KnownLayout, State] | None] = []
        self._kind: Ints = np.zeros(0, np.int64)  # by index: number of the kind, NO_MACHINE where none
        self._slot: Ints = np.zeros(0, np.int64)  # by index: column of the kind
        self._kinds: dict[int, LayoutColumns] = {}
        self._by_traits: dict[Traits, int] = {}
        self._by_layout: dict[Layout, KnownLayout] = {}
        self._made = 0  # kinds ever seen
        self._members: dict[int, Ints | None] = {}  # by number of the kind: where its machines are; None: everywhere
        self._log: list[int] = []
        self._log_start = 0
        self._answers: dict[tuple[Question, PodShape, ZoneScore], _Answer] = {}
        self._space = Workspace()

    def __len__(self) -> int:
        return len(self._at)

    # -- changes ----------------------------------------------------------------------------------------------

    def set(self, index: int, layout: Layout, state: State) -> bool:
        """Give the node at ``index`` this machine; True where anything changed."""
        self.grow_to(index + 1)
        old = self._at[index]
        same = old is not None and (old[0].layout is layout or old[0].layout == layout)
        if old is not None and same and old[1] == state:
            return False
        known = old[0] if old is not None and same else self._layout(layout)
        known.use()
        # Before the old column is released: a column or a layout that both share would be dropped in between.
        slot = known.kind.acquire_column(known, state)
        if old is not None:
            self._release_column(old[0], int(self._slot[index]))
        if self._kind[index] != known.kind.number:
            self._kind[index] = known.kind.number
            self._members.clear()
        self._at[index] = known, state
        self._slot[index] = slot
        self._touch(index)
        return True

    def remove(self, index: int) -> bool:
        """The node at ``index`` has no machine any more; True where it had one."""
        old = self._at[index] if index < len(self._at) else None
        if old is None:
            return False
        self._release_column(old[0], int(self._slot[index]))
        self._at[index] = None
        self._kind[index] = NO_MACHINE
        self._members.clear()
        self._touch(index)
        return True

    def grow_to(self, size: int) -> None:
        """There are at least ``size`` indices; the new ones have no machine."""
        more = size - len(self._at)
        if more <= 0:
            return
        self._at += [None] * more
        if size > len(self._slot):
            # At least doubled, so that nodes that come one by one copy the arrays a few times only.
            room = max(size - len(self._slot), len(self._slot))
            self._kind = np.concatenate([self._kind, np.full(room, NO_MACHINE, np.int64)])
            self._slot = np.concatenate([self._slot, np.zeros(room, np.int64)])
        self._answers.clear()
        self._members.clear()

    def permute(self, order: Ints) -> None:
        """Index ``order[i]`` becomes index i. Machines that are not named are dropped."""
        self.grow_to(int(order.max(initial=-1)) + 1)
        named = order.tolist()
        # Answers that have seen every change are reordered. Others
        # need entries of the log, whose indices are the old ones.
        current = {key: answer for key, answer in self._answers.items() if answer.seen == self._log_end}
        for index in frozenset(range(len(self._at))).difference(named):
            self.remove(index)
        self._at = [self._at[index] for index in named]
        self._kind, self._slot = self._kind[order], self._slot[order]
        self._members.clear()
        self._log_start, self._log = self._log_end + 1, []
        self._answers = current
        for answer in current.values():
            answer.permute(order, self._log_end)

    # -- answers ----------------------------------------------------------------------------------------------

    def count_by_machine(self, shape: PodShape, most: int) -> Ints:
        """Pods of that shape that each machine grants one after another, ``most`` at the most.

        By index, ``len(fleet)`` of them; NO_MACHINE where none is. Do not modify; valid until a machine changes.
        """
        answer = self._answer(Question.COUNT, shape, most)
        return answer.values if answer.most == most else np.minimum(answer.values, most)

    def feasible(self, shape: PodShape) -> Bools:
        """Which nodes would take one pod of that shape: by index, True where there is no machine to refuse it."""
        found: Bools = self._answer(Question.FITS, shape, 1).values != 0
        return found

    def alignments(self, shape: PodShape, score: ZoneScore) -> Ints:
        """How well one more pod of that shape is aligned, by index (`engine.numa.alignment`); less is better.

        ``UNKNOWN_NODE`` where no machine is. Do not modify; valid until a machine changes.
        """
        return self._answer(Question.ALIGNMENT, shape, 1, score).values

    def in_one_zone(self, shape: PodShape, most: int) -> Ints:
        """As ``count_by_machine``, of pods that come out in one zone each, or of which nothing is aligned."""
        answer = self._answer(Question.IN_ONE_ZONE, shape, most)
        return answer.values if answer.most == most else np.minimum(answer.values, most)

    # -- answering --------------------------------------------------------------------------------------------

    def _answer(
        self, question: Question, shape: PodShape, most: int, score: ZoneScore = ZoneScore.LEAST_NUMA_NODES
    ) -> _Answer:
        key = question, shape, score
        answer = self._answers.pop(key, None)
        if answer is None or answer.most < most:
            if len(self._answers) >= ANSWERS_KEPT:
                del self._answers[next(iter(self._answers))]
            answer = _Answer(question, shape, most, np.empty(len(self), np.int64), score)
        changed = None
        if answer.seen >= self._log_start:
            changed = list(dict.fromkeys(self._log[answer.seen - self._log_start :]))
        # All anew where that is cheaper, or the log is gone.
        if changed is None or len(changed) * _MANY > len(self):
            self._make(answer)
        elif changed:
            self._correct(answer, changed)
        answer.caught_up(self._log_end)
        self._answers[key] = answer  # the newest is last, the first is the one to forget
        return answer

    def _make(self, answer: _Answer) -> None:
        if not self._members:
            kinds = self._kind[: len(self)]
            for number in self._kinds:
                found = (kinds == number).nonzero()[0]
                self._members[number] = None if len(found) == len(self) else found
        if all(members is not None for members in self._members.values()):
            answer.values[:] = answer.nowhere
        for number, members in self._members.items():
            kind = self._kinds[number]
            values = self._values(answer, View(kind, slice(0, kind.used)))
            if members is None:
                # Every slot is in range; numpy buffers `out` in the mode that checks.
                np.take(values, self._slot[: len(self)], out=answer.values, mode="clip")
            else:
                answer.values[members] = values[self._slot[members]]

    def _correct(self, answer: _Answer, changed: list[int]) -> None:
        if len(changed) == 1:  # the usual case: one pod came or went
            answer.values[changed] = self._value(answer, changed[0])
            return
        kinds = self._kind[changed]
        for number in np.unique(kinds).tolist():
            indices = np.array(changed)[kinds == number]
            if number == NO_MACHINE:
                answer.values[indices] = answer.nowhere
            else:
                slots, where = np.unique(self._slot[indices], return_inverse=True)
                answer.values[indices] = self._values(answer, View(self._kinds[number], slots))[where]

    def _value(self, answer: _Answer, index: int) -> int:
        """The count of one machine."""
        at = self._at[index]
        if at is None:
            return answer.nowhere
        known, state = at
        plan = self._plan(answer, known.kind)
        slot = int(self._slot[index])
        found = UNKNOWN
        if plan is not None:
            view = View(known.kind, slice(slot, slot + 1))
            if answer.question is Question.ALIGNMENT:
                found = int(alignments(view, plan, answer.shape, answer.score, self._space)[0])
            elif answer.question is Question.IN_ONE_ZONE:
                found = int(count_in_one_zone(view, plan, answer.most, self._space)[0])
            else:
                found = count_one(view, state, plan, answer.most, self._space)
        return self._exactly(answer, known.kind, slot) if found == UNKNOWN else found

    def _values(self, answer: _Answer, view: View) -> Ints:
        """The answer for some columns of a kind."""
        plan = self._plan(answer, view.kind)
        if plan is None:
            found = np.full(view.width, UNKNOWN, np.int64)
        elif answer.question is Question.ALIGNMENT:
            found = alignments(view, plan, answer.shape, answer.score, self._space)
        elif answer.question is Question.IN_ONE_ZONE:
            found = count_in_one_zone(view, plan, answer.most, self._space)
        else:
            found = count(view, plan, answer.most, self._space)
        unknown = (found == UNKNOWN).nonzero()[0]
        if len(unknown):
            found[unknown] = [
                self._exactly(answer, view.kind, slot) for slot in view.select_columns(unknown).column_numbers
            ]
        return found

    @staticmethod
    def _plan(answer: _Answer, kind: LayoutColumns) -> CountPlan | None:
        if kind.number not in answer.plans:
            answer.plans[kind.number] = plan_for(kind.traits, answer.shape)
        return answer.plans[kind.number]

    def _exactly(self, answer: _Answer, kind: LayoutColumns, slot: int) -> int:
        at = kind.at[slot]
        if at is None:
            return 0
        found = answer.exact.get(at)
        if found is None:
            # States come and go with the pods: the ones that are gone are never asked for again.
            if len(answer.exact) > MEMO_KEPT:
                answer.exact.clear()
            if answer.question is Question.ALIGNMENT:
                found = exactly(*at, answer.shape, answer.score)
            else:
                within = 1 if answer.question is Question.IN_ONE_ZONE else None
                found = granted(*at, answer.shape, answer.most, within)
            answer.exact[at] = found
        return found

    # -- inside -----------------------------------------------------------------------------------------------

    @property
    def _log_end(self) -> int:
        return self._log_start + len(self._log)

    def _touch(self, index: int) -> None:
        log = self._log
        log.append(index)
        if len(log) > LOG_KEPT:
            drop = LOG_KEPT // 2
            del log[:drop]
            self._log_start += drop

    def _layout(self, layout: Layout) -> KnownLayout:
        known = self._by_layout.get(layout)
        if known is None:
            traits = traits_of(layout)
            number = self._by_traits.get(traits)
            if number is None:
                self._made += 1
                number = self._by_traits[traits] = self._made
                self._kinds[number] = LayoutColumns(number, traits)
            known = self._by_layout[layout] = KnownLayout(layout, self._kinds[number])
        return known

    def _release_column(self, known: KnownLayout, slot: int) -> None:
        kind = known.kind
        kind.drop(slot)
        if known.drop_machine():
            del self._by_layout[known.layout]
            kind.drop_layout(known.place)
        if not len(kind):
            del self._kinds[kind.number], self._by_traits[kind.traits]


def granted(layout: Layout, state: State, shape: PodShape, most: int, zones: int | None = None) -> int:
    """Pods of that shape that are admitted one after another, ``most`` at the most; `admit` asked for each.

    ``zones``: the first that spans more ends it; None: none does.
    """
    for found in range(most):
        admission = admit(layout, state, shape)
        if not admission.admitted or (zones is not None and admission.zones.bit_count() > zones):
            return found
        if admission.after == state:
            return most  # it takes nothing, so neither will the next
        state = admission.after
    return most
