"""Lets the tests import the machines beside them (pytest's importlib mode adds no path by itself)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
