"""Task code by hand: speaks the line protocol 1 or 2 and does what each payload says, one thread per slot.

Environment: SPEAK (1 or 2), CAPACITY, MARKS (a file that gets one line per start and end of an execution),
START (what the start does: "", "raise", "exit", "hang", "slow"), ONCE (leave after the first reply).
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

SPEAK = int(os.environ.get("SPEAK", "1"))
CAPACITY = int(os.environ.get("CAPACITY", "1"))
MARKS = os.environ["MARKS"]
wire = os.fdopen(os.dup(1), "wb", buffering=0)
wire_lock = threading.Lock()
waiting: "queue.Queue[dict]" = queue.Queue()
recalled: set = set()
cancelled: set = set()
state_lock = threading.Lock()


def say(**line):
    data = json.dumps(line).encode() + b"\n"
    with wire_lock:
        view = memoryview(data)
        while view:
            view = view[wire.write(view) :]


def mark(word, request):
    line = f"{word} {request['task_id']} {request['retry_count']} {os.getpid()} {time.time():.3f}\n"
    fd = os.open(MARKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)


def raw(data, fd):
    while data:
        data = data[os.write(fd, data) :]


def spawn_family(path):
    """A child, a grandchild, and one that left its session and its parent."""
    body = "import os, time; fd = os.open({!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT); "
    body += "os.write(fd, b'%d\\n' % os.getpid()); time.sleep(600)"
    body = body.format(path)
    subprocess.Popen([sys.executable, "-c", body])
    daemon = f"import os, sys\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n{body}"
    subprocess.Popen([sys.executable, "-c", daemon]).wait()
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {body}"
    subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)


def run(request):
    payload = request["payload"] if isinstance(request["payload"], dict) else {}
    task_id = request["task_id"]
    if "until_retry" in payload and request["retry_count"] >= payload["until_retry"]:
        return {"result": {"tries": request["retry_count"] + 1}, "error": None, "retry": False}
    for text in payload.get("print", ()):
        print(text, flush=True)
    for text in payload.get("warn", ()):
        print(text, file=sys.stderr, flush=True)
    for text in payload.get("tell", ()):
        say(event="log", task_id=task_id, stream="stdout", text=text)
    for line in payload.get("lines", ()):
        raw(line.encode("latin-1"), 1)
    if "flood" in payload:
        fd, megabytes, end = payload["flood"]
        for _ in range(megabytes):
            raw(b"x" * (1 << 20), fd)
        raw(end.encode(), fd)
    if "family" in payload:
        spawn_family(payload["family"])
    if "progress" in payload:
        say(event="progress", task_id=task_id, fraction=payload["progress"], message="on the way")
    for seq, piece in enumerate(payload.get("pieces", ())):
        say(event="output", task_id=task_id, seq=seq, data=piece)
    if payload.get("ignore_term"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if "gate" in payload:
        while not Path(payload["gate"]).exists():
            if payload.get("heed") and task_id in cancelled:
                return {"result": None, "error": "told to stop", "retry": False}
            time.sleep(0.005)
    if "sleep" in payload:
        time.sleep(payload["sleep"])
    if payload.get("spin"):
        while True:
            pass
    if "exit" in payload:
        os._exit(payload["exit"])
    if "kill" in payload:
        os.kill(os.getpid(), payload["kill"])
        time.sleep(60)
    if "error" in payload:
        reply = {"result": None, "error": payload["error"], "retry": payload.get("retry", False)}
        if "delay" in payload:
            reply["delay"] = payload["delay"]
        return reply
    if "size" in payload:
        return {"result": "r" * payload["size"], "error": None, "retry": False}
    return {"result": {"echo": payload.get("echo"), "pid": os.getpid()}, "error": None, "retry": False}


def work():
    while True:
        request = waiting.get()
        if request is None:
            return
        with state_lock:
            if request["task_id"] in recalled:
                recalled.discard(request["task_id"])
                continue
            request["begun"] = True
        if SPEAK >= 2 and not (request["payload"] or {}).get("silent"):
            say(event="start", task_id=request["task_id"])
        mark("start", request)
        reply = run(request)
        mark("end", request)
        say(task_id=request["task_id"], **reply)
        if (request["payload"] or {}).get("then_hang"):
            time.sleep(600)
        if os.environ.get("ONCE"):
            return


def read():
    known = {}
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request.get("event") == "recall":
            with state_lock:
                held = known.get(request["task_id"])
                if held is not None and not held.get("begun"):
                    recalled.add(request["task_id"])
                    held["begun"] = True
                    say(event="recalled", task_id=request["task_id"])
        elif request.get("event") == "cancel":
            cancelled.add(request["task_id"])
        elif "event" not in request:
            known[request["task_id"]] = request
            waiting.put(request)
    for _ in range(CAPACITY):
        waiting.put(None)


def start():
    how = os.environ.get("START", "")
    if Path(MARKS + ".start").exists():
        how = Path(MARKS + ".start").read_text().strip()
    print("loading the model", file=sys.stderr, flush=True)
    if how == "raise":
        print("ValueError: no weights", file=sys.stderr, flush=True)
        say(status="error", error="no weights")
        sys.exit(1)
    if how.startswith("exit"):
        print("last words", file=sys.stderr, flush=True)
        os._exit(int(how[4:]))
    if how == "hang":
        time.sleep(600)
    while how == "gate" and not Path(MARKS + ".ready").exists():
        time.sleep(0.005)
    if SPEAK >= 2:
        say(status="ready", protocol=2, sdk="hand/1", capacity=CAPACITY)
    else:
        say(status="ready")


fd = os.open(MARKS + ".loads", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(fd, b"%d\n" % os.getpid())
os.close(fd)
start()
if os.environ.get("ONCE"):
    line = sys.stdin.buffer.readline()
    if line:
        waiting.put(json.loads(line))
        work()
else:
    # The main thread works, so that signals and exits behave as in a plain program.
    threading.Thread(target=read, daemon=True).start()
    for _ in range(CAPACITY - 1):
        threading.Thread(target=work, daemon=True).start()
    work()
