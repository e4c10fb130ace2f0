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
    output: Annotated[Format, Parameter(name=["--output", "-o"], help="How to print the result.")] = "table"
    project: Annotated[
        str | None,
        Parameter(name="--project", env_var="GPUAAS_PROJECT", help="Project, by name, tenant/name or id."),
    ] = None
    context: Annotated[
        str | None, Parameter(name="--context", env_var="GPUAAS_CONTEXT", help="Named context to use.")
    ] = None
    api_url: Annotated[
        str | None, Parameter(name="--api-url", env_var="GPUAAS_API_URL", help="Address of the platform.")
    ] = None

    def __post_init__(self) -> None:
        # Errors are printed in the same form, also when they happen before there is a session.
        output.format = self.output


def noun(module: str, help: str | None) -> App:
    """The commands of one noun. Its file in commands/ gives its name, the file's docstring its help."""
    # The epilogue of the whole program is shown with the program only.
    return App(name=module.rpartition(".")[2].replace("_", "-"), help=help, help_epilogue="")


DEFAULTS = Options()
Wait = Annotated[bool, Parameter(name="--wait", negative="", help="Show the progress and return when it is done.")]
Timeout = Annotated[float, Parameter(name="--timeout", help="Seconds to wait at most.")]
WAIT_SECONDS = 1800.0
FromFile = Annotated[
    str | None,
    Parameter(
        name="--from-file",
        allow_leading_hyphen=True,
        help="The request as JSON or YAML, from a file or - for standard input; flags win over it.",
    ),
]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative="", help="Do not ask.")]
Queue = Annotated[
    bool, Parameter(name="--queue", negative="", help="Wait behind what is running, instead of being refused.")
]
InputWords = Annotated[
    list[str] | None,
    Parameter(name="--input", negative="", help="KEY=VALUE; the value is read as YAML. Repeatable."),
]
