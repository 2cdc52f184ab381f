"""Every variable with our prefix that some part of runqy reads, so that a misspelt one can be told."""

from __future__ import annotations

from runqy.settings.server_variables import ALL as SERVER
from runqy.settings.worker_variables import ALL as WORKER
from runqy.tasks.limits import LEVERS

_ELSEWHERE = (
    "RUNQY_SERVER",
    "RUNQY_INSTANCE_ID",
    "RUNQY_PROFILE",
)
"""read by the command line, the SDK, and rented machines"""

KNOWN_VARIABLES = frozenset(
    [
        *(name for setting in (*SERVER, *WORKER) for name in setting.known_variables),
        *(lever.environment for lever in LEVERS),
        *_ELSEWHERE,
    ]
)
