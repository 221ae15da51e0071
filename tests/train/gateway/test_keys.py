"""Keys: their claims, and the error for each wrong key."""

import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ltrain_collector.access import AttemptKey, Kind, sign_admin, sign_bound
from ltrain_instrument.clock import Deadline
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.identity import Identity
from ltrain_train.gateway.keys import BadKey, Keyring, bearer_key
from ltrain_train.store import home_secret

SECRET = "a secret of thirty-two characters!"
CLAIMS = AttemptKey(
    identity=Identity(run="r", task="t", wave=1, sample=2, rollout="abc", attempt=1, mode="val"),
    policy="sql",
    sampling={"temperature": 0.5},
    expires=Deadline.after(1e9),
)


def test_a_key_contains_its_claims() -> None:
    assert Keyring(SECRET).verify_attempt(CLAIMS.sign(SECRET)) == CLAIMS


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (None, "needs a key of kind rollout"),
        ("nonsense", "gateway has not signed this rollout key"),
        (
            CLAIMS.sign("another secret of thirty-two chars"),
            "gateway has not signed this rollout key",
        ),
        (sign_admin(SECRET), "needs a key of kind rollout; the request has one of kind admin"),
        (sign_bound(SECRET, CLAIMS.identity, 86400), "allows no calls of a policy"),
        (sign_bound(SECRET, Identity(run="r"), 86400), "allows no calls of a policy"),
    ],
)
def test_a_wrong_key_is_refused_with_the_reason(key: str | None, sentence: str) -> None:
    with pytest.raises(BadKey, match=sentence):
        Keyring(SECRET).verify_attempt(key)


def test_a_cached_key_expires() -> None:
    claims = AttemptKey(identity=CLAIMS.identity, policy="sql", expires=Deadline.after(0.3))
    keys, key = Keyring(SECRET), claims.sign(SECRET)
    keys.verify_attempt(key)
    time.sleep(0.4)
    with pytest.raises(BadKey, match=r"expired"):
        keys.verify_attempt(key)


def test_a_rollout_key_cannot_publish() -> None:
    with pytest.raises(BadKey, match=r"needs a key of kind admin"):
        Keyring(SECRET).verify(CLAIMS.sign(SECRET), Kind.ADMIN)


@pytest.mark.parametrize(
    ("header", "key"),
    [(None, None), ("Bearer k", "k"), ("bearer  k ", "k"), ("Basic k", None), ("Bearer ", None)],
)
def test_the_key_is_read_from_the_header(header: str | None, key: str | None) -> None:
    assert bearer_key(header) == key


def test_the_secret_is_made_once_and_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LTRAIN_STORE_SECRET", raising=False)
    secret = home_secret(tmp_path)
    assert len(secret) == 64
    assert home_secret(tmp_path) == secret
    assert stat.S_IMODE((tmp_path / "store.secret").stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["store.secret"]


def test_a_short_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_STORE_SECRET", "short")
    with pytest.raises(BadSetting, match=r"has 5 characters; it needs at least 32"):
        home_secret(tmp_path)


def test_the_old_name_of_the_secret_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_GATEWAY_SECRET", SECRET)
    with pytest.raises(BadSetting, match=r"Set LTRAIN_STORE_SECRET in its place"):
        home_secret(tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda stage: {"key": "nonsense"}, "has not signed this rollout key"),
        (lambda stage: {"key": stage.key(policy="other")}, "has no model 'other'"),
        (lambda stage: {"key": stage.key(Identity(rollout="x", attempt=1))}, "key is for attempt"),
        (lambda stage: {"key": stage.key(expires=Deadline.after(-1.0))}, "expired"),
    ],
)
def test_the_gateway_reports_what_is_wrong_with_a_key(
    stage: Any, vllm: Any, change: Callable[[Any], dict[str, Any]], sentence: str
) -> None:
    response = stage.ask("w3", **change(stage))
    assert response.status_code in (401, 404)
    assert sentence in response.json()["error"]["message"]
    assert vllm.requests == []
