"""Send the requests of `talking.py` from several clients.

`exporting.py URL FILE CLIENTS PAUSE [KEY]`: with a key, it is that of every request.

Each client sends its next request PAUSE seconds after the start of the previous one, or when that
is answered. Prints the seconds from first attempt to answer of each request, as JSON.
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
RETRIED = (429, 503)


def read_requests(file: Path) -> deque[bytes]:
    bodies: deque[bytes] = deque()
    with file.open("rb") as opened:
        while length := opened.read(4):
            bodies.append(opened.read(struct.unpack("<I", length)[0]))
    return bodies


def export(
    address: str,
    queue: deque[bytes],
    pause: float,
    durations: list[float],
    headers: dict[str, str],
) -> None:
    connection = HTTPConnection(address)
    start = time.perf_counter() - pause * random.random()
    while True:
        time.sleep(max(0, start + pause - time.perf_counter()))
        try:
            body = queue.popleft()
        except IndexError:
            return
        start = time.perf_counter()
        while True:
            connection.request("POST", "/v1/traces", body, headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status not in RETRIED:
                break
            time.sleep(float(answer.headers.get("Retry-After", "1")))
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {content!r}")
        durations.append(time.perf_counter() - start)


def main() -> None:
    url, file, clients, pause, *key = sys.argv[1:]
    headers = PROTOBUF | ({"Authorization": f"Bearer {key[0]}"} if key else {})
    queue, durations = read_requests(Path(file)), list[float]()
    address = urlsplit(url).netloc
    threads = [
        threading.Thread(target=export, args=(address, queue, float(pause), durations, headers))
        for _ in range(int(clients))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(durations))


if __name__ == "__main__":
    main()
