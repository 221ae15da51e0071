"""Attempt numbers survive a kill of the runner."""

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from ltrain_instrument.identity import Identity
from ltrain_train.rollout.attempt_log import AttemptLog
from ltrain_train.rollout.runner_spans import ClosingSpan
from ltrain_train.workers import Outcome, RolloutResult

CLOSING = ClosingSpan(
    span=7, parent=f"00-{1:032x}-{2:016x}-01", started=3, attributes={"ltrain.spans": 4}
)


def result(rollout: str, attempt: int, outcome: Outcome = Outcome.OK) -> RolloutResult:
    identity = Identity(run="r", task="t", wave=3, rollout=rollout, attempt=attempt)
    return RolloutResult(
        identity=identity, outcome=outcome, reason="why", rewards={"reward": 0.5}, seconds=1.0,
        llm_calls=1, spans=4,
    )  # fmt: skip


def end(log: AttemptLog, result: RolloutResult) -> None:
    with log.end(result, CLOSING):
        pass


def test_an_attempt_number_is_never_reused(tmp_path: Path) -> None:
    first = AttemptLog(tmp_path)
    assert [first.begin("x"), first.begin("y"), first.begin("x")] == [1, 1, 2]
    assert AttemptLog(tmp_path).begin("x") == 3


def test_only_a_counted_outcome_finishes_a_rollout(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path)
    for outcome in Outcome:
        end(log, result(outcome.value, log.begin(outcome.value), outcome))
    assert log.finished == AttemptLog(tmp_path).finished
    assert set(log.finished) == {"ok", "error", "timeout"}
    for again in (log, AttemptLog(tmp_path)):
        [infra] = again.ended(["infra", "never"])
        assert (infra.outcome, infra.reason, infra.task, infra.wave) == ("infra", "why", "t", 3)
        assert (infra.evaluations, infra.spans) == ({"reward": 0.5}, 4)


def test_a_reason_may_have_half_a_surrogate_pair(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path)
    end(log, replace(result("x", log.begin("x")), reason="\ud800 \u2028 \n why"))
    for each in (log, AttemptLog(tmp_path)):
        [ended] = each.ended(["x"])
        assert ended.reason == "? \u2028 \n why"


def test_an_attempt_that_was_cut_off_takes_the_place_of_one_that_ended(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path)
    for rollout in ("x", "y"):
        end(log, result(rollout, log.begin(rollout)))
    log.begin("x")
    for each in (log, AttemptLog(tmp_path)):
        assert [*each.finished] == ["y"]
        assert [end.rollout for end in each.ended(["x", "y"])] == ["y"]


def test_an_end_is_logged_by_a_process_that_cannot_open_files(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        end(log, result("x", log.begin("x")))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [*AttemptLog(tmp_path).finished] == ["x"]


def test_a_closing_span_that_a_kill_may_have_prevented_is_written_by_the_next_process(
    tmp_path: Path,
) -> None:
    log = AttemptLog(tmp_path)
    end(log, result("x", log.begin("x")))
    with pytest.raises(OSError, match="full"), log.end(result("y", log.begin("y")), CLOSING):
        raise OSError("full")
    again = AttemptLog(tmp_path)
    assert [*again.finished] == ["x", "y"]
    written = list[ClosingSpan]()
    again.close_ended(written.append)
    assert written == [CLOSING]
    AttemptLog(tmp_path).close_ended(written.append)
    assert written == [CLOSING], "the span is on disk"


def test_a_truncated_last_line_is_ignored(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path)
    log.begin("x")
    with (tmp_path / "attempts.jsonl").open("a") as file:
        file.write('{"rollout": "x", "att')
    again = AttemptLog(tmp_path)
    assert (again.begin("x"), again.begin("y")) == (2, 1)
    assert AttemptLog(tmp_path).begin("y") == 2


def test_any_other_byte_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log, file = AttemptLog(tmp_path), tmp_path / "attempts.jsonl"
    end(log, result("x", log.begin("x")))
    log.begin("y")
    whole = file.read_bytes()
    ended = log.ended(["x"])
    for place in range(len(whole) - 1):  # the last line break is what a kill may leave out
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x04]) + whole[place + 1 :])
        again = AttemptLog(tmp_path)
        assert "is damaged and ignored" in caplog.text, place
        assert again.ended(["x"]) in ([], ended), place
        assert again.begin("x") > 1 and again.begin("y") > 1, place
        caplog.clear()


def test_a_damaged_line_is_named_and_hides_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, file = AttemptLog(tmp_path), tmp_path / "attempts.jsonl"
    for rollout in ("x", "y"):
        log.begin(rollout)
    first, second = file.read_bytes().splitlines()
    for damaged in (b"\xff" + first, first.replace(b"rollout", b"r\xffllout"), b"[1, {}"):
        file.write_bytes(damaged + b"\n" + second + b"\n")
        again = AttemptLog(tmp_path)
        assert again.has("x", 1), "the damaged line may have been of this rollout"
        assert again.begin("y") == 3, "the damaged line may have been its second attempt"
        assert f"line 1 of {file} is damaged and ignored" in caplog.text
        caplog.clear()
