"""Examples are many and each takes what it takes: a busy machine must not fail them."""

from hypothesis import settings

settings.register_profile("without-clock", deadline=None)
settings.load_profile("without-clock")
