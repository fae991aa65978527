"""The passes of each stage, in order, and the manager that runs, checks, dumps and undoes them."""

from __future__ import annotations

import difflib
import functools
import hashlib
import inspect
import itertools
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import networkx
import torch
from torch.fx import GraphModule

from optpass.errors import ConfigError, PassError, VerifyError
from optpass.options import Options
from optpass.passes.base import Pass, PassContext, PassResult, Stage
from optpass.passes.cleanup.canonicalise import Canonicalise
from optpass.passes.cleanup.collapse_casts import CollapseCasts
from optpass.passes.cleanup.collapse_views import CollapseViews
from optpass.passes.cleanup.eliminate_common_subexpressions import EliminateCommonSubexpressions
from optpass.passes.cleanup.fold_constants import FoldConstants
from optpass.passes.cleanup.remove_dead_code import RemoveDeadCode
from optpass.passes.cleanup.remove_noops import RemoveNoops
from optpass.passes.fusion.fuse_regions import FuseRegions
from optpass.passes.meta import fake_mode_of, refresh_values
from optpass.passes.registry import Registration, registrations
from optpass.passes.replay import Disagreement, RewriteCheck
from optpass.passes.snapshot import Snapshot
from optpass.passes.verify import Contract, check_structure, missing_fact
from optpass.report import PassRecord
from optpass.torch_private import disable_current_modes

__all__ = ["CLEANUP", "DEFAULT", "fingerprint", "ordered_passes", "run_passes", "run_stage"]

log = logging.getLogger(__name__)

_CLEANUP: Sequence[type[Pass]] = (
    # One spelling per operation first, so that the others match a single form.
    Canonicalise,
    # Numbers before no-ops: `x * full(1)` is one only when the number shows.
    FoldConstants,
    # Casts and views that cancel out leave no-ops and equal nodes behind.
    CollapseCasts,
    RemoveNoops,
    CollapseViews,
    # Equal nodes once their arguments are as short as they get.
    EliminateCommonSubexpressions,
    # Last: every pass before leaves nodes without users.
    RemoveDeadCode,
)

DEFAULT: Mapping[Stage, Sequence[type[Pass]]] = {
    Stage.SEMANTIC: (
        # Recognisers match one spelling. Nothing else: in-place operations and autograd still need the rest.
        Canonicalise,
        RemoveDeadCode,
    ),
    Stage.JOINT: (
        # Before partitioning, so that what is saved for the backward is the least.
        *_CLEANUP,
    ),
    Stage.TENSOR: (
        # Partitioning cuts chains and recomputes; the rest matches clean graphs only.
        *_CLEANUP,
    ),
    Stage.FUSION: (
        FuseRegions,  # last: what it makes, only code generation reads
    ),
}


#: Names of the passes that only tidy: where nothing else changed anything, the graph says what it said.
CLEANUP = frozenset(pass_type.name for pass_type in _CLEANUP)


def run_stage(stage: Stage, gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Run the passes of a stage on a graph, in place; see `run_passes`.

    Raises:
        PassError: the order that registered passes ask for is impossible.
        ConfigError: `ctx.options.disable` names no pass.
    """
    return run_passes(ordered_passes(stage, ctx.options), stage, gm, ctx)


def run_passes(passes: Sequence[Pass], stage: Stage, gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Run some passes on a graph, in place.

    A pass that raises, or whose graph does not stand the checks that `ctx.options.verify` asks for, is undone and
    recorded in `ctx.report`; the others go on.

    Returns:
        `gm`, recompiled if any pass changed it.

    Raises:
        VerifyError: a check failed, or a pass raised, under `verify="strict"`.
    """
    if ctx.fake_mode is None:
        ctx.fake_mode = fake_mode_of(gm.graph)
    if ctx.dump is not None:
        ctx.dump.write_capture(gm)
    changed = False
    contract = Contract.of(gm.graph)
    # The compiler is called under fake and functional modes; passes compute on real tensors where they do at all.
    with disable_current_modes(), torch.no_grad():
        for pass_ in passes:
            changed |= _run_pass(pass_, stage, gm, ctx, contract).changed
    ctx.end_pass()
    if changed:
        gm.recompile()
    if ctx.dump is not None:
        ctx.dump.write_report(ctx.report)
    return gm


def ordered_passes(stage: Stage, options: Options | None = None) -> list[Pass]:
    """The passes of a stage in the order in which they run: the list's own order, those from outside where they ask.

    Raises:
        PassError: a registration names an unknown pass, or the wishes form a cycle.
        ConfigError: `options.disable` names no pass of any stage.
    """
    disabled = set(options.disable) if options else set()
    if disabled:
        _check_disabled(disabled)
    passes: dict[str, Pass] = {pass_type.name: pass_type() for pass_type in DEFAULT[stage]}
    builtin = list(passes)
    outside = [r for r in registrations() if r.stage is stage]
    passes.update((r.pass_.name, r.pass_) for r in outside)
    order = networkx.DiGraph()
    order.add_nodes_from(passes)
    order.add_edges_from(itertools.pairwise(builtin))
    for registration in outside:
        for other in (*registration.after, *registration.before):
            if other not in passes:
                raise PassError(
                    f"pass {registration.pass_.name!r} asks for a place next to {other!r}, unknown in stage {stage}",
                    hint=f"passes of the stage: {', '.join(passes)}",
                )
        order.add_edges_from((other, registration.pass_.name) for other in registration.after)
        order.add_edges_from((registration.pass_.name, other) for other in registration.before)
    places = {name: (float(index), 0) for index, name in enumerate(builtin)}
    for index, registration in enumerate(outside):
        places[registration.pass_.name] = (_anchor(registration, builtin), index + 1)
    try:
        names = list(networkx.lexicographical_topological_sort(order, key=places.__getitem__))
    except networkx.NetworkXUnfeasible:
        cycle = [edge[0] for edge in networkx.find_cycle(order)]
        raise PassError(f"the order of passes has a cycle: {' → '.join([*cycle, cycle[0]])}") from None
    return [passes[name] for name in names if name not in disabled]


def fingerprint(options: Options) -> str:
    """A hash of PyTorch's version, the passes that run and the sources behind them; part of each cache key."""
    digest = hashlib.sha256(f"{torch.__version__} {_package_hash()}".encode())
    for stage in Stage:
        for pass_ in ordered_passes(stage, options):
            digest.update(f"{stage} {pass_.name} {_outside_source(pass_)}".encode())
    return digest.hexdigest()


@functools.cache
def _package_hash() -> str:
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _outside_source(pass_: Pass) -> str:
    """The source of the module of a pass from outside; its name where there is none, as in an interactive session."""
    code = getattr(pass_, "function", type(pass_))
    try:
        return inspect.getsource(sys.modules[code.__module__])
    except (OSError, TypeError, KeyError):
        return f"{code.__module__}.{code.__qualname__}"


def _run_pass(pass_: Pass, stage: Stage, gm: GraphModule, ctx: PassContext, contract: Contract) -> PassResult:
    start = time.perf_counter()
    if (lacking := missing_fact(gm.graph, pass_.needs)) is not None:
        result = ctx.begin_pass(stage.value, pass_.name, {}, None)
        ctx.decline(pass_.name, None, lacking)
    else:
        text_before = ctx.dump.render(gm) if ctx.dump is not None else ""
        result = _attempt(pass_, stage, gm, ctx, contract)
        if ctx.dump is not None and result.changed:
            ctx.dump.write_pass(stage.value, pass_.name, text_before, ctx.dump.render(gm))
    milliseconds = (time.perf_counter() - start) * 1e3
    applied = sum(rewrite.rolled_back is None for rewrite in result.rewrites)
    report = ctx.report
    report.passes.append(PassRecord(stage.value, pass_.name, milliseconds, applied, result.changed, result.failure))
    report.rewrites += result.rewrites
    report.declined += result.declined.values()
    return result


def _attempt(pass_: Pass, stage: Stage, gm: GraphModule, ctx: PassContext, contract: Contract) -> PassResult:
    """Run a pass until it stands: once, or again without a rewrite that the replay refused, or not at all."""
    level, first_number = ctx.options.verify, ctx.counter.value
    blocked: dict[int, str] = {}
    refused = []
    while True:
        before = Snapshot(gm.graph)
        replays = level in ("numeric", "strict")
        check = RewriteCheck(gm, before, exact=pass_.exact, checked=max(blocked, default=0)) if replays else None
        result = ctx.begin_pass(stage.value, pass_.name, blocked, check)
        try:
            pass_.run(gm, ctx)
            ctx.finish_rewrite()
            result.changed = not before.is_current(gm.graph)
            if result.changed:
                _check(gm, stage, before, ctx, contract)
        except Disagreement as disagreement:
            if level == "strict":
                raise VerifyError(f"pass {pass_.name!r}, {disagreement}", where=disagreement.rewrite.source) from None
            log.warning("optpass: pass %r, %s; the rewrite is undone", pass_.name, disagreement)
            disagreement.rewrite.rolled_back = disagreement.reason
            refused.append(disagreement.rewrite)
            blocked[disagreement.rewrite.number] = disagreement.reason
            gm.graph = before.restore()
            ctx.counter.reset(first_number)
            continue
        except Exception as error:
            if level == "strict":
                raise VerifyError(f"pass {pass_.name!r} failed: {error}") from error
            log.warning("optpass: pass %r is undone, the rest goes on: %s", pass_.name, error)
            result.failure, result.changed = f"{type(error).__name__}: {error}", False
            for rewrite in result.rewrites:
                rewrite.rolled_back = result.failure
            gm.graph = before.restore()
        result.rewrites = sorted([*result.rewrites, *refused], key=lambda rewrite: rewrite.number)
        return result


def _check(gm: GraphModule, stage: Stage, before: Snapshot, ctx: PassContext, contract: Contract) -> None:
    level = ctx.options.verify
    if level != "off":
        check_structure(gm, stage)
    # Never skipped: later passes read aliasing off the values.
    refresh_values(gm.graph, before, ctx.fake_mode, ctx.vouched, everything=level in ("numeric", "strict"))
    if level != "off":
        contract.check(gm.graph)


def _anchor(registration: Registration, builtin: list[str]) -> float:
    """Where in the list a registered pass stands: right after what it follows, else right before what it precedes."""
    if follows := [builtin.index(name) for name in registration.after if name in builtin]:
        return max(follows) + 0.25
    if precedes := [builtin.index(name) for name in registration.before if name in builtin]:
        return min(precedes) - 0.25
    return float(len(builtin))


def _check_disabled(disabled: set[str]) -> None:
    known = {pass_type.name for passes in DEFAULT.values() for pass_type in passes}
    known |= {registration.pass_.name for registration in registrations()}
    for name in sorted(disabled - known):
        close = difflib.get_close_matches(name, known, n=1)
        raise ConfigError(
            f"options['disable'] names an unknown pass {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
            hint=f"passes: {', '.join(sorted(known))}",
        )
