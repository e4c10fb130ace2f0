"""The entry point. Nouns are loaded when they are called: a command starts in well under 0.3 seconds."""

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
gpuaas instance decommission first --yes --wait
gpuaas instance receipt first -o json
```

Settings: a flag wins over the environment (GPUAAS_API_URL, GPUAAS_TOKEN, GPUAAS_CONTEXT, GPUAAS_PROJECT), which
wins over ~/.config/gpuaas/config.yaml.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 denied, 5 conflict with the present state,
6 platform not available, 7 the awaited work failed, 8 waited too long, 130 interrupted.
"""

app = App(
    name="gpuaas",
    help="Machines and clustered apps of a GPUaaS platform.",
    help_epilogue=EPILOGUE,
    help_format="markdown",
    version=__version__,
    result_action="return_value",
)

NOUNS = {
    "allocation": "Machines of a project.",
    "app": "The catalogue: apps and their versions.",
    "entitlement": "Which tenants may have which apps.",
    "artifact": "Files for machines: pushed, signed, verified, promoted.",
    "trusted-key": "Whose signatures on artifacts are believed.",
    "instance": "Deployed apps: deploy, look, wait, decommission, receipt.",
    "component": "Members of an instance: add, drain, resume, remove, replace, recover.",
    "grant": "People with a user of their own on a machine.",
    "ssh-key": "Your own SSH public keys.",
    "ssh-authority": "The SSH authority that a project's machines trust.",
    "volume": "Disks that outlive machines, also shared by several.",
    "usage": "What machines are charged for.",
    "quota": "How much a project may have at once.",
    "operation": "The work on instances, step by step.",
    "credential": "SSH keys for machines outside of the platform.",
    "secret": "Secrets that the platform made for app instances.",
    "node": "Enrolled hosts (operators).",
    "tenant": "Tenants (operators).",
    "project": "Projects of a tenant.",
    "user": "People (operators).",
    "membership": "Who has which role where.",
    "service-account": "Accounts for controllers and automation.",
    "audit": "Who did what, and the proof that nothing of it was touched.",
    "changes": "What changes, live.",
    "context": "Named platforms that you are logged in to.",
}
for _name, _help in NOUNS.items():
    app.command(f"gpuaas_cli.commands.{_name.replace('-', '_')}:app", name=_name, help=_help)

app.command("gpuaas_cli.commands.login:login", name="login", help="Log in and remember the token.")
app.command("gpuaas_cli.commands.login:logout", name="logout", help="Forget the token.")
app.command("gpuaas_cli.commands.login:whoami", name="whoami", help="Who the platform takes you for.")
app.command("gpuaas_cli.commands.login:password", name="password", help="Change your password.")
app.command("gpuaas_cli.commands.schema:schema", name="schema", help="What an operation of the API takes.")
app.command("gpuaas_cli.commands.completion:completion", name="completion", help="A completion script for your shell.")
app.command("gpuaas_cli.commands.trace:trace", name="trace", help="Everything that one correlation id touched.")
app.command("gpuaas_cli.commands.ssh:ssh", name="ssh", help="Log in to a machine, or run a command there.")
app.command("gpuaas_cli.commands.ssh_config:ssh_config", name="ssh-config", help="Let plain ssh reach machines.")


def run(arguments: Sequence[str]) -> int:
    """The exit code of one call; everything that goes wrong is said on stderr."""
    try:
        result = app([*arguments], exit_on_error=False, print_error=False)
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
