"""Clients that sample: `sampling.py URL|SOCKET KEY CLIENTS CALLS TOKENS VOCABULARY`.

Each sends its next request when it has the last response: a random prompt of 128 token ids, for
which it gets log-probabilities and token ids, as the gateway asks for them. Prints as JSON the
sampled tokens and the seconds of all calls together.
"""

import asyncio
import json
import random
import sys
import time

import aiohttp

PROMPT = 128
"""Token ids of a prompt."""
TIMEOUT = 300


async def sample(
    session: aiohttp.ClientSession, url: str, calls: int, tokens: int, vocabulary: int
) -> int:
    """Make calls one after the other, and return the tokens that were sampled."""
    sampled = 0
    for _ in range(calls):
        prompt = [random.randrange(3, vocabulary) for _ in range(PROMPT)]
        fields = {"model": "policy", "max_tokens": tokens, "temperature": 1.0}
        report = {"logprobs": 1, "return_token_ids": True}
        async with session.post(url, json={**fields, **report, "prompt": prompt}) as response:
            if response.status != 200:
                raise SystemExit(f"{url}: {response.status} {await response.text()}")
            answer = await response.json()
        sampled += answer["usage"]["completion_tokens"]
    return sampled


async def main() -> None:
    address, key, *numbers = sys.argv[1:]
    clients, calls, tokens, vocabulary = map(int, numbers)
    is_url = address.startswith("http")
    url = f"{address if is_url else 'http://vllm/v1'}/completions"
    connector = aiohttp.TCPConnector(limit=0) if is_url else aiohttp.UnixConnector(address, limit=0)
    headers = {"authorization": f"Bearer {key}"}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout
    ) as session:
        began = time.perf_counter()
        each = [sample(session, url, calls, tokens, vocabulary) for _ in range(clients)]
        sampled = sum(await asyncio.gather(*each))
        print(json.dumps({"tokens": sampled, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    asyncio.run(main())
