"""The paper's tables and figures again.

The models are about four thousand times smaller than the paper's, so shapes are comparable and numbers are not.
``noise_real`` and ``printed_matrix`` also read real models. Models are stored with the tests' models
(``.trained-models``); the first experiment that needs one trains it, which takes minutes, and 20 minutes for table 4.
"""
