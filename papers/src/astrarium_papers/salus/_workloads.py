"""Where the numbers of Salus's 45 training workloads (Table A.1 of Yu's dissertation) come from.

Printed there: the models and their batch sizes; a peak of 13.8 GB for resnet152_75 and of 35 MB for vae;
persistent memory between 110.9 MB (googlenet_25) and 822.2 MB (resnet152_75); a GPU of 16 GB.

Measured by the authors, in the file `tests/workloads.csv` of their public repository SymbioticLab/Salus: for
the eleven classifiers, peak memory, and how long runs of about 5 and 10 minutes took with how many
iterations. The difference of the two runs gives the time of an iteration without the start.

Modelled by us, because nobody printed it:
- persistent memory: on the line through the two printed ends, by peak memory; at most a quarter of the peak;
- the share of the GPU that an iteration can use: what a sample adds to the time of an iteration (or its
  arithmetic at the peak rate of a P100, where that is more), times the batch, over the iteration's time. Or
  the share of the link to the GPU, where that is more: the runs kept the parameters in the CPU's memory, so
  that every iteration brought them and took them back;
- all about vae, superres, speech and seq2seq but the above: orders of magnitude. The share of superres is the
  one that a 2.38 times shorter makespan of packed jobs (Figure 2.10) implies;
- an inference of one sample: a third of a training iteration of one sample, less those copies; it keeps the
  parameters.
"""

from __future__ import annotations

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import MILLISECOND, Bytes, Duration
from astrarium.device.salus import SalusWorkload, workloads

MB = 10**6
P100_TFLOPS = 10.6
LINK_GB_S = 12.0  # what PCI Express 3.0 with 16 lanes carries in practice
TRAINING_OVER_INFERENCE = 3  # a forward pass, and a backward pass of twice its work
PERSISTENT_MB = ((779.0, 110.9), (13_800.0, 822.2))  # peak and persistent: googlenet_25, resnet152_75
LARGEST_PERSISTENT = 0.25  # of the peak
INFERENCE_EPHEMERAL = Bytes(100 * MB)
DEMANDS = {
    "vae": 0.1,
    "superres": 0.42,
    "speech": 0.8,
    "seq2seq": 0.6,
}  # of the GPU, where nothing was measured


class Architecture(msgspec.Struct, frozen=True):
    """An architecture has millions of parameters, and 10^9 operations in a sample's forward pass
    (textbooks)."""

    parameters: float
    forward_gflop: float


ARCHITECTURES = {
    "alexnet": Architecture(61.1, 1.43),
    "googlenet": Architecture(7.0, 3.0),
    "inception3": Architecture(23.8, 11.4),
    "inception4": Architecture(42.7, 24.6),
    "overfeat": Architecture(145.7, 5.6),
    "resnet50": Architecture(25.6, 7.7),
    "resnet101": Architecture(44.5, 15.2),
    "resnet152": Architecture(60.2, 22.6),
    "vgg11": Architecture(132.9, 15.2),
    "vgg16": Architecture(138.4, 30.9),
    "vgg19": Architecture(143.7, 39.3),
    "vae": Architecture(1.2, 0.003),
    "superres": Architecture(0.06, 0.9),
    "speech": Architecture(50.0, 5.0),
    "seq2seq": Architecture(4.7, 0.2),
}


def modelled(workload: SalusWorkload) -> SalusWorkload:
    """Return a workload with the memory and the demand that the model gives it, by its peak and its times."""
    kept = persistent_mb(workload.peak / MB)
    return msgspec.structs.replace(
        workload,
        persistent=Bytes(round(kept * MB)),
        ephemeral=Bytes(round((workload.peak / MB - kept) * MB)),
        demand=DEMANDS.get(workload.model) or _demand(workload),
    )


def persistent_mb(peak_mb: float) -> float:
    (low_peak, low), (high_peak, high) = PERSISTENT_MB
    on_line = low + (high - low) * (peak_mb - low_peak) / (high_peak - low_peak)
    return min(on_line, LARGEST_PERSISTENT * peak_mb)


def _demand(workload: SalusWorkload) -> float:
    same_model = [alike for alike in workloads() if alike.model == workload.model]
    times = [(int(alike.batch), alike.iteration / MILLISECOND) for alike in same_model]
    arithmetic = TRAINING_OVER_INFERENCE * ARCHITECTURES[workload.model].forward_gflop / P100_TFLOPS
    computing = max(_least_squares(times), arithmetic) * int(workload.batch)
    busiest = max(computing, copying_ms(workload.model))
    return round(min(1.0, busiest / (workload.iteration / MILLISECOND)), 3)


def inference(model: str) -> SalusWorkload:
    """Return the workload of inference with a model, one sample at a time."""
    trained = [workload for workload in workloads() if workload.model == model]
    if not trained:
        raise InputError("", model, f"a model of Salus: {one_of(list(ARCHITECTURES), model)}")
    took = Duration(round(max(_of_one_sample(trained), MILLISECOND) / TRAINING_OVER_INFERENCE))
    kept = Bytes(round(4 * ARCHITECTURES[model].parameters * MB))
    kind = trained[0].kind
    return SalusWorkload(f"{model}_eval", model, kind, "1", kept, INFERENCE_EPHEMERAL, took, 1.0)


def _of_one_sample(trained: list[SalusWorkload]) -> float:
    """Return the time of a training iteration of one sample without the copies of the parameters, in ns."""
    if not trained[0].batch.isdigit():
        return float(trained[0].iteration)
    sample = _least_squares([(int(workload.batch), float(workload.iteration)) for workload in trained])
    fixed = trained[-1].iteration - sample * int(trained[-1].batch)
    return max(0.0, fixed - copying_ms(trained[0].model) * MILLISECOND) + sample


def copying_ms(model: str) -> float:
    """Return the time to copy the parameters of 4 bytes each to the GPU and back."""
    return 2 * 4 * ARCHITECTURES[model].parameters / LINK_GB_S


def _least_squares(points: list[tuple[int, float]]) -> float:
    """Return what one more sample adds to the time of an iteration."""
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return float(covariance / sum((x - mean_x) ** 2 for x, _ in points))
