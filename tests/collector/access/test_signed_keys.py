"""How long a signed key is valid."""

import time

import pytest

from ltrain_collector.access import ExpiredKey, Kind, sign_service, verify_key
from ltrain_instrument import clock

SECRET = "a secret of thirty-two characters!"
DAY = 86_400.0


@pytest.mark.parametrize("step", [DAY, -DAY, -3_600.0])
def test_a_step_of_the_clock_ends_no_key_and_prolongs_none(
    monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    key, short = sign_service(SECRET, 60.0), sign_service(SECRET, 0.05)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + step)
    assert verify_key(SECRET, key).kind is Kind.SERVICE
    assert verify_key(SECRET, sign_service(SECRET, 60.0)).kind is Kind.SERVICE
    time.sleep(0.1)
    with pytest.raises(ExpiredKey):
        verify_key(SECRET, short)


def test_the_clock_decides_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    key, short = sign_service(SECRET, 60.0), sign_service(SECRET, 0.05)
    monkeypatch.setattr(clock, "_boot", lambda: "another")
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert verify_key(SECRET, key).kind is Kind.SERVICE
    time.sleep(0.1)
    with pytest.raises(ExpiredKey):
        verify_key(SECRET, short)


def test_without_an_id_of_the_boot_the_clock_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_boot", lambda: "")
    key = sign_service(SECRET, 60.0)
    monkeypatch.setattr(time, "monotonic", lambda: 1e12)
    assert verify_key(SECRET, key).kind is Kind.SERVICE
