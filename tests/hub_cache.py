"""A cache of the Hugging Face hub as its own library lays it out, without a network."""

import shutil
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def add_to_cache(cache: Path, repository: str, file: Path, name: str) -> Path:
    """Puts a copy of a file into the cache as `name` of a repository, and returns its place there."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    for part in ("refs", "blobs", f"snapshots/{COMMIT}"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT)
    shutil.copy(file, folder / "blobs" / "a")
    place = folder / "snapshots" / COMMIT / name
    place.symlink_to("../../blobs/a")
    return place
