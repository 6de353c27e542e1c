"""The paper's tables and figures, one script each, on small models trained by the scripts.

python -m benchmarks.paper.noise_real          # tables 3a, 3b: trace and usefulness under noise, on real models
python -m benchmarks.paper.changed_tokenizer   # table 4: new embeddings for another tokenizer, during training
python -m benchmarks.paper.ablation            # figure 6: seed x data
python -m benchmarks.paper.layer_maps          # figures 2 and 8: layer maps of deepened and pruned copies, by CKA too
python -m benchmarks.paper.printed_matrix      # figure 1: 25 models, p of Algorithm 1 as printed
python -m benchmarks.paper.matrices            # figures 3 to 5: matrices of pruning, upcycling and unrelated models

Each script writes ``paper-NAME.json``, a section ``paper-NAME.md`` and figures to ``benchmarks/results``. The models
are about four thousand times smaller than the paper's, so shapes are comparable and numbers are not. ``noise_real`` and
``printed_matrix`` also read real models. Models are stored with the tests' models (``.trained-models``); the first
script that needs one trains it. Table 4 takes an hour on one core, the others take minutes.
"""
