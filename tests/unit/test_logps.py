import math

import pytest
import torch

from asrl.logps import token_logps


def naive(hidden, head_weight, tokens, temperature):
    log_probs = (hidden @ head_weight.T / temperature).log_softmax(1)
    entropy = -(log_probs.exp() * log_probs).sum(1)
    return log_probs.gather(1, tokens[:, None])[:, 0], entropy


def random_problem(num=11, d=6, v=17, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(num, d, generator=generator, dtype=dtype).requires_grad_()
    head_weight = torch.randn(v, d, generator=generator, dtype=dtype).requires_grad_()
    tokens = torch.randint(v, (num,), generator=generator)
    return hidden, head_weight, tokens


def test_odds_of_one_to_three_by_hand():
    # Logits 0 and log 3: probabilities 1/4 and 3/4, entropy log 4 - 3/4 log 3 = 0.562335 nats.
    # At temperature 1/2 the odds are squared, 1:9: entropy log 10 - 9/10 log 9 = 0.325083.
    hidden, head_weight = torch.ones(2, 1), torch.tensor([[0.0], [math.log(3)]])
    scores = token_logps(hidden, head_weight, torch.tensor([0, 1]))
    torch.testing.assert_close(scores.logps.exp(), torch.tensor([0.25, 0.75]), atol=1e-6, rtol=0)
    torch.testing.assert_close(scores.entropy, torch.tensor([0.562335, 0.562335]), atol=1e-6, rtol=0)
    scores = token_logps(hidden, head_weight, torch.tensor([0, 1]), temperature=0.5)
    torch.testing.assert_close(scores.logps.exp(), torch.tensor([0.1, 0.9]), atol=1e-6, rtol=0)
    torch.testing.assert_close(scores.entropy, torch.tensor([0.325083, 0.325083]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("chunk_size", [1, 4, 11, 1024])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_log_softmax_for_any_chunk_size(chunk_size, temperature):
    hidden, head_weight, tokens = random_problem()
    expected, expected_entropy = naive(hidden, head_weight, tokens, temperature)
    scores = token_logps(hidden, head_weight, tokens, temperature=temperature, chunk_size=chunk_size)
    torch.testing.assert_close(scores.logps, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(scores.entropy, expected_entropy, atol=1e-6, rtol=1e-6)

    weights = torch.linspace(-1, 2, 11)
    expected_grads = torch.autograd.grad((weights * expected).sum(), (hidden, head_weight))
    grads = torch.autograd.grad((weights * scores.logps).sum(), (hidden, head_weight))
    torch.testing.assert_close(grads, expected_grads, atol=2e-6, rtol=1e-5)


def test_gradient_agrees_with_finite_differences():
    hidden, head_weight, tokens = random_problem(num=5, d=3, v=7, dtype=torch.float64)

    def logps(hidden, head_weight):
        return token_logps(hidden, head_weight, tokens, temperature=0.8, chunk_size=2).logps

    assert torch.autograd.gradcheck(logps, (hidden, head_weight))


def test_entropy_is_detached_and_nan_when_not_asked_for():
    hidden, head_weight, tokens = random_problem()
    assert not token_logps(hidden, head_weight, tokens).entropy.requires_grad
    assert token_logps(hidden, head_weight, tokens, with_entropy=False).entropy.isnan().all()


def test_frozen_head_gets_no_gradient():
    hidden, head_weight, tokens = random_problem()
    head_weight.requires_grad_(False)
    token_logps(hidden, head_weight, tokens).logps.sum().backward()
    assert head_weight.grad is None
    assert hidden.grad.abs().sum() > 0


def test_no_positions_give_no_scores_and_a_zero_gradient():
    # A rank without rows still takes part in the backward pass.
    hidden, head_weight = torch.zeros(0, 6, requires_grad=True), torch.ones(17, 6, requires_grad=True)
    scores = token_logps(hidden, head_weight, torch.zeros(0, dtype=torch.long))
    scores.logps.sum().backward()
    assert scores.logps.shape == (0,)
    assert hidden.grad.shape == (0, 6)
    assert (head_weight.grad == 0).all()


@pytest.mark.parametrize("hidden_dtype", [torch.bfloat16, torch.float32])
def test_half_precision_head_is_projected_in_its_precision_and_scored_in_float32(hidden_dtype):
    hidden, head_weight, tokens = random_problem()
    hidden = hidden.detach().to(hidden_dtype).requires_grad_()
    head_weight = head_weight.detach().bfloat16().requires_grad_()
    logits = (hidden.bfloat16() @ head_weight.T).float()
    expected = logits.log_softmax(1).gather(1, tokens[:, None])[:, 0]
    scores = token_logps(hidden, head_weight, tokens, chunk_size=4)
    assert scores.logps.dtype == torch.float32
    torch.testing.assert_close(scores.logps, expected, atol=1e-6, rtol=1e-6)

    expected_grads = torch.autograd.grad(expected.sum(), (hidden, head_weight))
    grads = torch.autograd.grad(scores.logps.sum(), (hidden, head_weight))
    assert [grad.dtype for grad in grads] == [hidden_dtype, torch.bfloat16]
    # bfloat16 has 8 bits: the gradients of up to 11 summed positions agree to 2^-7 of their size.
    torch.testing.assert_close(grads, expected_grads, atol=2e-2, rtol=1e-2)


def test_autocast_does_not_round_a_float32_head():
    hidden, head_weight, tokens = random_problem()
    expected = token_logps(hidden, head_weight, tokens).logps
    expected_grad = torch.autograd.grad(expected.sum(), hidden)[0]
    with torch.autocast("cpu", torch.bfloat16):
        logps = token_logps(hidden, head_weight, tokens).logps
        grad = torch.autograd.grad(logps.sum(), hidden)[0]
    assert torch.equal(logps, expected)
    assert torch.equal(grad, expected_grad)


def test_large_logits_do_not_overflow():
    # Logits 1000 and 0: log-probs 0 and -1000, entropy 0.
    scores = token_logps(torch.full((2, 1), 1000.0), torch.tensor([[1.0], [0.0]]), torch.tensor([0, 1]))
    assert scores.logps.tolist() == [0.0, -1000.0]
    assert scores.entropy.tolist() == [0.0, 0.0]


class LogitsAlive(torch.utils._python_dispatch.TorchDispatchMode):
    """Records the largest tensor that any operation returns."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.largest = max(self.largest, out.numel())
        return out


def test_no_tensor_is_larger_than_one_chunk_of_logits():
    # 64 positions, vocabulary 1000, chunks of 8: 8,000 logits at a time instead of 64,000.
    hidden = torch.randn(64, 4, requires_grad=True)
    head_weight = torch.randn(1000, 4)
    tokens = torch.randint(1000, (64,))
    saved = []
    with (
        LogitsAlive() as mode,
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t),
    ):
        token_logps(hidden, head_weight, tokens, chunk_size=8).logps.sum().backward()
    assert mode.largest == 8 * 1000
    assert max(saved) == 4 * 1000  # the head itself
