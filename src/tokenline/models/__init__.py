"""Decoder architectures, configs, weights, quantisation and kernels. Knows tensors; nothing of text, JSON or HTTP."""
