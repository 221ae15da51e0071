"""Parts of a request that the model's server does not get.

Tools that only a provider's servers run are left out, with the items of their calls. The call's
span has the number of each.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ltrain_train.gateway.apis.body import bad_request
from ltrain_train.gateway.errors import Refused


@dataclass(frozen=True, slots=True)
class ServerTools:
    """The tools that the servers of one provider run."""

    provider: str
    names: tuple[str, ...]
    """A name stands also for its versions: `web_search` for `web_search_20250305`."""

    def find(self, kind: str | None) -> str | None:
        """Return the name of the tool that a type is a version of; None for other tools."""
        text = kind or ""
        return next((each for each in self.names if f"{text}_".startswith(f"{each}_")), None)


@dataclass(slots=True)
class Omissions:
    """The parts that were left out of one request, each with its number."""

    provider: str
    tools: Counter[str] = field(default_factory=Counter)
    """Tools that only the provider's servers run."""
    items: Counter[str] = field(default_factory=Counter)
    """Calls and results of such tools, the choice of one, and encrypted reasoning."""
    grammars: Counter[str] = field(default_factory=Counter)
    """Tools whose input follows a grammar, which the model's server does not enforce."""

    def counts(self) -> dict[str, int]:
        """Return the numbers as the call's span has them."""
        kinds = {"tool": self.tools, "item": self.items, "grammar": self.grammars}
        return {
            f"{kind} {name}": number
            for kind, names in kinds.items()
            for name, number in names.items()
        }

    def sentences(self) -> Iterable[str]:
        """Yield a sentence for each tool that was left out."""
        for name in self.tools:
            yield (
                f"The tool '{name}' is left out: only {self.provider}'s servers run it. The call "
                "goes on without it."
            )

    def refuse_tools(self) -> Refused:
        """Return the refusal of a request with such tools."""
        name = next(iter(self.tools))
        return bad_request(
            f"A tool of the request has the type '{name}', which only {self.provider}'s servers "
            'run. Remove it, or set serve.unsupported_tools = "drop" (`ltrain serve '
            "--unsupported-tools drop`)."
        )
