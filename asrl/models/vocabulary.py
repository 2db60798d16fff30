"""This module is the only place that holds the decoder's output embedding."""

from collections.abc import Callable
from typing import TypeVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Output = TypeVar("Output")


class VocabularyHead(nn.Module):
    """Runs a function on hidden states and the whole output embedding.

    Where parameters are sharded, a weight is whole only inside the forward of the module that holds it. A
    function that projects in chunks, or never keeps the logits, therefore runs in here.

    Args:
        weight: Output embedding ``[v, d]``, shared with whoever holds it.
    """

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(
        self,
        hidden: Float[Tensor, "*shape d"],
        function: Callable[[Tensor, Tensor], Output] = F.linear,  # type: ignore[assignment]
    ) -> Output:
        """Return ``function(hidden, weight)``: tensors, in a tuple if several, where gradients flow."""
        return function(hidden, self.weight)
