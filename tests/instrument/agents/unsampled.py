"""A server's handler: it continues the trace of a request, whose traceparent is its argument."""

import subprocess
import sys
from typing import Any

from openai import OpenAI
from opentelemetry import context, propagate, trace

import ltrain

tracer = trace.get_tracer("server")
QUESTION: Any = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}

context.attach(propagate.extract({"traceparent": sys.argv[1]}))
with (
    tracer.start_as_current_span("POST /chat"),
    ltrain.rollout(run="demo", task="1", rollout="r1", mode="train"),
):
    OpenAI().chat.completions.create(**QUESTION)
    ltrain.reward(1.0)
    child = "from opentelemetry import trace; trace.get_tracer('child').start_span('child').end()"
    subprocess.run([sys.executable, "-c", child], check=True)
