"""The APIs that clients use, each converted to one that the model's server answers."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.gateway.apis.api import Answer, Api, ClientCall
    from ltrain_train.gateway.apis.body import bad_request
    from ltrain_train.gateway.apis.completions import ServerAnswer
    from ltrain_train.gateway.apis.count_tokens import Count, count_tokens
    from ltrain_train.gateway.apis.registry import APIS, COUNTS, PATHS, error_body, find_api
    from ltrain_train.gateway.apis.request_fields import (
        NEUTRAL_SAMPLING,
        UNKNOWN,
        Treatment,
        corrected_fields,
        find_rule,
        near_field,
    )
    from ltrain_train.gateway.apis.request_limits import RequestLimits
    from ltrain_train.gateway.apis.response_fields import error_message, error_sentence, parse_error
    from ltrain_train.gateway.apis.responses import RESPONSES
    from ltrain_train.gateway.apis.responses_answer import ResponsesAnswer

open_face(__name__)
