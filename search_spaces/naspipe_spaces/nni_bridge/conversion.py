"""Conversion of a model space of NNI to ordinary modules and choosers, in place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import nn

from naspipe.errors import SpaceError
from naspipe.wording import listing
from naspipe_spaces.nni_bridge.cells import CellShape, EdgeCell
from naspipe_spaces.nni_bridge.choosers import (
    Choices,
    Chooser,
    Gate,
    InputSwitch,
    Repeated,
    Switch,
)
from naspipe_spaces.nni_bridge.library import quiet
from naspipe_spaces.nni_bridge.superkernels import evaluate, labels_of, plain, superkernel_class


class ExpressionDepth:
    """A depth that NNI computes from decisions."""

    def __init__(self, expression: Any) -> None:
        self.labels = labels_of(expression)
        self._expression = expression

    def __call__(self, choices: Choices) -> int:
        """Return the depth."""
        return int(evaluate(self._expression, choices))


class Conversion:
    """Converts one model space; a module that occurs twice is converted once."""

    def __init__(self, nni: SimpleNamespace, model: nn.Module) -> None:
        """Prepare the conversion.

        Args:
            nni: The result of ``load_nni``.
            model: An instance of a ``ModelSpace``; it is changed.
        """
        self._nni = nni
        self._model = model
        self._done: dict[int, nn.Module] = {}
        self._kept: list[nn.Module] = []  # keeps the modules alive, so that no id is reused
        self._mixed = [*self._own_mixed_operations(), *nni.operation.NATIVE_MIXED_OPERATIONS]

    def _own_mixed_operations(self) -> list[type]:
        """Return the mixed operations that the model space defines for its own modules."""
        hooks = getattr(type(self._model), "extra_oneshot_hooks", None)
        if hooks is None:
            return []
        owners = [getattr(hook, "__self__", None) for hook in hooks(self._nni.strategy.RandomOneShot())]
        base = self._nni.operation.MixedOperation
        return [owner for owner in owners if isinstance(owner, type) and issubclass(owner, base)]

    def run(self) -> nn.Module:
        """Return the converted model.

        Raises:
            SpaceError: A module has choices that cannot be converted.
        """
        self._refuse_dangling(self._model, "")
        # New mutables take their defaults from this context.
        with self._nni.mutable.frozen_context():
            self._children(self._model, "")
        return self._model

    def _children(self, module: nn.Module, path: str) -> None:
        for name, child in list(module._modules.items()):
            if child is not None:
                module._modules[name] = self._convert(child, f"{path}.{name}" if path else name)

    def _convert(self, module: nn.Module, path: str) -> nn.Module:
        if id(module) not in self._done:
            self._kept.append(module)
            self._done[id(module)] = self._converted(module, path)
        return self._done[id(module)]

    def _converted(self, module: nn.Module, path: str) -> nn.Module:
        nn_ = self._nni.nn
        if isinstance(module, nn_.LayerChoice) and type(module).forward is nn_.LayerChoice.forward:
            names = module.names
            return Switch(module.label, {name: self._convert(module[name], f"{path}.{name}") for name in names})
        if isinstance(module, nn_.InputChoice) and type(module).forward is nn_.InputChoice.forward:
            return InputSwitch(module.label, module.reduction)
        is_cell = isinstance(module, nn_.Cell) and type(module).forward is nn_.Cell.forward
        if is_cell and (module.op_candidates_factory is not None or module.merge_op != "all"):
            return self._cell(module, path)
        if isinstance(module, nn_.Repeat) and type(module).forward is nn_.Repeat.forward:
            return self._repeat(module, path)
        if isinstance(module, nn_.ParametrizedModule):
            return self._parametrized(module, path)
        self._refuse_dangling(module, path)
        self._children(module, path)
        return module

    def _parametrized(self, module: nn.Module, path: str) -> nn.Module:
        if getattr(module, "mutables"):  # noqa: B009  # NNI's attribute
            for mixed in self._mixed:
                if isinstance(module, mixed.bound_type):
                    try:
                        # This hook is not used, since a superkernel looks up its arguments itself.
                        hooks = {"mixed_op_sampling": lambda *arguments: None}
                        with quiet():
                            kernel: nn.Module = superkernel_class(mixed).mutate(module, path, {}, hooks)
                    except (TypeError, ValueError, NotImplementedError) as error:
                        raise SpaceError(f"options of module {path!r} cannot share its weights: {error}") from error
                    return kernel.train(module.training)
        self._refuse_dangling(module, path)
        result = plain(module)
        self._children(result, path)
        return result

    def _repeat(self, module: Any, path: str) -> nn.Module:
        blocks = [self._convert(block, f"{path}.blocks.{index}") for index, block in enumerate(module.blocks)]
        if isinstance(module.depth_choice, int):
            return Repeated(blocks)
        if type(module) is not self._nni.nn.Repeat:
            raise SpaceError(
                f"module {path!r} is a {type(module).__name__}, whose blocks differ in shape, with a depth to choose. "
                "Give it a fixed depth (of NNI's cell spaces: num_cells as one number)."
            )
        depth = ExpressionDepth(module.depth_choice)
        return Repeated(
            [Gate(block, index, depth) if index >= module.min_depth else block for index, block in enumerate(blocks)]
        )

    def _cell(self, module: Any, path: str) -> nn.Module:
        factory = module.op_candidates_factory
        if factory is None:
            # Without a factory, NNI's supernets copy the modules of the last operation to every edge.
            factory = {str(name): module.ops[-1][-1][name] for name in module.ops[-1][-1].names}

        def candidates(node: int, source: int) -> dict[str, nn.Module]:
            made, _ = self._nni.cell.create_cell_op_candidates(factory, node, 0, source)
            return {name: self._convert(op, f"{path}.ops.{node}.{source}.{name}") for name, op in made.items()}

        shape = CellShape(
            module.label, module.num_predecessors, module.num_nodes, module.num_ops_per_node, module.concat_dim
        )
        sides = [
            self._convert(side, f"{path}.{name}") if isinstance(side, nn.Module) else side
            for name, side in (("preprocessor", module.preprocessor), ("postprocessor", module.postprocessor))
        ]
        return EdgeCell(shape, candidates, *sides)

    def _refuse_dangling(self, module: nn.Module, path: str) -> None:
        """Raise an error if a module has choices that cannot be converted."""
        constraint = self._nni.mutable.annotation.Constraint
        mutables = [m for m in getattr(module, "mutables", ()) if not isinstance(m, constraint)]
        if mutables:
            where = f"module {path!r} ({type(module).__name__})" if path else type(module).__name__
            raise SpaceError(
                f"choices must belong to LayerChoice, InputChoice, Repeat, Cell or arguments of NNI's Mutable... "
                f"modules, but {where} has {listing(str(m) for m in mutables)} itself. Express the choice by these."
            )


def is_chooser(module: nn.Module) -> bool:
    """Tell whether a module is a chooser."""
    return isinstance(module, Chooser)


def holds_choices(module: nn.Module) -> bool:
    """Tell whether a module or one of its submodules is a chooser."""
    return any(isinstance(child, Chooser) for child in module.modules())
