"""Packages of the distribution; everything else about it is in pyproject.toml.

`configs/` stays where users of a checkout look for it, and is installed as the data of `finflow.presets`.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["finflow", "finflow.*"]), "finflow.presets"],
    package_dir={"finflow.presets": "configs"},
    options={"editable_wheel": {"mode": "compat"}},  # a path that type checkers follow, and no import hook
)
