"""Versions of a policy: written, made current, loaded into a server, kept or removed."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.publishing import deploy_commands, policy_commands
    from ltrain_train.publishing.deploy_decision import Look, TrialRule, decide_candidate
    from ltrain_train.publishing.policy_commands import parse_version
    from ltrain_train.publishing.publish import (
        TrainedVersion,
        describe_serving,
        find_gateway,
        promote,
        publish,
        register,
        registers_adapters,
    )
    from ltrain_train.publishing.retention import (
        best_version,
        prune_spans,
        prune_versions,
        read_scores,
    )

open_face(__name__)
