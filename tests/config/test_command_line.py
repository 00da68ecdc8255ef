"""The command line: what it reads, and that every mistake is a line of text and exit code 2."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpose.config import Config, rules
from jaxpose.config.command_line import Options, run
from jaxpose.config.option import common_names, flat_options

ROOT = Path(__file__).resolve().parents[2]
POSE = f"--config={ROOT}/configs/pose.py"


class Outcome:
    """What a run of the command line did; `seen` is what main was called with."""

    def __init__(self, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        self.seen: list[tuple[Config, Options]] = []
        self.code = run(self._main, argv, verb="jaxpose.train", description="Trains a network.")
        self.out, self.err = capsys.readouterr()

    def _main(self, config: Config, options: Options) -> int:
        self.seen.append((config, options))
        return 0


def test_a_file_that_changed_within_a_second_is_read_anew_and_nothing_lies_next_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "own.py"
    for seed in (3, 4):
        file.write_text(
            f"from jaxpose.config import Config, DataConfig\n\n\ndef get_config():\n"
            f"    return Config(data=DataConfig(project='p', seed={seed}))\n"
        )
        os.utime(file, (1e9, 1e9))
        ((config, _),) = Outcome([f"--config={file}"], capsys).seen
        assert config.data.seed == seed
    assert [path.name for path in tmp_path.iterdir()] == ["own.py"]


def test_the_config_file_gets_its_argument_and_the_options_change_it(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome([f"{POSE}:some/project", "train.batch_size=12", "--dry_run"], capsys)
    ((config, options),) = outcome.seen
    assert (outcome.code, outcome.err) == (0, "")
    assert config.data.project == "some/project" and config.train.batch_size == 12
    assert options.dry_run == "all"
    ((_, options),) = Outcome([POSE, "--dry_run=data", "train.steps=3"], capsys).seen
    assert options.dry_run == "data"
    ((config, options),) = Outcome(["optim.lr=0.5", "--config", POSE.partition("=")[2]], capsys).seen
    assert config.optim.lr == 0.5 and not options.dry_run


@pytest.mark.parametrize(
    ("argument", "section", "option", "value"),
    [
        ("mesh.devices=auto", "mesh", "devices", "auto"),
        ("mesh.devices=2", "mesh", "devices", 2),
        ("mesh.devices=0,2", "mesh", "devices", (0, 2)),
        ("mesh.devices=[1,3]", "mesh", "devices", [1, 3]),
        ("mesh.devices=gpu:1", "mesh", "devices", "gpu:1"),
        ("mesh.devices=GPU:*", "mesh", "devices", "GPU:*"),
        ("mesh.devices=re:gpu:[0-3]", "mesh", "devices", "re:gpu:[0-3]"),
        ("data.crop_px=(0,0,10,10)", "data", "crop_px", (0, 0, 10, 10)),
        ("data.crop_px=[0, 0, 10, 10]", "data", "crop_px", (0, 0, 10, 10)),
        ("data.crop_px=0,0,10,10", "data", "crop_px", (0, 0, 10, 10)),
        ("data.crop_px=", "data", "crop_px", ()),
        ("data.crop_px=()", "data", "crop_px", ()),
        ("data.flip_pairs=paw_l:paw_r", "data", "flip_pairs", ("paw_l:paw_r",)),
        ("data.flip_pairs=paw_l:paw_r,ear_l:ear_r", "data", "flip_pairs", ("paw_l:paw_r", "ear_l:ear_r")),
        ("data.flip_pairs=('paw_l:paw_r',)", "data", "flip_pairs", ("paw_l:paw_r",)),
        ("data.views=1,02", "data", "views", ("1", "02")),
        ("data.views=[1e3, True]", "data", "views", ("1e3", "True")),
        ("data.keypoint_names=7", "data", "keypoint_names", ("7",)),
        ("data.keypoint_names=('7', '1e3')", "data", "keypoint_names", ("7", "1e3")),
        ("augment.quarter_turns=(0,2)", "augment", "quarter_turns", (0, 2)),
        ("augment.quarter_turns=2", "augment", "quarter_turns", (2,)),
        ("augment.quarter_turns=none", "augment", "quarter_turns", None),
        ("augment.rotate_p=0.25", "augment", "rotate_p", 0.25),
        ("augment.rotate_p=1", "augment", "rotate_p", 1.0),
        ("augment.rotate_p=none", "augment", "rotate_p", None),
        ("augment.move_parts=3", "augment", "move_parts", 3),
        ("augment.move_parts=none", "augment", "move_parts", None),
        ("optim.lr=1e-4", "optim", "lr", 1e-4),
        ("optim.unfreeze_epoch=-1", "optim", "unfreeze_epoch", -1),
        ("eval.pck_px=3", "eval", "pck_px", (3,)),
        ("log.tensorboard=false", "log", "tensorboard", False),
        ("log.tensorboard=True", "log", "tensorboard", True),
        ("data.split=runs/a:b=c", "data", "split", "runs/a:b=c"),
    ],
)
def test_every_form_of_value_is_read(
    argument: str, section: str, option: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = Outcome([POSE, argument], capsys)
    assert outcome.err == ""
    ((config, _),) = outcome.seen
    assert getattr(getattr(config, section), option) == value


def test_every_option_can_be_set_to_its_own_default(capsys: pytest.CaptureFixture[str]) -> None:
    options = {name: default for name, (_, default) in flat_options(Config()).items() if name != "data.project"}
    arguments = [f"{name}={default}" for name, default in options.items()]
    outcome = Outcome([f"{POSE}:project", *arguments], capsys)
    assert outcome.err == ""
    ((config, _),) = outcome.seen
    assert {name: value for name, (_, value) in flat_options(config).items() if name != "data.project"} == options


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train.lrr=1"], "there is no option train.lrr; did you mean optim.lr?"),
        (["lr=1"], "did you mean optim.lr?"),
        (["trian.seed=1"], "no option trian.seed; did you mean train.seed?"),
        (["data.sede=1"], "did you mean data.seed?"),
        (["batch_sise=1"], "did you mean train.batch_size or eval.batch_size?"),
        (["zzzz.qqqq=1"], "--help_options=all lists all of them"),
        (["mesh=1"], "jaxpose.train: mesh is a section, not an option; it has platform, devices, deterministic"),
        (["train.batch_size=a"], "train.batch_size is 'a'; it must be a whole number"),
        (["train.batch_size=1.5"], "train.batch_size is '1.5'; it must be a whole number"),
        (["train.batch_size="], "train.batch_size is ''; it must be a whole number"),
        (["train.batch_size"], "train.batch_size needs a value: train.batch_size=VALUE"),
        (["optim.lr=fast: very"], "optim.lr is 'fast: very'; it must be a number"),
        (["optim.lr=none"], "optim.lr is None; it must be a number"),
        (["optim.lr=nan"], "optim.lr is nan; it must be finite"),
        (["augment.rotate_p=often"], "augment.rotate_p is 'often'; it must be a number or none"),
        (["data.crop_px=a,b"], "data.crop_px is ('a', 'b'); it must be a list of entries, each a whole"),
        (["data.views=('1',2)"], "data.views is ('1', 2); it must be a list of entries, each a text"),
        (["data.crop_px=[0,1"], "data.crop_px is '[0,1'; it must be a list of entries"),
        (["losses.pca_multiview.views=[[nose,ear],[tail"], "views is '[[nose,ear],[tail'; it must be a list of"),
        (["log.tensorboard=perhaps"], "log.tensorboard is 'perhaps'; it must be true or false"),
        (["model.backbone=resnet5"], "(did you mean 'resnet50'?)"),
        (["train.batch_size=0"], "train.batch_size is 0; it must be at least 1"),
        (["--dry_run=perhaps"], "dry_run is 'perhaps'; give --dry_run, --dry_run=data to check the data"),
        (["--dry_run="], "dry_run is ''; give --dry_run, --dry_run=data to check the data"),
        (["--train.steps", "-1"], "there is no flag --train.steps: write train.steps=-1"),
        (["--config.train.steps=5"], "there is no flag --config.train.steps: write train.steps=5"),
        (
            ["--noconfig.log.tensorboard"],
            "no flag --noconfig.log.tensorboard; did you mean the option log.tensorboard?",
        ),
        (["--optim.lr=1"], "there is no flag --optim.lr: write optim.lr=1"),
        (["--train.epochs"], "there is no flag --train.epochs: write train.epochs=VALUE"),
        (["a", "--epochs", "3"], "no flag --epochs; the option is train.epochs: write train.epochs=3"),
        (["a", "--seed=3"], "the option is data.seed or train.seed: write data.seed=3 or train.seed=3"),
        (["a", "--mebers", "3"], "there is no flag --mebers; did you mean the option train.members?"),
        (["a", "--epocs", "3"], "there is no flag --epocs; did you mean the option train.epochs?"),
        (
            ["--batchsize=3"],
            "there is no flag --batchsize; did you mean the option train.batch_size or eval.batch_size?",
        ),
        (["--dryrun"], "there is no flag --dryrun; did you mean --dry_run?"),
        (["-config", "own.py"], "there is no flag -config; did you mean --config?"),
        (["--project", "a"], "there is no flag --project; give PROJECT without it: python -m jaxpose.train PROJECT"),
        (["--zzzz"], "there is no flag --zzzz; the flags are --help, --config, --dry_run, --quiet, --help_options"),
        (
            ["--overwrite"],
            "there is no flag --overwrite for a run: write resume=overwrite, which deletes the run and starts over",
        ),
        (["--quiet=false"], "--quiet takes no value, but was given false"),
        (
            ["a", "b"],
            "unexpected argument 'b': python -m jaxpose.train takes PROJECT OPTION=VALUE and flags; see --help",
        ),
        (["a", "own.py"], "own.py is a Python file, not a project: give a config file as --config own.py"),
        (["train.epochs", "3"], "train.epochs needs a value: train.epochs=VALUE"),
        ([POSE], "--config is given twice; give one"),
        (["--help_options=optm"], "--help_options is 'optm', which is not a section; did you mean optim?"),
        (["--help_options="], "--help_options is '', which is not a section; the sections are augment, data, eval"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = Outcome([POSE, *arguments], capsys)
    assert (outcome.code, outcome.out, outcome.seen) == (2, "", [])
    assert outcome.err.startswith("jaxpose.train: ") and outcome.err.count("\n") == 1
    assert expected in outcome.err


def test_every_mistake_in_the_arguments_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "train.lrr=1",
        "modle.width=8",
        "--dryrun",
        "--epochs=3",
        "--dry_run=perhaps",
        "--quiet=1",
        "model=",
    ]
    outcome = Outcome([POSE, *given], capsys)
    assert (outcome.code, outcome.out, outcome.seen) == (2, "", [])
    starts = [
        "there is no option train.lrr; did you mean optim.lr?",
        "there is no option modle.width; did you mean model.width?",
        "model is a section, not an option; it has kind, backbone, ",
        "there is no flag --dryrun; did you mean --dry_run?",
        "there is no flag --epochs; the option is train.epochs: write train.epochs=3",
        "--dry_run is 'perhaps'; give --dry_run, ",
        "--quiet takes no value, but was given 1",
    ]
    lines = [line.removeprefix("jaxpose.train: ") for line in outcome.err.splitlines()]
    assert len(lines) == len(starts)
    assert [line for line, start in zip(lines, starts, strict=True) if not line.startswith(start)] == []


def test_every_value_that_its_option_cannot_have_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome([POSE, "train.seed=a", "optim.lr=b", "log.frames=-1"], capsys)
    assert (outcome.code, outcome.seen) == (2, [])
    assert outcome.err.splitlines() == [
        "jaxpose.train: optim.lr is 'b'; it must be a number",
        "jaxpose.train: train.seed is 'a'; it must be a whole number",
        "jaxpose.train: log.frames is -1; it must be at least 0",
    ]


def test_the_arguments_may_stand_in_any_order_and_the_last_value_counts(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train.batch_size=1", POSE, "--dry_run", "mice", "train.batch_size=2"]
    for given in (arguments, [*arguments[1:4], arguments[0], arguments[4]]):
        ((config, options),) = Outcome(given, capsys).seen
        assert (config.data.project, config.train.batch_size, options.dry_run) == ("mice", 2, "all")


@pytest.mark.parametrize("arguments", [[], ["train.steps=3"], ["--dry_run"]])
def test_no_config_says_what_to_give(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    outcome = Outcome(arguments, capsys)
    assert outcome.code == 2 and outcome.seen == []
    assert "no project is given; give its folder, or --config FILE.py" in outcome.err
    assert "configs/pose.py" in outcome.err


def test_mistyped_flag_and_file_get_the_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert "no flag --confg; did you mean --config?" in Outcome(["--confg=configs/pose.py"], capsys).err
    outcome = Outcome(["--config=configs/poes.py"], capsys)
    assert outcome.code == 2
    assert outcome.err.endswith("there is no file 'configs/poes.py'; did you mean configs/pose.py?\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import missing_package_xyz\n", "line 1: ModuleNotFoundError: No module named 'missing_package_xyz'"),
        ("x = 1\ndef get_config(\n", "line 2: SyntaxError"),
        ("\0\0", ".py: SyntaxError"),
        ("def config():\n    return 1\n", "has no function get_config()"),
        ("def get_config():\n    return {'a': 1}\n", "returns dict; it must return a Config"),
        ("def get_config():\n    pass\n", "returns NoneType; it must return a Config"),
        ("def get_config():\n\n    raise ValueError('no\\nway')\n", "line 3: ValueError: no"),
        (
            "from jaxpose.config import Config\ndef get_config():\n    return Config(ou=1)\n",
            "line 3: there is no option ou; did you mean out?",
        ),
        ("from jaxpose.config import Config\nget_config = Config(\n  out=int('a'))\n", "line 3: ValueError"),
    ],
)
@pytest.mark.parametrize("more", [[], ["train.steps=1"]])
def test_a_broken_config_file_is_named_with_its_line(
    text: str, expected: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    outcome = Outcome([f"--config={file}", *more], capsys)
    assert (outcome.code, outcome.seen, outcome.err.count("\n")) == (2, [], 1)
    assert str(file) in outcome.err and expected in outcome.err


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x.train.batchsize = 5", "there is no option train.batchsize; did you mean train.batch_size?"),
        ("x.trian.batch_size = 5", "there is no option trian; did you mean train?"),
        ("x.losses.temporall.weight = 5", "there is no option losses.temporall; did you mean losses.temporal?"),
        ("x.train = TrainConfig(stpes=4)", "there is no option train.stpes; did you mean train.steps?"),
        ("x.train.qqzz = 5", "there is no option train.qqzz; --help_options=all lists all of them"),
        ("x.train = None", "train is None; it is a section and must be a TrainConfig: set its options one by one"),
        ("x.losses.temporal = {}", "losses.temporal is {}; it is a section and must be a TemporalConfig: set its"),
    ],
)
def test_a_mistyped_name_in_a_config_file_is_an_error_as_on_the_command_line(
    line: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mistyped.py"
    text = "from jaxpose.config import Config, TrainConfig\n\n\ndef get_config():\n"
    file.write_text(f"{text}    x = Config()\n    {line}\n    return x\n")
    monkeypatch.chdir(tmp_path)
    for name in (str(file), file.name):
        outcome = Outcome([f"--config={name}"], capsys)
        assert (outcome.code, outcome.seen, outcome.err.count("\n")) == (2, [], 1)
        assert outcome.err.startswith(f"jaxpose.train: --config: {name}, line 6: {expected}")


def test_a_config_file_must_be_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "must be a Python file (.py)" in Outcome([f"--config={tmp_path}/config.json"], capsys).err


def test_a_rule_that_main_finds_broken_is_a_line_and_a_fault_keeps_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(config: Config, options: Options) -> int:
        config.train.batch_size = 0
        config.optim.lr = -1.0
        rules.validate(config)
        return 0

    def fail(config: Config, options: Options) -> int:
        return int("not a number")

    def stop(config: Config, options: Options) -> int:
        raise KeyboardInterrupt

    assert run(refuse, [POSE], verb="jaxpose.train", description="") == 2
    assert capsys.readouterr().err.splitlines() == [
        "jaxpose.train: optim.lr is -1.0; it must be at least 0",
        "jaxpose.train: train.batch_size is 0; it must be at least 1",
    ]
    with pytest.raises(ValueError, match="invalid literal"):
        run(fail, [POSE], verb="jaxpose.train", description="")
    assert run(stop, [POSE], verb="jaxpose.train", description="") == 130


def test_help_is_one_screen_and_names_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "-h"):
        outcome = Outcome([POSE, flag], capsys)
        assert (outcome.code, outcome.seen, outcome.err) == (0, [], "")
        lines = outcome.out.splitlines()
        assert len(lines) <= 40 and max(map(len, lines)) <= 80
        assert "python -m jaxpose.train" in outcome.out and "--help_options" in outcome.out
        for section in ("data", "augment", "model", "optim", "train", "mesh", "eval", "log"):
            assert any(line.strip().startswith(section) for line in lines)


def names_listed(argument: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    outcome = Outcome([argument], capsys)
    assert outcome.code == 0 and not outcome.err
    return re.findall(r"^([a-z][\w.]*)=", outcome.out, re.MULTILINE)


def test_all_options_are_listed_with_meaning_and_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert names_listed("--help_options=all", capsys) == list(flat_options(Config()))
    out = Outcome(["--help_options=all"], capsys).out
    assert "\ntrain.batch_size=16\n    labelled frames (model.kind=multiview: moments) per update" in out
    assert "one of none, linear, sqrt" in " ".join(out.split()) and "at least 1" in out


def test_the_common_options_are_listed_first(capsys: pytest.CaptureFixture[str]) -> None:
    names = names_listed("--help_options", capsys)
    options = flat_options(Config())
    assert names == common_names(options) and 50 <= len(names) <= 70
    assert {name.partition(".")[0] for name in options} == {name.partition(".")[0] for name in names}
    # Each number of an augmentation is the preset's.
    assert {"data.project", "train.epochs", "augment.preset"} <= set(names) and "augment.clahe_tiles_max" not in names
    more = Outcome(["--help_options"], capsys).out.splitlines()[-1]
    assert more == f"{len(options) - len(names)} more: --help_options=all, or --help_options=SECTION"


def test_the_options_of_a_section_are_listed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    names = names_listed("--help_options=losses.temporal", capsys)
    assert names and all(name.startswith("losses.temporal.") for name in names)


def test_reading_the_command_line_starts_no_backend_and_imports_no_jax(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from jaxpose.config.command_line import run\n"
        "code = run(lambda config, options: 0, verb='jaxpose.train', description='')\n"
        "print(code, 'jax' in sys.modules)\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-c", code, POSE, "train.steps=3"]
    result = subprocess.run(
        command, env=clean | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True, text=True
    )
    assert (result.stdout, result.stderr) == ("0 False\n", "")


def test_a_project_needs_no_config_file(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["mice"], ["data.project=mice"], [f"{POSE}:mice"], ["mice", POSE]):
        ((config, _),) = Outcome(given, capsys).seen
        assert config.data.project == "mice"
    outcome = Outcome(["mice", "--config=own.py:rats"], capsys)
    assert outcome.code == 2 and "given twice, as 'mice' and in --config own.py:rats; give one" in outcome.err


def test_a_folder_may_be_called_like_an_option_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day=3").mkdir()
    ((config, _),) = Outcome(["day=3", "train.epochs=5"], capsys).seen
    assert config.data.project == "day=3"
    assert "there is no option dya;" in Outcome(["dya=3"], capsys).err
