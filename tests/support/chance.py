"""The seed of everything that these tests leave to chance.

It is another one every day, so that samples rotate, and the same all day, so that CI runs what was seen passing.
GPUAAS_SEED=… repeats a run."""

import os
from datetime import UTC, datetime

SEED = int(os.environ.get("GPUAAS_SEED") or datetime.now(UTC).date().toordinal())
