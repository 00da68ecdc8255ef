"""The packages: `configs/`, which lies beside the package here, is `jaxpose/configs/` once installed."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["jaxpose*"]), "jaxpose.configs"],
    package_dir={"jaxpose.configs": "configs"},
)
