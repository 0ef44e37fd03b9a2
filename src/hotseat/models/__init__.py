"""Turn a model on disk or on a hub into a ``DecoderSpec`` and its weights.

Must not know: requests, batches, kernels, HTTP.
"""
