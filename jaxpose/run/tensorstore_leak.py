"""Keeps saves from growing the process: tensorstore never frees the JSON values that it returns to Python.

tensorstore 0.1.76 to 0.1.86 leak 4 objects for each `KvStore.Spec.to_json()`, and more for each reading of its metrics.
orbax calls the first for every array of every save, always with the folder of the save, and the second twice a save,
only to log it. With 360 arrays a save grew the process by 140 kB (benchmarks/memory.py).
"""

import functools
import json
import types
from typing import Any

import tensorstore

# A private module. It is the same in all orbax releases that pyproject.toml allows.
from orbax.checkpoint._src.serialization import tensorstore_utils


def avoid_leak() -> None:
    """Makes orbax ask tensorstore for the JSON of a folder once, and never for its metrics."""
    leakless = types.SimpleNamespace(**vars(tensorstore))
    leakless.KvStore = types.SimpleNamespace(Spec=_Spec, open=_open)
    leakless.experimental_collect_matching_metrics = lambda prefix: []
    tensorstore_utils.ts = leakless  # pyright: ignore[reportAttributeAccessIssue]


class _Spec:
    """The part of `tensorstore.KvStore.Spec` that orbax uses."""

    def __init__(self, spec: dict[str, Any]):
        self.spec = spec

    def to_json(self) -> dict[str, Any]:
        """Returns the whole spec of a folder."""
        return json.loads(_resolved(json.dumps(self.spec, sort_keys=True)))


def _open(spec: _Spec, **options: Any) -> Any:
    return tensorstore.KvStore.open(spec.spec, **options)


@functools.lru_cache(maxsize=8)
def _resolved(text: str) -> str:
    return json.dumps(tensorstore.KvStore.Spec(json.loads(text)).to_json())
