"""The rule for a password that a person chooses. Passwords from before the rule keep working."""

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

LEAST, MOST = 12, 1024


def check_password(password: str) -> str:
    """Return the password as it is; raise ValueError, in words for a person, where it breaks the rule."""
    if len(password) < LEAST:
        raise ValueError(f"a password has at least {LEAST} characters")
    if len(password) > MOST:
        raise ValueError(f"a password has at most {MOST} characters")
    visible = set("".join(password.split()))
    if not visible:
        raise ValueError("a password is not white space only")
    if len(visible) == 1:
        raise ValueError("a password is not one character repeated")
    return password


def _check_secret(password: SecretStr) -> SecretStr:
    check_password(password.get_secret_value())
    return password


NewPassword = Annotated[
    SecretStr,
    Field(
        min_length=LEAST,
        max_length=MOST,
        description=f"At least {LEAST} characters, not all white space and not one character repeated.",
    ),
    AfterValidator(_check_secret),
]
