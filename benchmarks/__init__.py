"""Benchmarks of torch.compile backends, side by side in one process: `python -m benchmarks run`."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # weights are random or come with an installed package
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler, which counts memory, reports its own start and stop
