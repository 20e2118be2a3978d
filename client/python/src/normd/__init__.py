"""Client of normd, the gRPC service that normalizes tensors.

    import normd

    with normd.Client("127.0.0.1:8001") as client:
        y = client.normalize("instance_norm_64", x)

`normd.Client` is synchronous, `normd.aio.Client` is for asyncio. All errors are `normd.Error`.
"""

from normd import aio
from normd._request import Precision, Priority
from normd._response import BatchInfo, Response, StageTimes
from normd.client import Client
from normd.device_memory import DeviceRegion
from normd.errors import (
    AbortedError,
    CancelledError,
    ClosedError,
    DataLossError,
    DeadlineExceededError,
    Error,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from normd.models import (
    HealthStatus,
    ModelInfo,
    Parameter,
    ServerInfo,
    SharedMemoryInfo,
    TensorInfo,
)
from normd.retry import Retry
from normd.shared_memory import SharedRegion

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "BatchInfo",
    "CancelledError",
    "Client",
    "ClosedError",
    "DataLossError",
    "DeadlineExceededError",
    "DeviceRegion",
    "Error",
    "FailedPreconditionError",
    "HealthStatus",
    "InternalError",
    "InvalidArgumentError",
    "ModelInfo",
    "NotFoundError",
    "Parameter",
    "PermissionDeniedError",
    "Precision",
    "Priority",
    "ProtocolError",
    "ResourceExhaustedError",
    "Response",
    "Retry",
    "ServerInfo",
    "SharedMemoryInfo",
    "SharedRegion",
    "StageTimes",
    "TensorInfo",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "__version__",
    "aio",
]
