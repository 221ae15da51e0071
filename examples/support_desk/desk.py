"""The support desk: an agent that names the team for a ticket, and records each answer as a trace.

It runs against any server with vLLM's structured outputs:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 opentelemetry-instrument \\
        python desk.py "I was charged twice for one order."
"""

import os
import sys
from dataclasses import dataclass

from openai import OpenAI
from opentelemetry import trace

TEAMS = ("billing", "shipping", "returns", "account")
NUMBERS = {str(number): team for number, team in enumerate(TEAMS, 1)}
"""The answer is a number: one token, so that two cores answer several tickets a second."""
INSTRUCTIONS = ", ".join(f"{number} {team}" for number, team in NUMBERS.items())

tracer = trace.get_tracer("support-desk")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a ticket."""

    trace: str
    """The id by which feedback names it, 32 hexadecimal digits."""
    team: str


class Desk:
    """Answers tickets."""

    def __init__(self) -> None:
        """Connect to the server that the OPENAI_* variables name."""
        self._client = OpenAI(
            base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
            api_key=os.environ.get("OPENAI_API_KEY", "none"),
            max_retries=5,
        )
        self._model = os.environ.get("OPENAI_MODEL", "desk")

    def answer(self, ticket: str) -> Answer:
        """Return the team for a ticket."""
        with tracer.start_as_current_span("invoke_agent desk") as span:
            span.set_attribute("gen_ai.operation.name", "invoke_agent")
            span.set_attribute("gen_ai.agent.name", "desk")
            done = self._client.chat.completions.create(
                model=self._model,
                messages=[
                    {"role": "system", "content": INSTRUCTIONS},
                    {"role": "user", "content": ticket},
                ],
                temperature=1.0,
                extra_body={"structured_outputs": {"choice": list(NUMBERS)}},
            )
            team = NUMBERS.get(done.choices[0].message.content or "", "")
            return Answer(f"{span.get_span_context().trace_id:032x}", team)


def main(arguments: list[str]) -> None:
    """Print the team for the ticket on the command line."""
    if not arguments:
        sys.exit('usage: python desk.py "I was charged twice for one order."')
    print(Desk().answer(arguments[0]).team)


if __name__ == "__main__":
    main(sys.argv[1:])
