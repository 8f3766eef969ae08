"""The contract between the protocols (HTTP, gRPC) and the service behind them; neither sees more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from astrarium.core.errors import AstrariumError
from astrarium.core.quantities import Time
from astrarium.server.client_errors import ClientErrors
from astrarium.server.statistics import StatisticsOfModel
from astrarium.serving.live.tensors import Tensor, TensorSpec


class Kind(Enum):
    """A refusal's kind says why a call was refused or failed, with the HTTP and gRPC status codes."""

    BAD_REQUEST = (400, "INVALID_ARGUMENT")
    UNAUTHENTICATED = (401, "UNAUTHENTICATED")
    NOT_FOUND = (404, "NOT_FOUND")
    TOO_LARGE = (413, "RESOURCE_EXHAUSTED")
    UNPROCESSABLE = (422, "INVALID_ARGUMENT")  # the same input has broken a worker
    OVERLOADED = (429, "RESOURCE_EXHAUSTED")
    MODEL_FAILED = (500, "INTERNAL")
    UNAVAILABLE = (503, "UNAVAILABLE")
    DEADLINE = (504, "DEADLINE_EXCEEDED")

    @property
    def http(self) -> int:
        return self.value[0]

    @property
    def grpc(self) -> str:
        return self.value[1]


class Refused(AstrariumError):
    """A refused call gets no answer; the message says which call and why."""

    def __init__(self, kind: Kind, reason: str, retry_after: float | None = None) -> None:
        # seconds
        self.kind = kind
        self.reason = reason
        self.retry_after = retry_after
        super().__init__(reason)


@dataclass(slots=True)  # not frozen: that would double the cost of making one
class InferCall:
    """A call is one request of a client: tensors checked against the model's card, `rows` items each.

    `timeout` (ns, None: the model's objective) counts from `received`, an instant of the monotonic clock.
    `patience` is how long the client waits whatever the objective (None: it did not say).
    """

    model: str
    inputs: Sequence[Tensor]
    rows: int
    received: Time
    timeout: Time | None = None
    priority: int = 0
    application: str = ""
    patience: Time | None = None


class NativeFront(Protocol):
    """A native front is where calls go that threads without Python have read."""

    @property
    def exchange(self) -> object:
        """Return the `Exchange` of `astrarium._front` that the network threads share with the scheduler."""

    @property
    def threads(self) -> int:
        """Return how many threads read calls over HTTP, the first origins of the exchange.

        As many read calls over gRPC, the origins after them.
        """

    def cards(self) -> Sequence[NumberedCard]:
        """Return all models as they are now."""


class Stages(NamedTuple):
    """Stages tell when an answered call passed each of them, by the monotonic clock in nanoseconds."""

    received: Time  # the first byte's arrival, as early as the protocol can tell
    admitted: Time  # parsed, checked and in shared memory
    dispatched: Time
    started: Time
    finished: Time
    answered: Time


@dataclass(slots=True)
class InferAnswer:
    """An answer's outputs lie in shared memory: read them, then call `release` exactly once."""

    outputs: list[Tensor]
    stages: Stages
    batch_size: int
    gpu: int
    in_time: bool
    release: Callable[[], None]


ModelState = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]


@dataclass(frozen=True)
class ModelCard:
    """A model's card is what the protocol's metadata and configuration are made of."""

    name: str
    platform: str  # the backend's name
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int
    slo: Time
    state: ModelState = "READY"
    reason: str = ""  # of a state that is not READY
    version: str = "1"
    applications: tuple[str, ...] = ()
    priorities: Mapping[int, Time] = field(default_factory=dict)  # their objectives
    refusing: str = ""  # why it is no use to be READY: calls are taken, and all of them are turned away
    failing: str = ""  # why hardly any call is taken, although the model is loaded: all of them failed
    padding: tuple[str, str, str] = "", "", ""  # "safe" or "changes" where an input is open; why; what to do
    packed: bool = False  # it takes items one after another: then `padding` is about that
    sizes: tuple[tuple[int, ...], ...] = ()  # that the shapes of its items are numbered by, if they are

    @property
    def health(self) -> tuple[ModelState, str]:
        """Return the state that others are told, and why it is not READY."""
        trouble = self.failing or self.refusing
        return ("UNAVAILABLE", trouble) if self.state == "READY" and trouble else (self.state, self.reason)


@dataclass(frozen=True)
class NumberedCard:
    """A model's card with its number in the setup."""

    index: int
    card: ModelCard
    why_long: str = ""  # why network threads may read no calls of it; empty: they may
    # Where clients send texts: the number of the tokenizer, and what workers get.
    tokenized: tuple[int, tuple[TensorSpec, ...]] | None = None


class HeldInput(Struct, frozen=True):
    """An input is refused for another *seconds*, since what *reason* says happened so many seconds *ago*."""

    digest: str
    reason: str
    seconds: float
    ago: float


class Service(Protocol):
    """A service is one served scenario. Every method belongs to the event loop that serves."""

    client_errors: ClientErrors

    @property
    def ready(self) -> bool:
        """Whether it takes requests and answers any: its workers are up, and it is not draining."""

    def cards(self) -> list[ModelCard]: ...

    def card(self, model: str) -> ModelCard:
        """Return a model's card; Refused (NOT_FOUND) for a name that the scenario does not have."""

    async def infer(self, call: InferCall) -> InferAnswer:
        """Answer a call; Refused where there is no answer."""

    async def load(self, model: str) -> None:
        """Load a model, also where it is loaded already; return once it is ready."""

    async def unload(self, model: str) -> None:
        """Unload a model and return once it is gone; requests that were accepted are answered first."""

    def quarantine(self, model: str) -> list[HeldInput]:
        """Return the inputs of a model that have broken a worker and are refused."""

    def release(self, model: str) -> int:
        """Refuse these inputs no longer; return how many there were."""

    def turned_away(self, model: str, refused: Refused) -> None:
        """Note in the accounts a call of this model that did not even become an `InferCall`."""

    def went_long_way(self, reason: str) -> None:
        """Note in the accounts a call that did not go the short way."""

    def statistics(self, model: str) -> StatisticsOfModel: ...

    def metrics(self) -> bytes:
        """Return the Prometheus exposition text."""

    def timeline(self, last: int) -> bytes:
        """Return the last requests and batches as a JSON trace for Perfetto."""
