"""Every test runs on 8 fake CPU devices, with implicit promotions of shape and type refused."""

import gc
import importlib.metadata
import itertools
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

# Most of the time goes into compiling; these options save three quarters of it. Set a level of your own to test what
# users compile: XLA_FLAGS=--xla_backend_optimization_level=3 pytest -m slow.
_LEVEL = "--xla_backend_optimization_level"
if _LEVEL not in os.environ.get("XLA_FLAGS", ""):
    _given = [os.environ.get("XLA_FLAGS", ""), f"{_LEVEL}=0"]
    # XLA ends the process if it does not know an option, and later versions no longer have this one.
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        _given.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join(_given).strip()

# Every process that a test starts would compile the package's files again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import jax  # noqa: E402
import pytest  # noqa: E402

# Before OpenCV, which then refuses large images before it decodes them.
import jaxpose  # noqa: E402, F401

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
# nohup and the background jobs of a script ignore it, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _name in ("layouts", "log_files", "process_pair", "remote_copies", "shared_runs", "small_run"):
    pytest.register_assert_rewrite(f"tests.{_name}")

# Each is one worker's; those that take longest begin first.
_LONGEST = (
    "pose/test_augment.py",
    "test_predict.py",
    "test_train.py",
    "video/test_clips.py",
    "training/test_members.py",
    "steps/test_sharded_step.py",
    "formats/test_lightning_pose_config.py",
    "test_views_agree.py",
    "test_convert.py",
    "test_entry.py",
    "run/test_identity.py",
    "prediction/test_many_videos.py",
    "model/test_model.py",
    "pose/test_heatmap.py",
    "test_evaluate.py",
    "test_rooms.py",
    "remote/test_copy.py",
    "remote/test_restore.py",
    "export/test_programs.py",
    "test_main.py",
    "test_train_resume.py",
    "run/test_checkpoint.py",
    "model/test_vit.py",
    "trackers/test_tracker.py",
    "test_terminal.py",
    "prediction/test_frame_boxes.py",
    "cluster/test_multiprocess.py",
    "video/test_segments.py",
    "video/test_key_frames.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --sample=COUNT:SEED."""
    parser.addoption("--sample", metavar="COUNT:SEED", help="run only so many of the selected tests, drawn by the seed")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With -m and one mark, leaves out the files that do not name it: to import all of them takes a core 15 s."""
    mark = config.getoption("markexpr")
    if mark not in ("slow", "full", "faults", "slurm") or collection_path.suffix != ".py":
        return None
    return True if mark not in collection_path.read_text() else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the files that take longest first, so that no worker is left alone with one of them at the end."""
    if sample := config.getoption("--sample"):
        count, seed = map(int, sample.split(":"))
        drawn = set(random.Random(seed).sample(sorted(item.nodeid for item in items), min(count, len(items))))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in drawn])
        items[:] = [item for item in items if item.nodeid in drawn]
    folder = Path(__file__).resolve().parent
    places = {folder / name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """Exempts what was imported from garbage collection: a full collection with it takes 0.14 s."""
    gc.collect()
    gc.freeze()
    # Tracing a step makes objects by the hundred thousand, nearly all of which live as long as its program.
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> Iterator[None]:
    """Forgets what a file compiled, which no other file needs."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real frames and of the reference trainer's figures; its absence fails CI."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("JAXPOSE_TEST_DATA", default))
    if not folder.is_dir():
        how = (
            f"{folder} is absent: JAXPOSE_TEST_DATA names a folder with mirror-mouse-example, which is in data/ of "
            "github.com/paninski-lab/lightning-pose, and with a run of that tool on it, lightning-pose-run"
        )
        assert os.environ.get("CI") != "true", how
        pytest.skip(how)
    return folder


@pytest.fixture(scope="session")
def cache_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders, each numbered by the last: pytest would list all that there are for each."""
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def cache_folder(cache_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, so that nothing lands in the user's."""
    folder = next(cache_folders)
    folder.mkdir()
    monkeypatch.setenv("JAXPOSE_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session", autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of compiled programs that all tests, their workers and the processes that they start share."""
    from tests.shared_runs import session_folder
    from tests.small_run import kept_programs, share_programs

    folder = Path(os.environ.get("JAXPOSE_TEST_PROGRAMS", session_folder(tmp_path_factory) / "programs"))
    with kept_programs(folder), pytest.MonkeyPatch.context() as patch:
        # Of the runs that are made before the first test begins.
        patch.setenv("JAXPOSE_CACHE", str(tmp_path_factory.mktemp("cache")))
        share_programs(patch)
        yield folder


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished small run beside its `project` of three videos: 33 frames of 64 px each, 6 of them labelled.

    CollectedData_new.csv holds three of the frames with only some keypoints, and one that the run does not know.
    """
    # Not above: what is imported there escapes the check of types.
    from tests.shared_runs import made_once, make_trained, move_run

    made = made_once(tmp_path_factory, "trained", make_trained)
    return move_run(made, tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="session")
def whole(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 40 steps without interruption, next to `compilations.json`. Tests copy it before they change it."""
    from tests.shared_runs import made_once, make_whole

    return made_once(tmp_path_factory, "whole", lambda folder: make_whole(project, folder)) / "run"


@pytest.fixture(scope="session")
def stopped(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, but for a SIGTERM soon after its first validation."""
    from tests.shared_runs import made_once, make_stopped

    return made_once(tmp_path_factory, "stopped", lambda folder: make_stopped(project, folder)) / "run"


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty file systems for copies away from the machine, which fail as tests/remote_stores.py says; no long waits."""
    from jaxpose.remote import copy, store
    from tests.remote_stores import register

    register()
    monkeypatch.setattr(store, "WAITS_S", (0.01, 0.01, 0.01))
    monkeypatch.setattr(copy, "LAST_PAUSE_S", 0.1)


@pytest.fixture(params=["memory://copies", "everythird://copies", "folder"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a copy goes."""
    return str(tmp_path / "mounted") if request.param == "folder" else request.param


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of small runs, which no test changes; a file that needs another one has its own."""
    from tests.shared_runs import made_once
    from tests.small_run import small_project

    return made_once(tmp_path_factory, "small", lambda folder: small_project(folder / "project")) / "project"
