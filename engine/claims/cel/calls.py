"""Calls of functions and operators: which overload is meant, as far as the types tell it, else at run time."""

from typing import Final

from engine.claims.cel.errors import CompileError, EvaluationError
from engine.claims.cel.frame import Compiled, Frame
from engine.claims.cel.kubernetes import ADDRESSES, COMPARISONS, OPTIONALS, QUANTITIES, VERSIONS
from engine.claims.cel.overloads import OPERATORS, Overload, Overloads
from engine.claims.cel.strings import LISTS, TEXTS, pattern
from engine.claims.cel.syntax import Const, Term
from engine.claims.cel.types import DYN, Type, fits, is_a, joined, optional_of
from engine.claims.cel.values import Value
from engine.claims.cel.versions import Version


def _merged(*tables: Overloads) -> Overloads:
    """One table; a function may have overloads in several."""
    merged: Overloads = {}
    for name, overloads in (entry for table in tables for entry in table.items()):
        merged[name] = (*merged.get(name, ()), *overloads)
    return merged


FUNCTIONS: Final = _merged(OPERATORS, TEXTS, LISTS, QUANTITIES, COMPARISONS, VERSIONS, ADDRESSES, OPTIONALS)
_SAME: Final = frozenset({"slice", "reverse", "distinct"})  # lists: the result has the argument's type


def call_of(name: str, nodes: tuple[Term, ...], arguments: list[Compiled], *, member: bool) -> Compiled:
    """The code of a call; of a method (``member``), the target is the first argument.

    Raises:
        CompileError: there is no such function for these types, or it is not evaluated here.
    """
    kinds = [argument.type for argument in arguments]
    if (name, member) not in FUNCTIONS:
        raise CompileError(f"function {name!r} is unknown, or not evaluated here")
    candidates = [
        overload
        for overload in FUNCTIONS[name, member]
        if len(overload.parameters) == len(kinds) and all(map(fits, kinds, overload.parameters))
    ]
    if not candidates or (name == "@in" and not _may_be_in(*kinds)):
        raise CompileError(f"found no matching overload for {name!r} applied to ({', '.join(map(str, kinds))})")
    if name == "matches":
        arguments = [arguments[0], _pattern_of(nodes[-1], arguments[-1])]
    if name == "@in" and arguments[1].constant and kinds[1].name == "list":
        arguments = [_hashable(arguments[0]), arguments[1]]
    # Whether the types alone say which overload it is.
    certain = len(candidates) == 1 and all(
        want is DYN or kind is not DYN for kind, want in zip(kinds, candidates[0].parameters, strict=True)
    )
    runs = [argument.run for argument in arguments]

    def run(frame: Frame) -> Value:
        values = [one(frame) for one in runs]
        overload = candidates[0] if certain else _matching(candidates, values)
        # Before it runs, so that nothing expensive happens beyond the limit.
        frame.spend(overload.cost(*values) if overload.cost else 1)
        return overload.run(frame.spend, *values) if overload.deep else overload.run(*values)

    return Compiled(_result(name, candidates, kinds), run)


def _may_be_in(value: Type, container: Type) -> bool:
    """Whether a list or a map can have elements, or keys, of a type."""
    return not container.parameters or joined(value, container.parameters[0]) is not None


def _hashable(value: Compiled) -> Compiled:
    """cel-go looks for a value in a set where the list is one of literals, and a version cannot be in one."""

    def run(frame: Frame) -> Value:
        found = value.run(frame)
        if type(found) is Version:
            raise EvaluationError("hash of unhashable type cel.Semver")
        return found

    return Compiled(value.type, run)


def _pattern_of(node: Term, expression: Compiled) -> Compiled:
    """A regular expression: a literal is made at once, any other counts when it is made."""
    if isinstance(node, Const):
        # While the expression compiles, so that a literal that is no regular expression refuses it before any device.
        pattern(node.value)
        return expression

    def run(frame: Frame) -> Value:
        found = expression.run(frame)
        # Anything else is reported by the overload that does not match it, and need not be hashable.
        if type(found) is str:
            frame.note_pattern(found)
        return found

    return Compiled(expression.type, run)


def _result(name: str, candidates: list[Overload], kinds: list[Type]) -> Type:
    """The type of the value, as far as it follows from those of the arguments."""
    results = {candidate.result for candidate in candidates}
    if len(results) > 1:
        return DYN
    (result,) = results
    first = kinds[0].parameters[0] if kinds and kinds[0].parameters else DYN
    special: dict[str, Type | None] = {"value": first, "or": kinds[-1] if kinds else None}
    if name == "_+_" and result.name == "list":
        special[name] = joined(*(kind for kind in kinds if kind is not DYN)) if DYN not in kinds else result
    elif name == "orValue":
        special[name] = kinds[1] if kinds[0] is DYN else joined(first, kinds[1])
    elif name == "optional.of":
        special[name] = optional_of(kinds[0])
    elif name in _SAME and kinds[0] is not DYN:
        special[name] = kinds[0]
    elif name in {"min", "max"}:
        special[name] = first
    return special.get(name, result) or DYN


def _matching(candidates: list[Overload], values: list[Value]) -> Overload:
    for candidate in candidates:
        # The first that fits, in the order of the table: ``_merged`` keeps cel-go's own functions before those of
        # Kubernetes.
        if all(map(is_a, values, candidate.parameters)):
            return candidate
    raise EvaluationError("no such overload")
