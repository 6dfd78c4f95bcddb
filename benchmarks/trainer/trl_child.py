"""TRL's side of `benchmarks.trainer.trl`, for an interpreter of its own: a GRPO step on given completions a line that it reads.

It imports nothing of ours. Arguments: a model folder, and a file with the rows. It prints a JSON object a line.
"""

import json
import sys
import tempfile
import time
import warnings


def main(model_dir: str, rows_file: str) -> None:
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    with open(rows_file) as file:
        rows = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(model_dir, len(rows), folder)
        inputs = _inputs(rows)
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        trainer.create_optimizer()
        print(json.dumps({"ready": True}), flush=True)
        for _ in sys.stdin:
            wall, cpu = time.perf_counter(), time.process_time()
            trainer.optimizer.zero_grad()
            trainer.compute_loss(trainer.model, inputs).backward()
            norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
            trainer.optimizer.step()
            taken = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "grad_norm": float(norm)}
            print(json.dumps(taken), flush=True)


def _trainer(model_dir: str, batch: int, folder: str):  # type: ignore[no-untyped-def]
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "pad": 1}, unk_token="a"))
    settings = GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=batch, num_generations=8,
        beta=0.0, loss_type="bnpo", learning_rate=1e-5, adam_beta2=0.99, weight_decay=0.0, gradient_checkpointing=False,
        disable_tqdm=True,
    )  # fmt: skip
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_dir, dtype="float32"),
        reward_funcs=lambda prompts, **unused: [0.0] * len(prompts),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * batch),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="pad", eos_token="pad"),
    )


def _inputs(rows):  # type: ignore[no-untyped-def]
    import torch

    def padded(lines: list[list[int]], left: bool):  # type: ignore[no-untyped-def]
        width = max(map(len, lines))
        ids, mask = torch.zeros(len(lines), width, dtype=torch.int64), torch.zeros(len(lines), width, dtype=torch.int64)
        for number, line in enumerate(lines):
            own = slice(width - len(line), width) if left else slice(0, len(line))
            ids[number, own], mask[number, own] = torch.tensor(line), 1
        return ids, mask

    prompt_ids, prompt_mask = padded([row["prompt"] for row in rows], left=True)
    completion_ids, completion_mask = padded([row["completion"] for row in rows], left=False)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor([row["advantage"] for row in rows]),
        "num_items_in_batch": completion_mask.sum(),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
