"""The live cluster turns what is seen into events, and what the books say into orders.

Nothing here reads a clock or touches a process. `step(now)` looks at the machines, lets the same engine and
policy decide that run simulated, has the journal write it down, and only then gives orders. Orders follow
from the books alone: what should run and does not is started, what runs and should not is stopped. So an
arbiter that was killed at any point goes on by looking again.

GPUs change hands in the books at once, and in the world when whoever was there has left: a run is started
when its GPUs, and its own earlier run, are out of the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from astrarium.cluster import contract
from astrarium.cluster.live.backend import (
    Backend,
    JobCommand,
    MachineStatus,
    Order,
    RunKey,
    RunPart,
    RunStatus,
    Sickness,
    Snapshot,
)
from astrarium.cluster.live.memory import EndedRun, JobKey, Journal, Memory
from astrarium.cluster.machines import Machine
from astrarium.cluster.policies import ClusterPolicy
from astrarium.cluster.state import AppRow, ClusterState, JobRow
from astrarium.core.engine import Engine
from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.core.timers import Timers
from astrarium.core.trace import Step


class Options(msgspec.Struct, frozen=True):
    """How a live cluster treats failures, progress and handovers. A job that fails more often than *retries*
    without getting further takes its app with it. News of progress reach the policy no more often than
    *progress*. Who was there before has *handover* to leave: for so long at most, the lease of those who wait
    for it does not run."""

    retries: int = 2
    progress: Time = 5 * SECOND
    handover: Time = 60 * SECOND


def expired(
    now: Time, state: ClusterState, memory: Memory, handover: Time
) -> Iterator[contract.LeaseExpired]:
    """Yield the leases that have ended; time until others had left their GPUs does not count."""
    for app, row in state.apps.items():
        if all(until > now for until in row.leases.values()):
            continue
        extra = _waited(now, row, memory, handover)
        over = [gpu for gpu, until in row.leases.items() if until + extra.get(gpu, 0) <= now]
        for until in sorted({row.leases[gpu] for gpu in over}):
            yield contract.LeaseExpired(app, tuple(gpu for gpu in over if row.leases[gpu] == until), until)


def _waited(now: Time, row: AppRow, memory: Memory, handover: Time) -> dict[int, Time]:
    """Return, by GPU, for how long the app could not use it, since somebody else had not left yet. A lease
    that has ended in spite of that makes up for it only once."""
    extra: dict[int, Time] = {}
    for number, job in row.jobs.items():
        key = RunKey(row.app.id, number, job.run)
        since = memory.ordered.get(key)
        waited = min(memory.late.get(key, 0) if since is None else now - since, handover)
        if any(row.leases.get(gpu, FOREVER) + waited <= now for gpu in job.gpus):
            memory.late.pop(key, None)
        extra.update(dict.fromkeys(job.gpus, waited))
    return extra


class LiveCluster:
    """The books of a live cluster, its policy and its machines, one step at a time."""

    def __init__(
        self,
        state: ClusterState,
        policy: ClusterPolicy,
        backend: Backend,
        journal: Journal,
        tasks: Mapping[int, JobCommand],
        options: Options | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.state = state
        self._backend = backend
        self._journal = journal
        self._tasks = tasks
        self._engine: Engine[ClusterState, contract.Event, contract.Action] = Engine(
            state, policy, validate=True
        )
        self._options = options or Options()
        self.memory = memory or Memory()
        self._told_at: dict[RunKey, Time] = {}
        self._asked: set[RunKey] = set()  # to leave, by us
        self._ours: set[RunKey] = set()  # runs that we have started
        self._process: dict[RunKey, RunKey] = {}  # by the run of the books: as which it was started
        self._tried: set[int] = set()  # GPUs that were ordered to be judged anew
        self._retried = False  # there are more of them, and that is not written yet
        self.unwatched: list[str] = []  # machines
        self.ended: list[EndedRun] = []  # in the last step
        self.held_up: dict[RunKey, str] = {}  # runs that cannot begin yet, and why
        self.troubles: dict[RunKey, str] = {}  # of runs that go on

    def step(self, now: Time, news: Iterable[contract.Event] = ()) -> bool:
        """Look, decide and give orders; return whether anything happened. *news*: apps that came or went."""
        snapshot = self._look()
        ended = list[EndedRun]()
        self.ended = ended
        self.troubles = {key: run.trouble for key, run in snapshot.runs.items() if run.trouble}
        self.held_up = {key: run.error for key, run in snapshot.runs.items() if run.error and not run.ended}
        events: list[contract.Event] = [
            *news,
            *self._runs(now, snapshot, ended),
            *self._machines(snapshot),
            *self._health(snapshot),
            *expired(now, self.state, self.memory, self._options.handover),
            *Timers(self.memory.timers).due(now),
        ]
        if events or ended or self._retried:
            self._retried = False
            actions = self._engine.step(now, events)
            Timers(self.memory.timers).set_from(actions)
            for key in self._wanted():
                if key not in self.memory.open:
                    self.memory.open[key], self.memory.ordered[key] = False, now
            self._journal.write(Step(now, tuple(events), tuple(actions)), self.memory, ended)
            self.memory.began.clear()
        self.settle(snapshot, self._wanted())
        self._try_again()
        return bool(events)

    def retry(self, gpu: int) -> None:
        """Use a GPU again that has failed, as soon as it is well: it is judged anew."""
        self.memory.retrying.add(gpu)
        self._tried.discard(gpu)
        self._retried = True

    def drain(self) -> bool:
        """Ask all that runs to leave with a checkpoint, and return whether all have left. The books are not
        touched: they say what is to be begun again."""
        snapshot = self._look()
        self.settle(snapshot, {})
        return all(status.ended or self._runs_to_its_end(key) for key, status in snapshot.runs.items())

    def machines(self) -> Mapping[str, MachineStatus]:
        return self._backend.look().machines

    def _look(self) -> Snapshot:
        """Return what is there. Processes that go on with other GPUs are shown as the run that they are now:
        in the books each change of GPUs is a new run."""
        snapshot = self._backend.look()
        runs = dict[RunKey, RunStatus]()
        self._process = {}
        for key, status in snapshot.runs.items():
            now = key._replace(run=status.run or key.run)
            runs[now], self._process[now] = status, key
        return Snapshot(snapshot.machines, runs)

    def _machines(self, snapshot: Snapshot) -> Iterator[contract.Event]:
        memory = self.memory
        for number, name in list(memory.machines.items()):
            if not self._as_it_was(number, snapshot.machines.get(name)):
                del memory.machines[number]
                yield contract.MachineLost(number)
                yield from self._lost(self.state.floor.gpus_of.get(number, ()))
        known = set(memory.machines.values())
        first = self.state.floor.known
        for name in sorted(snapshot.machines.keys() - known):
            status = snapshot.machines[name]
            number = memory.joined
            memory.machines[number], memory.joined = name, number + 1
            yield contract.MachineJoined(
                Machine(number, status.gpus, status.rack, status.slot, status.network)
            )
            for gpu, sickness in status.sick.items():
                yield contract.GpuFailed(first + gpu, sickness.why)
            first += status.gpus

    def _as_it_was(self, number: int, status: MachineStatus | None) -> bool:
        """Return whether a machine is the one that was known; with other GPUs it is another one."""
        known = self.state.floor.machines.get(number)
        return status is not None and known == Machine(
            number, status.gpus, status.rack, status.slot, status.network
        )

    def _health(self, snapshot: Snapshot) -> Iterator[contract.Event]:
        """Yield GPUs that have fallen sick, and those that were to be tried again and are well."""
        self.unwatched = [name for name, status in snapshot.machines.items() if not status.watched]
        sick = self._sick(snapshot)
        failed = self.state.failed
        memory = self.memory
        for gpu, sickness in sick.items():
            if gpu not in failed:
                yield contract.GpuFailed(gpu, sickness.why, sickness.lost)
                yield from self._lost((gpu,) if sickness.lost else ())
        for gpu in sorted(memory.retrying & failed.keys() - sick.keys()):
            yield contract.GpuRepaired(gpu)
        memory.retrying &= failed.keys() & sick.keys()

    def _sick(self, snapshot: Snapshot) -> dict[int, Sickness]:
        """Return the sick GPUs of machines that are in the books."""
        floor = self.state.floor
        names = self.memory.machines
        there = [machine for machine in floor.machines.values() if names.get(machine.id) in snapshot.machines]
        return {
            floor.all_of(machine)[gpu]: sickness
            for machine in there
            for gpu, sickness in snapshot.machines[names[machine.id]].sick.items()
        }

    def _lost(self, gone: Sequence[int]) -> Iterator[contract.JobStopped]:
        """Yield the runs on lost GPUs, back at their last checkpoints, unless seen to end before."""
        for key, row in self._wanted().items():
            if not set(gone).isdisjoint(row.gpus) and key not in self.memory.closed:
                yield contract.JobStopped(*key, _of(row, self.memory.kept.get(key, row.done / row.job.work)))

    def _runs(self, now: Time, snapshot: Snapshot, ended: list[EndedRun]) -> Iterator[contract.Event]:
        memory = self.memory
        wanted = self._wanted()
        sick = self._sick(snapshot).keys()
        memory.closed &= snapshot.runs.keys()
        memory.kept = {key: part for key, part in memory.kept.items() if key in wanted}
        memory.ordered = {key: since for key, since in memory.ordered.items() if key in wanted}
        memory.late = {key: late for key, late in memory.late.items() if key in wanted}
        for key, status in snapshot.runs.items():
            if key in memory.closed:
                continue
            ended += self._gone_on(key)
            if status.ended:
                memory.closed.add(key)
                memory.open.pop(key, None)
                ended.append(EndedRun(key, status))
                yield from self._ended(key, status, not sick.isdisjoint(status.gpus))
                continue
            memory.open[key] = True
            if key in memory.ordered:
                memory.late[key], memory.began[key] = now - memory.ordered.pop(key), now
            if key in wanted:
                memory.kept[key] = status.kept
                yield from self._progress(now, key, status)
        ended += self._vanished(snapshot, wanted)

    def _gone_on(self, key: RunKey) -> Iterator[EndedRun]:
        """Yield the earlier runs as which the processes of a run have been known."""
        for before in [
            opened for opened in self.memory.open if opened[:2] == key[:2] and opened.run < key.run
        ]:
            if before.run >= self._process[key].run:
                started = self.memory.open.pop(before)
                yield EndedRun(before, RunStatus((), "resized" if started else "unstarted"))

    def _vanished(self, snapshot: Snapshot, wanted: Mapping[RunKey, JobRow]) -> Iterator[EndedRun]:
        """Yield runs that no machine shows and nobody wants: given up early, or gone with theirs."""
        for key in [key for key in self.memory.open if key not in snapshot.runs and key not in wanted]:
            yield EndedRun(key, RunStatus((), "lost" if self.memory.open.pop(key) else "unstarted"))

    def _ended(self, key: RunKey, status: RunStatus, on_sick: bool) -> Iterator[contract.Event]:
        """Yield what the end of a run means; who was *on_sick* GPUs is not to blame for it."""
        row = self._row(key)
        if row is None or row.finished:
            return
        if status.ended == "finished":  # whatever the books wanted of it meanwhile
            yield contract.JobFinished(key.app, key.job, row.run, late=not row.gpus)
        elif row.run != key.run:  # a newer run waits for it, and begins where it ended
            if row.gpus:
                yield contract.JobProgressed(key.app, key.job, row.run, _of(row, status.kept))
        else:
            yield contract.JobStopped(*key, _of(row, status.kept))
            failed = self._failed(key, status) if row.gpus and not on_sick else ""
            if failed and self._too_often(key, status):
                yield contract.AppWithdrawn(key.app, f"job {key.job} failed: {failed}")

    def _failed(self, key: RunKey, status: RunStatus) -> str:
        """Return why a run has failed, or ""; a job that leaves again and again unasked fails too."""
        if status.ended in ("failed", "not found"):
            return status.error or "without a word"
        left = status.ended == "stopped" and key in self._ours and key not in self._asked
        return "it left with exit code 75, and was not asked to" if left else ""

    def _too_often(self, key: RunKey, status: RunStatus) -> bool:
        job = JobKey(key.app, key.job)
        times, far = self.memory.failures.get(job, (0, 0.0))
        times = 1 if status.kept > far else times + 1
        if status.ended == "not found":  # another try would find it no more than this one
            return True
        self.memory.failures[job] = times, max(far, status.kept)
        return times > self._options.retries

    def _progress(self, now: Time, key: RunKey, status: RunStatus) -> Iterator[contract.JobProgressed]:
        row = self._row(key)
        told_at = self._told_at.setdefault(key, now)
        if row is not None and now - told_at >= self._options.progress:
            self._told_at[key] = now
            yield contract.JobProgressed(*key, _of(row, status.progress))

    def settle(self, snapshot: Snapshot, wanted: Mapping[RunKey, JobRow]) -> None:
        """Give the orders that bring the machines to what is *wanted*. All of them may be given again."""
        alive = {key: status for key, status in snapshot.runs.items() if not status.ended}
        for key in alive:
            if key not in wanted and not self._runs_to_its_end(key):
                self._asked.add(key)
                if not self._resize(key, alive, wanted):
                    self._backend.stop(self._process[key])
        taken = {gpu for status in alive.values() for gpu in status.gpus}
        running = {JobKey(key.app, key.job) for key in alive}
        for key, row in wanted.items():
            clear = not taken & set(row.gpus) and JobKey(key.app, key.job) not in running
            if clear and key not in snapshot.runs:
                self._ours.add(key)
                self._backend.start(self._order(key, row))
        for key, status in snapshot.runs.items():
            if status.ended and key in self.memory.closed:
                self._ours.discard(key)
                self._asked.discard(key)
                self._told_at.pop(key, None)
                self._backend.forget(self._process[key])

    def _resize(
        self, key: RunKey, alive: Mapping[RunKey, RunStatus], wanted: Mapping[RunKey, JobRow]
    ) -> bool:
        """Have a run go on with more or fewer GPUs, once nobody else is there; return whether it can."""
        new = next((later for later in wanted if later[:2] == key[:2]), None)
        has = set(alive[key].gpus)
        task = self._tasks.get(key.app)
        if new is None or task is None or not task.elastic:
            return False
        gets = set(wanted[new].gpus)
        if not (has <= gets or gets <= has):
            return False
        others = {gpu for other, status in alive.items() if other != key for gpu in status.gpus}
        order = self._order(new, wanted[new])
        return bool(others & gets) or self._backend.resize(self._process[key], order)

    def _try_again(self) -> None:
        for gpu in self.memory.retrying - self._tried:
            machine, number = self.state.floor.place(gpu)
            self._backend.retry(self.memory.machines[machine], number)
        self._tried = set(self.memory.retrying)

    def _runs_to_its_end(self, key: RunKey) -> bool:
        """Return whether a run cannot be stopped and is still wanted."""
        task = self._tasks.get(key.app)
        return task is not None and task.on_stop == "never" and self._row(key) is not None

    def _order(self, key: RunKey, row: JobRow) -> Order:
        app = self.state.apps[key.app]
        floor = self.state.floor
        parts = tuple(
            RunPart(self.memory.machines[machine], tuple(floor.place(gpu)[1] for gpu in gpus))
            for machine, gpus in floor.by_machine(row.gpus).items()
        )
        return Order(key, app.app.name, row.gpus, parts, self._tasks[key.app], app.phase)

    def _wanted(self) -> dict[RunKey, JobRow]:
        return {
            RunKey(app, job, row.run): row
            for app, app_row in self.state.apps.items()
            for job, row in app_row.jobs.items()
            if row.gpus
        }

    def _row(self, key: RunKey) -> JobRow | None:
        app = self.state.apps.get(key.app)
        return app.jobs.get(key.job) if app is not None else None


def _of(row: JobRow, part: float) -> Time:
    """Return so much of the work of a job; all of it is done only when the job has ended."""
    return max(0, min(round(row.job.work * part), row.job.work - 1))
