"""The page of messages is that of the source, and has what the verbs say.

python -m tests.test_messages > docs/messages.md     writes the page anew
"""

import importlib
import re
from pathlib import Path

import pytest

from jaxpose import train
from jaxpose.config import command_line
from jaxpose.config.arguments import REFUSED_ARGUMENTS
from tests.message_texts import PACKAGE, messages, raises_user_error

PAGE = PACKAGE.parent / "docs" / "messages.md"
REGENERATE = "python -m tests.test_messages > docs/messages.md"
INTRODUCTION = f"""# Messages that end a command

A command that cannot go on prints a line on stderr for each reason, then ends with an exit code other than 0. The
line begins with the verb (`jaxpose.train:`) and names the thing, its value, the rule and how to mend it.
[exit_codes.md](exit_codes.md) has the codes: most messages of this page end with 2, those of [Training that
stops](#training-that-stops) with 1.

Search this page for a part of the message that is not a name or a number. A word in capitals stands for what the
message inserts: a path, a name, a value, `N` for a number, `LIST` for several names, `REASON` for a reason that
another program gives. Brackets enclose what only some of the messages have.

- **The line names a file and a line number**: open that line of that file.
- **Several lines**: each is a mistake of its own; mend all of them before the next start.
- **`No space left on device`, `Permission denied`** and other lines of the operating system end with 1 and name the
  file. Make room or give the permission; the same command resumes.
- **A traceback** is a mistake of jaxpose, not yours. Report it with the command and `train.log`.
- **No message at all, exit code 137**: the system ended the process, mostly for want of memory. Use a smaller
  `train.microbatch_size` or fewer `data.threads`; `jaxpose train my-project --dry_run` shows the memory of a step.

Before a long run, `jaxpose train my-project --dry_run` gives the messages about options, labels and images without
training, and `jaxpose doctor` those about the machine.

A program writes this page from the source. Change a message there, then run `{REGENERATE}`."""
# Heading, what to do, and the rooms and files of the package that it covers. A file is more precise than its room.
GROUPS = (
    (
        "Arguments and options",
        "Correct the argument or the option. [options.md](options.md) has every option with its limits; each "
        "verb explains its flags with `--help`.",
        "config flags.py launch.py watch.py train.py",
    ),
    (
        "Labels and the project",
        "Correct the label file or the image that the line names, or leave bad rows out with "
        "`data.on_bad_frame=skip`. "
        "[data.md](data.md) describes a project.",
        "data text_file.py training/pretrain_setup.py",
    ),
    (
        "Boxes around the animal",
        "Make the boxes with `jaxpose crop`, or correct the row that the line names: [boxes.md](boxes.md).",
        "data/boxes.py data/video_boxes.py prediction/frame_boxes.py labelling/crop_command.py",
    ),
    (
        "Videos and inputs",
        "Repair or copy the video again, or leave it out of the inputs. A damaged video does not stop the other "
        "inputs of `jaxpose predict`.",
        "video data/sessions.py data/inputs.py",
    ),
    (
        "Projects of DeepLabCut, SLEAP and COCO",
        "Correct the project in its own tool, save it and start again: [from_deeplabcut.md](from_deeplabcut.md), "
        "[from_sleap.md](from_sleap.md).",
        "formats",
    ),
    (
        "Configs and networks of Lightning Pose",
        "Change the key that the line names: [from_lightning_pose.md](from_lightning_pose.md) has what each "
        "key becomes.",
        "formats/lightning_pose model/lightning_pose.py yaml_file.py",
    ),
    (
        "Converting files",
        "Choose another place or form, or correct the file that is converted: [convert.md](convert.md).",
        "conversion convert.py outputs.py",
    ),
    (
        "Pretrained weights and starts from a run",
        "Give weights that fit `model.backbone`, or a file that is whole: [weights.md](weights.md).",
        "model run/hub.py run/tensor_file.py run/weights.py run/start_run.py torch_file.py training/pretrained.py "
        "training/initial_weights.py "
        "training/transfer.py",
    ),
    (
        "Losses on video",
        "Label more poses, name other keypoints, or turn the loss off with a weight of 0: [losses.md](losses.md).",
        "pose/pca.py pose/pca_fit.py run/pca.py training/clip_setup.py",
    ),
    (
        "The run folder and resuming",
        "Give another `out` for another run, or the command of the run that lies there. jaxpose never deletes a "
        "folder that it did not write: "
        "[data.md](data.md).",
        "run training/compiled_run.py",
    ),
    (
        "Damaged files",
        "Put the original file back, from a copy of the run folder. Do not edit files with a checksum.",
        "checksums.py files.py run/manifest.py",
    ),
    (
        "Training that stops",
        "Lower the learning rate, or look at the images and clips that the line or `train.log` names; the last "
        "checkpoint stays.",
        "training",
    ),
    (
        "Devices, processes and machines",
        "Run `jaxpose doctor` where the command runs, then correct the start: [launch.md](launch.md), "
        "[features.md](features.md).",
        "cluster run/requeue.py",
    ),
    (
        "The copy of the run",
        "Choose another `log.remote_url`, or wait until the place answers: the same command tries again "
        "([remote.md](remote.md)).",
        "remote",
    ),
    (
        "Evaluating, predicting and smoothing",
        "Choose another `--out`, or predict again with `--overwrite`: [predict.md](predict.md).",
        "prediction predict.py run/ensemble.py pose/ensemble_smoother.py",
    ),
    (
        "Labelled videos",
        "Choose another `--out`, or give the skeleton and the numbers as [draw.md](draw.md) says.",
        "drawing",
    ),
    (
        "Suggesting and merging labels",
        "Name the project, the table or the folder that the line asks for: [labelling.md](labelling.md).",
        "labelling labels.py",
    ),
    (
        "Comparing runs",
        "Finish or evaluate the runs, and give them one split: [labelling.md](labelling.md).",
        "compare",
    ),
    (
        "The report",
        "The page says in its place what it could not show; evaluate the run again, or put the project back: "
        "[report.md](report.md).",
        "report",
    ),
    (
        "Checking labels",
        "Name one project, and a new name for the page that ends in .html: [check.md](check.md).",
        "check",
    ),
    ("Exporting a network", "Give the size of a frame and a new file: [export.md](export.md).", "export"),
    ("A config for a project", "Give one project and a new name for the config.", "init"),
    (
        "Packages and disk space",
        "Install the package that the line names, or raise the limit.",
        "extras.py cache.py",
    ),
)
HEADING_OF = {path: heading for heading, _, paths in GROUPS for path in paths.split()}


def heading_of(file: Path) -> str:
    """Returns the heading of a file of the package: its own, or that of the nearest folder; "" if there is none."""
    parts = file.relative_to(PACKAGE).parts
    names = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((HEADING_OF[name] for name in names if name in HEADING_OF), "")


def messages_page() -> str:
    """The page, from the messages in the source."""
    texts: dict[str, list[str]] = {heading: [] for heading, _, _ in GROUPS}
    for file in sorted(PACKAGE.rglob("*.py")):
        if heading := heading_of(file):
            texts[heading] += messages(file)
        if heading_of(file) == HEADING_OF["config"] and file.name == "arguments.py":
            texts[heading] += [text.format("FLAG", "VALUE", "LIST") for text in REFUSED_ARGUMENTS.values()]
    lines = [INTRODUCTION]
    for heading, mend, _ in GROUPS:
        lines += ["", f"## {heading}", "", mend, ""]
        lines += [f"- {_as_code(text)}" for text in dict.fromkeys(texts[heading])]
    return "\n".join(lines) + "\n"


def _as_code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def test_the_page_of_messages_is_up_to_date() -> None:
    assert PAGE.read_text() == messages_page(), f"docs/messages.md is old; run: {REGENERATE}"


def test_every_file_with_messages_has_a_heading() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if raises_user_error(file)]
    assert len(files) > 100
    absent = sorted(file.relative_to(PACKAGE).as_posix() for file in files if not heading_of(file))
    assert not absent, f"give these files a heading in GROUPS of tests/test_messages.py: {', '.join(absent)}"


def test_every_heading_covers_something() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if messages(file)]
    assert {heading_of(file) for file in files} - {""} == {heading for heading, _, _ in GROUPS}
    assert [path for path in HEADING_OF if not (PACKAGE / path).exists()] == []


def _forms() -> list[re.Pattern]:
    """Each message of the page as an expression that matches what a user reads."""
    forms = []
    for text in re.findall(r"^- `(.+)`$", PAGE.read_text(), re.MULTILINE):
        # Words in capitals vary; what is in brackets may be absent.
        pattern = re.sub(r"\b[A-Z][A-Z0-9_]*\b", ".+", re.escape(text))
        forms.append(re.compile(re.sub(r"\\\[(.+?)\\\]", r"(\1)?", pattern)))
    return forms


def _run(verb: str, arguments: list[str]) -> int:
    if verb == "train":
        return command_line.run(train.main, arguments, verb="jaxpose.train", description="")
    # A verb is a file or a room.
    module = importlib.import_module(f"jaxpose.{verb}")
    return (module if hasattr(module, "main") else importlib.import_module(f"jaxpose.{verb}.__main__")).main(arguments)


@pytest.mark.parametrize(
    "command",
    [
        "train",
        "train nowhere",
        "train --config configs/pose.py train.batch_sizes=3",
        "train --config configs/pose.py train.batch_size=-1",
        "train --config configs/pose.py data.input_width_px=100 data.input_height_px=128",
        "predict --run nowhere clip.mp4",
        "report --run nowhere",
        "draw clip.mp4 clip.csv --out clip.avi",
        "compare one",
        "labels check",
    ],
)
def test_a_message_of_a_verb_is_on_the_page(
    command: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PACKAGE.parent)
    verb, *arguments = command.split()
    assert _run(verb, arguments) == 2
    said = [re.sub(r"^jaxpose[\w. ]*: ", "", line) for line in capsys.readouterr().err.splitlines()]
    assert said
    forms = _forms()
    unknown = [line for line in said if not any(form.fullmatch(line) for form in forms)]
    assert not unknown, f"docs/messages.md lacks: {unknown}"


if __name__ == "__main__":
    print(messages_page(), end="")
