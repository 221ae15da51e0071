"""Two rollouts call by call."""

from ltrain_transforms.show.call_alignment import (
    CONTEXT,
    MAX_CALLS,
    MAX_DIFFERENCES,
    Change,
    TextPart,
    align_calls,
    compare_texts,
)
from ltrain_transforms.show.group import MemberCall


def call(label: str, text: str = "", status: str = "ok") -> MemberCall:
    return MemberCall(label, status, text, None, (), text, text)


def test_calls_are_matched_in_their_order_by_agent_kind_and_name() -> None:
    first = [call("llm write in sql", "a"), call("tool run", "1"), call("llm write in sql", "b")]
    second = [
        call("llm plan in lead"),
        call("llm write in sql", "a"),
        call("llm write in sql", "c"),
    ]
    found = align_calls(first, second)
    assert [one.change for one in found.calls] == ["added", "same", "removed", "changed"]
    assert found.summary == "1 same, 1 changed, 1 removed, 1 added"
    assert align_calls([], []).summary == "no call"
    assert align_calls(first, first).summary == "3 same"


def test_a_status_is_a_change_without_a_difference_of_text() -> None:
    (one,) = align_calls([call("tool run", "x")], [call("tool run", "x", "error: boom")]).calls
    assert (one.change, one.parts) == ("changed", ())


def test_texts_are_compared_by_words_and_equal_text_is_shortened() -> None:
    assert compare_texts("SELECT a FROM t", "SELECT b, c FROM t") == (
        TextPart(Change.SAME, "SELECT "),
        TextPart(Change.REMOVED, "a "),
        TextPart(Change.ADDED, "b, c "),
        TextPart(Change.SAME, "FROM t"),
    )
    words = "word " * 100
    first, _ = compare_texts(words, f"{words}more")
    assert first.text.startswith(words[:CONTEXT])
    assert f"{500 - 2 * CONTEXT} equal characters" in first.text


def test_what_is_compared_is_bounded() -> None:
    first = [call(f"tool {number}", f"a{number}") for number in range(MAX_CALLS + 7)]
    second = [call(f"tool {number}", f"b{number}") for number in range(MAX_CALLS + 2)]
    found = align_calls(first, second)
    assert (len(found.calls), found.left_out) == (MAX_CALLS, 7)
    assert sum(bool(one.parts) for one in found.calls) == MAX_DIFFERENCES
    same = [call("llm write", "x")] * 10_000
    assert align_calls(same, same[:1]).summary == f"1 same, {MAX_CALLS - 1} removed"
