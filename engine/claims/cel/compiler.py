"""From a tree to code: types are checked as far as they are known, and every operation becomes a closure.

The rules are those of cel-go's checker and interpreter with Kubernetes' options: numbers of different types compare,
aggregates are homogeneous, ``&&`` and ``||`` absorb an error where the other side decides.
"""

from collections.abc import Callable
from typing import Final

from engine.claims.cel.calls import call_of
from engine.claims.cel.errors import CompileError, EvaluationError
from engine.claims.cel.frame import Compiled, Frame, Run, Scope
from engine.claims.cel.macros import GLOBAL, METHODS
from engine.claims.cel.syntax import Call, Const, IndexTerm, Items, MapTerm, Select, Term, VariableTerm
from engine.claims.cel.types import (
    BOOL,
    DEVICE,
    DOUBLE,
    DYN,
    INT,
    NULL,
    QUANTITY,
    STRING,
    UINT,
    Type,
    fits,
    is_a,
    joined,
    list_of,
    map_of,
    optional_of,
)
from engine.claims.cel.values import LARGEST_INT, Optional, UInt, Value, element, equal, found, optional_element, size

_LITERALS: Final[dict[type, Type]] = {
    bool: BOOL,
    int: INT,
    UInt: UINT,
    float: DOUBLE,
    str: STRING,
    type(None): NULL,
}
_FIELDS: Final = {
    "driver": STRING,
    "allowMultipleAllocations": BOOL,
    "attributes": map_of(STRING, map_of(STRING, DYN)),
    "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
}
_TWO_VARIABLES: Final = frozenset({"all", "exists", "existsOne", "transformList", "transformMap", "transformMapEntry"})
_NAMESPACES: Final = frozenset({"cel", "ip", "lists", "optional", "sets"})


def compiled(node: Term, scope: Scope) -> Compiled:
    """The code of a tree, where ``scope`` gives the types of the variables.

    Raises:
        CompileError: types do not fit, or something is used that is not there.
    """
    made: Compiled = _OF_NODE[type(node)](node, scope)
    return made


def _constant(node: Const, _: Scope) -> Compiled:
    value = node.value
    # 2^63 passes the parser for the sake of its negative only.
    if type(value) is int and value > LARGEST_INT:
        raise CompileError(f"{value} is no integer of 64 bits")
    return Compiled(_LITERALS[type(value)], lambda _: value, constant=True)


def _variable(node: VariableTerm, scope: Scope) -> Compiled:
    name = node.name
    if name not in scope:
        raise CompileError(f"undeclared reference to {name!r}")

    def run(frame: Frame) -> Value:
        frame.spend(1)
        return frame.variables[name]

    return Compiled(scope[name], run)


# --- fields and elements -------------------------------------------------------------------------------------------


def _unwrap_optional(kind: Type) -> tuple[Type, bool]:
    """The type that an optional type is about, and whether it is one."""
    return (kind.parameters[0], True) if kind.name == "optional_type" else (kind, False)


def _field(kind: Type, name: str) -> Type:
    if kind is DEVICE:
        if name not in _FIELDS:
            raise CompileError(f"undefined field {name!r}")
        return _FIELDS[name]
    if kind is DYN:
        return DYN
    if kind.name != "map" or not fits(STRING, kind.parameters[0]):
        raise CompileError(f"type {kind} has no field {name!r}")
    return kind.parameters[1]


def _select(node: Select, scope: Scope) -> Compiled:
    operand = compiled(node.operand, scope)
    inner, optional = _unwrap_optional(operand.type)
    kind = _field(inner, node.name)
    return _compile_access(
        operand.run, lambda _: node.name, kind, optional=node.optional, within=optional, dynamic=False
    )


def _index(node: IndexTerm, scope: Scope) -> Compiled:
    operand, key = compiled(node.operand, scope), compiled(node.key, scope)
    inner, optional = _unwrap_optional(operand.type)
    if inner.name == "map" and fits(key.type, inner.parameters[0]):
        kind = inner.parameters[1]
    elif inner.name == "list" and fits(key.type, INT):
        kind = inner.parameters[0]
    elif inner is DYN:
        kind = DYN
    else:
        raise CompileError(f"found no matching overload for '_[_]' applied to ({operand.type}, {key.type})")
    return _compile_access(
        operand.run, key.run, kind, optional=node.optional, within=optional, dynamic=operand.type is DYN
    )


def _compile_access(operand: Run, key: Run, kind: Type, *, optional: bool, within: bool, dynamic: bool) -> Compiled:
    """A field or an element; of an optional value (``within``), or asked for as one, it is optional.

    An element of what is only known at run time (``dynamic``) is not known before either.
    """
    take: Callable[[Value, Value], Value] = optional_element if optional else element

    def run(frame: Frame) -> Value:
        container = operand(frame)
        frame.spend(1)
        return take(container, key(frame))

    return Compiled(optional_of(kind) if (optional or within) and not dynamic else kind, run)


def _compile_has(node: Call, scope: Scope) -> Compiled:
    select = node.arguments[0] if len(node.arguments) == 1 else None
    if not isinstance(select, Select) or select.optional:
        raise CompileError("invalid argument to has() macro")
    operand = compiled(select.operand, scope)
    # For its error: a field that a device does not have is no question that ``has`` may answer.
    _field(_unwrap_optional(operand.type)[0], select.name)
    name = select.name

    def run(frame: Frame) -> bool:
        container = operand.run(frame)
        return optional_element(container, name).there if type(container) is Optional else found(container, name)[0]

    return Compiled(BOOL, run)


# --- lists and maps ------------------------------------------------------------------------------------------------


def _common_type(kinds: list[Type]) -> Type:
    if not kinds:
        return DYN
    common = kinds[0]
    for kind in kinds[1:]:
        both = joined(common, kind)
        # What may be anything stands only beside its like: cel-go compares the types of elements, and not what they allow
        # (ValidateHomogeneousAggregateLiterals, which Kubernetes asks for).
        if both is None or (common is DYN) != (kind is DYN):
            raise CompileError(f"expected elements of one type, got {common} and {kind}")
        common = both
    return common


def _list(node: Items, scope: Scope) -> Compiled:
    parts = [compiled(item, scope) for item in node.items]
    runs = [part.run for part in parts]

    def run(frame: Frame) -> tuple[Value, ...]:
        made = tuple([one(frame) for one in runs])
        frame.spend(10)
        return made

    return _folded(Compiled(list_of(_common_type([part.type for part in parts])), run), parts)


def _folded(made: Compiled, parts: list[Compiled]) -> Compiled:
    """What is made of literals only is made once, and costs nothing."""
    if not all(part.constant for part in parts):
        return made
    try:
        # Without variables: everything in it is a literal, so nothing is looked up.
        value = made.run(Frame({}))
    except EvaluationError:
        return made  # it is told when it is evaluated
    return Compiled(made.type, lambda _: value, constant=True)


def _map(node: MapTerm, scope: Scope) -> Compiled:
    keys = [compiled(key, scope) for key, _ in node.entries]
    values = [compiled(value, scope) for _, value in node.entries]
    kind = map_of(_common_type([key.type for key in keys]), _common_type([value.type for value in values]))
    runs = [(key.run, value.run) for key, value in zip(keys, values, strict=True)]

    def run(frame: Frame) -> dict[Value, Value]:
        made: dict[Value, Value] = {}
        for key_of, value_of in runs:
            key = key_of(frame)
            # Python's dict takes 1 and True for the same key: such a map is refused, and not cut.
            if type(key) not in {str, int, UInt, bool}:
                # Without the key: lists that share their parts may have more of them than any text should.
                raise EvaluationError(f"unsupported key type: {type(key).__name__}")
            if key in made:
                raise EvaluationError(f"repeated key: {key!s:.64}")
            made[key] = value_of(frame)
        frame.spend(30)
        return made

    return _folded(Compiled(kind, run), keys + values)


# --- operators and functions ---------------------------------------------------------------------------------------


def _call(node: Call, scope: Scope) -> Compiled:
    if node.target is None:
        if node.function in _SPECIAL:
            return _SPECIAL[node.function](node, scope)
        return _function(node.function, node.arguments, scope, member=False)
    if isinstance(node.target, VariableTerm) and node.target.name in _NAMESPACES and node.target.name not in scope:
        name = f"{node.target.name}.{node.function}"
        if name in GLOBAL:
            return GLOBAL[name](node.target, node.arguments, scope, compiled)
        return _function(name, node.arguments, scope, member=False)
    macro = METHODS.get((node.function, len(node.arguments)))
    if macro is None and node.function in _TWO_VARIABLES:
        raise CompileError(f"macro {node.function!r} of two variables is not evaluated here")
    if macro is not None:
        return macro(node.target, node.arguments, scope, compiled)
    return _function(node.function, (node.target, *node.arguments), scope, member=True)


def _function(name: str, arguments: tuple[Term, ...], scope: Scope, *, member: bool) -> Compiled:
    return call_of(name, arguments, [compiled(one, scope) for one in arguments], member=member)


def _equality(node: Call, scope: Scope) -> Compiled:
    left, right = (compiled(one, scope) for one in node.arguments)
    if joined(left.type, right.type) is None:
        raise CompileError(f"found no matching overload for {node.function!r} applied to ({left.type}, {right.type})")
    first, second, wanted = left.run, right.run, node.function == "_==_"

    def run(frame: Frame) -> bool:
        one, other = first(frame), second(frame)
        # The cost of the shorter one, rounded up; `equal` charges for what it finds inside.
        frame.spend(-(-min(size(one), size(other)) // 10))
        try:
            return equal(one, other, frame.spend) is wanted
        except EvaluationError:
            if wanted:
                raise
            return True  # what cannot be compared is not equal

    return Compiled(BOOL, run)


def _logical(node: Call, scope: Scope) -> Compiled:
    terms = [compiled(one, scope) for one in node.arguments]
    if wrong := [str(term.type) for term in terms if not fits(term.type, BOOL)]:
        raise CompileError(f"found no matching overload for {node.function!r} applied to {wrong[0]}")
    return Compiled(BOOL, any_or_all([term.run for term in terms], decisive=node.function == "_||_"))


def any_or_all(runs: list[Run], *, decisive: bool) -> Run:
    """``||`` where True is decisive, ``&&`` where False is: an error is one only where no term decides."""

    def run(frame: Frame) -> bool:
        failed: EvaluationError | None = None
        for term in runs:
            try:
                value = term(frame)
            except EvaluationError as error:
                # The message is that of the first error, in the order of the terms.
                failed = failed or error
                continue
            if value is decisive:
                return value is True
            # No value of another type decides, so the other terms are still asked.
            if type(value) is not bool:
                failed = failed or EvaluationError("no such overload")
        if failed is not None:
            raise failed
        return not decisive

    return run


def _conditional(node: Call, scope: Scope) -> Compiled:
    condition, then, otherwise = (compiled(one, scope) for one in node.arguments)
    kind = joined(then.type, otherwise.type)
    if kind is None or not fits(condition.type, BOOL):
        raise CompileError(
            f"found no matching overload for '_?_:_' applied to ({condition.type}, {then.type}, {otherwise.type})"
        )

    def run(frame: Frame) -> Value:
        chosen = condition.run(frame)
        if not is_a(chosen, BOOL):
            raise EvaluationError("no such overload")
        return then.run(frame) if chosen else otherwise.run(frame)

    return Compiled(kind, run)


_SPECIAL: Final[dict[str, Callable[[Call, Scope], Compiled]]] = {
    "_==_": _equality,
    "_!=_": _equality,
    "_&&_": _logical,
    "_||_": _logical,
    "_?_:_": _conditional,
    "has": _compile_has,
}
_OF_NODE: Final[dict[type[Term], Callable[..., Compiled]]] = {
    Const: _constant,
    VariableTerm: _variable,
    Select: _select,
    IndexTerm: _index,
    Items: _list,
    MapTerm: _map,
    Call: _call,
}
