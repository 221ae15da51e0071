"""The dialects of observability platforms: their SDKs, exporters and instrumentations."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.dialects.platforms import (
        agentlightning,
        agentops,
        braintrust,
        laminar,
        langfuse,
        langsmith,
        logfire,
        mlflow,
        openlit,
        opik,
        weave,
    )

open_face(__name__)
