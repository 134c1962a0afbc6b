"""Text of others comes out as it is: what looks like colours or pictures in names and messages is text."""

import io
import json
import re
import sys

import pytest
import yaml
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cli import output, screen
from cli.whatif.output import ErrorAnswer, LinesFormat, write

ODD = "[red]a[/red] :warning: [/] [link=x]b"


def test_a_table_and_a_line_have_names_as_they_are(capsys):
    table = Table(ODD, title=ODD, caption=ODD)
    table.add_row(ODD)
    output.emit([], output.OutputFormat.TABLE, table=table)
    output.stdout().print(ODD)
    output.stderr().print(ODD)
    out, err = capsys.readouterr()
    assert (out.count(ODD), err.count(ODD)) == (5, 1)


def test_answers_that_are_errors_have_their_ids_as_they_are(capsys):
    answers = [ErrorAnswer(id=ODD, error=ODD)]
    assert write(answers, LinesFormat.TABLE, ("Case", "", ""), lambda _: (), compared=False) == 1
    assert capsys.readouterr().out.count(ODD) == 2


def progress():
    with output.progress(ODD):
        pass


def messages():
    with output.messages() as tell:
        tell(ODD)


@pytest.mark.parametrize("spin", [progress, messages])
def test_a_spinner_has_its_words_as_they_are(monkeypatch, spin):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    spin()
    assert ODD in terminal.getvalue()


FORGED = "a\x1b[2Jb\x9b1mc\x07d\u202ee\x7ff\rg\u2028h\u200bi"


def test_nothing_that_a_tenant_wrote_reaches_a_terminal_as_a_control_character(monkeypatch):
    """Names and messages are anybody's: they would clear the screen, or write other words over ours."""
    shown = io.StringIO()
    shown.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    for name, make in (("stdout", output.stdout), ("stderr", output.stderr)):
        monkeypatch.setattr(sys, name, shown)
        console = make()
        table = Table(FORGED, title=FORGED)
        table.add_row(Text(FORGED, style="bold red"))
        for one in (table, FORGED, Text(FORGED), Group(Text(FORGED))):
            console.print(one, soft_wrap=True)
        with console.status(Text(FORGED)):
            pass
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue().replace("\x1b[2J", "CLEARED"))
    assert "CLEARED" not in text
    assert "\x1b[1;31m" in shown.getvalue(), "our own colours are there"
    assert not set("\x1b\x9b\x07\u202e\x7f\u2028\u200b") & set(text)
    assert "a\\x1b[2Jb\\x9b1mc" in text


def test_json_has_the_same_text_with_its_control_characters_as_escapes(capsys):
    output.emit({FORGED: [FORGED, "é\n\t"]}, output.OutputFormat.JSON)
    write([ErrorAnswer(id=FORGED, error=FORGED)], LinesFormat.JSONL, ("Case", "", ""), lambda _: (), compared=False)
    output.emit({FORGED: FORGED}, output.OutputFormat.YAML)
    out = capsys.readouterr().out
    assert not set(FORGED) - set("abcdefghi[2J1m") & set(out)
    first, _, rest = out.partition("\n}\n")
    assert json.loads(first + "}") == {FORGED: [FORGED, "é\n\t"]}
    line, _, text = rest.partition("\n")
    assert json.loads(line)["id"] == FORGED
    assert yaml.safe_load(text) == {FORGED: FORGED}


def test_a_key_of_any_length_is_shown_in_one_line():
    assert screen.in_one_line("a\nb\tc\x1b") == "a\\nb\\tc\\x1b"
    assert screen.in_one_line("x" * 5000) == "x" * 200 + "..."
