"""docs/access.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from runqy.server.login_limit import PER_ACCOUNT, PER_ADDRESS, WINDOW_SECONDS
from runqy.server.passwords import SHORTEST
from runqy.settings.server_variables import CORS_ORIGINS, READ_ONLY
from runqy.store.accounts import SESSION_SECONDS
from runqy.store.audit import KEPT_LINES
from runqy.store.roles import Role

TEXT = (Path(__file__).parents[2] / "docs" / "access.md").read_text(encoding="utf-8")


def test_every_role_is_described_and_no_other() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == set(Role)


def test_the_figures_are_those_of_the_code() -> None:
    assert f"at least {SHORTEST} characters" in TEXT
    minutes = round(WINDOW_SECONDS / 60)
    assert (
        f"After {PER_ACCOUNT} failed log-ins for an account or {PER_ADDRESS} from an address within {minutes} minutes"
        in TEXT
    )
    assert f"lasts {SESSION_SECONDS // 86400} days" in TEXT
    assert f"the newest {KEPT_LINES:,} lines" in TEXT


def test_the_variables_exist() -> None:
    for setting in (CORS_ORIGINS, READ_ONLY):
        assert setting.variables[0] in TEXT
