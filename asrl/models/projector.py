"""This module is the only place that maps encoder frames to the decoder's embedding space."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Projector(nn.Module):
    """Two linear layers over ``downsample`` consecutive encoder frames; the usual 2 make 80 ms per embedding.

    Frames left over at the end of the padded batch are dropped.
    """

    def __init__(self, encoder_size: int, decoder_size: int, downsample: int = 2) -> None:
        super().__init__()
        self.downsample = downsample
        self.linear1 = nn.Linear(encoder_size * downsample, decoder_size)
        self.linear2 = nn.Linear(decoder_size, decoder_size)

    def forward(self, hidden: Float[Tensor, "u t e"]) -> Float[Tensor, "u s d"]:
        whole = hidden.shape[1] // self.downsample
        stacked = hidden[:, : whole * self.downsample].unflatten(1, (whole, self.downsample)).flatten(2)
        return self.linear2(F.relu(self.linear1(stacked)))
