"""Register the deployments of a Prefect file with the server. ``ratchet deploy`` runs this module.

Runs ``prefect deploy`` in a process of its own, without questions.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from deployments.local_stack import LocalStackError
from deployments.parts import get_text, stack_environment
from flows.process.messages import print_error, print_plain
from flows.process.stack_file import POOL, running_stack
from ratchet.errors import RatchetError
from ratchet.shadowing import refuse_working_folder

PREFECT_FILE = Path(__file__).with_name("prefect.yaml")


def deploy(home: Path, prefect_file: Path = PREFECT_FILE) -> None:
    """Register all deployments of a file; a second time changes what has changed.

    Parameters
    ----------
    home
        The home of the local stack, used unless ``PREFECT_API_URL`` says otherwise.

    Raises
    ------
    LocalStackError
        If no server is reachable, or Prefect refuses.
    NameClashError
        If packages of the working folder would hide ours from the runs.
    """
    if prefect_file == PREFECT_FILE:
        refuse_working_folder(Path.cwd())
    environment = _environment(home.resolve())
    api_url = environment["PREFECT_API_URL"]
    if get_text(f"{api_url}/health") is None:
        raise LocalStackError(f"no Prefect server answers at {api_url}. Start one: `ratchet up`.")
    if get_text(f"{api_url}/work_pools/{POOL}") is None:
        _prefect(environment, "work-pool", "create", POOL, "--type", "process")
    _prefect(environment, "deploy", "--all", "--prefect-file", str(prefect_file.resolve()))
    _run([sys.executable, "-P", "-m", "deployments.recovering", "--automation"], environment)
    print_plain(
        f"Registered the deployments of {prefect_file}. See {api_url.removesuffix('/api')}."
    )


def _environment(home: Path) -> dict[str, str]:
    chosen = os.environ.get("PREFECT_API_URL")
    stack = running_stack(home)
    project = {"RATCHET_PROJECT": str(Path.cwd())}
    if chosen is not None:
        return {**os.environ, **project}
    if stack is None:
        raise LocalStackError(
            f"the local stack of {home} is not up and PREFECT_API_URL is not set."
            " Start it in another terminal: `ratchet up`."
        )
    return {**stack_environment(home, stack), **project}


def _prefect(environment: dict[str, str], *arguments: str) -> None:
    _run([sys.executable, "-P", "-m", "prefect", "--no-prompt", *arguments], environment)


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LocalStackError(
            f"`{' '.join(command)}` failed with exit code {done.returncode}:\n"
            f"{done.stdout}{done.stderr}"
        )


def main(arguments: list[str]) -> int:
    """Deploy; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deployments.deploying")
    parser.add_argument("--home", type=Path, default=Path(".ratchet"))
    parser.add_argument("--prefect-file", type=Path, default=PREFECT_FILE)
    options = parser.parse_args(arguments)
    try:
        deploy(options.home, options.prefect_file)
    except RatchetError as error:
        print_error(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
