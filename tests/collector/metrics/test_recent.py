from ltrain_collector.ingest import Counters, SignalCounters, TableCounters
from ltrain_collector.ingest.commit import RecentRequests
from ltrain_collector.metrics.recent import MAX_SNAPSHOTS, Recent


def test_only_the_last_minutes_are_reported() -> None:
    signal, table = SignalCounters(), TableCounters()
    recent = Recent(Counters({"traces": signal}, {"t": table}))
    assert recent.summary() == {
        "requests": 0,
        "rejected": 0,
        "refused": {},
        "failures": 0,
        "lag": 0.0,
    }
    signal.requests, signal.rejected, table.failures = 3, 2, 1
    signal.refused["malformed"] = 1
    expected = {
        "requests": 3,
        "rejected": 2,
        "refused": {"malformed": 1},
        "failures": 1,
        "lag": 0.0,
    }
    assert recent.summary() == expected
    for _ in range(MAX_SNAPSHOTS - 1):
        recent.take_snapshot()
    assert recent.summary() == expected  # five minutes less one round
    recent.take_snapshot()
    signal.refused["engine"] = 4
    assert recent.summary() == {
        "requests": 0,
        "rejected": 0,
        "refused": {"engine": 4},
        "failures": 0,
        "lag": 0.0,
    }


def test_lag_is_a_quantile() -> None:
    signal = SignalCounters()
    recent = Recent(Counters({"traces": signal}, {}))
    for _ in range(19):
        signal.lag.add(0.2)
    signal.lag.add(100)
    assert recent.summary()["lag"] == 0.25
    signal.lag.add(100)
    assert recent.summary()["lag"] == 30.0


def test_a_request_that_was_stored_before_is_known_for_a_while() -> None:
    repeated = RecentRequests(2)
    assert [repeated.add(digest) for digest in (1, 2, 1, 3, 2, 1)] == [
        *(False, False, True),
        *(False, False, False),
    ]
