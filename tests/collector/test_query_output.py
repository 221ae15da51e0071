import csv
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from tests.fork_server import ltrain_command
from typer.testing import CliRunner, Result

from ltrain.cli import app
from ltrain_collector.errors import BadDsn, NoStore, QueryFailed
from ltrain_collector.query_output import print_table

TWO = "SELECT number AS n, concat('a,', toString(number)) AS s, map('k', 1.5) AS m FROM numbers(2)"


def sql(*argv: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, ["sql", *argv], input=text)


def test_a_table_for_people(up: Any) -> None:
    done = sql(TWO, "--store", up.dsn)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert [cell.strip() for cell in lines[1].strip("┃").split("┃")] == ["n", "s", "m"]
    assert [cell.strip() for cell in lines[3].strip("│").split("│")] == ["0", "a,0", "{'k': 1.5}"]


WIDE = pl.DataFrame(
    {
        "name": ["first", "[bold]second"],
        "prompt": ["two\nlines " + "word " * 20, "x" * 1001],
        "empty": [None, "ü"],
    }
)


def printed(frame: pl.DataFrame, terminal: bool, width: int = 80) -> list[str]:
    text = io.StringIO()
    console = Console(
        file=text, markup=False, force_terminal=terminal, width=width, color_system=None
    )
    print_table(iter([frame]), console)
    return text.getvalue().splitlines()


def test_a_row_too_wide_for_the_terminal_has_a_line_for_each_value() -> None:
    first, *values = printed(WIDE, terminal=True)
    assert first.startswith("row 1 ──") and len(first) == 80
    assert values[:3] == ["name: first", "prompt: two\\nlines " + "word " * 20, "empty: "]
    assert values[3].startswith("row 2 ──")
    assert values[4:7] == ["name: [bold]second", f"prompt: {'x' * 1000}…", "empty: ü"]
    assert values[7].startswith("1 long cell cut at 1000 characters; other formats")


def test_a_row_that_fits_the_terminal_is_in_a_table() -> None:
    assert printed(WIDE.select("name", "empty"), terminal=True)[0].startswith("┏━━")
    fits = len(printed(WIDE, terminal=False)[0])
    assert printed(WIDE, terminal=True, width=fits)[0].startswith("┏━━")
    assert printed(WIDE, terminal=True, width=fits - 1)[0].startswith("row 1 ")


def test_a_file_has_a_table_as_wide_as_its_values() -> None:
    lines = printed(WIDE, terminal=False)
    assert lines[0].startswith("┏━━")
    assert any(f" {'x' * 1000}… " in line for line in lines)
    many = pl.DataFrame({f"column_{number}": [number] for number in range(40)})
    assert "column_39" in printed(many, terminal=False)[1]


def test_formats_for_programs(up: Any) -> None:
    def exported(form: str) -> bytes:
        return sql(TWO, "--store", up.dsn, "--format", form).stdout_bytes

    assert json.loads(exported("jsonl").splitlines()[1]) == {"n": 1, "s": "a,1", "m": {"k": 1.5}}
    assert json.loads(exported("json")) == [
        {"n": 0, "s": "a,0", "m": {"k": 1.5}},
        {"n": 1, "s": "a,1", "m": {"k": 1.5}},
    ]
    rows = list(csv.reader(io.StringIO(exported("csv").decode())))
    assert rows[:2] == [["n", "s", "m"], ["0", "a,0", "{'k':1.5}"]]
    assert pl.read_parquet(io.BytesIO(exported("parquet")))["n"].to_list() == [0, 1]
    assert exported("TSV").splitlines()[0] == b"0\ta,0\t{'k':1.5}"


def test_json_is_a_flag_too(up: Any) -> None:
    done = sql("SELECT 1 AS a", "--store", up.dsn, "--json")
    assert json.loads(done.stdout) == [{"a": 1}]


def test_a_file_and_standard_input(up: Any, tmp_path: Path) -> None:
    target = tmp_path / "two.parquet"
    argv = ("--store", up.dsn, "--format", "parquet", "--out", str(target))
    assert sql("-", *argv, text=TWO).exit_code == 0
    assert pl.read_parquet(target).height == 2
    assert sql(TWO, "--store", up.dsn, "--out", str(target)).exit_code == 0
    assert "┃ n" in target.read_text()


def test_a_folder_is_read_in_place(folder: Any) -> None:
    done = sql("SELECT count() AS n FROM otel.spans", "--store", folder.name, "--json")
    assert json.loads(done.stdout) == [{"n": 0}]


def test_an_empty_store_has_no_rows(folder: Any) -> None:
    done = sql("SELECT * FROM otel.rollouts", "--store", folder.name)
    assert (done.exit_code, done.stdout) == (0, "No rows.\n")


def test_a_long_table_reports_the_rows_it_omits(up: Any) -> None:
    done = sql("SELECT number FROM numbers(1500)", "--store", up.dsn)
    assert "1000 of 1500 rows" in done.stdout


@pytest.mark.parametrize(
    ("query", "dsn", "error", "says"),
    [
        ("SELECT nocol FROM otel.spans", None, QueryFailed, "Code: 47"),
        ("DROP TABLE otel.otel_traces", None, QueryFailed, "this store is read-only"),
        ("SELECT 1", "htp://127.0.0.1", BadDsn, "did you mean http://"),
        ("SELECT 1", "chdb:///nowhere/at/all", NoStore, "There is no store in"),
    ],
)
def test_a_mistake_is_one_sentence(
    up: Any, query: str, dsn: str | None, error: type[Exception], says: str
) -> None:
    done = sql(query, "--store", dsn or up.dsn)
    assert done.exit_code == 1
    assert isinstance(done.exception, error)
    assert says in str(done.exception)


def test_the_command_ends_with_status_1_and_no_traceback(up: Any) -> None:
    argv = [ltrain_command(), "sql", "SELEC 1", "--store", up.dsn]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("ltrain: Code: 62. DB::Exception: Syntax error")
    assert "Traceback" not in done.stderr
