"""Vaults: secrets are written and replaced here, and never read back."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from runqy.errors import UnavailableError, UsageError
from runqy.server.responding import State, json_answer, needs_admin, note_audit, read_json_object
from runqy.server.state import ServerState
from runqy.server.vault_documents import entries_document, vault_document, vaults_document
from runqy.store.vaults import VaultStore

router = APIRouter(tags=["vaults"], dependencies=[needs_admin])

_API, _DASHBOARD = "/api/vaults", "/monitoring/api/vaults"
_OFF = (
    "vaults not enabled. Set RUNQY_VAULT_MASTER_KEY environment variable. Generate a key with: openssl rand -base64 32"
)
_OFF_DASHBOARD = "vaults not configured: RUNQY_VAULT_MASTER_KEY not set"


def _vaults(request: Request, state: ServerState) -> VaultStore:
    """The vaults. Raises `UnavailableError` (503) without a master key, in the words of each of the two APIs."""
    if state.vaults is None:
        raise UnavailableError(_OFF_DASHBOARD if request.url.path.startswith(_DASHBOARD) else _OFF)
    return state.vaults


@router.get(_API)
@router.get(_DASHBOARD, include_in_schema=False)
async def list_vaults(request: Request, state: State) -> Response:
    """All vaults with how many entries each has (role: admin)."""
    return json_answer(vaults_document(await _vaults(request, state).all()))


@router.post(_API)
@router.post(_DASHBOARD, include_in_schema=False)
async def create_vault(request: Request, state: State) -> Response:
    """Make an empty vault (role: admin): `{"name", "description"?}`."""
    vaults = _vaults(request, state)
    body = await read_json_object(request)
    if body.get("name") in (None, ""):
        raise UsageError(
            "Key: 'CreateVaultRequest.Name' Error:Field validation for 'Name' failed on the 'required' tag"
        )
    made = await vaults.create(body["name"], body.get("description") or "")
    note_audit(request, vault=made.name)
    # A queue may have named it before it was there.
    await state.announce_change()
    vault = {"name": made.name, "description": made.description}
    return json_answer({"message": "vault created successfully", "vault": vault}, 201)


@router.get(_API + "/{vault}")
@router.get(_DASHBOARD + "/{vault}", include_in_schema=False)
async def get_vault(vault: str, request: Request, state: State) -> Response:
    """One vault; the values of secrets are masked (role: admin)."""
    return json_answer(vault_document(await _vaults(request, state).get(vault)))


@router.delete(_API + "/{vault}")
@router.delete(_DASHBOARD + "/{vault}", include_in_schema=False)
async def delete_vault(vault: str, request: Request, state: State) -> Response:
    """Delete a vault with its entries (role: admin). `warnings` names the queues that still want it."""
    await _vaults(request, state).delete(vault)
    await state.announce_change()
    document: dict[str, Any] = {"message": "vault deleted successfully"}
    users = [queue.name for queue in state.queues.catalog.queues() if _uses(queue.deployment, vault)]
    if users:
        document["warnings"] = [f"no worker can register for {', '.join(users)} until there is a vault '{vault}' again"]
    return json_answer(document)


def _uses(deployment: Any, vault: str) -> bool:
    return deployment is not None and vault in deployment.vaults


@router.get(_API + "/{vault}/entries")
@router.get(_DASHBOARD + "/{vault}/entries", include_in_schema=False)
async def list_entries(vault: str, request: Request, state: State) -> Response:
    """The entries of a vault by key; the values of secrets are masked (role: admin)."""
    return json_answer(entries_document((await _vaults(request, state).get(vault)).entries))


@router.post(_API + "/{vault}/entries")
@router.post(_DASHBOARD + "/{vault}/entries", include_in_schema=False)
async def set_entry(vault: str, request: Request, state: State) -> Response:
    """Set a value (role: admin): `{"key", "value", "is_secret"? = true}`. Running workers have it within 10 s."""
    vaults = _vaults(request, state)
    body = await read_json_object(request)
    is_secret = body.get("is_secret", True)
    if not isinstance(is_secret, bool):
        raise UsageError("invalid is_secret field: true or false")
    for field in ("key", "value"):
        if body.get(field) in (None, ""):
            raise UsageError(f"{field} is required")
    await vaults.set_entry(vault, body["key"], body["value"], is_secret=is_secret)
    note_audit(request, vault=vault, key=body["key"])
    await state.announce_change()
    return json_answer({"message": "entry set successfully"})


@router.delete(_API + "/{vault}/entries/{key}")
@router.delete(_DASHBOARD + "/{vault}/entries/{key}", include_in_schema=False)
async def delete_entry(vault: str, key: str, request: Request, state: State) -> Response:
    """Delete a value (role: admin)."""
    await _vaults(request, state).delete_entry(vault, key)
    await state.announce_change()
    return json_answer({"message": "entry deleted successfully"})
