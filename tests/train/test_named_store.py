"""`ltrain run --from-clickhouse URL`, against a server that holds an exporter's tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from tests.collector.store.test_trace_store import EXPORTER
from tests.otlp import open_empty_store
from tests.up import Up, running_up
from typer.testing import CliRunner

from ltrain_collector.errors import NoStore
from ltrain_collector.store import Store
from ltrain_collector.transfer.importing import import_files
from ltrain_train.cli import app
from ltrain_train.named_store import named_store

CAPTURE = Path("tests/fixtures/pydantic-ai__builtin-2.68.0.otlp.json")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with running_up(tmp_path / "served") as running:
        yield running


def test_the_tables_of_a_database_are_read_where_they_are(tmp_path: Path, up: Up) -> None:
    with open_empty_store(tmp_path / "ours") as ours:
        import_files(ours, [CAPTURE], lambda _: None)
        copied = ours.query("SELECT * FROM otel.otel_traces")
        expected = ours.query("SELECT TraceId, SpanId, SpanName FROM otel.spans ORDER BY ALL")
    with Store.open(up.owned) as theirs:
        theirs.command("CREATE DATABASE theirs")
        theirs.command(EXPORTER.format(name="theirs.otel_traces"))
        theirs.insert("theirs.otel_traces", copied)
    url = f"{up.owned.replace('http://', 'clickhouse://')}/theirs"
    for _ in range(2):
        assert named_store(url, None, online=False) == url
    with Store.open(url) as store:
        found = store.query("SELECT TraceId, SpanId, SpanName FROM otel.spans ORDER BY ALL")
    assert found.rows() == expected.rows()


def test_a_database_without_the_tables(up: Up) -> None:
    url = f"{up.owned.replace('http://', 'clickhouse://')}/system"
    with pytest.raises(NoStore, match=r"no table otel_traces in the database 'system'.*: otel\."):
        named_store(url, None, online=False)


def test_a_url_of_ltrain_up_is_its_store(up: Up) -> None:
    assert named_store(up.dsn, None, online=False) == up.dsn  # without a right to change it


def test_a_second_store_and_an_online_run_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="and --store name a store"):
        named_store("http://h", "http://h", online=False)
    with pytest.raises(typer.BadParameter, match="reads the store of its own rollouts"):
        named_store("http://h", None, online=True)


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["absent.toml", "--from-clickhouse"], "absent.toml"),
        (["--from-clickhouse", "absent.toml", "--once"], "absent.toml"),
        (["absent.toml", "--from-clickhouse", "http://127.0.0.1:1"], "absent.toml"),
    ],
)
def test_the_option_with_and_without_a_url(arguments: list[str], refusal: str) -> None:
    done = CliRunner().invoke(app, ["run", *arguments])
    assert done.exit_code == 1
    assert refusal in str(done.exception)
