"""Each offered attempt gets exactly one result, whatever workers and runners do."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ltrain_train.leases import (
    LEASE_SECONDS,
    LeasedAttempt,
    LeaseQueue,
    LeaseResult,
    ResultsRequest,
    Take,
)
from ltrain_train.workers import Outcome


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def attempt(name: str) -> LeasedAttempt:
    return LeasedAttempt(
        id=name,
        identity={},
        task={},
        path="/v1",
        key="k",
        model="policy",
        traceparent="",
        started=0,
        timeout=60,
    )


def take(
    queue: LeaseQueue,
    worker: str = "w",
    free: int = 4,
    slots: int = 4,
    held: Sequence[str] | None = None,
) -> list[str]:
    """Take attempts as a worker that got all earlier answers, unless `held` is what it has."""
    leased = [name for name, lease in queue._leases.items() if lease.worker == worker]
    known = leased if held is None else list(held)
    request = Take(worker=worker, version="0", slots=slots, free=free, held=known)
    return [each.id for each in queue.take(request)]


def ok(name: str) -> LeaseResult:
    return LeaseResult(id=name, outcome=Outcome.OK, output="1")


def outcomes(queue: LeaseQueue, received: Sequence[str] = ()) -> dict[str, str]:
    answer = queue.results(ResultsRequest(runner="r", received=list(received)))
    return {each.id: each.outcome.value for each in answer.results}


def queue_of(*names: str, clock: Clock | None = None) -> LeaseQueue:
    queue = LeaseQueue(clock or Clock())
    queue.offer("r", map(attempt, names))
    return queue


def test_attempts_are_taken_in_order_and_once() -> None:
    queue = queue_of("a", "b", "c")
    queue.offer("r", [attempt("a")])  # the request was repeated
    assert (take(queue, free=2), take(queue, "other"), take(queue)) == (["a", "b"], ["c"], [])


def test_an_answer_that_was_lost_is_sent_again() -> None:
    queue = queue_of("a", "b", "c")
    assert take(queue, free=2) == ["a", "b"]
    assert take(queue, free=2, held=["b"]) == ["a", "c"]
    assert take(queue, "other", held=[]) == []


def test_a_repeated_offer_of_an_ended_attempt_changes_nothing() -> None:
    queue = queue_of("a")
    take(queue)
    queue.finish("w", [ok("a")])
    assert outcomes(queue, received=["a"]) == {}
    queue.offer("r", [attempt("a")])  # the answer to the first offer was lost
    assert take(queue) == []


def test_a_result_stays_until_it_is_received() -> None:
    queue = queue_of("a")
    take(queue)
    assert queue.finish("w", [ok("a")]) == []
    assert outcomes(queue) == outcomes(queue) == {"a": "ok"}
    assert outcomes(queue, received=["a"]) == {}


def test_a_lease_that_is_not_renewed_ends_and_its_result_is_refused() -> None:
    clock = Clock()
    queue = queue_of("kept", "lost", clock=clock)
    take(queue)
    clock.now = LEASE_SECONDS / 2
    assert queue.renew("w", ["kept"]).lost == []
    clock.now = LEASE_SECONDS
    assert queue.expire()
    assert outcomes(queue) == {"lost": "infra"}
    assert queue.finish("w", [ok("kept"), ok("lost")]) == ["lost"]
    assert queue.renew("w", ["lost"]).lost == ["lost"]


def test_a_worker_that_leaves_returns_its_leases() -> None:
    queue = queue_of("a", "b")
    take(queue, free=1)
    assert queue.room("r") == 4
    queue.remove_worker("w")
    assert (outcomes(queue), queue.room("r")) == ({"a": "infra"}, 0)
    assert take(queue, "other") == ["b"]


def test_an_overdue_attempt_is_ended_by_its_worker_or_at_once() -> None:
    queue = queue_of("running", "waiting")
    take(queue, free=1)
    queue.time_out("another runner", ["running", "waiting"])
    assert queue.renew("w", ["running"]).overdue == []
    queue.time_out("r", ["running", "waiting"])
    assert queue.renew("w", ["running"]).overdue == ["running"]
    assert outcomes(queue) == {"waiting": "infra"}


def test_a_queue_that_was_started_again_knows_nothing() -> None:
    queue = LeaseQueue(Clock())
    assert queue.results(ResultsRequest(runner="r", in_flight=["a"])).unknown == ["a"]
    assert queue.finish("w", [ok("a")]) == ["a"]


def test_a_runner_that_is_gone_leaves_nothing() -> None:
    clock = Clock()
    queue = queue_of("running", "waiting", clock=clock)
    take(queue, free=1)
    clock.now = 1000.0
    queue.renew("w", ["running"])
    queue.expire()
    assert queue.renew("w", ["running"]).lost == ["running"]
    assert take(queue) == []


def test_runners_share_the_room() -> None:
    queue = queue_of("a", "b", "c")
    take(queue, free=1)
    assert (queue.room("r"), queue.room("other")) == (4, 1)


STEPS = st.one_of(
    st.tuples(st.just("offer"), st.integers(0, 9)),
    st.tuples(st.just("take"), st.sampled_from("vw")),
    st.tuples(st.just("finish"), st.sampled_from("vw"), st.integers(0, 9)),
    st.tuples(st.just("renew"), st.sampled_from("vw")),
    st.tuples(st.just("leave"), st.sampled_from("vw")),
    st.tuples(st.just("overdue"), st.integers(0, 9)),
    st.tuples(st.just("pass"), st.integers(0, 40)),
    st.tuples(st.just("receive")),
)


@given(st.lists(STEPS, max_size=80))
def test_every_attempt_gets_one_result(steps: list[tuple[object, ...]]) -> None:
    clock, offered = Clock(), set[str]()
    queue, results, accepted = LeaseQueue(clock), Counter[str](), Counter[str]()
    held: dict[str, set[str]] = {"v": set(), "w": set()}

    def receive() -> None:
        answer = queue.results(ResultsRequest(runner="r"))
        names = [each.id for each in answer.results]
        results.update(names)
        queue.results(ResultsRequest(runner="r", received=names))

    for kind, *values in steps:
        match kind, values:
            case "offer", [int(number)] if f"a{number}" not in offered:
                offered.add(f"a{number}")
                queue.offer("r", [attempt(f"a{number}")])
            case "take", [str(worker)]:
                held[worker] |= set(take(queue, worker, free=2))
            case "finish", [str(worker), int(number)]:
                accepted.update({f"a{number}"} - set(queue.finish(worker, [ok(f"a{number}")])))
                held[worker].discard(f"a{number}")
            case "renew", [str(worker)]:
                queue.renew(worker, sorted(held[worker]))
            case "leave", [str(worker)]:
                queue.remove_worker(worker)
            case "overdue", [int(number)]:
                queue.time_out("r", [f"a{number}"])
            case "pass", [int(seconds)]:
                receive()  # the runner is alive
                clock.now += seconds
                queue.expire()
            case "receive", []:
                receive()
    receive()
    while names := take(queue, "last", free=9):
        queue.finish("last", map(ok, names))
    for worker in ("v", "w"):
        queue.remove_worker(worker)
    receive()
    assert results == Counter(offered)
    assert max(accepted.values(), default=0) <= 1
