"""Completion of commands and options in the shell."""

from typing import Annotated, Literal

from cyclopts import Parameter

from gpuaas_cli.options import DEFAULTS, Options


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell.")],
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Print a completion script for the shell.

    ```
    source <(gpuaas completion bash)
    gpuaas completion zsh > "${fpath[1]}/_gpuaas"
    gpuaas completion fish > ~/.config/fish/completions/gpuaas.fish
    ```
    """
    from gpuaas_cli.main import app

    print(app.generate_completion(prog_name="gpuaas", shell=shell))
