"""How many threads decode and load: one rule, by the cores that the process may really use."""

import os

import pytest

from jaxpose.threads import allowed_cores, loader_threads, map_in_threads


@pytest.mark.parametrize(
    ("affinity", "per_task", "asked", "cores", "threads"),
    [
        (1, None, 0, 1, 1),
        (2, None, 0, 2, 1),
        (8, None, 0, 8, 7),
        (9, None, 0, 9, 8),
        (64, None, 0, 64, 8),
        (64, "6", 0, 6, 5),  # SLURM without binding: the node's cores are all there to be seen
        (1, "8", 0, 1, 1),  # srun did not inherit what sbatch was given, and binds
        (4, "8", 0, 4, 3),
        (16, "1", 0, 1, 1),
        (4, "", 0, 4, 3),
        (4, "many", 0, 4, 3),
        (4, "0", 0, 4, 3),
        (4, None, 12, 4, 12),
        (4, "2", 1, 2, 1),
    ],
)
def test_the_cores_that_are_allowed_decide(
    affinity: int, per_task: str | None, asked: int, cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(affinity)), raising=False)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    if per_task is not None:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", per_task)
    assert allowed_cores() == cores and loader_threads(asked) == threads


def test_without_affinity_the_cores_of_the_machine_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    for count, threads in ((5, 4), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert loader_threads(0) == threads


def test_results_come_in_order_whatever_the_number_of_threads() -> None:
    for threads in (0, 1, 5):
        assert list(map_in_threads(lambda item: item * item, range(200), threads, "squares")) == [
            item * item for item in range(200)
        ]
