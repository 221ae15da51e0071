"""The records of libraries, and the choice, loading and diagnosis of their instrumentors."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_instrument.instrumentors import choice, diagnosis
    from ltrain_instrument.instrumentors.choice import InstrumentorChoice
    from ltrain_instrument.instrumentors.diagnosis import (
        Finding,
        State,
        format_findings,
        is_healthy,
    )
    from ltrain_instrument.instrumentors.libraries import LIBRARIES, PATCHES
    from ltrain_instrument.instrumentors.library import find_function
    from ltrain_instrument.instrumentors.loading import InstrumentorLoader

open_face(__name__)
