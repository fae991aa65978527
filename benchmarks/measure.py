"""Time, memory and error of one workload under several backends, in one process."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import optpass
from benchmarks.workloads import Workload, compiled

#: A sample is as many calls as take about this long, so that the clock's resolution does not show.
SAMPLE_S = 0.005
#: Outputs smaller in norm than this part of the largest one are compared against that floor: a gradient that is zero
#: in exact arithmetic has no relative error.
FLOOR = 1e-3


@dataclass
class Result:
    """One workload under one backend.

    Attributes:
        milliseconds, quartiles: median and quartiles of a step.
        peak_bytes: most memory above what was allocated before the step.
        error: largest relative error of an output or gradient, in the 2-norm, against eager in float64.
        cold_s, warm_s: time to compile in a fresh process, with empty caches and with those of the run before.
        failure: why there are no figures.
    """

    workload: str
    group: str
    backend: str
    milliseconds: float | None = None
    quartiles: tuple[float, float] | None = None
    peak_bytes: int | None = None
    error: float | None = None
    cold_s: float | None = None
    warm_s: float | None = None
    failure: str | None = None


def measure(workload: Workload, backends: Sequence[str], *, seconds: float) -> list[Result]:
    """Compile the workload for each backend, then time all of them in turns for `seconds` a backend."""
    torch.compiler.reset()
    case = workload.case()
    reference = _reference(workload)
    results = {name: Result(workload.name, workload.group, name) for name in backends}
    steps: dict[str, Callable[[], Any]] = {}
    for name, result in results.items():
        try:
            step = functools.partial(case.step, compiled(case.module, name))
            result.error = relative_error(step(), reference)
            step()  # some backends compile again on the second call
            result.peak_bytes = peak_bytes(step, workload.device)
            steps[name] = step
        except Exception as error:  # a backend that fails is a result, the others go on
            result.failure = f"{type(error).__name__}: {error}".splitlines()[0]
    for name, samples in interleaved(steps, workload.device, seconds).items():
        low, middle, high = statistics.quantiles(samples, n=4)
        results[name].milliseconds, results[name].quartiles = middle, (low, high)
    return list(results.values())


def interleaved(
    calls: Mapping[str, Callable[[], Any]], device: str, seconds: float, *, least: int = 5
) -> dict[str, list[float]]:
    """Milliseconds per call, sampled in rounds: each function once a round, in an order that rotates."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    counts = {name: max(1, round(SAMPLE_S * 1e3 / sample(call, 1, device))) for name, call in calls.items()}
    order, end = list(calls), time.perf_counter() + seconds * len(calls)
    while order and (len(samples[order[0]]) < least or time.perf_counter() < end):
        for name in order:
            samples[name].append(sample(calls[name], counts[name], device))
        order.append(order.pop(0))
    return samples


def sample(call: Callable[[], Any], count: int, device: str) -> float:
    """Milliseconds per call over `count` calls in a row; on a GPU by its own clock."""
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / count
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count * 1e3


def peak_bytes(call: Callable[[], Any], device: str) -> int:
    """The most that one call holds of PyTorch's allocator, results included, with nothing kept from calls before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    optpass.release_memory()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        held = call()
    del held
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def relative_error(outputs: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
    """The largest error of an output relative to its norm in the reference, which is in float64."""
    norms = [r.norm() for r in reference]
    floor = FLOOR * torch.stack(norms).max()
    errors = [(o.double() - r).norm() / n.clamp(min=floor) for o, r, n in zip(outputs, reference, norms, strict=True)]
    return torch.stack(errors).max().item()


def _reference(workload: Workload) -> list[Tensor]:
    """Eager's results in float64, from weights and inputs that were rounded to the workload's dtype first."""
    case = workload.case().to(workload.device, torch.float64)
    return case.step(case.module)
