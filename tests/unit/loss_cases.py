"""A random batch with clipped rows, padding and an empty row, for the tests of the losses."""

import torch

from asrl.losses import policy_loss


def random_batch(dtype=torch.float64, rows=6, tokens=9, drift=0.5):
    generator = torch.Generator().manual_seed(11)
    logps = -3 * torch.rand(rows, tokens, generator=generator, dtype=torch.float64)
    counts = torch.tensor([9, 1, 4, 0, 7, 2])[:rows]
    batch = {
        "old_logps": logps + drift * torch.randn(rows, tokens, generator=generator, dtype=torch.float64),
        "ref_logps": logps + drift * torch.randn(rows, tokens, generator=generator, dtype=torch.float64),
        "advantages": torch.randn(rows, generator=generator, dtype=torch.float64),
    }
    mask = torch.arange(tokens)[None] < counts[:, None]
    return logps.to(dtype).requires_grad_(), {**{k: v.to(dtype) for k, v in batch.items()}, "mask": mask}


def value_and_grad(logps, **options):
    output = policy_loss(logps, **options)
    return output.loss.detach(), torch.autograd.grad(output.loss, logps)[0]


def options_of(loss_type):
    if loss_type == "cispo":
        return {"loss_type": "cispo", "epsilon_high": 1.3}
    return {"loss_type": loss_type, "max_completion_length": 12}
