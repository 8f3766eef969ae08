"""A platform engineer asks how many requests some GPUs carry, where models go, and tries the server out.

Cells begin with # %%: run them one by one in an editor or a notebook, or all of them with python.
"""

# %% A scenario can be built in Python; it is checked as a file would be.
import numpy as np

import astrarium

scenario = astrarium.load(
    {
        "cluster": {"gpus": 2, "memory": "11GiB"},
        "models": {
            "resnet50": {"profile": "zoo:1080Ti/ResNet50", "slo": "50ms", "memory": "2GiB"},
            "mobilenet": {"profile": "zoo:1080Ti/MobileNet", "slo": "40ms", "memory": "1GiB"},
        },
        "workload": {"arrivals": "poisson", "rate": "500/s", "duration": "3s", "warmup": "500ms"},
    }
)
run = astrarium.simulate(scenario)
print(run)

# %% How many requests do these GPUs carry, and by which policy?
for policy in ("astrarium", "eager"):
    print(repr(astrarium.goodput(scenario, policy, seeds=1, tolerance=0.05)))

# %% How many GPUs does this load take, and which models go where?
plan = astrarium.plan(scenario, seeds=1, growth=False)
print(plan.gpus, "GPUs,", f"{plan.attainment:.1%} in time")
print(plan.placement)

# %% The same scenario is served: by processes of this machine, which emulate the GPUs.
with astrarium.serve(scenario) as server:
    image = np.ones((1, 2), dtype=np.float32)
    answer = server.infer("resnet50", INPUT=image, timeout="2s")
    print("answered", answer["OUTPUT"].shape)
    answered = [
        value for name, value in server.metrics().items() if name.startswith("astrarium_accepted_total")
    ]
    print(sum(answered), "requests so far")
    try:
        server.infer("resnet50", INPUT=image, timeout="1ms")
    except astrarium.ServerError as error:
        print("refused:", error)
