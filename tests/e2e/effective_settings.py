#!/usr/bin/env python3
"""What a server says about its limits and what it does: effective_settings.py TANDEM FIXTURES. Standard library only.
Exits 1 at the first fault."""
import json, pathlib, signal, sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from processes import Endpoint, Place

TANDEM, FIXTURES = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = FIXTURES / "tiny" / "llama-gqa.F16.gguf"


def with_server(test, *flags):
    place = Place(TANDEM, MODEL, [])
    server = Endpoint(place, "serve", str(MODEL), "--served-model-name", "tiny", "--port", "0", *flags)
    test(place, server)
    place.check(server.end(signal.SIGTERM) == 0, "the server ends")
    return (place.folder / "stderr.log").read_text()


def ask(server, path, body=None):
    answer = server.open(path, body)
    return answer.status, json.loads(answer.read())


def complete(server, num_tokens, **fields):
    return ask(server, "/v1/completions", {"prompt": [7] * num_tokens, "ignore_eos": True, **fields})


def test_dep_04(place, server):
    """DEP-04: the limit of a request and the pool are two settings; neither is divided by the requests at once."""
    settings = ask(server, "/server_info")[1]
    expected = {"max_model_len": 96, "kv_tokens": 20 * 16, "kv_blocks": 20, "block_size": 16, "max_num_seqs": 10,
                "max_num_batched_tokens": 64, "max_queue_length": 256}
    place.check(settings["limits"] == expected, f"the limits are those that were set: {settings['limits']}")
    options = settings["options"]
    place.check(options["max-model-len"] == {"value": 96, "source": "flag"}, "an option that was set")
    place.check(options["max-queue-length"] == {"value": 256, "source": "default"}, "an option that was not")
    models = ask(server, "/v1/models")[1]
    place.check(models["data"][0]["max_model_len"] == 96, "the model's card says the same")
    # With ten at once, a tenth of the pool would be 32 tokens and a tenth of the limit 9.
    for num_prompt, max_tokens, num_answered in ((95, 1, 1), (95, 9, 1), (60, None, 36), (1, None, 95)):
        status, answer = complete(server, num_prompt, max_tokens=max_tokens)
        place.check(status == 200, f"{num_prompt} tokens are answered: {answer}")
        place.check(answer["usage"]["completion_tokens"] == num_answered, f"up to the limit: {answer['usage']}")
    for num_prompt in (96, 97, 200):
        status, answer = complete(server, num_prompt)
        place.check(status == 400, f"{num_prompt} tokens leave no room")
        place.check(answer["error"]["code"] == "context_length_exceeded" and "96" in answer["error"]["message"],
                    f"the refusal names the limit: {answer}")


def test_small_pool(place, server):
    """A pool smaller than what a request may ask for lowers the limit, and says so."""
    settings = ask(server, "/server_info")[1]
    place.check(settings["limits"]["max_model_len"] == 64 and settings["limits"]["kv_tokens"] == 64,
                f"the limit that holds: {settings['limits']}")
    place.check(settings["options"]["max-model-len"]["value"] == 96, "what was asked for")
    place.check(settings["options"]["api-key"]["value"] is None, "no secrets")
    place.check(complete(server, 63, max_tokens=1)[0] == 200, "a request that fits the pool")
    place.check(complete(server, 64, max_tokens=1)[0] == 400, "one that does not")


if __name__ == "__main__":
    small = ["--max-model-len", "96", "--max-num-seqs", "10"]
    log = with_server(test_dep_04, *small, "--kv-blocks", "20", "--max-num-batched-tokens", "64")
    assert "tokens_a_request=96" in log and "kv_pool_tokens=320" in log and "requests_at_once=10" in log, log
    log = with_server(test_small_pool, *small, "--kv-blocks", "4")
    assert "context lowered" in log and "tokens_a_request=64" in log, log
