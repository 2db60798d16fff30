#!/usr/bin/env bash
# Rebuild everything that the demo ships, from nothing: corpus, random model, supervised training. Needs the extra
# demo-build (pip install -e '.[demo-build]'); about 40 minutes on two idle cores. Overwrites demo/.
#   bash scripts/demo/rebuild.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

python scripts/demo/build_corpus.py --output build/demo-corpus --shipped demo
python scripts/demo/init_model.py --corpus build/demo-corpus --output build/demo-init --seed 0
rm -rf runs/sft-demo
asrl sft recipe=demo_warm_start run_dir=runs/sft-demo
python scripts/demo/ship_model.py --model runs/sft-demo/model --output demo/FireRedASR-LLM-demo
