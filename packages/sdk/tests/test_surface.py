"""What the SDK promises to have, and that none of it is broken by the lazy imports."""

import gpuaas_sdk


def test_the_public_names_are_those_that_are_listed() -> None:
    assert sorted(gpuaas_sdk.__all__) == sorted(gpuaas_sdk._MODULE_OF)
    for name in gpuaas_sdk.__all__:
        assert getattr(gpuaas_sdk, name).__name__ == name
