"""The prompt template: one rendering for SFT, GRPO, evaluation and serving."""

import pytest

from grpo_jax.data import CharacterTokenizer, Problem, PromptConfig, PromptTemplate, pack_demonstrations

ALPHABET = "0123456789+-*()=abcdefghijklmnopqrstuvwxyz ."
TOKENIZER = CharacterTokenizer(ALPHABET)
PROBLEM = Problem(prompt="12+34", answer="46", stage="addition", key="k")

CHATML = (
    "{%- for message in messages -%}"
    "{{ bos_token }}{{ message['role'] }} {{ message['content'] }}{{ eos_token }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<assistant>{%- endif -%}"
)


def test_the_built_in_template_is_user_then_assistant():
    assert PromptTemplate(TOKENIZER).prompt_text(PROBLEM) == "<user>12+34<assistant>"


def test_a_problem_and_its_bare_question_encode_alike():
    template = PromptTemplate(TOKENIZER)
    assert template.encode_prompt(PROBLEM) == template.encode_prompt("12+34")
    assert template.encode_prompt(PROBLEM) == template.encode_messages([{"role": "user", "content": "12+34"}])


def test_the_prompt_ids_of_an_sft_row_are_those_of_a_rollout():
    # "=4" is one token here, and would swallow the boundary if prompt and completion were encoded as one text.
    tokenizer = CharacterTokenizer(ALPHABET, ("<eos>", "=4"), chat_template="{{ messages[0].content }}=", eos=("<eos>",))
    template = PromptTemplate(tokenizer)
    prompt, completion = template.encode_prompt(PROBLEM), template.encode_completion("46")
    assert tokenizer.encode(template.prompt_text(PROBLEM) + "46")[: len(prompt)] != prompt
    packed = pack_demonstrations([prompt], [completion], 16, tokenizer.pad_id)
    tokens, mask, used = packed.tokens[0], packed.completion_mask[0], packed.segments[0] > 0
    assert tokens[used & ~mask].tolist() == prompt and tokens[mask].tolist() == completion


def test_a_completion_ends_with_the_first_eos():
    tokenizer = CharacterTokenizer("1", ("<a>", "<b>"), eos=("<b>", "<a>"), chat_template="")
    assert PromptTemplate(tokenizer).encode_completion("1") == [2, 1]


@pytest.mark.parametrize("eos", [0, 1])
def test_the_text_of_a_completion_has_no_eos_whichever_ended_it(eos):
    template = PromptTemplate(CharacterTokenizer("1", ("<a>", "<b>"), eos=("<b>", "<a>"), chat_template=""))
    assert template.completion_text([2, 2, eos]) == "11"
    assert template.completion_text([2, 2]) == "11"
    assert template.completion_text([eos]) == ""
    assert template.completion_text([]) == ""


def test_only_the_last_eos_is_taken_off():
    template = PromptTemplate(CharacterTokenizer("1", ("<a>",), eos=("<a>",), chat_template=""))
    assert template.completion_text([0, 1, 0]) == "<a>1"


def test_a_system_prompt_and_a_user_format_surround_the_question():
    config = PromptConfig(system_prompt="be brief.", user_format="solve {problem} now", chat_template=CHATML)
    text = PromptTemplate(TOKENIZER, config).prompt_text(PROBLEM)
    assert text == "system be brief.<eos>user solve 12+34 now<eos><assistant>"


def test_braces_in_a_question_are_text():
    tokenizer = CharacterTokenizer("{}%x ")
    assert PromptTemplate(tokenizer).prompt_text("{x} {{x}} {% x %}") == "<user>{x} {{x}} {% x %}<assistant>"


def test_a_conversation_shows_earlier_turns_as_they_were_trained():
    template = PromptTemplate(TOKENIZER)
    messages = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "<answer>2</answer>"},
        {"role": "user", "content": "2+2"},
    ]
    first_turn = template.encode_prompt("1+1") + template.encode_completion("<answer>2</answer>")
    assert template.encode_messages(messages)[: len(first_turn)] == first_turn


def test_the_character_template_refuses_a_role_it_cannot_show():
    with pytest.raises(ValueError, match="no place for a system message"):
        PromptTemplate(TOKENIZER, PromptConfig(system_prompt="x")).encode_prompt(PROBLEM)


def test_a_template_cannot_reach_the_interpreter():
    hostile = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(ValueError, match="cannot render"):
        PromptTemplate(TOKENIZER, PromptConfig(chat_template=hostile)).prompt_text(PROBLEM)


def test_a_template_does_not_depend_on_the_date():
    source = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}1{% endif %}"
    assert PromptTemplate(TOKENIZER, PromptConfig(chat_template=source)).prompt_text(PROBLEM) == "1"


def test_a_broken_template_is_refused_at_once():
    with pytest.raises(ValueError, match="not valid jinja2: line 1"):
        PromptTemplate(TOKENIZER, PromptConfig(chat_template="{% if %}"))


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ messages + 1 }}", "{{ nothing.at.all }}"])
def test_a_template_that_fails_on_a_conversation_is_one_error(source):
    with pytest.raises(ValueError, match=r"cannot render messages with roles \['user'\]"):
        PromptTemplate(TOKENIZER, PromptConfig(chat_template=source)).prompt_text(PROBLEM)


def test_a_tokenizer_without_a_template_needs_one():
    with pytest.raises(ValueError, match="brings no chat template"):
        PromptTemplate(CharacterTokenizer("1", chat_template=None))


@pytest.mark.parametrize("user_format", ["solve", "{problem}{problem}"])
def test_the_user_format_has_one_place_for_the_question(user_format):
    with pytest.raises(ValueError, match="user_format"):
        PromptConfig(user_format=user_format)
