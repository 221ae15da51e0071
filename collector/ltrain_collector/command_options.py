"""Options that several commands share: a dataclass declares them, and a command gets one object."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from ltrain_instrument.settings import ALLOW_HOSTS

if TYPE_CHECKING:
    from ltrain_collector.http import Tls

T = TypeVar("T")


def with_options(command: Callable[..., T]) -> Callable[..., T]:
    """Let typer see the fields of a command's dataclass parameters as options of the command."""
    hints = get_type_hints(command, include_extras=True)
    shared: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @wraps(command)
    def run(**values: Any) -> T:
        for name, kind in shared.items():
            values[name] = kind(**{each.name: values.pop(each.name) for each in fields(kind)})
        return command(**values)

    parameters = list(_parameters(command, hints))
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    return run


def _parameters(command: Callable[..., Any], hints: dict[str, Any]) -> Iterator[inspect.Parameter]:
    for each in inspect.signature(command).parameters.values():
        kind = hints[each.name]
        if not is_dataclass(kind):
            yield each.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        own = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            yield inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=own[field.name],
            )


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The address and the certificate of a server."""

    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on; one that other machines reach needs keys, and their "
            "names for it in LTRAIN_ALLOW_HOSTS."
        ),
    ] = "127.0.0.1"
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM file of a certificate: serve with TLS.")
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate's private key.")
    ] = None

    @property
    def tls(self) -> "Tls | None":
        """The files of the certificate; None without TLS.

        Raises:
            BadParameter: when one of the two files is missing.
        """
        from ltrain_collector.http import Tls

        if (self.tls_cert is None) != (self.tls_key is None):
            raise typer.BadParameter("--tls-cert and --tls-key must be used together.")
        return Tls(self.tls_cert, self.tls_key) if self.tls_cert and self.tls_key else None


@dataclass(frozen=True, slots=True)
class NamedServerOptions(ServerOptions):
    """The address of a server, and the names of its machine."""

    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name of this machine that clients may send as Host, e.g. of a container; can "
            "be repeated. Default: LTRAIN_ALLOW_HOSTS."
        ),
    ] = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The allowed names of the machine."""
        return tuple(self.allow_host or ALLOW_HOSTS.read())
