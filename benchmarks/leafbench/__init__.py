"""LeaFBench, the provenance kit's pairs and the paper's models, for whoever has the network.

    python -m benchmarks.leafbench plan --suite leafbench            # bytes, memory and time, before anything is read
    python -m benchmarks.leafbench run --suite leafbench --out DIR   # goes on where it was stopped; --shard 0/4
    python -m benchmarks.leafbench report --suite leafbench DIR …    # metrics of what is done

Nothing here has been run against the real Hub: there was no network where it was written.
"""
