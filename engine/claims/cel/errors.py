"""Errors of expressions."""

from engine.claims.errors import ClaimsError


class CelError(ClaimsError):
    """Any error of an expression."""


class CompileError(CelError):
    """The expression is none: its syntax or a type is wrong, or it uses what is not evaluated here."""


class EvaluationError(CelError):
    """An error while it is evaluated, which ``&&`` and ``||`` absorb where the other side decides."""


class CostError(CelError):
    """The expression costs more than Kubernetes grants; nothing absorbs it."""
