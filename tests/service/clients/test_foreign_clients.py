"""tinker-cookbook, lm-eval and inspect-ai, unmodified, at ``ratchet llm serve``.

The first two need other versions of packages than the project: they are installed in a separate
environment that reads the project's packages behind its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("tinker")
pytest.importorskip("transformers")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from foreign_model import write_data_sets, write_qwen3  # noqa: E402

pytestmark = pytest.mark.slow

MODEL = "Qwen/Qwen3-8B"
STEPS = 7
LOOPS = ("sl_loop", "rl_loop", "supervised", "rl", "preference")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TINKER_API_KEY": "tml-none"}


class Served:
    """``ratchet llm serve`` in a process that can be killed, on one port."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = os.environ | OFFLINE | {"HF_HOME": str(folder / "hf")}
        self.start()

    def start(self) -> None:
        command = [Path(sys.executable).with_name("ratchet"), "llm", "serve", "--home", "home"]
        command += ["--model", str(self.folder / MODEL), "--name", MODEL, "--port", str(self.port)]
        self.process = subprocess.Popen(command, cwd=self.folder, env=self.environment)
        deadline = time.monotonic() + 300
        while not self._is_ready():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(240)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The clients' working directory: the model and the data sets under their public names."""
    folder = tmp_path_factory.mktemp("clients")
    write_qwen3(folder / MODEL)
    write_data_sets(folder)
    return folder


@pytest.fixture(scope="module")
def served(folder):
    served = Served(folder)
    yield served
    served.close()


@pytest.fixture(scope="module")
def clients_python(tmp_path_factory):
    """Python of an environment with the clients; without a package index its tests are skipped."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = (venv / "lib").glob("python*/site-packages")
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (site / "project.pth").write_text("\n".join(paths))
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-compile", "-r", HERE / "requirements.txt"], capture_output=True, text=True
    )
    if done.returncode and not os.environ.get("RATCHET_REQUIRE_CLIENTS"):
        pytest.skip(f"the clients cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return str(python)


@pytest.mark.timeout(900)
@pytest.mark.in_turn(1, of="clients")
def test_the_cookbooks_loops_resume_also_when_the_service_is_killed(clients_python, served):
    command = [clients_python, str(HERE / "cookbook_loops.py"), served.url]
    log = served.folder / "loops.log"
    with log.open("w") as errors:
        loops = subprocess.Popen(
            command,
            cwd=served.folder,
            env=served.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    events = (line[1:].strip() for line in loops.stdout if line.startswith("@"))
    try:
        for name in LOOPS:
            assert next(events, log.read_text()[-3000:]) == f"interrupted {name}"
            assert _rows(served, name, "checkpoints")[0]["name"] == "000002"
        assert next(events) == "all interrupted"
        served.kill()  # while no client calls it
        served.start()
        loops.stdin.write("\n")
        loops.stdin.flush()
        assert next(events, log.read_text()[-3000:]) == "training"
        served.kill()  # during a step
        served.start()
        for name in LOOPS:
            assert next(events, log.read_text()[-3000:]) == f"finished {name}"
    finally:
        loops.kill()
        loops.communicate()
    for name in LOOPS:
        last = _rows(served, name, "checkpoints")[-1]
        assert last["name"] == "final"
        assert last["sampler_path"].partition(":train:")[0].startswith("tinker://ses-")
        steps = [row["step"] for row in _rows(served, name, "metrics")]  # of the optimizer
        assert steps == sorted(set(steps)), name
        assert len(steps) >= STEPS, name


def _rows(served, name, kind):
    lines = (served.folder / name / f"{kind}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


TASK = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: sums.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
metric_list: [{metric: acc}]
"""


@pytest.mark.timeout(900)
@pytest.mark.in_turn(1, of="clients")
def test_lm_evals_log_likelihoods_equal_those_of_transformers(clients_python, served):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tasks = served.folder / "tasks"
    tasks.mkdir()
    (tasks / "sums.yaml").write_text(TASK)
    rows = [{"question": f"{n} + 1 =", "choices": [str(n + 1), str(n)]} for n in range(4)]
    (served.folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = f"base_url={served.url}/v1/completions,model={MODEL},tokenizer={MODEL}"
    command = [clients_python, "-m", "lm_eval", "--model", "local-completions", "--tasks", "sums"]
    command += ["--model_args", f"{options},tokenizer_backend=huggingface,max_length=1024"]
    command += ["--include_path", str(tasks), "--output_path", "out", "--log_samples"]
    environment = served.environment | {"OPENAI_API_KEY": "none"}
    done = subprocess.run(
        command, cwd=served.folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = (served.folder / "out").rglob("samples_sums_*.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    model = AutoModelForCausalLM.from_pretrained(served.folder / MODEL)
    encode = AutoTokenizer.from_pretrained(served.folder / MODEL).encode
    for sample in samples:
        doc = sample["doc"]
        for choice, (score,) in zip(doc["choices"], sample["resps"], strict=True):
            prompt, ids = encode(doc["question"]), encode(f"{doc['question']} {choice}")
            with torch.no_grad():
                log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            places = range(len(prompt), len(ids))
            expected = sum(float(log_probs[place - 1, ids[place]]) for place in places)
            assert float(score[0]) == pytest.approx(expected, abs=1e-4)
    assert len(samples) == len(rows)


INSPECT = """
import json, sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate
task = Task(dataset=[Sample(input=f"q{n}", target="a") for n in range(3)], solver=generate(),
            scorer=includes())
model = get_model("openai/Qwen/Qwen3-8B", base_url=sys.argv[1], api_key="none")
(log,) = eval(task, model=model, max_tokens=8, seed=1, display="none", log_dir="inspect")
texts = [sample.output.completion for sample in log.samples]
print("@" + json.dumps({"status": log.status, "texts": texts, "error": str(log.error)}))
"""


@pytest.mark.in_turn(1, of="clients")
def test_inspect_evaluates_twice_alike(served):
    pytest.importorskip("inspect_ai")
    results = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", INSPECT, f"{served.url}/v1"],
            cwd=served.folder,
            env=served.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        (line,) = [row[1:] for row in done.stdout.splitlines() if row.startswith("@")]
        results.append(json.loads(line))
    assert results[0]["status"] == "success", results[0]
    assert results[0] == results[1]
    assert all(results[0]["texts"])
