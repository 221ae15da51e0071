"""Sends what `talking.py` wrote, from several clients: `exporting.py URL FILE CLIENTS PAUSE`.

Each client sends its next request PAUSE seconds after it began with the last, or as soon as that is
answered. Prints the seconds of each request from its first try to its answer, as JSON.
"""

import json
import random
import struct
import sys
import threading
import time
from collections import deque
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

PROTOBUF = {"Content-Type": "application/x-protobuf"}
AGAIN = (429, 503)


def bodies(file: Path) -> deque[bytes]:
    found: deque[bytes] = deque()
    with file.open("rb") as opened:
        while length := opened.read(4):
            found.append(opened.read(struct.unpack("<I", length)[0]))
    return found


def export(address: str, waiting: deque[bytes], pause: float, took: list[float]) -> None:
    connection = HTTPConnection(address)
    began = time.perf_counter() - pause * random.random()
    while True:
        time.sleep(max(0, began + pause - time.perf_counter()))
        try:
            body = waiting.popleft()
        except IndexError:
            return
        began = time.perf_counter()
        while True:
            connection.request("POST", "/v1/traces", body, PROTOBUF)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status not in AGAIN:
                break
            time.sleep(float(answer.headers.get("Retry-After", "1")))
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {said!r}")
        took.append(time.perf_counter() - began)


def main() -> None:
    url, file, clients, pause = sys.argv[1:]
    waiting, took = bodies(Path(file)), list[float]()
    address = urlsplit(url).netloc
    threads = [
        threading.Thread(target=export, args=(address, waiting, float(pause), took))
        for _ in range(int(clients))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(took))


if __name__ == "__main__":
    main()
