"""The tree of a CEL expression. `engine.claims.cel.parser` makes it of a text."""

from dataclasses import dataclass, field

from engine.claims.cel.values import Value


@dataclass(frozen=True, slots=True)
class Term:
    """One operation; ``depth`` counts what is nested in it."""

    depth: int = field(default=1, kw_only=True)


@dataclass(frozen=True, slots=True)
class Const(Term):
    """A literal."""

    value: Value


@dataclass(frozen=True, slots=True)
class VariableTerm(Term):
    """A variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Select(Term):
    """A field of something, or ``.?``: the field as an optional value."""

    operand: Term
    name: str
    optional: bool


@dataclass(frozen=True, slots=True)
class IndexTerm(Term):
    """An element of something, or ``[?]``: the element as an optional value."""

    operand: Term
    key: Term
    optional: bool


@dataclass(frozen=True, slots=True)
class Call(Term):
    """A function or an operator (named as in cel-go, ``_==_``); ``target`` is what a method is called on."""

    function: str
    target: Term | None
    arguments: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Items(Term):
    """A list."""

    items: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class MapTerm(Term):
    """A map: its keys and values."""

    entries: tuple[tuple[Term, Term], ...]
