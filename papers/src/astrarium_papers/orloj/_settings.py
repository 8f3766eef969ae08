"""What the paper does not print and these reproductions had to choose, all in one place.

The paper ran one V100 with an Azure trace scaled until its rate matched the load of the system. It prints
neither that rate, nor c0 and c1, nor the shapes of the distributions.

Chosen by reasoning:
- MAX_BATCH: the largest batch that Clockwork's models are compiled for.
- The point estimate that systems without distributions plan with is that of a batch of requests of mean
  length (`mean_request`): the paper says that they use the mean, and that whole batches nearly always take
  longer than it.
- Clockwork's workers refuse a batch that cannot begin within 10 ms of its plan, and batch sizes are powers of
  two, as in its public code.
- Orloj's batch size: Algorithm 4.1 as printed goes through the queues from the latest of their earliest
  deadlines down, while the text says that the earliest one is chosen. Requests that are nearly too late stand
  in the queues of small batches only, so the text's reading serves small batches under load. We take the
  algorithm (`order: latest`) and measure the other reading beside it in Figure 4.8.
- Clipper adapts its batch size to a batch's execution time; adapted to the time since its oldest request
  arrived it is measured beside it in Figure 4.8.
- Language models take continuous times: two lognormal groups (short and long requests, as the paper mixes
  them) of equal share and equal sigma, their medians two sigmas apart, so that together they make one hump.
- Image networks skip layers, which gives clusters: LONG_SHARE of the requests are long, both clusters are
  normal with a standard deviation of CLUSTER_WIDTH of their mean. RDI-Nets' long requests then take ten times
  as long as its short ones, the largest difference that the paper speaks of.
- Synthetic times: modes of equal share, normal, PEAK_DISTANCE_MS apart from half that on, a single one at
  that; "sigma = 1" is SIGMA_MS. Three modes scaled to a P99 of 20 ms then have a mean of 11 ms and requests
  of less than 2 ms, as the paper says of Figure 4.14. Of the case `std-0.5/2` we read the first number as the
  short mode's: the narrow mode has the higher peak, which fits the caption "more short requests".
- Static models: the zoo's on a 1080Ti, of its GPUs the nearest to a V100.

Calibrated on Orloj's curve of the one-modal case (Table C.2):
- LOAD, the rate as a share of what a GPU serves in batches of MAX_BATCH requests of mean length.
- Poisson arrivals: with bursts no curve rises as steeply with the SLO as the paper's do.
- C1, what every further member of a batch costs, as a share of a request's time. A batch of one request of
  mean length takes the mean, a batch of 16 takes 2.5 times as long. In the zoo that share is 0.05 (A100) to
  0.28 (1080Ti) for ResNet50 and 0.12 to 0.18 for InceptionV3; a V100 stands between these GPUs.

Settled with other curves in view, where the text left more than one way:
- LOAD counts requests of mean length. Counting what padded batches really take, several modes would be as
  easy to serve as one.
- The order of Orloj's queues. The text's fits the one-modal curve with three quarters of the load, but leaves
  the other systems' curves further from the paper's.
- `mean_request` rather than the mean of a batch's longest, with which Clockwork has its plateau in few cases.
"""

from __future__ import annotations

from typing import Any, NamedTuple

C1 = 0.1
MAX_BATCH = 16
LOAD = 0.5
ARRIVALS: dict[str, Any] = {"arrivals": "poisson"}

LONG_SHARE = 0.2
CLUSTER_WIDTH = 0.05
PEAK_DISTANCE_MS = 60.0
SIGMA_MS = 6.0
STATIC_GPU = "1080Ti"

SEEDS = (1, 2, 3, 4, 5)
REQUESTS = 4000  # measured, in each run
WARMUP = 400  # requests before those


class System(NamedTuple):
    policy: dict[str, Any]
    estimate: str = "mean_request"


# By the names the paper gives them; one that the paper does not have is drawn without a number beside it.
SYSTEMS: dict[str, System] = {
    "Clipper": System({"name": "clipper"}),
    "Nexus": System({"name": "nexus"}),
    "Clockwork": System({"name": "clockwork", "sizes": "powers_of_two", "window": "10ms"}),
    "Orloj": System({"name": "orloj", "order": "latest"}),
    "Astrarium": System({"name": "astrarium"}),
}
# Other readings, measured beside them in Figure 4.8 only.
VARIANTS: dict[str, System] = {
    "Clipper, total latency": System({"name": "clipper", "latency": "total"}),
    "Orloj, earliest deadline": System({"name": "orloj", "order": "earliest"}),
}
RIVALS = ("Clipper", "Nexus", "Clockwork")
