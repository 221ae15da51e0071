"""Attempts of a wave: `waving.py GATEWAY SECRET ATTEMPTS CALLS PAUSE`.

Each makes its calls one after the other and waits `PAUSE` seconds after each, as for its sampling
and the agent's own work. Prints as JSON the seconds that the slowest attempt took.
"""

import json
import sys
import threading
import time
from http.client import HTTPConnection

from ltrain_collector.access import AttemptKey
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity

MESSAGE = {"role": "user", "content": "lorem ipsum dolor " * 280}
BODY = json.dumps({"model": "policy", "messages": [MESSAGE], "max_tokens": 128})


def attempt(url: str, secret: str, rollout: str, calls: int, pause: float) -> None:
    """Run one attempt."""
    identity = Identity(run="bench", task="t", rollout=rollout, attempt=1, mode="train")
    key = AttemptKey(identity=identity, policy="policy", expires=Deadline.after(3600)).sign(secret)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    connection = HTTPConnection(url.removeprefix("http://"), timeout=300)
    for _ in range(calls):
        path = f"/rollout/{rollout}/attempt/1/v1/chat/completions"
        connection.request("POST", path, BODY, headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise SystemExit(f"{response.status} {answer[:300]!r}")
        time.sleep(pause)


def main() -> None:
    url, secret, attempts, calls, pause = sys.argv[1:]
    arguments = [(url, secret, f"w{n}", int(calls), float(pause)) for n in range(int(attempts))]
    threads = [threading.Thread(target=attempt, args=each) for each in arguments]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(time.perf_counter() - began))


if __name__ == "__main__":
    main()
