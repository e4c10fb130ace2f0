"""Names that end up in configuration files and scripts. Whatever does not match is refused, never repaired."""

import ipaddress
import re

from slurm_app.errors import RefusedError

_CLUSTER = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PARTITION = re.compile(r"[a-z][a-z0-9_]{0,30}")
_ACCOUNT = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_HOST = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_COMMENT = re.compile(r"[A-Za-z0-9_.:/-]{1,100}")
_REASON = re.compile(r"[A-Za-z0-9_.:/ -]{1,120}")
_FEATURE = re.compile(r"[a-z][a-z0-9_.]{0,30}")
_DEVICE = re.compile(r"/dev/nvidia[0-9]{1,3}")
_GPU_TYPE = re.compile(r"[a-z][a-z0-9_]{0,30}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def _checked(pattern: re.Pattern[str], what: str, value: str) -> str:
    # fullmatch, because `$` would let a trailing newline through.
    if not pattern.fullmatch(value):
        raise RefusedError("invalid_name", f"cannot use {value!r} as {what}: it must match {pattern.pattern}")
    return value


def cluster_name(value: str) -> str:
    return _checked(_CLUSTER, "the cluster name", value)


def partition_name(value: str) -> str:
    return _checked(_PARTITION, "a partition name", value)


def account_name(value: str) -> str:
    return _checked(_ACCOUNT, "an account name", value)


def user_name(value: str) -> str:
    return _checked(_USER, "a user name", value)


def host_name(value: str) -> str:
    return _checked(_HOST, "a host name", value)


def comment(value: str) -> str:
    return _checked(_COMMENT, "a node comment", value)


def reason(value: str) -> str:
    return _checked(_REASON, "a reason", value)


def feature(value: str) -> str:
    return _checked(_FEATURE, "a node feature", value)


def gpu_device(value: str) -> str:
    return _checked(_DEVICE, "a GPU device", value)


def gpu_type(value: str) -> str:
    return _checked(_GPU_TYPE, "the type of a GPU", value)


def gpu_type_for(model: str) -> str:
    """`NVIDIA A100-SXM4-80GB`: a100_sxm4_80gb, as jobs ask for it; empty for what makes no such name."""
    made = re.sub(r"[^a-z0-9]+", "_", model.lower().removeprefix("nvidia ")).strip("_")[:31]
    return made if _GPU_TYPE.fullmatch(made) else ""


def digest(value: str) -> str:
    return _checked(_DIGEST, "an artifact digest", value)


def address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError as error:
        raise RefusedError("invalid_name", f"cannot use {value!r} as an address: {error}") from error


def cluster_name_for(instance_name: str) -> str:
    """The default cluster name: Slurm makes table names of it, so the hyphens of an instance name go."""
    return cluster_name(re.sub(r"[^a-z0-9_]", "_", instance_name.lower())[:40])
