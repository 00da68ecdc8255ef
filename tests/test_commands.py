"""Commands of README, docs and launch/README: the parser of the verb takes each, and a test or .ci/run runs its form.

A command stands in a block ```bash, or as `jaxpose VERB ...` in the text. Nothing is trained here: `RUN_BY` names what
runs each form, that is a verb, and a verb with each of its flags and options.
"""

import argparse
import importlib
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from jaxpose.__main__ import VERBS
from jaxpose.config import command_line
from jaxpose.config.arguments import Arguments
from jaxpose.config.option import flat_options
from jaxpose.config.root import Config
from jaxpose.config.rules import validate
from jaxpose.entry import evaluate_arguments, predict_arguments, watch_arguments
from jaxpose.errors import UserError
from jaxpose.pretrain import as_pretraining
from tests.test_docs import PAGES, ROOT

_FINISHED_RUN = "tests/test_evaluate.py::test_the_verb_gives_the_same_files_on_any_number_of_devices"
_VIDEOS = "tests/test_predict.py::test_videos_are_the_same_on_any_number_of_devices_and_not_predicted_twice"
_REAL = "tests/test_docs.py::test_the_run_folders_of_the_first_runs_are_those_of_their_commands"
_CLIPS = "tests/cluster/test_multiprocess.py::test_two_processes_with_augmentation_three_clips_and_micro_batches"
_MERGE = "tests/test_labels.py::test_new_rows_stand_behind_the_old_bytes_and_their_images_are_copied"
_SUGGEST = "tests/test_suggest.py::test_most_suggestions_are_among_the_worst_tenth"
_CROP = "tests/test_crop_verb.py::test_a_second_run_reads_the_boxes_of_the_first"
_LOOP = "tests/labelling/test_loop.py::test_suggested_frames_train_the_next_run"
_CHECKPOINT = "tests/test_convert.py::test_the_run_reads_as_any_finished_one"
_SNAPSHOT = "tests/test_convert_deeplabcut.py::test_the_run_says_what_it_is"
_COCO = "tests/test_convert_labels.py::test_coco_has_hidden_keypoints_and_boxes"
_TRACKS = "tests/training/test_finder.py::test_a_video_becomes_tracks"
_NWB = "tests/test_convert_predictions.py::test_nwb_has_every_frame_at_its_time"
_OPTIONS = "tests/config/test_command_line.py::test_all_options_are_listed_with_meaning_and_rule"
_REMOTE = "tests/remote/test_remote_train.py::test_empty_machine_ends_as_the_undisturbed_run"
_LAUNCH = "tests/test_launch.py::test_the_verb_starts_a_verb_and_keeps_its_mistake"
_EXPORT = "tests/export/test_export.py::test_a_file_gives_the_keypoints_of_the_run"
_TRACK = "tests/tracking/test_tracks.py::test_the_verb_writes_tracks_in_each_form"
_SMOOTH = "tests/tracking/test_smooth.py::test_each_track_has_the_bits_of_its_animal_alone_in_any_order"
_REVIEW = "tests/tracking/test_review.py::test_animals_that_meet_are_the_first_row_and_a_swap_exchanges_all_behind_it"
_DRAW = "tests/test_draw.py::test_a_rotation_is_applied_as_the_run_does_it"
_CAMERAS = "tests/cameras/test_calibration_files.py::test_what_a_format_cannot_hold_is_refused_or_reported"
_TRIANGULATE = "tests/triangulate/test_triangulate.py::test_the_table_has_every_frame_and_says_how_sure_each_point_is"
_CALIBRATE = "tests/calibrate/test_faults.py::test_the_real_boards_meet_the_bars"
_INIT = "tests/test_init.py::test_the_file_is_a_config_of_the_project_that_train_takes"
_SMALL = "tests/config/test_experiments.py::test_a_config_reads_its_data"
_PRETRAIN = "tests/test_pretrain.py::test_a_pretraining_on_other_devices_is_equal_bit_for_bit"
_DISTILL = "tests/test_pretrain.py::test_a_distillation_is_the_same_on_any_devices_and_after_a_stop_and_has_one_teacher"
_RIG = "tests/training/test_cameras.py::test_a_run_has_the_same_bits_on_one_two_and_four_devices_and_after_a_stop"
_MULTIVIEW = (
    "tests/training/test_multiview.py::test_a_run_has_the_same_bits_on_one_two_and_four_devices_and_after_a_stop"
)
_AGREE = "tests/test_views_agree.py::test_a_loaded_run_predicts_what_training_wrote"
_LABEL_REVIEW = "tests/label/test_review.py::test_a_review_is_answered_by_keys_and_the_new_tracks_are_shown"
_LABEL = "tests/label/test_server.py::test_a_killed_server_loses_no_label_and_ctrl_c_writes_them"
_CHECK = "tests/check/test_check.py::test_only_a_page_of_a_check_is_replaced_and_mistakes_are_lines"
_TWO = "tests/test_two_commands.py::test_of_two_triangulations_one_writes_the_points_and_the_reprojections"
RUN_BY = {
    "check": _CHECK,
    "check --config": "tests/check/test_check.py::test_a_config_has_the_project_and_its_options",
    "check --like": "tests/check/test_findings.py::"
    "test_a_few_new_labels_are_checked_against_the_poses_of_the_project",
    "check --out": _CHECK,
    "check data.split": "tests/check/test_check.py::"
    "test_planted_mistakes_come_first_and_every_frame_is_shown_with_its_set",
    "check data.views": "tests/check/test_check.py::"
    "test_hidden_points_of_a_coco_file_and_views_of_a_moment_are_counted",
    "train": ".ci/run",
    "train out": _LOOP,
    "train --config": _SMALL,
    "train --dry_run": "tests/test_train.py::test_dry_run_tells_the_cost_and_writes_nothing",
    "train --dry_run=data": _SMALL,
    "train --help_options": _OPTIONS,
    "train .yaml": "tests/formats/test_lightning_pose_config.py::"
    "test_the_command_line_prints_every_message_once_and_takes_options",
    "train .slp": "tests/formats/test_sleap.py::test_labels_and_images_are_as_sleap_io_reads_them",
    "train augment.mask_end_epochs": _MULTIVIEW,
    "train augment.mask_share": _MULTIVIEW,
    "train augment.mask_start_epochs": _MULTIVIEW,
    "train data.boxes": _CROP,
    "train data.calibration": _RIG,
    "train data.input_height_px": _REAL,
    "train model.kind": "tests/training/test_finder.py::"
    "test_the_finder_trains_on_frames_and_validates_on_their_animals",
    "train data.input_width_px": _REAL,
    "train data.split": _LOOP,
    "train data.views": _RIG,
    "train log.remote_url": _REMOTE,
    "train losses.multiview_consistency.weight": _RIG,
    "train losses.pca_multiview.views": _AGREE,
    "train losses.pca_singleview.weight": _CLIPS,
    "train losses.reprojection.weight": _RIG,
    "train losses.temporal.weight": _CLIPS,
    "train model.backbone": _REAL,
    "train model.views_agree": _AGREE,
    "train model.weights": "tests/training/test_pretrained.py::test_a_run_starts_from_the_backbone_of_a_file",
    "train resume": "tests/test_train_vit.py::test_a_run_ends_goes_on_and_predicts",
    "train train.batch_size": "tests/config/test_command_line.py::"
    "test_the_config_file_gets_its_argument_and_the_options_change_it",
    "train train.epochs": "tests/config/test_project_config.py::test_both_forms_give_the_same_config",
    "train train.init_from": _LOOP,
    "train train.members": "tests/training/test_members.py::test_a_member_is_the_run_that_trains_it_alone",
    "train train.steps": _REAL,
    "pretrain": _PRETRAIN,
    "pretrain model.backbone": _PRETRAIN,
    "pretrain pretrain.method": _DISTILL,
    "pretrain pretrain.teacher": _DISTILL,
    "pretrain pretrain.teacher_backbone": _DISTILL,
    "predict": _VIDEOS,
    "predict --run": _VIDEOS,
    "predict --out": _VIDEOS,
    "predict --boxes": "tests/prediction/test_frame_boxes.py::test_the_command_predicts_again_when_the_boxes_change",
    "predict --animals": _TRACKS,
    "predict --to slp": _TRACKS,
    "predict --labeled": "tests/test_draw.py::test_predict_writes_labelled_videos",
    "predict --smooth": "tests/prediction/test_ensemble.py::"
    "test_the_ensemble_is_the_median_and_the_variance_of_its_members",
    "evaluate": _FINISHED_RUN,
    "evaluate --run": _FINISHED_RUN,
    "evaluate --project": "tests/test_evaluate.py::"
    "test_points_marked_as_not_visible_are_left_out_of_every_figure_and_shown_with_them",
    "evaluate --out": "tests/test_evaluate.py::test_the_verb_gives_the_same_files_on_any_number_of_devices",
    "evaluate --labels": "tests/test_evaluate.py::test_a_label_file_alone_leaves_the_rest_as_it_is",
    "track": _TRACK,
    "track --animals": _TRACK,
    "track --corrections": _REVIEW,
    "track --out": _TRACK,
    "track --overwrite": _REVIEW,
    "track --video": "tests/tracking/test_silhouettes.py::test_the_video_tells_animals_of_two_sizes_apart",
    "smooth": _SMOOTH,
    "smooth --method": _SMOOTH,
    "smooth --min_confidence": _SMOOTH,
    "smooth --out": "tests/tracking/test_smooth.py::test_a_table_of_one_animal_gets_the_bytes_that_predict_writes",
    "draw": _DRAW,
    "draw --out": _DRAW,
    "draw --skeleton": "tests/test_draw.py::test_the_skeleton_is_that_of_the_flag_the_project_or_the_run",
    "draw --trail": "tests/drawing/test_labelled_video.py::test_a_trail_fades_with_its_age_and_stops_at_gaps",
    "calibrate": _CALIBRATE,
    "calibrate --board": _CALIBRATE,
    "calibrate --out": _CALIBRATE,
    "calibrate --floor": "tests/calibrate/test_check.py::test_the_floor_is_the_board_of_a_frame",
    "calibrate --check": "tests/calibrate/test_check.py::test_a_calibration_is_compared_with_board_images",
    "triangulate": _TRIANGULATE,
    "triangulate --calibration": _TRIANGULATE,
    "triangulate --out": _TRIANGULATE,
    "triangulate --overwrite": _TWO,
    "triangulate --smooth": "tests/triangulate/test_smoothing.py::test_the_verb_smooths_the_tables_of_an_ensemble",
    "triangulate --reprojections": "tests/triangulate/test_triangulate.py::"
    "test_the_reprojections_are_drawn_on_the_video_of_a_view",
    "crop": _CROP,
    "crop --run": _CROP,
    "crop --out": _CROP,
    "report": "tests/report/test_report.py::test_the_verb_writes_the_page_and_names_it",
    "report --run": "tests/report/test_report.py::test_the_verb_writes_the_page_and_names_it",
    "compare": _LOOP,
    "suggest": _SUGGEST,
    "suggest --run": _SUGGEST,
    "suggest --out": _SUGGEST,
    "suggest --frames": "tests/test_suggest.py::test_only_a_network_with_context_gets_the_neighbours_of_frames",
    "label": _LABEL,
    "label --keypoints": "tests/label/test_videos.py::"
    "test_a_plain_video_becomes_a_project_and_its_frames_are_labelled",
    "label --video": _LABEL_REVIEW,
    "label --config": "tests/label/test_training.py::test_options_of_the_training_are_checked_before_the_page_opens",
    "label train.epochs": "tests/label/test_training.py::test_the_loop_of_labelling_training_and_correcting",
    "label --calibration": "tests/label/test_views.py::"
    "test_lines_and_rings_guide_a_label_and_frames_of_all_views_become_images",
    "label data.views": "tests/label/test_views.py::test_views_are_labelled_by_keys_alone",
    "label --labels": "tests/label/test_store.py::test_what_cannot_be_written_is_refused_by_name",
    "label --no-browser": _LABEL,
    "label --port": "tests/label/test_server.py::test_a_second_one_and_wrong_arguments_are_refused",
    "labels merge": _MERGE,
    "labels merge --project": _MERGE,
    "watch": "tests/test_watch.py::test_watches_a_copy",
    "convert lightning-pose": _CHECKPOINT,
    "convert lightning-pose --out": _CHECKPOINT,
    "convert lightning-pose --project": _CHECKPOINT,
    "convert deeplabcut": _SNAPSHOT,
    "convert deeplabcut --config": _SNAPSHOT,
    "convert deeplabcut --out": _SNAPSHOT,
    "convert labels": _COCO,
    "convert labels --out": _COCO,
    "convert labels --to coco": _COCO,
    "convert labels --to deeplabcut": "tests/test_convert_labels.py::test_deeplabcut_reads_the_visible_keypoints",
    "convert cameras": _CAMERAS,
    "convert cameras --out": _CAMERAS,
    "convert cameras --size": _CAMERAS,
    "convert cameras --to jarvis": "tests/test_two_commands.py::test_the_cameras_of_another_rig_do_not_stay",
    "convert cameras --to anipose": _CAMERAS,
    "convert predictions": _NWB,
    "convert predictions --out": _NWB,
    "convert predictions --session_start": _NWB,
    "convert predictions --to deeplabcut": "tests/test_convert_predictions.py::"
    "test_a_run_becomes_a_file_for_each_of_its_videos",
    "convert predictions --to nwb": _NWB,
    "convert predictions --to parquet": "tests/test_convert_predictions.py::test_parquet_holds_the_same_bits",
    "convert predictions --to sleap-analysis": "tests/test_convert_predictions.py::"
    "test_the_analysis_file_is_read_by_sleap_io_and_comes_back",
    "convert predictions --to slp": "tests/test_convert_predictions.py::"
    "test_a_sleap_project_has_an_instance_in_each_frame",
    "convert predictions --video": _NWB,
    "export": _EXPORT,
    "export --run": _EXPORT,
    "export --out": _EXPORT,
    "export --frame_size": "tests/export/test_export.py::test_frames_whose_size_is_not_clear_are_refused",
    "launch": _LAUNCH,
    "launch --processes": _LAUNCH,
    "launch --template": "tests/test_launch.py::test_a_template_is_printed_as_it_is_shipped",
    "doctor": "tests/test_doctor.py::test_a_healthy_host",
    "doctor --out": "tests/test_doctor.py::test_a_healthy_host",
    "init": _INIT,
    "init --gpu_gib": _INIT,
    "init data.views": _INIT,
    "train log.tracker": "tests/trackers/test_tracker.py::test_a_resumed_run_may_be_tracked_and_keeps_its_numbers",
}  # fmt: skip
# Each other program, and why no test runs its command.
OTHERS = {
    "pip": "installs from the network; .ci/run installs the package and its extras by README's lines",
    "pytest": ".ci/run runs the suite",
    "git": "gets sources from the network",
    "cd": "enters the sources",
    "cmp": "compares two files byte for byte",
    "sbatch": "needs a cluster; tests/cluster/test_slurm.py submits these files",
    "conda": "installs from the network",
    "docker": "needs its daemon; .ci/run builds and starts the image where there is one",
    "rattler-build": "gets packages from the network; tests/test_packaging.py compares the recipe with pyproject.toml",
    "tensorboard": "serves until it is stopped; tests/run/test_log.py reads the files",
    "wandb": "needs an account; tests/trackers/test_tracker.py runs the library offline",
    "export": "names the server of MLflow",
    "cp": "copies an example out of the sources of another tool",
    "python docs/live.py": "needs a camera; tests/test_live.py runs it on a video",
    "python3": "makes an environment, as .ci/run does",
    "source": "enters that environment",
    "python benchmarks/": "measures for minutes; the flags are checked here; tests/test_benchmarks.py starts some",
    "taskset": "measures on one core",
    "XLA_FLAGS=--xla_cpu_multi_thread_eigen=false": "measures on one core",
    "hf": "downloads from the network",
    "unzip": "unpacks a downloaded wheel; tests/model/test_mobilenet_v2.py reads the same file",
}


class Command(NamedTuple):
    page: str
    text: str
    is_whole: bool  # one of a block; in the text, arguments may be left out


def commands() -> Iterator[Command]:
    """Every command of the documents; lines that end in a backslash are joined, comments left out."""
    for page in PAGES:
        text, name = page.read_text(), str(page.relative_to(ROOT))
        for block in re.findall(r"^ *```bash\n(.+?)^ *```$", text, re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").partition("<<'")[0].splitlines():
                line = re.sub(r"(^|\s+)#.*", "", line).strip()
                yield from (Command(name, part, True) for part in line.split(" && ") if part)
        prose = re.sub(r"^ *```.+?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for part in re.findall(r"`(jaxpose \w+ [^`]+)`", prose.replace("\n", " ")):
            yield Command(name, part, False)


def words_of(command: Command) -> list[str]:
    """The arguments of a command, its placeholders filled in: <hash>, OPTION=VALUE, a dotted rest."""
    filled = re.sub(r"<([^>]*)>", lambda name: name[1].replace(" ", "-"), command.text)
    words = shlex.split(filled.replace("OPTION=VALUE", "train.steps=3"))
    return [word for word in words if word != "..."]


OURS = {command.text: command for command in commands() if re.match(r"(jaxpose|python -m jaxpose\.)", command.text)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files that the commands name and their parsers read."""
    (tmp_path / "PATH").mkdir()
    shutil.copy(ROOT / "tests/formats/lightning_pose/config_run.yaml", tmp_path / "PATH/config.yaml")
    shutil.copy(ROOT / "configs/pose.py", tmp_path / "my-project.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def mistakes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the parsers of the verbs without a config refuse; the verbs read their arguments and then end."""
    found: list[str] = []

    def read(arguments: Arguments, _: Callable[[argparse.Namespace], int], argv: list[str] | None) -> int:
        try:
            arguments.read(argv or [])
        except UserError as error:
            found.append(str(error))
        return 0

    monkeypatch.setattr(Arguments, "run", read)
    return found


@pytest.mark.parametrize("text", sorted(OURS))
def test_the_parser_takes_the_command(text: str, folder: Path, mistakes: list[str]) -> None:
    words = words_of(OURS[text])
    verb, argv = (words[2].removeprefix("jaxpose."), words[3:]) if words[0] == "python" else (words[1], words[2:])
    assert verb in VERBS
    # A shell takes what follows for itself.
    _parse(verb, argv[: argv.index(">")] if ">" in argv else argv)
    if not OURS[text].is_whole:
        mistakes[:] = [one for one in mistakes if not re.search("is required|needs a value", one)]
    assert mistakes == []


def _parse(verb: str, argv: list[str]) -> None:
    if verb in ("train", "pretrain"):
        if argv != ["--help_options"]:
            config, _ = command_line.read(argv)
            config = as_pretraining(config) if verb == "pretrain" else config
            # The package of a store is not among those of the tests.
            config.log.remote_url = config.log.remote_url.replace("s3://", "memory://")
            validate(config)
    elif verb == "launch":
        importlib.import_module("jaxpose.launch").main(argv)
        if "--" in argv:
            _parse("train", argv[argv.index("--") + 1 :])
    elif verb in ("predict", "evaluate", "watch"):
        of = {"predict": predict_arguments, "evaluate": evaluate_arguments, "watch": watch_arguments}[verb]
        of().run(lambda given: 0, argv)
    else:
        is_room = (ROOT / "jaxpose" / verb / "__main__.py").is_file()
        assert importlib.import_module(f"jaxpose.{verb}" + ".__main__" * is_room).main(argv) == 0


def forms_of(words: list[str]) -> set[str]:
    """The forms in a command: its verb (and task), and this with each flag, option and kind of project."""
    verb, *rest = words[1:] if words[0] == "jaxpose" else [words[2].removeprefix("jaxpose."), *words[3:]]
    if verb in ("convert", "labels"):
        verb, rest = f"{verb} {rest[0]}", rest[1:]
    rest = rest[: rest.index("--")] if "--" in rest else rest
    forms = {verb}
    for place, word in enumerate(rest):
        option = word.partition("=")[0]
        if word == "--to":
            forms.add(f"{verb} --to {rest[place + 1]}")
        elif word.startswith("--"):
            forms.add(f"{verb} {word}")
        elif option != word and option in flat_options(Config()):
            forms.add(f"{verb} {option}")
        elif verb == "train" and word.endswith((".slp", ".yaml")):
            forms.add(f"train {Path(word).suffix}")
    return forms


def test_every_form_of_a_command_is_run_by_a_test() -> None:
    used = set().union(*(forms_of(words_of(command)) for command in OURS.values()))
    assert sorted(used - set(RUN_BY)) == [], "name the test that runs it in RUN_BY"
    assert sorted(set(RUN_BY) - used) == [], "no document has this form: remove its row"
    for place in sorted(set(RUN_BY.values())):
        file, _, test = place.partition("::")
        assert place == ".ci/run" or f"def {test}(" in (ROOT / file).read_text(), place


def test_every_other_command_has_its_reason() -> None:
    others = {command.text for command in commands()} - set(OURS)
    used = set()
    for text in sorted(others):
        (program,) = [program for program in OTHERS if text.startswith(program)] or [""]
        assert program, f"{text}: name its program and the reason in OTHERS"
        used.add(program)
        for file in re.findall(r"benchmarks/\w+\.py", text):
            code = (ROOT / file).read_text()
            # A benchmark may take its flags from another: `from pretrained import make_arguments`.
            shared = [ROOT / f"benchmarks/{name}.py" for name in re.findall(r"^from (\w+) import", code, re.M)]
            code += "".join(path.read_text() for path in shared if path.exists())
            assert [flag for flag in re.findall(r" (--\w+)", text) if f'"{flag}"' not in code] == []
    assert set(OTHERS) == used, "no document has a command of this program"
