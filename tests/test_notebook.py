"""The notebook of the documents: its cells run in order, here on a run that is finished; nothing of a run is in it."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose.run.identity import read_config

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "first_run.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]


def run_cell(cell: dict[str, Any], names: dict[str, Any]) -> Any:
    """The value of a cell's last expression, which a notebook shows."""
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, NOTEBOOK.name, "exec"), names)
    return eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names) if last else None


@pytest.mark.slow
def test_the_cells_run_in_order(trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = []
    for cell in CELLS:
        if cell["cell_type"] == "code":
            shown.append(run_cell(cell, names))
            if "parameters" in cell["metadata"].get("tags", ()):
                assert c.resolve(names["config"]).data.project == "synthetic"
                # The cell that trains takes the summary of this run.
                names["config"] = read_config(trained_run / "config.json")
    _, out, errors, head, one, picture = shown
    assert out == (str(trained_run), "done") and set(errors) >= {"train", "validation", "test"}
    assert isinstance(head, pd.DataFrame) and len(names["table"]) == 33
    pd.testing.assert_frame_equal(one, names["table"][:1], check_exact=False, rtol=0, atol=1e-3)
    assert picture._repr_png_().startswith(b"\x89PNG") and list(tmp_path.iterdir()) == []


def test_the_notebook_holds_no_results_and_its_links_exist() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    assert notebook["nbformat"] == 4 and len({cell["id"] for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        text = "".join(cell["source"])
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)
        assert all((NOTEBOOK.parent / link).exists() for link in re.findall(r"\]\(([^)]+)\)", text))
