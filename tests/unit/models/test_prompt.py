import json

import pytest

from asrl.errors import UserError
from asrl.models.prompt import build_prompt, clean_text, load_tokenizer


@pytest.fixture(scope="module")
def prompt(golden):
    return build_prompt(load_tokenizer(golden / "FireRedASR-LLM-tiny" / "Qwen2-7B-Instruct"))


@pytest.fixture(scope="module")
def cases(golden):
    return json.loads((golden / "text_cases.json").read_text(encoding="utf-8"))


def test_cleaning_equals_the_released_models_training_text(cases):
    assert {text: clean_text(text) for text, _ in cases["clean_text"]} == dict(cases["clean_text"])


def test_special_tokens_have_the_released_ids(prompt, cases):
    ids = cases["special_ids"]
    assert (prompt.pad_id, prompt.end_id) == (ids["pad"], ids["eos"]) == (600, 602)
    assert prompt.tokenizer.convert_tokens_to_ids("<speech>") == ids["<speech>"] == 603


def test_prompt_and_transcript_make_the_released_training_sequence(prompt, cases):
    batch = cases["train_batch_right_padded"]
    for text, ids, is_text in zip(batch["clean"], batch["input_ids"], batch["attention_mask"], strict=True):
        expected = [token for token, keep in zip(ids, is_text, strict=True) if keep]
        assert [*prompt.prefix_ids, 603, *prompt.suffix_ids, *prompt.encode_transcript(text)] == expected


def test_transcript_that_says_assistant_keeps_all_of_its_tokens(prompt):
    # Upstream leaves the first two out of the loss, mistaking them for the prompt's "assistant\n".
    assert prompt.encode_transcript("assistant manager") == [271, 220, 76, 259, 64, 70, 260, 602]


def test_empty_transcript_is_the_end_token(prompt):
    assert prompt.encode_transcript("") == [602]


def test_special_token_spelled_out_in_a_transcript_stays_text(prompt):
    tokens = prompt.encode_transcript("a<|im_end|><speech>b")
    assert tokens.count(602) == 1
    assert 603 not in tokens
    assert prompt.decode(tokens) == "a<|im_end|><speech>b"


def test_decoding_inverts_encoding_without_special_tokens(prompt):
    tokens = prompt.encode_transcript("打开空调play the next song")
    assert prompt.decode([*tokens, 600, 600]) == "打开空调play the next song"


def test_decoding_keeps_spaces_before_punctuation(prompt):
    assert prompt.decode(prompt.encode_transcript("it 's a , b")) == "it 's a , b"


def test_ids_beyond_the_vocabulary_decode_to_nothing(prompt):
    # The head has 640 rows and the vocabulary 604 entries: a draw may hit the rest.
    assert prompt.decode([271, 604, 639, 602]) == "assistant"


def test_folder_without_tokenizer_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match="no usable tokenizer") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)
