"""What goes wrong here, as one tree.

``ClaimsError``: every error of this package.
    ``ObjectError``: an object of the API cannot be used; it names the object and the field.
    ``AllocationError``: the scheduler would stop the whole pod: a claim, a class or one of their expressions is wrong.
    ``SearchLimitError``: the search was given up; nothing is known of the pod.
    ``cel.errors.CelError``: an expression is wrong, or fails on a device; the allocator turns it into the above.
"""


class ClaimsError(Exception):
    """Any error of this package."""


class ObjectError(ClaimsError, ValueError):
    """An object that cannot be used: its kind and name, the field, and what was expected there."""

    def __init__(self, what: str, field: str, message: str) -> None:
        self.what = what
        self.field = field
        super().__init__(f"{what}: {field}: {message}" if field else f"{what}: {message}")


class AllocationError(ClaimsError):
    """Kubernetes' allocator returns this error, so the scheduler tries no other node for the pod."""


class SearchLimitError(ClaimsError):
    """The search took more steps than are granted to one pod."""
