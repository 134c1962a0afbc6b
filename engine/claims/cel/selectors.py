"""Selectors: expressions that are asked of devices, each once for devices that look the same to it."""

from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Protocol

import msgspec

from engine.claims.budget import Budget
from engine.claims.cel.compiler import compiled
from engine.claims.cel.errors import CelError, CompileError, EvaluationError
from engine.claims.cel.frame import MOST, Compiled, Frame
from engine.claims.cel.syntax import Call, Const, IndexTerm, Items, MapTerm, Select, Term, VariableTerm
from engine.claims.cel.types import BOOL, DEVICE, DYN, Type
from engine.claims.cel.values import Value
from engine.latest import Latest

Path = tuple[str, ...]  # what is read of a device: ("attributes", domain, name), or the first parts of it

FLAWS: Final[Path] = ("",)  # what of a device is no value: it fails every expression, whatever that reads
WHOLE: Final[Path] = ()  # all of a device
_MOST_READ: Final = 16  # places that are read one by one: anybody may write an expression of four hundred

_REMEMBERED: Final = 4096  # answers of one expression
_ANSWERS: Final = 1 << 17  # of all together: some 200 bytes each
_PROGRAMS: Final = 2048
_CHARACTERS: Final = 1 << 19  # of expressions whose code is kept: one of 10,000 takes 1 MiB, and anybody writes them
MOST_PATTERNS: Final = 100  # regular expressions in one expression: each may take some 5 ms to make


class Subject(Protocol):
    """A device, as an expression sees it."""

    def variables(self) -> dict[str, Value]:
        """The value of the variable ``device``.

        Raises:
            EvaluationError: it publishes something that is no value.
        """

    def looks(self, path: Path) -> Hashable:
        """All that there is at a path; equal where an expression that reads only there finds the same."""


class Answers:
    """What expressions were found to be of devices, by what they read of these.

    Where there are too many of all together, those of the expression that has most are forgotten: most read what many
    devices have in common, and one that reads what is another of each costs itself.
    """

    def __init__(self) -> None:
        self._of: dict[str, dict[Hashable, Value | CelError]] = {}
        self._total = 0

    def get(self, expression: str, look: Hashable) -> Value | CelError | None:
        """What was found; None where nothing was."""
        own = self._of.get(expression)
        return None if own is None else own.get(look)

    def put(self, expression: str, look: Hashable, answer: Value | CelError) -> None:
        """Keep what was found."""
        own = self._of.setdefault(expression, {})
        if len(own) >= _REMEMBERED:
            self._drop_expression(expression)
        elif self._total >= _ANSWERS:
            self._drop_expression(max(self._of, key=lambda one: len(self._of[one])))
        # `_drop_expression` may have taken this very expression out.
        self._of.setdefault(expression, own)[look] = answer
        self._total += 1

    def clear(self) -> None:
        """Forget all."""
        self._of.clear()
        self._total = 0

    def _drop_expression(self, expression: str) -> None:
        own = self._of.pop(expression)
        self._total -= len(own)
        own.clear()


class Program(msgspec.Struct):
    """One expression, with the answers of all so far; ``error`` says why it is none.

    Its code weighs a hundred times what it does, and is in ``_codes`` for a while: made anew for the next device that
    looks like none before.
    """

    expression: str
    error: CompileError | None
    _codes: Latest[str, Compiled]
    _answers: Answers
    _type: Type | None = None
    _reads: tuple[Path, ...] = ()

    @classmethod
    def compile_expression(
        cls, expression: str, codes: Latest[str, Compiled] | None = None, answers: Answers | None = None
    ) -> "Program":
        """Compile an expression."""
        codes = _latest_codes() if codes is None else codes
        answers = Answers() if answers is None else answers
        try:
            # Before the code is made: compiling makes every literal regular expression.
            tree = _limited(_parsed(expression))
            code = codes.get_or_make(expression, lambda: compiled(tree, {"device": DEVICE}))
        except CompileError as error:
            return cls(expression, error, codes, answers)
        return cls(expression, None, codes, answers, code.type, reading(_paths(tree)))

    @property
    def reads(self) -> tuple[Path, ...]:
        """What it may read of a device."""
        return self._reads

    def matches(self, device: Subject, budget: Budget) -> bool:
        """Whether it holds of a device.

        Raises:
            CelError: it does not compile, fails on the device, or its value is no truth value.
            SearchLimitError: the budget is used up.
        """
        # When it is asked and not when it compiles: a class with such a selector harms only pods that name it.
        if self._type is not None and self._type not in {BOOL, DYN}:
            raise CompileError(f"must evaluate to bool or the unknown type, not {self._type}")
        value = self.value(device, budget)
        if type(value) is not bool:
            raise EvaluationError("the result could not be converted to bool")
        return value

    def value(self, device: Subject, budget: Budget) -> Value:
        """What it evaluates to on a device.

        Raises:
            CelError: it does not compile, or fails on the device.
            SearchLimitError: the budget is used up.
        """
        if self.error is not None:
            raise self.error
        # All that the expression can read, so equal looks have equal answers, errors included.
        look = tuple([device.looks(path) for path in self._reads])
        answer = self._answers.get(self.expression, look)
        if answer is None:
            code = self._code(budget)
            frame = Frame({}, min(budget.left, MOST))
            try:
                # Inside the ``try``: a device with a flaw fails every expression, and that is an answer like others.
                frame.variables["device"] = device.variables()
                answer = code.run(frame)
            except CelError as error:
                answer = error
            finally:
                budget.spend_steps(frame.spent + frame.toil)
            # A search that ran out of budget never comes here, so no answer is one of a budget.
            self._answers.put(self.expression, look, answer)
        if isinstance(answer, CelError):
            raise answer.with_traceback(None)  # it is raised many times, and would carry every way it went
        return answer

    def _code(self, budget: Budget) -> Compiled:
        def made() -> Compiled:
            budget.compile(len(self.expression))
            return compiled(_parsed(self.expression), {"device": DEVICE})

        return self._codes.get_or_make(self.expression, made)


def reading(paths: Iterable[Path]) -> tuple[Path, ...]:
    """What is compared of devices by those who read at all these places: the whole device where these are many."""
    found = {FLAWS, *paths}
    # Sorted, so that expressions that read the same places in another order share a view.
    return (WHOLE, FLAWS) if WHOLE in found or len(found) > _MOST_READ else tuple(sorted(found))


def _latest_codes() -> Latest[str, Compiled]:
    return Latest(_CHARACTERS, len)


def _parsed(expression: str) -> Term:
    from engine.claims.cel.parser import parse  # Lark is imported for who has a selector

    return parse(expression)


def _limited(tree: Term) -> Term:
    if _patterns(tree) > MOST_PATTERNS:
        raise CompileError(f"more than {MOST_PATTERNS} regular expressions, which are not evaluated here")
    return tree


def _patterns(node: Term) -> int:
    """How many regular expressions there are."""
    here = isinstance(node, Call) and node.function == "matches"
    return here + sum(map(_patterns, _operands_of(node)))


def _paths(node: Term) -> Iterator[Path]:
    """All that an expression may read: a name that a macro gives to something else is taken for the device's too."""
    path = _path(node)
    if path is not None:
        # A longer chain goes into a value, and the value as a whole is what looks are compared by.
        yield path[:3]
        return
    for below in _operands_of(node):
        yield from _paths(below)


def _operands_of(node: Term) -> tuple[Term, ...]:
    match node:
        case Select(operand=operand):
            return (operand,)
        case IndexTerm(operand=operand, key=key):
            return operand, key
        case Items(items=items):
            return items
        case MapTerm(entries=entries):
            return tuple(part for entry in entries for part in entry)
        case Call(target=target, arguments=arguments):
            return arguments if target is None else (target, *arguments)
    return ()


def _path(node: Term) -> Path | None:
    """The place in the device that a chain of fields and constant keys leads to; None where it is no such chain."""
    match node:
        case VariableTerm(name="device"):
            return ()
        case Select(operand=operand, name=name):
            path = _path(operand)
            return None if path is None else (*path, name)
        case IndexTerm(operand=operand, key=Const(value=str(key))):
            path = _path(operand)
            return None if path is None else (*path, key)
    return None


class Selectors(msgspec.Struct):
    """Programs by their expression."""

    _programs: dict[str, Program] = msgspec.field(default_factory=dict)
    _codes: Latest[str, Compiled] = msgspec.field(default_factory=_latest_codes)
    _answers: Answers = msgspec.field(default_factory=Answers)

    def program(self, expression: str) -> Program:
        """The program of an expression, compiled once."""
        found = self._programs.get(expression)
        if found is None:
            # Both together, or answers would stay for expressions that nobody asks for any more.
            if len(self._programs) >= _PROGRAMS:
                self._programs.clear()
                self._answers.clear()
            found = self._programs[expression] = Program.compile_expression(expression, self._codes, self._answers)
        return found

    def knows(self, expression: str) -> bool:
        """Whether it was compiled already."""
        return expression in self._programs
