"""`/v1` needs a key if the store has keys, and never records for an attempt."""

from tests.train.gateway.stage import IDENTITY, Stage

from ltrain_collector.access import (
    AttemptKey,
    Keys,
    Kind,
    Role,
    sign_admin,
    sign_kind,
    sign_service,
    store_secret,
)
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity


def status(stage: Stage, key: str | None) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answers = [
        stage.ask("w3", identity=None, headers=headers),
        stage.http.get("/v1/models", headers=headers),
    ]
    (code,) = {answer.status_code for answer in answers}
    if code != 200:
        for answer in answers:
            assert "/v1" in answer.json()["error"]["message"]
    return code


def test_without_keys_in_the_store_it_is_open(stage: Stage) -> None:
    assert status(stage, None) == 200
    assert status(stage, "EMPTY") == 200  # what clients send that must send something


def test_with_keys_in_the_store_it_takes_one_of_them(stage: Stage) -> None:
    keys = Keys(stage.home / "store")
    made = [keys.make_key(role)[0] for role in Role]
    secret = store_secret(stage.home / "store")
    calls = AttemptKey(identity=IDENTITY, policy="policy", expires=Deadline.after(60))
    bound = [calls.sign(secret), keys.sign_bound(IDENTITY, 60)]
    bound += [stage.key(), keys.sign_bound(Identity(run="demo"), 60)]
    assert [status(stage, key) for key in made] == [200] * len(made)
    assert status(stage, sign_service(secret, 60)) == 200
    of_gateway = [sign_admin(secret), sign_kind(secret, Kind.WORKER, 60)]
    for wrong in (None, "lt_guessed", *bound, *of_gateway):
        assert status(stage, wrong) == 401
    keys.revoke_key(keys.made_keys()[0].id)
    assert status(stage, made[0]) == 401


def test_an_attempt_calls_with_its_own_key_all_the_same(stage: Stage) -> None:
    Keys(stage.home / "store").make_key(Role.QUERY)
    assert stage.ask("w3").status_code == 200


def test_an_attempts_trace_does_not_make_a_call_the_attempts(stage: Stage) -> None:
    trace = f"00-{'c' * 32}-{'d' * 16}-01"
    baggage = "ltrain.rollout.id=abc,ltrain.attempt.id=1,ltrain.mode=train,ltrain.run.id=demo"
    stage.ask("w3", headers={"traceparent": trace})
    stage.ask("w4", identity=None, headers={"traceparent": trace, "baggage": baggage})
    own, other = stage.spans()
    assert own["attributes"]["ltrain.rollout.id"] == "abc"
    assert own["trace"] == other["trace"]
    identity = {name: value for name, value in other["attributes"].items() if ".id" in name}
    assert [name for name in identity if name.startswith("ltrain.")] == []
    assert other["attributes"]["ltrain.mode"] == "prod"
