"""The public contract: all that a plugin may import of glmserve.

`glmserve.api.components`, the model of licence manifests, belongs to it too; a plugin ships its manifest as a file and
rarely needs the module. So does `glmserve.api.provenance`: whatever writes files that are made from a component leaves
a record of their origin beside them.
"""

from .caching import Match, Pages, PrefixCache
from .checkpoint import Checkpoint, TensorInfo
from .drafting import Draft, Drafter
from .errors import (
    CheckpointError,
    ConfigError,
    GlmserveError,
    IntegrityError,
    LicenseError,
    PluginError,
    QueueFullError,
    RequestError,
    SourceError,
    UnavailableError,
)
from .hookspecs import hookimpl
from .models import (
    ForwardBatch,
    ForwardOutput,
    Model,
    ModelFamily,
    ModelInfo,
    NextTokenLayer,
    NextTokenOutput,
    PagedTensor,
    Segment,
)
from .quantization import Embedding, Linear, LinearSpec, Quantization
from .transport import Finding, Link, Topology, Transport

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "Draft",
    "Drafter",
    "Embedding",
    "Finding",
    "ForwardBatch",
    "ForwardOutput",
    "GlmserveError",
    "IntegrityError",
    "LicenseError",
    "Linear",
    "LinearSpec",
    "Link",
    "Match",
    "Model",
    "ModelFamily",
    "ModelInfo",
    "NextTokenLayer",
    "NextTokenOutput",
    "PagedTensor",
    "Pages",
    "PluginError",
    "PrefixCache",
    "Quantization",
    "QueueFullError",
    "RequestError",
    "Segment",
    "SourceError",
    "TensorInfo",
    "Topology",
    "Transport",
    "UnavailableError",
    "hookimpl",
]
