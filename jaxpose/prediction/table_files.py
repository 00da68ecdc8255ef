"""The names of the tables that lie beside a table of predictions, <table>.csv: <table>_temporal_norm.csv and others."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from jaxpose.data.inputs import TABLES_BESIDE
from jaxpose.prediction.predictor import Predictor
from jaxpose.run.pca import Subspaces, within_a_view

TEMPORAL_NORM = "_temporal_norm"
SMOOTHED = "_smoothed"
# Of a table that could not be written to its end.
PARTIAL = ".partial"


def beside(table: Path, suffix: str) -> Path:
    """Returns the table whose name is that of a table of predictions with a suffix, such as TEMPORAL_NORM."""
    return table.with_name(f"{table.stem}{suffix}.csv")


def error_suffix(name: str) -> str:
    """Returns the suffix of the table of the errors of a loss, such as "_pca_singleview_error"."""
    return f"_{name}_error"


def suffixes_beside(predictor: Predictor) -> tuple[str, ...]:
    """Returns the suffixes of the tables that `predict_segment` writes beside the predictions."""
    return (TEMPORAL_NORM, *map(error_suffix, subspaces_of_a_view(predictor)))


def subspaces_of_a_view(predictor: Predictor) -> Subspaces:
    """Returns the subspaces that the predictions of one camera can be compared with alone.

    Poses across cameras are known only once all views are predicted: see `write_moment_errors`.
    """
    return within_a_view(predictor.subspaces, len(predictor.config.data.views))


def size_of(table: Path, suffixes: Sequence[str]) -> int:
    """Returns the bytes of a table of predictions and of the tables beside it, as far as they exist."""
    files = [table, *(beside(table, suffix) for suffix in suffixes)]
    return sum(file.stat().st_size for file in files if file.is_file())


def edited_name(table: Path) -> Path:
    """Returns a name that no file has, for a table that somebody changed: <table>.edited.csv, or .edited2.csv."""
    names = (table.with_suffix(f".edited{number}.csv") for number in itertools.chain([""], itertools.count(2)))
    return next(name for name in names if not name.exists())


def smoothing_record(table: Path) -> Path:
    """Returns the file that says how the smoothed table beside a table of predictions was made."""
    return beside(table, SMOOTHED).with_suffix(".json")


def remove_smoothed(table: Path) -> None:
    """Removes the smoothed table beside a table of predictions, which is about to change."""
    smoothing_record(table).unlink(missing_ok=True)
    beside(table, SMOOTHED).unlink(missing_ok=True)


def remove_tables(table: Path) -> None:
    """Removes a table of predictions and all tables that can lie beside it, unfinished ones too."""
    remove_smoothed(table)
    for file in (table, *(beside(table, suffix) for suffix in TABLES_BESIDE)):
        file.unlink(missing_ok=True)
        file.with_name(f"{file.name}{PARTIAL}").unlink(missing_ok=True)
