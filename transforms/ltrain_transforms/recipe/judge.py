"""Language models that ltrain itself asks, such as the judge of a reward: `use = "judge"`."""

from typing import Self

from pydantic import Field, ValidationError

from ltrain_transforms.errors import BadRule
from ltrain_transforms.recipe.fault import describe_error
from ltrain_transforms.recipe.section import Parameter, Section
from ltrain_transforms.recipe.serve import Route

JUDGE = "judge"
"""The name of the ready rule."""
DEFAULT_RUBRIC = "The result does what the task asks for, correctly and completely."


class UpstreamModel(Section):
    """A language model that ltrain itself asks, such as a judge."""

    model: str = Field(min_length=1)
    """Name of the model: that of a `[[serve.route]]`, or with `url` the server's name of it."""
    url: str | None = Field(default=None, pattern=r"^https?://")
    """Base URL of an OpenAI-compatible server, such as `https://api.openai.com/v1`; default: that
    of the route."""
    key: str | None = Field(default=None, pattern=r"^[A-Za-z_]\w*$")
    """Environment variable with the server's key, which agents do not get; default: that of the
    route."""
    temperature: float | None = Field(default=None, ge=0)
    """Temperature; unset: that of the server."""

    def at_route(self, route: Route | None) -> Self:
        """Return the model with the URL, the key and the name of its route."""
        if self.url is not None or route is None:
            return self
        served = {"url": route.url, "key": route.key, "model": route.served_as or route.model}
        return self.model_copy(update=served)


class Judge(UpstreamModel):
    """The `params` of a reward with `use = "judge"`."""

    rubric: str = Field(default=DEFAULT_RUBRIC, min_length=1)
    """The criteria of a good result: a few sentences, or points with their share of the score."""
    model: str = Field(default=JUDGE, min_length=1)
    """Model that judges: that of a `[[serve.route]]`, or with `url` the server's name of it."""
    reference: str | None = None
    """Key of the task that the judge sees besides the input, such as the expected answer."""

    @classmethod
    def from_params(cls, reward: str, params: dict[str, Parameter]) -> "Judge":
        """Return the judge that the `params` of a reward describe.

        Raises:
            BadRule: when they do not.
        """
        try:
            return cls.model_validate(params)
        except ValidationError as error:
            raise BadRule(
                f"Reward '{reward}', params of the judge: {describe_error(cls, error)}"
            ) from error
