"""What the documents say: every option, command, file and figure of theirs is there and is so.

python -m tests.test_docs > docs/options.md     writes the table of options anew
"""

import ast
import dataclasses
import importlib.util
import json
import math
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

from jaxpose.__main__ import VERBS
from jaxpose.config import Config, command_line, resolve
from jaxpose.config.model import PUBLISHED
from jaxpose.config.option import common_names, flat_options, limits_of
from jaxpose.data import dataset, synthetic
from jaxpose.run.paths import default_path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
START = ROOT / "docs" / "start.md"
TEN_MINUTES = ROOT / "docs" / "ten_minutes.md"
OTHERS = [ROOT / file for file in ("CHANGELOG.md", "CONTRIBUTING.md", "launch/README.md", "tests/features.md")]
OTHERS += sorted(ROOT.glob("benchmarks/*.md"))
PAGES = [README, *OTHERS, *sorted(ROOT.glob("docs/*.md"))]
OPTIONS = flat_options(Config())
REGENERATE = "python -m tests.test_docs > docs/options.md"
INTRODUCTION = f"""# Options

Every option with its default and its meaning: first those that users set (`jaxpose train --help_options` prints them),
then the others by section (`--help_options=SECTION`; `--help_options=all` prints everything). Pass an option as
`NAME=VALUE`, or set it in a config file such as `configs/pose.py`. If an option of `augment` has the default None, its
value comes from the preset: see [augmentation.md](augmentation.md). *free*: you may resume a run with another value,
because the numbers of the run do not depend on it; another value of any other option makes it a different run. *path*:
you may resume a run with an absolute path to another place, if the same data are there.

This page is generated from `jaxpose/config/`. Change an option there, then run
`{REGENERATE}`."""
TWO_LINES = (
    "pip install -e . && python -m jaxpose.train --config configs/pose.py",
    "pip install -e '.[test]' && pytest",
)


def options_page() -> str:
    """The tables of the common options and of the others, by section, from the metadata of their fields."""
    tables: dict[str, list[str]] = {"The common options": common_names(OPTIONS)}
    for name in OPTIONS:
        if name not in tables["The common options"]:
            tables.setdefault(f"Other options of {name.rpartition('.')[0]}", []).append(name)
    lines = [INTRODUCTION]
    for heading, names in tables.items():
        lines += ["", f"## {heading}", "", "| option | default | meaning | allowed | |", "|---|---|---|---|---|"]
        lines += [_option_row(name, *OPTIONS[name]) for name in names]
    return "\n".join(lines) + "\n"


def _option_row(name: str, field: dataclasses.Field, default: Any) -> str:
    rule = field.metadata
    kind = "free" if rule["harmless"] else "path" if rule["is_path"] else ""
    cells = [f"`{name}`", f"`{default!r}`", rule["doc"], ", ".join(limits_of(field)), kind]
    return f"| {' | '.join(cell if cell.startswith('`') else _escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    return re.sub(r"([|*])", r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;")


def test_the_table_of_options_is_up_to_date() -> None:
    page = ROOT / "docs" / "options.md"
    assert page.read_text() == options_page(), f"docs/options.md is old; run: {REGENERATE}"


def test_the_readme_has_the_two_lines_that_ci_runs() -> None:
    # The expression is that of .ci/run.
    assert tuple(re.findall(r"^pip install -e .* && .*$", README.read_text(), re.MULTILINE)) == TWO_LINES
    script = ROOT / ".ci" / "run"
    assert "'^pip install -e .* && '" in script.read_text()
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", script], check=True)


def test_the_run_folders_of_the_first_runs_are_those_of_their_commands(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    small = synthetic.make_project(tmp_path / "synthetic-project", videos=1, labelled_frames=1, video_frames=2)
    mouse = real_data / "mirror-mouse-example"
    for page, command, project in (
        (START, r"jaxpose train (--config configs/pose.py)$", small),
        (START, r"jaxpose train (mirror-mouse-example .*)$", mouse),
        (TEN_MINUTES, r"jaxpose train (mirror-mouse-example .* train.epochs=60)$", mouse),
    ):
        text = page.read_text().replace("\\\n", " ")
        (arguments,) = re.findall(command, text, re.MULTILINE)
        config, _ = command_line.read(arguments.split())
        config.data.project = str(project)
        config, _ = dataset.prepare(resolve(config))
        named = set(re.findall(rf"runs/{project.name}/[0-9a-f]{{8}}\b", text))
        assert named == {str(default_path(config))}


def test_the_names_of_published_weights_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", (ROOT / "docs" / "weights.md").read_text(), re.MULTILINE)
    assert rows == [
        (name, of.backbone, f"{of.repository}, {of.file} | {of.trained_on} | {of.licence}")
        for name, of in PUBLISHED.items()
    ]


def test_exit_codes_have_one_table() -> None:
    """The page has every code; a table of codes elsewhere would be a second home."""
    home = ROOT / "docs" / "exit_codes.md"
    assert re.findall(r"^\| (\d+) \|", home.read_text(), re.MULTILINE) == "0 1 2 3 4 75 85 130".split()
    assert [
        page.name for page in PAGES if re.search(r"^\| (?:75|85|130) \| [a-z]", page.read_text(), re.MULTILINE)
    ] == [home.name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    sections = {name.partition(".")[0] for name in OPTIONS if "." in name}
    # Options stand in `quotes`, and so do files such as `train.py` and `train.log`.
    quoted = re.findall(r"`([a-z]+)\.(?!(?:py|log)`)([a-z_0-9]+(?:\.[a-z_0-9]+)*)(?:`|=)", text)
    named = [f"{section}.{option}" for section, option in quoted if section in sections]
    parts = {name.rpartition(".")[0] for name in OPTIONS}
    assert sorted(set(named) - set(OPTIONS) - parts) == []
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"
    for module in re.findall(r"python -m (jaxpose(?:\.\w+)+)", text):
        assert importlib.util.find_spec(module), f"there is no {module}"
    blocks = "".join(re.findall(r"^```bash$(.+?)^```$", text, re.MULTILINE | re.DOTALL))
    for verb in re.findall(r"`jaxpose ([a-z]+)", text) + re.findall(r"^jaxpose ([a-z]+)", blocks, re.MULTILINE):
        assert verb in VERBS, f"there is no verb {verb}"
    for file in re.findall(r"`?((?:jaxpose|configs|benchmarks|tests|docs)/[\w/]+\.(?:py|md))`?", text):
        assert (ROOT / file).exists(), f"{page.name} names {file}"
    assert not re.search(r"(?<![\w.])/(?:work|home|root|tmp)/", text), "a path of somebody's machine"


# Starts of messages that are not of jaxpose.
_OTHERS = ("RESOURCE_EXHAUSTED", "Killed", "No space left on device")


def _texts(node: ast.AST) -> list[str]:
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def test_messages_are_plain_english_and_those_of_the_troubleshooting_page_are_in_the_source() -> None:
    texts = ""
    for file in ROOT.glob("jaxpose/**/*.py"):
        tree = ast.parse(file.read_text())
        texts += "\n".join(["", *_texts(tree)])
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                for text in _texts(node.exc):
                    unplain = re.search(r", too\b|\bmend(s|ed)?\b|\bbehind it\b", text)
                    assert not unplain, f"{file}: {text}"
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = [text for text in re.findall(r"^- `([^`]+)`", page, re.MULTILINE) if text not in _OTHERS]
    parts = [part.strip(" '") for text in messages for part in text.split("...")]
    assert len(messages) > 20 and [part for part in parts if part not in texts] == []
    assert len(page.split()) <= 900


def test_users_read_one_language() -> None:
    """`jaxpose VERB`, not `python -m jaxpose.VERB`: these lines explain that form, or are the first command of all."""
    explain = ("pip install -e .", "is the same as", "<verb>", "hosts.sh", "`jaxpose train my-project` is `python -m")
    files = [README, ROOT / "launch" / "README.md", ROOT / "docs" / "first_run.ipynb"]
    files += [*ROOT.glob("docs/*.md"), *ROOT.glob("configs/*.py")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    other = [line for line in lines if "python -m jaxpose" in line]
    assert [line for line in other if not any(text in line for text in explain)] == []


def test_the_audit_of_features_has_every_row_and_names_tests_that_exist() -> None:
    rows = re.findall(r"^\| ([A-Z]\d+) \| .+ \| (.+?) \|$", (ROOT / "tests" / "features.md").read_text(), re.MULTILINE)
    counts = {"L": 10, "T": 14, "B": 16, "D": 16}
    assert [name for name, _ in rows] == [f"{letter}{n}" for letter in counts for n in range(1, counts[letter] + 1)]
    named = {test for _, tests in rows for test in tests.partition("; not tested: ")[0].split(", ")}
    assert_tests_exist(named)


def test_the_tests_that_the_page_of_faults_names_exist() -> None:
    named = set(re.findall(r"`(tests/\S+\.py::\w+)`", (ROOT / "docs" / "reliability.md").read_text()))
    assert len(named) > 50
    assert_tests_exist(named)


def assert_tests_exist(named: set[str]) -> None:
    files = {file: (ROOT / file).read_text() for file in {test.partition("::")[0] for test in named}}
    assert [
        test for test in sorted(named) if f"def {test.partition('::')[2]}(" not in files[test.partition("::")[0]]
    ] == []


@pytest.fixture(scope="module")
def gpu_benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_benchmark", ROOT / "benchmarks" / "gpu.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Millions of multiplications at 224 px, as torchvision publishes them, with the 512 or 2048 x 1000 of its classifier.
@pytest.mark.parametrize(("backbone", "published", "features"), [("resnet18", 1814, 512), ("resnet50", 4089, 2048)])
def test_the_benchmark_counts_as_torchvision_does(
    gpu_benchmark: ModuleType, backbone: str, published: int, features: int
) -> None:
    from jaxpose import config as c
    from jaxpose.model.pose_net import make_network

    _, params, _ = make_network(c.ModelConfig(backbone=backbone), 2, "f32", 0)
    multiplications = gpu_benchmark.forward_flops({"backbone": params["backbone"]}, 224) / 2 + 1000 * features
    assert abs(multiplications / 1e6 - published) < 1


@pytest.mark.slow
def test_the_gpu_benchmark_runs_on_a_cpu(gpu_benchmark: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "gpu.jsonl"
    argv = (
        f"--framework jaxpose --platform cpu --backbone resnet18 --width 8 --size_px 32 --batch 2 --precision f32 "
        f"--warmup 1 --steps 1 --repeats 3 --peak_tflops 1 --out {out}"
    ).split()
    # Adam of optax takes a power of mixed types.
    with jax.numpy_dtype_promotion("standard"):
        assert gpu_benchmark.main(argv) == 0
    (line,) = map(json.loads, out.read_text().splitlines())
    speed = line["images_per_s"]
    assert 0 < speed["least"] <= speed["median"] <= speed["most"]
    assert math.isclose(line["step_ms"] * speed["median"], 2000)
    for flops, share in zip(line["gflop_per_step"].values(), line["mfu"].values(), strict=True):
        assert flops > 0 and math.isclose(share, flops * speed["median"] / 2 / 1000)


if __name__ == "__main__":
    print(options_page(), end="")
