"""The reference backend: one plain PyTorch decoder for all families, on every device, in float32, bfloat16 or int8.

The only package that imports PyTorch, which the extra `torch` installs. `models.load` imports `models.torch.load`, when
a model needs it, and nothing else of the project imports this package.
"""
