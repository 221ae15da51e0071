"""The policies of a gateway by name: which one answers a call, and in which version."""

from collections.abc import Iterable, Sequence
from http import HTTPStatus

from ltrain_train.gateway.attempts import AttemptCalls
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.serving.policy_server import PolicyServer
from ltrain_train.gateway.serving.publication import Publication


class ServedPolicies:
    """The publications of all policies; the first one is the default."""

    def __init__(self, publications: Sequence[Publication], others: Iterable[str] = ()) -> None:
        """Describe the policies; errors also name the `others`, which are models of routes."""
        self._publications = {each.policy: each for each in publications}
        self._others = list(others)
        self.default = publications[0]

    @property
    def names(self) -> list[str]:
        """The names of the policies."""
        return list(self._publications)

    @property
    def publications(self) -> list[Publication]:
        """The publications of all policies."""
        return list(self._publications.values())

    @property
    def servers(self) -> list[PolicyServer]:
        """The servers of the policies."""
        return list({id(each.server): each.server for each in self.publications}.values())

    @property
    def waiting_for(self) -> str:
        """Why calls wait, at a gate that is shut or at a server; '' if they do not."""
        reasons = (server.gate.reason or server.upstream.waiting for server in self.servers)
        return "; ".join(filter(None, reasons))

    @property
    def is_ready(self) -> bool:
        """Whether every gate is open."""
        return all(server.gate.is_open for server in self.servers)

    def require(self, name: str) -> Publication:
        """Return the publication of a policy."""
        found = self._publications.get(name)
        if found is None:
            raise Refused(
                HTTPStatus.NOT_FOUND,
                f"This gateway has no model '{name}'. "
                f"Choose from: {', '.join([*self.names, *self._others])}.",
            )
        return found

    def of_attempt(self, model: str, policy: str) -> Publication:
        """Return the policy that an agent requested by name, else the policy of its key."""
        return self._publications.get(model) or self.require(policy)

    def of_production(self, model: str, calls: AttemptCalls) -> Publication:
        """Return the policy that answers a call of production; `NAME@VERSION` pins the call."""
        if (publication := self._publications.get(model)) is not None:
            return publication
        name, _, number = model.partition("@")
        publication = self._publications.get(name)
        if publication is None or publication.version is None or not number.isdecimal():
            return self.require(model)
        version = int(number)
        if not publication.holds(version):
            raise Refused(HTTPStatus.NOT_FOUND, publication.describe_gone(version))
        calls.versions[name], calls.pinned = version, True
        return publication
