"""The entry point. A noun is loaded when it is called (all of them for `--help`): a command starts in well under 0.3
seconds."""

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from gpuaas_cli import __version__

INTERRUPTED = 130

EPILOGUE = """
Examples:

```
gpuaas login --api-url http://127.0.0.1:8470
gpuaas allocation create --name one --gpus 1 --wait
gpuaas instance deploy APP --name first --place COMPONENT=one --wait
gpuaas ssh first -- uptime
gpuaas tunnel first
gpuaas instance decommission first --yes --wait
gpuaas instance receipt first -o json
```

Settings: a flag wins over the environment (GPUAAS_API_URL, GPUAAS_TOKEN, GPUAAS_CONTEXT, GPUAAS_PROJECT), which
wins over ~/.config/gpuaas/config.yaml.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 denied, 5 conflict with the current state,
6 platform unavailable, 7 the awaited work failed, 8 timed out waiting,
9 signed by a key that you do not trust, 130 interrupted.
"""

app = App(
    name="gpuaas",
    help="Machines and clustered apps of a GPUaaS platform.",
    help_epilogue=EPILOGUE,
    help_format="markdown",
    version=__version__,
    result_action="return_value",
)

NOUNS = (
    "allocation",
    "app",
    "artifact",
    "audit",
    "bulk-operation",
    "changes",
    "context",
    "credential",
    "entitlement",
    "grant",
    "instance",
    "member",
    "membership",
    "node",
    "operation",
    "project",
    "quota",
    "receipt",
    "secret",
    "service-account",
    "session",
    "ssh-authority",
    "ssh-key",
    "tenant",
    "trusted-key",
    "usage",
    "user",
    "volume",
)
"""Each is the `app` of the file of its name in commands/, whose docstring is its help."""
COMMANDS = {
    "completion": "completion",
    "login": "login",
    "logout": "login",
    "password": "login",
    "schema": "schema",
    "ssh": "ssh",
    "ssh-config": "ssh_config",
    "trace": "trace",
    "tunnel": "tunnel",
    "whoami": "login",
}
"""Commands without a noun, and the file of each; a function's docstring is its help."""
RENAMED = {"component": "member"}
"""Nouns that had another name in the last release. They go with the next one: see docs/contract/versioning.md."""

for _noun in NOUNS:
    app.command(f"gpuaas_cli.commands.{_noun.replace('-', '_')}:app", name=_noun)
for _command, _file in COMMANDS.items():
    app.command(f"gpuaas_cli.commands.{_file}:{_command.replace('-', '_')}", name=_command)


def replace_renamed_noun(arguments: Sequence[str]) -> list[str]:
    """Take a noun's old name for its new one, and say so on stderr."""
    old, *rest = arguments or [""]
    if old not in RENAMED:
        return [*arguments]
    new = RENAMED[old]
    print(f"`gpuaas {old}` is now `gpuaas {new}`. The old name goes away in the next release.", file=sys.stderr)
    return [new, *rest]


def run(arguments: Sequence[str]) -> int:
    """Run one call and return its exit code; errors are reported on stderr."""
    arguments = replace_renamed_noun(arguments)
    if not arguments or arguments[0] in app.help_flags:
        # The list shows the first line of each command's help, which is in its file.
        app.resolved_commands()
    try:
        result = app(arguments, exit_on_error=False, print_error=False)
        return result if isinstance(result, int) else 0
    except CycloptsError as error:
        from gpuaas_cli.errors import report_usage

        return report_usage(str(error), arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the edge: people get a sentence, not a stack trace
        from gpuaas_cli.errors import report

        return report(error)


def main() -> None:
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # `gpuaas … | head`: the reader has seen enough.
        sys.stderr.close()
        code = 0
    sys.exit(code)


if __name__ == "__main__":
    main()
