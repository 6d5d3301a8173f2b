"""The planner: an event simulation that streams the actions of all stages.

It pulls a subnet when the window admits it, never further ahead, and asks the executor's policy whenever a
stage is idle. Time is in integer ticks; events of one time are handled in the order (stage, kind, subnet,
micro-batch, segment), so every process that plans the same run plans the same actions. Conflicts are found
by an index of the last user of each layer. Time per subnet does not grow with the length of the run, and
memory is the window and the layers.

A *part* is one segment of one stage: part p is segment p % segments of stage p // segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from naspipe.errors import NaspipeError
from naspipe.pipeline.action import Action, Kind, PlannedAction
from naspipe.pipeline.active_subnet import Costs, Flight, sum_costs
from naspipe.pipeline.drain import Admission, DrainRule, never_drain
from naspipe.pipeline.executor import Executor, PipelineShape, StageView, require_support
from naspipe.pipeline.order import UpdateOrder
from naspipe.pipeline.partition import Cuts
from naspipe.pipeline.subnet import SubnetShape

_F, _B, _U = Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE
# Events that are not the end of an action: an activation or a gradient has reached another stage.
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
            executor: Whose policy chooses.
            shape: Stages, segments, micro-batches, subnets and delay.
            subnets: At least ``shape.subnets`` of them, less those before ``first``, in order; pulled one by one.
            partition: Gives each subnet's cuts into stages * segments parts.
            always_active: The blocks that have an always-active layer.
            window: Subnets in flight at most; by default the executor says.
            latency: Ticks that a message takes from stage to stage.
            first: The first subnet to train; all before it have been updated. A multiple of the bulk of *flush*.
            drains: Asked once for each later subnet, before it is admitted, whether the pipeline is drained first.

        Raises:
            InputError: Segments or a delay that the executor does not support.
        """
        self.contract = executor.contract(shape)
        self.shape = shape
        require_support(executor, shape, window)
        self._parts = shape.stages * shape.segments
        self._executor = executor
        self._source = iter(subnets)
        self._count = shape.subnets
        self.partition = partition
        self._window = executor.window(shape) if window is None else window
        self._latency = latency
        self._flights: dict[int, Flight] = {}
        self._admitted = first
        self._drains = drains
        self._asked, self._admission = first, Admission.AT_ONCE
        self._last_user: dict[int, dict[str, int]] = {}
        self._order = UpdateOrder(self.contract, shape.delay, always_active, first)
        self._heap: list[tuple[int, int, int, int, int, int]] = []
        self._ready: list[list[Action]] = [[] for _ in range(shape.stages)]
        self._due_updates: list[list[tuple[Flight, int]]] = [[] for _ in range(shape.stages)]
        self._idle = [True] * shape.stages
        self._changed: list[int] = []
        self._is_changed = [False] * shape.stages
        self._waiting_updates: dict[tuple[int, int], list[Flight]] = {}
        done = first * shape.microbatches * shape.segments
        self._views = [
            StageView(stage, shape, self._chain, self._work_per_stage, done, done) for stage in range(shape.stages)
        ]
        self._out: list[PlannedAction] = []
        self._messages = 0
        self._work = 0
        self._summed: tuple[SubnetShape, Cuts, Costs] | None = None

    def run(self) -> Iterator[PlannedAction]:
        """Yield the actions of all stages by their start; each stage's in its order.

        Raises:
            NaspipeError: The policy chose an action that is not ready, or waits for ever.
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
        if self._flights:
            raise self._refuse_to_wait(now)

    # Admission

    def _admit(self) -> None:
        """Admit subnets while the window allows it."""
        while len(self._flights) < self._window and self._admitted < self._count:
            index = self._admitted
            if index != self._asked:
                self._asked, self._admission = index, self._drains(index)
            if self._admission is Admission.NEVER:
                self._count = index
                return
            if self._admission is Admission.DRAINED and self._flights:
                return
            self._admitted += 1
            shape = next(self._source)
            cuts = self.partition(shape)
            assert len(cuts) == self._parts + 1
            flight = Flight(index, cuts, self._sum(shape, cuts), self.shape.microbatches)
            self._flights[index] = flight
            self._work += self.shape.microbatches * flight.costs.work
            if self.contract.orders_layers:
                self._find_conflicts(flight, shape)
            self._order.register(flight)
            if not flight.waits[0]:
                self._offer_forward(flight, 0)

    def _sum(self, shape: SubnetShape, cuts: Cuts) -> Costs:
        """Sum the costs up, once for subnets that share them."""
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

    def _find_conflicts(self, flight: Flight, shape: SubnetShape) -> None:
        """Make the subnet wait for the last unfinished user of each of its strict layers."""
        flights, part_of, index = self._flights, flight.costs.part_of, flight.index
        waited: set[tuple[int, int, int]] = set()
        for block, layers in enumerate(shape.layers):
            users = self._last_user.get(block)
            if users is None:
                users = self._last_user[block] = {}
            for name, strict in layers:
                if not strict:
                    continue
                other = flights.get(users.get(name, -1))
                users[name] = index
                if other is None:
                    continue
                other_part = other.costs.part_of[block]
                if other.updated[other_part]:
                    continue
                flight.follow(other, block)
                part = part_of[block]
                if (other.index, other_part, part) not in waited:
                    waited.add((other.index, other_part, part))
                    flight.waits[part] += 1
                    other.releases[other_part].append((flight, part))
        if waited:
            flight.lengthen_chains()

    # Events

    def _handle(self, now: int, stage: int, kind: int, subnet: int, microbatch: int, segment: int) -> None:
        """Handle the end of an action, or the arrival of a message."""
        flight = self._flights[subnet]
        part = stage * self.shape.segments + segment
        if kind == _F:
            self._idle[stage] = True
            self._change(stage)
            flight.ended_forward[part] += 1
            if part + 1 == len(flight.updated):
                # The last part goes back as soon as it has gone forward.
                self._backward_arrives(flight, part)
            else:
                self._send(now, stage, part + 1, _F_ARRIVES, flight, microbatch)
        elif kind == _B:
            self._idle[stage] = True
            self._change(stage)
            flight.ended_backward[part] += 1
            if part:
                self._send(now, stage, part - 1, _B_ARRIVES, flight, microbatch)
            if flight.ended_backward[part] == self.shape.microbatches:
                self._owe_updates(flight, part, now)
        elif kind == _U:
            self._idle[stage] = True
            self._change(stage)
            self._end_update(flight, part)
        elif kind == _F_ARRIVES:
            self._forward_arrives(flight, part)
        else:
            self._backward_arrives(flight, part)

    def _send(self, now: int, stage: int, part: int, kind: int, flight: Flight, microbatch: int) -> None:
        """Hand a result to another part: at once, or after the latency if it is on another stage."""
        target, segment = divmod(part, self.shape.segments)
        if self._latency and target != stage:
            arrival = (now + self._latency, target, kind, flight.index, microbatch, segment)
            heappush(self._heap, arrival)
        elif kind == _F_ARRIVES:
            self._forward_arrives(flight, part)
        else:
            self._backward_arrives(flight, part)

    def _forward_arrives(self, flight: Flight, part: int) -> None:
        flight.arrived_forward[part] += 1
        if not flight.waits[part] and flight.arrived_forward[part] == flight.started_forward[part] + 1:
            self._offer_forward(flight, part)

    def _backward_arrives(self, flight: Flight, part: int) -> None:
        flight.arrived_backward[part] += 1
        if flight.arrived_backward[part] == flight.started_backward[part] + 1:
            self._offer_backward(flight, part)

    def _offer_forward(self, flight: Flight, part: int) -> None:
        stage, segment = divmod(part, self.shape.segments)
        action = Action(stage, _F, flight.index, flight.started_forward[part], segment)
        self._ready[stage].append(action)
        self._change(stage)

    def _offer_backward(self, flight: Flight, part: int) -> None:
        stage, segment = divmod(part, self.shape.segments)
        action = Action(stage, _B, flight.index, flight.started_backward[part], segment)
        self._ready[stage].append(action)
        self._change(stage)

    # Updates

    def _owe_updates(self, flight: Flight, part: int, now: int) -> None:
        """Note that a part's gradients are complete, and which updates that makes due."""
        stage = part // self.shape.segments
        contract = self.contract
        if contract.bulk == 1:
            self._due_updates[stage].append((flight, part))
            return
        first = contract.horizon(flight.index)
        complete = self._waiting_updates.setdefault((part, first), [])
        complete.append(flight)
        if len(complete) == min(contract.bulk, self._count - first):
            del self._waiting_updates[part, first]
            complete.sort(key=lambda member: member.index)
            self._due_updates[stage] += [(member, part) for member in complete]

    def _end_update(self, flight: Flight, part: int) -> None:
        """Release whoever waited for a part's update."""
        flight.updated[part] = True
        for later, later_part in flight.releases[part]:
            self._release(later, later_part)
        flight.releases[part] = []
        for later, later_part in self._order.end_update(flight, part):
            self._release(later, later_part)
        flight.unfinished -= 1
        if not flight.unfinished:
            del self._flights[flight.index]
            flight.leave()

    def _release(self, flight: Flight, part: int) -> None:
        flight.waits[part] -= 1
        if not flight.waits[part] and flight.arrived_forward[part]:
            self._offer_forward(flight, part)

    # Dispatch

    def _start_idle_stages(self, now: int) -> None:
        """Give work to every idle stage for which something has changed, in order of stages."""
        changed = self._changed
        # Updates that take no time come first, since what they release may be on any stage.
        for stage in changed:
            if self._due_updates[stage] and self._idle[stage]:
                self._finish_free_updates(stage, now)
        if self._admitted < self._count:
            self._admit()
        changed.sort()
        for stage in changed:
            self._is_changed[stage] = False
            if self._idle[stage]:
                self._dispatch(stage, now)
        changed.clear()

    def _change(self, stage: int) -> None:
        """Note that a stage may have something new to do."""
        if not self._is_changed[stage]:
            self._is_changed[stage] = True
            self._changed.append(stage)

    def _finish_free_updates(self, stage: int, now: int) -> None:
        """Do the updates that are due and take no time."""
        due = self._due_updates[stage]
        while due and not due[0][0].costs.update[due[0][1]]:
            flight, part = due.pop(0)
            self._start(Action(stage, _U, flight.index, 0, part % self.shape.segments), flight, part, now, now)
            self._end_update(flight, part)

    def _dispatch(self, stage: int, now: int) -> None:
        """Start what an idle stage does next: an update that is due, or what the policy chooses."""
        due = self._due_updates[stage]
        if due:
            flight, part = due.pop(0)
            action = Action(stage, _U, flight.index, 0, part % self.shape.segments)
            end = now + flight.costs.update[part]
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
            flight = self._flights[action.subnet]
            part = stage * self.shape.segments + action.segment
            if action.kind == _F:
                view.forwards += 1
                flight.started_forward[part] += 1
                if flight.started_forward[part] < flight.arrived_forward[part]:
                    self._offer_forward(flight, part)
                end = now + flight.costs.forward[part]
            else:
                view.backwards += 1
                flight.started_backward[part] += 1
                if flight.started_backward[part] < min(flight.arrived_backward[part], flight.ended_forward[part]):
                    self._offer_backward(flight, part)
                end = now + flight.costs.backward[part]
            self._work -= end - now
        self._start(action, flight, part, now, end)
        self._idle[stage] = False
        heappush(self._heap, (end, stage, action.kind, action.subnet, action.microbatch, action.segment))

    def _start(self, action: Action, flight: Flight, part: int, start: int, end: int) -> None:
        """Put an action into the plan, with the number of the message that its result travels by."""
        message = None
        if action.kind != _U:
            target = part + 1 if action.kind == _F else part - 1
            if 0 <= target < len(flight.updated) and target // self.shape.segments != action.stage:
                message = self._messages
                self._messages += 1
        cuts = flight.cuts
        self._out.append(PlannedAction(action, start, end, cuts[part], cuts[part + 1], message))

    def _work_per_stage(self) -> int:
        """Return the ticks that admitted subnets have still to start, divided by the stages."""
        return self._work // self.shape.stages

    def _chain(self, action: Action) -> tuple[int, int]:
        """Return the longest causal chain from the start of an action on, and what of it follows its pass."""
        flight = self._flights[action.subnet]
        part = action.stage * self.shape.segments + action.segment
        return flight.forward_chain(part) if action.kind == _F else flight.backward_chain(part)

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
