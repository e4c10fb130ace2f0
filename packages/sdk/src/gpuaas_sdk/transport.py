"""The one seam between the SDK and HTTP: tokens, correlation, idempotency, retries, problems."""

import asyncio
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pydantic_core
from pydantic import BaseModel, SecretStr, ValidationError

from gpuaas_contract.base import API_PREFIX
from gpuaas_contract.identity import LoginRequest, Token
from gpuaas_contract.oauth import ASSERTION_TYPE, CLIENT_CREDENTIALS, DEVICE_CODE, REFRESH_TOKEN
from gpuaas_contract.problems import (
    CORRELATION_HEADER,
    IDEMPOTENCY_HEADER,
    Code,
    Problem,
)
from gpuaas_contract.trust import TrustError, client_context, explain
from gpuaas_sdk.correlation import current_correlation_id
from gpuaas_sdk.credentials import Credentials
from gpuaas_sdk.errors import (
    ApiError,
    CertificateError,
    ProtocolError,
    RateLimitedError,
    TransportError,
    UnauthenticatedError,
    error_from_problem,
)
from gpuaas_sdk.retry import NO_RETRY, RETRY_AFTER_LIMIT, RetryPolicy, may_retry

Model = TypeVar("Model", bound=BaseModel)
Query = Mapping[str, str | int | float | bool | Sequence[str] | None]
Content = bytes | Callable[[], AsyncIterator[bytes]]
"""A large body is given as a function, so that a retry can send it from its beginning."""

_GENERAL_CODES = (
    Code.UNAUTHENTICATED,
    Code.FORBIDDEN,
    Code.NOT_FOUND,
    Code.INVALID_STATE,
    Code.INVALID_REQUEST,
)
# Answers without a problem document come from proxies, which also know statuses that the platform never sends.
_CODE_BY_STATUS = {
    **{code.status: code for code in _GENERAL_CODES},
    **dict.fromkeys((429, 502, 503, 504), Code.UNAVAILABLE),
}

DEFAULT_TIMEOUT = 30.0
LOGIN_PATIENCE = 5.0
"""Whoever typed a wrong password too often reads how long to wait, instead of waiting without a word."""
REFRESH_MARGIN = 30.0
"""A token is renewed this long before it expires, so that none expires during a request."""


def encode_body(body: BaseModel) -> bytes:
    """Encode a body as JSON. Unlike pydantic's own, it contains the secrets in clear: the body is where they belong."""
    content = body.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name, value in body:
        if value is None and name in getattr(body, "NULL_SAYS", ()) and name in body.model_fields_set:
            content[name] = None
        if isinstance(value, SecretStr):
            content[name] = value.get_secret_value()
    return pydantic_core.to_json(content)


def parse(model: type[Model], response: httpx.Response) -> Model:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise ProtocolError(
            f"the answer to {response.request.method} {response.request.url.path} is not a "
            f"{model.__name__}: {error.error_count()} field(s) differ; is this the same version?"
        ) from None


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    try:
        return min(max(float(headers["retry-after"]), 0.0), RETRY_AFTER_LIMIT)
    except (KeyError, ValueError):
        return None


def error_from_answer(status: int, headers: Mapping[str, str], content: bytes) -> ApiError | ProtocolError:
    """Turn an answer of 400 or more into an exception, also when a proxy or a newer platform made it."""
    retry_after = retry_after_of(headers)
    try:
        return error_from_problem(Problem.model_validate_json(content), retry_after=retry_after)
    except ValidationError:
        pass
    code = _CODE_BY_STATUS.get(status)
    if code is None:
        return ProtocolError(f"answer {status} without a problem document; is this the platform's address?")
    problem = Problem(
        type="about:blank",
        title=f"HTTP {status}",
        status=status,
        detail=_detail_of(content) or f"answer {status} without a problem document, perhaps from a proxy",
        code=code,
        correlation_id=headers.get(CORRELATION_HEADER.lower(), ""),
        retryable=code.retryable,
    )
    return error_from_problem(problem, retry_after=retry_after)


def _detail_of(content: bytes) -> str | None:
    """The detail of a problem whose code this version does not know."""
    try:
        detail = pydantic_core.from_json(content)["detail"]
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return detail if isinstance(detail, str) else None


def _change_headers(revision: int | None, idempotency_key: str | None) -> dict[str, str]:
    headers = {IDEMPOTENCY_HEADER: idempotency_key or uuid.uuid4().hex}
    return headers if revision is None else {**headers, "If-Match": f'"{revision}"'}


def trusted(url: str, ca_file: str | Path | None) -> ssl.SSLContext:
    """Make the context that trusts the machine's authorities and those in `ca_file` (or GPUAAS_CA_FILE)."""
    try:
        return client_context(url, ca_file)
    except TrustError as error:
        raise CertificateError(str(error)) from None


def no_answer(what: str, url: str, error: Exception) -> TransportError:
    """Make the error for a request that nobody answered: in words where it is about a certificate."""
    if words := explain(error):
        return CertificateError(f"{what}: {words}")
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and url.startswith("http:"):
        reason = f"{reason.rstrip('.')}. If it speaks TLS, its address begins with https://"
    return TransportError(f"{what}: {reason}")


class Transport:
    """Sends requests for all resources of a client; holds the connection pool and the token."""

    def __init__(
        self,
        api_url: str,
        credentials: Credentials,
        *,
        retry: RetryPolicy,
        http: httpx.AsyncBaseTransport | None = None,
        user_agent: str = "gpuaas-sdk",
        ca_file: str | Path | None = None,
    ) -> None:
        self.api_url = api_url.rstrip("/")
        self.ca_file = ca_file
        self.retry = retry
        self._credentials = credentials
        self._http = httpx.AsyncClient(
            base_url=self.api_url + API_PREFIX,
            timeout=DEFAULT_TIMEOUT,
            headers={"User-Agent": user_agent, "Accept": "application/json"},
            transport=http,
            verify=trusted(self.api_url, ca_file),
        )
        self._token: str | None = None
        self._renew_at = 0.0
        self._token_lock = asyncio.Lock()

    async def close(self) -> None:
        await self._http.aclose()

    async def get(
        self, path: str, model: type[Model], query: Query | None = None, *, timeout: float | None = None
    ) -> Model:
        return parse(model, await self.send("GET", path, query=query, timeout=timeout))

    async def post(
        self,
        path: str,
        model: type[Model],
        body: BaseModel | None = None,
        *,
        idempotency_key: str | None = None,
        keyed: bool = True,
        revision: int | None = None,
    ) -> Model:
        """`keyed=False` is for idempotent requests that are so frequent that their keys would pile up."""
        headers = _change_headers(revision, idempotency_key) if keyed else {}
        return parse(model, await self._send_body("POST", path, headers, body))

    async def patch(
        self,
        path: str,
        model: type[Model],
        body: BaseModel,
        *,
        revision: int | None = None,
        idempotency_key: str | None = None,
    ) -> Model:
        """With `revision`, only while the target is at that revision."""
        return parse(model, await self._send_body("PATCH", path, _change_headers(revision, idempotency_key), body))

    async def put(
        self,
        path: str,
        model: type[Model],
        body: BaseModel,
        *,
        revision: int | None = None,
        idempotency_key: str | None = None,
    ) -> Model:
        return parse(model, await self._send_body("PUT", path, _change_headers(revision, idempotency_key), body))

    async def delete(
        self, path: str, model: type[Model], *, revision: int | None = None, idempotency_key: str | None = None
    ) -> Model:
        """Return the target as it was."""
        return parse(model, await self._send_body("DELETE", path, _change_headers(revision, idempotency_key), None))

    async def _send_body(
        self, method: str, path: str, headers: dict[str, str], body: BaseModel | None
    ) -> httpx.Response:
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = encode_body(body)
        return await self.send(method, path, headers=headers, content=content)

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        content: Content | None = None,
        form: Mapping[str, str] | None = None,
        timeout: float | None = None,
        authenticated: bool = True,
        retry: RetryPolicy | None = None,
        patience: float = RETRY_AFTER_LIMIT,
    ) -> httpx.Response:
        """Send one logical request: repeated where that is safe, and once with a fresh token after a 401.

        Where the platform asks for a longer wait than `patience`, its refusal is raised at once."""
        all_headers = {CORRELATION_HEADER: current_correlation_id(), **(headers or {})}
        arguments: dict[str, Any] = {
            "params": {key: value for key, value in (query or {}).items() if value is not None},
            "timeout": DEFAULT_TIMEOUT if timeout is None else timeout,
        }
        if form is not None:
            arguments["data"] = dict(form)
        policy = self.retry if retry is None else retry
        failures = 0
        token: str | None = None
        renewals_left = 1 if authenticated and self._credentials.renewable else 0
        while True:
            try:
                if authenticated:
                    token = await self.token()
                    all_headers["Authorization"] = f"Bearer {token}"
                body = content() if callable(content) else content
                return await self._send_once(method, path, headers=all_headers, content=body, **arguments)
            except UnauthenticatedError:
                # A refusal of the credentials themselves left no token, and asking again would not help.
                if renewals_left == 0 or self._token is None:
                    raise
                renewals_left -= 1
                self.forget_token(token)
            except (TransportError, ApiError) as error:
                failures += 1
                if failures >= policy.attempts or not may_retry(error):
                    raise
                asked = (error.retry_after if isinstance(error, ApiError) else None) or 0.0
                if asked > patience:
                    raise
                await asyncio.sleep(max(asked, policy.delay(failures)))

    async def _send_once(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise no_answer(f"cannot reach {self.api_url}", self.api_url, error) from error
        if response.is_error:
            raise error_from_answer(response.status_code, response.headers, response.content)
        return response

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Query, headers: Mapping[str, str], timeout: float
    ) -> AsyncIterator[httpx.Response]:
        """Stream an answer. Nothing is repeated; `timeout` limits the silence between two pieces."""
        token = await self.token()
        own = {CORRELATION_HEADER: current_correlation_id(), "Authorization": f"Bearer {token}", **headers}
        params = {key: value for key, value in query.items() if value is not None}
        try:
            async with self._http.stream("GET", path, params=params, headers=own, timeout=timeout) as response:
                if response.is_error:
                    content = await response.aread()
                    raise error_from_answer(response.status_code, response.headers, content)
                yield response
        except httpx.TransportError as error:
            raise no_answer(f"lost {self.api_url}", self.api_url, error) from error
        except UnauthenticatedError:
            self.forget_token(token)
            raise

    @property
    def renewable(self) -> bool:
        return self._credentials.renewable

    async def token(self) -> str:
        """Return a token that is still valid for a while; concurrent callers share one renewal."""
        async with self._token_lock:
            if self._token is None or time.monotonic() >= self._renew_at:
                fetched = await self.fetch_token()
                self._token = fetched.access_token
                # Short-lived tokens are used for two thirds of their life.
                margin = min(REFRESH_MARGIN, fetched.expires_in / 3)
                self._renew_at = time.monotonic() + fetched.expires_in - margin
            return self._token

    async def fetch_token(self) -> Token:
        return await self._credentials.fetch(self)

    def forget_token(self, token: str | None) -> None:
        """Forget the token if it is still the current one: another task may have renewed it meanwhile."""
        if self._token == token:
            self._token = None

    async def login(self, request: LoginRequest) -> Token:
        headers = {"Content-Type": "application/json"}
        try:
            response = await self.send(
                "POST",
                "/auth/login",
                headers=headers,
                content=encode_body(request),
                authenticated=False,
                patience=LOGIN_PATIENCE,
            )
        except RateLimitedError as error:
            error.give_up = (error.retry_after or 0.0) > LOGIN_PATIENCE
            raise
        return parse(Token, response)

    async def exchange_assertion(self, assertion: str) -> Token:
        # An assertion is good for one token, so a lost answer needs a new one: no retry at this level.
        form = {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}
        return await self._exchange({"grant_type": CLIENT_CREDENTIALS, **form}, NO_RETRY)

    async def exchange_secret(self, service_account_id: str, secret: str) -> Token:
        form = {"client_id": service_account_id, "client_secret": secret}
        return await self._exchange({"grant_type": CLIENT_CREDENTIALS, **form}, self.retry)

    async def exchange_refresh_token(self, refresh_token: str) -> Token:
        # The second use of one ends the login: where no answer came, nobody knows whether it was used.
        return await self._exchange({"grant_type": REFRESH_TOKEN, "refresh_token": refresh_token}, NO_RETRY)

    async def exchange_device_code(self, client_id: str, device_code: str) -> Token:
        form = {"client_id": client_id, "device_code": device_code}
        return await self._exchange({"grant_type": DEVICE_CODE, **form}, NO_RETRY)

    async def _exchange(self, form: Mapping[str, str], retry: RetryPolicy) -> Token:
        response = await self.send("POST", "/oauth/token", form=form, authenticated=False, retry=retry)
        return parse(Token, response)
