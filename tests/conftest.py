"""Every test runs on 8 fake CPU devices, with implicit promotions of shape and type refused."""

import os
from pathlib import Path

import jax
import pytest
from absl import flags

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
flags.FLAGS.mark_as_parsed()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real frames and of the reference trainer's figures; its absence fails CI."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("JAXPOSE_TEST_DATA", default))
    if not folder.is_dir():
        assert os.environ.get("CI") != "true", f"{folder} is absent: set JAXPOSE_TEST_DATA"
        pytest.skip(f"{folder} is absent: set JAXPOSE_TEST_DATA to run the tests on real frames")
    return folder


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, so that nothing lands in the user's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("JAXPOSE_CACHE", str(folder))
    return folder
