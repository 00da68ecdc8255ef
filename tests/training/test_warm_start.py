"""A second start of the same training loads the programs of its step without tracing them, and has the same bits."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_run import assert_same_run, command, make_config

STEP = {"prepare", "gradients", "update"}


@pytest.mark.slow
def test_a_second_start_traces_no_program_of_its_step(project: Path, tmp_path: Path) -> None:
    variables = os.environ | {"JAXPOSE_CACHE": str(tmp_path / "cache"), "JAX_LOG_COMPILES": "1", "JAX_PLATFORMS": "cpu"}
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)

    config = make_config(project, tmp_path, train__steps=2, log__tensorboard=False)

    def traced(run: str, *changes: str) -> set[str]:
        """Returns the names of the functions that a run traces."""
        verb = [sys.executable, "-m", "jaxpose.train", *command(config, tmp_path, f"out={tmp_path / run}", *changes)]
        ended = subprocess.run(verb, env=variables, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return {*re.findall(r"Finished tracing (\w+) for jit", ended.stderr)}

    assert traced("first") >= STEP
    # The run folder and the log change no program.
    assert not traced("second", "log.frames=2") & STEP
    assert_same_run(tmp_path / "first", tmp_path / "second")
