"""Feedback on executions that are in the store, or will be: as a request, and from a person."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.feedback.person import (
        StoredFeedback,
        list_feedback,
        local_person,
        save_feedback,
    )
    from ltrain_collector.feedback.ratings import (
        Conflict,
        Ratings,
        count_ratings,
        read_ratings,
    )
    from ltrain_collector.feedback.record import Feedback, parse_feedback, read_times, to_request
    from ltrain_collector.feedback.reward_command import record_reward

open_face(__name__)
