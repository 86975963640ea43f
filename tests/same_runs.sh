#!/usr/bin/env bash
# Writes into FOLDER what short runs compute, so that a change that must not change a bit can be checked by `diff -r` of two folders,
# one written before it and one after:
#
#   tests/same_runs.sh FOLDER
#
# 30 steps of dense models, mixtures and low-rank adapters, on the kernels of software adapters and of GPUs, and on two ranks: loss,
# evaluation and gradient norm of each step, and the SHA-256 of each file of weights and moments.
set -euo pipefail
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo build --release --bin gristmill
runs="$(mktemp -d)"
trap 'rm -rf "$runs"' EXIT
# A text that no commit changes.
git archive 01df610 src/ops | tar -xO > "$runs/text.txt"

# run NAME CONFIG FLAG...: trains, and writes the numbers of the run.
run() {
    local name="$1" config="$2"
    shift 2
    ./target/release/gristmill train "configs/$config.yaml" "--output_dir=$runs" "--run_name=$name" --stop_step=30 --batch_size=2 \
        --eval_step_interval=10 --eval_batches=2 --train_dataset.data_loader.type=TextDataLoader \
        --train_dataset.data_loader.dataset_dir="$runs/text.txt" "$@" > "$runs/$name.log" 2>&1 ||
        { cat "$runs/$name.log"; exit 1; }
    {
        grep -oE '"(step|[a-z_]*loss|global_norm|accuracy)": *[^,}]*' "$runs/$name/metrics.jsonl"
        (cd "$runs/$name/checkpoint" && find . -name '*.safetensors' | sort | xargs sha256sum)
    } > "$folder/$name.txt"
    echo "$name: $(wc -l < "$folder/$name.txt") lines"
}

two_ranks=(--ranks 2 --use_parallel=True --parallel.parallel_mode=1 --parallel_config.data_parallel=2)
cut=(--model.model_config.num_layers=3 --model.model_config.hidden_size=128 --model.model_config.num_heads=4
    --model.model_config.intermediate_size=384 --model.model_config.seq_length=128 --model.model_config.vocab_size=256
    --train_dataset.tokenizer=null --train_dataset.data_loader.config=null --train_dataset.eval_fraction=0.05 --gradient_accumulation_steps=2)
for way in software portable ranks; do
    flags=(--tier "$way")
    if [[ $way == ranks ]]; then flags=("${two_ranks[@]}"); fi
    for config in tiny tiny_moe gpt2_tiny; do run "$config.$way" "$config" "${flags[@]}"; done
    run "tiny_lora.$way" tiny_lora --load_checkpoint="$runs/tiny.$way/checkpoint/step_0000030" "${flags[@]}"
    if [[ $way == ranks ]]; then flags+=(--parallel_config.expert_parallel=2); fi
    run "deepseek_moe_small.$way" deepseek_moe_small "${cut[@]}" "${flags[@]}"
done
