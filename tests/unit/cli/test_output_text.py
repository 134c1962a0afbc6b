"""Text of others comes out as it is: what looks like colours or pictures in names and messages is text."""

import io
import sys

import pytest
from rich.table import Table

from cli import output
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
