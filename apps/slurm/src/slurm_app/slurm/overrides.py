"""Settings of slurm.conf that whoever deploys may choose. Everything else is the app's, and refused in plain words."""

import re
from collections.abc import Mapping

from slurm_app.errors import RefusedError

# Each with the values that are safe to write: nothing here runs a program, opens a file, weakens the identity of a
# user, or changes what the app itself relies on.
_NUMBER = r"[0-9]{1,9}"
_TIME = r"([0-9]{1,3}-)?[0-9]{1,4}(:[0-9]{2}){0,2}|INFINITE"
_WORDS = r"[A-Za-z0-9_=,]{1,200}"
ALLOWED: dict[str, str] = {
    "BatchStartTimeout": _NUMBER,
    "CompleteWait": _NUMBER,
    "DefMemPerCPU": _NUMBER,
    "DefMemPerNode": _NUMBER,
    "EnforcePartLimits": r"NO|ANY|ALL",
    "InactiveLimit": _NUMBER,
    "KillWait": _NUMBER,
    "MaxArraySize": _NUMBER,
    "MaxJobCount": _NUMBER,
    "MaxMemPerCPU": _NUMBER,
    "MaxMemPerNode": _NUMBER,
    "MaxStepCount": _NUMBER,
    "MaxTasksPerNode": _NUMBER,
    "MinJobAge": _NUMBER,
    "MpiDefault": r"none|pmix|pmi2",
    "OverTimeLimit": _NUMBER,
    "PriorityDecayHalfLife": _TIME,
    "PriorityFavorSmall": r"YES|NO",
    "PriorityMaxAge": _TIME,
    "PriorityType": r"priority/(basic|multifactor)",
    "PriorityWeightAge": _NUMBER,
    "PriorityWeightFairshare": _NUMBER,
    "PriorityWeightJobSize": _NUMBER,
    "PriorityWeightPartition": _NUMBER,
    "ResumeTimeout": _NUMBER,
    "SchedulerParameters": _WORDS,
    "SchedulerType": r"sched/(backfill|builtin)",
    "SelectTypeParameters": r"CR_(Core|CPU|Core_Memory|CPU_Memory)",
    "SlurmctldDebug": r"quiet|fatal|error|info|verbose|debug[2-5]?",
    "SlurmdDebug": r"quiet|fatal|error|info|verbose|debug[2-5]?",
    "SlurmdTimeout": _NUMBER,
    "WaitTime": _NUMBER,
}


def checked_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Refuse all problems at once; names are compared as Slurm does it, without regard to case."""
    known = {name.lower(): name for name in ALLOWED}
    problems, chosen = [], {}
    for key, value in overrides.items():
        name = known.get(key.lower())
        if name is None:
            problems.append(f"{key!r} cannot be set (allowed: {', '.join(sorted(ALLOWED))})")
        elif not re.fullmatch(ALLOWED[name], value):
            problems.append(f"{value!r} is no value for {name}")
        elif name in chosen:
            problems.append(f"{name} is set twice")
        else:
            chosen[name] = value
    if problems:
        raise RefusedError("invalid_override", "slurm.conf: " + "; ".join(problems))
    return chosen
