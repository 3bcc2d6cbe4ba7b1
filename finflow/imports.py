"""A user's own code, named by its import path."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def import_path(path: str) -> Any:
    """Import the object at `package.module:Name`; the module may lie in the working folder.

    Raises whatever the module raises; ImportError or AttributeError where there is no such thing.
    """
    module, _, attribute = path.partition(":")
    before = sys.path[:]
    sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    finally:
        sys.path[:] = before
