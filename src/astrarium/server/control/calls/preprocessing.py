"""Preprocessing makes a model's inputs in the frontend, by code of the user's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from astrarium.server.contract import Kind, Refused
from astrarium.server.control.calls.tensor_store import TensorStore
from astrarium.server.control.calls.ticket import Ticket
from astrarium.server.control.texts.text_queue import NO_MEMORY
from astrarium.serving.live.backends.blame import blamed
from astrarium.serving.live.backends.references import loaded
from astrarium.serving.live.limits import violation
from astrarium.serving.live.packing import unlike
from astrarium.serving.live.tensors import Tensor, TensorSpec, datatype_of, to_array, to_bytes

THREADS = 4
Hook = Callable[..., Mapping[str, Any]]


class Preprocessor:
    """The preprocessor runs hooks in threads, and calls *when_ready* when inputs are made."""

    def __init__(self, tensor_store: TensorStore, when_ready: Callable[[], None]) -> None:
        self._tensor_store = tensor_store
        self._when_ready = when_ready
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="preprocess")
        self._hooks: dict[str, Hook] = {}
        self._running: set[asyncio.Task[None]] = set()

    def load(self, model: str, reference: str) -> None:
        """Load what makes a model's inputs now, so that a mistake shows before the first request."""
        self._hooks[reference] = loaded(reference, Path(), f"models.{model}.preprocess")

    def prepare(self, ticket: Ticket, reference: str) -> None:
        """Make a call's inputs."""
        ticket.inputs_ready = False
        task = asyncio.get_running_loop().create_task(self._prepare(ticket, reference))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _prepare(self, ticket: Ticket, reference: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            inputs = await loop.run_in_executor(self._threads, self._made_inputs, ticket, reference)
            if not self._tensor_store.take_in(ticket, inputs):
                ticket.broken = NO_MEMORY
                ticket.blamed = Kind.OVERLOADED
        except Refused as refused:
            ticket.broken = refused.reason
            ticket.blamed = refused.kind
        except Exception as error:
            ticket.broken = f"its preprocessing failed: {blamed(error)}"
        ticket.inputs_ready = True
        self._tensor_store.settle(ticket)  # its call may have ended meanwhile
        self._when_ready()

    def _made_inputs(self, ticket: Ticket, reference: str) -> list[Tensor]:
        """Make the inputs, all of it in the thread: texts become objects and bytes again one by one."""
        arrays = {tensor.name: to_array(tensor) for tensor in ticket.call.inputs}
        answer = self._hooks[reference](**arrays)
        inputs = [made_tensor(spec, answer, ticket.call.rows) for spec in ticket.tensors.inputs]
        if places := unlike(ticket.tensors.inputs, [tensor.shape for tensor in inputs]):
            lengths = " and ".join(f"{inputs[at].name} of length {inputs[at].shape[1]}" for at in places)
            raise ValueError(f"it made {lengths}, which must be equally long")
        for spec, tensor in zip(ticket.tensors.inputs, inputs, strict=True):
            if wrong := violation(spec, tensor.shape, tensor.data):
                raise Refused(
                    Kind.BAD_REQUEST, f"its preprocessing made a value that the model does not take: {wrong}"
                )
        return inputs

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def made_tensor(spec: TensorSpec, answer: Mapping[str, Any], rows: int) -> Tensor:
    if spec.name not in answer:
        raise ValueError(f"it made no {spec.name}, which the model needs; it made {', '.join(answer)}")
    array = answer[spec.name]
    if array.shape[:1] != (rows,) or not spec.admits(array.shape[1:]):
        raise ValueError(f"{spec.name}: expected shape {(rows, *spec.shape)}, got {array.shape}")
    if datatype_of(array) != spec.datatype:
        raise ValueError(f"{spec.name}: expected {spec.datatype}, got {datatype_of(array)}")
    return Tensor(spec.name, spec.datatype, array.shape, to_bytes(array))
