"""What `/health` says of spans that could not be written."""

from errno import EIO, ENOSPC
from pathlib import Path

import pytest

from ltrain_instrument import disk
from ltrain_train.gateway import exchange
from ltrain_train.gateway.exchange import Recording


def fail(number: int) -> None:
    raise OSError(number, "why")


def test_a_full_disk_is_a_fault_until_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path))
    recording, full = Recording(), disk.Disk(1 << 30, 0)
    assert not recording.end_span(lambda: fail(ENOSPC))
    with monkeypatch.context() as patch:
        patch.setattr(exchange, "read_disk", lambda _: full)
        assert "why" in recording.fault
    assert recording.fault == ""


def test_another_fault_lasts_until_a_span_is_written() -> None:
    recording = Recording()
    assert not recording.end_span(lambda: fail(EIO))
    assert "why" in recording.fault
    assert recording.end_span(lambda: None)
    assert recording.fault == ""
