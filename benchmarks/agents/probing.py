"""Measures how long a gateway takes for others: `probing.py GATEWAY SECRET`.

Each line of its input is a number of seconds, in which it requests `/health` and closes a new
attempt, one after the other. It prints the longest wait of each as JSON, in milliseconds.
"""

import json
import sys
import time
from http.client import HTTPConnection
from itertools import count

from ltrain_collector.access import AttemptKey
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity

PAUSE = 0.01
"""Seconds between two rounds."""


def close_request(secret: str, attempt: int) -> tuple[str, dict[str, str]]:
    """Return path and headers of the close of an attempt."""
    identity = Identity(run="bench", task="t", rollout="probe", attempt=attempt, mode="train")
    key = AttemptKey(identity=identity, policy="policy", expires=Deadline.after(3600)).sign(secret)
    return f"/rollout/probe/attempt/{attempt}/close", {"authorization": f"Bearer {key}"}


def timed(connection: HTTPConnection, method: str, path: str, headers: dict[str, str]) -> float:
    """Send a request; return the milliseconds until its answer."""
    began = time.perf_counter()
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    response.read()
    if response.status != 200:
        raise SystemExit(f"{method} {path}: {response.status}")
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    url, secret = sys.argv[1:]
    connection = HTTPConnection(url.removeprefix("http://"), timeout=120)
    attempts = count(1)
    for line in sys.stdin:
        until, health, close = time.monotonic() + float(line), [0.0], [0.0]
        while time.monotonic() < until:
            path, headers = close_request(secret, next(attempts))
            health.append(timed(connection, "GET", "/health", {}))
            close.append(timed(connection, "POST", path, headers))
            time.sleep(PAUSE)
        print(json.dumps({"health": max(health), "close": max(close)}), flush=True)


if __name__ == "__main__":
    main()
