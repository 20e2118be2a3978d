"""Models, files and names of Python that pages take as given."""

# The names that pages give to a model of the reader's.
MODELS = {"my_norm": "group_norm_64_8", "NAME": "instance_norm_64", "M": "instance_norm_64", "m": "instance_norm_64"}
# Files of the reader's, and their shapes.
TENSORS = {"x.npy": "2x64x16x16"}
# Programs and modules without which a piece is left out.
TOOLS = ["curl", "jq", "openssl"]
NOT_OURS = {"safetensors", "torch", "transformers", "tritonclient"}

X = """
import numpy as np
x = np.random.default_rng(1).random((2, 64, 16, 16), "float32")
"""
CLIENT = """
import normd
client = normd.Client("127.0.0.1:8001")
"""
MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.InstanceNorm2d(64))
"""
MODULE = """
import torch
module = torch.nn.GroupNorm(8, 64)
"""
PAGES = {"README.md": [MODEL], "docs/models.md": [MODULE]}


def python(page, triton):
    """Pieces of Python that run before a page's own, each by itself."""
    return [X] if triton else [X, CLIENT, *PAGES.get(page, [])]
