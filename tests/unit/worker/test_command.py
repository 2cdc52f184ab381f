"""The startup command and what the task process finds in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from runqy.errors import DeploymentError
from runqy.worker.command import child_environment, resolve_command, split_command


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python main.py", ["python", "main.py"]),
        ("  python   main.py ", ["python", "main.py"]),
        ("python -c 'print(1)'", ["python", "-c", "print(1)"]),
        ("""run "it's" 'say "x"'""", ["run", "it's", 'say "x"']),
        ("a '' b", ["a", "b"]),
        (r"a\ b c", ["a\\", "b", "c"]),
        ("a\tb", ["a\tb"]),
        ("a;b $HOME *", ["a;b", "$HOME", "*"]),
        ("pre'fix ed'post", ["prefix edpost"]),
    ],
)
def test_a_command_is_split_as_the_original_does(text: str, words: list[str]) -> None:
    assert split_command(text) == words


@pytest.mark.parametrize("text", ["python 'main.py", '"', "", "   ", "''"])
def test_a_command_that_cant_be_read_is_refused(text: str) -> None:
    with pytest.raises(DeploymentError):
        split_command(text)


@pytest.mark.parametrize("word", ["python", "python3", "python.exe", "python3.exe"])
def test_python_is_the_environments_own(word: str, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    assert resolve_command(f"{word} -u main.py", python, tmp_path, {}) == [str(python), "-u", "main.py"]


def test_another_program_is_looked_up_on_the_path_or_beside_the_code(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert resolve_command("./serve.sh 1", Path("py"), tmp_path, {})[0] == str(script)
    assert resolve_command("serve.sh", Path("py"), tmp_path, {"PATH": str(tmp_path)}) == [str(script)]


@pytest.mark.parametrize("command", ["no-such-program-here x", "./missing.sh", "python4 main.py"])
def test_a_program_that_is_not_there_is_named(command: str, tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="was not found") as caught:
        resolve_command(command, Path("py"), tmp_path, {"PATH": "/usr/bin"})
    assert command.split()[0] in caught.value.what
    assert "startup_cmd" in caught.value.hint


def test_the_worker_keeps_its_own_secrets_and_vault_entries_win(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Decision 25: keys, tokens and addresses with passwords stay with the worker."""
    secret = dict.fromkeys(
        (
            *("RUNQY_API_KEY", "RUNQY_API_KEY_FILE", "RUNQY_GIT_TOKEN", "RUNQY_REDIS_URL", "RUNQY_DATABASE_URL"),
            *("REDIS_PASSWORD", "DATABASE_PASSWORD", "GITHUB_PAT", "RUNQY_VAULT_MASTER_KEY", "RUNQY_JWT_SECRET"),
        ),
        "canary",
    )
    for name, value in {**secret, "MODEL": "small", "LANG": "C"}.items():
        monkeypatch.setenv(name, value)
    environment = child_environment(tmp_path, {"MODEL": "large", "HF_TOKEN": "from the vault"})
    assert "canary" not in environment.values()
    assert environment["MODEL"] == "large"
    assert environment["HF_TOKEN"] == "from the vault"
    assert environment["LANG"] == "C"
    assert environment["RUNQY_PROTOCOL"] == "2"
    assert environment["PATH"].startswith(f"{tmp_path}/bin:")
    assert environment["VIRTUAL_ENV"] == str(tmp_path)
