"""Options that belong together as one parameter of a command: a struct whose fields are annotated as options are."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import msgspec


class OptionGroup(msgspec.Struct, frozen=True):
    """Some options of a command, whose fields all have defaults."""


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: an option for each field stands in place of a group."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[OptionGroup]] = {
        name: of for name, of in hints.items() if isinstance(of, type) and issubclass(of, OptionGroup)
    }

    def opened() -> Iterator[inspect.Parameter]:
        for name, one in inspect.signature(command).parameters.items():
            if name not in groups:
                yield one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
                continue
            fields = get_type_hints(groups[name], include_extras=True)
            for field in msgspec.structs.fields(groups[name]):
                kind = inspect.Parameter.KEYWORD_ONLY
                yield inspect.Parameter(field.name, kind, default=field.default, annotation=fields[field.name])

    def called(**given: Any) -> None:
        made = {name: of(**{field: given.pop(field) for field in of.__struct_fields__}) for name, of in groups.items()}
        command(**given, **made)

    signature = inspect.Signature(list(opened()))
    called.__doc__, called.__name__ = command.__doc__, command.__name__
    called.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
    called.__signature__ = signature  # type: ignore[attr-defined]
    return called
