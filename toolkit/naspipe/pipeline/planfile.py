"""Plan files: a plan as JSON with a version, written and read strictly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from naspipe.errors import ConfigError, InputError, Problem
from naspipe.files import write_text
from naspipe.pipeline.action import Action, PlannedAction
from naspipe.pipeline.contract import CAUSAL, Contract
from naspipe.pipeline.parts import PipelineParts
from naspipe.pipeline.plan import Message, Plan, PlannedSubnet
from naspipe.pipeline.subnet import UsedLayer
from naspipe.wording import nearest

VERSION = 1
"""Version of the file format; increased when older files could be misread."""

_Natural = Annotated[int, Field(ge=0)]
_Positive = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Subnet(_Strict):
    layers: list[list[tuple[str, bool]]]
    cuts: list[_Natural]


class _File(_Strict):
    version: Literal[1]
    executor: str = ""
    contract: str
    stages: _Positive
    segments: _Positive = 1
    microbatches: _Positive
    delay: _Natural | None = None
    subnets: list[_Subnet]
    actions: list[list[tuple[str, _Natural, _Natural, _Natural, _Natural]]]
    messages: list[tuple[str, _Natural, _Natural]]
    versions: list[list[list[tuple[_Natural, str, _Natural]]]] | None = None
    makespan: _Natural | None = None
    bound: _Natural | None = None
    bubble: float | None = None


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return the JSON object of a plan's file.

    ``actions`` lists for every stage [text, start, end, first block, last block + 1]. ``messages`` lists
    [text of the sending action, from stage, to stage] in the order of their numbers. In a trace, ``versions`` lists
    for every action the versions it saw as [block, layer, version].
    """
    return {
        "version": VERSION,
        "executor": plan.executor,
        "contract": str(plan.contract),
        "stages": plan.stages,
        "segments": plan.segments,
        "microbatches": plan.microbatches,
        "delay": plan.delay,
        "subnets": [
            {
                "layers": [[[name, strict] for name, strict in block] for block in subnet.layers],
                "cuts": list(subnet.cuts),
            }
            for subnet in plan.subnets
        ],
        "actions": [
            [[str(p.action), p.start, p.end, p.first_block, p.end_block] for p in stage] for stage in plan.actions
        ],
        "messages": [list(message) for message in plan.messages],
        "versions": plan.versions,
        "makespan": plan.makespan,
        "bound": plan.bound,
        "bubble": plan.bubble,
    }


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan's file, with a line for each action and each subnet, so that files can be compared."""
    data = plan_to_json(plan)
    lines = []
    for key, value in data.items():
        if key in ("subnets", "messages"):
            rows = ",\n  ".join(json.dumps(row) for row in value)
            lines.append(f' "{key}": [\n  {rows}\n ]' if value else f' "{key}": []')
        elif key == "actions":
            stages = [",\n   ".join(json.dumps(row) for row in stage) for stage in value]
            text = ",\n  ".join(f"[\n   {stage}\n  ]" if stage else "[]" for stage in stages)
            lines.append(f' "{key}": [\n  {text}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value)}')
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read_plan(path: Path) -> Plan:
    """Read a plan's file; whether the plan keeps its contract is checked by ``find_violations`` only.

    Raises:
        ConfigError: The file is no plan of this version; the error lists all problems.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("", f"cannot be read: {error}.", str(path))]) from error
    try:
        file = _File.model_validate_json(text)
    except ValidationError as error:
        problems = [
            Problem(_path(detail["loc"]), _message(detail), str(path)) for detail in error.errors(include_url=False)
        ]
        raise ConfigError(problems) from error
    problems = []
    contract = CAUSAL
    try:
        contract = Contract.parse(file.contract)
    except InputError as error:
        problems.append(Problem("contract", str(error), str(path)))
    if file.delay is not None and not contract.allows_delay:
        message = f"must be null, since {contract} governs all layers, but is {file.delay}."
        problems.append(Problem("delay", message, str(path)))
    if len(file.actions) != file.stages:
        message = f"must list the actions of {file.stages} stages, but lists those of {len(file.actions)}."
        problems.append(Problem("actions", message, str(path)))
    problems += _wrong_cuts(file, str(path))
    if file.versions is not None and [*map(len, file.versions)] != [*map(len, file.actions)]:
        message = "must list the versions that each action saw, one entry an action, or be null."
        problems.append(Problem("versions", message, str(path)))
    actions = []
    for stage, rows in enumerate(file.actions):
        row = []
        for place, (action, start, end, first, last) in enumerate(rows):
            try:
                parsed = Action.parse(action)
            except InputError as error:
                problems.append(Problem(f"actions[{stage}][{place}]", str(error), str(path)))
                continue
            row.append(PlannedAction(parsed, start, end, first, last, None))
        actions.append(row)
    if problems:
        raise ConfigError(problems)
    numbers = {message[0]: number for number, message in enumerate(file.messages)}
    return Plan(
        contract=contract,
        stages=file.stages,
        segments=file.segments,
        microbatches=file.microbatches,
        delay=file.delay,
        subnets=tuple(
            PlannedSubnet([[UsedLayer(*layer) for layer in block] for block in subnet.layers], tuple(subnet.cuts))
            for subnet in file.subnets
        ),
        actions=tuple(
            tuple(planned._replace(message=numbers.get(str(planned.action))) for planned in row) for row in actions
        ),
        messages=tuple(Message(*message) for message in file.messages),
        bound=file.bound,
        executor=file.executor,
        versions=None
        if file.versions is None
        else tuple(tuple(tuple(seen) for seen in stage) for stage in file.versions),
    )


def _wrong_cuts(file: _File, path: str) -> list[Problem]:
    """Return what is wrong with the partitions of the subnets."""
    parts = PipelineParts(file.stages, file.segments).count
    problems = []
    for index, subnet in enumerate(file.subnets):
        cuts, blocks = subnet.cuts, len(subnet.layers)
        if len(cuts) != parts + 1 or cuts[0] != 0 or cuts[-1] != blocks or sorted(set(cuts)) != cuts:
            message = (
                f"must cut its {blocks} blocks into {parts} parts (stages * segments), none of them empty, "
                f"as {parts + 1} rising numbers from 0 to {blocks}, but is {cuts!r}."
            )
            problems.append(Problem(f"subnets[{index}].cuts", message, path))
    return problems


def _path(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _message(detail: Any) -> str:
    if detail["type"] == "extra_forbidden":
        known = [*_File.model_fields, *_Subnet.model_fields]
        return f"unknown key.{nearest(str(detail['loc'][-1]), known)}"
    if detail["type"] == "missing":
        return "must be given, but is missing."
    if detail["loc"] == ("version",):
        return f"must be {VERSION}, the version that this NASPipe reads, but is {detail['input']!r}."
    text = str(detail["msg"]).replace("Input should be", "must be")
    shown = repr(detail["input"])
    return f"{text}, but got {shown if len(shown) < 80 else shown[:76] + ' ...'}."
