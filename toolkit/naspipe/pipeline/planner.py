"""The planner: an event simulation that streams the actions of all stages.

The planner pulls a subnet when the window admits it, never earlier, and asks the executor's policy whenever a
stage is idle. Time is in integer ticks. Events of the same tick are handled in the order (stage, kind, subnet,
micro-batch, part), so every process that plans the same run plans the same actions. An index of the last user
of each layer finds the conflicts. Neither the time per subnet nor the memory grows with the length of the run:
memory depends on the window and the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from naspipe.errors import NaspipeError
from naspipe.pipeline.action import Action, Kind, PlannedAction
from naspipe.pipeline.active_subnet import ActiveSubnet, SummedCosts, sum_costs
from naspipe.pipeline.drain import Admission, DrainRule, never_drain
from naspipe.pipeline.executor import Executor, PipelineShape, StageView, require_support
from naspipe.pipeline.partition import Cuts
from naspipe.pipeline.subnet import SubnetShape
from naspipe.pipeline.update_order import UpdateOrder

_F, _B, _U = Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE
# Events besides the ends of actions: an activation or a gradient has reached another stage.
_F_ARRIVES, _B_ARRIVES = 3, 4


class Planner:
    """Plans one run; iterate over ``run()`` once."""

    def __init__(
        self,
        executor: Executor,
        shape: PipelineShape,
        subnets: Iterable[SubnetShape],
        partition: Callable[[SubnetShape], Cuts],
        *,
        always_active: Iterable[int] = (),
        window: int | None = None,
        latency: int = 0,
        first: int = 0,
        drains: DrainRule = never_drain,
    ) -> None:
        """Prepare a plan; no subnet is pulled yet.

        Args:
            executor: Its policy chooses.
            shape: Stages, segments, micro-batches, subnets and delay.
            subnets: The subnets from ``first`` on, in order, at least up to ``shape.subnets``; pulled one by one.
            partition: Gives each subnet's cuts.
            always_active: The blocks that have an always-active layer.
            window: Subnets in flight at most; by default the executor says.
            latency: Ticks that a message takes from stage to stage.
            first: The first subnet to train, a multiple of the contract's bulk; all earlier ones have been updated.
            drains: Says when each later subnet may be admitted; asked once for each, in order.

        Raises:
            InputError: The executor does not support the window, the segments or the delay.
        """
        self.contract = executor.contract(shape)
        self.shape = shape
        require_support(executor, shape, window)
        self._parts = parts = shape.parts
        # Tables, since every action needs them.
        self._last_part = parts.last
        self._stage_of = [parts.stage(part) for part in range(parts.count)]
        self._leaves_stage = [
            [parts.leaves_stage(parts.action(part, kind, 0)) for part in range(parts.count)] for kind in Kind
        ]
        self._executor = executor
        self._source = iter(subnets)
        self._count = shape.subnets
        self.partition = partition
        self._window = executor.window(shape) if window is None else window
        self._latency = latency
        self._active: dict[int, ActiveSubnet] = {}
        self._admitted = first
        self._drains = drains
        # The subnet that the drain rule was last asked about, and its answer.
        self._asked, self._admission = first, Admission.AT_ONCE
        self._last_user: dict[int, dict[str, int]] = {}
        self._order = UpdateOrder(self.contract, shape.delay, always_active, first)
        self._heap: list[tuple[int, int, int, int, int, int]] = []
        self._ready: list[list[Action]] = [[] for _ in range(shape.stages)]
        self._due_updates: list[list[tuple[ActiveSubnet, int]]] = [[] for _ in range(shape.stages)]
        self._idle = [True] * shape.stages
        self._changed: list[int] = []
        self._is_changed = [False] * shape.stages
        self._waiting_updates: dict[tuple[int, int], list[ActiveSubnet]] = {}
        done = first * shape.microbatches * shape.segments
        self._views = [
            StageView(stage, shape, self._chain, self._work_per_stage, done, done) for stage in range(shape.stages)
        ]
        self._out: list[PlannedAction] = []
        self._messages = 0
        self._work = 0
        self._summed: tuple[SubnetShape, Cuts, SummedCosts] | None = None

    def run(self) -> Iterator[PlannedAction]:
        """Yield the actions of all stages by their start, those of a stage in its order.

        Raises:
            NaspipeError: The policy chose an action that is not ready, or chose none when nothing else can happen.
        """
        out, heap = self._out, self._heap
        now = 0
        while True:
            self._start_idle_stages(now)
            yield from out
            out.clear()
            if not heap:
                break
            now = heap[0][0]
            while heap and heap[0][0] == now:
                self._handle(*heappop(heap))
        if self._active:
            raise self._refuse_to_wait(now)

    # Admission

    def _admit(self) -> None:
        """Admit subnets while the window allows it."""
        while len(self._active) < self._window and self._admitted < self._count:
            index = self._admitted
            if index != self._asked:
                self._asked, self._admission = index, self._drains(index)
            if self._admission is Admission.NEVER:
                self._count = index
                return
            if self._admission is Admission.DRAINED and self._active:
                return
            self._admitted += 1
            shape = next(self._source)
            cuts = self.partition(shape)
            assert len(cuts) == self._parts.count + 1
            active = ActiveSubnet(index, cuts, self._sum(shape, cuts), self.shape.microbatches)
            self._active[index] = active
            self._work += self.shape.microbatches * active.costs.work
            if self.contract.orders_layers:
                self._find_conflicts(active, shape)
            self._order.register(active)
            if not active.waits[0]:
                self._offer_forward(active, 0)

    def _sum(self, shape: SubnetShape, cuts: Cuts) -> SummedCosts:
        """Sum up the costs, once for subnets that share them."""
        last = self._summed
        if (
            last is None
            or last[1] is not cuts
            or last[0].forward is not shape.forward
            or last[0].backward is not shape.backward
            or last[0].update is not shape.update
        ):
            last = self._summed = (shape, cuts, sum_costs(shape, cuts))
        return last[2]

    def _find_conflicts(self, active: ActiveSubnet, shape: SubnetShape) -> None:
        """Let a subnet wait for the last unfinished user of each of its strict layers."""
        admitted, part_of, index = self._active, active.costs.part_of, active.index
        waited: set[tuple[int, int, int]] = set()
        for block, layers in enumerate(shape.layers):
            users = self._last_user.get(block)
            if users is None:
                users = self._last_user[block] = {}
            for name, strict in layers:
                if not strict:
                    continue
                other = admitted.get(users.get(name, -1))
                users[name] = index
                if other is None:
                    continue
                other_part = other.costs.part_of[block]
                if other.updated[other_part]:
                    continue
                active.follow(other, block)
                part = part_of[block]
                if (other.index, other_part, part) not in waited:
                    waited.add((other.index, other_part, part))
                    active.waits[part] += 1
                    other.releases[other_part].append((active, part))
        if waited:
            active.lengthen_chains()

    # Events

    def _handle(self, now: int, stage: int, kind: int, subnet: int, microbatch: int, part: int) -> None:
        """Handle the end of an action, or the arrival of a message."""
        active = self._active[subnet]
        if kind == _F:
            self._idle[stage] = True
            self._mark_changed(stage)
            active.ended_forward[part] += 1
            if part == self._last_part:
                # On the last part the backward needs only the forward.
                self._backward_arrives(active, part)
            else:
                self._send(now, stage, part + 1, _F_ARRIVES, active, microbatch)
        elif kind == _B:
            self._idle[stage] = True
            self._mark_changed(stage)
            active.ended_backward[part] += 1
            if part:
                self._send(now, stage, part - 1, _B_ARRIVES, active, microbatch)
            if active.ended_backward[part] == self.shape.microbatches:
                self._end_backwards(active, part, now)
        elif kind == _U:
            self._idle[stage] = True
            self._mark_changed(stage)
            self._end_update(active, part)
        elif kind == _F_ARRIVES:
            self._forward_arrives(active, part)
        else:
            self._backward_arrives(active, part)

    def _send(self, now: int, stage: int, part: int, kind: int, active: ActiveSubnet, microbatch: int) -> None:
        """Pass a result to another part: at once, or after the latency if the part is on another stage."""
        target = self._stage_of[part]
        if self._latency and target != stage:
            heappush(self._heap, (now + self._latency, target, kind, active.index, microbatch, part))
        elif kind == _F_ARRIVES:
            self._forward_arrives(active, part)
        else:
            self._backward_arrives(active, part)

    def _forward_arrives(self, active: ActiveSubnet, part: int) -> None:
        active.arrived_forward[part] += 1
        if not active.waits[part] and active.arrived_forward[part] == active.started_forward[part] + 1:
            self._offer_forward(active, part)

    def _backward_arrives(self, active: ActiveSubnet, part: int) -> None:
        active.arrived_backward[part] += 1
        if active.arrived_backward[part] == active.started_backward[part] + 1:
            self._offer_backward(active, part)

    def _offer_forward(self, active: ActiveSubnet, part: int) -> None:
        action = self._parts.action(part, _F, active.index, active.started_forward[part])
        self._ready[action.stage].append(action)
        self._mark_changed(action.stage)

    def _offer_backward(self, active: ActiveSubnet, part: int) -> None:
        action = self._parts.action(part, _B, active.index, active.started_backward[part])
        self._ready[action.stage].append(action)
        self._mark_changed(action.stage)

    # Updates

    def _end_backwards(self, active: ActiveSubnet, part: int, now: int) -> None:
        """Note the end of all backwards of a part, and which updates are due now."""
        stage = self._stage_of[part]
        contract = self.contract
        if contract.bulk == 1:
            self._due_updates[stage].append((active, part))
            return
        first = contract.horizon(active.index)
        complete = self._waiting_updates.setdefault((part, first), [])
        complete.append(active)
        if len(complete) == min(contract.bulk, self._count - first):
            del self._waiting_updates[part, first]
            complete.sort(key=lambda member: member.index)
            self._due_updates[stage] += [(member, part) for member in complete]

    def _end_update(self, active: ActiveSubnet, part: int) -> None:
        """Release the parts that waited for a part's update."""
        active.updated[part] = True
        for later, later_part in active.releases[part]:
            self._release(later, later_part)
        active.releases[part] = []
        for later, later_part in self._order.end_update(active, part):
            self._release(later, later_part)
        active.unfinished -= 1
        if not active.unfinished:
            del self._active[active.index]
            active.leave()

    def _release(self, active: ActiveSubnet, part: int) -> None:
        active.waits[part] -= 1
        if not active.waits[part] and active.arrived_forward[part]:
            self._offer_forward(active, part)

    # Dispatch

    def _start_idle_stages(self, now: int) -> None:
        """Give work to every idle stage that may have something new to do, in the order of stages."""
        changed = self._changed
        # Updates that take no time come first, since they may release parts of any stage.
        for stage in changed:
            if self._due_updates[stage] and self._idle[stage]:
                self._do_free_updates(stage, now)
        if self._admitted < self._count:
            self._admit()
        changed.sort()
        for stage in changed:
            self._is_changed[stage] = False
            if self._idle[stage]:
                self._dispatch(stage, now)
        changed.clear()

    def _mark_changed(self, stage: int) -> None:
        """Note that a stage may have something new to do."""
        if not self._is_changed[stage]:
            self._is_changed[stage] = True
            self._changed.append(stage)

    def _do_free_updates(self, stage: int, now: int) -> None:
        """Plan the updates that are due and take no time."""
        due = self._due_updates[stage]
        while due and not due[0][0].costs.update[due[0][1]]:
            active, part = due.pop(0)
            self._start(self._parts.action(part, _U, active.index), active, part, now, now)
            self._end_update(active, part)

    def _dispatch(self, stage: int, now: int) -> None:
        """Start the next action of an idle stage: an update that is due, or the policy's choice."""
        due = self._due_updates[stage]
        if due:
            active, part = due.pop(0)
            action = self._parts.action(part, _U, active.index)
            end = now + active.costs.update[part]
        else:
            ready = self._ready[stage]
            if not ready:
                return
            view = self._views[stage]
            chosen = self._executor.choose(ready, view)
            if chosen is None:
                return
            if chosen not in ready:
                raise self._refuse_choice(chosen, stage, now)
            ready.remove(chosen)
            action = chosen
            active = self._active[action.subnet]
            part = self._parts.of(action)
            if action.kind == _F:
                view.forwards += 1
                active.started_forward[part] += 1
                if active.started_forward[part] < active.arrived_forward[part]:
                    self._offer_forward(active, part)
                end = now + active.costs.forward[part]
            else:
                view.backwards += 1
                active.started_backward[part] += 1
                if active.started_backward[part] < min(active.arrived_backward[part], active.ended_forward[part]):
                    self._offer_backward(active, part)
                end = now + active.costs.backward[part]
            self._work -= end - now
        self._start(action, active, part, now, end)
        self._idle[stage] = False
        heappush(self._heap, (end, stage, action.kind, action.subnet, action.microbatch, part))

    def _start(self, action: Action, active: ActiveSubnet, part: int, start: int, end: int) -> None:
        """Put an action into the plan, with the number of the message that carries its result."""
        message = None
        if self._leaves_stage[action.kind][part]:
            message = self._messages
            self._messages += 1
        cuts = active.cuts
        self._out.append(PlannedAction(action, start, end, cuts[part], cuts[part + 1], message))

    def _work_per_stage(self) -> int:
        """Return the ticks of work that admitted subnets have not started yet, divided by the stages."""
        return self._work // self.shape.stages

    def _chain(self, action: Action) -> tuple[int, int]:
        """Return the longest causal chain from the start of an action, and the share that follows its pass."""
        active = self._active[action.subnet]
        part = self._parts.of(action)
        return active.forward_chain(part) if action.kind == _F else active.backward_chain(part)

    def _refuse_choice(self, chosen: object, stage: int, now: int) -> NaspipeError:
        ready = ", ".join(map(str, self._ready[stage]))
        return NaspipeError(
            f"executor {type(self._executor).__name__} must choose a ready action of stage {stage}, or None, "
            f"but at tick {now} it chose {chosen}. Ready: {ready}."
        )

    def _refuse_to_wait(self, now: int) -> NaspipeError:
        ready = "; ".join(
            f"stage {stage}: {', '.join(map(str, actions))}" for stage, actions in enumerate(self._ready) if actions
        )
        return NaspipeError(
            f"executor {type(self._executor).__name__} must choose some ready action when nothing else can "
            f"happen, but at tick {now} every stage waits. Ready: {ready or 'nothing'}."
        )
