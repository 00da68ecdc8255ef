"""What pyproject.toml cannot say: where the packages lie, and the description of a package index.

`configs/` and `launch/` lie beside the package here; installed, they are `jaxpose/configs/` and `jaxpose/templates/`.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup


def description() -> str:
    """README.md without its pictures and links to files here, which a package index would not find."""
    text = (Path(__file__).resolve().parent / "README.md").read_text(encoding="utf-8")
    # A picture may have a caption in italics below it.
    text = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)(?:\n\n\*[^*]+\*(?=\n))?", "", text)
    return re.sub(r"\[([^]]*)\]\((?!https?:|#)[^)]*\)", r"\1", text)


setup(
    packages=[*find_packages(include=["jaxpose*"]), "jaxpose.configs", "jaxpose.templates"],
    package_dir={"jaxpose.configs": "configs", "jaxpose.templates": "launch"},
    long_description=description(),
    long_description_content_type="text/markdown",
)
