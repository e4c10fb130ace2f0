"""The page on which a person lets a command line in: plain HTML, without script, from this origin alone."""

import base64
import hashlib
from datetime import datetime
from html import escape

from gpuaas_contract.oauth import DeviceRequest

PATH = "/device"
LOGIN_PATH, DECIDE_PATH, LOGOUT_PATH = f"{PATH}/login", f"{PATH}/decide", f"{PATH}/logout"
PATHS = frozenset({PATH, LOGIN_PATH, DECIDE_PATH, LOGOUT_PATH})
MOST_TYPED = 20
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:2rem auto;padding:0 1rem;color:#1c1c1c;"
    "background:#fff}h1{font-size:1.4rem}label{display:block;margin:.8rem 0}"
    "input{display:block;font:inherit;width:100%;box-sizing:border-box;padding:.4rem}"
    "button{font:inherit;padding:.5rem 1.2rem;margin:.8rem .8rem 0 0}"
    "dt{color:#555}dd{margin:0 0 .6rem;overflow-wrap:anywhere}.code{font:bold 1.5rem monospace}"
    ".problem{border-left:4px solid #b00020;padding:.4rem .8rem;background:#fdecee}"
    "footer{margin-top:2rem;color:#555;font-size:.9rem}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: with that, browsers hide the origin of the page's own forms, and they would be refused.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def login_page(user_code: str, email: str = "", problem: str = "") -> str:
    return _document(
        "Log in",
        _problem(problem)
        + "<p>A command line asks to be logged in. Log in here first; then you see what asks.</p>"
        + f'<form method="post" action="{LOGIN_PATH}">'
        + _hidden("user_code", user_code)
        + _field(
            "E-mail", "email", f'type="email" autocomplete="username" required maxlength="254" value="{escape(email)}"'
        )
        + _field("Password", "password", 'type="password" autocomplete="current-password" required maxlength="1024"')
        + "<button>Log in</button></form>",
    )


def code_page(email: str, csrf_token: str, problem: str = "", typed: str = "") -> str:
    attributes = (
        f'autocomplete="off" autocapitalize="characters" required maxlength="{MOST_TYPED}" value="{escape(typed)}"'
    )
    return _document(
        "Which code does the terminal show?",
        _problem(problem)
        + f'<form method="get" action="{PATH}">'
        + _field("Code", "user_code", attributes)
        + "<button>Continue</button></form>",
        _footer(email, csrf_token),
    )


def request_page(asked: DeviceRequest, email: str, csrf_token: str, own_address: str, now: datetime) -> str:
    facts = [
        ("Code", f'<span class="code">{escape(asked.user_code)}</span>'),
        ("Program, in its own words", escape(asked.client_id)),
        ("Asked from the address", escape(asked.address or "not known")),
        ("Your address here", escape(own_address or "not known")),
        ("Asked", escape(age_of(asked.created_at, now))),
    ]
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    elsewhere = ""
    if asked.address and own_address and asked.address != own_address:
        elsewhere = "<p><strong>The request comes from another address than this browser.</strong></p>"
    return _document(
        "Let this command line in?",
        f"<dl>{listed}</dl>{elsewhere}"
        f"<p>If you approve, the program acts as <strong>{escape(email)}</strong> until it logs out. "
        "Approve only if you started it yourself and your terminal shows this code. "
        "If somebody sent you the code or the link, deny it.</p>"
        f'<form method="post" action="{DECIDE_PATH}">'
        + _hidden("csrf_token", csrf_token)
        + _hidden("user_code", asked.user_code)
        + '<button name="decision" value="approve">Approve</button><button name="decision" value="deny">Deny</button>'
        "</form>",
        _footer(email, csrf_token),
    )


def message_page(title: str, sentence: str) -> str:
    return _document(title, f'<p>{escape(sentence)}</p><p><a href="{PATH}">Type another code</a></p>')


def problem_page(title: str, detail: str, correlation_id: str) -> str:
    return _document(
        title.capitalize(),
        _problem(detail)
        + f'<p><a href="{PATH}">Back to the code</a></p><footer>Correlation id: {escape(correlation_id)}</footer>',
    )


def age_of(created_at: datetime, now: datetime) -> str:
    seconds = max(0, int((now - created_at).total_seconds()))
    if seconds < 60:
        return f"{seconds} second{'' if seconds == 1 else 's'} ago"
    minutes = seconds // 60
    return f"{minutes} minute{'' if minutes == 1 else 's'} ago"


def sentence_of(detail: str) -> str:
    return detail[:1].upper() + detail[1:] + ("" if detail.endswith((".", "?", "!")) else ".")


def _document(title: str, body: str, footer: str = "") -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - GPUaaS</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main><h1>{escape(title)}</h1>{body}</main>{footer}</body></html>"
    )


def _problem(detail: str) -> str:
    return f'<p class="problem" role="alert">{escape(sentence_of(detail))}</p>' if detail else ""


def _field(label: str, name: str, attributes: str) -> str:
    return f'<label>{label}<input name="{name}" {attributes}></label>'


def _hidden(name: str, value: str) -> str:
    return f'<input type="hidden" name="{name}" value="{escape(value)}">'


def _footer(email: str, csrf_token: str) -> str:
    return (
        f'<footer>You are logged in as {escape(email)}.<form method="post" action="{LOGOUT_PATH}">'
        + _hidden("csrf_token", csrf_token)
        + "<button>Log out</button></form></footer>"
    )
