"""Bounds keep plans usable: whatever was measured, a request alone on an idle GPU is planned in time.

A plan by which it is not refuses everybody, and a model that runs no batches shows nobody that it has become
fast again. So what the scenario says of a model comes first, measured delays take what that leaves of the
objective, and a profile is scaled up no further than those leave. A lone request is therefore always tried.
"""

from __future__ import annotations

from msgspec.structs import replace

from astrarium.core.quantities import FOREVER, Time
from astrarium.serving.contract import ModelSpec, Network, Setup

# Of an objective: what may pass between a request's first byte and the policy's decision on it (reading it,
# turns of the event loop) before the plan refuses it; at most half of what the scenario itself leaves.
SLACK = 0.1


def bounded(setup: Setup, stated: Setup) -> Setup:
    """Return *setup* with its delays and profiles cut; *stated* is what the scenario says."""
    least = tightest(stated)
    network = _within(setup.network, max(0, _longest_alone(least, stated) - least.latency[1]))
    pairs = zip(setup.models, stated.models, strict=True)
    models = tuple(
        _fitting(spec, original, _longest_alone(original, stated) - around(network))
        for spec, original in pairs
    )
    return replace(setup, models=models, network=network)


def tightest(stated: Setup) -> ModelSpec:
    """Return the model that leaves least for delays."""
    return min(stated.models, key=lambda spec: _longest_alone(spec, stated) - spec.latency[1])


def alone(spec: ModelSpec, network: Network) -> Time:
    """Return the time from the decision on a request that runs alone on an idle GPU to its answer."""
    return spec.latency[1] + around(network)


def around(network: Network) -> Time:
    """Return the delays before and after the execution of one request."""
    return network.delay(1) + network.response


def scaled(spec: ModelSpec, scale: float) -> ModelSpec:
    if scale == 1.0:
        return spec
    if spec.lengths is None:
        return replace(spec, latency=_scaled(spec.latency, scale))
    tables = tuple(_scaled(table, scale) for table in spec.lengths.latency)
    return replace(spec, latency=_scaled(spec.latency, scale), lengths=replace(spec.lengths, latency=tables))


def _scaled(latency: tuple[Time, ...], scale: float) -> tuple[Time, ...]:
    times = (time if time >= FOREVER else max(1, round(time * scale)) for time in latency[1:])
    return (0, *times)


def _longest_alone(spec: ModelSpec, stated: Setup) -> Time:
    """Return the longest time that one request alone may be planned to take."""
    spare = max(0, spec.slo - alone(spec, stated.network))
    return spec.slo - min(round(SLACK * spec.slo), spare // 2)


def _within(network: Network, most: Time) -> Network:
    """Cut delays to *most*: the response delay first, which answers will show; the scenario's always fit."""
    if around(network) <= most:
        return network
    control = min(network.control, most)
    return replace(network, control=control, response=most - control)


def _fitting(spec: ModelSpec, original: ModelSpec, most: Time) -> ModelSpec:
    """Cut a profile by scaling the *original*, so that the same bound is always the same table."""
    return spec if spec.latency[1] <= most else scaled(original, most / original.latency[1])
