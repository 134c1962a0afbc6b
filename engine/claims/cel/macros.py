"""Macros of CEL: those that go through a list or a map, and those that name a value.

Costs of a step are those of cel-go's comprehensions, nearly: a variable is read, the result so far is looked at.
"""

from collections.abc import Callable, Iterator
from typing import Final

from engine.claims.cel.errors import CompileError, CostError, EvaluationError
from engine.claims.cel.frame import Compiled, Frame, Run, Scope
from engine.claims.cel.overloads import LONGEST_LIST
from engine.claims.cel.syntax import Term, VariableTerm
from engine.claims.cel.types import BOOL, DYN, Type, fits, list_of, optional_of
from engine.claims.cel.values import NONE, Optional, Value

Compile = Callable[[Term, Scope], Compiled]
Macro = Callable[[Term, tuple[Term, ...], Scope, Compile], Compiled]

_STEP: Final = 3  # what going on to the next element costs
_ABSENT: Final = object()


def _variable_name(node: Term) -> str:
    if not isinstance(node, VariableTerm):
        raise CompileError("argument must be a simple name")
    return node.name


def _run_with(frame: Frame, name: str, value: Value, run: Run) -> Value:
    """Evaluate while a name stands for a value."""
    before = frame.variables.get(name, _ABSENT)
    # One dictionary for all scopes: a macro inside another may use the same name, so the outer value comes back.
    frame.variables[name] = value
    try:
        return run(frame)
    finally:
        if before is _ABSENT:
            del frame.variables[name]
        else:
            frame.variables[name] = before


def _bind(_: Term, arguments: tuple[Term, ...], scope: Scope, compile_: Compile) -> Compiled:
    if len(arguments) != 3:
        raise CompileError("cel.bind takes a name, its value and an expression")
    name = _variable_name(arguments[0])
    value = compile_(arguments[1], scope)
    body = compile_(arguments[2], {**scope, name: value.type})
    return Compiled(body.type, lambda frame: _run_with(frame, name, value.run(frame), body.run))


def _range(target: Term, scope: Scope, compile_: Compile) -> tuple[Run, Type]:
    """The list or map that a macro goes through, and the type of what it finds there: elements, or keys."""
    found = compile_(target, scope)
    if found.type is not DYN and found.type.name not in {"list", "map"}:
        raise CompileError(f"expression of type {found.type} cannot be range of a comprehension")
    return found.run, found.type.parameters[0] if found.type.parameters else DYN


def _steps(frame: Frame, over: Run, name: str, body: Run) -> Iterator[tuple[Value, Value]]:
    """Each element with what the body says of it; an error of the body stands in its place."""
    elements = over(frame)
    if not isinstance(elements, tuple | dict):
        raise EvaluationError("no such overload")
    for one in elements:
        # Charged even where the body costs nothing.
        frame.spend(_STEP)
        try:
            value = _run_with(frame, name, one, body)
        except EvaluationError as error:
            value = error
        yield one, value


def _truth(value: Value) -> bool:
    if isinstance(value, EvaluationError):
        raise value
    if type(value) is not bool:
        raise EvaluationError("no such overload")
    return bool(value)


def _predicate(
    target: Term, arguments: tuple[Term, ...], scope: Scope, compile_: Compile
) -> tuple[Run, str, Run, Type]:
    over, kind = _range(target, scope, compile_)
    name = _variable_name(arguments[0])
    body = compile_(arguments[1], {**scope, name: kind})
    if not fits(body.type, BOOL):
        raise CompileError(f"expected a condition, got an expression of type {body.type}")
    return over, name, body.run, kind


def _quantified(*, decisive: bool) -> Macro:
    """``exists`` where True is decisive, ``all`` where False is: errors count only where nothing decides."""

    def macro(target: Term, arguments: tuple[Term, ...], scope: Scope, compile_: Compile) -> Compiled:
        over, name, body, _ = _predicate(target, arguments, scope, compile_)

        def run(frame: Frame) -> bool:
            failed: EvaluationError | None = None
            for _, value in _steps(frame, over, name, body):
                # Identity, because 1 == True in Python and an attribute may be the number 1.
                if value is decisive:
                    return value is True
                if type(value) is not bool:
                    failed = value if isinstance(value, EvaluationError) else EvaluationError("no such overload")
            if failed is not None:
                raise failed
            return not decisive

        return Compiled(BOOL, run)

    return macro


def _exists_one(target: Term, arguments: tuple[Term, ...], scope: Scope, compile_: Compile) -> Compiled:
    over, name, body, _ = _predicate(target, arguments, scope, compile_)

    def run(frame: Frame) -> bool:
        return sum(_truth(value) for _, value in _steps(frame, over, name, body)) == 1

    return Compiled(BOOL, run)


def _filter(target: Term, arguments: tuple[Term, ...], scope: Scope, compile_: Compile) -> Compiled:
    over, name, body, kind = _predicate(target, arguments, scope, compile_)

    def run(frame: Frame) -> tuple[Value, ...]:
        frame.spend(10)
        return tuple([one for one, value in _steps(frame, over, name, body) if _truth(value)])

    return Compiled(list_of(kind), run)


def _map(target: Term, arguments: tuple[Term, ...], scope: Scope, compile_: Compile) -> Compiled:
    over, kind = _range(target, scope, compile_)
    name = _variable_name(arguments[0])
    inner = {**scope, name: kind}
    condition = compile_(arguments[1], inner) if len(arguments) == 3 else None
    body = compile_(arguments[-1], inner)
    if condition is not None and not fits(condition.type, BOOL):
        raise CompileError(f"expected a condition, got an expression of type {condition.type}")

    def step(frame: Frame) -> Value:
        if condition is not None and not _truth(condition.run(frame)):
            return _ABSENT
        return body.run(frame)

    def run(frame: Frame) -> tuple[Value, ...]:
        made: list[Value] = []
        for _, value in _steps(frame, over, name, step):
            if isinstance(value, EvaluationError):
                raise value
            frame.spend(10)
            if value is not _ABSENT:
                made.append(value)
        # Nested macros multiply lists, and their cost in Kubernetes' count allows more elements than memory should
        # hold.
        if len(made) > LONGEST_LIST:
            raise CostError(f"a list of more than {LONGEST_LIST} elements")
        return tuple(made)

    return Compiled(list_of(body.type), run)


def _opt_map(*, flat: bool) -> Macro:
    def macro(target: Term, arguments: tuple[Term, ...], scope: Scope, compile_: Compile) -> Compiled:
        optional, name = compile_(target, scope), _variable_name(arguments[0])
        if optional.type is not DYN and optional.type.name != "optional_type":
            raise CompileError(f"expected an optional value, got one of type {optional.type}")
        inner = optional.type.parameters[0] if optional.type.parameters else DYN
        body = compile_(arguments[1], {**scope, name: inner})

        def run(frame: Frame) -> Optional:
            given = optional.run(frame)
            if type(given) is not Optional:
                raise EvaluationError("no such overload")
            if not given.there:
                return NONE
            value = _run_with(frame, name, given.value, body.run)
            if flat and type(value) is not Optional:
                raise EvaluationError("no such overload")
            return value if flat else Optional(value, there=True)

        return Compiled(body.type if flat else optional_of(body.type), run)

    return macro


GLOBAL: Final[dict[str, Macro]] = {"cel.bind": _bind}
METHODS: Final[dict[tuple[str, int], Macro]] = {  # by name and number of arguments
    ("exists", 2): _quantified(decisive=True),
    ("all", 2): _quantified(decisive=False),
    ("exists_one", 2): _exists_one,
    ("filter", 2): _filter,
    **{("map", count): _map for count in (2, 3)},
    ("optMap", 2): _opt_map(flat=False),
    ("optFlatMap", 2): _opt_map(flat=True),
}
