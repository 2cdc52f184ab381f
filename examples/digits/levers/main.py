"""Tasks that go wrong on purpose, so that each of the five levers can be seen at work."""

import time

from runqy_python import RetryableError, run, task

tried = set()


@task
def misbehave(payload):
    what = payload["do"]
    if what == "fail once":
        if payload["key"] not in tried:
            tried.add(payload["key"])
            raise RetryableError("not this time")
        return "worked at the second attempt"
    if what == "fail always":
        raise RetryableError("never works")
    if what == "give up":
        raise ValueError("this input can't be processed")
    if what == "hang":
        time.sleep(600)
    return "done"


if __name__ == "__main__":
    run()
