"""The rollouts of a group: by outcome, their advantages, and the same call of each."""

from ltrain_transforms.reports import GroupReference, Kind, Reference
from ltrain_transforms.show.group import Group, Member, MemberCall


def call(label: str, seq: int, advantage: float | None = None) -> MemberCall:
    return MemberCall(label, "ok", "", advantage, (), f"{label} {seq}", str(seq), seq)


def member(rollout: str, outcome: str, *calls: MemberCall) -> Member:
    return Member(Reference(Kind.ROLLOUT, rollout), "1", outcome, 1.0, (), (), calls)


ASK, RUN = "llm write in sql", "tool run"
GROUP = Group(
    GroupReference("demo", "train", 0, "t1"),
    (
        member("a", "ok", call(ASK, 1, 0.5), call(RUN, 2), call(ASK, 4, -1.0)),
        member("b", "error", call(ASK, 1, 0.0)),
        member("c", "ok", call(RUN, 0), call(ASK, 3), call(ASK, 7)),
    ),
    0,
    "ltrain.toml",
)


def test_the_same_call_is_the_nth_with_its_label() -> None:
    found = {one.rollout.id: same and same.seq for one, same in GROUP.same_call("a", 4)}
    assert found == {"a": 4, "b": None, "c": 7}
    found = {one.rollout.id: same and same.seq for one, same in GROUP.same_call("c", 0)}
    assert found == {"a": 2, "b": None, "c": 0}
    assert GROUP.same_call("a", 3) == [] and GROUP.same_call("z", 1) == []


def test_a_group_of_one_outcome() -> None:
    kept = GROUP.with_outcome("ok")
    assert [one.rollout.id for one in kept.members] == ["a", "c"]
    assert GROUP.with_outcome("timeout").members == ()


def test_advantages_are_shaded_by_the_largest_of_the_rollout() -> None:
    first, second, third = GROUP.members
    assert [shade for shade, _ in first.heat] == ["ap2", "an5"]
    assert second.heat == [("", f"{ASK}: advantage +0.000")]
    assert third.heat == []
