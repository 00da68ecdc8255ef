"""The cheapest paths of several units through a graph without circles: successive shortest paths."""

import dataclasses

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph


@dataclasses.dataclass(frozen=True)
class Graph:
    """Edges that lead to later nodes. All paths lead from node `source` to node `sink`.

    Attributes:
      tails, heads: (e,) nodes; no pair of nodes has two edges.
      costs: (e,) cost of a unit.
      single: (e,) whether an edge carries at most one unit; others carry any number.
      times: (n,) whole numbers; those of the head of an edge are at least 1 above its tail's.
      source, sink: nodes.
    """

    tails: np.ndarray
    heads: np.ndarray
    costs: np.ndarray
    single: np.ndarray
    times: np.ndarray
    source: int
    sink: int


@dataclasses.dataclass(frozen=True)
class Flow:
    """A cheapest flow.

    Attributes:
      units: (e,) number of units on each edge.
      paths: number of units from source to sink.
      cost: the sum.
      residual: reduced costs (n, n) of a unit more, or less against the direction of an edge; none is negative.
      potentials: (n,) the cost of a path in `residual` from a to b is its true cost + potentials[a] - potentials[b].
    """

    units: np.ndarray
    paths: int
    cost: float
    residual: sparse.csr_array
    potentials: np.ndarray


def cheapest_flow(graph: Graph, least: int, most: int, path_cost: float = 0.0) -> Flow:
    """Returns the cheapest flow of `least` to `most` units, each of which costs `path_cost` more.

    A further unit is sent only while it makes the flow cheaper; fewer than `least` are sent if no path is left.
    """
    units = np.zeros(len(graph.costs), np.int64)
    steps = graph.times[graph.heads] - graph.times[graph.tails]
    rise = float(np.max(-graph.costs / steps, initial=0.0))
    # Every path from source to sink gets the same more, and no edge stays negative.
    potentials = -rise * graph.times.astype(np.float64)
    paths, total = 0, 0.0
    residual = _Residual(graph, units, potentials)
    while paths < most:
        distances, before = csgraph.dijkstra(residual.costs, indices=graph.source, return_predecessors=True)
        if not np.isfinite(distances[graph.sink]):
            break
        cost = float(distances[graph.sink] - potentials[graph.source] + potentials[graph.sink]) + path_cost
        if paths >= least and cost >= 0:
            break
        potentials = potentials + np.minimum(distances, distances[graph.sink])
        residual.send(units, before)
        paths, total = paths + 1, total + cost
        residual = _Residual(graph, units, potentials)
    return Flow(units, paths, total, residual.costs, potentials)


class _Residual:
    """The edges on which a unit more, or less against their direction, can be sent."""

    def __init__(self, graph: Graph, units: np.ndarray, potentials: np.ndarray):
        self._graph = graph
        forward, back = np.flatnonzero(~graph.single | (units == 0)), np.flatnonzero(units > 0)
        tails = np.concatenate([graph.tails[forward], graph.heads[back]])
        heads = np.concatenate([graph.heads[forward], graph.tails[back]])
        costs = np.concatenate([graph.costs[forward], -graph.costs[back]]) + potentials[tails] - potentials[heads]
        order = np.lexsort((heads, tails))
        self._edges, self._change = np.concatenate([forward, back])[order], np.ones(len(order), np.int64)
        self._change[order >= len(forward)] = -1
        count = len(graph.times)
        starts = np.searchsorted(tails[order], np.arange(count + 1))
        # Rounding may leave less than 0.
        content = np.maximum(costs[order], 0.0), heads[order], starts
        self.costs = sparse.csr_array(content, shape=(count, count))

    def send(self, units: np.ndarray, before: np.ndarray) -> None:
        """Sends a unit along the shortest paths that `before` (n,) leads back; changes `units`."""
        node = self._graph.sink
        while node != self._graph.source:
            tail = int(before[node])
            first, last = self.costs.indptr[tail : tail + 2]
            at = first + np.searchsorted(self.costs.indices[first:last], node)
            units[self._edges[at]] += self._change[at]
            node = tail
