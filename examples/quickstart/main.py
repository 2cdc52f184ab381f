"""Task code for a long-running queue: loaded once, then called for every task."""

import time

from runqy_python import RetryableError, load, run, task


@load
def setup():
    """Runs once, before the first task: load a model here."""
    return {"started": time.time()}


@task
def greet(payload, ctx):
    """Runs for every task; what it returns is the task's result."""
    name = payload.get("name", "world")
    if name == "busy":
        raise RetryableError("try me again later")
    print(f"greeting {name}")
    return {"greeting": f"Hello, {name}!", "warm_for_seconds": round(time.time() - ctx["started"], 3)}


if __name__ == "__main__":
    run()
