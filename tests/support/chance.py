"""The seed of everything that these tests leave to chance: another one in every run, printed at its head.

GPUAAS_SEED=… repeats a run."""

import os

SEED = int(os.environ["GPUAAS_SEED"])
