"""Options that commands share. Flag over environment over file."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from gpuaas_cli import output

GLOBAL = Group("Global options", sort_key=100)
Format = Literal["table", "json", "yaml"]


@Parameter(name="*", group=GLOBAL)
@dataclass(frozen=True, kw_only=True)
class Options:
    output: Annotated[Format, Parameter(name=["--output", "-o"], help="Output format.")] = "table"
    project: Annotated[
        str | None,
        Parameter(name="--project", env_var="GPUAAS_PROJECT", help="Project: name, tenant/name or id."),
    ] = None
    context: Annotated[
        str | None, Parameter(name="--context", env_var="GPUAAS_CONTEXT", help="Saved context to use.")
    ] = None
    api_url: Annotated[
        str | None, Parameter(name="--api-url", env_var="GPUAAS_API_URL", help="Address of the platform.")
    ] = None
    ca_file: Annotated[
        str | None,
        Parameter(
            name="--ca-file", env_var="GPUAAS_CA_FILE", help="PEM file of an authority to trust, beside the machine's."
        ),
    ] = None

    def __post_init__(self) -> None:
        # Set at once, so that errors before there is a session have the same format.
        output.format = self.output


def noun(module: str, help: str | None) -> App:
    """Make the group of a noun's commands, named after its file in commands/; the file's docstring is its help."""
    # The program's epilogue is for `gpuaas --help` only.
    return App(name=module.rpartition(".")[2].replace("_", "-"), help=help, help_epilogue="")


DEFAULTS = Options()
Wait = Annotated[bool, Parameter(name="--wait", negative="", help="Show progress and return when done.")]
Timeout = Annotated[float, Parameter(name="--timeout", help="Longest time to wait, in seconds.")]
WAIT_SECONDS = 1800.0
FromFile = Annotated[
    str | None,
    Parameter(
        name="--from-file",
        allow_leading_hyphen=True,
        help="Read the request as JSON or YAML from a file, or - for standard input; flags win.",
    ),
]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative="", help="Do not ask for confirmation.")]
Queue = Annotated[
    bool, Parameter(name="--queue", negative="", help="Queue behind running operations instead of being refused.")
]
InputWords = Annotated[
    list[str] | None,
    Parameter(name="--input", negative="", help="KEY=VALUE; the value is read as YAML. Repeatable."),
]
