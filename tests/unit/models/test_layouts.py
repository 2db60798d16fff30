import torch

from asrl.models.layouts import replica_inputs, splice_speech
from asrl.types import Prompts, SpeechEmbeddings


def column(*values):
    """Embeddings of size one."""
    return torch.tensor(values, dtype=torch.float32)[..., None]


def test_speech_goes_between_prefix_and_suffix_without_a_gap():
    # Two utterances with 3 and 1 speech embeddings (99 is padding); prefix 1 2, suffix 8 9.
    speech = SpeechEmbeddings(torch.stack([column(3, 4, 5), column(6, 99, 99)]), torch.tensor([3, 1]))
    prompts = splice_speech(column(1, 2), speech, column(8, 9))
    assert prompts.embeddings[..., 0].tolist() == [[1, 2, 3, 4, 5, 8, 9], [1, 2, 6, 8, 9, 0, 0]]
    assert prompts.num_tokens.tolist() == [7, 5]


def test_utterance_without_speech_embeddings_is_prefix_and_suffix():
    speech = SpeechEmbeddings(torch.zeros(1, 0, 1), torch.tensor([0]))
    prompts = splice_speech(column(1, 2), speech, column(8, 9))
    assert prompts.embeddings[..., 0].tolist() == [[1, 2, 8, 9]]


def test_completion_follows_its_prompt_without_a_gap():
    # Row 0: prompt of 3, completion of 1 (99 is padding). Row 1: prompt of 2, completion of 3.
    prompts = Prompts(torch.stack([column(1, 2, 3), column(4, 5, 99)]), torch.tensor([3, 2]))
    completions = torch.stack([column(6, 99, 99), column(7, 8, 9)])
    mask = torch.tensor([[True, False, False], [True, True, True]])
    inputs = replica_inputs(prompts, completions, mask)
    assert inputs.embeddings[..., 0].tolist() == [[1, 2, 3, 6, 0], [4, 5, 7, 8, 9]]
    assert inputs.is_visible.tolist() == [[True, True, True, True, False], [True] * 5]
    assert inputs.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_every_token_is_predicted_by_the_position_before_it():
    prompts = Prompts(torch.stack([column(1, 2, 3), column(4, 5, 99)]), torch.tensor([3, 2]))
    completions = torch.stack([column(6, 99, 99), column(7, 8, 9)])
    mask = torch.tensor([[True, False, False], [True, True, True]])
    inputs = replica_inputs(prompts, completions, mask)
    # Token 6 comes after 3; tokens 7 8 9 after 5 7 8.
    assert inputs.gather_predictors(inputs.embeddings)[:, 0].tolist() == [3, 5, 7, 8]


def test_rows_without_completion_tokens_have_no_predictors():
    prompts = Prompts(column(1, 2)[None], torch.tensor([2]))
    inputs = replica_inputs(prompts, torch.zeros(1, 2, 1), torch.zeros(1, 2, dtype=torch.bool))
    assert inputs.embeddings[..., 0].tolist() == [[1, 2]]
    assert len(inputs.gather_predictors(inputs.embeddings)) == 0
