#!/usr/bin/env python3
"""Do directories that dmuon_checkpoint exports load in transformers as they are, with the same logits?

For every fixture of tests/huggingface/fixtures: import, export in float32 (in shards) and in bfloat16, load the
directories by from_pretrained, compare all tensors and the logits. A development check; needs torch and transformers.

    python3 scripts/check_huggingface_export.py [build/release/dmuon_checkpoint]
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "release" / "dmuon_checkpoint"


def load(directory):
    model, report = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print("torch", torch.__version__, "transformers", transformers.__version__)
    for name in ("gpt2", "qwen2", "qwen3"):
        original_directory = ROOT / "tests" / "huggingface" / "fixtures" / name
        with tempfile.TemporaryDirectory() as temporary:
            exported_directory = pathlib.Path(temporary) / "exported"
            for arguments in (["import", original_directory, "--output", f"{temporary}/checkpoints"],
                              ["export", f"{temporary}/checkpoints", "--format", "huggingface", "--output", exported_directory,
                               "--shard-bytes", "40000"]):
                subprocess.run([TOOL, *arguments], check=True, capture_output=True)
            original, exported = load(original_directory), load(exported_directory)
            first, second = original.state_dict(), exported.state_dict()
            assert first.keys() == second.keys(), first.keys() ^ second.keys()
            different = [n for n in first if not torch.equal(first[n], second[n])]
            tokens = torch.arange(24).reshape(2, 12) * 7 % original.config.vocab_size
            with torch.no_grad():
                difference = (original(tokens).logits - exported(tokens).logits).abs().max().item()
            files = len(list(exported_directory.glob("*.safetensors")))
            print(f"{name}: {len(first)} tensors in {files} files, {len(different)} differ; largest difference of the logits {difference}")
            assert not different and difference == 0.0

            # The same in bfloat16: every value rounded to nearest even, as torch rounds, and the logits of those values.
            rounded_directory = pathlib.Path(temporary) / "rounded"
            subprocess.run([TOOL, "export", f"{temporary}/checkpoints", "--format", "huggingface", "--output", rounded_directory,
                            "--dtype", "bfloat16"], check=True, capture_output=True)
            rounded = AutoModelForCausalLM.from_pretrained(rounded_directory, dtype="auto").eval()
            assert rounded.dtype == torch.bfloat16, rounded.dtype
            third = rounded.state_dict()
            different = [n for n in first if not torch.equal(first[n].bfloat16(), third[n])]
            # Loaded, not converted: bfloat16() would round the rotary frequencies as well.
            reference = AutoModelForCausalLM.from_pretrained(original_directory, dtype=torch.bfloat16).eval()
            with torch.no_grad():
                difference = (reference(tokens).logits - rounded(tokens).logits).abs().max().item()
            print(f"{name} in bfloat16: {len(different)} of {len(third)} tensors differ; largest difference of the logits {difference}")
            assert not different and difference == 0.0


if __name__ == "__main__":
    main()
