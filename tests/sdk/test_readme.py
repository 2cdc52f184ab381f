"""Every example of the README is run, each in an interpreter of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT, SOURCE

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "sdk" / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_runs(example: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-W", "error", "-c", example]
    result = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
