"""Measured as ratios in one run, interleaved; printed, never asserted in `make test`."""
