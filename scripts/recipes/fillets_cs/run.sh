#!/usr/bin/env bash
# A model for acted Czech dialogue, from nothing: corpus, synthesised speech, random model, pre-training, warm start,
# reinforcement learning, report. Needs Debian or Ubuntu (apt-get, dpkg-deb) and the extra demo-build
# (pip install -e '.[demo-build]'). Takes 76 minutes on two shared cores and must stay below 90. A stage that has ended is
# not repeated: remove its file in build/fillets_cs/done to do it again.
#   bash scripts/recipes/fillets_cs/run.sh
set -euo pipefail
cd "$(dirname "$0")/../../.."

recipe=scripts/recipes/fillets_cs
corpus=build/fillets_cs
run=runs/fillets_cs-sequence-seed42
# Matrices this small gain nothing from threads.
export OMP_NUM_THREADS=1

stage() { # name, output of an interrupted attempt, command
    local name=$1 output=$2
    shift 2
    if [ ! -f "$corpus/done/$name" ]; then
        rm -rf "$output"
        "$@"
        mkdir -p "$corpus/done"
        touch "$corpus/done/$name"
    fi
}

script() { # of this recipe; it shares the demo's tokenizer, synthesis and model writer
    PYTHONPATH="scripts/demo${PYTHONPATH:+:$PYTHONPATH}" python "$recipe/$1" "${@:2}"
}

stage corpus "$corpus/test.jsonl" script build_corpus.py --output "$corpus"
stage speech "$corpus/pretrain.jsonl" script speak_corpus.py --corpus "$corpus"
stage model "$corpus/init" script create_model.py --corpus "$corpus" --output "$corpus/init"
stage pretrain runs/fillets_cs-pretrain asrl sft recipe=fillets_cs_pretrain
stage warm-start runs/fillets_cs-warm_start asrl sft recipe=fillets_cs_warm_start
stage train "$run" python train.py experiment=fillets_cs
script report.py "$run"
