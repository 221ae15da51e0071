"""The recipe: one module for each section, and the whole recipe."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.recipe.credit import (
        PRODUCTION_ESTIMATOR,
        Credit,
        Outcome,
        Peers,
        Process,
        Step,
    )
    from ltrain_transforms.recipe.deploy import Deploy, Gates
    from ltrain_transforms.recipe.dialect import SPAN_NAME, DeclaredDialect, split_source
    from ltrain_transforms.recipe.failed_results import failed_results
    from ltrain_transforms.recipe.finetune import Dpo, Sft
    from ltrain_transforms.recipe.judge import Judge, UpstreamModel
    from ltrain_transforms.recipe.policy import NEUTRAL, Policy
    from ltrain_transforms.recipe.policy_loss import (
        KL_ESTIMATORS,
        POLICY_LOSSES,
        UNSUPPORTED_LOSSES,
    )
    from ltrain_transforms.recipe.prompt import CriticModel, PromptSearch
    from ltrain_transforms.recipe.recipe import DEFAULT, Recipe
    from ltrain_transforms.recipe.reward import (
        REWARD_KINDS,
        CallReward,
        Credited,
        EvaluationReward,
        Metrics,
        PythonReward,
        Reward,
        RolloutReward,
        SignalReward,
        SqlReward,
    )
    from ltrain_transforms.recipe.rollout import Rollout, SandboxLimits
    from ltrain_transforms.recipe.selection import (
        FailedCounts,
        Filter,
        Source,
        TrustedSender,
        Watch,
    )
    from ltrain_transforms.recipe.serve import Route, Serve
    from ltrain_transforms.recipe.service import Service
    from ltrain_transforms.recipe.train import (
        MICRO_BATCH_TOKENS,
        TINKER_KEY,
        TRACKER_NAMES,
        Colocate,
        Critic,
        Tinker,
        Train,
    )
    from ltrain_transforms.recipe.verl_options import Verl, VerlActor

open_face(__name__)
