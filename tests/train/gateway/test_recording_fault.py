"""What `/health` says of spans that could not be written."""

from errno import EIO, ENOSPC, EROFS
from pathlib import Path

import pytest

from ltrain_instrument import disk
from ltrain_train.gateway import exchange
from ltrain_train.gateway.exchange import Recording


def fail(number: int) -> None:
    raise OSError(number, "why")


@pytest.mark.parametrize(
    ("number", "refusing"),
    [
        (ENOSPC, disk.Disk(1 << 30, 0)),
        (EROFS, disk.Disk(1 << 30, 1 << 29, read_only=True)),
    ],
)
def test_a_full_or_read_only_disk_is_a_fault_until_it_can_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, refusing: disk.Disk
) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path))
    recording = Recording()
    assert not recording.end_span(lambda: fail(number))
    with monkeypatch.context() as patch:
        patch.setattr(exchange, "read_disk", lambda _: refusing)
        assert "why" in recording.fault
    assert recording.fault == ""


def test_another_fault_lasts_until_a_span_is_written() -> None:
    recording = Recording()
    assert not recording.end_span(lambda: fail(EIO))
    assert "why" in recording.fault
    assert recording.end_span(lambda: None)
    assert recording.fault == ""
