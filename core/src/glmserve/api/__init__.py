"""The public contract: all that a plugin may import of glmserve.

`glmserve.api.components`, the model of licence manifests, belongs to it too; a plugin ships its manifest as a file and
rarely needs the module. So does `glmserve.api.provenance`: whatever writes files that are made from a component leaves
a record of their origin beside them.
"""

from .caching import Match, Pages, PrefixCache
from .checkpoint import Checkpoint, TensorInfo
from .collectives import ALONE, ContextShare, Group, Parallel
from .drafting import Draft, Drafter
from .errors import (
    CheckpointError,
    ConfigError,
    GlmserveError,
    IntegrityError,
    LicenseError,
    PluginError,
    QueueFullError,
    RankError,
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
from .quantization import Embedding, Linear, LinearSpec, Quantization, Shard
from .transport import Finding, Link, Topology, Transport

__all__ = [
    "ALONE",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "ContextShare",
    "Draft",
    "Drafter",
    "Embedding",
    "Finding",
    "ForwardBatch",
    "ForwardOutput",
    "GlmserveError",
    "Group",
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
    "Parallel",
    "PluginError",
    "PrefixCache",
    "Quantization",
    "QueueFullError",
    "RankError",
    "RequestError",
    "Segment",
    "Shard",
    "SourceError",
    "TensorInfo",
    "Topology",
    "Transport",
    "UnavailableError",
    "hookimpl",
]
