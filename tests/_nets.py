"""Small networks of other packages, which several tests use."""

import torch
from torch import nn


def tiny_vit(num_labels):
    """A vision transformer of Hugging Face for grey images of 8x8 pixels, in patches of 2x2."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 8, "patch_size": 2, "num_channels": 1,
    }  # fmt: skip
    return ViTForImageClassification(ViTConfig(num_labels=num_labels, **sizes)).eval()


class WithLoss(nn.Module):
    """A body of ``width`` inputs and a loss that owns the head."""

    def __init__(self, loss, width, embedding_width):
        super().__init__()
        self.body, self.loss = nn.Sequential(nn.Linear(width, embedding_width), nn.GELU()), loss

    def forward(self, inputs, labels):
        return self.loss(self.body(inputs), labels)
