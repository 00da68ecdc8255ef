"""Stores programs as ONNX files: each operation of a traced program becomes nodes of ONNX, by a table of rules.

Arrays that do not depend on the frames are computed here and stored.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jaxpose.export.onnx_graph import (
    ANY,
    Graph,
    Shape,
    Tensor,
    Value,
    cut_out,
    is_any,
    refused,
    regrouped,
    renamed,
    to_bytes,
    turned,
)
from jaxpose.export.program import Program

SUFFIX = ".onnx"


@dataclasses.dataclass(frozen=True)
class Call:
    """An operation of the program: the graph, and the shapes of the arrays that it takes and gives."""

    graph: Graph
    given: list[Shape]
    results: list[Shape]
    dtype: np.dtype
    equation: Any


# Operations on each number.


def _elementwise(call: Call, *values: Value, emit: Callable[..., str], **parameters: Any) -> Value:
    tensors = [value for value in values if isinstance(value, Tensor)]
    known = [value for value in values if isinstance(value, np.ndarray)]
    if not tensors:
        arrays = map(jnp.asarray, np.broadcast_arrays(*known))
        return np.asarray(call.equation.primitive.bind(*arrays, **parameters))
    # The largest tensor keeps its order.
    order = max(tensors, key=lambda tensor: math.prod(tensor.shape)).order
    sides = [value.shape for value in values if len(value.shape)]
    shape = tuple(max(side) for side in zip(*sides, strict=True))
    names = [call.graph.in_order(value, order if len(value.shape) else ()) for value in values]
    return Tensor(emit(call.graph, *names), order, shape, call.dtype)


def _on_each(operation: str, **attributes: Any) -> Callable[..., Value]:
    """Returns the rule of an operation on each number that is one node."""
    return functools.partial(_elementwise, emit=lambda graph, *names: graph.node(operation, *names, **attributes))


def _rsqrt(graph: Graph, x: str) -> str:
    return graph.node("Reciprocal", graph.node("Sqrt", x))


def _not_equal(graph: Graph, x: str, y: str) -> str:
    return graph.node("Not", graph.node("Equal", x, y))


def _select(graph: Graph, which: str, if_false: str, if_true: str) -> str:
    return graph.node("Where", which, if_true, if_false)


def _max(graph: Graph, x: str, y: str) -> str:
    return graph.node("Relu", x) if graph.scalar(y) == 0 else graph.node("Max", x, y)


def _min(graph: Graph, x: str, y: str) -> str:
    # With it, runtimes compute a ReLU6 together with the convolution before it.
    inner = graph.inputs_of(x, "Relu")
    if inner and graph.scalar(y) is not None:
        return graph.node("Clip", *inner, graph.constant(np.zeros((), graph.constants[y].dtype)), y)
    return graph.node("Min", x, y)


def _integer_power(call: Call, value: Value, *, y: Any, **_: Any) -> Value:
    power = np.array(y, call.dtype)
    return _elementwise(call, value, emit=lambda graph, x: graph.node("Pow", x, graph.constant(power)), y=y)


def _square(graph: Graph, x: str) -> str:
    return graph.node("Mul", x, x)


def _as_it_is(_: Call, value: Value, **__: Any) -> Value:
    return value


def _erfc(call: Call, value: Value, **_: Any) -> Value:
    def emit(graph: Graph, x: str) -> str:
        one = graph.constant(np.ones((), call.dtype))
        return graph.node("Sub", one, graph.node("Erf", x))

    return _elementwise(call, value, emit=emit)


def _convert(call: Call, value: Value, **_: Any) -> Value:
    from onnx import helper

    graph, dtype = call.graph, call.dtype
    if isinstance(value, np.ndarray):
        return value.astype(dtype)
    if value.dtype == dtype:
        return value
    source = graph.sources.get(value.name)
    # float16 becomes float32 and float16 again without a change.
    if source is not None and source.dtype == dtype == np.float16:
        return dataclasses.replace(value, name=source.name, dtype=dtype)
    # A bias that is added in float32 between two conversions is added in float16, which runtimes join with the layer.
    x, bias = graph.inputs_of(value.name, "Add") or ("", "")
    source = graph.sources.get(x)
    if source is not None and source.dtype == dtype == np.float16 and bias in graph.constants:
        name = graph.node("Add", source.name, graph.constant(graph.constants[bias].astype(dtype)))
        return dataclasses.replace(value, name=name, dtype=dtype)
    name = graph.node("Cast", value.name, to=helper.np_dtype_to_tensor_dtype(dtype))
    graph.sources[name] = value
    return dataclasses.replace(value, name=name, dtype=dtype)


# Operations on the axes.


def _broadcast(call: Call, value: Value, *, broadcast_dimensions: Any, **_: Any) -> Value:
    (shape,), places = call.results, [int(axis) for axis in broadcast_dimensions]
    sides = [1] * len(shape)
    for place, side in zip(places, value.shape, strict=True):
        sides[place] = side
    if isinstance(value, np.ndarray):
        return value.reshape(sides)
    order = [places[axis] for axis in value.order]
    for axis in range(len(shape)):
        if axis not in order:
            # Next to the axis before it, so that both can become one.
            order.insert(order.index(axis - 1) + 1 if axis else 0, axis)
    return renamed(call.graph, value, order, sides)


def _reshape(call: Call, value: Value, **_: Any) -> Value:
    return regrouped(call.graph, value, call.given[0], call.results[0])


def _transpose(_: Call, value: Value, *, permutation: Any, **__: Any) -> Value:
    return turned(value, permutation)


def _slice(call: Call, value: Value, *, start_indices: Any, limit_indices: Any, strides: Any, **_: Any) -> Value:
    starts, ends, steps = (
        tuple(map(int, part)) for part in (start_indices, limit_indices, strides or (1,) * len(start_indices))
    )
    return cut_out(call.graph, value, call.given[0], starts, ends, steps)


def _concatenate(call: Call, *values: Value, dimension: Any, **_: Any) -> Tensor:
    (shape,), graph = call.results, call.graph
    tensors = [value for value in values if isinstance(value, Tensor)]
    order = max(tensors, key=lambda tensor: math.prod(tensor.shape)).order if tensors else tuple(range(len(shape)))
    names = [
        graph.whole(value, sides, order) for value, sides in zip(values, call.given, strict=True) if sides[dimension]
    ]
    name = graph.node("Concat", *names, axis=order.index(dimension)) if len(names) > 1 else names[0]
    return Tensor(name, order, shape, call.dtype)


def _stack(call: Call, *values: Value, axis: Any, **_: Any) -> Value:
    (shape,) = call.results
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    parts = [regrouped(call.graph, value, given, one) for value, given in zip(values, call.given, strict=True)]
    return _concatenate(dataclasses.replace(call, given=[one] * len(parts)), *parts, dimension=axis)


def _split(call: Call, value: Value, *, sizes: Any, axis: Any, **_: Any) -> list[Value]:
    starts = np.cumsum([0, *sizes]).tolist()
    sides = call.given[0]
    found = []
    for start, end in zip(starts, starts[1:], strict=False):
        first, last = [0] * len(sides), list(sides)
        first[axis], last[axis] = start, end
        found.append(cut_out(call.graph, value, sides, tuple(first), tuple(last), (1,) * len(sides)))
    return found


def _pad(call: Call, value: Value, fill: Value, *, padding_config: Any, **_: Any) -> Value:
    (shape,), graph = call.results, call.graph
    if any(inner for _, _, inner in padding_config):
        raise refused("pad")
    padded = [axis for axis, (low, high, _) in enumerate(padding_config) if low or high]
    tensor = graph.tensor(graph.expanded(value, call.given[0], padded))
    pads = [int(padding_config[axis][end]) for end in (0, 1) for axis in tensor.order]
    name = graph.node("Pad", tensor.name, graph.whole_numbers(pads), graph.in_order(fill, ()))
    sides = [shape[axis] if axis in padded else side for axis, side in enumerate(tensor.shape)]
    return dataclasses.replace(tensor, name=name, shape=tuple(sides))


# Operations that combine the numbers along axes.


def _reduce(operation: str) -> Callable[..., Value]:
    def rule(call: Call, value: Value, *, axes: Any, **_: Any) -> Value:
        graph = call.graph
        tensor = graph.tensor(graph.expanded(value, call.given[0], axes))
        places = graph.whole_numbers([tensor.order.index(axis) for axis in axes])
        name = graph.node(operation, tensor.name, places, keepdims=0)
        return _without(tensor, name, axes, call.dtype)

    return rule


def _without(tensor: Tensor, name: str, axes: Sequence[int], dtype: np.dtype) -> Tensor:
    left = [axis for axis in range(len(tensor.order)) if axis not in axes]
    order = tuple(left.index(axis) for axis in tensor.order if axis in left)
    return Tensor(name, order, tuple(tensor.shape[axis] for axis in left), dtype)


def _argmax(call: Call, value: Value, *, axes: Any, **_: Any) -> Value:
    from onnx import helper

    graph = call.graph
    tensor = graph.tensor(graph.expanded(value, call.given[0], axes))
    name = graph.node("ArgMax", tensor.name, axis=tensor.order.index(axes[0]), keepdims=0)
    name = graph.node("Cast", name, to=helper.np_dtype_to_tensor_dtype(call.dtype))
    return _without(tensor, name, axes, call.dtype)


def _reduce_window(
    call: Call,
    value: Value,
    _: Value,
    *,
    jaxpr: Any,
    window_dimensions: Any,
    window_strides: Any,
    padding: Any,
    **more: Any,
) -> Value:
    graph, sides = call.graph, window_dimensions
    moved = [axis for axis, side in enumerate(sides) if side != 1]
    others = [axis for axis in range(len(sides)) if axis not in moved]
    is_plain = set(more["base_dilation"]) == set(more["window_dilation"]) == {1} and len(others) == 2
    if [equation.primitive.name for equation in jaxpr.eqns] != ["max"] or not is_plain:
        raise refused("reduce_window")
    order = [*others, *moved]
    name = graph.node(
        "MaxPool",
        graph.whole(value, call.given[0], order),
        kernel_shape=[sides[axis] for axis in moved],
        strides=[window_strides[axis] for axis in moved],
        pads=[int(padding[axis][end]) for end in (0, 1) for axis in moved],
    )
    return Tensor(name, tuple(order), call.results[0], call.dtype)


def _convolve(
    call: Call, value: Value, kernel: Value, *, dimension_numbers: Any, window_strides: Any, padding: Any, **more: Any
) -> Value:
    graph, numbers = call.graph, dimension_numbers
    if set(more["lhs_dilation"]) != {1} or more["batch_group_count"] != 1:
        raise refused("conv_general_dilated")
    name = graph.node(
        "Conv",
        graph.whole(value, call.given[0], numbers.lhs_spec),
        graph.whole(kernel, call.given[1], numbers.rhs_spec),
        strides=list(window_strides),
        pads=[int(sides[end]) for end in (0, 1) for sides in padding],
        dilations=list(more["rhs_dilation"]),
        group=more["feature_group_count"],
    )
    return Tensor(name, tuple(numbers.out_spec), call.results[0], call.dtype)


@dataclasses.dataclass(frozen=True)
class _Factor:
    """A factor of a product of matrices: its value, its sides, and the axes that it shares and that are summed over."""

    value: Value
    sides: Shape
    shared: list[int]
    over: list[int]

    @property
    def free(self) -> list[int]:
        return [axis for axis in range(len(self.sides)) if axis not in self.shared + self.over]

    def order(self, is_first: bool) -> list[int]:
        return [*self.shared, *(self.free + self.over if is_first else self.over + self.free)]

    def moved(self, is_first: bool) -> int:
        """Returns how many numbers must move before the product."""
        is_in_order = isinstance(self.value, np.ndarray) or list(self.value.order) == self.order(is_first)
        return 0 if is_in_order else math.prod(self.sides)

    def matrices(self, graph: Graph, is_first: bool) -> str:
        order = self.order(is_first)
        sizes = [math.prod(self.sides[axis] for axis in axes) for axes in (self.free, self.over)]
        wanted = [*(self.sides[axis] for axis in self.shared), *(sizes if is_first else sizes[::-1])]
        name = graph.whole(self.value, self.sides, order)
        return graph.reshape(name, [self.sides[axis] for axis in order], wanted)


def _dot(call: Call, x: Value, y: Value, *, dimension_numbers: Any, **_: Any) -> Value:
    (over, shared), graph, (shape,) = dimension_numbers, call.graph, call.results
    # Products of float16 may be wanted in float32.
    x, y = (_convert(call, value) for value in (x, y))
    if isinstance(x, Tensor) and isinstance(y, np.ndarray) and y.ndim == 2 and not shared[0] and len(over[0]) == 1:
        return _dot_with_matrix(call, x, y if over[1][0] == 0 else y.T, over[0][0])
    one, other = (
        _Factor(value, sides, list(batch), list(summed))
        for value, sides, batch, summed in zip((x, y), call.given, shared, over, strict=True)
    )
    # The product of the turned matrices, in the other order, is the turned product.
    is_turned = other.moved(True) + one.moved(False) < one.moved(True) + other.moved(False)
    first, last = (other, one) if is_turned else (one, other)
    name = graph.node("MatMul", first.matrices(graph, True), last.matrices(graph, False))
    rank, kept = len(one.shared), len(one.shared) + len(one.free)
    order = [*range(rank), *range(rank, len(shape))]
    if is_turned:
        order = [*range(rank), *range(kept, len(shape)), *range(rank, kept)]
    sides = [one.sides[axis] for axis in one.shared]
    sides += [math.prod(factor.sides[axis] for axis in factor.free) for factor in (first, last)]
    name = graph.reshape(name, sides, [shape[axis] for axis in order])
    return Tensor(name, tuple(order), shape, call.dtype)


# With fewer columns than this, a product of matrices is slow.
_FEW = 8


def _dot_with_matrix(call: Call, value: Tensor, matrix: np.ndarray, axis: int) -> Value:
    """Sums over an axis with a matrix (side, new side); the new axis becomes the last one."""
    graph = call.graph
    x = graph.tensor(graph.expanded(value, call.given[0]))
    order, rank, place = list(x.order), len(x.order), x.order.index(axis)
    is_moved = place < rank - (1 if x.shape[order[-1]] < _FEW else 2) and (rank, place) != (4, 1)
    if is_moved:
        # A convolution of images sums over their second axis; otherwise the last axis is as good.
        others = [other for other in order if other != axis]
        order = [others[0], axis, others[-1], *others[1:-1]] if rank == 4 else [*others, axis]
    name, place = graph.in_order(x, order), order.index(axis)
    if (rank, place) == (4, 1):
        name = graph.node("Conv", name, graph.constant(matrix.T[:, :, None, None]), kernel_shape=[1, 1])
    elif place == rank - 1:
        name = graph.node("MatMul", name, graph.constant(matrix))
    else:
        name = graph.node("MatMul", graph.constant(matrix.T), name)
    if is_moved and rank == 4:
        # What follows is faster where the few channels come second.
        order, name = [order[0], *order[2:], axis], graph.node("Transpose", name, perm=[0, 2, 3, 1])
    order = [rank - 1 if other == axis else other - (other > axis) for other in order]
    return Tensor(name, tuple(order), call.results[0], call.dtype)


# Operations that choose numbers by their places.


def _gather(call: Call, value: Value, places: Value, *, dimension_numbers: Any, slice_sizes: Any, **_: Any) -> Value:
    numbers, sides, (shape,) = dimension_numbers, call.given[0], call.results
    slice_sizes = tuple(map(int, slice_sizes))
    over = [axis for axis in range(len(shape)) if axis not in numbers.offset_dims]
    if isinstance(places, np.ndarray):
        starts, ends, steps = [0] * len(sides), list(slice_sizes), [1] * len(sides)
        if over:
            return _gather_grid(call, value, places, numbers, over)
        for axis, start in zip(numbers.start_index_map, places.tolist(), strict=True):
            starts[axis] = min(max(start, 0), sides[axis] - slice_sizes[axis])
            ends[axis] = starts[axis] + slice_sizes[axis]
        found = cut_out(call.graph, value, sides, tuple(starts), tuple(ends), tuple(steps))
        return regrouped(call.graph, found, slice_sizes, shape)
    return _gather_anywhere(call, value, places, numbers, slice_sizes, over)


def _gather_grid(call: Call, value: Value, places: np.ndarray, numbers: Any, over: list[int]) -> Value:
    """Chooses known places along some axes."""
    sides, rank = list(call.given[0]), places.ndim - 1
    mapped = [int(axis) for axis in numbers.start_index_map]
    for i, axis in enumerate(mapped):
        along = places[(0,) * i + (slice(None),) + (0,) * (rank - 1 - i) + (i,)]
        if len(mapped) != rank or np.any(places[..., i] != along.reshape([-1 if j == i else 1 for j in range(rank)])):
            raise refused("gather")
        value = _take(call.graph, value, tuple(sides), axis, along.tolist())
        sides[axis] = len(along)
    kept = iter(axis for axis in range(len(sides)) if axis not in mapped)
    chosen = iter(mapped)
    return turned(value, [next(chosen) if axis in over else next(kept) for axis in range(len(call.results[0]))])


def _take(graph: Graph, value: Value, sides: Shape, axis: int, places: list[int]) -> Value:
    """Returns these places along an axis of an array with these sides."""
    step = places[1] - places[0] if len(places) > 1 else 1
    if step > 0 and places == list(range(places[0], places[-1] + 1, step)):
        starts, ends, steps = [0] * len(sides), list(sides), [1] * len(sides)
        starts[axis], ends[axis], steps[axis] = places[0], places[-1] + 1, step
        return cut_out(graph, value, sides, tuple(starts), tuple(ends), tuple(steps))
    tensor = graph.tensor(graph.expanded(value, sides, [axis]))
    name = graph.node("Gather", tensor.name, graph.whole_numbers(places), axis=tensor.order.index(axis))
    shape = [len(places) if other == axis else side for other, side in enumerate(tensor.shape)]
    return dataclasses.replace(tensor, name=name, shape=tuple(shape))


def _scatter(call: Call, value: Value, places: Value, new: Value, *, dimension_numbers: Any, **more: Any) -> Value:
    """Replaces known places along one axis."""
    numbers, sides, graph = dimension_numbers, call.given[0], call.graph
    axis = int(numbers.scatter_dims_to_operand_dims[0])
    others = tuple(other for other in range(len(sides)) if other != axis)
    is_plain = numbers.inserted_window_dims == (axis,) and numbers.update_window_dims == others
    if not isinstance(places, np.ndarray) or places.shape[1:] != (1,) or not is_plain or more["update_jaxpr"]:
        raise refused("scatter")
    both = dataclasses.replace(call, given=[sides, call.given[2]])
    joined = _concatenate(both, value, new, dimension=axis)
    chosen = np.arange(sides[axis])
    chosen[places[:, 0]] = sides[axis] + np.arange(len(places))
    total = (*sides[:axis], sides[axis] + len(places), *sides[axis + 1 :])
    return _take(graph, dataclasses.replace(joined, shape=total), total, axis, chosen.tolist())


def _gather_anywhere(
    call: Call, value: Value, places: Value, numbers: Any, slice_sizes: Shape, over: list[int]
) -> Value:
    """Chooses numbers at computed places, which lie inside of the array or are moved there."""
    graph, (sides, of_places), (shape,) = call.graph, call.given, call.results
    shared = [int(axis) for axis in numbers.operand_batching_dims]
    rest = [axis for axis in range(len(sides)) if axis not in shared]
    count = math.prod(sides[axis] for axis in rest)
    name = graph.whole(value, sides, [*shared, *rest])
    common = [sides[axis] for axis in shared]
    numbers_in = graph.reshape(name, [sides[axis] for axis in (*shared, *rest)], [*common, count])

    stride = {axis: math.prod(sides[other] for other in rest if other > axis) for axis in rest}
    mapped = [int(axis) for axis in numbers.start_index_map]
    first = [int(axis) for axis in numbers.start_indices_batching_dims]
    order = [*first, *(axis for axis in range(len(of_places) - 1) if axis not in first), len(of_places) - 1]
    name = graph.whole(places, of_places, order)
    most = np.array([sides[axis] - slice_sizes[axis] for axis in mapped], places.dtype)
    name = graph.node("Min", graph.node("Max", name, graph.constant(np.zeros_like(most))), graph.constant(most))
    name = graph.node("Mul", name, graph.constant(np.array([stride[axis] for axis in mapped], places.dtype)))
    name = graph.node("ReduceSum", name, graph.whole_numbers([-1]), keepdims=0)
    windows = [of_places[axis] for axis in order[len(first) : -1]]
    name = graph.reshape(name, [of_places[axis] for axis in order[:-1]], [*common, math.prod(windows), 1])
    grids = np.meshgrid(*[np.arange(slice_sizes[axis]) * stride[axis] for axis in rest], indexing="ij")
    offsets = np.sum(grids, axis=0).reshape(-1).astype(places.dtype)
    name = graph.node("Add", name, graph.constant(offsets))
    given = [*common, math.prod(windows), len(offsets)]
    name = graph.reshape(name, given, [*common, given[-2] * given[-1]])
    name = graph.node("GatherElements", numbers_in, name, axis=len(shared))
    found = [*(over[axis] for axis in order[:-1]), *map(int, numbers.offset_dims)]
    name = graph.reshape(name, [*common, given[-2] * given[-1]], [shape[axis] for axis in found])
    return Tensor(name, tuple(found), shape, call.dtype)


# Operations whose function is a part of the program, by the parameter that has it.
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
_RULES: dict[str, Callable[..., Any]] = {
    "abs": _on_each("Abs"),
    "add": _on_each("Add"),
    "and": _on_each("And"),
    "argmax": _argmax,
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolve,
    "convert_element_type": _convert,
    "copy": _as_it_is,
    "div": _on_each("Div"),
    "dot_general": _dot,
    "eq": _on_each("Equal"),
    "erfc": _erfc,
    "exp": _on_each("Exp"),
    "floor": _on_each("Floor"),
    "gather": _gather,
    "ge": _on_each("GreaterOrEqual"),
    "gt": _on_each("Greater"),
    "integer_pow": _integer_power,
    "le": _on_each("LessOrEqual"),
    "lt": _on_each("Less"),
    "max": functools.partial(_elementwise, emit=_max),
    "min": functools.partial(_elementwise, emit=_min),
    "mul": _on_each("Mul"),
    "ne": functools.partial(_elementwise, emit=_not_equal),
    "neg": _on_each("Neg"),
    "pad": _pad,
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "reduce_sum": _reduce("ReduceSum"),
    "reduce_window": _reduce_window,
    "rem": _on_each("Mod", fmod=1),
    "reshape": _reshape,
    "round": _on_each("Round"),
    "rsqrt": functools.partial(_elementwise, emit=_rsqrt),
    "scatter": _scatter,
    "select_n": functools.partial(_elementwise, emit=_select),
    "sign": _on_each("Sign"),
    "slice": _slice,
    "split": _split,
    "sqrt": _on_each("Sqrt"),
    "square": functools.partial(_elementwise, emit=_square),
    "squeeze": _reshape,
    "stack": _stack,
    "stop_gradient": _as_it_is,
    "sub": _on_each("Sub"),
    "transpose": _transpose,
}


# Stands for the platform that the program runs on. If an operation has a form for each platform, a file gets the
# shortest: runtimes have fast code for a whole operation, such as a depthwise convolution, but not for its parts.
_ANY_PLATFORM = np.array(-1, np.int32)


def _run(graph: Graph, jaxpr: Any, constants: Sequence[Any], given: Sequence[Value]) -> list[Value]:
    """Adds the operations of a traced function to a graph, and returns its results."""
    arrays = [np.asarray(constant) for constant in constants]
    known: dict[Any, Value] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*arrays, *given], strict=True))

    def read(atom: Any) -> Value:
        if not isinstance(atom, core.Literal):
            return known[atom]
        return np.asarray(atom.val, atom.aval.dtype)  # pyright: ignore[reportAttributeAccessIssue]

    for equation in jaxpr.eqns:
        found = _apply(graph, equation, [read(atom) for atom in equation.invars])
        known |= dict(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(graph: Graph, equation: Any, values: list[Value]) -> list[Value]:
    name, parameters = equation.primitive.name, equation.params
    if name in _CALLS:
        inner = parameters[_CALLS[name]]
        return _run(graph, inner.jaxpr, inner.consts, values)
    if name == "platform_index":
        return [_ANY_PLATFORM]
    if name == "cond" and values[0] is _ANY_PLATFORM:
        branch = min(parameters["branches"], key=lambda one: len(one.jaxpr.eqns))
        return _run(graph, branch.jaxpr, branch.consts, values[1:])
    given = [tuple(atom.aval.shape) for atom in equation.invars]
    results = [tuple(variable.aval.shape) for variable in equation.outvars]
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) == len(values) and not any(map(is_any, sum([*given, *results], ()))):
        full = [np.broadcast_to(array, shape) for array, shape in zip(arrays, given, strict=True)]
        found = equation.primitive.bind(*map(jnp.asarray, full), **parameters)
        return [np.asarray(one) for one in (found if equation.primitive.multiple_results else [found])]
    if name not in _RULES:
        raise refused(name)
    call = Call(graph, given, results, np.dtype(equation.outvars[0].aval.dtype), equation)
    found = _RULES[name](call, *values, **parameters)
    return found if isinstance(found, list) else [found]


def to_onnx(program: Program, shape: tuple[int, ...], batch: int | None, notes: dict[str, Any]) -> bytes:
    """Returns the content of a file.

    Args:
      program: the program.
      shape: of the frames of one result.
      batch: number of results at once; None is any number.
      notes: what the file says about itself.
    """
    frames = jax.ShapeDtypeStruct((batch or ANY, *shape), jnp.uint8)
    traced = jax.make_jaxpr(program)(frames)
    graph = Graph()
    given = Tensor("frames", tuple(range(len(frames.shape))), frames.shape, np.dtype(np.uint8))
    results = _run(graph, traced.jaxpr, traced.consts, [given])
    names = [
        graph.whole(result, variable.aval.shape) for result, variable in zip(results, traced.jaxpr.outvars, strict=True)
    ]
    return to_bytes(graph, frames.shape, names, [variable.aval.shape for variable in traced.jaxpr.outvars], notes)


def load_onnx(content: bytes) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns the program in a file, which onnxruntime runs on the CPU; see `Program`."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    batch = session.get_inputs()[0].shape[0]

    def run(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not isinstance(batch, int):
            keypoints, confidence = map(np.asarray, session.run(None, {"frames": frames}))
            return keypoints, confidence
        # The last frame fills up the last batch.
        places = np.minimum(np.arange(-(-len(frames) // batch) * batch), len(frames) - 1)
        parts = [session.run(None, {"frames": frames[part]}) for part in places.reshape(-1, batch)]
        keypoints, confidence = (np.concatenate(found)[: len(frames)] for found in zip(*parts, strict=True))
        return keypoints, confidence

    return run
