"""Every test runs on 8 fake CPU devices, with implicit promotions of shape and type refused."""

import os
from collections.abc import Iterator
from pathlib import Path

# Most of the time goes into compiling; this takes half of it away. A level of your own tests what users compile:
# XLA_FLAGS=--xla_backend_optimization_level=3 pytest -m slow.
_LEVEL = "--xla_backend_optimization_level"
if _LEVEL not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_LEVEL}=0".strip()

import jax  # noqa: E402
import pandas as pd  # noqa: E402
import pytest  # noqa: E402
from absl import flags  # noqa: E402

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


@pytest.fixture(scope="session", autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of compiled programs that all tests, their workers and the processes that they start share."""
    from tests.small_run import kept_programs

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = Path(os.environ.get("JAXPOSE_TEST_PROGRAMS", shared / "programs"))
    with kept_programs(folder):
        yield folder


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished small run beside its `project` of three videos: 33 frames of 64 px each, 6 of them labelled.

    CollectedData_new.csv holds three of the frames with only some keypoints, and one that the run does not know.
    """
    # Not above: what is imported there escapes the check of types.
    from jaxpose import config as c
    from jaxpose.data.synthetic import make_project
    from jaxpose.train import train

    folder = tmp_path_factory.mktemp("trained")
    project = make_project(folder / "project", videos=3, labelled_frames=6, video_frames=33, side_px=64)
    labels = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    new = labels.iloc[[1, 7, 13]][["synthetic"]].loc[:, (slice(None), ["tail_base", "nose"], slice(None))]
    new = new.rename(columns={"nose": "snout"})
    new.to_csv(project / "CollectedData_new.csv")
    config = c.Config(
        out=str(folder / "run"),
        data=c.DataConfig(project=str(project), split="video", train_share=0.4, val_share=0.3),
        augment=c.AugmentConfig(preset="none"),
        model=c.ModelConfig(backbone="resnet18", width=8),
        optim=c.OptimConfig(lr=5e-3),
        train=c.TrainConfig(steps=40, batch_size=6, val_every_epochs=40),
        mesh=c.MeshConfig(devices=1),
        log=c.LogConfig(tensorboard=False),
        eval=c.EvalConfig(predict_videos="no"),
    )
    config.data.input_width_px = config.data.input_height_px = 64
    assert train(config)["exit_code"] == 0
    return folder / "run"


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty file systems for copies away from the machine, which fail as tests/remote_stores.py says; no long waits."""
    from jaxpose.remote import store
    from tests.remote_stores import register

    register()
    monkeypatch.setattr(store, "_WAITS_S", (0.01, 0.01, 0.01))


@pytest.fixture(params=["memory://copies", "everythird://copies", "folder"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a copy goes."""
    return str(tmp_path / "mounted") if request.param == "folder" else request.param


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of small runs; a file that needs another one has its own."""
    from tests.small_run import small_project

    return small_project(tmp_path_factory.getbasetemp() / "small-project")
