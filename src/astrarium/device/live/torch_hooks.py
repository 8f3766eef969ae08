"""Hooks find the iterations of an unmodified PyTorch loop.

A training iteration goes from the model's forward to the end of the optimizer's step, of all of them where
there are several. Gradients may be zeroed before or after, and further calls of the model in between belong
to the iteration (gradient accumulation, a closure, a second look). Inference, that is without an optimizer,
without gradients or in evaluation mode, is an iteration of its own: one call of the model.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from astrarium.core.errors import InputError
from astrarium.device.live.errors import OutOfTurn
from astrarium.device.live.live_job import LiveJob

LONG = 64  # calls of the model without a step: the loop may have another shape than we think


def owned_bytes(model: nn.Module, optimizers: Sequence[Optimizer] = ()) -> int:
    """Return the bytes on a GPU of parameters, buffers, their gradients and the optimizers' states."""
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise InputError("optimizer", type(optimizer).__name__, "a torch.optim.Optimizer")
    states = (
        value for optimizer in optimizers for state in optimizer.state.values() for value in state.values()
    )
    sizes: dict[int, int] = {}
    for tensor in chain(model.parameters(), model.buffers(), states):
        for part in (tensor, getattr(tensor, "grad", None)):
            if isinstance(part, torch.Tensor) and part.is_cuda:
                sizes[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
    return sum(sizes.values())


def _calls_on_the_stack(model: nn.Module) -> int:
    """Return how many calls of the model are on this thread's stack."""
    frame = sys._getframe(1)
    calls = 0
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is nn.Module._call_impl.__code__:
            calls += frame.f_locals.get("self") is model
    return calls


@contextmanager
def followed(job: LiveJob, model: nn.Module, optimizers: Sequence[Optimizer] = ()) -> Iterator[None]:
    loop = _Loop(job, model, optimizers)
    handles = [
        model.register_forward_pre_hook(loop.before_forward, prepend=True),
        model.register_forward_hook(loop.after_forward, always_call=True),
    ]
    for optimizer in optimizers:
        handles.append(optimizer.register_step_pre_hook(loop.before_step))
        handles.append(optimizer.register_step_post_hook(loop.after_step))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Loop:
    def __init__(self, job: LiveJob, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._job = job
        self._model = model
        self._thread = threading.get_ident()
        self._optimizers = {id(optimizer) for optimizer in optimizers}
        self._stepped: set[int] = set()  # optimizers, in this iteration
        self._depth = 0  # a model may call itself
        self._calls = 0  # of the model, in this iteration
        self._one_call = False  # the iteration ends with the call of the model that began it
        self._in_doubt = False  # the last call could have been training, but for evaluation mode
        self._trains_in_eval = False

    def before_forward(self, module: nn.Module, inputs: Any) -> None:
        self._check_thread()
        self._recount(module, own=1)
        self._depth += 1
        if self._depth > 1:
            return
        if not self._job.under_way:
            self._begin(one_call=not self._trains())
        self._calls += 1
        if self._calls == LONG:
            self._warn()

    def after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """End an inference. PyTorch's handler calls this also where forward raised; the job may handle that,
        and go on. A call by another thread that was refused comes here too, and is ignored."""
        if threading.get_ident() != self._thread:
            return
        self._depth -= 1
        if self._depth == 0 and self._one_call and self._job.under_way:
            error = sys.exc_info()[1] if output is None else None
            self._job.keep(output)
            self._job.end(error, survives=True)

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Begin an iteration if none is under way: a step by itself is one too."""
        self._check_thread()
        self._recount(self._model, own=0)
        self._trains_in_eval |= self._in_doubt
        self._in_doubt = False
        if not self._job.under_way:
            self._begin(one_call=False)

    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._stepped.add(id(optimizer))
        if self._stepped == self._optimizers and self._depth == 0:
            self._job.end()

    def _recount(self, model: nn.Module, own: int) -> None:
        """Forget calls that are not on the stack any more. PyTorch does not tell hooks of a call that Ctrl-C
        has ended, and a loop may handle that and go on. *own* is the one that just begins."""
        if not self._depth:
            return
        visible = _calls_on_the_stack(model)
        if own <= visible <= own + self._depth - 1:
            self._depth = visible - own
            if not self._depth and self._one_call and self._job.under_way:
                self._job.end()

    def _begin(self, one_call: bool) -> None:
        self._stepped.clear()
        self._calls = 0
        self._one_call = one_call
        self._job.begin()

    def _trains(self) -> bool:
        """Tell whether this call trains. Evaluation mode ends an iteration with the call, until a step shows
        that it was training."""
        if not self._optimizers or not torch.is_grad_enabled():
            self._in_doubt = False
            return False
        self._in_doubt = not self._model.training
        return self._model.training or self._trains_in_eval

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise OutOfTurn(
                f"job {self._job.name}: its model or optimizer is used by the thread "
                f"{threading.current_thread().name!r}; attach in the thread that runs the loop"
            )

    def _warn(self) -> None:
        warnings.warn(
            f"job {self._job.name}: {LONG} calls of its model without a step of "
            f"{'its optimizer' if len(self._optimizers) == 1 else 'all its optimizers'}, all in one turn, "
            "while others wait. Evaluate under torch.no_grad(), or use `with job.iteration():`",
            stacklevel=2,
        )
