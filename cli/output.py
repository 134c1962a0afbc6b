"""How every command speaks: tables for people, JSON and YAML for programs, errors in one line, progress on stderr."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from clock import SYSTEM, Clock

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

TELL_SECONDS = 15.0  # between two lines about the same work where no terminal is watched
WIDTH = 160  # of output that goes to a file or a pipe, where no terminal tells
# Names and messages come from files and from others: "[red]" and ":on:" in them are text. Colours are `rich.text.Text`.
_AS_IT_IS: Final[dict[str, Any]] = {"highlight": False, "markup": False, "emoji": False}
# C0 without tab and line feed, DEL, C1, and what changes the direction of a line or has no width.
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
MOST_SHOWN = 200  # characters of a key or a path that a tenant wrote

# The first character of its head says what a column is like.
_MARKS: Final[dict[str, dict[str, Any]]] = {">": {"justify": "right"}, "~": {"overflow": "fold"}}


class Failure(Exception):  # noqa: N818 - it is what a person reads, not a bug
    """Ends a command with ``Error: <message>`` on stderr and exit status 1. Say what to do next in the message."""


class OutputFormat(StrEnum):
    """What ``-o`` accepts."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[OutputFormat, typer.Option("-o", "--output", help="Output format.")]
Kubeconfig = Annotated[
    str | None,
    typer.Option("--kubeconfig", help="Path of the kubeconfig file; default $KUBECONFIG, then ~/.kube/config."),
]
Context = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig to use; default the current one.")
]


def stdout() -> "Console":
    """A console for results. Made anew each time, because tests swap the streams."""
    from cli.screen import Screen  # late, as all that draws and writes: --help and errors of usage need none of it

    return Screen(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH, **_AS_IT_IS)


def stderr() -> "Console":
    """A console for progress and errors, so that piped output stays clean."""
    from cli.screen import Screen

    return Screen(file=sys.stderr, **_AS_IT_IS)


def emit(data: Any, fmt: OutputFormat, *, table: "RenderableType | None" = None) -> None:
    """Print ``data`` as JSON or YAML, or the ``table`` made of it."""
    import msgspec

    # Once for both formats, so that YAML has exactly the fields of JSON.
    plain = msgspec.to_builtins(data)
    if fmt is OutputFormat.JSON:
        sys.stdout.write(escape_control(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()) + "\n")
    elif fmt is OutputFormat.YAML or table is None:
        write_yaml([plain], sys.stdout)
    else:
        stdout().print(table)


def write_yaml(documents: Iterable[Any], stream: TextIO) -> None:
    """Write documents so that kubectl reads what Python does.

    kubectl (sigs.k8s.io/yaml) takes more for numbers and truth values than PyYAML, which leaves these without quotes:
    a label ``1e3`` or ``y`` would be no text there, and the object refused.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "'" if _MORE_THAN_TEXT.fullmatch(text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent_text)
    yaml.dump_all(documents, stream, Dumper=Dumper, sort_keys=False)


_MORE_THAN_TEXT: Final = re.compile(r"[yYnN]|[-+]?\.?[0-9][0-9A-Fa-f_xXo.+-]*")


def plain_table(*heads: str, **options: Any) -> "Table":
    """A table with these columns; ``options``: of a `rich.table.Table`.

    The head ``>PODS`` is of numbers, which stand at the right, ``~MESSAGE`` of texts that break anywhere.
    """
    from rich.table import Column, Table

    columns = [Column(head[1:], **_MARKS[head[0]]) if head[:1] in _MARKS else head for head in heads]
    return Table(*columns, box=None, pad_edge=False, **options)


def counted(count: int, what: str) -> str:
    """``1 pod``, ``2 pods``."""
    return f"{count} {what}{'s' * (count != 1)}"


def show_control(text: str) -> str:
    """A text whose control characters are seen, and do nothing: as escapes of Python."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def escape_control(json: str) -> str:
    """The same JSON, with the control characters as escapes that an encoder leaves as they are."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def in_one_line(text: str, most: int = MOST_SHOWN) -> str:
    """The beginning of a text of a tenant, such as a key: it may have any length, and lines of its own."""
    shown = text if len(text) <= most else f"{text[:most]}..."
    return show_control(shown.replace("\t", "\\t").replace("\n", "\\n"))


def some(names: Sequence[str], most: int = 4, joint: str = ", ") -> str:
    """The first of them, and how many more there are."""
    return joint.join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@contextmanager
def progress(message: str) -> Iterator[None]:
    """Show that something is going on: a spinner on a terminal, one line elsewhere."""
    console = stderr()
    if not console.is_terminal:
        # A spinner in a file or a CI log is hundreds of lines.
        console.print(message)
        yield
        return
    from rich.text import Text  # a spinner reads markup in words, whatever its console does

    with console.status(Text(message)):
        yield


@contextmanager
def messages(clock: Clock = SYSTEM) -> Iterator[Callable[[str], None]]:
    """A spinner with the latest message on a terminal; elsewhere lines, rarely where only figures in them change."""
    console = stderr()
    if console.is_terminal:
        from rich.text import Text

        with console.status("starting") as spinner:
            yield lambda message: spinner.update(Text(message))
        return
    last_kind, last_time = "", 0.0

    def tell(message: str) -> None:
        nonlocal last_kind, last_time
        # Figures stand in brackets: "building (3 of 9)" and "building (4 of 9)" are one kind.
        kind = message.partition("(")[0]
        if kind != last_kind or clock.monotonic() - last_time > TELL_SECONDS:
            last_kind, last_time = kind, clock.monotonic()
            console.print(message, soft_wrap=True)

    yield tell
