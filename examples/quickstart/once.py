"""Task code for a one-shot queue: a fresh process for every task."""

import os

from runqy_python import run_once, task


@task
def count_words(payload):
    return {"words": len(str(payload.get("text", "")).split()), "process": os.getpid()}


if __name__ == "__main__":
    run_once()
