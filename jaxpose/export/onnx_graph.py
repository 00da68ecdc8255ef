"""A graph of ONNX while it is made: its nodes, its constants, and arrays of which it holds the axes in any order.

A tensor may hold the axes of its array in another order, and only once what repeats along an axis, so that most
transpositions and broadcasts never become nodes.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpose.errors import UserError

OPSET = 18
# The version of the file format in which that set of operations came; older runtimes refuse newer files.
_IR_VERSION = 8
# Stands for any number of frames while the program is traced. No other side of an array is a multiple of this prime.
ANY = 65537


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of the graph that holds an array of the program.

    Attributes:
      name: of the tensor.
      order: axis i of the tensor is axis order[i] of the array.
      shape: sides by the axes of the array; 1 where the array repeats what the tensor holds once.
      dtype: type of the numbers.
    """

    name: str
    order: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype


# An array is known before the frames are; it has a side of 1 along an axis where the program's array repeats it.
Value = Tensor | np.ndarray
Shape = tuple[int, ...]


class Graph:
    """The nodes and constants of a file while it is made. Equal nodes are made once."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.shapes: dict[str, list[int]] = {}
        # The tensors that were converted into the type of others, by the names of those.
        self.sources: dict[str, Tensor] = {}
        self._made: dict[str, Any] = {}
        self._known: dict[Any, list[str]] = {}

    def node(self, operation: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node and returns the name of its output, or a list of names if it has several."""
        from onnx import helper

        key = operation, inputs, repr(sorted(attributes.items()))
        if key not in self._known:
            names = [f"{operation.lower()}_{len(self.nodes)}" + (f"_{i}" if i else "") for i in range(outputs)]
            self.nodes.append(helper.make_node(operation, inputs, names, names[0], **attributes))
            self._made |= dict.fromkeys(names, self.nodes[-1])
            self._known[key] = names
        names = self._known[key]
        return names[0] if outputs == 1 else names

    def inputs_of(self, name: str, operation: str) -> list[str] | None:
        """Returns the inputs of the node that makes a tensor, or None if another operation makes it."""
        made = self._made.get(name)
        return list(made.input) if made is not None and made.op_type == operation else None

    def constant(self, array: np.ndarray) -> str:
        """Returns the name of a stored array."""
        array = np.asarray(array, order="C")
        digest = hashlib.sha256(array.tobytes() + f"{array.dtype}{array.shape}".encode()).hexdigest()
        name = f"constant_{digest[:16]}"
        self.constants[name] = array
        return name

    def scalar(self, name: str) -> float | None:
        """Returns a stored single floating-point number, or None if the tensor is anything else."""
        array = self.constants.get(name)
        return float(array) if array is not None and array.shape == () and array.dtype.kind == "f" else None

    def whole_numbers(self, values: Sequence[int]) -> str:
        """Returns the name of a stored row of 64-bit whole numbers."""
        return self.constant(np.array(values, np.int64))

    def reshape(self, name: str, given: Sequence[int], wanted: Sequence[int]) -> str:
        """Returns a tensor of sides `given` with the sides `wanted`."""
        self.shapes.setdefault(name, list(given))
        while (inputs := self.inputs_of(name, "Reshape")) and inputs[0] in self.shapes:
            name = inputs[0]
        if self.shapes[name] == list(wanted):
            return name
        sides = [-1 if is_any(side) else side for side in wanted]
        name = self.node("Reshape", name, self.whole_numbers(sides))
        self.shapes[name] = list(wanted)
        return name

    def sides(self, shape: Sequence[int]) -> str:
        """Returns a tensor that holds the sides of a shape, of which some depend on the number of frames."""
        if not any(map(is_any, shape)):
            return self.whole_numbers(shape)
        count = self.node("Shape", "frames", start=0, end=1)
        parts = [
            self.node("Mul", count, self.whole_numbers([side // ANY])) if is_any(side) else self.whole_numbers([side])
            for side in shape
        ]
        return self.node("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]

    def tensor(self, value: Value) -> Tensor:
        """Returns a value as a tensor."""
        if isinstance(value, Tensor):
            return value
        return Tensor(self.constant(value), tuple(range(value.ndim)), value.shape, value.dtype)

    def in_order(self, value: Value, order: Sequence[int]) -> str:
        """Returns the name of a tensor that holds the axes of a value in an order."""
        if isinstance(value, np.ndarray):
            return self.constant(value.transpose(order))
        if value.order == tuple(order):
            return value.name
        return self.node("Transpose", value.name, perm=[value.order.index(axis) for axis in order])

    def expanded(self, value: Value, shape: Shape, axes: Sequence[int] | None = None) -> Value:
        """Returns a value that has the sides of `shape` along these axes; None are all."""
        axes = range(len(shape)) if axes is None else axes
        wanted = tuple(shape[axis] if axis in axes else side for axis, side in enumerate(value.shape))
        if wanted == value.shape:
            return value
        if isinstance(value, np.ndarray) and not any(map(is_any, wanted)):
            return np.broadcast_to(value, wanted)
        found = self.tensor(value)
        # Along axes that stay as they are, a side of 1 changes nothing.
        sides = [wanted[axis] if wanted[axis] != found.shape[axis] else 1 for axis in found.order]
        name = found.name
        # onnxruntime doubles a tensor ten times as fast as it expands one.
        for place in reversed([place for place, side in enumerate(sides) if side == 2]):
            name = self.node("Concat", name, name, axis=place)
            sides[place] = 1
        if set(sides) != {1}:
            name = self.node("Expand", name, self.sides(sides))
        return dataclasses.replace(found, name=name, shape=wanted)

    def whole(self, value: Value, shape: Shape, order: Sequence[int] | None = None) -> str:
        """Returns the name of a tensor with all of an array of this shape, in an order; None is the array's own."""
        return self.in_order(self.expanded(value, shape), range(len(shape)) if order is None else order)


def is_any(side: int) -> bool:
    return side > 0 and side % ANY == 0


def refused(operation: str) -> UserError:
    """Returns the error for an operation of JAX that no rule turns into nodes."""
    return UserError(
        f"an ONNX file cannot hold the operation {operation} as this network uses it: write a .stablehlo file instead"
    )


# The axes of values.


def renamed(graph: Graph, value: Tensor, order: Sequence[int], shape: Sequence[int]) -> Tensor:
    given = [value.shape[axis] for axis in value.order]
    name = graph.reshape(value.name, given, [shape[axis] for axis in order])
    return Tensor(name, tuple(order), tuple(shape), value.dtype)


def regrouped(graph: Graph, value: Value, old: Shape, new: Shape) -> Value:
    """Returns an array with other sides. Axes become one, and one becomes several, where they lie in the tensor."""
    groups = _groups(old, new)
    for axes, into in groups:
        if (len(axes), len(into)) != (1, 1) and any(value.shape[axis] == old[axis] for axis in axes):
            value = graph.expanded(value, old, axes)
    shape = [1] * len(new)
    for axes, into in groups:
        for axis in into:
            shape[axis] = new[axis] if value.shape[axes[0]] == old[axes[0]] else 1
    if isinstance(value, np.ndarray):
        return value.reshape(shape)
    given = value.order
    groups.sort(key=lambda group: given.index(group[0][0]))
    wanted = [axis for axes, _ in groups for axis in axes]
    if [axis for axis in value.order if old[axis] != 1] != wanted:
        order = [*wanted, *(axis for axis in range(len(old)) if old[axis] == 1)]
        value = dataclasses.replace(value, name=graph.in_order(value, order), order=tuple(order))
    order = [axis for _, into in groups for axis in into]
    for axis in range(len(new)):
        if axis not in order:
            order.insert(order.index(axis - 1) + 1 if axis else 0, axis)
    return renamed(graph, value, order, shape)


def _groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Returns which axes of an array become which axes of the reshaped one; sides of 1 belong to none."""
    left, right = ([axis for axis, side in enumerate(shape) if side != 1] for shape in (old, new))
    groups = []
    while left:
        axes, into = [left.pop(0)], [right.pop(0)]
        while (before := math.prod(old[axis] for axis in axes)) != (after := math.prod(new[axis] for axis in into)):
            if before < after:
                axes.append(left.pop(0))
            else:
                into.append(right.pop(0))
        groups.append((axes, into))
    return groups


def turned(value: Value, permutation: Sequence[int]) -> Value:
    """Returns an array whose axis i is axis permutation[i] of another one."""
    if isinstance(value, np.ndarray):
        return value.transpose(permutation)
    order = tuple(permutation.index(axis) for axis in value.order)
    return dataclasses.replace(value, order=order, shape=tuple(value.shape[axis] for axis in permutation))


def cut_out(graph: Graph, value: Value, sides: Shape, starts: Shape, ends: Shape, steps: Shape) -> Value:
    """Returns every step-th of the places from start to end along each axis."""
    cut = [axis for axis, part in enumerate(zip(starts, ends, steps, strict=True)) if part != (0, sides[axis], 1)]
    if any(is_any(sides[axis]) for axis in cut):
        raise refused("slice")
    # What repeats along an axis does so in a part of it.
    cut = [axis for axis in cut if value.shape[axis] == sides[axis] != 1]
    if not cut:
        return value
    shape = list(value.shape)
    for axis in cut:
        shape[axis] = len(range(starts[axis], ends[axis], steps[axis]))
    if isinstance(value, np.ndarray):
        return value[
            tuple(
                slice(*part) if i in cut else slice(None)
                for i, part in enumerate(zip(starts, ends, steps, strict=True))
            )
        ]
    parts = [[values[axis] for axis in cut] for values in (starts, ends)]
    places = [[value.order.index(axis) for axis in cut], [steps[axis] for axis in cut]]
    name = graph.node("Slice", value.name, *map(graph.whole_numbers, parts + places))
    return dataclasses.replace(value, name=name, shape=tuple(shape))


# The content of a file.


def to_bytes(graph: Graph, given: Shape, names: list[str], shapes: list[Shape], notes: dict[str, Any]) -> bytes:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    outputs = ("keypoints", "confidence")
    graph.nodes += [helper.make_node("Identity", [name], [out]) for name, out in zip(names, outputs, strict=True)]
    used, nodes = set(outputs), []
    for node in reversed(graph.nodes):
        if used.intersection(node.output):
            nodes.insert(0, node)
            used.update(node.input)

    def described(name: str, kind: int, shape: Shape) -> Any:
        return helper.make_tensor_value_info(name, kind, ["batch" if is_any(side) else side for side in shape])

    model = helper.make_model(
        helper.make_graph(
            nodes,
            "jaxpose",
            [described("frames", TensorProto.UINT8, given)],
            [described(out, TensorProto.FLOAT, shape) for out, shape in zip(outputs, shapes, strict=True)],
            [numpy_helper.from_array(array, name) for name, array in graph.constants.items() if name in used],
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="jaxpose",
    )
    helper.set_model_props(
        model, {name: one if isinstance(one, str) else json.dumps(one) for name, one in notes.items()}
    )
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)
