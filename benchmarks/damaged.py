"""A small run whose files are damaged one at a time, and the reaction of their readers."""

import contextlib
import dataclasses
import io
import json
import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from jaxpose import config as c
from jaxpose import evaluate, predict
from jaxpose.checksums import read_json
from jaxpose.data.synthetic import make_project
from jaxpose.errors import UserError
from jaxpose.pose.pca import to_json
from jaxpose.prediction.index import DONE, Claims, PredictionIndex, row_of, suffixes_beside
from jaxpose.prediction.job import Job
from jaxpose.prediction.worker import Worker
from jaxpose.remote.watched import Watched
from jaxpose.run.paths import MANIFEST_FILE
from jaxpose.run.status import refuse_stuck_requeue
from jaxpose.train import train
from jaxpose.video.video import scan

# From the best to the worst.
OUTCOMES = (
    "refused",
    "ignored with a warning",
    "same meaning",
    "as before it was written",
    "refused without its name",
    "traceback",
    "other meaning",
)
REFUSED, IGNORED, SAME, EARLIER, UNNAMED, TRACEBACK, OTHER = OUTCOMES
SAFE = OUTCOMES[:4]
_STRETCH_MINUTES = 12 / 30 / 60  # 12 frames
_SLURM = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}


class Refused(Exception):
    """A verb ended with the exit code of a mistake, or a job failed; the text is its message."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Files of one kind.

    Attributes:
      folder: a refusal names each file, or its folder in this one.
      files: paths below the folder.
      readers: all their readers; each returns what it understood.
      waiting: those of them that understand an absent file as one that has not been written yet.
    """

    folder: Path
    files: list[Path]
    readers: list[Callable[[], Any]]
    waiting: Sequence[Callable[[], Any]] = ()


class DamagedRun:
    """A finished run, the same run before its end, and half-finished predictions of a video, with their readers.

    Attributes:
      kinds: the kinds of files, by name.
    """

    def __init__(self, work: Path):
        project = make_project(work / "project", videos=3, labelled_frames=6, video_frames=33, side_px=64)
        self._config = _config(project, work / "run")
        train(self._config)
        self._run, self._open, self._out, self._half = (work / name for name in ("run", "open", "out", "half-done"))
        # The run before its end: its best weights are those of a checkpoint.
        shutil.copytree(self._run, self._open)
        for name in ("finished.json", "best.safetensors"):
            (self._open / name).unlink()
        self._evaluated = work / "evaluated"
        self._video = sorted((project / "videos").iterdir())[0]
        self._cut = _write_video(work / "cut.avi")
        self._predictor = predict.load(self._run, devices=1, platform="cpu")
        options = dataclasses.replace(self._predictor.config.predict, stretch_minutes=_STRETCH_MINUTES, decoders=1)
        self._predictor.config = dataclasses.replace(self._predictor.config, predict=options)
        self._half.mkdir()
        self._work(self._half, lambda: len(_segments(self._half)) == 2)
        self._restore()
        run, parts = self._run, _segments(self._out)[0].parent
        checkpoints = self._open / "checkpoints"
        files = _files(checkpoints)
        manifests = [file for file in files if file.name == MANIFEST_FILE]
        self.kinds = {
            "config.json": Kind(run, [Path("config.json")], [self._load, self._evaluate, self._train, self._watch]),
            "split.csv": Kind(run, [Path("split.csv")], [self._evaluate, self._train, self._watch], [self._watch]),
            "pca.json": Kind(run, [Path("pca.json")], [self._load, self._evaluate]),
            "index.csv": Kind(run, [Path("index.csv")], [self._predict]),
            "finished.json": Kind(run, [Path("finished.json")], [self._train, self._watch], [self._watch]),
            "best.safetensors": Kind(run, [Path("best.safetensors")], [self._load]),
            "restarts.json": Kind(self._open, [Path("restarts.json")], [self._restart], [self._restart]),
            # A checkpoint without a manifest is one that was not saved to the end.
            "manifests of checkpoints": Kind(checkpoints, manifests, [self._load_open], [self._load_open]),
            "files of checkpoints": Kind(checkpoints, sorted({*files} - {*manifests}), [self._load_open]),
            "files of finished segments": Kind(parts, _files(parts), [self._join]),
        }
        self._meant = {}
        for kind in self.kinds.values():
            for reader in kind.readers:
                self._restore()
                self._meant[reader.__name__] = reader()
        self._restore()

    def damage(self, kind: Kind, path: Path, content: bytes | None) -> str:
        """Gives a file another content, or removes it, calls all its readers, and returns the worst of OUTCOMES."""
        file, found = kind.folder / path, []
        name = str(kind.folder / path.parts[0] if content is not None else kind.folder)
        for reader in kind.readers:
            self._restore()
            written = file.read_bytes()
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content)
            outcome = self._outcome(reader, name)
            is_earlier = content is None and outcome == OTHER and reader in kind.waiting
            found.append(EARLIER if is_earlier else outcome)
            if file.is_file() or (content is None and file.parent.is_dir()):
                file.write_bytes(written)
        return max(found, key=OUTCOMES.index)

    def _outcome(self, reader: Callable[[], Any], name: str) -> str:
        warnings = io.StringIO()
        handler = logging.StreamHandler(warnings)
        handler.setLevel(logging.WARNING)
        logging.getLogger("jaxpose").addHandler(handler)
        try:
            found = reader()
        except Exception as error:
            if not isinstance(error, Refused | UserError):
                return TRACEBACK
            return REFUSED if name in str(error) else UNNAMED
        finally:
            logging.getLogger("jaxpose").removeHandler(handler)
        if name in warnings.getvalue():
            return IGNORED
        return SAME if found == self._meant[reader.__name__] else OTHER

    def _restore(self) -> None:
        """Restores files that readers replace or remove."""
        shutil.rmtree(self._out, ignore_errors=True)
        shutil.copytree(self._half, self._out)
        (self._open / "restarts.json").unlink(missing_ok=True)
        refuse_stuck_requeue(self._open, 20, _SLURM)

    def _load(self) -> Any:
        return _loaded(self._run)

    def _load_open(self) -> Any:
        return _loaded(self._open)

    def _evaluate(self) -> Any:
        shutil.rmtree(self._evaluated, ignore_errors=True)
        with contextlib.redirect_stdout(io.StringIO()):
            evaluate.evaluate(self._run, out=self._evaluated, devices=1, platform="cpu")
        return {file.name: file.read_bytes() for file in self._evaluated.iterdir()}

    def _train(self) -> Any:
        return json.dumps(train(self._config))

    def _watch(self) -> Any:
        watched = Watched(str(self._run), silent_s=180.0)
        assert watched.missing() == ""
        return json.dumps(dataclasses.asdict(watched.look()))

    def _predict(self) -> Any:
        told, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(err):
            code = predict.main(["--run", str(self._run), "--devices", "1", "--platform", "cpu", str(self._video)])
        if code:
            raise Refused(err.getvalue())
        return told.getvalue(), {file.name: file.read_bytes() for file in (self._run / "video_preds").iterdir()}

    def _restart(self) -> Any:
        refuse_stuck_requeue(self._open, 20, _SLURM)
        return read_json(self._open / "restarts.json")

    def _join(self) -> Any:
        if problems := self._work(self._out, lambda: False):
            raise Refused(problems[0])
        return {file.name: file.read_bytes() for file in (self._out / "video_preds").iterdir()}

    def _work(self, out: Path, stops: Callable[[], bool]) -> list[str]:
        """Predicts the video in segments until it is done or `stops`; returns the reports of a failure."""
        table = out / "video_preds" / f"{self._cut.stem}.csv"
        row, video = row_of(out, table, self._cut, [self._cut], self._predictor), scan(self._cut)
        job = Job(dataclasses.replace(row, frames_announced=video.announced_frames), table, [self._cut], video)
        with Claims(out, 30) as claims:
            index = PredictionIndex(out, claims, suffixes_beside(self._predictor))
            index.begin([job.row])
            worker = Worker(self._predictor, [job], index, claims, stops)
            worker.run()
            return sorted(worker.reported) if worker.rows()[0].state != DONE else []


def _config(project: Path, out: Path) -> c.Config:
    return c.Config(
        out=str(out),
        data=c.DataConfig(project=str(project), split="video", train_share=0.4, val_share=0.3,
                          input_height_px=32, input_width_px=32),
        model=c.ModelConfig(backbone="resnet18", width=4, head_width=4),
        losses=c.LossesConfig(pca_singleview=c.PcaSingleviewConfig(keypoints=("nose", "neck"), components=2)),
        # In epochs, so the length depends on split.csv.
        train=c.TrainConfig(epochs=20, batch_size=6, val_every_epochs=20, save_every_steps=10),
        mesh=c.MeshConfig(devices=1, platform="cpu"),
        eval=c.EvalConfig(predict_videos="yes", batch_size=8),
        log=c.LogConfig(tensorboard=False, frames=0),
    )  # fmt: skip


def _write_video(file: Path) -> Path:
    """Writes a video of noise that can be cut at every frame."""
    noise = np.random.default_rng(0)
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter.fourcc(*"MJPG"), 30, (64, 64))
    for _ in range(40):
        writer.write(noise.integers(0, 255, (64, 64, 3), np.uint8))
    writer.release()
    return file


def _loaded(run: Path) -> Any:
    found = predict.load(run, devices=1, platform="cpu", is_compiled=False)
    pcas = {name: to_json(pca) for name, pca in found.subspaces.items()}
    return json.dumps([dataclasses.asdict(found.config), pcas, found.checksum, found.weights_label])


def _segments(out: Path) -> list[Path]:
    return sorted(part for part in out.glob("video_preds/*.parts/*") if not part.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    return sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())


def _flipped(written: bytes, chance: random.Random, _: Sequence[bytes]) -> tuple[str, bytes]:
    bit, flipped = chance.randrange(8 * len(written)), bytearray(written)
    flipped[bit // 8] ^= 1 << bit % 8
    return f"bit {bit} flipped", bytes(flipped)


def _cut(written: bytes, chance: random.Random, _: Sequence[bytes]) -> tuple[str, bytes]:
    length = chance.randrange(len(written))
    return f"cut after {length} of {len(written)} bytes", written[:length]


def _exchanged(written: bytes, chance: random.Random, contents: Sequence[bytes]) -> tuple[str, bytes]:
    number = chance.choice([number for number, other in enumerate(contents) if other != written])
    return f"exchanged for file {number}", contents[number]


def _deleted(written: bytes, _: random.Random, __: Sequence[bytes]) -> tuple[str, bytes | None]:
    return f"deleted, {len(written)} bytes", None


_Damage = Callable[[bytes, random.Random, Sequence[bytes]], tuple[str, bytes | None]]
# Kinds of damage: each takes the content of a file, and the contents of all files, and returns what it does, and the
# new content, None for no file.
DAMAGES: dict[str, _Damage] = {"flip": _flipped, "cut": _cut, "exchange": _exchanged, "delete": _deleted}


def count_outcomes(work: Path, damage: str, number: int, seed: int) -> dict[str, dict[str, int]]:
    """Damages files one at a time, equally many of each kind of file, and returns {kind: {outcome: number}}.

    Args:
      work: an empty folder.
      damage: a key of DAMAGES.
      number: how many times.
      seed: chooses the files and the damage.
    """
    chance, counts = random.Random(seed), {}
    with contextlib.redirect_stdout(io.StringIO()):
        run = DamagedRun(work)
    names = list(run.kinds)
    contents = [(kind.folder / path).read_bytes() for kind in run.kinds.values() for path in kind.files]
    for at in range(number):
        name = names[at % len(names)]
        kind = run.kinds[name]
        path = chance.choice([path for path in kind.files if (kind.folder / path).stat().st_size])
        done, content = DAMAGES[damage]((kind.folder / path).read_bytes(), chance, contents)
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = run.damage(kind, path, content)
        counts.setdefault(name, Counter())[outcome] += 1
        if outcome not in SAFE:
            print(f"{kind.folder / path}, {done}: {outcome}", flush=True)
    return {name: dict(found) for name, found in counts.items()}
