"""A program that attempts use besides the model, such as a database, a browser or a sandbox."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from ltrain_transforms.recipe.section import Section

PORT = "{port}"
"""The part of an address that an instance's port replaces."""


class Service(Section):
    """A program that ltrain starts for the attempts, such as a database, a browser or a sandbox."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Name: agents find an address in `llm.services["NAME"]`, and commands in
    `LTRAIN_SERVICE_NAME`, in capitals."""
    command: str = Field(min_length=1)
    """Shell command in the recipe's folder: it listens at port `$LTRAIN_SERVICE_PORT` of 127.0.0.1
    and keeps its files in `$LTRAIN_SERVICE_FOLDER`."""
    count: int = Field(default=1, ge=1)
    """Instances."""
    address: str = f"http://127.0.0.1:{PORT}"
    """Address that agents get; `{port}` is the instance's port."""
    health: str = Field(default="tcp", min_length=1)
    """How an instance is checked: `tcp` (the port is open), a path such as `/health` (a GET is
    answered with status 2xx), or else a shell command (it ends with status 0)."""
    start_timeout: float = Field(default=60, gt=0)
    """Seconds until a started instance must be healthy."""
    per: Literal["attempt", "run"] = "attempt"
    """`attempt`: an instance serves one attempt at a time. `run`: all attempts share the
    instances."""
    fresh: bool = False
    """Whether an instance is started again after each attempt, with an empty folder."""

    @field_validator("address")
    @classmethod
    def _with_port(cls, address: str) -> str:
        if PORT not in address:
            raise ValueError(
                f"'{address}' has no {PORT}: each instance has a port of its own. Write it as in "
                f"http://127.0.0.1:{PORT}."
            )
        return address

    @model_validator(mode="after")
    def _fresh_for_one(self) -> Self:
        if self.fresh and self.per == "run":
            raise ValueError(
                "fresh = true starts an instance again after each attempt, and with per = 'run' "
                "other attempts use it then. Remove one of the two."
            )
        return self
