"""The gateway: the policy server as agents reach it, with keys, recording and version swaps."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.gateway.apis.api import ClientCall
    from ltrain_train.gateway.apis.registry import APIS
    from ltrain_train.gateway.apis.request_fields import (
        COMPLETION_RULES,
        GEMINI_RULES,
        MESSAGE_RULES,
        NO_EFFECT,
        RESPONSE_RULES,
        SERVER_RULES,
        FieldRule,
    )
    from ltrain_train.gateway.apis.request_limits import RequestLimits
    from ltrain_train.gateway.client import OUTAGE_TIMEOUT, CallCounts, GatewayClient
    from ltrain_train.gateway.connection import (
        GatewayConnection,
        GatewayRefused,
        GatewayUnreachable,
        PolicyServerAway,
    )
    from ltrain_train.gateway.conversations.conversations import Conversations
    from ltrain_train.gateway.conversations.units import find_unit
    from ltrain_train.gateway.conversations.untraced_calls import open_conversations
    from ltrain_train.gateway.policy_exchange import LENGTH_SETTING
    from ltrain_train.gateway.scripted_model import ScriptedCall, ScriptedModel
    from ltrain_train.gateway.server import ServeOptions, serve
    from ltrain_train.gateway.serving.canary import Canary, RecentUnits
    from ltrain_train.gateway.serving.plan import AdapterOptions
    from ltrain_train.gateway.serving.tinker import ADAPTERS_ONLY, TinkerOptions
    from ltrain_train.gateway.serving.vllm import (
        SLEEP_MODE,
        VllmOptions,
        count_replicas,
        count_shards,
        find_option,
    )

open_face(__name__)
