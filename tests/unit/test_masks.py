"""Secrets in command lines and source lines: what is masked, and what people would hate to see masked."""

from __future__ import annotations

import shlex
import time

from pinscope.text import is_secret_name, mask_code, mask_text, mask_value, mask_words

SECRET_NAMES = (
    "token", "hf-token", "HF_TOKEN", "hfToken", "HUGGING_FACE_HUB_TOKEN", "github.token", "use_auth_token", "TOKEN_2",
    "password", "db-password", "PGPASSWORD", "passwd", "pwd", "passphrase", "new_password", "secret", "client_secret",
    "AWS_SECRET_ACCESS_KEY", "aws_access_key_id", "api-key", "api_key", "apikey", "OPENAI_API_KEY", "wandb.apiKey",
    "private-key", "access-key", "accessKey", "auth", "basic-auth", "oauth", "Authorization", "credential",
    "credentials", "secret_key_base", "encryption-key", "X-Api-Key",
)  # fmt: skip
PLAIN_NAMES = (
    "tokenizer", "tokens", "max-tokens", "max_new_tokens", "num-tokens", "num_token", "tokens-per-second", "token-ids",
    "pad_token_id", "eos_token", "bos-token", "mask_token", "image-token", "time_per_token", "time-to-first-token",
    "token-file", "token_type_ids", "token_dropout", "key", "keys", "key-length", "sort-key", "num-key-value-heads",
    "keyboard", "monkey", "author", "authors", "auth-mode", "auth-url", "authenticate", "password-file", "secret-name",
    "credential_helper", "password_length", "no-auth", "no-password", "secretary", "passes", "pass", "bypass",
    "compass", "port", "p", "public-key", "primary_key", "detokenize", "private", "access-log",
)  # fmt: skip

COMMANDS = (
    ("train.py --hf-token=abc --lr 3", "train.py --hf-token=*** --lr 3"),
    ("train.py --hf-token abc --lr 3", "train.py --hf-token *** --lr 3"),
    ("train.py -token abc", "train.py -token ***"),
    ("train.py --api_key=abc", "train.py --api_key=***"),
    ("env HF_TOKEN=abc PWD=/work python x.py", "env HF_TOKEN=*** PWD=/work python x.py"),
    ("x.py +wandb.api_key=abc model.size=7", "x.py +wandb.api_key=*** model.size=7"),
    ("x.py --db postgresql://me:a@b:c@host/db", "x.py --db postgresql://me:***@host/db"),
    ("x.py 'https://host/x?token=abc&n=1'", "x.py 'https://host/x?token=***&n=1'"),
    ("curl -H 'Authorization: Bearer abc' URL", "curl -H 'Authorization: Bearer ***' URL"),
    ("curl -H 'X-Api-Key: abc'", "curl -H 'X-Api-Key: ***'"),
    ("""x.py --config '{"api_key": "abc", "n": 1}'""", """x.py --config '{"api_key": "***", "n": 1}'"""),
    ("sh -c 'python x.py --password \"a b\" --n 3'", "sh -c 'python x.py --password *** --n 3'"),
    ("sh -c 'env TOKEN=abc python x.py'", "sh -c 'env TOKEN=*** python x.py'"),
    ("x.py --password='a b c'", "x.py '--password=***'"),
    # Nothing to mask:
    ("x.py --tokenizer PATH --max-tokens 100 --num-tokens=5 --key-length 3 --author me --no-auth run", None),
    ("x.py --token --lr 3", None),
    ("x.py --eos-token '</s>' --port 8080 -p 80 host:80 git@host:repo https://host:80/x@y", None),
    ("x.py 'api.auth:app' a=b key=value", None),
)
LINES = (
    ('login(token="abc")', 'login(token="***")'),
    ("login(token = f'a{b}c', new=True)", "login(token = f'***', new=True)"),
    ('os.environ["HF_TOKEN"] = "abc"', 'os.environ["HF_TOKEN"] = "***"'),
    ('os.environ.setdefault("HF_TOKEN", "abc")', 'os.environ.setdefault("HF_TOKEN", "***")'),
    ('headers = {"Authorization": "Bearer abc"}', 'headers = {"Authorization": "***"}'),
    ('self.api_key: str = "abc"', 'self.api_key: str = "***"'),
    (r'f(password="a\"b", n=1)', 'f(password="***", n=1)'),
    ('f(password="""a"b""", n=1)', 'f(password="""***""", n=1)'),
    ('login(token="abc … de', 'login(token="***'),
    ('run(["x", "--token", "abc"])', 'run(["x", "--token", "***"])'),
    ('os.system("x --token abc")', 'os.system("x --token ***")'),
    ('x = get("https://me:abc@host/x").cuda()', 'x = get("https://me:***@host/x").cuda()'),
    ("""x = f("it's token='abc'")""", """x = f("it's token='***'")"""),
    # Nothing to mask:
    ("model(token=token, auth=self.auth, password=getpass())", None),
    ('x = batch["token"].to("cuda", non_blocking=True)', None),
    ('tokenizer(text, return_tensors="pt", padding="max_length").to("cuda")', None),
    ('tokenizer.pad_token = "<pad>"', None),
    ('x = y.to("cuda") if key == "abc" else sorted(x, key="abc")', None),
    ('token = ""', None),
)


def test_the_name_of_a_secret_is_known_and_one_that_only_reads_like_it_is_none() -> None:
    assert [name for name in SECRET_NAMES if not is_secret_name(name)] == []
    assert [name for name in PLAIN_NAMES if is_secret_name(name)] == []


def test_values_of_secret_arguments_are_masked_and_nothing_else() -> None:
    for command, masked in COMMANDS:
        words = tuple(shlex.split(command))
        once = mask_words(words)
        assert once == tuple(shlex.split(masked or command))
        assert mask_words(once) == once
        assert mask_value({"program": list(words)}) == {"program": list(once)}
        assert "abc" not in mask_text(" ".join(words)) or masked is None


def test_text_in_quotes_beside_a_secret_name_is_masked_in_source_lines() -> None:
    for line, masked in LINES:
        once = mask_code(line)
        assert once == (masked or line)
        assert mask_code(once) == once


def test_a_word_of_any_length_takes_time_in_proportion() -> None:
    for piece in ["a", "--token ", 'token="', "token: ", "a://:@", "x-", "[", "\\", "a="]:
        text = "token" + piece * (100_000 // len(piece))
        begun = time.process_time()
        mask_words([text])
        mask_code(text)
        assert time.process_time() - begun < 5
