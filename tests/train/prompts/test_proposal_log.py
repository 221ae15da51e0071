"""The log of a critic's answers, also after a kill."""

from pathlib import Path

from ltrain_train.prompts.proposal_log import ProposalLog


def test_a_key_has_one_record_also_in_another_process(tmp_path: Path) -> None:
    log = ProposalLog(tmp_path)
    assert log["a"] is None
    log.add("a", answer="Grüezi\nline")
    log.add("a", answer="other")
    log.add("ab", dropped="no_prompt")
    again = ProposalLog(tmp_path)
    assert again["a"] == {"key": "a", "answer": "Grüezi\nline"}
    assert [record["key"] for record in again.starting("a")] == ["a", "ab"]
    assert len(log.path.read_text().splitlines()) == 2


def test_what_a_kill_left_of_a_line_does_not_count(tmp_path: Path) -> None:
    ProposalLog(tmp_path).add("a", answer="1")
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(path.read_bytes() + b'{"key": "b", "ans')
    log = ProposalLog(tmp_path)
    assert log["b"] is None
    log.add("c", answer="3")
    assert [ProposalLog(tmp_path)[key] is not None for key in "abc"] == [True, False, True]
