"""Signed teardown receipts: export one, and check it later without the platform."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import FAILURE, NOT_FOUND, UNAVAILABLE, UNTRUSTED_KEY, USAGE, WORK_FAILED, CliError
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import find_target, open_session
from gpuaas_sdk.profile import config as configuration
from gpuaas_sdk.profile import receipt_keys

app = noun(__name__, __doc__)


@app.command
async def export(
    instance: Annotated[str, Parameter(help="Its name or id.")],
    /,
    *,
    file: Annotated[Path, Parameter(help="Write to this file, which must not exist.")],
    member: Annotated[str | None, Parameter(help="The id of a member of it that was written off.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Export the signed receipt of an instance that has ended, or of a member that was written off.

    Check it later, without the platform: gpuaas receipt verify FILE.

    ```
    gpuaas receipt export first --file first.receipt.json
    gpuaas receipt export first --member mem_… --file member.receipt.json
    ```
    """
    from gpuaas_contract.receipts import file_bytes

    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        receipts = session.client.receipts
        signed = await (receipts.get(found.id) if member is None else receipts.of_member(member))
    if signed.instance_id != found.id:
        raise CliError(f"{member} is no member of {found.name}", NOT_FOUND, hint=f"gpuaas member list {found.id}")
    if signed.signature is None:
        which = "" if member is None else f" --member {member}"
        hint = f"try again in some seconds: gpuaas receipt export {found.id}{which} --file {file}"
        raise CliError(f"the receipt of {found.name} is not signed yet: {signed.state}", UNAVAILABLE, hint=hint)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError as error:
        hint = "name a file that does not exist yet"
        raise CliError(f"cannot write {file}: {error.strerror}", USAGE, hint=hint) from None
    with os.fdopen(descriptor, "wb") as out:
        out.write(file_bytes(signed.receipt, signed.signature))
    said = {"file": str(file), "instance": found.id, "verdict": signed.receipt["verdict"]}
    if not output.document(said | {"key_id": signed.signature.key_id}):
        print(f"exported the receipt of {found.name} to {file}, signed with the key {signed.signature.key_id}")


@app.command
def verify(
    file: Annotated[Path, Parameter(help="An exported receipt.")],
    /,
    *,
    key: Annotated[Path | None, Parameter(help="Trust the public keys in this file (PEM, or base64).")] = None,
    instance: Annotated[str | None, Parameter(help="Refuse the receipt of another instance (name or id).")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Verify an exported receipt offline, with the platform's saved keys or with --key.

    Keys are saved by gpuaas login and by gpuaas receipt keys --save. Exit code 0: nothing is left. 7: it is genuine,
    and says that something is left or was not verified. 9: it was signed by a key that you do not trust. 1: it was
    changed, cut, or is of another instance.
    """
    from gpuaas_sdk.signed_receipts import ReceiptRefused, UntrustedKey, parse_keys, verify_receipt

    if key is not None:
        try:
            keys = parse_keys(key.read_text())
        except (OSError, ValueError) as error:
            raise CliError(f"cannot read the key {key}: {error}", USAGE) from None
    else:
        config = configuration.load()
        # Without any login nothing is trusted, which is what has to be said.
        known = options.api_url or options.context or config.contexts
        keys = receipt_keys.load(find_target(options, config).api_url) if known else []
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CliError(f"cannot read {file}: {error.strerror}", USAGE) from None
    try:
        report = verify_receipt(content, keys, instance=instance)
    except ReceiptRefused as refused:
        output.document({"file": str(file), "genuine": False, "reason": refused.reason, "detail": str(refused)})
        code, hint = FAILURE, "keep the file, and export the receipt again"
        if isinstance(refused, UntrustedKey):
            code, hint = UNTRUSTED_KEY, "gpuaas receipt keys --save, or --key FILE with a key that you trust"
        raise CliError(str(refused), code, hint=hint) from None
    receipt = report.receipt
    verdict = {
        "file": str(file),
        "genuine": True,
        "instance": receipt["instance"],
        "member": receipt.get("member"),
        "tenant": receipt["tenant"],
        "verdict": receipt["verdict"],
        "probes": receipt["probe_count"],
        "left": receipt["left"],
        "unverified": receipt["unverified"],
        "requested_by": receipt["requested_by"],
        "key_id": report.key_id,
    }
    if not output.document(verdict):
        whole = f"{receipt['instance']['name']} ({receipt['instance']['id']})"
        of = f"member {receipt['member']['id']} of {whole}" if receipt.get("member") else whole
        print(f"the receipt of {of} is genuine:")
        print(f"{receipt['probe_count']} probes, verdict {receipt['verdict']}, signed with the key {report.key_id}")
        for title in ("left", "unverified"):
            for line in receipt[title]:
                print(output.clean(f"{title}: {line}"))
    if receipt["verdict"] != "nothing_left":
        raise CliError("the receipt is genuine, and does not say that nothing is left", WORK_FAILED)


@app.command
async def keys(
    *,
    save: Annotated[bool, Parameter(negative="", help="Trust them from now on, for this platform.")] = False,
    pem: Annotated[bool, Parameter(negative="", help="Print them in PEM form.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """List the public keys that the platform signs receipts with, and those that it signed with before."""
    import base64

    async with open_session(options) as session:
        published = (await session.client.receipts.keys()).items
        api_url = session.target.api_url
    if save:
        new = receipt_keys.save(api_url, published)
        output.note(f"saved {new} new keys of {api_url} in {receipt_keys.path()}")
    if pem:
        from gpuaas_sdk.signed_receipts import pem_of

        print("".join(pem_of(base64.b64decode(each.public_key)) for each in published), end="")
        return
    trusted = receipt_keys.load(api_url)
    columns = {
        "version": lambda k: k.version,
        "key id": lambda k: k.key_id,
        "created": lambda k: k.created_at,
        "saved": lambda k: "yes" if base64.b64decode(k.public_key) in trusted else "no",
    }
    output.items(published, columns, empty="No keys.")
