"""Published weights by way of the hub's cache, offline."""

import os
import subprocess
import sys
from pathlib import Path

from jaxpose.config.model import PUBLISHED
from tests.hub_cache import add_to_cache

# The hub's library reads its variables when it is imported, so this is a process of its own.
PROGRAM = """
from jaxpose.errors import UserError
from jaxpose.run.weights import fetch

for name in ("resnet18_imagenet", "resnet50_superanimal_quadruped"):
    try:
        print(fetch(name))
    except UserError as error:
        print(error)
"""


def test_offline_the_cache_serves_and_an_absent_file_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"tensors")
    weights = PUBLISHED["resnet18_imagenet"]
    place = add_to_cache(tmp_path / "hub", weights.repository, tmp_path / "weights", weights.file)
    variables = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    ended = subprocess.run([sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    repository, file = "mwmathis/DeepLabCutModelZoo-SuperAnimal-Quadruped", "superanimal_quadruped_resnet_50.pt"
    assert ended.stdout.splitlines() == [
        str(place),
        f"model.weights is resnet50_superanimal_quadruped: {file} of the hub's {repository} is not in "
        f"{tmp_path}/hub, and HF_HUB_OFFLINE forbids the download. On a machine with internet access, run `hf download "
        f"{repository} {file}` and copy the folder models--mwmathis--DeepLabCutModelZoo-SuperAnimal-Quadruped of its "
        f"cache into {tmp_path}/hub, or start from random weights with model.weights=none",
    ]
