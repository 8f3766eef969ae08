"""The native front of servers: threads that read calls, and what they share with the scheduler."""

import enum
from collections.abc import Mapping, Sequence
from typing import Final

import astrarium._simulator

Shape = Sequence[int]
Limits = tuple[int, int, str]  # bounds as `native_bounds` has them, and what would be right
Ranges = Sequence[tuple[int, int]]  # lowest and highest size of each dimension
Spec = tuple[str, str, Shape, Limits | None] | tuple[str, str, Shape, Limits | None, Ranges]
Numbered = tuple[list[tuple[int, int, list[int]]], list[int]]  # as `ShapeNumbers` has it
Sum = tuple[int, int]  # a count, and nanoseconds
Histogram = tuple[list[int], int]  # counts by upper bound, and nanoseconds
Tally = tuple[
    int,  # accepted
    int,  # items
    int,  # declined
    dict[tuple[str, str], int],  # ended, by outcome and cause
    dict[str, int],  # refused, by kind
    Histogram,  # latency
    Histogram,  # queueing
    Sum,  # success
    Sum,  # fail
    Sum,  # queue
]
AnsweredCall = tuple[
    int,  # model
    int,  # GPU
    int,  # batch
    int,  # its size
    bool,  # in time
    tuple[int, int, int, int, int, int],  # received, admitted, dispatched, started, finished, answered
]
PassedBytes = tuple[
    int,  # DATA, END, SENT or LOST
    int,  # connection
    bytes,
    str,  # why they were passed to Python
    int,  # when they were received
    int,  # the error that ended the connection; 0: it was closed
    tuple[str, int],  # host and port of the client, with its first bytes
    int,  # its user; -1: any, -2: unknown
]
PassedCall = tuple[
    int,  # CALL, MESSAGE, CALL_END, CALL_SENT or LEFT
    tuple[int, int],  # connection and stream
    tuple[bytes, bool],  # a message, and whether it is compressed
    bool,  # it streams
    tuple[bytes, str, str, int, int, int],  # metadata, client, why, when it was received, patience, user
]

class Arena:
    """An arena hands out blocks of shared memory, by any thread."""

    def __init__(self, size: int) -> None: ...
    @property
    def size(self) -> int:
        """How many bytes there are."""

    @property
    def used(self) -> int:
        """How many of them are in blocks that were taken."""

    def take(self, size: int) -> int | None:
        """Take a block of at least *size* bytes and return its offset, or None where none is free."""

    def give_back(self, offset: int) -> None:
        """Give a block back; raise IndexError where none begins there."""

class CallCost:
    """A call cost is what a call of some length costs the GPUs of its model."""

    @property
    def weight(self) -> int:
        """Its part among the open calls of its model; 1024 is a plain one."""

    @property
    def needed(self) -> int:
        """How long it takes alone, from the decision on it to its answer."""

    @property
    def length(self) -> int:
        """The length of that call; 0: all cost the same, or it is not known."""

class Verdict(enum.Enum):
    """A verdict says whether a call is let in, or why not."""

    TAKEN = 0
    """It is let in."""

    CLOSED = 1
    """The server takes no calls now."""

    TOO_LATE = 2
    """Not even an idle GPU would be in time."""

    FULL = 3
    """As many calls are open as may be."""

    AWAY = 4
    """No worker is up, and none will be in time."""

    BACKLOG = 5
    """As many calls of this model are open as can be answered in time."""

    BEHIND = 6
    """A network thread has more calls to read than it can."""

    TEXTS = 7
    """More texts wait for tokens than can have them in time."""

class Admission:
    """The admission decides which calls are let in, in any thread."""

    def cost(self, model: int, length: int = 0, rows: int = 1) -> CallCost:
        """Return what a call of so many rows of this length costs; 0: it is not known, and may be as short as
        any."""

    def judge(self, model: int, cost: CallCost, objective: int, received: int, now: int) -> Verdict:
        """Return the verdict on a call, and let nothing in."""

    def admit(self, model: int, cost: CallCost, objective: int, received: int, now: int) -> Verdict:
        """Return the verdict on a call; one that is taken counts as open until `ended`."""

    def words(
        self, verdict: Verdict, model: int, name: str, cost: CallCost, objective: int, received: int, now: int
    ) -> str:
        """Return what the client of a call that was refused is told."""

    def let_in(self, model: int, cost: CallCost, objective: int, calls: int = 1) -> None:
        """Count calls as open until `ended`, whatever their verdict."""

    def reweigh(self, model: int, before: int, weight: int, objective: int) -> None:
        """Let an open call weigh something else, now that its length is known."""

    def ended(self, model: int, weight: int, objective: int) -> None:
        """Count an open call of this weight and objective no more."""

    def answered(self, model: int, slip: int) -> None:
        """Move the margin of a model by how much later than planned an answer was."""

    def margin(self, model: int) -> int:
        """Return how much later than planned answers have lately been."""

    def open(self) -> int:
        """Return how many calls are open."""

    def open_of(self, model: int) -> int:
        """Return how many calls of a model are open."""

    def close(self, closed: bool) -> None:
        """Let no calls in from now on, or let them in again."""

    def expect_worker(self, at: int) -> None:
        """Say when a worker is expected while none is up; 0: one is."""

    def plan(self, setup: astrarium._simulator.Setup, gpus: int, now: int) -> None:
        """Judge by this setup, on so many GPUs."""

    def look(self, now: int) -> None:
        """Follow the rates at which calls have been answered."""

    def count_answer(self, model: int, at: int) -> None:
        """Count an answer in time, for the rate of a model."""

    def count_lost(self, model: int) -> None:
        """Count a call that was let in and not answered in time."""

class Region:
    """A region is memory of a client that was registered; it is there as long as this is."""

    @property
    def name(self) -> str:
        """What it is called in requests."""

    @property
    def key(self) -> str:
        """The shared memory object that it is part of."""

    @property
    def offset(self) -> int:
        """Where in that it begins."""

    @property
    def size(self) -> int:
        """How many bytes it has."""

    @property
    def is_writable(self) -> bool:
        """Whether outputs may be written here."""

    def read(self, at: int, size: int) -> bytes | None:
        """Return a copy of a part, or None where the memory has become shorter."""

    def write(self, at: int, data: bytes | bytearray | memoryview) -> bool:
        """Write a part; return False where the memory has become shorter."""

class Regions:
    """Regions are memory of clients on this machine, by owner (user and API key) and by name. A user of -1 is
    any, and of -2 unknown; a key of -1 is none."""

    def __init__(self) -> None: ...
    def allow(self, most_bytes: int, local: bool) -> None:
        """Let clients register so many bytes from now on; *local*: each user of this machine for itself."""

    @property
    def allowed(self) -> bool:
        """Whether clients may register any."""

    @property
    def local(self) -> bool:
        """Whether users of this machine are told apart."""

    def add(self, user: int, key: int, name: str, object: str, offset: int, size: int) -> tuple[str, str]:
        """Register a part of a shared memory object. Return the field that is wrong, and what would be right,
        or two empty texts; without a field there are too many."""

    def remove(self, user: int, key: int, name: str) -> int:
        """Unregister a region, or all of an owner; return how many there were."""

    def find(self, user: int, key: int, name: str) -> Region | None:
        """Return the region of that name, or None where the owner has registered none."""

    def of(self, user: int, key: int) -> list[Region]:
        """Return all regions of an owner, by name."""

    def totals(self) -> tuple[int, int]:
        """Return how many regions there are, and how many bytes."""

class TextBatch:
    """A text batch is what waits of one model, for one tokenizer."""

    @property
    def model(self) -> int:
        """Whose texts they are."""

    @property
    def tokenizer(self) -> int:
        """The number of the tokenizer; -1: there are no texts."""

    @property
    def late(self) -> list[int]:
        """The numbers of Python's calls that were to have come, and whose time is over."""

    @property
    def size(self) -> int:
        """How many texts there are."""

    def texts(self, most: int, from_end: bool) -> list[tuple[bytes, ...]]:
        """Return the texts, or pairs: of each no more bytes than so many and one."""

    def own(self) -> list[tuple[int, int]]:
        """Return the places of Python's own texts, each with its number."""

    def give(self, made: list[list[list[int]] | tuple[int, str]]) -> None:
        """Give the numbers for each text, by input of the model; or whose fault it is that there are none (0:
        the model's, 1: the client's, 2: it is too long), and why. Python has its own already."""

class TextQueue:
    """In the text queue the texts of all models wait to become tokens."""

    def __init__(self, models: int, most_bytes: int) -> None: ...
    def is_full(self, model: int, size: int, slack: int, now: int) -> bool:
        """Return whether a text of so many bytes would wait for most of its slack, or finds no place."""

    def open(self, model: int) -> int:
        """Return how many texts of a model wait for tokens, or are to have them now."""

    def put(
        self,
        model: int,
        parts: list[bytes],
        tokenizer: int,
        since: int,
        deadline: int,
        needed: int,
        number: int,
    ) -> bool:
        """Put a text of Python's own, under a number; return False where nobody tokenizes any more."""

    def take(self) -> TextBatch | None:
        """Wait for texts, and take those of a model; return None once the queue is closed."""

    def try_take(self, now: int) -> TextBatch | None:
        """Take the texts of a model, if any can be taken."""

    def close(self) -> None:
        """End all that wait, and wake all who take."""

    AT_ONCE: Final[int] = ...
    """How many bytes are taken at once."""

class Exchange:
    """An exchange is what network threads, Python and the scheduler share: memory, tickets in rings, who is
    let in, what was counted. Each thread that reads calls is an origin."""

    def __init__(self, memory: memoryview, models: int, most_open: int, origins: int) -> None: ...
    @property
    def origins(self) -> int:
        """How many there are; the last one is Python."""

    def tally(self, model: int) -> Tally:
        """Return what all network threads have counted of a model."""

    def astray(self, held: int, open_in_python: int) -> int:
        """Return how many calls are not where the books say: *held* by the scheduler, *open_in_python*."""

    def last_calls(self, origin: int, since: int) -> tuple[int, list[AnsweredCall]]:
        """Return the calls of an origin that were answered since that number, and the number of the next
        one."""

    def arriving(self) -> int:
        """Return how many bytes of blocks wait for tensors that are on their way."""

    @property
    def arena(self) -> Arena:
        """The memory where tensors lie."""

    @property
    def regions(self) -> Regions:
        """The memory of clients where tensors lie."""

    @property
    def texts(self) -> TextQueue:
        """The texts that wait to become tokens."""

    @property
    def admission(self) -> Admission:
        """Who decides which calls are let in."""

class Network:
    """The network threads that speak HTTP/1.1. What is asked of a connection that is gone is forgotten."""

    def __init__(
        self,
        exchange: Exchange,
        listeners: Sequence[int],
        head_bytes: int,
        body_bytes: int,
        held_bytes: int,
        request_ns: int,
        keep_alive_ns: int,
        connections: int,
        keys: Sequence[str],
        too_slow: bytes,
        no_descriptor: bytes,
    ) -> None: ...
    def connections(self) -> int:
        """Return how many connections are open."""

    def held(self) -> int:
        """Return how many bytes are held of requests that are not whole, and of answers that nobody takes."""

    def turned_away(self) -> int:
        """Return for how many connections there was no descriptor."""

    def long_way(self) -> dict[str, int]:
        """Return how often something was passed to Python, by reason."""

    def cpu_ns(self) -> list[int]:
        """Return the CPU time that each thread has had."""

    def start(self) -> None:
        """Start the threads, one for each listener."""

    def drain(self) -> None:
        """Take no more connections, and close each one after its last answer."""

    def stop(self) -> None:
        """End the threads at once, with all their connections."""

    def synchronize(self) -> None:
        """Wait until every thread has done what it was asked before."""

    def serve(
        self,
        index: int,
        name: str,
        version: str,
        inputs: list[Spec],
        outputs: list[Spec],
        max_batch: int,
        objective: int,
        priorities: Mapping[int, int],
        applications: Sequence[str],
        numbered: Numbered | None = None,
        tokenized: tuple[int, list[Spec]] | None = None,
    ) -> None:
        """Take plain calls of a model from now on, without Python; priorities have objectives of their own.
        Where it is *numbered*, the shapes of its items are, in the place of a length: of each axis the input,
        the dimension and the buckets, and the last number before each cell. Where its calls are *tokenized*,
        the number of the tokenizer, and the inputs of workers."""

    def withhold(self, name: str, why: str) -> None:
        """Pass calls of a model to Python from now on, for that reason."""

    def fd(self) -> int:
        """Return a descriptor that can be read while something waits in `passed`."""

    def passed(self) -> list[PassedBytes]:
        """Take what waits for Python: bytes, and what became of connections."""

    def write(self, connection: int, data: bytes) -> None:
        """Send bytes to a client."""

    def tell_when_sent(self, connection: int) -> None:
        """Pass SENT once the client has taken all that was written."""

    def pause(self, connection: int, paused: bool) -> None:
        """Read nothing more of a client for now, or read on."""

    def close(self, connection: int) -> None:
        """Close a connection after all that was written."""

    def linger(self, connection: int) -> None:
        """Close it so that a client in the middle of sending can still read why."""

    def abort(self, connection: int) -> None:
        """Close a connection at once."""

    def take_back(self, connection: int, received: int, data: bytes) -> None:
        """Send the rest of an answer; if nothing came after the first *received* bytes, calls need no Python
        again."""

def user_of_peer(fd: int) -> int:
    """Return which user of this machine is at the other end of a connection over loopback, or -2."""

DATA: int = 0

END: int = 1

SENT: int = 2

LOST: int = 3

class Grpc:
    """The network threads that speak gRPC; *first* is their first origin. What is asked of a call that is
    gone is forgotten."""

    def __init__(
        self,
        exchange: Exchange,
        listeners: Sequence[int],
        first: int,
        head_bytes: int,
        body_bytes: int,
        message_bytes: int,
        held_bytes: int,
        request_ns: int,
        keep_alive_ns: int,
        keys: Sequence[str],
    ) -> None: ...
    def connections(self) -> int:
        """Return how many connections are open."""

    def held(self) -> int:
        """Return how many bytes are held of requests that are not whole, and of answers that nobody takes."""

    def turned_away(self) -> int:
        """Return for how many connections there was no descriptor."""

    def long_way(self) -> dict[str, int]:
        """Return how often something was passed to Python, by reason."""

    def cpu_ns(self) -> list[int]:
        """Return the CPU time that each thread has had."""

    def start(self) -> None:
        """Start the threads, one for each listener."""

    def drain(self) -> None:
        """Take no more connections, and close each one after its last answer."""

    def stop(self) -> None:
        """End the threads at once, with all their connections."""

    def synchronize(self) -> None:
        """Wait until every thread has done what it was asked before."""

    def serve(
        self,
        index: int,
        name: str,
        version: str,
        inputs: list[Spec],
        outputs: list[Spec],
        max_batch: int,
        objective: int,
        priorities: Mapping[int, int],
        applications: Sequence[str],
        numbered: Numbered | None = None,
        tokenized: tuple[int, list[Spec]] | None = None,
    ) -> None:
        """Take plain calls of a model from now on, without Python; priorities have objectives of their own.
        Where it is *numbered*, the shapes of its items are, in the place of a length: of each axis the input,
        the dimension and the buckets, and the last number before each cell. Where its calls are *tokenized*,
        the number of the tokenizer, and the inputs of workers."""

    def withhold(self, name: str, why: str) -> None:
        """Pass calls of a model to Python from now on, for that reason."""

    def fd(self) -> int:
        """Return a descriptor that can be read while something waits in `passed`."""

    def passed(self) -> list[PassedCall]:
        """Take what waits for Python, some at a time: calls, their messages, and what became of them."""

    def send(self, connection: int, stream: int, message: bytes) -> None:
        """Send a message of a call."""

    def finish(
        self, connection: int, stream: int, status: int, details: str, trailing: Sequence[tuple[str, str]]
    ) -> None:
        """End a call with a status and trailing metadata."""

    def taken(self, connection: int, stream: int, bytes: int) -> None:
        """Say that a message of so many bytes was read: the client may send more."""

    def forgotten(self, metadata: int) -> None:
        """Say that Python has nothing of a call any more, whose metadata had so many bytes."""

    def heads(self) -> int:
        """Return how many bytes open streams, their metadata and unfinished frames take."""

    def long_calls(self) -> int:
        """Return how many calls Python has, or wait for it."""

    def left(self) -> dict[str, int]:
        """Return how many connections were closed from this side, by reason."""

    def tell_when_sent(self, connection: int, stream: int) -> None:
        """Pass CALL_SENT once the client has taken all that was sent of a call."""

CALL: int = 0

MESSAGE: int = 1

CALL_END: int = 2

CALL_SENT: int = 3

LEFT: int = 4
