"""A command that asks its model once and prints the answer."""

import json
import os
import urllib.request

task = json.loads(os.environ["LTRAIN_TASK"])
body = {
    "model": os.environ["OPENAI_MODEL"],
    "messages": [{"role": "user", "content": task["input"]}],
}
headers = {
    "content-type": "application/json",
    "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
}
url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
with urllib.request.urlopen(request) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
