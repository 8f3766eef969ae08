"""A worker's models are loaded in threads beside the batches that run, one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from threading import Lock, Thread
from time import sleep
from typing import Any, NamedTuple, Protocol

from astrarium.core.quantities import Time
from astrarium.serving.live import fills, messages, packing
from astrarium.serving.live.backends import backends, check_packs, contract
from astrarium.serving.live.backends.contract import LoadedModel, ModelFiles, Place
from astrarium.serving.live.backends.precise_wait import Ready
from astrarium.serving.live.buckets import buckets_by_axis, buckets_of
from astrarium.serving.live.messages import LoadModel
from astrarium.serving.live.phases import Phases
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker import padding_trial, preparing
from astrarium.serving.live.worker.batch_turn import BatchTurn, Clock, ServedModel
from astrarium.serving.live.worker.lead import measured_lead
from astrarium.serving.live.worker.packing import together
from astrarium.serving.live.worker.padding import Padding

_PAUSE = 0.05  # seconds between two looks whether other models are still to be loaded


class LoadingHost(Protocol):
    """A worker as its models see it, from the thread of each load."""

    def send(self, news: messages.News) -> None: ...

    def wait_until(self, instant: Time, ready: Ready | None = None) -> bool: ...

    def check_device(self, tag: int) -> None:
        """Leave where the GPU is lost for this process."""

    def hold_garbage(self) -> None:
        """Take all that is there now for needed."""


class WorkerModels:
    """A worker's models by number.

    One that is replaced or unloaded is retired: closed once no batch can be using it. *native* (a
    `BatchLoop`) is told which models it can run without Python.
    """

    def __init__(self, place: Place, clock: Clock, host: LoadingHost, native: Any | None) -> None:
        self._place = place
        self._clock = clock
        self._host = host
        self._native = native
        self._models: dict[int, ServedModel] = {}
        self._one_load = Lock()
        self._to_load: list[LoadModel] = []  # orders whose models are not loaded yet
        self._withdrawn: list[LoadModel] = []  # of these, by an order to unload that came after them
        self._retired: list[ServedModel] = []

    def get(self, number: int) -> ServedModel | None:
        return self._models.get(number)

    @property
    def to_close(self) -> bool:
        """Whether a retired model is still there."""
        return bool(self._retired)

    def load(self, order: LoadModel) -> None:
        """Load a model in a thread, so that the models already there go on serving."""
        self._to_load.append(order)
        Thread(target=self._load_whole, args=(order,), daemon=True).start()

    def unload(self, number: int) -> None:
        self._withdrawn += [order for order in self._to_load if order.model == number]
        self._retire(self._models.pop(number, None))
        if self._native is not None:
            self._native.forget(number)
        self._host.send(messages.ModelUnloaded(number))

    def close_retired(self, turns: Iterable[BatchTurn]) -> None:
        """Close the retired models that none of these batches needs."""
        if self._retired:
            needed = {id(turn.served) for turn in turns}
            for retired in [model for model in self._retired if id(model) not in needed]:
                self._retired.remove(retired)
                retired.model.close()

    def _load_whole(self, order: LoadModel) -> None:
        try:
            self._load_aside(order)
        finally:
            self._to_load = [other for other in self._to_load if other is not order]
            self._withdrawn = [other for other in self._withdrawn if other is not order]
        self._complete(order.model)
        preparing.forget_unused(lambda: bool(self._to_load))

    def _load_aside(self, order: LoadModel) -> None:
        try:
            with self._one_load:  # importing users' code from two threads at once is asking for trouble
                if self._is_withdrawn(order):
                    return
                self._host.send(messages.ModelLoading(order.model))
                ready = self._ready_to_run(order)
                _check_tensors(ready, order.tensors)
                if self._is_withdrawn(order):
                    ready.model.close()
                    return
        except BaseException as error:  # a model that asks the process to exit is refused like any other
            self._host.check_device(-1)
            if self._is_withdrawn(order):
                return  # a later order says more
            self._host.send(messages.ModelRefused(order.model, error_text(error)))
            return
        replaced = self._models.get(order.model)
        self._models[order.model] = ServedModel.of(ready.model, ready.padding)
        self._make_known(order.model, ready.model, ready.padding)
        self._host.hold_garbage()
        self._retire(replaced)
        self._host.send(_loaded(order.model, ready))

    def _is_withdrawn(self, order: LoadModel) -> bool:
        return any(other is order for other in self._withdrawn)

    def _complete(self, number: int) -> None:
        """Do what a loaded model left for later, as long as no other model is to be loaded."""
        served = self._models.get(number)
        if served is None or not isinstance(served.model, contract.Partial) or not served.model.partial:
            return
        steps = served.model.rest()
        phases = Phases()
        while True:
            while self._to_load:
                sleep(_PAUSE)
            with self._one_load, phases.phase("graphs"):
                if next(steps, None) is None:
                    break
        if self._models.get(number) is served:
            self._host.send(messages.ModelComplete(number, self._clock(), phases))

    def _make_known(self, number: int, model: LoadedModel, padding: Padding) -> None:
        """Let native code run the model's batches, where it can."""
        if self._native is None:
            return
        timed = model.timed if isinstance(model, contract.TimedModel) else None
        graphs = model.graphs if isinstance(model, contract.GraphModel) else None
        if timed is not None:
            tensors = _plain(fills.sent(model.inputs)), _plain(model.outputs)
            self._native.know(number, list(timed.table), *tensors, list(timed.sources))
        elif graphs is not None:
            if padding.allowed:
                graphs.allow_padding()
            self._native.know_graphs(number, graphs)
        else:
            self._native.forget(number)

    def _ready_to_run(self, order: LoadModel) -> _ReadyModel:
        files = messages.files_from(order.files)
        phases = Phases()
        with phases.phase("load"):
            model = backends.get(files.backend)(files, self._place)
        with phases.phase("padding"):
            inputs = _inputs(model, files)
            padding = replace(together(inputs), buckets=_buckets(model, files, inputs))
            verdict = padding_trial.tried(model, padding, files.max_batch, self._place.device != "cpu")
            in_graphs = padding_trial.tried_in_graphs(model, padding, verdict, files.max_batch)
            if isinstance(model, contract.Bucketed):
                model.padding_is(in_graphs.padding == "safe")
        with phases.phase("warm-up"):
            model.warm_up(order.sizes)
        with phases.phase("lead"):
            lead = measured_lead(model, files.max_batch, self._clock)
        if isinstance(model, contract.Interruptible):
            model.wait_until = self._host.wait_until
        buckets = _buckets(model, files, inputs)
        padding = replace(together(inputs, model), allowed=verdict.padding == "safe", buckets=buckets)
        return _ReadyModel(model, padding, verdict, in_graphs, lead, phases)

    def _retire(self, model: ServedModel | None) -> None:
        if model is not None:
            self._retired.append(model)


class _ReadyModel(NamedTuple):
    """A model that was loaded and tried out, with all that was found out about it."""

    model: LoadedModel
    padding: Padding
    verdict: padding_trial.Verdict
    in_graphs: padding_trial.Verdict
    lead: tuple[Time, Time]
    phases: Phases


def _check_tensors(ready: _ReadyModel, served: int) -> None:
    """Refuse a model for which calls cannot be right that were read for the one that is served."""
    inputs, outputs = ready.padding.sent, tuple(ready.model.outputs)
    if not served or messages.fingerprint(inputs, outputs) == served:
        return
    ready.model.close()
    shown = ", ".join(f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in (*inputs, *outputs))
    raise ValueError(
        f"its inputs or outputs are no longer those that it is served with ({shown} now): "
        "unload the model first, so that calls that were read for the others are answered, and then load it"
    )


def _loaded(number: int, ready: _ReadyModel) -> messages.ModelLoaded:
    """Return the news of a loaded model; the phases that it has noted itself say more than ours."""
    model, phases, verdict = ready.model, ready.phases, ready.verdict
    report = model if isinstance(model, contract.Reporting) else None
    own = report.phases if report else {}
    in_company = padding_trial.warnings(verdict, ready.padding)
    in_graphs = padding_trial.graph_warnings(verdict, ready.in_graphs)
    return messages.ModelLoaded(
        number,
        ready.padding.sent,
        tuple(model.outputs),
        ready.lead,
        notes=tuple(report.notes) if report else (),
        warnings=(*(report.warnings if report else ()), *in_company, *in_graphs),
        weights=report.weights if report else 0,
        partial=isinstance(model, contract.Partial) and model.partial,
        phases={**own, "lead": phases["lead"], "padding": phases["padding"]} if own else dict(phases),
        padding=verdict.padding,
        padding_reason=verdict.reason,
        padding_advice=padding_trial.advice(verdict, ready.padding),
    )


def _inputs(model: LoadedModel, files: ModelFiles) -> tuple[TensorSpec, ...]:
    """Return a model's inputs, with those that the server fills, and packed if it wants them so."""
    if files.pack:
        check_packs(files, backends.get(files.backend))
        packing.check_outputs(model.outputs)
    return fills.marked(model.inputs, files.lengths, files.mask, files.offsets, files.pack)


def _buckets(
    model: LoadedModel, files: ModelFiles, inputs: Sequence[TensorSpec]
) -> tuple[tuple[int, ...], ...]:
    """Return the lengths that batches of a model are padded to, along each axis."""
    if files.sizes:
        fills.check_sizes(inputs, files.sizes)
        return buckets_by_axis(files, inputs)
    fills.check_lengths(inputs, files.buckets)
    if len(fills.axes_of(inputs)) != 1 or packing.is_packed(inputs):
        return ()
    own = model.buckets if isinstance(model, contract.Bucketed) else ()
    buckets = own or tuple(buckets_of(files, inputs))
    return (buckets,) if buckets else ()


def _plain(specs: Sequence[TensorSpec]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(spec.name, spec.datatype, spec.shape) for spec in specs]


def error_text(error: BaseException) -> str:
    """Return an error as a message carries it."""
    return f"{type(error).__name__}: {error}"[:2000]
