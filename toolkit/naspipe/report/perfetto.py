"""The trace of a plan, in the trace event format that ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from naspipe.files import write_text
from naspipe.pipeline.action import Action, Kind, PlannedAction
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.waits import causal_waits

_PROCESS = 1

# A flow binds to the slice that encloses its time, and an end is outside: a flow leaves a nanosecond before.
_BEFORE_END = 0.001

_Flow = tuple[str, PlannedAction, PlannedAction]


def trace_events(plan: Plan) -> dict[str, Any]:
    """Return a plan as trace events: two threads per stage, a slice per action, a tick as a microsecond.

    Updates have a thread of their own. On the same thread, Perfetto would nest an update of no length in the
    slice that starts with it, and bind that slice's flows to the update.

    Flows lead from an action to the action that gets its message, and from an update to the forward that it
    kept waiting. ``otherData`` describes the plan.

    Source: "Trace Event Format", Google, 2016.

    Args:
        plan: Any plan, or trace; it need not be valid.
    """
    name = f"NASPipe plan: {plan.executor or 'unknown executor'}, {plan.contract}"
    events: list[dict[str, Any]] = [_metadata("process_name", {"name": name})]
    for stage in range(plan.stages):
        for kind, text in ((Kind.FORWARD, ""), (Kind.UPDATE, ", updates")):
            thread = _thread(Action(stage, kind, 0))
            events.append(_metadata("thread_name", {"name": f"stage {stage}{text}"}, thread))
            events.append(_metadata("thread_sort_index", {"sort_index": thread}, thread))
    sources: dict[Action, list[dict[str, Any]]] = {}
    targets: dict[Action, list[dict[str, Any]]] = {}
    for number, (category, source, target) in enumerate(_flows(plan)):
        flow = {"name": category, "cat": category, "id": number, "pid": _PROCESS}
        left = source.start if source.end == source.start else source.end - _BEFORE_END
        sources.setdefault(source.action, []).append({**flow, "ph": "s", "tid": _thread(source.action), "ts": left})
        targets.setdefault(target.action, []).append(
            {**flow, "ph": "f", "bp": "e", "tid": _thread(target.action), "ts": target.start}
        )
    # Perfetto reads events of the same time in their order. So a slice comes before the flows that bind to it, and
    # an update that takes no time comes before the actions that waited for it.
    for planned in plan.in_time():
        events.append(_slice(planned))
        events += targets.pop(planned.action, ())
        events += sources.pop(planned.action, ())
    about = {
        "executor": plan.executor,
        "contract": str(plan.contract),
        "stages": plan.stages,
        "segments": plan.segments,
        "microbatches": plan.microbatches,
        "delay": plan.delay,
        "subnets": len(plan.subnets),
        "makespan": plan.makespan,
        "bound": plan.bound,
        "bubble": plan.bubble,
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def write_trace(plan: Plan, path: Path) -> None:
    """Write the trace events of a plan as JSON, one event a line.

    Args:
        plan: Any plan, or trace.
        path: File to write.
    """
    trace = trace_events(plan)
    events = ",\n".join(json.dumps(event) for event in trace.pop("traceEvents"))
    rest = json.dumps(trace, allow_nan=False)
    write_text(path, f'{{"traceEvents": [\n{events}\n],\n{rest[1:]}\n')


def _flows(plan: Plan) -> Iterator[_Flow]:
    """Yield category, source and target of the messages, then of the causal waits."""
    by_action = {planned.action: planned for row in plan.actions for planned in row}
    for row in plan.actions:
        for source in row:
            needing = plan.parts.target_action(source.action)
            if source.message is not None and needing in by_action:
                yield "message", source, by_action[needing]
    for wait in causal_waits(plan):
        yield "causal wait", wait.update, wait.forward


def _slice(planned: PlannedAction) -> dict[str, Any]:
    action = planned.action
    about: dict[str, Any] = {"subnet": action.subnet}
    if action.kind is not Kind.UPDATE:
        about["microbatch"] = action.microbatch
    about |= {"segment": action.segment, "blocks": f"{planned.first_block} to {planned.end_block - 1}"}
    if planned.message is not None:
        about["message"] = planned.message
    return {
        "name": str(action), "cat": action.kind.name.lower(), "ph": "X", "pid": _PROCESS,
        "tid": _thread(action), "ts": planned.start, "dur": planned.end - planned.start, "args": about,
    }  # fmt: skip


def _metadata(name: str, about: dict[str, Any], thread: int = 0) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": _PROCESS, "tid": thread, "args": about}


def _thread(action: Action) -> int:
    # Perfetto takes thread 0 for the idle thread.
    return 2 * action.stage + (2 if action.kind is Kind.UPDATE else 1)
