"""A language model that judges the results of rollouts: `use = "judge"` of a reward."""

from pydantic import Field, ValidationError

from ltrain_transforms.errors import BadRule
from ltrain_transforms.recipe.fault import describe_error
from ltrain_transforms.recipe.serve import UpstreamModel
from ltrain_transforms.rules import sql

JUDGE = "judge"
"""The name of the ready rule."""
DEFAULT_RUBRIC = "The result does what the task asks for, correctly and completely."


class Judge(UpstreamModel):
    """The `params` of a reward with `use = "judge"`."""

    rubric: str = Field(default=DEFAULT_RUBRIC, min_length=1)
    """What makes a result good: a few sentences, or points with their share of the score."""
    model: str = Field(default=JUDGE, min_length=1)
    """Model that judges: that of a `[[serve.route]]`, or with `url` the server's name of it."""
    reference: str | None = None
    """Key of the task that the judge sees besides the input, such as the expected answer."""

    @classmethod
    def from_params(cls, reward: str, params: dict[str, sql.Parameter]) -> "Judge":
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
