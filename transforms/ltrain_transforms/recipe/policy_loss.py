"""verl's policy losses, declared without importing it: recipes are checked before Ray starts.

The learner reads the same declarations. Its tests compare their names with verl's registry.
"""

from dataclasses import dataclass

from ltrain_instrument.errors import UnknownName


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A policy loss of verl that a recipe may name."""

    doc: str
    """The formula and its paper."""
    needs_token_weighting: str = ""
    """Why the advantage cannot carry a weight; empty: the loss is proportional to the advantage."""
    per_row: bool = False
    """Whether it always averages within each row, so that each token is passed as a row."""


POLICY_LOSSES = {
    "vanilla": PolicyLoss("The clipped importance ratio of PPO, arXiv 1707.06347."),
    "cispo": PolicyLoss("A clipped importance weight without a gradient, arXiv 2506.13585."),
    "gspo": PolicyLoss("The clipped importance ratio of a whole call, arXiv 2507.18071."),
    "sapo": PolicyLoss(
        "A smooth gate of the importance ratio instead of a clip, arXiv 2511.20347.", per_row=True
    ),
    "gpg": PolicyLoss("The plain policy gradient, without a ratio, arXiv 2504.02546."),
    "dppo_tv": PolicyLoss("PPO that bounds the total variation instead, arXiv 2602.04879."),
    "dppo_kl": PolicyLoss("PPO that bounds the KL divergence instead, arXiv 2602.04879."),
    "clip_cov": PolicyLoss(
        "PPO that leaves out tokens of high covariance, arXiv 2505.22617.",
        needs_token_weighting="it selects tokens by their covariance with the advantage",
    ),
    "kl_cov": PolicyLoss(
        "PPO with a KL penalty on tokens of high covariance, arXiv 2505.22617.",
        needs_token_weighting="it adds a penalty that the advantage does not scale",
    ),
}
"""The losses that a recipe may name."""

UNSUPPORTED_LOSSES = {
    "geo_mean": "it averages over the rows of a micro-batch and ignores the aggregation setting",
    "bypass_mode": "it selects another loss by itself; name that loss, with correction = 'bypass'",
    "dro": "it needs verl's dro_beta, which a recipe has no key for",
}
"""verl's other losses, and why a recipe cannot name them."""


KL_ESTIMATORS = {
    "k1": "d, which has no bias and a high variance.",
    "abs": "The absolute value of d.",
    "k2": "d² / 2, whose gradient has no bias.",
    "k3": "exp(-d) - 1 + d, which has no bias and is never negative.",
    "k1+": "The value of `k1` with the gradient of `k2`.",
    "abs+": "The value of `abs` with the gradient of `k2`.",
    "k3+": "The value of `k3` with the gradient of `k2`.",
}
"""verl's estimators of a token's KL divergence, with d = log-probability of the policy - that of
the reference. J. Schulman, Approximating KL divergence, http://joschu.net/blog/kl-approx.html."""

OTHER_ESTIMATOR_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
"""Names that verl has beside these."""


def check_estimator(name: str) -> None:
    """Check that a recipe may name an estimator of the KL divergence."""
    if name in OTHER_ESTIMATOR_NAMES:
        raise ValueError(f"verl's '{name}' is '{OTHER_ESTIMATOR_NAMES[name]}' here.")
    if name not in KL_ESTIMATORS:
        raise ValueError(str(UnknownName("KL estimator", name, KL_ESTIMATORS)))


def check_loss(name: str) -> None:
    """Check that a recipe may name a loss."""
    if name in UNSUPPORTED_LOSSES:
        allowed = ", ".join(sorted(POLICY_LOSSES))
        raise ValueError(f"'{name}': {UNSUPPORTED_LOSSES[name]}. Choose from: {allowed}.")
    if name not in POLICY_LOSSES:
        raise ValueError(str(UnknownName("policy loss", name, POLICY_LOSSES)))


def check_weighting(name: str, weighting: str) -> None:
    """Check that a loss can be weighted as `loss_weighting` says."""
    reason = POLICY_LOSSES[name].needs_token_weighting
    if reason and weighting != "token":
        others = sorted(n for n, each in POLICY_LOSSES.items() if not each.needs_token_weighting)
        raise ValueError(
            f"loss_weighting = '{weighting}' cannot go with loss = '{name}': {reason}. Set "
            f"loss_weighting = 'token', or choose from: {', '.join(others)}."
        )
