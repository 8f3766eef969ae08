"""A program is made of a file or Python code; it takes tensors, batch first, and gives tensors.

It is built in main memory, with its weights, and then placed on a device. A process in reserve builds it
before there is a device to place it on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from astrarium.core.errors import InputError
from astrarium.serving.live import fills
from astrarium.serving.live.backends import examples, references
from astrarium.serving.live.backends.blame import blamed, first_sentence
from astrarium.serving.live.backends.contract import ModelFiles, package
from astrarium.serving.live.packing import is_packed
from astrarium.serving.live.tensors import BF16, BYTES, Array, TensorSpec, datatype_of

ENDINGS = (".pt2", ".pt")
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_SHORT = 8  # a length for open dimensions; twice as many is another


class Program(NamedTuple):
    call: Callable[..., Any]
    inputs: tuple[TensorSpec, ...]
    weights: int = 0  # bytes
    eager: Callable[..., Any] | None = None  # the same, operator by operator, where `call` is compiled
    module: Any = None  # whose code keeps what it likes between calls; an exported program has none


class Built(NamedTuple):
    """A built program is in main memory; *exported* ones are of torch.export, others are modules."""

    program: Any
    inputs: tuple[TensorSpec, ...]
    exported: bool
    weights: int  # bytes, as they were made


class _Prepared(NamedTuple):
    files: ModelFiles
    stamp: tuple[int, int]
    built: Built


_prepared: list[_Prepared] = []  # built in reserve; each is placed once


class Runner(Protocol):
    def run(self, arrays: Sequence[Array], size: int) -> Mapping[str, Array]: ...


def prepare(torch: Any, files: ModelFiles) -> None:
    """Build a program now, for the next `built` of the same files; with one thread, as others are served."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _prepared.append(_Prepared(files, _stamp(files), built(torch, files)))
    finally:
        torch.set_num_threads(threads)


def forget() -> None:
    """Free what was prepared and never built."""
    _prepared.clear()


def built(torch: Any, files: ModelFiles) -> Built:
    """Return a program in main memory: the one that was prepared, unless its file has changed since."""
    for known in _prepared:
        if known.files == files:
            _prepared.remove(known)
            if known.stamp == _stamp(files):
                return known.built
            break
    return _built(torch, files)


def placed(torch: Any, built: Built, files: ModelFiles, device: str) -> Program:
    """Return a program on its device; its weights leave main memory."""
    module = _placed_export(built, device) if built.exported else built.program.to(device)
    dtype = files.options.get("dtype")
    plain = _converting(torch, module, dtype)
    known = built.inputs, built.weights
    keeping = None if built.exported else module
    if not files.options.get("compile", False):
        return Program(plain, *known, module=keeping)
    return Program(_converting(torch, torch.compile(module), dtype), *known, plain, keeping)


def _built(torch: Any, files: ModelFiles) -> Built:
    model = str(files.options.get("model", ""))
    if Path(model).suffix == ".pt2":
        program, inputs = _exported(torch, references.existing(model, files.base, "model"), files)
        weights = _bytes_of([*program.state_dict.values(), *program.constants.values()])
    else:
        program = _module(torch, model, files)
        inputs = files.inputs
        weights = _bytes_of([*program.parameters(), *program.buffers()])
        program = _cast(torch, program.eval(), files.options.get("dtype"))
    _check_inputs(inputs)
    inputs = fills.marked(inputs, files.lengths, files.mask, files.offsets, files.pack)
    return Built(program, inputs, Path(model).suffix == ".pt2", weights)


def _bytes_of(tensors: Sequence[Any]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors if hasattr(one, "element_size"))


def _cast(torch: Any, module: Any, dtype: str | None) -> Any:
    return module.to(getattr(torch, DTYPES[dtype])) if dtype else module


def _stamp(files: ModelFiles) -> tuple[int, int]:
    """Return what tells a model's file from a later one of the same name; zeros where there is no file."""
    model = str(files.options.get("model", ""))
    name = model if Path(model).suffix in ENDINGS else model.rpartition(":")[0]
    try:
        state = (files.base / name).stat()
    except OSError:
        return 0, 0
    return state.st_mtime_ns, state.st_size


def tried_outputs(runner: Runner, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the outputs of a model that declares none, from a trial run, or two where a size is open."""
    try:
        short = long = _tried(runner, inputs, lambda low, high: min(max(low, _SHORT), high - 1))
        if any(spec.open_dimensions for spec in inputs):  # an output that differs between two is open too
            long = _tried(runner, inputs, lambda low, high: min(max(low + 1, 2 * _SHORT), high))
    except Exception as error:
        expected = f"a list of the outputs: a trial run to find them out failed; {blamed(error)}"
        raise InputError("outputs", None, expected) from error
    common = _common_packed if is_packed(inputs) else _common
    return tuple(
        TensorSpec(name, datatype_of(array), common(array.shape, long[name].shape))
        for name, array in short.items()
    )


def _tried(runner: Runner, inputs: Sequence[TensorSpec], choose: examples.Choose) -> dict[str, Array]:
    batch = examples.batch(examples.with_lengths(inputs, choose), 2, np.random.default_rng(0))
    return {name: array.copy() for name, array in runner.run(list(batch.inputs.values()), 2).items()}


def _common(short: tuple[int, ...], long: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an item, of two batches of as many items."""
    return tuple(size if size == other else -1 for size, other in zip(short[1:], long[1:], strict=True))


def _common_packed(short: tuple[int, ...], long: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same where what follows the lengths is packed along the first dimension."""
    follows = short[:1] != long[:1]
    return (-1,) * follows + _common(short, long)


def _exported(torch: Any, path: Path, files: ModelFiles) -> tuple[Any, tuple[TensorSpec, ...]]:
    if files.options.get("dtype"):
        raise InputError("dtype", files.options["dtype"], "to be left out for a .pt2: export it in that type")
    warned: list[BaseException] = []
    try:
        with _unlogged("torch.export", warned):
            program = torch.export.load(str(path))
    except Exception as error:
        reason = first_sentence((warned or [error])[0])
        raise InputError("model", str(path), f"a file of torch.export.save; {reason}") from error
    inputs = _exported_inputs(program)
    if files.inputs and len(files.inputs) != len(inputs):
        raise InputError("inputs", len(files.inputs), f"{len(inputs)} inputs, as in the exported program")
    return program, files.inputs or inputs


def _placed_export(built: Built, device: str) -> Any:
    program = built.program
    if device != "cpu":
        program = package("torch.export.passes", "torch").move_to_device_pass(program, device)
    keywords = list((program.example_inputs or ((), {}))[1])
    return _by_position(program.module(), len(built.inputs) - len(keywords), keywords)


@contextmanager
def _unlogged(name: str, errors: list[BaseException]) -> Iterator[None]:
    """Keep PyTorch from logging what goes wrong, with its traceback; the error that it raises says less.

    *errors* hears of it instead.
    """

    def hear(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        errors.extend([error] if error is not None else [])
        return False

    logger = logging.getLogger(name)
    logger.addFilter(hear)
    try:
        yield
    finally:
        logger.removeFilter(hear)


def _by_position(module: Any, positional: int, keywords: Sequence[str]) -> Any:
    """Return a module called by position; an exported program insists on keywords if exported with them."""

    def call(*tensors: Any) -> Any:
        return module(*tensors[:positional], **dict(zip(keywords, tensors[positional:], strict=True)))

    return call if keywords else module


def _exported_inputs(program: Any) -> tuple[TensorSpec, ...]:
    wanted = program.graph_signature.user_inputs
    nodes = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    specs = []
    for name in wanted:
        first, *rest = (size if isinstance(size, int) else -1 for size in nodes[name].shape)
        if first != -1:
            expected = "a program exported with a dynamic first dimension (dynamic_shapes), the batch"
            raise InputError("model", f"{name}{list(nodes[name].shape)}", expected)
        kind = str(nodes[name].dtype).removeprefix("torch.")
        datatype = BF16 if kind == "bfloat16" else datatype_of(np.empty(0, kind))
        specs.append(TensorSpec(name, datatype, tuple(rest)))
    return tuple(specs)


def _module(torch: Any, model: str, files: ModelFiles) -> Any:
    if Path(model).suffix == ".pt":
        path = references.existing(model, files.base, "model")
        module = _scripted(torch, path)
    else:
        module = _made(
            references.loaded(model, files.base, "model"), files.options.get("arguments") or {}, model
        )
    if not isinstance(module, torch.nn.Module):
        raise InputError("model", model, f"code that makes an nn.Module, not a {type(module).__name__}")
    return module


def _scripted(torch: Any, path: Path) -> Any:
    try:
        return torch.jit.load(str(path), map_location="cpu")
    except Exception as error:
        raise InputError("model", str(path), f"a file of torch.jit.save; {first_sentence(error)}") from error


def _made(factory: Any, arguments: Mapping[str, Any], model: str) -> Any:
    try:
        return factory(**arguments)
    except Exception as error:
        raise InputError("model", model, f"code that makes an nn.Module; {blamed(error)}") from error


def _converting(torch: Any, module: Any, dtype: str | None) -> Any:
    """Return a module that converts floating inputs to its own type."""
    if dtype is None:
        return module
    wanted = getattr(torch, DTYPES[dtype])

    def call(*tensors: Any) -> Any:
        return module(*(tensor.to(wanted) if tensor.is_floating_point() else tensor for tensor in tensors))

    return call


def _check_inputs(inputs: Sequence[TensorSpec]) -> None:
    if not inputs:
        raise InputError("inputs", None, "a list of the inputs: only a .pt2 file can tell them")
    for place, spec in enumerate(inputs):
        if spec.datatype == BYTES:
            raise InputError(f"inputs[{place}].datatype", BYTES, "a type of numbers: PyTorch knows no texts")
