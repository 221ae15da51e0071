"""`ltrain doctor --deep`: one line for each artifact of a home, and a fault for a damaged one."""

from pathlib import Path

import pytest
from tests.cli.test_doctor import answering as answering  # a fixture
from tests.cli.test_doctor import doctor, states
from tests.damage import Damage, cut_in_half, damage_file, flip_a_bit
from tests.train.updates.test_verification import home as home  # a fixture
from tests.up import start_up

from ltrain.doctor_deep import check_store, run_deep_checks
from ltrain_collector.store import Store
from ltrain_instrument.instrumentors import Finding, State
from ltrain_train.policy import Policies


@pytest.fixture(autouse=True)
def environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_STORE", f"chdb://{home / 'store'}")


def faults() -> list[Finding]:
    return [finding for finding in run_deep_checks() if finding.state is State.FAULT]


def test_a_sound_home_has_a_line_for_each_artifact(home: Path) -> None:
    found = list(run_deep_checks())
    names = ["store parts", "journal", "sql@0", "sql@1", "checkpoint", "dataset"]
    assert [finding.name for finding in found] == names
    assert {finding.state for finding in found} == {State.OK}
    assert "parts are right" in found[0].detail


@pytest.mark.sampled(3)
@pytest.mark.parametrize("damage", [flip_a_bit, cut_in_half])
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("sql@1", "policies/sql/v1/model.safetensors"),
        ("checkpoint", "runs/demo/checkpoints/sql/1/optim.pt"),
        ("dataset", "datasets/demo/train-0/calls/00000.parquet"),
    ],
)
def test_a_damaged_file_is_a_fault(home: Path, name: str, file: str, damage: Damage) -> None:
    damage_file(home / file, damage)
    [fault] = faults()
    assert (fault.name, Path(file).name in fault.detail) == (name, True)


@pytest.mark.parametrize("damage", [flip_a_bit, cut_in_half])
def test_a_damaged_ledger_of_a_removed_version_is_a_fault(home: Path, damage: Damage) -> None:
    policies = Policies(home)
    policies.remove("sql", 1)
    policies.sweep("sql")
    assert faults() == []
    damage_file(home / "policies/sql/removed/v1/rollouts.parquet", damage)
    [fault] = faults()
    assert (fault.name, "rollouts.parquet has" in fault.detail) == ("sql@1", True)


@pytest.mark.parametrize("file", ["runs/demo/journal.jsonl", "datasets/demo/train-0/manifest.json"])
def test_a_cut_record_is_a_fault(home: Path, file: str) -> None:
    damage_file(home / file, cut_in_half)
    [fault] = faults()
    assert str(Path(file).parent) in fault.detail


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        ("data.bin", flip_a_bit, "of otel.otel_traces is damaged"),
        ("data.bin", cut_in_half, "damaged part of otel.otel_traces"),
        ("count.txt", cut_in_half, "damaged part of otel.otel_traces"),
    ],
)
def test_a_damaged_part_of_the_store_is_a_fault(
    home: Path, file: str, damage: Damage, words: str
) -> None:
    with Store.open(f"chdb://{home / 'store'}") as store:
        query = "SELECT path FROM system.parts WHERE table = 'otel_traces' AND active"
        folder = Path(store.query(query)["path"][0])
    damage_file(folder / file, damage)
    [fault] = faults()
    assert fault.name == "store parts"
    assert words in fault.detail


def test_without_a_store_nothing_is_damaged(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_STORE", f"chdb://{home / 'none'}")
    [found] = check_store()
    assert found.state is State.NOTE
    assert found.detail.startswith("they were not checked: There is no store in ")


def test_the_parts_of_a_served_store_are_checked(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = start_up(home / "store")
    try:
        monkeypatch.setenv("LTRAIN_STORE", up.dsn)
        [found] = check_store()
    finally:
        assert up.stop() == 0
    assert found.state is State.OK
    assert "parts are right" in found.detail


def test_the_command_ends_with_status_1_when_something_is_damaged(
    tmp_path: Path, home: Path, answering: str
) -> None:
    store = f"chdb://{home / 'store'}"
    status, out = doctor(tmp_path, answering, "--deep", "--json", LTRAIN_STORE=store)
    assert (status, states(out)["dataset"][0]) == (0, "ok")
    damage_file(home / "datasets/demo/train-0/calls/00000.parquet", flip_a_bit)
    status, out = doctor(tmp_path, answering, "--deep", "--json", LTRAIN_STORE=store)
    assert (status, states(out)["dataset"][0]) == (1, "fault")
