"""Error codes and retries of the collector."""

import ast
from collections import defaultdict
from pathlib import Path

import polars as pl
import pytest

from ltrain_collector.errors import HttpError, QueryFailed
from ltrain_collector.store.migration import CONCURRENT_CHANGE_CODES, MAX_ATTEMPTS, _run_statement

PACKAGE = Path(__file__).parents[2] / "collector" / "ltrain_collector"


class Busy:
    """A store whose first commands fail with an error code."""

    name = "busy"

    def __init__(self, failures: int, code: int) -> None:
        self.failures, self.code = failures, code
        self.commands = 0

    def command(self, sql: str) -> None:
        self.commands += 1
        if self.commands <= self.failures:
            raise QueryFailed(f"Code: {self.code}. {sql}", self.code)

    def query(self, sql: str, params: object = None) -> pl.DataFrame:
        raise NotImplementedError(sql)


def test_a_constant_is_declared_once() -> None:
    modules = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            match node:
                case ast.Assign([ast.Name(name)], ast.Constant(int(value))):
                    modules[name, value].append(str(path.relative_to(PACKAGE)))
    assert {key: paths for key, paths in modules.items() if len(paths) > 1} == {}


def test_a_class_name_stands_for_one_reason() -> None:
    reasons = [
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Reason")
    ]
    assert sorted(reasons) == ["NoSlotReason", "RefusalReason"]


@pytest.mark.parametrize(("status", "code"), [(401, 16), (403, 7), (503, 14), (418, 2)])
def test_an_http_error_has_a_grpc_code(status: int, code: int) -> None:
    assert HttpError(status, "no").code == code


def test_a_migration_waits_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", waits.append)
    store = Busy(3, CONCURRENT_CHANGE_CODES[0])
    _run_statement(store, "ALTER TABLE t")
    assert (store.commands, waits) == (4, [0.05, 0.1, 0.2])


@pytest.mark.parametrize(
    ("code", "attempts"), [(CONCURRENT_CHANGE_CODES[0], MAX_ATTEMPTS), (60, 1)]
)
def test_a_migration_reports_the_last_error(
    monkeypatch: pytest.MonkeyPatch, code: int, attempts: int
) -> None:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    store = Busy(99, code)
    with pytest.raises(QueryFailed, match=f"Code: {code}"):
        _run_statement(store, "ALTER TABLE t")
    assert store.commands == attempts
