"""The admission refuses calls that could not be in time, most of all behind those that are open already."""

from __future__ import annotations

from astrarium.core.units import MICROSECOND, MILLISECOND, Time
from astrarium.server.contract import Kind, Refused
from astrarium.server.control.bounds import alone
from astrarium.server.control.plan import ModelPlan
from astrarium.serving.contract import ModelSpec, Setup

RETRY_AFTER = 1.0


def overloaded(reason: str) -> Refused:
    return Refused(Kind.OVERLOADED, f"overloaded: {reason}", RETRY_AFTER)


STRETCH = 100 * MILLISECOND  # long enough for some batches to end
SHARE = 0.5  # of the objective that calls may queue for then: a longer queue answers nobody more, only later
RECOVERY = 1.5  # by which a limit is forgotten after each stretch in which calls did not queue up


class OpenCallLimit:
    """This limit says how many calls of a model on *gpus* GPUs can be open and still be in time.

    It follows the rate at which the model's calls are answered.
    """

    def __init__(self, spec: ModelSpec, gpus: int, now: Time) -> None:
        self._promised = gpus / best if (best := best_time(spec)) else float("inf")
        self._queued = 2 * spec.max_batch * gpus  # so many open calls keep every GPU busy
        self._rate = self._promised  # answers per nanosecond
        self._began, self._answers, self._always_queued = now, 0, False

    def answered(self) -> None:
        self._answers += 1

    def too_many(self, calls: int, objective: Time, now: Time) -> bool:
        """Whether so many open calls are too many for a further one to be answered within *objective*."""
        if calls <= self._queued:
            self._always_queued = False
        if now - self._began >= STRETCH:
            self._next_stretch(now)
        return calls > self._rate * objective

    def _next_stretch(self, now: Time) -> None:
        if self._always_queued:
            self._rate = min(self._promised, SHARE * self._answers / (now - self._began))
        else:
            self._rate = min(self._promised, RECOVERY * self._rate)
        self._began, self._answers, self._always_queued = now, 0, True


def best_time(spec: ModelSpec) -> float:
    """Return the least GPU time of a request: its share of the best batch; 0 where times vary."""
    if spec.dynamic is not None:
        return 0.0
    return min(spec.latency[size] / size for size in range(1, spec.max_batch + 1))


TAKEN, CLOSED, TOO_LATE, FULL, AWAY, BACKLOG = range(6)  # verdicts, as in native/src/front/admission.h
PUNCTUAL = 0.9  # the share of answers that are to come within the margin
STEP = 100 * MICROSECOND  # how far one answer can move it, nearly: a millisecond in eleven answers
LARGEST = 0.4  # of an objective: with less than the rest of it, hardly a batch could be planned


class Admission:
    """The admission decides who is let in; where there are network threads, all ask its native twin instead.

    It counts open calls, and keeps the margins that deadlines are planned with: how much later than planned
    the answers of a model have lately been. Each late answer widens a margin by nine times what each punctual
    one narrows it.
    """

    def __init__(self, setup: Setup, most_open: int) -> None:
        self._open, self._margins = [0] * len(setup.models), [0.0] * len(setup.models)
        self._most_open, self._closed, self._back_at = most_open, True, 0
        self.plan(setup, 0, 0)

    def plan(self, setup: Setup, gpus: int, now: Time) -> None:
        gpus = max(1, gpus)  # without a worker, as if the one that is expected were here
        self._setup, self._limits = setup, [OpenCallLimit(spec, gpus, now) for spec in setup.models]

    def expect_worker(self, at: Time) -> None:
        """Hear when a worker can be expected, while none is up; 0 where one is."""
        self._back_at = at

    def close(self, closed: bool) -> None:
        self._closed = closed

    def admit(self, model: int, objective: Time, received: Time, now: Time) -> int:
        """Return a verdict; a call that is TAKEN is open until it has `ended`."""
        if self._closed:
            return CLOSED
        needed = alone(self._setup.models[model], self._setup.network)
        if now + needed > received + objective:
            return TOO_LATE
        if self._back_at + needed > received + objective:
            return AWAY
        if self.open() >= self._most_open:
            return FULL
        if self._limits[model].too_many(self._open[model], objective, now):
            return BACKLOG
        self._open[model] += 1
        return TAKEN

    def ended(self, model: int) -> None:
        self._open[model] -= 1

    def count_answer(self, model: int) -> None:
        """Count an answer for the limit of open calls."""
        self._limits[model].answered()

    def answered(self, model: int, slip: Time) -> None:
        """Hear by how much an answer was later than planned."""
        margin = self._margins[model]
        margin += PUNCTUAL * STEP if slip > margin else (PUNCTUAL - 1.0) * STEP
        self._margins[model] = min(max(0.0, margin), LARGEST * self._setup.models[model].slo)

    def margin(self, model: int) -> Time:
        return round(self._margins[model])

    def look(self, now: Time) -> None:
        """Follow the rates at which calls are answered: here the limits do so when they are asked."""

    def open(self) -> int:
        return sum(self._open)

    def open_of(self, model: int) -> int:
        return self._open[model]


def admit(admission: Admission, plan: ModelPlan, received: Time, objective: Time, now: Time) -> None:
    """Let a call in, or say why not."""
    verdict = admission.admit(plan.index, objective, received, now)
    if verdict == FULL:
        raise overloaded(f"{admission.open()} calls are open already, the most that may be")
    if verdict == BACKLOG:
        told = f"model {plan.name} has {admission.open_of(plan.index)} calls open"
        raise overloaded(f"{told}, more than can be answered in {objective / MILLISECOND:g} ms")
    if verdict == TOO_LATE:
        raise Refused(Kind.DEADLINE, f"model {plan.name}: the deadline can no longer be met")
    if verdict == AWAY:
        reason = f"model {plan.name}: no worker is up; one is expected soon, but not in time"
        raise Refused(Kind.UNAVAILABLE, reason, RETRY_AFTER)
    if verdict == CLOSED:
        raise Refused(Kind.UNAVAILABLE, "no calls are taken now")
