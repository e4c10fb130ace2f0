"""Programs of the host that the agent runs."""

import asyncio
from dataclasses import dataclass

from gpuaas_agent.errors import PermanentError

SECONDS = 60


@dataclass(frozen=True)
class Done:
    status: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def said(self) -> str:
        return (self.stderr.strip() or self.stdout.strip() or f"exit status {self.status}")[-1_000:]


async def call(*words: str, seconds: float = SECONDS) -> Done:
    """Run a program and return its result, whatever its exit status. One that hangs or is missing is an error."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise PermanentError(f"cannot run {words[0]}: {error.strerror}") from error
    try:
        async with asyncio.timeout(seconds):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        raise PermanentError(f"{' '.join(words)} did not end within {seconds:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Done(process.returncode or 0, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


async def run(*words: str, seconds: float = SECONDS) -> str:
    done = await call(*words, seconds=seconds)
    if not done.ok:
        raise PermanentError(f"cannot {' '.join(words)}: {done.said}")
    return done.stdout
