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


def tiny_swin(num_labels):
    """One that merges patches, for grey images of 16x16 pixels: 8 by 8 patches, then 4 by 4."""
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(0)
    sizes = {
        "image_size": 16, "patch_size": 2, "num_channels": 1, "embed_dim": 8, "depths": [1, 1],
        "num_heads": [1, 2], "window_size": 4,
    }  # fmt: skip
    return SwinForImageClassification(SwinConfig(num_labels=num_labels, **sizes)).eval()


def tiny_bert(num_labels):
    """A classifier of texts of at most 8 tokens, of which there are 20; without dropout."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "max_position_embeddings": 8, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    return BertForSequenceClassification(BertConfig(num_labels=num_labels, **sizes))


class OneLayer(nn.Module):
    """A layer of six inputs; what follows it is up to the test."""

    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(6, width)


class WithLoss(nn.Module):
    """A body of ``width`` inputs and a loss that owns the head."""

    def __init__(self, loss, width, embedding_width):
        super().__init__()
        self.body, self.loss = nn.Sequential(nn.Linear(width, embedding_width), nn.GELU()), loss

    def forward(self, inputs, labels):
        return self.loss(self.body(inputs), labels)
