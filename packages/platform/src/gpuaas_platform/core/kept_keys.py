"""Keys of this platform's own that lie in OpenBao: made once, and the same in every process, also after a restart."""

import base64
import secrets

from gpuaas_platform.core.database import Database
from gpuaas_platform.core.openbao import OpenBao


async def kept_key(database: Database, openbao: OpenBao, path: str, size: int) -> bytes:
    document = await openbao.read_document(path)
    if document is None:
        async with database.exclusively(path):
            document = await openbao.read_document(path)
            if document is None:
                document = {"key": base64.b64encode(secrets.token_bytes(size)).decode()}
                await openbao.write_document(path, document)
    return base64.b64decode(document["key"])
