"""Only its owner can read what ltrain writes, whichever process creates a folder first."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fake_vllm import FakeVllm
from tests.fork_server import ltrain_command
from tests.security.servers import collector, gateway

from ltrain.doctor import home
from ltrain_collector.admin import backup
from ltrain_collector.store import Store
from ltrain_instrument.delivery.segment import Segment
from ltrain_instrument.files import is_private, make_private, temporary_directory
from ltrain_train.policy import Policies


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Set a umask under which files are readable by all unless their writer restricts them."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_ones(folder: Path) -> list[str]:
    """Return what other users could read: everything below folders that they can enter."""
    if stat.S_IMODE(folder.stat().st_mode) == 0o700:
        return []
    return [str(folder), *(str(each) for each in folder.rglob("*"))]


def test_a_collector_makes_a_private_home_and_store(tmp_path: Path) -> None:
    with collector(tmp_path / "home", new=True):
        assert open_ones(tmp_path / "home") == open_ones(tmp_path / "home" / "store") == []
    elsewhere = ("--dir", str(tmp_path / "elsewhere" / "store"))
    with collector(tmp_path / "other", *elsewhere, new=True):
        assert open_ones(tmp_path / "elsewhere") == []


def test_a_key_that_is_made_first_makes_a_private_home(tmp_path: Path) -> None:
    command = [ltrain_command(), "key", "make", "query"]
    environ = {**os.environ, "LTRAIN_HOME": str(tmp_path / "home")}
    subprocess.run(command, env=environ, check=True, capture_output=True, timeout=120)
    assert open_ones(tmp_path / "home") == []


def test_an_agents_spool_makes_a_private_home(tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(
        "from opentelemetry import trace\n"
        "with trace.get_tracer('mine').start_as_current_span('think'): pass\n"
    )
    environ = {
        **os.environ,
        "LTRAIN_HOME": str(tmp_path / "home"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    }
    command = [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable]
    subprocess.run([*command, str(agent)], env=environ, check=True, timeout=120)
    assert list((tmp_path / "home" / "spool").iterdir())
    assert open_ones(tmp_path / "home") == open_ones(tmp_path / "home" / "spool") == []


def test_a_gateway_makes_a_private_home(tmp_path: Path) -> None:
    with FakeVllm() as vllm, gateway(tmp_path / "home", vllm.url):
        assert open_ones(tmp_path / "home") == open_ones(tmp_path / "home" / "policies") == []


def test_spool_policies_and_datasets_are_private_by_themselves(tmp_path: Path) -> None:
    Segment.create(tmp_path / "spool").release()
    assert open_ones(tmp_path / "spool") == []
    Policies(tmp_path / "home").draft("policy")
    assert open_ones(tmp_path / "home") == []
    with temporary_directory(tmp_path / "datasets" / "d1") as draft:
        assert open_ones(draft) == open_ones(draft.parent) == []


def test_a_folder_that_exists_keeps_its_mode_and_doctor_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "home"
    folder.mkdir(0o755)
    assert make_private(folder / "a" / "b").is_dir()
    assert not is_private(folder) and is_private(folder / "a") and is_private(folder / "a" / "b")
    monkeypatch.setenv("LTRAIN_HOME", str(folder))
    [finding] = home()
    assert finding.fix == f"Run: chmod 700 {folder}"
    folder.chmod(0o700)
    assert list(home()) == []


def test_a_file_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    for path in (tmp_path / "home", tmp_path / "home" / "spool"):
        with pytest.raises(OSError):
            make_private(path)


@pytest.mark.parametrize("name", ["new/copy", "new/copy.tar"])
def test_only_its_owner_can_read_a_backup(tmp_path: Path, name: str) -> None:
    with Store.open(f"chdb://{tmp_path}/home/store") as store:
        store.migrate()
        backup(store, tmp_path / name)
    made = [tmp_path / "home" / "store" / "backups", tmp_path / "new", tmp_path / name]
    assert [each.stat().st_mode & 0o077 for each in made] == [0] * len(made)
