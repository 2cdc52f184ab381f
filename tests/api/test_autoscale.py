"""Autoscaling is refused clearly (product decision 35)."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.api import WORKER, Api
from harness.programs import run

SENTENCE = "autoscaling of rented machines is not in this release"
ROUTES = [
    ("GET", "/status"),
    ("POST", "/instances/x/protect"),
    ("POST", "/instances/x/unprotect"),
    ("GET", "/provider-types"),
    ("GET", "/providers"),
    ("POST", "/providers"),
    ("GET", "/providers/x"),
    ("PUT", "/providers/x"),
    ("DELETE", "/providers/x"),
]


@pytest.mark.parametrize("prefix", ["/api/autoscale", "/monitoring/api/autoscale"])
async def test_every_route_answers_501_to_an_admin_alone(api: Api, prefix: str) -> None:
    for method, path in ROUTES:
        async with api.client() as client:
            answer = await client.request(method, prefix + path)
            assert (answer.status_code, answer.json()) == (501, {"errors": [SENTENCE]})
        for key in (None, WORKER):
            async with api.client(key) as client:
                assert (await client.request(method, prefix + path)).status_code in {401, 403}


@pytest.mark.parametrize(
    "arguments", [["status"], ["protect", "x"], ["providers", "create", "x", "--type", "mock"], []], ids=" ".join
)
def test_every_command_exits_1_with_one_sentence(tmp_path: Path, arguments: list[str]) -> None:
    said = run(["autoscale", *arguments], tmp_path)
    assert (said.code, said.out, said.err) == (1, "", f"error: {SENTENCE}\n")
